"""What each layer and loss is: its mathematics, its parameters and its shapes.

Notation of all files in this folder. For a direction v in parameter space the paper's operator is
R{a} = d/dr a(w + r v) at r = 0, and R² is R applied twice. Orders are written as superscripts,

    a⁰ = a        a¹ = R{a}        a² = R²{a}        (powers have parentheses: (a¹)²)

Parameters have the jet (w, v, 0), data has (x, 0, 0). A layer takes x to y; E is the loss, g = ∂E/∂y comes from
behind, h = ∂E/∂x goes on to the front. Both get jets, and the jet of the gradient is (∇E, H v, vᵀ∇H v). R obeys the
product rule, so the jet of a product is (a b)⁰ = a⁰b⁰, (a b)¹ = a¹b⁰ + a⁰b¹, (a b)² = a²b⁰ + 2a¹b¹ + a⁰b².
"""

# ruff: noqa: F401
from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from rop.layers.base import Layer
from rop.layers.record import ACTIVATIONS, LAYERS, LOSSES
from rop.layers.record import sort as _sort

if TYPE_CHECKING:  # for type checkers, to which __getattr__ says no more than that there is something
    from rop.layers.batchnorm import BatchNorm1d, BatchNorm2d
    from rop.layers.conv import Conv2d
    from rop.layers.elementwise import (
        CELU,
        ELU,
        GELU,
        SELU,
        Elementwise,
        Hardsigmoid,
        Hardswish,
        Hardtanh,
        LogSigmoid,
        Mish,
        ReLU6,
        Sigmoid,
        SiLU,
        Softplus,
        Softsign,
        Tanh,
    )
    from rop.layers.linear import Linear
    from rop.layers.loss import L1, MSE, NLL, BCEWithLogits, CrossEntropy, Huber, KLDiv, PoissonNLL, SmoothL1
    from rop.layers.norm import GroupNorm, InstanceNorm2d, LayerNorm, LayerNorm2d, RMSNorm
    from rop.layers.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
    from rop.layers.product import Mul
    from rop.layers.relu import LeakyReLU, ReLU
    from rop.layers.shape import Add, Concat, Flatten, Identity
    from rop.layers.softmax import LogSoftmax, Softmax

# The files of this folder are the layers: each class with a record (record.py) enters the tables as its file is loaded.
for _file in sorted(found.name for found in iter_modules(__path__)):
    import_module(f"{__name__}.{_file}")
_sort()

from rop.layers.loss import Loss  # noqa: E402


def __getattr__(name: str) -> Any:
    """Layers and losses by name, as their records have it."""
    if name == "__all__":
        return ["ACTIVATIONS", "LAYERS", "LOSSES", "Layer", "Loss", *LAYERS, *LOSSES]
    found = LAYERS.get(name) or LOSSES.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LAYERS, *LOSSES})
