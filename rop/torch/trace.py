"""From a module of torch to a net of rop: torch.fx records the operations of forward, and each becomes a layer.

The operations in fx's record are called lines here, because a node is one of the rop graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx, nn

from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph, Input, Node
from rop.layers import Flatten, Identity
from rop.layers.base import Layer, Origin
from rop.torch import functions
from rop.torch.counterparts import Target
from rop.torch.functions import Argument, Factor, Size, Sizes
from rop.torch.layers import DROPOUTS, KINDS, Unsupported, layer_of, missing
from rop.torch.problems import Problem, refuse
from rop.torch.recording import LOST, SOURCE, record
from rop.torch.taught import Layers, Made, Taught

DTYPES: dict[torch.dtype, np.dtype] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
PUBLIC = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}  # modules under the names that users write


@dataclass(frozen=True)
class Traced:
    """A net, and the tensors of the module that hold its parameters and running statistics."""

    net: Graph
    parameters: tuple[Tensor, ...]  # one for each of net.slots
    buffers: dict[str, Tensor]  # running statistics under the names of net.init_state()
    counters: dict[str, Tensor]  # num_batches_tracked of the batchnorm layers, by their names
    dtype: np.dtype

    def vector(self) -> np.ndarray:
        """The parameters in the order of the net, a copy."""
        parts = [_numpy(parameter).ravel() for parameter in self.parameters]
        return np.concatenate([np.zeros(0, self.dtype), *parts])

    def state(self) -> dict[str, np.ndarray]:
        """The running statistics, copies."""
        return {name: _numpy(buffer).astype(self.dtype) for name, buffer in self.buffers.items()}


def from_torch(module: nn.Module, layers: Layers | None = None) -> tuple[Graph, np.ndarray, dict[str, np.ndarray]]:
    """The net, the flat parameter vector and the running statistics of an nn.Module.

    forward is traced with torch.fx in the mode the module is in, so it must be a fixed sequence of operations on one
    input. The net remembers what rop.Objective follows: the mode of each batchnorm layer, the precision (``net.dtype``)
    and which parameters have ``requires_grad=False`` (``net.fixed``). Layers keep their paths as names
    ("layer1.0.conv1"); functions are named after the path of the module that calls them ("layer1.0.add"). w and state
    are copies, float32 or float64 as the parameters are.

    w has the order of ``torch.nn.utils.parameters_to_vector(module.parameters())``, whatever the order in which forward
    calls the layers. Only parameters that forward does not use are left out, and those of a function
    (``F.linear(x, self.a, self.b)``) stand together where the first of them does.

    ``layers`` says what stands for classes of modules, functions of torch and methods of tensors (by name) that rop
    does not know, or otherwise than you want: a layer without parameters, for a class also a net, or a function that
    makes a layer or a net for a module. Parameters are the module's of the same names, or else the module's in their
    order.

    Raises one ArgumentError that lists all that has no layer in rop: path, operation, line of the source, remedy.

    >>> import torch, rop
    >>> class Block(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv, self.bn = torch.nn.Conv2d(2, 2, 3, padding=1), torch.nn.BatchNorm2d(2)
    ...     def forward(self, x):
    ...         return torch.relu(self.bn(self.conv(x)) + x).flatten(1)
    >>> net, w, state = rop.from_torch(Block())
    >>> net.summary((2, 4, 4))
    name     layer          output            parameters
    conv     Conv2d 2→2     (batch, 2, 4, 4)          38
    bn       BatchNorm2d 2  (batch, 2, 4, 4)           4
    add      Add            (batch, 2, 4, 4)           0
    relu     ReLU           (batch, 2, 4, 4)           0
    flatten  Flatten        (batch, 32)                0
    total                                             42
    >>> sorted(state)
    ['bn.running_mean', 'bn.running_var']
    >>> class Cube(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * x * x
    >>> cubic = rop.Elementwise(lambda x: (x**3, 3 * x**2, 6 * x, 6.0))
    >>> net, w, state = rop.from_torch(torch.nn.Sequential(torch.nn.Linear(2, 1), Cube()), layers={Cube: cubic})
    >>> float(net.predict(np.array([1, 1, 0], "f4"), np.array([[1, 2]], "f4"))[0, 0])
    27.0
    """
    traced = trace(module, layers)
    return traced.net, traced.vector(), traced.state()


def trace(module: nn.Module, layers: Layers | None = None) -> Traced:
    """The net of a module together with the tensors its parameters and statistics come from."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"from_torch: expected an nn.Module, got {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ArgumentTypeError(
            "from_torch: expected an nn.Module with a forward in Python, got a scripted one; give "
            "the module it was made from"
        )
    module, taught = _unwrapped(module), Taught(layers)
    name = type(module).__name__
    if type(module) in KINDS or module in taught:
        module = nn.Sequential(module)  # a single layer has a name, too
    problems = _problems_of_tensors(module)
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters()):
        refuse(name, problems)  # a lazy module is no layer yet
    recorded = record(module, taught)
    walk = Walk(module, recorded.graph, taught, _dtype(module))
    problems += recorded.problems + walk.problems
    if problems:
        refuse(name, problems)
    net = Graph(walk.input, walk.output, walk.names())
    parameters = tuple(walk.tensors[slot.layer][slot.key] for slot in net.slots)
    if problems := _problems_of_parameters(net, parameters):
        refuse(name, problems)
    normalised = [layer for layer in net.layers if layer.initial_state()]
    buffers = {
        f"{net.name_of(layer)}.{key}": walk.tensors[layer][key] for layer in normalised for key in layer.initial_state()
    }
    counters = {net.name_of(layer): walk.tensors[layer].get("num_batches_tracked") for layer in normalised}
    known = {name: counter for name, counter in counters.items() if counter is not None}
    return Traced(net, parameters, buffers, known, _dtype(module))


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch.compile(...) or nn.DataParallel(...)."""
    while isinstance(module, nn.DataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, nn.DataParallel) else module._orig_mod
    return module


class _Unknown(Layer):
    """Stands for what could not be translated, so that what comes after it is looked at as well."""


class Walk:
    """Goes through fx's record line by line; ``values`` holds the value of each line: a node of the rop graph, a tensor
    of the module, a size, or a constant."""

    def __init__(self, module: nn.Module, graph: fx.Graph, taught: Taught, dtype: np.dtype) -> None:
        self.problems: list[Problem] = []
        self.modules = dict(module.named_modules(remove_duplicate=False))
        self.position = {id(p): i for i, p in enumerate(module.parameters())}
        self.paths = {id(p): name for name, p in module.named_parameters()}
        self.input = Input()
        self.output: Node
        self.tensors: dict[Layer, dict[str, Tensor]] = {}  # parameters and buffers of each layer
        self.values: dict[fx.Node, Argument] = {}
        self._module, self._taught, self._dtype = module, taught, dtype
        self._unknown = _Unknown()
        self._names: dict[Layer, str] = {}
        self._taken = set(self.modules)
        self._known: dict[Hashable, Layer] = {}  # by the key that identifies a layer, see _layer
        for line in graph.nodes:
            try:
                value = None if line.meta.get(LOST) else self._value(line)
            except (Unsupported, ArgumentError, ArgumentTypeError) as error:
                self.problems.append(Problem(*self._where(line), line.meta[SOURCE], str(error)))
                line.meta[LOST] = True
            self.values[line] = self._unknown(self.input) if line.meta.get(LOST) else value

    # -------------------------------------------------------------------------------------------------- line by line
    def _value(self, line: fx.Node) -> Argument:
        args, kwargs = fx.map_arg((line.args, line.kwargs), lambda source: self._read(source))
        match line.op:
            case "placeholder":  # fx has put in the defaults of all others; it only compares them
                return self.input if not self.values else None
            case "get_attr":
                return operator.attrgetter(str(line.target))(self._module)
            case "call_module":
                return self._call_module(str(line.target), *args, **kwargs)
            case "output":
                self.output = self._output(args[0])
                return self.output
        self._path = self._caller(line)
        taught = self._taught.layer(line.target)
        if taught is not None:
            return self._apply_taught(taught, _name_of(line.target), *args, **kwargs)
        function = functions.FUNCTIONS.get(line.target)
        if function is None:
            key = repr(line.target) if isinstance(line.target, str) else _qualified(line.target)
            raise Unsupported(f"there is no such layer; say what computes it: layers={{{key}: a layer of rop}}")
        if self._says_nothing(line):
            return self._unknown(self.input)
        try:
            inspect.signature(function).bind(self, *args, **kwargs)
        except TypeError as error:
            raise Unsupported(f"the arguments ({_shown(*args, **kwargs)}) are not supported: {error}") from error
        return function(self, *args, **kwargs)

    def _says_nothing(self, line: fx.Node) -> bool:
        """Whether a rule would complain about values that are unknown. It may see one as its input, to complain about
        other arguments; a part or an attribute of it may be anything."""
        unknown = [source for source in line.all_input_nodes if self._is_unknown(self.values[source])]
        as_input = len(unknown) == 1 and bool(line.args) and line.args[0] is unknown[0]
        return bool(unknown) and not (as_input and line.target not in (operator.getitem, getattr))

    def _is_unknown(self, value: Argument) -> bool:
        return isinstance(value, Node) and value.layer is self._unknown

    def _read(self, source: fx.Node) -> Argument:
        value = self.values[source]
        if isinstance(value, _Overwritten):
            raise Unsupported(
                f"{source.name!r} was changed in place by {value.by} through another view of it; write "
                "that operation out of place"
            )
        return value

    def _call_module(self, path: str, *inputs: Argument, **options: Argument) -> Node:
        module, nodes = self.modules[path], _nodes(inputs)
        taught = module in self._taught
        if not taught and type(module) not in (*KINDS, *DROPOUTS):
            raise Unsupported(missing(module))
        if options or len(inputs) != 1 or len(nodes) != 1:
            raise Unsupported(f"expected a call on one value of the net, got {_shown(*inputs, **options)}")
        if module._forward_hooks or module._forward_pre_hooks:
            raise Unsupported("it has hooks, which rop would not run; remove them (weight_norm: remove_weight_norm)")
        inplace = bool(getattr(module, "inplace", False))
        if taught:
            return self._call_taught(path, self._taught.net(module), nodes[0], inplace)
        tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        layer = self._layer(layer_of(module), tensors, path)
        return self._called(layer, nodes, inplace)

    def _call_taught(self, path: str, made: Made, x: Node, inplace: bool) -> Node:
        """The nodes of the net that stands for a module, on its input."""
        nodes = {made.net.input: x}
        for node in made.net.nodes[1:]:
            assert node.layer is not None
            name = ".".join(filter(None, (path, made.names[node.layer])))
            layer = self._layer(node.layer, made.tensors[node.layer], name)
            nodes[node] = layer(*(nodes[source] for source in node.inputs))
        output = nodes[made.net.output]
        if inplace:
            self._overwrite(x, output, path)
        return output

    def _apply_taught(self, layer: Layer, name: str, *inputs: Argument, **options: Argument) -> Node:
        """The layer that stands for a function, on its inputs."""
        if options or len(_nodes(inputs)) < len(inputs):
            raise Unsupported(
                f"the layer that layers gives for it takes values of the net only, got {_shown(*inputs, **options)}"
            )
        return self.apply(layer, *inputs, name=name.rstrip("_"), inplace=name.endswith("_"))

    def _output(self, value: Argument) -> Node:
        if not isinstance(value, Node) or value is self.input:
            raise Unsupported(
                f"expected forward to return one value that it computes, got {_shown(value)}; wrap the "
                "module in one that returns the output you want"
            )
        return value

    # ---------------------------------------------------------------------------------------------------- used by rules
    def apply(
        self,
        layer: Layer,
        *inputs: Argument,
        name: str = "",
        inplace: bool = False,
        tensors: dict[str, Tensor] | None = None,
    ) -> Node:
        """A new layer on nodes, named after the function that calls it."""
        nodes = _nodes(inputs)
        if len(nodes) < len(inputs):
            raise Unsupported(
                f"expected values of the net, got {_shown(*inputs)}; constants and parameters are not "
                "added, only values of the net are"
            )
        tensors = tensors or {}
        path = self._own_path(tensors) or ".".join(filter(None, (self._path, name or type(layer).__name__.lower())))
        return self._called(self._layer(layer, tensors, path), nodes, inplace)

    def _own_path(self, tensors: dict[str, Tensor]) -> str:
        """Path of the module whose weight and bias a function reads, if they are all of one module."""
        paths = [self.paths.get(id(tensor), "") for tensor in tensors.values()]
        owners = {path.removesuffix(f".{key}") for path, key in zip(paths, tensors, strict=True)}
        (owner, *others) = owners or {""}
        complete = not others and all(path == f"{owner}.{key}" for path, key in zip(paths, tensors, strict=True))
        return owner if complete and owner in self.modules else ""

    def _layer(self, layer: Layer, tensors: dict[str, Tensor], path: str) -> Layer:
        """The layer itself, or an earlier one with the same parameters."""
        if not tensors:
            key: Hashable = path if path in self.modules else layer
        else:
            key = repr(layer), tuple(sorted((name, id(tensor)) for name, tensor in tensors.items()))
        if key not in self._known:
            layer = layer.coming_from(self._origin(path, tensors)) if tensors else layer
            self._known[key] = layer
            self.tensors[layer] = tensors
            own = path in self.modules and path not in self._names.values()
            self._names[layer] = path if own else self._free(path)
        return self._known[key]

    def _origin(self, path: str, tensors: dict[str, Tensor]) -> Origin:
        """The mode of the module at this path, or else of the one around it, and which tensors it holds fixed."""
        while path not in self.modules:
            path = path.rpartition(".")[0]
        fixed = {
            key for key, tensor in tensors.items() if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        }
        return Origin(self.modules[path].training, self._dtype, frozenset(fixed))

    def _free(self, path: str) -> str:
        """The name, with a number if it is taken."""
        name, number = path, 1
        while name in self._taken:
            name, number = f"{path}_{number}", number + 1
        self._taken.add(name)
        return name

    def _called(self, layer: Layer, inputs: list[Node], inplace: bool) -> Node:
        node = layer(*inputs)
        if inplace:
            self._overwrite(inputs[0], node, self._names[layer])
        return node

    def _overwrite(self, old: Node, new: Node, by: str) -> None:
        """After an operation in place every name of the old tensor means the new value."""
        for line, value in self.values.items():
            node = value.of if isinstance(value, Factor) else value
            if isinstance(node, Node) and _memory(node) is _memory(old):
                same = node is value and _shape_source(node) is _shape_source(old)
                self.values[line] = new if same else _Overwritten(by)

    # ----------------------------------------------------------------------------------------------------- names, order
    def names(self) -> dict[Layer, str]:
        """Names of the layers that lead to the output, in the order of their calls; those with parameters in the order
        of the module's parameters."""
        called = Graph(self.input, self.output).layers
        registered = iter(sorted((layer for layer in called if layer.parameter_shapes()), key=self._place))
        order = [next(registered) if layer.parameter_shapes() else layer for layer in called]
        return {layer: self._names[layer] for layer in order}

    def _place(self, layer: Layer) -> int:
        return min(self.position.get(id(self.tensors[layer][key]), 0) for key in layer.parameter_shapes())

    def _caller(self, line: fx.Node) -> str:
        """Path of the module whose forward makes the call."""
        stack = list((line.meta.get("nn_module_stack") or {}).values())
        return str(stack[-1][0]) if stack else ""

    def _where(self, line: fx.Node) -> tuple[str, str]:
        """The line as messages name it: module path, and the operation."""
        if line.op == "call_module":
            return str(line.target), type(self.modules[str(line.target)]).__name__
        if line.op == "output":
            return "", "output"
        target = f"Tensor.{line.target}" if line.op == "call_method" else _qualified(line.target)
        return self._caller(line), f"{target} in forward"


@dataclass(frozen=True)
class _Overwritten:
    """The value of a view of a tensor that was changed in place: an error when it is read."""

    by: str


def _name_of(target: Target) -> str:
    """A function's or method's own name."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _qualified(target: Target) -> str:
    """A function as users write it."""
    library = getattr(target, "__module__", None) or "torch"
    return f"{PUBLIC.get(library, library)}.{_name_of(target)}"


def _nodes(values: tuple[Argument, ...]) -> list[Node]:
    """Those of the values that are nodes."""
    return [value for value in values if isinstance(value, Node)]


def _memory(node: Node) -> Node:
    """The node whose tensor in torch has the memory of a node's value, in this shape or another."""
    while isinstance(node.layer, (Flatten, Identity)):
        (node,) = node.inputs
    return node


def _shape_source(node: Node) -> Node:
    """The node whose tensor in torch has the memory and the shape of a node's value."""
    while isinstance(node.layer, Identity):
        (node,) = node.inputs
    return node


# -------------------------------------------------------------------------------------------------------------- checks
def _dtype(module: nn.Module) -> np.dtype:
    """The precision of the parameters; that of torch.get_default_dtype() if there are none."""
    return next((DTYPES[dtype] for dtype in _dtypes(module) if dtype in DTYPES), np.dtype(np.float32))


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    return {p.dtype for p in module.parameters()} or {torch.get_default_dtype()}


def _problems_of_tensors(module: nn.Module) -> list[Problem]:
    """What is wrong with a module's parameters and buffers: no shape, no numbers, or numbers of another kind."""
    problems = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        message = ""
        if isinstance(tensor, nn.UninitializedParameter):
            message = "it has no shape yet; run the module on a batch first"
        elif tensor.is_meta:
            message = (
                "it is on the meta device, where tensors have a shape but no numbers; "
                "use module.to_empty(device='cpu') and load its numbers first"
            )
        elif tensor.layout is not torch.strided or tensor.is_quantized:
            message = (
                f"expected a dense tensor, got {tensor.layout}, {tensor.dtype}; "
                "use its to_dense() or dequantize() in the module"
            )
        if message:
            problems.append(Problem(name, "", None, message))
    found = _dtypes(module)
    if len(found) > 1 or not found <= set(DTYPES):
        message = (
            "expected all parameters as float32 or all as float64, got "
            f"{', '.join(sorted(map(str, found)))}; use module.float() or module.double()"
        )
        problems.append(Problem("", "", None, message))
    return problems


def _problems_of_parameters(net: Graph, parameters: tuple[Tensor, ...]) -> list[Problem]:
    """Parameters of another shape, and those that would be in w twice because layers share only some of theirs."""
    seen: dict[int, str] = {}
    problems = []
    for slot, parameter in zip(net.slots, parameters, strict=True):
        first = seen.setdefault(id(parameter), slot.name)
        if tuple(parameter.shape) != slot.shape:
            message = f"expected shape {slot.shape}, got {tuple(parameter.shape)}"
            problems.append(Problem(slot.name, "", None, message))
        elif first != slot.name:
            message = (
                f"it and {first} are one parameter of layers that differ otherwise; rop ties "
                "whole layers only: share all their parameters, or call the same module twice"
            )
            problems.append(Problem(slot.name, "", None, message))
    return problems


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _shown(*values: Argument, **options: Argument) -> str:
    """Arguments as messages show them."""

    def show(value: Argument) -> str:
        if isinstance(value, Factor):
            return f"{show(value.of)}, expanded or with more axes, which only products take"
        if isinstance(value, Node):
            return "a value of the net" if value.layer is not None else "the input"
        if isinstance(value, Tensor):
            return f"a tensor of shape {tuple(value.shape)}"
        return "a size" if isinstance(value, (Size, Sizes)) else repr(value)

    return ", ".join([*map(show, values), *(f"{name}={show(value)}" for name, value in options.items())])
