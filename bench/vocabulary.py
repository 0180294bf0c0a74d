"""The layers of the benchmark's networks, as plain data, and what follows from them: parameters and shapes.

A network is a tuple of these records. Parameters are stored in one flat vector in the order of the layers, weight
before bias, a residual's body before its shortcut: the order of torch's `parameters()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from rop.errors import ArgumentError, ArgumentTypeError

Shape = tuple[int, ...]
ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "softplus", "silu", "gelu", "gelu_tanh")
POOLS = ("max", "avg")


def check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ArgumentError(f"bench: unknown {what} {name!r}; known: {', '.join(known)}")


@dataclass(frozen=True)
class Linear:
    inputs: int
    outputs: int
    bias: bool = True


@dataclass(frozen=True)
class Conv:
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = True


@dataclass(frozen=True)
class Activation:
    kind: str  # one of ACTIVATIONS

    def __post_init__(self) -> None:
        check_name("activation", self.kind, ACTIVATIONS)


@dataclass(frozen=True)
class Pool:
    kind: str  # "max" or "avg"
    kernel: int
    stride: int
    padding: int = 0  # counts as zeros in an average

    def __post_init__(self) -> None:
        check_name("pooling", self.kind, POOLS)


@dataclass(frozen=True)
class GlobalAvgPool:
    """The mean over all pixels; leaves (channels, 1, 1)."""


@dataclass(frozen=True)
class Flatten:
    pass


@dataclass(frozen=True)
class Softmax:
    log: bool = False


@dataclass(frozen=True)
class BatchNorm:
    """Normalises by the statistics of the batch, or by running ones, as the problem says, and has γ and β."""

    channels: int
    eps: float = 1e-5


@dataclass(frozen=True)
class LayerNorm:
    """Normalises each sample, or each pixel of an image, over its channels, and has γ and β."""

    channels: int
    eps: float = 1e-5


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is the identity."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Product:
    """body(x) · gate(x), number by number; an empty body is the identity, and the gate may end with one pixel."""

    gate: tuple[Layer, ...]
    body: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Concat:
    """Concatenates the outputs of its branches along the channels."""

    branches: tuple[tuple[Layer, ...], ...]


Layer = (
    Linear
    | Conv
    | Activation
    | Pool
    | GlobalAvgPool
    | Flatten
    | Softmax
    | BatchNorm
    | LayerNorm
    | Residual
    | Product
    | Concat
)


RELU = Activation("relu")
HALVE = Pool("max", 2, 2)


class Parameter(NamedTuple):
    shape: Shape
    fan_in: int = 1  # 0 for a scale (γ), -1 for a shift (β)


def refuse_layer(layer: object) -> NoReturn:
    """Raises the error for a layer that a function over a problem's layers has no case for."""
    raise ArgumentTypeError(
        f"bench: expected a layer of bench/vocabulary.py, got {layer!r}; every engine, parameters_of "
        "and shape_after need a case for a new one"
    )


def parameters_of(layers: tuple[Layer, ...]) -> Iterator[Parameter]:
    for layer in layers:
        match layer:
            case Linear(inputs, outputs, bias):
                yield Parameter((outputs, inputs), inputs)
                if bias:
                    yield Parameter((outputs,), inputs)
            case Conv(inputs, outputs, k, groups=groups, bias=bias):
                fan_in = inputs // groups * k * k
                yield Parameter((outputs, inputs // groups, k, k), fan_in)
                if bias:
                    yield Parameter((outputs,), fan_in)
            case BatchNorm(channels) | LayerNorm(channels):
                yield Parameter((channels,), 0)
                yield Parameter((channels,), -1)
            case Residual(body, shortcut):
                yield from parameters_of(body)
                yield from parameters_of(shortcut)
            case Product(gate, body):
                yield from parameters_of(body)
                yield from parameters_of(gate)
            case Concat(branches):
                for branch in branches:
                    yield from parameters_of(branch)
            case Activation() | Pool() | GlobalAvgPool() | Flatten() | Softmax():
                pass  # no parameters
            case _:
                refuse_layer(layer)


def norms_of(layers: tuple[Layer, ...]) -> Iterator[BatchNorm]:
    """Every batchnorm, in the order in which it takes its parameters."""
    for layer in layers:
        match layer:
            case BatchNorm():
                yield layer
            case Residual(body, shortcut):
                yield from norms_of(body)
                yield from norms_of(shortcut)
            case Product(gate, body):
                yield from norms_of(body)
                yield from norms_of(gate)
            case Concat(branches):
                for branch in branches:
                    yield from norms_of(branch)


def shape_after(layers: tuple[Layer, ...], shape: Shape) -> Shape:
    """The shape of one sample after the layers."""
    for layer in layers:
        match layer:
            case Linear(_, outputs):
                shape = (*shape[:-1], outputs)
            case Conv(_, outputs, k, stride, padding, dilation):
                shape = (outputs, *((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n in shape[1:]))
            case Pool(_, k, stride, padding):
                shape = (shape[0], *((n + 2 * padding - k) // stride + 1 for n in shape[1:]))
            case GlobalAvgPool():
                shape = (shape[0], 1, 1)
            case Flatten():
                shape = (math.prod(shape),)
            case Residual(body) | Product(body=body):
                shape = shape_after(body, shape)
            case Concat(branches):
                ends = [shape_after(branch, shape) for branch in branches]
                shape = (sum(end[0] for end in ends), *ends[0][1:])
            case Activation() | Softmax() | BatchNorm() | LayerNorm():
                pass  # the same shape
            case _:
                refuse_layer(layer)
    return shape
