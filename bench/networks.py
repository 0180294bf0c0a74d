"""The problems' networks as nets of rop, which its engine runs and whose products flops.py counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import rop
from rop.graph import Node

from .vocabulary import (
    Activation,
    BatchNorm,
    Concat,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    LayerNorm,
    Linear,
    Pool,
    Product,
    Residual,
    Shape,
    Softmax,
    refuse_layer,
)

ACTIVATIONS: dict[str, Callable[[], rop.Layer]] = {
    "relu": rop.ReLU,
    "leaky_relu": rop.LeakyReLU,
    "tanh": rop.Tanh,
    "sigmoid": rop.Sigmoid,
    "softplus": rop.Softplus,
    "silu": rop.SiLU,
    "gelu": rop.GELU,
    "gelu_tanh": lambda: rop.GELU(approximate="tanh"),
}
LOSSES = {"cross_entropy": rop.CrossEntropy, "mse": rop.MSE}


def network(layers: Sequence[Layer], input_shape: Shape) -> rop.Graph:
    x = rop.Input()
    return rop.Graph(x, build(layers, x, flat=len(input_shape) == 1))


def build(layers: Sequence[Layer], x: Node, flat: bool) -> Node:
    """The layers applied to x; flat: x is a vector, not an image."""
    for layer in layers:
        match layer:
            case Linear(inputs, outputs, bias):
                x = rop.Linear(inputs, outputs, bias=bias)(x)
            case Conv(inputs, outputs, kernel, stride, padding, dilation, groups, bias):
                x = rop.Conv2d(
                    inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias
                )(x)
            case Activation(kind):
                x = ACTIVATIONS[kind]()(x)
            case Pool("max", kernel, stride, padding):
                x = rop.MaxPool2d(kernel, stride, padding)(x)
            case Pool("avg", kernel, stride, padding):
                x = rop.AvgPool2d(kernel, stride, padding)(x)
            case GlobalAvgPool():
                x = rop.AdaptiveAvgPool2d(1)(x)
            case Flatten():
                x, flat = rop.Flatten()(x), True
            case Softmax(log):
                x = rop.LogSoftmax(1)(x) if log else rop.Softmax(1)(x)
            case BatchNorm(channels, eps):
                x = (rop.BatchNorm1d if flat else rop.BatchNorm2d)(channels, eps=eps)(x)
            case LayerNorm(channels, eps):
                x = (rop.LayerNorm if flat else rop.LayerNorm2d)(channels, eps=eps)(x)
            case Residual(body, shortcut):
                x = rop.Add()(build(body, x, flat), build(shortcut, x, flat))
            case Product(gate, body):
                x = rop.Mul()(build(body, x, flat), build(gate, x, flat))
            case Concat(branches):
                x = rop.Concat()(*(build(branch, x, flat) for branch in branches))
            case _:
                refuse_layer(layer)
    return x
