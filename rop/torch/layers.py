"""One layer of torch.nn and the layer of rop that is the same: which arguments they share, and what rop lacks.

Layers of rop are named as in torch.nn and take torch's arguments under torch's names, so most of the translation is
their constructors' signatures. What is written down here are the exceptions.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from rop.errors import ArgumentError
from rop.layers import LAYERS, Flatten, Identity
from rop.layers.base import Layer
from rop.layers.kinds import kind_of

# Arguments of torch that rop's layer does not have: the only value it can stand for.
FIXED: dict[str, dict[str, Any]] = {
    "Conv2d": {"padding_mode": "zeros"},
    "MaxPool2d": {"dilation": 1, "return_indices": False},
    "AvgPool2d": {"divisor_override": None},
    "BatchNorm1d": {"track_running_stats": True},
    "BatchNorm2d": {"track_running_stats": True},
}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
JOINS = ("Add", "Concat")  # functions in torch, not modules
KINDS: dict[type[nn.Module], type[Layer]] = {
    getattr(nn, name): kind for name, kind in LAYERS.items() if name not in JOINS and hasattr(nn, name)
}


class Unsupported(Exception):
    """Something of torch that has no layer in rop: what it is, and what would help."""


class View(Flatten):
    """x.view(-1, features): a Flatten if a sample has so many numbers, and otherwise no function of single samples."""

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


def layer_of(module: nn.Module) -> Layer:
    """The layer that computes what a module of torch.nn computes."""
    if type(module) in DROPOUTS:
        return dropout(module.p, module.training)
    kind = KINDS.get(type(module))
    if kind is None:
        raise Unsupported(missing(module))
    refuse_differences(kind.__name__, {name: getattr(module, name) for name in FIXED.get(kind.__name__, {})})
    given = {name: getattr(module, name) for name in inspect.signature(kind).parameters}
    if "bias" in given:
        given["bias"] = module.bias is not None
    if given.get("momentum", 0.1) is None:
        raise Unsupported("momentum=None (a cumulative average) is not supported; give batchnorm a number")
    return kind(**given)


def refuse_differences(name: str, given: dict[str, Any]) -> None:
    """Refuse what torch's arguments say and rop's layer cannot do."""
    for argument, wanted in FIXED[name].items() if name in FIXED else ():
        value = given.get(argument, wanted)
        if value != wanted and not (isinstance(value, (tuple, list)) and set(value) == {wanted}):
            raise Unsupported(f"{argument}={value!r} is not supported; rop.{name} has {argument}={wanted!r} only")


def dropout(p: float, training: bool) -> Layer:
    """Dropout that drops nothing."""
    if training and p > 0:
        raise Unsupported(
            f"dropout with p={p:g} draws anew at every pass in training mode, so f has no Hessian; "
            "call module.eval(), or set p to 0"
        )
    return Identity()


def missing(module: nn.Module) -> str:
    """What is said about a module without a counterpart."""
    known = [kind.__name__ for kind in KINDS if isinstance(module, kind)]
    if known:
        return (
            f"a subclass of nn.{known[0]} that torch.fx does not look into (parametrized or wrapped) is not "
            "supported; make it a plain module first"
        )
    return (
        f'there is no such layer; to add one see CONTRIBUTING.md, "How to add a layer" (a class '
        f"rop.{type(module).__name__} with torch's arguments is found here by its name)"
    )


def module_of(layer: Layer, dtype: torch.dtype) -> nn.Module:
    """A module of torch.nn for a layer of rop, its parameters not set yet."""
    known = {rop_kind: torch_kind for torch_kind, rop_kind in KINDS.items()}
    kind = kind_of(layer, known, "to_torch")
    arguments = inspect.signature(kind).parameters
    given = {name: getattr(layer, name) for name in arguments}
    if "dim" in given:
        given["dim"] = 1 if given["dim"] is None else given["dim"]
    return known[kind](**given).to(dtype)
