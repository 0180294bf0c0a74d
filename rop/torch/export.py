"""From a net of rop to a module of torch."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import fx, nn

from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph, Node
from rop.inputs import as_floats, check_state
from rop.layers import (
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Concat,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Mul,
)
from rop.layers.base import Layer
from rop.torch.layers import module_of

JOINS = (Add, Mul, Concat)  # operators of torch, not modules
ON_VECTORS, ON_MAPS = (Linear, BatchNorm1d), (Conv2d, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, BatchNorm2d)
VECTOR, MAP = 1, 3  # numbers of axes
AS_MAP = (slice(None), slice(None), None, None)  # of a vector: a map of one pixel


def to_torch(net: Graph, w: ArrayLike, state: Mapping[str, np.ndarray] | None = None) -> nn.Module:
    """The net as an nn.Module with these parameters and running statistics, in the precision of w.

    Submodules have the names of the layers, so the keys of ``state_dict`` are those of ``net.params(w)`` and of
    ``state``, with batchnorm's num_batches_tracked (0) beside them. A chain of layers named 0, 1, 2, … is an
    nn.Sequential, any other net a torch.fx.GraphModule, whose ``code`` shows its forward. The module has memory of its
    own. Parameters that a module held fixed before (``net.fixed``) are so again; all layers are in training mode, as in
    all new modules.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(2, 1), rop.Tanh())
    >>> rop.to_torch(net, np.ones(3))
    Sequential(
      (0): Linear(in_features=2, out_features=1, bias=True)
      (1): Tanh()
    )
    """
    if not isinstance(net, Graph):
        raise ArgumentTypeError(f"to_torch: expected a rop.Sequential or rop.Graph, got {type(net).__name__}")
    vector = as_floats("w", w)
    state = check_state(net, state, vector.dtype, "to_torch")
    dtype = torch.from_numpy(vector[:0]).dtype
    modules = {layer: module_of(layer, dtype) for layer in net.layers if not isinstance(layer, JOINS)}
    _fill(modules, net, vector, state)
    return _chain(net, modules) or _graph_module(net, modules)


def _fill(modules: Mapping[Layer, nn.Module], net: Graph, w: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
    """Copy parameters and running statistics into the modules."""
    values = {**net.params(w), **state}
    with torch.no_grad():
        for layer, module in modules.items():
            for key in (*layer.parameter_shapes(), *layer.initial_state()):
                getattr(module, key).copy_(torch.from_numpy(values[f"{net.name_of(layer)}.{key}"]))
    for slot in net.slots:
        getattr(modules[slot.layer], slot.key).requires_grad_(not slot.fixed)


def _chain(net: Graph, modules: Mapping[Layer, nn.Module]) -> nn.Sequential | None:
    """An nn.Sequential, if the net is a chain and every layer is named by the position of its first use."""
    layers = [node.layer for node in net.nodes[1:] if node.layer is not None]
    follows = all(node.inputs == (before,) for before, node in zip(net.nodes, net.nodes[1:], strict=False))
    named = follows and all(net.name_of(layer) == str(layers.index(layer)) for layer in layers)
    return nn.Sequential(*(modules[layer] for layer in layers)) if named else None


def _graph_module(net: Graph, modules: Mapping[Layer, nn.Module]) -> fx.GraphModule:
    """A module whose forward torch.fx generates from the net's nodes."""
    root, graph = nn.Module(), fx.Graph()
    for layer, module in modules.items():
        _add_submodule(root, net.name_of(layer), module)
    values = {net.input: graph.placeholder("x")}
    axes = _axes(net, MAP) or _axes(net, VECTOR)
    for node in net.nodes[1:]:
        inputs = [values[source] for source in node.inputs]
        if isinstance(node.layer, Add):
            values[node] = reduce(lambda a, b: graph.call_function(operator.add, (a, b)), inputs)
        elif isinstance(node.layer, Mul):
            narrow = [axes[source] < axes[node] for source in node.inputs]
            shaped = (
                graph.call_function(operator.getitem, (x, AS_MAP)) if n else x
                for x, n in zip(inputs, narrow, strict=True)
            )
            values[node] = graph.call_function(operator.mul, tuple(shaped))
        elif isinstance(node.layer, Concat):
            values[node] = graph.call_function(torch.cat, (inputs, 1))
        else:
            assert node.layer is not None
            values[node] = graph.call_module(net.name_of(node.layer), tuple(inputs))
    graph.output(values[net.output])
    made = fx.GraphModule(root, graph, class_name="Net")
    for name, child in root.named_children():  # GraphModule sorts them by their calls; w has this order
        delattr(made, name)
        made.add_module(name, child)
    return made


def _axes(net: Graph, of_input: int) -> dict[Node, int]:
    """How many axes each value has, if the input has so many; nothing if a layer does not take that."""
    axes = {net.input: of_input}
    for node in net.nodes[1:]:
        most = max(axes[source] for source in node.inputs)
        if (isinstance(node.layer, ON_VECTORS) and most != VECTOR) or (isinstance(node.layer, ON_MAPS) and most != MAP):
            return {}
        axes[node] = VECTOR if isinstance(node.layer, Flatten) else most
    return axes


def _add_submodule(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module at a dotted path; the modules on the path are made where they are missing."""
    *path, last = name.split(".")
    for part in path:
        if not part:
            raise ArgumentError(f"to_torch: expected layer names like 'block.conv', got {name!r}")
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.add_module(last, module)
