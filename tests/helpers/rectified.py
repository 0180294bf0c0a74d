"""Networks around one ReLU: what it stands behind, what uses its value, and whether the value before it is used."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import rop

DATA = 2  # channels of the data
Node = Any


def convolution(inputs: int, channels: int) -> Any:
    """A product that keeps height and width."""
    return rop.Conv2d(inputs, channels, 3, padding=1)


def normalised(x: Node, channels: int) -> Node:
    """A batchnorm behind a product."""
    return rop.BatchNorm2d(channels)(convolution(DATA, channels)(x))


# What the ReLU stands behind: data, channels -> value.
BEFORE: dict[str, Callable[[Node, int], Node]] = {
    "product": lambda x, channels: convolution(DATA, channels)(x),
    "batchnorm": normalised,
    "sum": lambda x, channels: rop.Add()(normalised(x, channels), convolution(DATA, channels)(x)),
}
# What uses its value: value, another value that was made before it, channels -> value of the same channels.
USES: dict[str, Callable[[Node, Node, int], Node]] = {
    "product": lambda value, other, channels: convolution(channels, channels)(value),
    "maximum": lambda value, other, channels: rop.MaxPool2d(3, stride=1, padding=1)(value),
    "average": lambda value, other, channels: rop.AvgPool2d(3, stride=1, padding=1)(value),
    "sum": lambda value, other, channels: rop.Add()(value, other),
    "gate": lambda value, other, channels: rop.Mul()(value, other),
    "concatenation": lambda value, other, channels: convolution(2 * channels, channels)(rop.Concat()(value, value)),
    "batchnorm": lambda value, other, channels: rop.BatchNorm2d(channels)(value),
    "activation": lambda value, other, channels: rop.Tanh()(value),
    "end": lambda value, other, channels: value,
}


def around(relu: Any, before: str, uses: Collection[str], seen: bool, channels: int) -> Any:
    """A graph on images with DATA channels in which this layer stands behind ``before`` and has these uses, their
    values side by side; with ``seen``, the value before the layer is there, too."""
    x = rop.Input()
    other = convolution(DATA, channels)(x)  # a sum's gradient goes to it after it has gone to the rectified value
    made = BEFORE[before](x, channels)
    value = relu(made)
    parts = [USES[use](value, other, channels) for use in uses] + ([made] if seen else [])
    return rop.Graph(x, parts[0] if len(parts) == 1 else rop.Concat()(*parts))
