"""Benchmark problems as plain data: layers, input shape, loss, and random numbers from a fixed seed.

A network is a tuple of the records of vocabulary.py. Each engine turns it into its own form, so there is one
description of each problem that all engines share.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import architectures
from .vocabulary import (
    ACTIVATIONS,
    HALVE,
    RELU,
    Activation,
    BatchNorm,
    Concat,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    LayerNorm,
    Linear,
    Parameter,
    Pool,
    Product,
    Residual,
    Shape,
    Softmax,
    check_name,
    norms_of,
    parameters_of,
    shape_after,
)

if TYPE_CHECKING:
    import rop

BLOCK = 8  # directions of `hvp_block`
LOSSES = ("cross_entropy", "mse")
ROWS = 371_847  # rows of an epoch on the forest data, as many as the training part of the real set has


class Epoch(NamedTuple):
    """All rows, and two orders in which to go through them."""

    x: np.ndarray
    y: np.ndarray
    orders: tuple[np.ndarray, np.ndarray]


class Running(NamedTuple):
    """Running statistics of a batchnorm, one of each for every channel."""

    mean: np.ndarray
    variance: np.ndarray


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
    batch: int = 0  # the only batch size at which it is measured; 0: those of the run
    training: bool = True  # whether batchnorm uses the statistics of the batch, or else running ones
    works: tuple[str, ...] = ()  # those that are measured unless the user names others; (): those of the run
    dtypes: tuple[str, ...] = ()  # the same for precisions
    too_slow: tuple[str, ...] = ()  # engines that take more than about a minute to compile it, and are left out
    looser: float = 1.0  # a factor of the tolerance of answers: of many thousands of ReLUs some are on in one precision
    # and off in the other, which the layers behind them amplify; that is as large with every engine

    alone = True  # whether rop's process has no other engine's library loaded, so that its memory can be compared

    def __post_init__(self) -> None:
        check_name("loss", self.loss, LOSSES)

    def network(self) -> rop.Graph:
        """The problem's network as a net of rop."""
        from . import networks

        return networks.network(self.layers, self.input_shape)

    def rop_loss(self) -> rop.Loss:
        from . import networks

        return networks.LOSSES[self.loss]()

    def running(self) -> list[Running]:
        """For evaluation mode, the running statistics of every batchnorm, in the order of the layers and in float64.

        Layers with the weights of `data` have outputs with about such means and variances, so signals neither vanish
        nor explode on their way through many layers.
        """
        rng = np.random.default_rng(20_240_504)
        sizes = [] if self.training else [norm.channels for norm in norms_of(self.layers)]
        return [Running(rng.uniform(-0.2, 0.2, n), rng.uniform(0.1, 0.3, n)) for n in sizes]

    def state(self) -> dict[str, np.ndarray] | None:
        """The same by the names of rop's net; None in training mode."""
        if self.training:
            return None
        names = self.network().init_state()
        return dict(zip(names, itertools.chain.from_iterable(self.running()), strict=True))

    def left_out(self, engine: str) -> str:
        """Why an engine does not run this problem; nothing if it does."""
        return "compiling it takes more than about a minute" if engine in self.too_slow else ""

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


def _draw(rng: np.random.Generator, parameter: Parameter) -> np.ndarray:
    n = math.prod(parameter.shape)
    if parameter.fan_in == 0:
        return rng.uniform(0.5, 1.5, n)
    bound = 0.5 if parameter.fan_in < 0 else 1 / math.sqrt(parameter.fan_in)
    return rng.uniform(-bound, bound, n)


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


# -------------------------------------------------------------------------------------------------------- the problems
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
_EXCITATION = (GlobalAvgPool(), Conv(8, 4, 1), RELU, Conv(4, 8, 1), Activation("sigmoid"))
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
    _flat("layernorm", "LayerNorm(64)", LayerNorm(64)),
    _image("layernorm2d", "LayerNorm2d(8)", LayerNorm(8)),
    _flat("softmax", "Softmax over 64", Softmax()),
    _flat("logsoftmax", "LogSoftmax over 64", Softmax(log=True)),
    _image("add", "Add", Residual((_CONV,))),
    _image("mul", "Mul", Product((_CONV,))),
    _image("excitation", "Squeeze-and-excitation, 8→4→8", Product(_EXCITATION)),
    _image("concat", "Concat", Concat(((_CONV,), (Conv(8, 4, 1),)))),
    *(_image(kind.replace("_", "-"), kind, Activation(kind)) for kind in ACTIVATIONS),
)


def _medium(name: str, about: str, pixels: int, layers: tuple[Layer, ...], batch: int) -> Problem:
    """A known architecture in evaluation mode, by the two works that matter for a net of this size."""
    shape = (3, pixels, pixels)
    usual: dict[str, Any] = {"training": False, "works": ("grad", "jet"), "dtypes": ("float32",), "looser": 30.0}
    return Problem(name, about, shape, layers, batch=batch, **usual)


def _densenet121(pixels: int) -> Problem:
    """JAX needs two minutes of one core to compile one of its two jets at 64×64."""
    layers = architectures.densenet121(14)
    problem = _medium(f"densenet121-{pixels}", f"DenseNet-121, 3×{pixels}×{pixels}", pixels, layers, 4)
    return replace(problem, too_slow=("jax",))


MEDIUM = (
    _medium("resnet18-32", "ResNet-18, 3×32×32", 32, architectures.resnet18(10, small_images=True), 32),
    _medium("vgg11-32", "VGG-11, 3×32×32", 32, architectures.vgg11(10), 32),
    _medium("mobilenet-32", "MobileNet, 3×32×32", 32, architectures.mobilenet(10, small_images=True), 32),
    _densenet121(64),
    _medium("resnet18-224", "ResNet-18, 3×224×224", 224, architectures.resnet18(10), 4),
    _densenet121(224),
    replace(_densenet121(64), name="densenet121-64-train", training=True),
)

GROUPS = {"main": MAIN, "layers": LAYERS, "all": MAIN + LAYERS, "medium": MEDIUM}
BY_NAME = {problem.name: problem for problem in MAIN + LAYERS + MEDIUM}
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
