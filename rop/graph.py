"""Networks: nodes, shapes, names and the flat parameter vector.

A net is a directed graph of nodes; a node is one use of a layer. Nodes can only refer to nodes made before them, so the
order of creation is a topological order and there are no cycles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rop.arguments import check_dtype, check_int, shown
from rop.errors import ArgumentError, ArgumentTypeError
from rop.layers.base import Layer, Shape, batched

_creation = count()


class Node:
    """One use of a layer in a graph, or the graph's input (then ``layer`` is None)."""

    __slots__ = ("index", "inputs", "layer")

    def __init__(self, layer: Layer | None, inputs: tuple[Node, ...]) -> None:
        self.layer = layer
        self.inputs = inputs
        self.index = next(_creation)

    def __repr__(self) -> str:
        return f"Node({self.layer.describe() if self.layer else 'Input'})"


def Input() -> Node:
    """The node where data enters a graph.

    >>> Input()
    Node(Input)
    """
    return Node(None, ())


@dataclass(frozen=True)
class Slot:
    """The place of one parameter in the flat vector: ``w[offset:offset + size]``, in C order."""

    name: str  # "0.weight"
    layer: Layer
    key: str  # "weight"
    shape: Shape
    offset: int

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)

    @property
    def fixed(self) -> bool:
        """Whether the module that the layer comes from holds it fixed."""
        return self.layer.origin is not None and self.key in self.layer.origin.fixed


class Graph:
    """The net that leads from one Input node to an output node.

    Layers are named by their position in the order of their first call, and the flat vector has their parameters in
    that order. A layer used twice keeps its first name and has its parameters there once (tied weights). ``names``
    gives layers other names, and the parameters the order of these names.

    >>> from rop.layers import Add, Linear, Tanh
    >>> x = Input()
    >>> h = Tanh()(Linear(3, 3)(x))
    >>> net = Graph(x, Linear(3, 2)(Add()(x, h)))
    >>> [(slot.name, slot.shape, slot.offset) for slot in net.slots]
    [('0.weight', (3, 3), 0), ('0.bias', (3,), 9), ('3.weight', (2, 3), 12), ('3.bias', (2,), 18)]
    >>> body, head = Linear(3, 3, bias=False), Linear(3, 2)
    >>> [slot.name for slot in Graph(x, head(body(x)), names={head: "head", body: "body"}).slots]
    ['head.weight', 'head.bias', 'body.weight']

    Attributes:
        nodes: the nodes that lead to the output, in topological order; the first is the input, the last the output.
        layers: the distinct layers, in the order of their parameters.
        slots: the place of every parameter in the flat vector.
        size: length n of the flat vector.
    """

    def __init__(self, input: Node, output: Node, names: Mapping[Layer, str] | None = None) -> None:
        self.nodes = _nodes_between(input, output)
        positions: dict[Layer, str] = {}
        for node in self.nodes[1:]:
            positions.setdefault(_layer(node), str(len(positions)))
        self._finish(positions if names is None else _checked_names(names, positions))

    def _finish(self, names: dict[Layer, str]) -> None:
        """Lay the parameters out in the order of the names, and label the nodes for messages."""
        self._names = names
        self.layers: tuple[Layer, ...] = tuple(names)
        slots, offset = [], 0
        for layer, name in names.items():
            for key, shape in layer.parameter_shapes().items():
                slots.append(Slot(f"{name}.{key}", layer, key, shape, offset))
                offset += slots[-1].size
        self.slots: tuple[Slot, ...] = tuple(slots)
        self.size = offset
        self._offsets = {(slot.layer, slot.key): slot.offset for slot in slots}
        self._where = {self.input: "input"}
        uses = dict.fromkeys(names, 0)
        for node in self.nodes[1:]:
            layer = _layer(node)
            uses[layer] += 1
            again = f", use {uses[layer]}" if uses[layer] > 1 else ""
            self._where[node] = f"layer {names[layer]} ({layer.describe()}{again})"

    @property
    def input(self) -> Node:
        """The node where data enters."""
        return self.nodes[0]

    @property
    def output(self) -> Node:
        """The node whose value is the net's output."""
        return self.nodes[-1]

    @property
    def dtype(self) -> np.dtype | None:
        """The precision of the module that the net comes from; None if it was written in rop, or comes from several."""
        found = {layer.origin.dtype for layer in self.layers if layer.origin is not None}
        return found.pop() if len(found) == 1 else None

    @property
    def fixed(self) -> tuple[str, ...]:
        """The names of the parameters that the module that the net comes from holds fixed."""
        return tuple(slot.name for slot in self.slots if slot.fixed)

    def name_of(self, layer: Layer) -> str:
        """The layer's name in this net, e.g. "3", or "0.1" for one in a nested Sequential."""
        if layer not in self._names:
            raise ArgumentError(
                f"{layer!r} is not a layer of this net; a layer is known by identity, not by its values"
            )
        return self._names[layer]

    def where(self, node: Node) -> str:
        """The node as messages name it, e.g. "layer 3 (Conv2d 8→16)"; later uses of a tied layer are counted."""
        return self._where[node]

    def offset(self, layer: Layer, key: str) -> int:
        """Position in the flat vector of the first scalar of the layer's parameter ``key``."""
        return self._offsets[layer, key]

    def shapes(self, input_shape: Sequence[int]) -> dict[Node, Shape]:
        """Shape of every node's value, without the batch axis, or an ArgumentError that names the misfit."""
        shapes = {self.input: _input_shape(input_shape)}
        for node in self.nodes[1:]:
            shapes[node] = _layer(node).output_shape(self.where(node), *(shapes[i] for i in node.inputs))
        return shapes

    def init(self, seed: int | np.random.Generator = 0, dtype: DTypeLike = np.float32) -> np.ndarray:
        """A flat parameter vector drawn from torch's default distributions (not torch's numbers).

        Draws are made in float64 and then cast, so both dtypes start at the same point.

        >>> from rop.layers import Linear
        >>> Sequential(Linear(2, 1)).init(seed=0).shape
        (3,)
        """
        w = np.empty(self.size, check_dtype("init", dtype))
        rng = _generator(seed)
        views = self.params(w)
        for layer, name in self._names.items():
            for key, values in layer.initial_parameters(rng).items():
                views[f"{name}.{key}"][...] = values
        return w

    def init_state(self, dtype: DTypeLike = np.float32) -> dict[str, np.ndarray]:
        """Fresh running statistics of the batchnorm layers, e.g. "1.running_mean"; empty for a net without any."""
        precision = check_dtype("init_state", dtype)
        return {
            f"{name}.{key}": values.astype(precision)
            for layer, name in self._names.items()
            for key, values in layer.initial_state().items()
        }

    def params(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters by name, as views into ``w``: writing to them writes to ``w``.

        >>> from rop.layers import Linear
        >>> net = Sequential(Linear(2, 1))
        >>> net.params(np.arange(3.0))
        {'0.weight': array([[0., 1.]]), '0.bias': array([2.])}
        """
        if not isinstance(w, np.ndarray) or isinstance(w, np.ma.MaskedArray) or w.dtype.kind != "f":
            plain = isinstance(w, np.ndarray) and not isinstance(w, np.ma.MaskedArray)
            got = f"an array of {w.dtype}" if plain else type(w).__name__
            raise ArgumentTypeError(f"w: expected a NumPy array of floats, got {got}")
        if w.shape != (self.size,):
            raise ArgumentError(f"w: expected shape ({self.size},), the net's number of parameters, got {w.shape}")
        return {slot.name: w[slot.offset : slot.offset + slot.size].reshape(slot.shape) for slot in self.slots}

    def predict(self, w: np.ndarray, x: np.ndarray, state: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Outputs (batch, ...) in evaluation mode, for any number of samples."""
        from rop.prediction import predict  # compiled code is loaded only when something is computed

        return predict(self, w, x, state)

    def summary(self, input_shape: Sequence[int] | None = None) -> None:
        """Print the layers with their parameter counts, and their output shapes if the input's shape is given.

        >>> from rop.layers import Linear, ReLU
        >>> Sequential(Linear(2, 3), ReLU()).summary(input_shape=(2,))
        name  layer       output      parameters
        0     Linear 2→3  (batch, 3)           9
        1     ReLU        (batch, 3)           0
        total                                  9
        """
        print(self.summary_text(input_shape))

    def summary_text(self, input_shape: Sequence[int] | None = None) -> str:
        """The table that ``summary`` prints: a row per use of a layer; tied uses count no parameters again."""
        shapes = self.shapes(input_shape) if input_shape is not None else None
        counts = dict.fromkeys(self.layers, 0)
        for slot in self.slots:
            counts[slot.layer] += slot.size
        rows = [("name", "layer", "output", "parameters")]
        for node in self.nodes[1:]:
            layer = _layer(node)
            number = f"{counts[layer]:,}" if layer in counts else "tied"
            counts.pop(layer, None)
            rows.append((self.name_of(layer), layer.describe(), batched(shapes[node]) if shapes else "", number))
        rows.append(("total", "", "", f"{self.size:,}"))
        return _table(rows if shapes else [(name, layer, number) for name, layer, _, number in rows])

    def __call__(self, node: Node) -> Node:
        """Apply the whole net to a node of another graph; its layers, and so its parameters, are shared."""
        if not isinstance(node, Node):
            raise ArgumentTypeError(
                f"{type(self).__name__}: a net is called on a node of a graph, which starts at rop.Input(); got "
                f"{type(node).__name__}. To evaluate it on arrays use net.predict or rop.Objective"
            )
        made = {self.input: node}
        for old in self.nodes[1:]:
            made[old] = _layer(old)(*(made[i] for i in old.inputs))
        return made[self.output]

    def __repr__(self) -> str:
        lines = "".join(f"  ({name}): {layer!r}\n" for layer, name in self._names.items())
        return f"{type(self).__name__}(\n{lines})"


class Sequential(Graph):
    """Layers (or nets) one after the other, named by their index as in torch.

    >>> from rop.layers import Linear, ReLU
    >>> net = Sequential(Sequential(Linear(4, 3), ReLU()), Linear(3, 2))
    >>> [slot.name for slot in net.slots], net.size
    (['0.0.weight', '0.0.bias', '1.weight', '1.bias'], 23)
    """

    def __init__(self, *layers: Layer | Graph) -> None:
        if not layers:
            raise ArgumentError("Sequential: expected at least one layer, got none; an empty network computes nothing")
        input = node = Input()
        names: dict[Layer, str] = {}
        for index, layer in enumerate(layers):
            _check_member(index, layer)
            node = layer(node)
            if isinstance(layer, Graph):
                for inner in layer.layers:
                    names.setdefault(inner, f"{index}.{layer.name_of(inner)}")
            else:
                names.setdefault(layer, str(index))
        self.nodes = _nodes_between(input, node)
        self._finish(names)


def _layer(node: Node) -> Layer:
    """The layer of a node that is not an input."""
    assert node.layer is not None
    return node.layer


def _nodes_between(input: Node, output: Node) -> tuple[Node, ...]:
    """The nodes that lead to the output in order of creation, after checking that they start at the input."""
    for name, node in (("input", input), ("output", output)):
        if not isinstance(node, Node):
            raise ArgumentTypeError(
                f"Graph: {name} must be a node, got {type(node).__name__}; "
                "start with x = rop.Input() and call layers on it"
            )
    if input.layer is not None:
        raise ArgumentError(f"Graph: input must be made by rop.Input(), got the output of {input.layer.describe()}")
    if output is input:
        raise ArgumentError("Graph: the output is the input itself; an empty network computes nothing")
    found = _ancestors(output)
    sources = [node for node in found if node.layer is None]
    if input not in sources:
        raise ArgumentError("Graph: the output does not depend on the given input; both must come from one rop.Input()")
    if len(sources) > 1:
        raise ArgumentError(f"Graph: the output depends on {len(sources)} different rop.Input() nodes; use only one")
    return tuple(sorted(found, key=lambda node: node.index))


def _ancestors(output: Node) -> set[Node]:
    """The node and all that it is computed from; by a loop, because deep nets exceed Python's recursion limit."""
    found, todo = {output}, [output]
    while todo:
        fresh = [node for node in todo.pop().inputs if node not in found]
        found.update(fresh)
        todo.extend(fresh)
    return found


def _checked_names(names: Any, layers: Mapping[Layer, str]) -> dict[Layer, str]:
    """The given names, which must be one for each layer of the net."""
    if not isinstance(names, Mapping) or not all(isinstance(name, str) and name for name in names.values()):
        raise ArgumentTypeError(f"Graph: expected names as a dict from layers to strings, got {names!r}")
    nameless = [layer.describe() for layer in layers if layer not in names]
    if nameless or len(names) != len(layers):
        got = f"none for {nameless[0]}" if nameless else f"{len(names)} names for {len(layers)} layers"
        raise ArgumentError(f"Graph: expected names to have one name for each layer of the net, got {got}")
    if len(set(names.values())) < len(names):
        twice = [name for name in names.values() if list(names.values()).count(name) > 1]
        raise ArgumentError(f"Graph: expected a name for one layer only, got {twice[0]!r} for {len(twice)} layers")
    return dict(names)


def _check_member(index: int, layer: Any) -> None:
    """Refuse what is not a layer, with a hint for the usual mistakes."""
    if isinstance(layer, (Layer, Graph)):
        return
    got, hint = type(layer).__name__, ""
    if isinstance(layer, type) and issubclass(layer, Layer):
        got, hint = f"the class {layer.__name__}", f"; write {layer.__name__}(...)"
    elif isinstance(layer, (list, tuple)):
        hint = "; write Sequential(*layers)"
    raise ArgumentTypeError(f"Sequential: argument {index} must be a layer, got {got}{hint}")


def _input_shape(shape: Sequence[int]) -> Shape:
    """The shape of one sample as a tuple of positive integers."""
    if not isinstance(shape, (tuple, list)) or not shape:
        raise ArgumentTypeError(
            f"input_shape must be a tuple such as (1, 28, 28), without the batch, got {shown(shape)}"
        )
    return tuple(check_int("input_shape", f"axis {axis}", size) for axis, size in enumerate(shape))


def _generator(seed: Any) -> np.random.Generator:
    """NumPy's generator for a seed; raises the package's own error if it is none."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"init: seed must be a non-negative integer or a NumPy generator, got {seed!r}") from error


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Aligned plain text; the last column holds numbers and is set to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1])]))
    return "\n".join(lines)
