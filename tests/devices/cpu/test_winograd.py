"""Convolutions of 3×3 on pixel lanes by Winograd's algorithm agree with direct sums and with the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rop
from rop.check.reference import reference
from rop.devices.cpu.emit import winograd
from tests.helpers.checker import TOLERANCES, cast, discrepancies, error_of
from tests.helpers.strategies import seeds
from tests.helpers.zoo import direction, labels, normal, point

RESULTS = ("grad", "hvp", "r2")
CLASSES = 3


@pytest.fixture(scope="module", autouse=True)
def used_everywhere() -> Iterator[None]:
    """Also where it does not pay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "LEAST_GAIN", 0.0)
        patch.setattr(winograd, "LEAST_GRADIENT_PIXELS", 1)
        yield


sides = st.sampled_from(winograd.SIDES)  # of tiles


@st.composite
def convolutions(draw: Any, smooth: bool = False) -> tuple[Any, tuple[int, ...]]:
    """Two convolutions of 3×3, the first one with any padding, between layers that let all orders through."""
    channels = st.integers(winograd.LEAST_CHANNELS, 40)
    c, d = draw(channels), draw(channels)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    activation = rop.Tanh() if smooth else draw(st.sampled_from([rop.ReLU(), rop.Tanh()]))
    net = rop.Sequential(
        rop.Conv2d(2, c, 1),
        rop.Tanh(),
        rop.Conv2d(c, d, 3, padding=padding, bias=draw(st.booleans())),
        activation,
        rop.Conv2d(d, c, 3, padding=1, bias=draw(st.booleans())),
        rop.AdaptiveAvgPool2d((1, 2)),
        rop.Flatten(),
        rop.Linear(2 * c, CLASSES),
    )
    return net, (2, draw(st.integers(3, 20)), draw(st.integers(3, 20)))


def objective(made: tuple[Any, tuple[int, ...]], batch: int, seed: int, dtype: Any, on: bool) -> Any:
    """The network on drawn data, by Winograd's algorithm or not."""
    net, shape = made
    x, y = cast(normal(seed, (batch, *shape)), dtype), labels(seed, (batch,), CLASSES)
    return rop.Objective(net, rop.CrossEntropy(), x, y, dtype=dtype, layout="pixels", winograd=on)


@contextmanager
def only(side: int) -> Iterator[None]:
    """With tiles of this side only, where outputs are large enough for one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "SIDES", (side,))
        yield


def jets(made: tuple[Any, tuple[int, ...]], batch: int, seed: int, dtype: Any, side: int) -> tuple[Any, Any]:
    """All orders by direct sums and by Winograd's algorithm, at numbers that float32 can hold."""
    w, v = (vector(made[0], seed, np.float32).astype(dtype) for vector in (point, direction))
    with only(side):
        direct, fast = (objective(made, batch, seed, dtype, on) for on in (False, True))
        return direct.jet(w, v), fast.jet(w, v)


def relative(actual: Any, expected: Any) -> float:
    return error_of(actual, expected) / float(np.linalg.norm(expected))


@given(made=convolutions(), batch=st.integers(1, 5), seed=seeds, side=sides)
def test_it_agrees_with_direct_sums(made: Any, batch: int, seed: int, side: int) -> None:
    direct, fast = jets(made, batch, seed, np.float64, side)
    for name in RESULTS:
        assert relative(getattr(fast, name), getattr(direct, name)) <= 1e-12, name


@given(made=convolutions(), batch=st.integers(1, 5), seed=seeds, side=sides)
def test_sums_in_chunks_and_parts(made: Any, batch: int, seed: int, side: int) -> None:
    """Chunks of channels, and parts of the tiles, rows and channels of a weight gradient."""
    small = {"CHUNK_CHANNELS": 9, "TILES_PER_CHUNK": 32, "LEAST_TILES_PER_PART": 20}
    small |= {"PART_ROWS": 14, "PART_CHANNELS": 16}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.items():
            patch.setattr(winograd, name, value)
        direct, fast = jets(made, batch, seed, np.float64, side)
    for name in RESULTS:
        assert relative(getattr(fast, name), getattr(direct, name)) <= 1e-12, name


@given(made=convolutions(smooth=True), batch=st.integers(1, 5), seed=seeds, side=sides)
def test_its_rounding_errors_are_those_of_direct_sums(made: Any, batch: int, seed: int, side: int) -> None:
    """In float32, against float64."""
    exact, _ = jets(made, batch, seed, np.float64, side)
    direct, fast = jets(made, batch, seed, np.float32, side)
    for name in RESULTS:
        wanted = getattr(exact, name)
        least = np.finfo(np.float32).eps * float(np.linalg.norm(wanted))
        assert error_of(getattr(fast, name), wanted) <= 3 * max(error_of(getattr(direct, name), wanted), least), name


@pytest.mark.parametrize("side", winograd.SIDES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
def test_it_agrees_with_the_oracle(dtype: Any, side: int) -> None:
    net = rop.Sequential(
        rop.Conv2d(3, 19, 3, padding=1),
        rop.ReLU(),
        rop.Conv2d(19, 37, 3, padding=1),
        rop.ReLU(),
        rop.Conv2d(37, 16, 3, bias=False),
        rop.Tanh(),
        rop.Flatten(),
        rop.Linear(16 * 9 * 10, CLASSES),
    )
    made, batch = (net, (3, 11, 12)), 4
    x, y = cast(normal(0, (batch, *made[1])), dtype), labels(0, (batch,), CLASSES)
    w, v = point(net, 0, dtype), direction(net, 0, dtype)
    expected = reference(net, rop.CrossEntropy(), x, y, w, v)
    with only(side):
        actual = objective(made, batch, 0, dtype, True).jet(w, v)
    found = discrepancies(actual, expected, v, TOLERANCES[np.dtype(dtype)])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("side", winograd.SIDES)
def test_gradients_that_are_added_to_others(side: int) -> None:
    """The same layer twice, and an input with two uses: a weight gradient and an input gradient are added."""
    source, layer, other = rop.Input(), rop.Conv2d(20, 20, 3, padding=1), rop.Conv2d(20, 20, 3, padding=1)
    first = rop.Conv2d(2, 20, 1)(source)
    total = rop.Add()(layer(rop.ReLU()(layer(first))), other(first))
    net = rop.Graph(source, rop.Linear(20 * 63, CLASSES)(rop.Flatten()(rop.Tanh()(total))))
    direct, fast = jets((net, (2, 7, 9)), 3, 0, np.float64, side)
    for name in RESULTS:
        assert relative(getattr(fast, name), getattr(direct, name)) <= 1e-12, name


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core only")
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("batch, size, side", [(1, 3, 2), (5, 17, 2), (1, 5, 4), (5, 17, 4)])
def test_the_number_of_threads_changes_no_bit(dtype: Any, batch: int, size: int, side: int) -> None:
    net = rop.Sequential(
        rop.Conv2d(2, 33, 1), rop.Conv2d(33, 40, 3, padding=1), rop.ReLU(), rop.Flatten(), rop.Linear(40 * size**2, 3)
    )
    w, v = point(net, 1, dtype), direction(net, 1, dtype)
    found = []
    try:
        for count in (1, 2):
            numba.set_num_threads(count)
            with only(side):
                found.append(objective((net, (2, size, size)), batch, 1, dtype, True).jet(w, v))
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for name in RESULTS:
        assert np.array_equal(getattr(found[0], name), getattr(found[1], name)), name


FAST = {"winograd.winograd_products", "winograd_gradient.gradient_points"}


def around(channels: int, **layer: Any) -> Any:
    """A network with one convolution of 3×3."""
    return rop.Sequential(
        rop.Conv2d(2, channels, 1),
        rop.Conv2d(channels, 32, 3, **layer),
        rop.AdaptiveAvgPool2d(1),
        rop.Flatten(),
        rop.Linear(32, CLASSES),
    )


def kernels_of(net: Any, shape: tuple[int, ...], **settings: Any) -> set[str]:
    """Names of the kernels that a gradient runs."""
    x, y = normal(0, (2, *shape)), labels(0, (2,), CLASSES)
    f = rop.Objective(net, rop.CrossEntropy(), x, y, layout="pixels", **settings)
    assert np.isfinite(f.at(net.init(seed=0)).grad).all()
    space: Any = f._workspace
    return {name for bound in space.passes() for name in bound.names}


@pytest.mark.parametrize(
    "settings, channels, layer, wanted",
    [
        ({}, 16, {}, True),
        ({"winograd": False}, 16, {}, False),
        ({}, winograd.LEAST_CHANNELS - 1, {}, False),
        ({}, 16, {"stride": 2}, False),
        ({}, 16, {"dilation": 2}, False),
        ({}, 32, {"groups": 2}, False),
    ],
)
def test_which_layers_it_is_for(settings: dict[str, Any], channels: int, layer: dict[str, Any], wanted: bool) -> None:
    found = kernels_of(around(channels, **layer), (2, 8, 8), **settings)
    assert found & FAST == (FAST if wanted else set()), found


def test_where_it_does_not_pay_sums_are_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three products are decided on apart."""
    net = around(16)
    monkeypatch.setattr(winograd, "LEAST_GAIN", 100.0)
    assert kernels_of(net, (2, 8, 8)) & FAST == {"winograd_gradient.gradient_points"}
    monkeypatch.setattr(winograd, "LEAST_GRADIENT_PIXELS", 2 * 36 + 1)
    assert not kernels_of(net, (2, 8, 8)) & FAST
    monkeypatch.setattr(winograd, "LEAST_GAIN", 0.0)
    assert kernels_of(net, (2, 8, 8)) & FAST == {"winograd.winograd_products"}
    monkeypatch.setattr(winograd, "LEAST_GRADIENT_PIXELS", 2 * 36)
    assert kernels_of(net, (2, 8, 8)) >= FAST
    monkeypatch.setattr(winograd, "MOST_GRADIENT_WEIGHTS", 16 * 32 - 1)
    assert kernels_of(net, (2, 8, 8)) & FAST == {"winograd.winograd_products"}


@pytest.mark.parametrize(
    "images, size, rows, channels, product, gradient",
    [
        (4, 56, 64, 64, 4, 4),
        (32, 8, 256, 256, 4, 4),
        (4, 14, 256, 256, 2, 2),  # few tiles: transforms of short runs, and sums that are larger than the factors
        (4, 7, 512, 512, 2, None),
        (32, 4, 512, 256, 2, None),
        (16, 6, 64, 64, None, 2),
        (4, 4, 128, 32, None, 4),
    ],
)
def test_which_tiles_a_layer_has(
    images: int, size: int, rows: int, channels: int, product: int | None, gradient: int | None
) -> None:
    """As measured on one thread."""
    tiles = winograd.tiles_of(images, (size, size), (size, size), (1, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "LEAST_GAIN", 1.15)
        found = winograd.best_for_product(tiles, rows, channels), winograd.best_for_gradient(tiles, rows * channels)
    assert [one and one.side for one in found] == [product, gradient]


def test_no_tile_is_larger_than_the_output() -> None:
    """But for the smallest, which every output has."""
    for output, wanted in [((1, 1), {2}), ((3, 9), {2}), ((4, 4), {2, 4})]:
        assert winograd.tiles_of(1, (9, 9), output, (0, 0)).keys() == wanted
