"""Benchmark problems as plain data: layers, input shape, loss, and random numbers from a fixed seed.

A network is a tuple of the records below. Each engine turns it into its own form, so there is one description of
each problem that all engines share. Parameters are stored in one flat vector in the order of the layers, weight before
bias, a residual's body before its shortcut: the order of torch's `parameters()`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    import rop

Shape = tuple[int, ...]
BLOCK = 8  # directions of `hvp_block`
LOSSES = ("cross_entropy", "mse")
POOLS = ("max", "avg")
ROWS = 371_847  # rows of an epoch on the forest data, as many as the training part of the real set has


# ------------------------------------------------------------------------------------------------------ the vocabulary
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
        _check_name("activation", self.kind, ACTIVATIONS)


@dataclass(frozen=True)
class Pool:
    kind: str  # "max" or "avg"
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        _check_name("pooling", self.kind, POOLS)


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
    """Normalises by the statistics of the batch, and has γ and β."""

    channels: int
    eps: float = 1e-5


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x); an empty shortcut is the identity."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Concat:
    """Concatenates the outputs of its branches along the channels."""

    branches: tuple[tuple[Layer, ...], ...]


Layer = Linear | Conv | Activation | Pool | GlobalAvgPool | Flatten | Softmax | BatchNorm | Residual | Concat

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "softplus", "silu", "gelu", "gelu_tanh")


class Parameter(NamedTuple):
    shape: Shape
    fan_in: int = 1  # 0 for a scale (γ), -1 for a shift (β)


class Epoch(NamedTuple):
    """All rows, and two orders in which to go through them."""

    x: np.ndarray
    y: np.ndarray
    orders: tuple[np.ndarray, np.ndarray]


class Data(NamedTuple):
    """Inputs of one measurement: two points and two directions, so that no engine can reuse its last answer."""

    x: np.ndarray
    y: np.ndarray
    points: tuple[np.ndarray, np.ndarray]
    directions: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    name: str
    about: str
    input_shape: Shape
    layers: tuple[Layer, ...]
    loss: str = "cross_entropy"  # or "mse"
    rows: int = 0  # rows of an epoch; 0: the problem has no epochs

    training = True  # whether batchnorm uses the statistics of the batch
    alone = True  # whether rop's process has no other engine's library loaded, so that its memory can be compared

    def __post_init__(self) -> None:
        _check_name("loss", self.loss, LOSSES)

    def network(self) -> rop.Graph:
        """The problem's network as a net of rop."""
        from . import networks

        return networks.network(self.layers, self.input_shape)

    def rop_loss(self) -> rop.Loss:
        from . import networks

        return networks.LOSSES[self.loss]()

    def state(self) -> dict[str, np.ndarray] | None:
        """Running statistics of batchnorm, for a network in evaluation mode."""
        return None

    def runs_on(self, engine: str) -> bool:
        return True

    @property
    def output_shape(self) -> Shape:
        return shape_after(self.layers, self.input_shape)

    def parameters(self) -> list[Parameter]:
        return list(parameters_of(self.layers))

    @property
    def size(self) -> int:
        return sum(math.prod(p.shape) for p in self.parameters())

    def data(self, batch: int, dtype: str) -> Data:
        """The same numbers for every engine and, up to rounding, for both precisions."""
        rng = np.random.default_rng(20_240_501)
        x = rng.standard_normal((batch, *self.input_shape)).astype(dtype)
        if self.loss == "cross_entropy":
            y = rng.integers(self.output_shape[0], size=batch)
        else:
            y = rng.standard_normal((batch, *self.output_shape)).astype(dtype)
        w, w_next = (np.concatenate([_draw(rng, p) for p in self.parameters()]).astype(dtype) for _ in range(2))
        return Data(x, y, (w, w_next), self.directions(rng, dtype))

    def directions(self, rng: np.random.Generator, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        v, v_next = (_unit(rng.standard_normal(self.size)).astype(dtype) for _ in range(2))
        return v, v_next

    def blocks(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """Two blocks of directions, (parameters, BLOCK) each."""
        rng = np.random.default_rng(20_240_502)
        first, second = (rng.standard_normal((self.size, BLOCK), np.float32).astype(dtype) for _ in range(2))
        return first, second

    def epoch(self, rows: int, dtype: str) -> Epoch:
        """The rows of an epoch: the same numbers in both precisions."""
        rng = np.random.default_rng(20_240_503)
        x = rng.standard_normal((rows, *self.input_shape), np.float32).astype(dtype, copy=False)
        y = rng.integers(self.output_shape[0], size=rows)
        return Epoch(x, y, (rng.permutation(rows), rng.permutation(rows)))


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ArgumentError(f"bench: unknown {what} {name!r}; known: {', '.join(known)}")


def refuse_layer(layer: object) -> NoReturn:
    """Raises the error for a layer that a function over a problem's layers has no case for."""
    raise ArgumentTypeError(
        f"bench: expected a layer of bench/problems.py, got {layer!r}; every engine, parameters_of "
        "and shape_after need a case for a new one"
    )


def _draw(rng: np.random.Generator, parameter: Parameter) -> np.ndarray:
    n = math.prod(parameter.shape)
    if parameter.fan_in == 0:
        return rng.uniform(0.5, 1.5, n)
    bound = 0.5 if parameter.fan_in < 0 else 1 / math.sqrt(parameter.fan_in)
    return rng.uniform(-bound, bound, n)


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


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
            case BatchNorm(channels):
                yield Parameter((channels,), 0)
                yield Parameter((channels,), -1)
            case Residual(body, shortcut):
                yield from parameters_of(body)
                yield from parameters_of(shortcut)
            case Concat(branches):
                for branch in branches:
                    yield from parameters_of(branch)
            case Activation() | Pool() | GlobalAvgPool() | Flatten() | Softmax():
                pass  # no parameters
            case _:
                refuse_layer(layer)


def shape_after(layers: tuple[Layer, ...], shape: Shape) -> Shape:
    """The shape of one sample after the layers."""
    for layer in layers:
        match layer:
            case Linear(_, outputs):
                shape = (*shape[:-1], outputs)
            case Conv(_, outputs, k, stride, padding, dilation):
                shape = (outputs, *((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n in shape[1:]))
            case Pool(_, k, stride):
                shape = (shape[0], *((n - k) // stride + 1 for n in shape[1:]))
            case GlobalAvgPool():
                shape = (shape[0], 1, 1)
            case Flatten():
                shape = (math.prod(shape),)
            case Residual(body):
                shape = shape_after(body, shape)
            case Concat(branches):
                ends = [shape_after(branch, shape) for branch in branches]
                shape = (sum(end[0] for end in ends), *ends[0][1:])
            case Activation() | Softmax() | BatchNorm():
                pass  # the same shape
            case _:
                refuse_layer(layer)
    return shape


# -------------------------------------------------------------------------------------------------------- the problems
RELU = Activation("relu")
HALVE = Pool("max", 2, 2)


def mlp(widths: list[int], kind: str = "relu") -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs), Activation(kind)]
    return tuple(layers[:-1])


def _cnn(batchnorm: bool) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for inputs, outputs in ((1, 8), (8, 16), (16, 32)):
        layers.append(Conv(inputs, outputs, 3, padding=1, bias=not batchnorm))
        layers += [BatchNorm(outputs)] if batchnorm else []
        layers += [RELU, HALVE]
    return (*layers, Flatten(), Linear(128, 64), RELU, Linear(64, 10))


_RESNET: tuple[Layer, ...] = (
    Conv(1, 16, 3, padding=1),
    RELU,
    HALVE,
    Residual((Conv(16, 16, 3, padding=1), RELU, Conv(16, 16, 3, padding=1))),
    RELU,
    Residual((Conv(16, 32, 3, 2, padding=1), RELU, Conv(32, 32, 3, padding=1)), (Conv(16, 32, 1, 2),)),
    RELU,
    GlobalAvgPool(),
    Flatten(),
    Linear(32, 10),
)

FOREST = [54, 20, 20, 20, 7]
MAIN = (
    Problem("forest", "MLP 54-20-20-20-7, ReLU", (54,), mlp(FOREST), rows=ROWS),
    Problem("forest-tanh", "MLP 54-20-20-20-7, tanh", (54,), mlp(FOREST, "tanh")),
    Problem("usps", "CNN 1×16×16, conv 8/16/32, 64, 10", (1, 16, 16), _cnn(batchnorm=False)),
    Problem("usps-bn", "the same CNN with batchnorm", (1, 16, 16), _cnn(batchnorm=True)),
    Problem("wide", "MLP 784-512-512-10, ReLU", (784,), mlp([784, 512, 512, 10])),
    Problem("resnet", "residual net 1×16×16, 16 and 32 channels", (1, 16, 16), _RESNET),
)


def _image(name: str, about: str, layer: Layer) -> Problem:
    """A layer on images. A 1×1 convolution gives its input a tangent, the loss of a small linear layer curvature."""
    channels = shape_after((layer,), (8, 12, 12))[0]
    ends = (GlobalAvgPool(), Flatten(), Linear(channels, 10))
    return Problem(f"layer-{name}", about, (8, 12, 12), (Conv(8, 8, 1), layer, *ends))


def _flat(name: str, about: str, layer: Layer) -> Problem:
    """The same for a layer on vectors."""
    return Problem(f"layer-{name}", about, (64,), (Linear(64, 64), layer, Linear(64, 10)))


_CONV = Conv(8, 8, 3, padding=1)
LAYERS = (
    _flat("linear", "Linear 64→64", Linear(64, 64)),
    _image("conv", "Conv2d 8→16, 3×3", Conv(8, 16, 3, padding=1)),
    _image("conv-stride", "Conv2d 8→16, 3×3, stride 2", Conv(8, 16, 3, 2, padding=1)),
    _image("conv-dilated", "Conv2d 8→16, 3×3, dilation 2", Conv(8, 16, 3, padding=2, dilation=2)),
    _image("conv-groups", "Conv2d 8→16, 3×3, 4 groups", Conv(8, 16, 3, padding=1, groups=4)),
    _image("maxpool", "MaxPool2d(2)", HALVE),
    _image("avgpool", "AvgPool2d(2)", Pool("avg", 2, 2)),
    _image("globalpool", "AdaptiveAvgPool2d(1)", GlobalAvgPool()),
    _flat("batchnorm1d", "BatchNorm1d(64)", BatchNorm(64)),
    _image("batchnorm2d", "BatchNorm2d(8)", BatchNorm(8)),
    _flat("softmax", "Softmax over 64", Softmax()),
    _flat("logsoftmax", "LogSoftmax over 64", Softmax(log=True)),
    _image("add", "Add", Residual((_CONV,))),
    _image("concat", "Concat", Concat(((_CONV,), (Conv(8, 4, 1),)))),
    *(_image(kind.replace("_", "-"), kind, Activation(kind)) for kind in ACTIVATIONS),
)

GROUPS = {"main": MAIN, "layers": LAYERS, "all": MAIN + LAYERS}
BY_NAME = {problem.name: problem for problem in MAIN + LAYERS}
_MLP = re.compile(r"mlp:(\d+(?:-\d+)+)(?::(\w+))?")
_MODULE = re.compile(r".+\.py:\w+")  # a file and a function in it


def find(name: str) -> tuple[Problem, ...]:
    """The problems of a name: one problem, a group, an MLP of given widths, or `file.py:function` for a torch module.

    >>> [p.name for p in find("forest")], len(find("main"))
    (['forest'], 6)
    >>> find("mlp:8-5-3:tanh")[0].size
    63
    """
    if name in GROUPS:
        return GROUPS[name]
    if name in BY_NAME:
        return (BY_NAME[name],)
    if made := _MLP.fullmatch(name):
        widths, kind = [int(n) for n in made[1].split("-")], made[2] or "relu"
        if min(widths) > 0 and kind in ACTIVATIONS:
            return (Problem(name, f"MLP {made[1]}, {kind}", (widths[0],), mlp(widths, kind), rows=6400),)
    if _MODULE.fullmatch(name):
        from .modules import load

        return (load(name),)
    raise ValueError(
        f"unknown problem {name!r}; known: {', '.join(BY_NAME)}, the groups {', '.join(GROUPS)}, "
        f"mlp:54-20-7[:{'|'.join(ACTIVATIONS)}] and file.py:function (see --torch-module)"
    )
