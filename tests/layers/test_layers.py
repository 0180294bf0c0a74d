"""Every layer, drawn with all its options, agrees with the oracle at every order and in every place of a network."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rop
import rop.layers
from rop.check.reference import gradient, output_shape, reference
from rop.layers.kinds import record_of
from tests.helpers.cases import CASES, LOSS_CASES, Case, made
from tests.helpers.checker import check
from tests.helpers.strategies import batch_sizes, seeds
from tests.helpers.zoo import Shape, drawn_state, labels, normal

CLASSES = 3
PRECISIONS = [np.float64, np.float32]


# ---------------------------------------------------------------------------------------------------------------
# the registry is complete
# ---------------------------------------------------------------------------------------------------------------


def test_every_layer_has_exactly_one_case() -> None:
    assert sorted(case.name for case in CASES) == sorted(rop.layers.LAYERS)


def test_every_loss_has_exactly_one_case() -> None:
    assert sorted(case.name for case in LOSS_CASES) == sorted(rop.layers.LOSSES)


@pytest.mark.parametrize("case", [*CASES, *LOSS_CASES], ids=lambda case: case.name)
def test_every_case_says_what_must_be_refused(case: Any) -> None:
    assert case.refused


def test_the_registries_name_the_public_classes() -> None:
    for name, kind in {**rop.layers.LAYERS, **rop.layers.LOSSES}.items():
        assert kind.__name__ == name and getattr(rop, name) is kind


# ---------------------------------------------------------------------------------------------------------------
# places: the drawn layer in the middle of a network, straight on the data, or last before the loss
# ---------------------------------------------------------------------------------------------------------------


def branches(x: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Values of these shapes, each from a layer with parameters of its own on data of the shape ``source_shape``; what
    has one pixel beside an image is a mean over pixels."""
    return [branch(x, shape, source_shape(shapes)) for shape in shapes]


def branch(x: Any, shape: Shape, source: Shape) -> Any:
    """One of them."""
    if len(source) == 1:
        return rop.Linear(source[0], shape[0])(x)
    y = rop.Conv2d(source[0], shape[0], 3, padding=1)(x)
    if shape[1:] != source[1:]:
        y = rop.AdaptiveAvgPool2d(1)(y)
    return y if len(shape) == 3 else rop.Flatten()(y)


def source_shape(shapes: tuple[Shape, ...]) -> Shape:
    """The data's shape: 2 channels and the most pixels, or 5 features."""
    image = max((shape[1:] for shape in shapes), key=lambda pixels: (len(pixels), int(np.prod(pixels))))
    return (2, *image) if image else (5,)


def head(node: Any, shape: Shape, hidden: int | None = None) -> Any:
    """Flatten and a linear layer to the classes, with a hidden layer of its own if asked for."""
    if len(shape) > 1:
        node = rop.Flatten()(node)
    features = int(np.prod(shape))
    if hidden is not None:
        node, features = rop.Tanh()(rop.Linear(features, hidden)(node)), hidden
    return rop.Linear(features, CLASSES)(node)


def in_the_middle(layer: Any, shapes: tuple[Shape, ...]) -> tuple[Any, Shape]:
    """data → parameters → tanh → LAYER → tanh → linear; a layer with several inputs gets branches of its own."""
    x = rop.Input()
    y = layer(*map(rop.Tanh(), branches(x, shapes)))
    return rop.Graph(x, head(rop.Tanh()(y), output_shape(layer, *shapes))), source_shape(shapes)


def on_the_data(layer: Any, shapes: tuple[Shape, ...]) -> tuple[Any, Shape]:
    """data → LAYER → linear → tanh → linear; several inputs are the data itself, as often as needed."""
    x = rop.Input()
    shapes = shapes[:1] * len(shapes)
    return rop.Graph(x, head(layer(*[x] * len(shapes)), output_shape(layer, *shapes), hidden=4)), shapes[0]


def before_the_loss(layer: Any, shapes: tuple[Shape, ...]) -> tuple[Any, Shape]:
    """data → parameters → tanh → LAYER."""
    x = rop.Input()
    return rop.Graph(x, layer(*map(rop.Tanh(), branches(x, shapes)))), source_shape(shapes)


def directly_between(layer: Any, shapes: tuple[Shape, ...]) -> tuple[Any, Shape]:
    """data → parameters → LAYER → parameters: no activation beside it."""
    x = rop.Input()
    return rop.Graph(x, head(layer(*branches(x, shapes)), output_shape(layer, *shapes))), source_shape(shapes)


PLACES = [in_the_middle, on_the_data, before_the_loss, directly_between]


def targets_for(place: Any, layer: Any, shapes: tuple[Shape, ...], batch: int, seed: int) -> tuple[Any, np.ndarray]:
    """A loss and targets that fit the network which a place makes."""
    if place is before_the_loss:
        return rop.MSE(), normal(seed + 1, (batch, *output_shape(layer, *shapes)))
    return rop.CrossEntropy(), labels(seed, (batch,), CLASSES)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@given(data=st.data(), place=st.sampled_from(PLACES), training=st.booleans(), seed=seeds)
def test_layer_agrees_with_the_oracle(
    case: Case, dtype: Any, data: st.DataObject, place: Any, training: bool, seed: int
) -> None:
    arguments, shapes = data.draw(case.drawn)
    batch = data.draw(batch_sizes(case.least_batch))
    layer = made(case, arguments)
    net, shape = place(layer, shapes)
    loss, y = targets_for(place, layer, shapes, batch, seed)
    x, state = normal(seed, (batch, *shape)), drawn_state(net, seed)
    check(net, loss, x, y, dtype, training=training, state=state, seed=seed)


# ---------------------------------------------------------------------------------------------------------------
# conventions at kinks and ties, and in the far ends of activations
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [rop.ReLU(), rop.LeakyReLU(0.25)], ids=repr)
def test_the_kink_of_relu_counts_as_negative(layer: Any) -> None:
    """At w = 0 the layer sees exactly 0: its slope there is 0 (ReLU) or negative_slope (leaky), as in torch."""
    net = rop.Sequential(rop.Linear(1, 1), layer)
    f = rop.Objective(net, rop.MSE(reduction="sum"), np.ones((1, 1)), np.full((1, 1), -0.5), dtype=np.float64)
    slope = getattr(layer, "negative_slope", 0.0)
    np.testing.assert_array_equal(f.at(np.zeros(2)).grad, [slope, slope])


def test_maxpool_passes_ties_to_the_first_maximum() -> None:
    """On a constant image of biases every window ties; the gradient goes to the window's first pixel only."""
    net = rop.Sequential(rop.Conv2d(1, 1, 1), rop.MaxPool2d(2), rop.Flatten(), rop.Linear(1, 1))
    x = np.array([[[[5.0, 1.0], [2.0, 3.0]]]])
    w = np.array([0.0, 1.0, 1.0, 0.0])  # the convolution gives 0·x + 1 everywhere
    grad = rop.Objective(net, rop.MSE(), x, np.zeros((1, 1)), dtype=np.float64).at(w).grad
    assert grad[0] == 2.0 * 5.0  # 2·(output − target)·x at the first pixel


IN_PIECES = [
    *(layer for kind in rop.layers.ACTIVATIONS.values() if (layer := kind()).seams),
    *(rop.Hardtanh(-0.5, 2.0), rop.ELU(2.0), rop.CELU(2.0)),
]


@pytest.mark.parametrize("layer", IN_PIECES, ids=repr)
def test_activations_made_of_pieces_have_the_derivatives_of_torch_at_their_seams(layer: Any) -> None:
    """At the seam, beside it, and where nothing is a number. torch cannot differentiate its Hardsigmoid twice."""
    function = record_of(layer, "here").find("function")
    arguments = {name: getattr(layer, name) for name in signature(type(layer)).parameters}
    for number in (near for seam in layer.seams for near in (seam - 0.1, np.nextafter(seam, -9), seam, seam + 0.1)):
        x = torch.tensor(number, dtype=torch.float64, requires_grad=True)
        y = function(x, **arguments)
        values = layer.function(float(number), *layer.parameters)
        for k in range(2 if isinstance(layer, rop.Hardsigmoid) else 4):
            y = gradient(y, x) if k else y
            assert values[k] == pytest.approx(y.item(), rel=1e-7, abs=1e-15), f"derivative {k} at {number}"
    assert np.isnan(layer.function(float("nan"), *layer.parameters)[0])


def test_torch_cannot_differentiate_two_of_its_activations_twice() -> None:
    """Why Mish and Hardsigmoid have references in primitives; a torch that can makes this fail."""
    x = torch.tensor(1e4, dtype=torch.float64, requires_grad=True)
    slope = gradient(torch.nn.functional.mish(x), x)
    assert slope.item() == 1 and torch.isnan(gradient(slope, x))
    slope = gradient(torch.nn.functional.hardsigmoid(x), x)
    with pytest.raises(RuntimeError, match="not implemented"):
        gradient(slope, x)


FAR = [-1e8, -1e4, -200.0, -90.0, -40.0, -19.0, -5.0, 0.0, 5.0, 19.0, 40.0, 90.0, 200.0, 1e4, 1e8]


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(
    "layer",
    [
        rop.Tanh(),
        rop.Sigmoid(),
        rop.Softplus(),
        rop.Softplus(2.0, 5.0),
        rop.SiLU(),
        rop.GELU(),
        rop.GELU("tanh"),
        rop.Mish(),
        rop.LogSigmoid(),
        rop.Softsign(),
        rop.Hardtanh(-0.5, 2.0),
        rop.ReLU6(),
        rop.Hardsigmoid(),
        rop.Hardswish(),
        rop.ELU(0.5),
        rop.SELU(),
        rop.CELU(2.0),
        rop.ReLU(),
        rop.LeakyReLU(),
    ],
    ids=repr,
)
def test_far_ends_of_activations_are_finite_and_right(layer: Any, dtype: Any) -> None:
    """Large arguments neither overflow nor lose the tails, at any order."""
    net = rop.Sequential(rop.Linear(1, 1, bias=False), layer)
    for value in FAR:
        x, y = np.full((1, 1), value, dtype), np.ones((1, 1), dtype)
        f = rop.Objective(net, rop.MSE(), x, y, dtype=dtype)
        w, v = np.ones(1, dtype), np.full(1, 1 / max(1.0, abs(value)), dtype)
        check_scalar(f.jet(w, v), net, x, y, w, v, dtype)


def check_scalar(actual: Any, net: Any, x: Any, y: Any, w: Any, v: Any, dtype: Any) -> None:
    """Compare with the oracle, relative to the largest sensible size of each order, |x|·|v|ᵏ."""
    expected = reference(net, rop.MSE(), x, y, w, v)
    loose = 1e-9 if dtype is np.float64 else 1e-4
    for name in ("loss", "grad", "hvp", "r2"):
        a, b = np.float64(getattr(actual, name)), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=loose, atol=loose, err_msg=f"{name} at x = {x[0, 0]}")


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("layer", [rop.Softmax(1), rop.LogSoftmax(1)], ids=repr)
def test_softmax_of_large_numbers_does_not_overflow(layer: Any, dtype: Any) -> None:
    net = rop.Sequential(rop.Linear(3, 4), layer)
    x = 300 * normal(1, (5, 3))
    check(net, rop.MSE(), x, np.zeros((5, 4)), dtype, seed=1)
