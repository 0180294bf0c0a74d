"""What a user teaches from_torch: layers for modules and functions that rop has none for, or another one for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rop.arguments import shown
from rop.errors import ArgumentTypeError
from rop.graph import Graph, Input, Sequential
from rop.layers.base import Layer, Shape
from rop.torch.counterparts import Target
from rop.torch.layers import Unsupported

Given = Layer | Graph | Callable[[Any], Layer | Graph]
Layers = Mapping[type[nn.Module] | Target, Given]


@dataclass(frozen=True)
class Made:
    """What stands for a module: a net, the names of its layers inside the module, and the tensors of each layer."""

    net: Graph
    names: dict[Layer, str]  # "" for a single layer
    tensors: dict[Layer, dict[str, Tensor]]


class Taught:
    """The argument ``layers`` of from_torch: by class of module, or by function or name of a tensor's method.

    For a class it has a layer without parameters, a net, or a function that makes one of them for a module. The
    parameters of what it makes are the module's of the same names, or else the module's in their order.
    """

    def __init__(self, layers: Layers | None) -> None:
        self._layers = {} if layers is None else _checked(layers)

    def __contains__(self, module: nn.Module) -> bool:
        return type(module) in self._layers

    def net(self, module: nn.Module) -> Made:
        """What is computed for a module, of layers of its own."""
        name = f"layers[{type(module).__name__}]"
        given = self._layers[type(module)]
        made = given if isinstance(given, (Layer, Graph)) else given(module)
        if isinstance(made, Layer):
            layer = copy.copy(made)
            net: Graph = Sequential(layer)
            return Made(net, {layer: ""}, _tensors(net, {layer: ""}, module, name))
        if not isinstance(made, Graph):
            raise Unsupported(f"expected {name} to make a layer or a net of rop, got {shown(made)}")
        net = _copied(made)
        names = {layer: net.name_of(layer) for layer in net.layers}
        return Made(net, names, _tensors(net, names, module, name))

    def layer(self, target: Target) -> Layer | None:
        """A layer for a function of torch or a method of tensors."""
        given = self._layers.get(target)
        return copy.copy(given) if isinstance(given, Layer) else None


def _checked(layers: Layers) -> dict[Any, Given]:
    if not isinstance(layers, Mapping):
        raise ArgumentTypeError(
            f"from_torch: layers must be a dict such as {{nn.Mish: rop.Elementwise(f)}}, got {shown(layers)}"
        )
    for key, given in layers.items():
        name = key if isinstance(key, str) else getattr(key, "__name__", shown(key))
        is_module = isinstance(key, type) and issubclass(key, nn.Module)
        if not is_module and (isinstance(key, type) or not (callable(key) or isinstance(key, str))):
            raise ArgumentTypeError(
                "from_torch: layers must have classes of modules, functions of torch or names of tensors' methods as "
                f"keys, got {shown(key)}"
            )
        if not is_module and not isinstance(given, Layer):
            raise ArgumentTypeError(
                f"from_torch: layers[{name}] must be a layer such as rop.Elementwise(f), because it stands for a "
                f"function, got {shown(given)}"
            )
        if isinstance(given, type) or not (isinstance(given, (Layer, Graph)) or callable(given)):
            raise ArgumentTypeError(
                f"from_torch: layers[{name}] must be a layer or a net of rop, or a function that makes one for a "
                f"module, got {shown(given)}"
            )
    return dict(layers)


def _copied(net: Graph) -> Graph:
    """The net with layers of its own, so that every module has one."""
    layers = {layer: copy.copy(layer) for layer in net.layers}
    nodes = {net.input: Input()}
    for node in net.nodes[1:]:
        assert node.layer is not None
        nodes[node] = layers[node.layer](*(nodes[source] for source in node.inputs))
    return Graph(nodes[net.input], nodes[net.output], {layers[layer]: net.name_of(layer) for layer in net.layers})


def _tensors(net: Graph, names: dict[Layer, str], module: nn.Module, given: str) -> dict[Layer, dict[str, Tensor]]:
    """The module's tensors for the parameters and running statistics of each layer: those of the same names, or else
    its parameters in their order."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {(slot.layer, slot.key): slot.shape for slot in net.slots}
    wanted |= {(layer, key): value.shape for layer in net.layers for key, value in layer.initial_state().items()}
    paths = {(layer, key): ".".join(filter(None, (names[layer], key))) for layer, key in wanted}
    if not all(path in found and tuple(found[path].shape) == wanted[place] for place, path in paths.items()):
        in_order = [tuple(parameter.shape) for parameter in module.parameters()]
        if in_order != list(wanted.values()):
            raise Unsupported(
                f"expected the module to have the parameters of what {given} gives, of the same names or in the same "
                f"order: {_listed(paths.values(), wanted.values())}; it has "
                f"{_listed(found, (tuple(tensor.shape) for tensor in found.values()))}"
            )
        paths = dict(zip(wanted, dict(module.named_parameters()), strict=True))
    tensors: dict[Layer, dict[str, Tensor]] = {layer: {} for layer in net.layers}
    for (layer, key), path in paths.items():
        tensors[layer][key] = found[path]
    return tensors


def _listed(names: Iterable[str], shapes: Iterable[Shape]) -> str:
    """Names and shapes as messages show them."""
    return ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True)) or "none"
