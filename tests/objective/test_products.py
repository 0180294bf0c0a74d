"""Products of two values in whole networks, in both layouts: blocks of attention, squares, residuals, tied layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rop
from rop.devices.cpu.emit import Lowered
from rop.kernels.cpu.product import PIECE
from rop.lowering import outline
from rop.lowering.product import Multiplication
from tests.helpers.checker import check
from tests.helpers.strategies import around
from tests.helpers.zoo import Shape, drawn_state, labels, normal

CHANNELS, SHAPE = 6, (2, 5, 4)
Node = Any


def mean(h: Node) -> Node:
    return rop.AdaptiveAvgPool2d(1)(h)


def excited(h: Node) -> Node:
    """Squeeze-and-excitation with a residual: the block's input is used four times."""
    squeezed = rop.ReLU()(rop.Conv2d(CHANNELS, 2, 1)(mean(h)))
    return rop.Add()(rop.Mul()(h, rop.Sigmoid()(rop.Conv2d(2, CHANNELS, 1)(squeezed))), h)


def attended(h: Node) -> Node:
    """Spatial attention."""
    return rop.Mul()(rop.Sigmoid()(rop.Conv2d(CHANNELS, 1, 3, padding=1)(h)), h)


def crossed(h: Node) -> Node:
    """Numbers for each channel times numbers for each pixel: both are repeated."""
    return rop.Mul()(rop.Tanh()(mean(h)), rop.Conv2d(CHANNELS, 1, 1)(h))


def scaled(h: Node) -> Node:
    """A vector and a number, each from the value that it scales."""
    vector = rop.Flatten()(mean(h))
    return rop.Mul()(rop.Linear(CHANNELS, 1)(vector), rop.Mul()(h, rop.Linear(CHANNELS, CHANNELS)(vector)))


def tied(h: Node) -> Node:
    """Both factors from one convolution, and the same one once more on their product."""
    layer = rop.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
    return layer(rop.Mul()(layer(rop.Tanh()(h)), layer(h)))


def squared(h: Node) -> Node:
    """A value times itself, which is used elsewhere as well."""
    return rop.Concat()(rop.Mul()(h, h), h)


def rectified(h: Node) -> Node:
    """A ReLU between products, beside another use of its value."""
    on = rop.ReLU()(rop.Mul()(h, rop.BatchNorm2d(CHANNELS)(h)))
    return rop.Mul()(on, rop.Add()(on, h))


def points(h: Node) -> Node:
    """Maps of one pixel, beside vectors."""
    vector = rop.Flatten()(mean(h))
    return rop.Mul()(rop.Mul()(mean(h), vector), mean(rop.Tanh()(h)))


BLOCKS = [excited, attended, crossed, scaled, tied, squared, rectified, points]


def net_of(block: Callable[[Node], Node]) -> Any:
    """Convolution and batchnorm, the block, batchnorm and a linear layer."""
    x = rop.Input()
    y = block(rop.BatchNorm2d(CHANNELS)(rop.Conv2d(SHAPE[0], CHANNELS, 3, padding=1)(x)))
    channels, *pixels = rop.Graph(x, y).shapes(SHAPE)[y]
    y = rop.Tanh()(rop.BatchNorm2d(channels)(y))
    return rop.Graph(x, rop.Linear(channels * int(np.prod(pixels)), 3)(rop.Flatten()(y)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("layout", ["samples", "pixels"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_agree_with_the_oracle(block: Any, training: bool, layout: str, dtype: Any) -> None:
    net = net_of(block)
    for batch in (7, 33):
        x, y = normal(0, (batch, *SHAPE)), labels(0, (batch,), 3)
        state = drawn_state(net, 0)
        check(net, rop.CrossEntropy(), x, y, dtype, training=training, state=state, layout=layout)


@pytest.mark.parametrize("layout", ["samples", "pixels"])
@pytest.mark.parametrize("pixels", around(PIECE))
def test_images_around_the_length_of_a_piece(pixels: int, layout: str) -> None:
    """A factor with a number for each channel or for each pixel, in images of one row."""
    x = rop.Input()
    h = rop.Conv2d(1, 2, 1)(x)
    y = rop.Mul()(rop.Mul()(rop.Conv2d(2, 1, 1)(h), h), rop.Conv2d(2, 2, 1)(mean(h)))
    net = rop.Graph(x, rop.Linear(2, 2)(rop.Flatten()(mean(rop.Tanh()(y)))))
    check(net, rop.MSE(), normal(0, (2, 1, 1, pixels)), normal(1, (2, 2)), layout=layout)


@pytest.mark.parametrize("shape", [(4,), (3, 2, 2)])
def test_the_square_of_the_data_has_no_tangents(shape: Shape) -> None:
    x = rop.Input()
    flat = rop.Flatten() if len(shape) == 3 else rop.Identity()
    net = rop.Graph(x, rop.Tanh()(rop.Linear(int(np.prod(shape)), 3)(flat(rop.Mul()(x, x)))))
    check(net, rop.MSE(), normal(0, (17, *shape)), normal(1, (17, 3)))


def terms_of(net: Any, shape: Shape, pixel_lanes: bool) -> list[list[Any]]:
    """The numbers of terms of the instructions for products of values, at each order."""
    lowered = Lowered(outline(net, shape, True, rop.MSE(), np.float64, pixel_lanes), 16, 3)
    found = []
    for k in range(3):
        stages = lowered.emit_pass([(k, 0)], ()).stages
        every = [one for stage in stages for one in stage.instructions if one.kernel.name == "product.products"]
        found.append([one.words[1] for one in every])
    return found


@pytest.mark.parametrize("pixel_lanes", [False, True])
def test_terms_with_a_factor_that_is_zero_are_not_computed(pixel_lanes: bool) -> None:
    """Data times data has order 0 only; data times a product with weights has orders 0 and 1, one term each, and so has
    the gradient that goes back to that product, at all three orders; of two moving values all terms are there."""
    x = rop.Input()
    data = rop.Mul()(x, x)
    assert terms_of(rop.Graph(x, rop.Conv2d(2, 3, 1)(data)), (2, 3, 3), pixel_lanes) == [[1], [], []]
    gated = rop.Mul()(x, rop.Conv2d(2, 2, 1)(x))
    assert terms_of(rop.Graph(x, gated), (2, 3, 3), pixel_lanes) == [[1, 1], [1, 1], [1]]
    moving = [rop.Tanh()(rop.Conv2d(2, 2, 1)(x)) for _ in range(2)]
    assert terms_of(rop.Graph(x, rop.Mul()(*moving)), (2, 3, 3), pixel_lanes) == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]


def test_nothing_goes_back_to_a_factor_without_parameters() -> None:
    x = rop.Input()
    gated = rop.Mul()(rop.Tanh()(x), rop.Linear(3, 3)(x))
    plan = outline(rop.Graph(x, gated), (3,), True, rop.MSE(), np.float64)
    (operation,) = (one for one in plan.operations if isinstance(one, Multiplication))
    assert [h is not None for h in operation.h] == [False, True]
