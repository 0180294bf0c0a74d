"""Single layers: from a module of torch.nn to the layer of rop that computes the same, and back.

Layers of rop are named as in torch.nn and take torch's arguments under torch's names, so most of the translation is
their constructors' signatures. A layer's record (rop/layers/record.py) names the module, and the arguments that only
torch has.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from rop.errors import ArgumentError
from rop.layers import Flatten, Identity, Mul
from rop.layers.base import Layer, batched
from rop.layers.kinds import kind_of
from rop.layers.product import ONE_PIXEL
from rop.layers.record import RECORDS
from rop.torch.counterparts import with_counterparts

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
KINDS: dict[type[nn.Module], type[Layer]] = {
    module: record.kind for record, module in with_counterparts("module") if issubclass(record.kind, Layer)
}


class Unsupported(Exception):
    """Something of torch that has no layer in rop; the message says what it is, and what would help."""


class View(Flatten):
    """x.view(-1, features): a Flatten if a sample has that many numbers; otherwise torch would mix samples."""

    features: int

    def __init__(self, features: int) -> None:
        super().__init__()
        self._set(features=features)

    def output_shape(self, where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        (size,) = super().output_shape(where, *shapes)
        if size != self.features:
            raise ArgumentError(
                f"{where}: expected {self.features} numbers for each sample, as in x.view(-1, {self.features}), got "
                f"{size}; torch would mix samples here"
            )
        return (size,)


class Product(Mul):
    """a * b as torch aligns them, with so many axes of one pixel behind a and behind b."""

    axes_of_a: int
    axes_of_b: int

    def __init__(self, axes_of_a: int = 0, axes_of_b: int = 0) -> None:
        self._set(axes_of_a=axes_of_a, axes_of_b=axes_of_b)

    def output_shape(self, where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        a, b = (shape + ONE_PIXEL[:axes] for shape, axes in zip(shapes, (self.axes_of_a, self.axes_of_b), strict=True))
        if len(a) != len(b):
            raise ArgumentError(
                f"{where}: expected two vectors or two maps, got {batched(a)} and {batched(b)}, of which torch would "
                "align other axes; make a vector a map of one pixel, x[:, :, None, None]"
            )
        return super().output_shape(where, a, b)

    def describe(self) -> str:
        return Mul.__name__


def layer_of(module: nn.Module) -> Layer:
    """The layer that computes the same as a module of torch.nn."""
    if type(module) in DROPOUTS:
        return dropout(module.p, module.training)
    kind = KINDS[type(module)]
    refuse_differences(kind, {name: getattr(module, name) for name in RECORDS[kind].only_torch})
    given = {name: getattr(module, name) for name in inspect.signature(kind).parameters}
    if "bias" in given:
        given["bias"] = module.bias is not None
    if given.get("momentum", 0.1) is None:
        raise Unsupported("momentum=None (a cumulative average) is not supported; give batchnorm a number")
    if "eps" in given and given["eps"] is None:  # torch's RMSNorm takes that of its input
        weights = next(module.parameters(), torch.empty(0))
        given["eps"] = torch.finfo(weights.dtype).eps
    return kind(**given)


def refuse_differences(kind: type[Layer], given: dict[str, Any]) -> None:
    """Refuse values of arguments that only torch has, unless they are the ones for which rop's layer is the same."""
    for argument, wanted in RECORDS[kind].only_torch.items():
        value = given.get(argument, wanted)
        if value != wanted and not (isinstance(value, (tuple, list)) and set(value) == {wanted}):
            name = kind.__name__
            raise Unsupported(f"{argument}={value!r} is not supported; rop.{name} has {argument}={wanted!r} only")


def dropout(p: float, training: bool) -> Layer:
    """Dropout that drops nothing, as an Identity; refuses one that would drop values."""
    if training and p > 0:
        raise Unsupported(
            f"dropout with p={p:g} draws anew at every pass in training mode, so f has no Hessian; "
            "call module.eval(), or set p to 0"
        )
    return Identity()


def missing(module: nn.Module) -> str:
    """The message about a module without a counterpart."""
    name = type(module).__name__
    known = [kind.__name__ for kind in KINDS if isinstance(module, kind)]
    if known:
        return (
            f"a subclass of nn.{known[0]} that torch.fx does not look into (parametrized or wrapped) is not "
            "supported; make it a plain module first"
        )
    return f"there is no such layer; say what computes it: layers={{{name}: convert}}"


def module_of(layer: Layer, dtype: torch.dtype) -> nn.Module:
    """A module of torch.nn for a layer of rop, its parameters not set yet."""
    known = {rop_kind: torch_kind for torch_kind, rop_kind in KINDS.items()}
    kind = kind_of(layer, known, "to_torch")
    arguments = inspect.signature(kind).parameters
    given = {name: getattr(layer, name) for name in arguments}
    if "dim" in given:
        given["dim"] = 1 if given["dim"] is None else given["dim"]
    return known[kind](**given).to(dtype)
