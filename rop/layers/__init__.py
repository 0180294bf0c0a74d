"""What each layer and loss is: its mathematics, its parameters and its shapes.

Notation of all files in this folder. For a direction v in parameter space the paper's operator is
R{a} = d/dr a(w + r v) at r = 0, and R² is R applied twice. Orders are written as superscripts,

    a⁰ = a        a¹ = R{a}        a² = R²{a}        (powers have parentheses: (a¹)²)

Parameters have the jet (w, v, 0), data has (x, 0, 0). A layer takes x to y; E is the loss, g = ∂E/∂y comes from
behind, h = ∂E/∂x goes on to the front. Both get jets, and the jet of the gradient is (∇E, H v, vᵀ∇H v). R obeys the
product rule, so the jet of a product is (a b)⁰ = a⁰b⁰, (a b)¹ = a¹b⁰ + a⁰b¹, (a b)² = a²b⁰ + 2a¹b¹ + a⁰b².
"""

from rop.layers.base import Layer
from rop.layers.batchnorm import BatchNorm1d, BatchNorm2d
from rop.layers.conv import Conv2d
from rop.layers.elementwise import ACTIVATIONS, GELU, Elementwise, Sigmoid, SiLU, Softplus, Tanh
from rop.layers.linear import Linear
from rop.layers.loss import MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from rop.layers.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from rop.layers.relu import LeakyReLU, ReLU
from rop.layers.shape import Add, Concat, Flatten, Identity
from rop.layers.softmax import LogSoftmax, Softmax

__all__ = [
    "ACTIVATIONS",
    "LAYERS",
    "LOSSES",
    "Add",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogits",
    "BatchNorm1d",
    "BatchNorm2d",
    "Concat",
    "Conv2d",
    "CrossEntropy",
    "Elementwise",
    "Flatten",
    "GELU",
    "Identity",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Loss",
    "MSE",
    "MaxPool2d",
    "NLL",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]

# An activation that has its line in the registry is public; the names above are there for type checkers.
globals().update(ACTIVATIONS)
__all__ += [name for name in ACTIVATIONS if name not in __all__]

# Every public layer and loss by name; the tests compare these with their cases.
LAYERS: dict[str, type[Layer]] = {
    layer.__name__: layer
    for layer in (
        Linear,
        Conv2d,
        MaxPool2d,
        AvgPool2d,
        AdaptiveAvgPool2d,
        Flatten,
        Identity,
        ReLU,
        LeakyReLU,
        *ACTIVATIONS.values(),
        Elementwise,
        Softmax,
        LogSoftmax,
        BatchNorm1d,
        BatchNorm2d,
        Add,
        Concat,
    )
}
LOSSES: dict[str, type[Loss]] = {loss.__name__: loss for loss in (CrossEntropy, NLL, MSE, BCEWithLogits)}
