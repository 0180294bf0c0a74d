"""The registry of the tests: one record per layer and per loss says how to draw it and what must be refused.

The checks themselves are written once, in test_layers.py, test_losses.py and test_errors.py. test_layers.py compares
this registry with `rop.layers.LAYERS` and `rop.layers.LOSSES`, so a layer or loss without a case, and a case without
inputs that must be refused, fail the suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rop
from tests.helpers.zoo import Shape

Drawn = tuple[dict[str, Any], tuple[Shape, ...]]  # constructor arguments, shapes of the inputs

untyped: Any = rop  # for calls that a type checker would refuse too


@dataclass(frozen=True)
class Refused:
    """Something that must raise an error of the package, and words its message must contain.

    `make` builds a layer, a network or a loss. If it returns, the error must come when an objective is made of it with
    data of the given shape (networks and layers) or with the given outputs' shape and targets (losses).
    """

    make: Callable[[], Any]
    says: tuple[str, ...]
    shape: Shape | None = None
    target: Any = None
    error: type[Exception] = ValueError


@dataclass(frozen=True)
class Case:
    """A layer: how to draw its arguments and input shapes (without batch), and what it must refuse."""

    name: str
    drawn: st.SearchStrategy[Drawn]
    refused: tuple[Refused, ...]
    least_batch: int = 1


def made(case: Case, arguments: dict[str, Any]) -> Any:
    """The layer with drawn arguments; ``parameters`` are positional ones."""
    kind: Any = rop.layers.LAYERS[case.name]
    if "function" in arguments:
        return kind(arguments["function"], *arguments.get("parameters", ()))
    return kind(**arguments)


@dataclass(frozen=True)
class LossCase:
    """A loss: how to draw its arguments, the outputs' shape (without batch) and targets, and what it must refuse.

    `drawn` gives (arguments, shape, target), target being a function (seed, batch) → array.
    """

    name: str
    drawn: st.SearchStrategy[tuple[dict[str, Any], Shape, Callable[[int, int], np.ndarray]]]
    refused: tuple[Refused, ...]


# ---------------------------------------------------------------------------------------------------------------
# shapes
# ---------------------------------------------------------------------------------------------------------------

vectors = st.tuples(st.integers(1, 24))
images = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7))
anything = st.one_of(vectors, images)
small = st.integers(1, 4)


def with_arguments(shapes: st.SearchStrategy[Shape], **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Drawn]:
    """Arguments and one input shape, drawn independently of each other."""
    return st.tuples(st.fixed_dictionaries(arguments), shapes.map(lambda shape: (shape,)))


@st.composite
def linears(draw: st.DrawFn) -> Drawn:
    """Linear layers, narrow and wide."""
    features = draw(st.integers(1, 70))
    arguments = {"in_features": features, "out_features": draw(st.integers(1, 40)), "bias": draw(st.booleans())}
    return arguments, ((features,),)


def window_sizes(draw: st.DrawFn, kernel: Shape, padding: Shape, dilation: Shape = (1, 1)) -> Shape:
    """Heights and widths that hold the window at least once."""
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    return tuple(draw(st.integers(size, size + 5)) for size in least)


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Convolutions with everything odd: unequal kernels, strides beyond the kernel, dilation, groups, depthwise."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kernel, padding = draw(st.tuples(small, small)), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    stride, dilation = draw(st.tuples(small, small)), draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    if draw(st.booleans()):
        padding, stride, dilation = (padding[0],) * 2, (stride[0],) * 2, (1, 1)
    arguments = {
        "in_channels": groups * inner,
        "out_channels": groups * outer,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    return arguments, ((groups * inner, *window_sizes(draw, kernel, padding, dilation)),)


@st.composite
def usual_convolutions(draw: st.DrawFn) -> Drawn:
    """The convolutions that networks are made of: 1×1, 3×3 and 5×5, full or depthwise, given by plain integers."""
    kernel, channels = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 9))
    groups = draw(st.sampled_from([1, channels]))
    stride, padding = draw(st.sampled_from([(1, kernel // 2), (2, kernel // 2), (1, "same"), (1, "valid")]))
    arguments = {
        "in_channels": channels,
        "out_channels": groups * draw(st.integers(1, 9 if groups == 1 else 2)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "groups": groups,
    }
    sizes = st.integers(kernel if padding == "valid" else 1, 8)
    return arguments, ((channels, draw(sizes), draw(sizes)),)


@st.composite
def poolings(draw: st.DrawFn) -> Drawn:
    """Pooling windows that overlap, touch, leave gaps or reach beyond the image, with padding up to half the window."""
    kernel = draw(st.tuples(small, small))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    arguments: dict[str, Any] = {"kernel_size": kernel, "padding": padding, "ceil_mode": draw(st.booleans())}
    if draw(st.booleans()):
        arguments["stride"] = draw(st.tuples(small, small))
    if kernel[0] == kernel[1] and padding[0] == padding[1] and draw(st.booleans()):
        arguments.update(kernel_size=kernel[0], padding=padding[0])
    return arguments, ((draw(st.integers(1, 4)), *window_sizes(draw, kernel, padding)),)


@st.composite
def batchnorms(draw: st.DrawFn, shapes: st.SearchStrategy[Shape]) -> Drawn:
    """Batchnorm layers with and without parameters."""
    shape = draw(shapes)
    eps = draw(st.sampled_from([1e-5, 1e-3, 0.1]))
    return {"num_features": shape[0], "eps": eps, "affine": draw(st.booleans())}, (shape,)


def wave(x: float) -> tuple[float, float, float, float]:
    """x + sin x."""
    s, c = math.sin(x), math.cos(x)
    return x + s, 1 + c, -s, -c


def bell(x: float, height: float, width: float) -> tuple[float, float, float, float]:
    """a exp(−(x/b)²/2), with z = x/b: y′ = −z y/b, y″ = (z² − 1) y/b², y‴ = (3 − z²) z y/b³."""
    z = x / width
    y = height * math.exp(-0.5 * z * z)
    return y, -z * y / width, (z**2 - 1) * y / width**2, (3 - z**2) * z * y / width**3


@st.composite
def own_activations(draw: st.DrawFn) -> Drawn:
    """Scalar functions with and without parameters."""
    shapes = (draw(anything),)
    if draw(st.booleans()):
        return {"function": wave}, shapes
    numbers = (draw(st.sampled_from([0.5, 2.0])), draw(st.sampled_from([1.0, 3.0])))
    return {"function": bell, "parameters": numbers}, shapes


softmaxes = st.one_of(
    with_arguments(vectors, dim=st.sampled_from([None, 1, -1])), with_arguments(images, dim=st.sampled_from([None, 1]))
)


@st.composite
def concatenations(draw: st.DrawFn) -> Drawn:
    """Two or three inputs with the same pixels and any numbers of channels."""
    first, *others = draw(st.lists(st.integers(1, 6), min_size=2, max_size=3))
    rest = draw(anything)[1:]
    return {}, tuple((channels, *rest) for channels in (first, *others))


@st.composite
def average_poolings(draw: st.DrawFn) -> Drawn:
    """Average pooling, with the padding counted or not."""
    arguments, shapes = draw(poolings())
    return dict(arguments, count_include_pad=draw(st.booleans())), shapes


@st.composite
def additions(draw: st.DrawFn) -> Drawn:
    """Two or three inputs of one shape."""
    return {}, (draw(anything),) * draw(st.integers(2, 3))


# ---------------------------------------------------------------------------------------------------------------
# layers
# ---------------------------------------------------------------------------------------------------------------


def branches(join: Any, first: list[Any], second: list[Any]) -> Any:
    """A graph that joins two chains of layers on the same input."""
    x = rop.Input()
    a, b = x, x
    for layer in first:
        a = layer(a)
    for layer in second:
        b = layer(b)
    return rop.Graph(x, join(a, b))


def batched(shape: Shape) -> str:
    """A shape as messages write it."""
    return f"({', '.join(['batch', *map(str, shape)])})"


def refused_windows(kind: Any, **least: Any) -> tuple[Refused, ...]:
    """What every sliding window refuses, whichever layer it belongs to."""
    name = kind.__name__
    return (
        Refused(lambda: kind(**least, kernel_size=0), (name, "kernel_size", "0")),
        Refused(lambda: kind(**least, kernel_size=-3), (name, "kernel_size", "-3")),
        Refused(lambda: kind(**least, kernel_size=(3, 0)), (name, "kernel_size", "0")),
        Refused(lambda: kind(**least, kernel_size=(3, 3, 3)), (name, "kernel_size", "(3, 3, 3)")),
        Refused(lambda: kind(**least, kernel_size="big"), (name, "kernel_size", "big"), error=TypeError),
        Refused(lambda: kind(**least, kernel_size=2.5), (name, "kernel_size", "2.5"), error=TypeError),
        Refused(lambda: kind(**least, kernel_size=3, stride=0), (name, "stride", "0")),
        Refused(lambda: kind(**least, kernel_size=3, stride=(1, -1)), (name, "stride", "-1")),
        Refused(lambda: kind(**least, kernel_size=3, padding=-1), (name, "padding", "-1")),
        Refused(lambda: kind(**least, kernel_size=5), (name, "5", "(batch, 3, 4, 9)"), shape=(3, 4, 9)),
        Refused(lambda: kind(**least, kernel_size=2), (name, "expected", "(batch, 3", "(batch, 12)"), shape=(12,)),
    )


def only_images(kind: Any, **arguments: Any) -> tuple[Refused, ...]:
    """Layers on images refuse vectors and volumes."""
    name = kind.__name__
    return (
        Refused(lambda: kind(**arguments), (name, "expected", "(batch, 12)"), shape=(12,)),
        Refused(lambda: kind(**arguments), (name, "expected", "(batch, 1, 2, 3, 4)"), shape=(1, 2, 3, 4)),
    )


def refused_batchnorms(kind: Any, right: Shape, wrong: Shape, rank: Shape) -> tuple[Refused, ...]:
    """What both batchnorms refuse."""
    name = kind.__name__
    return (
        Refused(lambda: kind(0), (name, "num_features", "0")),
        Refused(lambda: kind(-4), (name, "num_features", "-4")),
        Refused(lambda: kind(2.0), (name, "num_features", "2.0"), error=TypeError),
        Refused(lambda: kind(4, eps=-1.0), (name, "eps", "-1")),
        Refused(lambda: kind(right[0]), (name, "expected", batched(wrong)), shape=wrong),
        Refused(lambda: kind(right[0]), (name, "expected", batched(rank)), shape=rank),
    )


def misused(kind: Any) -> tuple[Refused, ...]:
    """Layers on one value refuse two, and arrays in the place of nodes."""
    name = kind.__name__
    return (
        Refused(lambda: kind()(rop.Input(), rop.Input()), (name, "expected 1", "got 2")),
        Refused(lambda: kind()(np.zeros((2, 3))), (name, "ndarray"), error=TypeError),
    )


def refused_softmaxes(kind: Any) -> tuple[Refused, ...]:
    """What Softmax and LogSoftmax refuse: any axis but that of the classes."""
    name = kind.__name__
    return (
        *misused(kind),
        Refused(lambda: kind(dim=0), (name, "dim", "0")),
        Refused(lambda: kind(dim=2), (name, "dim", "2")),
        Refused(lambda: kind(dim=-1), (name, "expected", "(batch, 3, 2, 2)"), shape=(3, 2, 2)),
    )


CASES = [
    Case(
        "Linear",
        linears(),
        (
            Refused(lambda: rop.Linear(0, 3), ("Linear", "in_features", "0")),
            Refused(lambda: rop.Linear(-2, 3), ("Linear", "in_features", "-2")),
            Refused(lambda: rop.Linear(3, 0), ("Linear", "out_features", "0")),
            Refused(lambda: rop.Linear(3, -1), ("Linear", "out_features", "-1")),
            Refused(lambda: untyped.Linear(3.5, 1), ("Linear", "in_features", "3.5"), error=TypeError),
            Refused(lambda: untyped.Linear("3", 1), ("Linear", "in_features", "3"), error=TypeError),
            Refused(lambda: rop.Linear(4, 3), ("Linear", "expected", "(batch, 4)", "(batch, 5)"), shape=(5,)),
            Refused(lambda: rop.Linear(4, 3), ("Linear", "expected", "(batch, 4, 1, 1)"), shape=(4, 1, 1)),
        ),
    ),
    Case(
        "Conv2d",
        st.one_of(convolutions(), usual_convolutions()),
        (
            *refused_windows(rop.Conv2d, in_channels=3, out_channels=2),
            Refused(lambda: rop.Conv2d(0, 2, 3), ("Conv2d", "in_channels", "0")),
            Refused(lambda: rop.Conv2d(2, -1, 3), ("Conv2d", "out_channels", "-1")),
            Refused(lambda: rop.Conv2d(2, 2, 3, dilation=0), ("Conv2d", "dilation", "0")),
            Refused(lambda: rop.Conv2d(2, 2, 3, groups=0), ("Conv2d", "groups", "0")),
            Refused(lambda: rop.Conv2d(3, 2, 3, groups=2), ("Conv2d", "groups", "2", "3")),
            Refused(lambda: rop.Conv2d(2, 3, 3, groups=2), ("Conv2d", "groups", "2", "3")),
            Refused(lambda: rop.Conv2d(2, 2, 3, padding="full"), ("Conv2d", "padding", "full")),
            Refused(lambda: rop.Conv2d(2, 2, 3, stride=2, padding="same"), ("Conv2d", "same", "stride", "2")),
            Refused(lambda: untyped.Conv2d(2, 2, 3, bias=1), ("Conv2d", "bias", "1"), error=TypeError),
            Refused(lambda: rop.Conv2d(3, 2, 1), ("Conv2d", "expected", "3", "(batch, 4, 5, 5)"), shape=(4, 5, 5)),
        ),
    ),
    Case(
        "MaxPool2d",
        poolings(),
        (
            *(r for r in refused_windows(rop.MaxPool2d) if "(batch, 3" not in r.says),
            *only_images(rop.MaxPool2d, kernel_size=1),
            Refused(lambda: rop.MaxPool2d(2, padding=2), ("MaxPool2d", "padding", "2")),
            Refused(lambda: untyped.MaxPool2d(2, ceil_mode=1), ("MaxPool2d", "ceil_mode", "1"), error=TypeError),
        ),
    ),
    Case(
        "AvgPool2d",
        average_poolings(),
        (
            *(r for r in refused_windows(rop.AvgPool2d) if "(batch, 3" not in r.says),
            *only_images(rop.AvgPool2d, kernel_size=1),
            Refused(lambda: rop.AvgPool2d(2, padding=2), ("AvgPool2d", "padding", "2")),
            Refused(
                lambda: untyped.AvgPool2d(2, count_include_pad="no"),
                ("AvgPool2d", "count_include_pad", "no"),
                error=TypeError,
            ),
        ),
    ),
    Case(
        "AdaptiveAvgPool2d",
        with_arguments(images, output_size=st.just(1) | small | st.tuples(st.integers(1, 9), small)),
        (
            *only_images(rop.AdaptiveAvgPool2d, output_size=1),
            Refused(lambda: rop.AdaptiveAvgPool2d(0), ("AdaptiveAvgPool2d", "output_size", "0")),
            Refused(
                lambda: untyped.AdaptiveAvgPool2d((None, 2)),
                ("AdaptiveAvgPool2d", "output_size", "None"),
                error=TypeError,
            ),
        ),
    ),
    Case(
        "Flatten",
        with_arguments(anything),
        (*misused(rop.Flatten), Refused(lambda: rop.Flatten(start_dim=0), ("Flatten", "start_dim", "0"))),
    ),
    Case("Identity", with_arguments(anything), misused(rop.Identity)),
    Case("ReLU", with_arguments(anything), misused(rop.ReLU)),
    Case(
        "LeakyReLU",
        with_arguments(anything, negative_slope=st.sampled_from([0.0, 0.01, 0.3, -0.5])),
        (
            Refused(lambda: untyped.LeakyReLU("steep"), ("LeakyReLU", "negative_slope", "steep"), error=TypeError),
            Refused(lambda: rop.LeakyReLU(float("nan")), ("LeakyReLU", "negative_slope", "nan")),
        ),
    ),
    Case("Tanh", with_arguments(anything), misused(rop.Tanh)),
    Case("Sigmoid", with_arguments(anything), misused(rop.Sigmoid)),
    Case(
        "Softplus",
        with_arguments(anything, beta=st.sampled_from([0.5, 1.0, 3]), threshold=st.sampled_from([20.0, 1.5])),
        (
            Refused(lambda: rop.Softplus(beta=0.0), ("Softplus", "beta", "0")),
            Refused(lambda: untyped.Softplus(beta="soft"), ("Softplus", "beta", "soft"), error=TypeError),
        ),
    ),
    Case("SiLU", with_arguments(anything), misused(rop.SiLU)),
    Case(
        "GELU",
        with_arguments(anything, approximate=st.sampled_from(["none", "tanh"])),
        (
            Refused(lambda: rop.GELU("sigmoid"), ("GELU", "approximate", "sigmoid")),
            Refused(lambda: untyped.GELU(approximate=1), ("GELU", "approximate", "1"), error=Exception),
        ),
    ),
    Case(
        "Elementwise",
        own_activations(),
        (
            Refused(lambda: untyped.Elementwise(3), ("Elementwise", "function", "3"), error=TypeError),
            Refused(lambda: rop.Elementwise(bell), ("Elementwise", "bell", "(x", "0 parameter")),
            Refused(lambda: untyped.Elementwise(lambda x: (x, x)), ("Elementwise", "four", "(0.5, 0.5)")),
            Refused(lambda: rop.Elementwise(wave, 1.0, 2.0, 3.0), ("Elementwise", "at most 2", "3")),
            Refused(lambda: rop.Elementwise(bell, 1.0, float("inf")), ("Elementwise", "parameter 2", "inf")),
        ),
    ),
    Case("Softmax", softmaxes, refused_softmaxes(rop.Softmax)),
    Case("LogSoftmax", softmaxes, refused_softmaxes(rop.LogSoftmax)),
    Case(
        "BatchNorm1d",
        batchnorms(vectors),
        refused_batchnorms(rop.BatchNorm1d, (4,), (5,), (4, 2, 2)),
        least_batch=5,
    ),
    Case(
        "BatchNorm2d",
        batchnorms(images),
        refused_batchnorms(rop.BatchNorm2d, (4, 2, 2), (3, 2, 2), (4,)),
        least_batch=5,
    ),
    Case(
        "Add",
        additions(),
        (
            Refused(lambda: branches(rop.Add(), [rop.Linear(5, 3)], [rop.Linear(5, 4)]), ("Add", "3", "4"), (5,)),
            Refused(lambda: branches(rop.Add(), [rop.Flatten()], []), ("Add", "12", "(batch, 3, 2, 2)"), (3, 2, 2)),
        ),
    ),
    Case(
        "Concat",
        concatenations(),
        (
            Refused(
                lambda: branches(rop.Concat(), [rop.MaxPool2d(2)], []),
                ("Concat", "(batch, 3, 2, 2)", "(batch, 3, 4, 4)"),
                (3, 4, 4),
            ),
            Refused(lambda: branches(rop.Concat(), [rop.Flatten()], []), ("Concat", "12"), (3, 2, 2)),
        ),
    ),
]


# ---------------------------------------------------------------------------------------------------------------
# losses
# ---------------------------------------------------------------------------------------------------------------

reductions = st.sampled_from(["mean", "sum"])
class_shapes = st.tuples(st.integers(2, 9)) | st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))


@st.composite
def class_targets(draw: st.DrawFn) -> tuple[dict[str, Any], Shape, Callable[[int, int], np.ndarray]]:
    """Class indices, some of them ignored, with or without class weights; one label per sample or per pixel."""
    shape = draw(class_shapes)
    arguments: dict[str, Any] = {"reduction": draw(reductions)}
    if draw(st.booleans()):
        arguments["weight"] = np.random.default_rng(draw(st.integers(0, 99))).uniform(0.2, 2.0, shape[0])
    ignored = draw(st.sampled_from([None, -100, 0, 255]))
    if ignored is not None:
        arguments["ignore_index"] = ignored

    def target(seed: int, batch: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        y = rng.integers(0, shape[0], (batch, *shape[1:]))
        if ignored is not None:
            y[rng.random(y.shape) < 0.3] = ignored
            y.flat[0] = shape[0] - 1  # at least one label counts: the mean over none is not a number
        return y

    return arguments, shape, target


@st.composite
def smoothed_targets(draw: st.DrawFn) -> tuple[dict[str, Any], Shape, Callable[[int, int], np.ndarray]]:
    """Class indices with label smoothing."""
    arguments, shape, target = draw(class_targets())
    return dict(arguments, label_smoothing=draw(st.sampled_from([0.1, 0.5, 1.0]))), shape, target


@st.composite
def probability_targets(draw: st.DrawFn) -> tuple[dict[str, Any], Shape, Callable[[int, int], np.ndarray]]:
    """A probability for every class instead of an index."""
    shape = draw(class_shapes)
    arguments: dict[str, Any] = {"reduction": draw(reductions), "label_smoothing": draw(st.sampled_from([0.0, 0.2]))}
    if draw(st.booleans()):
        arguments["weight"] = np.random.default_rng(draw(st.integers(0, 99))).uniform(0.2, 2.0, shape[0])

    def target(seed: int, batch: int) -> np.ndarray:
        raw = np.random.default_rng(seed).uniform(0.0, 1.0, (batch, *shape))
        return raw / raw.sum(axis=1, keepdims=True)

    return arguments, shape, target


def float_targets(least: float, most: float) -> Any:
    """Targets of the outputs' own shape."""

    def target(shape: Shape) -> Callable[[int, int], np.ndarray]:
        return lambda seed, batch: np.random.default_rng(seed).uniform(least, most, (batch, *shape))

    arguments = st.fixed_dictionaries({"reduction": reductions})
    return st.tuples(arguments, anything).map(lambda drawn: (*drawn, target(drawn[1])))


def refused_reductions(kind: Any) -> tuple[Refused, ...]:
    """Every loss refuses a reduction it does not know."""
    name = kind.__name__
    return (
        Refused(lambda: kind(reduction="median"), (name, "reduction", "median")),
        Refused(lambda: kind(reduction="none"), (name, "reduction", "none")),
        Refused(lambda: kind(reduction=3), (name, "reduction", "3"), error=Exception),
    )


def refused_labels(kind: Any) -> tuple[Refused, ...]:
    """What both losses on class indices refuse. Outputs are (2, 3): two samples, three classes."""
    name = kind.__name__
    return (
        *refused_reductions(kind),
        Refused(kind, (name, "3"), (3,), np.array([0, 3])),
        Refused(kind, (name, "-1"), (3,), np.array([-1, 0])),
        Refused(kind, (name, "(2,)", "(3,)"), (3,), np.array([0, 1, 2])),
        Refused(kind, (name, "(2,)", "(2, 2)"), (3,), np.array([[0, 1], [1, 0]])),
        Refused(kind, (name, "float64"), (3,), np.array([0.0, 1.0]), Exception),
        Refused(kind, (name, "complex"), (3,), np.array([0j, 1j]), TypeError),
        Refused(kind, (name,), (3,), np.array(["cat", "dog"]), TypeError),
        Refused(kind, (name, "object"), (3,), np.array([0, None]), TypeError),
        Refused(lambda: kind(weight=np.ones(4)), (name, "weight", "3", "4"), (3,), np.array([0, 1])),
        Refused(lambda: kind(weight=np.array([1.0, -1.0, 1.0])), (name, "weight", "-1")),
        Refused(lambda: kind(weight=np.ones((3, 1))), (name, "weight", "(3, 1)")),
        Refused(lambda: kind(ignore_index=1.5), (name, "ignore_index", "1.5"), error=TypeError),
    )


def refused_shapes(kind: Any) -> tuple[Refused, ...]:
    """Losses with targets of the outputs' shape never broadcast. Outputs are (2, 3)."""
    name = kind.__name__
    return (
        *refused_reductions(kind),
        Refused(kind, (name, "(2, 3)", "(2, 1)"), (3,), np.zeros((2, 1))),
        Refused(kind, (name, "(2, 3)", "(2,)"), (3,), np.zeros(2)),
        Refused(kind, (name, "(2, 3)", "(3, 3)"), (3,), np.zeros((3, 3))),
        Refused(kind, (name, "int"), (3,), np.zeros((2, 3), int), TypeError),
        Refused(kind, (name, "complex"), (3,), np.zeros((2, 3), complex), TypeError),
        Refused(kind, (name, "object"), (3,), np.full((2, 3), None), TypeError),
        Refused(kind, (name,), (3,), np.full((2, 3), "a"), TypeError),
        Refused(kind, (name, "nan"), (3,), np.full((2, 3), np.nan)),
    )


LOSS_CASES = [
    LossCase(
        "CrossEntropy",
        st.one_of(class_targets(), smoothed_targets(), probability_targets()),
        (
            *refused_labels(rop.CrossEntropy),
            Refused(lambda: rop.CrossEntropy(label_smoothing=-0.1), ("CrossEntropy", "label_smoothing", "-0.1")),
            Refused(lambda: rop.CrossEntropy(label_smoothing=1.1), ("CrossEntropy", "label_smoothing", "1.1")),
            Refused(rop.CrossEntropy, ("CrossEntropy", "(2, 3)", "(2, 2)"), (3,), np.full((2, 2), 0.5)),
            Refused(rop.CrossEntropy, ("CrossEntropy", "nan"), (3,), np.full((2, 3), np.nan)),
        ),
    ),
    LossCase("NLL", class_targets(), refused_labels(rop.NLL)),
    LossCase("MSE", float_targets(-2.0, 2.0), refused_shapes(rop.MSE)),
    LossCase(
        "BCEWithLogits",
        float_targets(0.0, 1.0),
        (
            *refused_shapes(rop.BCEWithLogits),
            Refused(rop.BCEWithLogits, ("BCEWithLogits", "[0, 1]", "1.5"), (3,), np.full((2, 3), 1.5)),
            Refused(rop.BCEWithLogits, ("BCEWithLogits", "[0, 1]", "-0.5"), (3,), np.full((2, 3), -0.5)),
        ),
    ),
]
