"""Sample lanes and pixel lanes: both give what the oracle gives, to the same bits however the work is divided."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rop
from rop.devices.cpu import choice
from rop.devices.cpu.choice import choose_layout, layout_costs
from rop.devices.cpu.lifetimes import packed_places
from rop.errors import ArgumentError
from tests.helpers.checker import check
from tests.helpers.processes import run_python
from tests.helpers.strategies import Problem, cnns, dags, map_nets, seeds, wide_map_nets
from tests.helpers.zoo import direction, drawn_state, labels, normal, point

both_layouts = pytest.mark.parametrize("layout", ["samples", "pixels"])
batches = st.integers(2, 6) | st.sampled_from([16, 17, 33])


def objective(problem: Problem, batch: int, seed: int, **options: Any) -> rop.Objective:
    x, y = normal(seed, (batch, *problem.shape)), labels(seed, (batch,), problem.classes)
    settings_: dict[str, Any] = {"dtype": np.float64, "layout": "pixels", **options}
    return rop.Objective(problem.net, rop.CrossEntropy(), x, y, **settings_)


# ------------------------------------------------------------------------------------------------ against the oracle
@both_layouts
@settings(max_examples=25)
@given(problem=map_nets() | cnns(batchnorm=True) | dags(images=True), batch=batches, seed=seeds, training=st.booleans())
def test_drawn_networks(problem: Problem, batch: int, seed: int, training: bool, layout: str) -> None:
    x, y = normal(seed, (batch, *problem.shape)), labels(seed, (batch,), problem.classes)
    state = drawn_state(problem.net, seed)
    options: dict[str, Any] = {"training": training, "state": state, "seed": seed, "layout": layout}
    check(problem.net, rop.CrossEntropy(), x, y, np.float64, **options)


@settings(max_examples=4)
@given(problem=wide_map_nets(), seed=seeds)
def test_networks_of_wide_convolutions(problem: Problem, seed: int) -> None:
    x, y = normal(seed, (4, *problem.shape)), labels(seed, (4,), problem.classes)
    check(problem.net, rop.CrossEntropy(), x, y, np.float64, seed=seed, layout="pixels")


@settings(max_examples=10)
@given(problem=map_nets(), seed=seeds)
def test_both_layouts_agree_in_single_precision(problem: Problem, seed: int) -> None:
    w, v = point(problem.net, seed, np.float32), direction(problem.net, seed, np.float32)
    exact = objective(problem, 5, seed, training=False).jet(w.astype(float), v.astype(float))
    for layout in ("samples", "pixels"):
        found = objective(problem, 5, seed, training=False, dtype=np.float32, layout=layout).jet(w, v)
        assert np.linalg.norm(found.grad - exact.grad) <= 1e-4 * np.linalg.norm(exact.grad) + 1e-6


@pytest.mark.parametrize(
    "loss",
    [
        rop.CrossEntropy(),
        rop.MSE(),
        rop.Huber(delta=0.5),
        rop.BCEWithLogits(),
        rop.BCEWithLogits(pos_weight=np.array([[[2.0]], [[0.5]], [[3]]])),
    ],
    ids=["CrossEntropy", "MSE", "Huber", "BCEWithLogits", "BCEWithLogits, weighted, some unknown"],
)
def test_losses_of_images(loss: Any) -> None:
    """The output is a map: the loss is taken of every pixel."""
    net = rop.Sequential(rop.Conv2d(2, 4, 3, padding=1), rop.Tanh(), rop.Conv2d(4, 3, 1))
    x = normal(0, (3, 2, 5, 4))
    y = labels(0, (3, 5, 4), 3) if isinstance(loss, rop.CrossEntropy) else (normal(1, (3, 3, 5, 4)) > 0).astype(float)
    if getattr(loss, "pos_weight", None) is not None:
        y[normal(2, y.shape) > 0.5] = np.nan
    check(net, loss, x, y, np.float64, layout="pixels")


# --------------------------------------------------------------------------------------------------------- same bits
def bits(f: rop.Objective, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = f.at(w)
    block = p.hvp(np.stack([v, -v, w], axis=1))
    return np.concatenate([[p.loss], p.grad, p.hvp(v), p.r2(v), block.ravel(), *f.jet(w, v)[1:]])


@settings(max_examples=8)
@given(problem=map_nets(), seed=seeds, training=st.booleans())
def test_the_number_of_threads_changes_no_bit_of_pixel_lanes(problem: Problem, seed: int, training: bool) -> None:
    w, v, most = point(problem.net, seed), direction(problem.net, seed), numba.get_num_threads()
    found = []
    try:
        for threads in (1, most):
            numba.set_num_threads(threads)
            found.append(bits(objective(problem, 5, seed, training=training), w, v))
    finally:
        numba.set_num_threads(most)
    assert np.array_equal(found[0], found[1])


@settings(max_examples=6)
@given(problem=map_nets(), seed=seeds)
def test_the_memory_limit_changes_no_bit_of_pixel_lanes(problem: Problem, seed: int) -> None:
    """A batch of three tiles, of which all orders, one or none are kept."""
    w, v = point(problem.net, seed), direction(problem.net, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "PIXEL_TILE_BYTES", 1)
        whole = objective(problem, 41, seed, training=False)
        space: Any = whole._workspace
        limits = (None, 2 * space.stride * space.tiles, 1)
        several = [objective(problem, 41, seed, training=False, memory_limit=limit) for limit in limits]
        kept = [f._workspace.kept for f in several]
        found = [bits(f, w, v) for f in several]
    assert space.tiles == 3 and kept == [3, 1, 0]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


SHARED = """
import hashlib, numpy as np, rop
from tests.devices.cpu.test_layouts import bits
from tests.helpers.zoo import direction, labels, normal, point
x = rop.Input()
h = rop.ReLU()(rop.BatchNorm2d(16)(rop.Conv2d(3, 16, 3, padding=1)(x)))
for i in range(3):
    n = rop.Conv2d(16 + 8 * i, 8, 3, padding=1)(rop.ReLU()(rop.BatchNorm2d(16 + 8 * i)(h)))
    h = rop.Concat()(h, n)
h = rop.ReLU()(rop.Add()(rop.Conv2d(40, 20, 3, stride=2, padding=1)(h), rop.Conv2d(40, 20, 1, stride=2)(h)))
h = rop.Concat()(rop.MaxPool2d(2)(h), rop.AvgPool2d(2)(h), rop.MaxPool2d(2)(rop.Tanh()(h)))
net = rop.Graph(x, rop.Linear(60, 4)(rop.Flatten()(rop.AdaptiveAvgPool2d(1)(h))))
for layout in ("samples", "pixels"):
    f = rop.Objective(net, rop.CrossEntropy(), normal(0, (4, 3, 12, 12)), labels(0, (4,), 4), layout=layout)
    w, v = point(net, 0, np.float32), direction(net, 0, np.float32)
    f._workspace.poison()
    print(hashlib.sha256(bits(f, w, v).tobytes()).hexdigest())
"""


def test_buffers_that_share_memory_give_the_same_bits() -> None:
    """In guard mode every buffer has memory of its own, else those that are never needed at once share it."""
    shared, apart = (run_python(SHARED, ROP_GUARD=guard).stdout for guard in ("0", "1"))
    assert shared == apart and len(shared.split()) == 2


spans = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: (min(pair), max(pair)))


@given(blocks=st.lists(st.tuples(st.integers(1, 9).map(lambda n: 64 * n), spans), min_size=1, max_size=30))
def test_blocks_that_are_needed_at_once_do_not_overlap(blocks: list[tuple[int, tuple[int, int]]]) -> None:
    sizes, lives = [size for size, _ in blocks], [span for _, span in blocks]
    places, total = packed_places(sizes, lives)
    for i, (first, last) in enumerate(lives):
        assert places[i] + sizes[i] <= total
        for j in range(i):
            meet = lives[j][0] <= last and first <= lives[j][1]
            assert not meet or places[i] + sizes[i] <= places[j] or places[j] + sizes[j] <= places[i]


# --------------------------------------------------------------------------------------- what is built on the engine
NET = rop.Sequential(
    rop.Conv2d(2, 16, 3, padding=1), rop.ReLU(), rop.Conv2d(16, 16, 3, stride=2, padding=1), rop.Tanh(), rop.Flatten(),
    rop.Linear(16 * 9, 3),
)  # fmt: skip


def test_kfac_reads_the_same_of_both_layouts() -> None:
    x, y = normal(0, (5, 2, 6, 6)), labels(0, (5,), 3)
    w = point(NET, 0)
    found = [
        rop.kfac.kfac(rop.Objective(NET, rop.CrossEntropy(), x, y, dtype=np.float64, layout=layout).at(w))
        for layout in ("samples", "pixels")
    ]
    for first, second in zip(found[0].blocks, found[1].blocks, strict=True):
        np.testing.assert_allclose(first.A, second.A, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(first.G, second.G, rtol=1e-11, atol=1e-13)


def test_training_and_predictions_are_those_of_the_other_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(0, (40, 2, 6, 6)), labels(0, (40,), 3)
    results = []
    for layout in ("samples", "pixels"):
        monkeypatch.setenv("ROP_LAYOUT", layout)
        fit = rop.train(
            NET, rop.CrossEntropy(), (x, y), epochs=2, batch_size=8, dtype=np.float64, w=point(NET, 0),
            optimizer=rop.SGD(lr=0.1), regularizer=rop.SpectralRadius(mu=0.01, K=0, solver="track"),
        )  # fmt: skip
        results.append((fit.w, NET.predict(fit.w, x)))
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-8, atol=1e-10)


# --------------------------------------------------------------------------------------------------------- the choice
def test_the_layout_follows_the_net_the_batch_and_the_image() -> None:
    deep = rop.Sequential(rop.Conv2d(64, 64, 3, padding=1), rop.ReLU(), rop.Conv2d(64, 64, 3, padding=1))
    narrow = rop.Sequential(rop.Conv2d(1, 8, 3, padding=1), rop.ReLU(), rop.Conv2d(8, 8, 3, padding=1))
    assert [choose_layout(deep, (64, 32, 32), batch) for batch in (1, 4, 32)] == ["pixels"] * 3
    assert [choose_layout(narrow, (1, 16, 16), batch) for batch in (4, 32, 128)] == ["pixels", "samples", "samples"]
    assert choose_layout(rop.Sequential(rop.Linear(3, 4)), (3,), 4) == "samples"
    with_winograd, without = (layout_costs(deep, (64, 32, 32), 32, winograd)[1] for winograd in (True, False))
    assert without > 1.5 * with_winograd
    samples, pixels = layout_costs(narrow, (1, 16, 16), 128)
    assert samples < pixels


def test_a_layout_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"layout.*samples.*pixels.*rows"):
        rop.Objective(NET, rop.MSE(), np.zeros((1, 2, 6, 6)), np.zeros((1, 3)), layout="rows")
