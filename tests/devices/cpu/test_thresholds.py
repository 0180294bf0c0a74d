"""Networks and batches on both sides of every threshold of the engine agree with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rop
from rop.devices.cpu.choice import LANES
from rop.devices.cpu.emit.bilinear import WIDE
from rop.devices.cpu.workspace import CHUNK_TILES, CpuWorkspace
from rop.kernels.cpu.gemm import PANEL
from tests.helpers.checker import check
from tests.helpers.strategies import (
    Problem,
    batch_sizes,
    constant_nets,
    flattened_nets,
    large_cnns,
    long_batches,
    mlps,
    number_of_directions,
    seeds,
    wide_nets,
)
from tests.helpers.zoo import direction, labels, normal, point
from tests.objective.test_networks import check_problem

both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)


@both_precisions
@given(problem=wide_nets(), batch=batch_sizes(), seed=seeds)
def test_wide_layers_and_long_vectors(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=large_cnns(), batch=batch_sizes(), seed=seeds)
def test_convolutions_with_many_weights_channels_or_pixels(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=flattened_nets(), batch=batch_sizes(5), training=st.booleans(), seed=seeds)
def test_flattened_images_beside_vectors(problem: Problem, batch: int, training: bool, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype, training)


@both_precisions
@given(problem=constant_nets(), batch=batch_sizes(), seed=seeds)
def test_values_that_depend_on_no_parameter(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    y = normal(seed + 1, (batch, *problem.shape))
    check(problem.net, rop.MSE(), normal(seed, (batch, *problem.shape)), y, dtype, seed=seed)


@both_precisions
@settings(max_examples=12)
@given(problem=mlps(), batch=long_batches(), seed=seeds)
def test_batches_of_several_chunks(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@settings(max_examples=8)
@given(problem=mlps(), batch=long_batches(), seed=seeds)
def test_the_memory_limit_changes_no_bit(problem: Problem, batch: int, seed: int) -> None:
    """Three orders, one or none are kept of the batch."""
    x, y = normal(seed, (batch, *problem.shape)), labels(seed, (batch,), problem.classes)
    w, v = point(problem.net, seed), direction(problem.net, seed)
    found = []
    for limit in (None, 1, 1 << 16, 1 << 20):
        f = rop.Objective(problem.net, rop.CrossEntropy(), x, y, dtype=np.float64, memory_limit=limit)
        p = f.at(w)
        found.append(np.concatenate([[p.loss], p.grad, p.hvp(v), p.r2(v)]))
    assert all(np.array_equal(found[0], other) for other in found[1:])


@both_precisions
@settings(max_examples=10)
@given(problem=mlps() | wide_nets(), batch=batch_sizes(), count=number_of_directions, seed=seeds)
def test_blocks_of_directions(problem: Problem, batch: int, count: int, seed: int, dtype: Any) -> None:
    """The products of a block are those of its columns, to the bit."""
    x, y = normal(seed, (batch, *problem.shape)), labels(seed, (batch,), problem.classes)
    p = rop.Objective(problem.net, rop.CrossEntropy(), x, y, dtype=dtype).at(point(problem.net, seed, dtype))
    block = np.stack([direction(problem.net, seed + i, dtype) for i in range(count)], axis=1)
    columns = np.stack([p.hvp(np.ascontiguousarray(column)) for column in block.T], axis=1)
    assert np.array_equal(p.hvp(block), columns)
    assert np.array_equal(p.hvp(np.asfortranarray(block)), columns)


def wide_layers(inputs: int) -> tuple[Any, tuple[int, ...]]:
    """Small and wide linear layers, one with so many inputs that its panels are of unequal size."""
    rows = -(-WIDE // inputs)
    return rop.Sequential(
        rop.Linear(5, inputs), rop.ReLU(), rop.Linear(inputs, rows), rop.ReLU(), rop.Linear(rows, 7)
    ), (5,)


def images() -> tuple[Any, tuple[int, ...]]:
    """Convolutions with few and many channels, both poolings, and a wide layer whose rows lie in another order."""
    return rop.Sequential(
        rop.Conv2d(1, 7, 3, padding=1),
        rop.ReLU(),
        rop.MaxPool2d(2),
        rop.Conv2d(7, 19, 3, padding=1),
        rop.ReLU(),
        rop.AvgPool2d(2),
        rop.Flatten(),
        rop.Linear(19 * 9, 100),
        rop.ReLU(),
        rop.Linear(100, 7),
    ), (1, 12, 13)


@both_precisions
@pytest.mark.parametrize("made", [wide_layers(PANEL + 1), wide_layers(3 * PANEL - 1), wide_layers(131), images()])
def test_layers_whose_loops_depend_on_the_geometry(made: tuple[Any, tuple[int, ...]], dtype: Any) -> None:
    """Products, weight gradients, packing, transposition and pooling, in batches of one tile and of several."""
    net, shape = made
    for batch in (3, 37):
        check(net, rop.MSE(), normal(0, (batch, *shape)), normal(1, (batch, 7)), dtype)


def test_the_drawn_batches_lie_on_both_sides_of_a_chunk() -> None:
    net = rop.Sequential(rop.Linear(2, 2))
    for batch, chunks in ((CHUNK_TILES * LANES[-1], 1), (CHUNK_TILES * LANES[-1] + 1, 2)):
        space = CpuWorkspace.of(net, (2,), True, rop.MSE(), np.float32, batch, 1 << 30)
        assert -(-space.tiles // space.chunk) == chunks
