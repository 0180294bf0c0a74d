"""Memory: workspaces are allocated once, results never change under the user's hands."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

import rop
from rop.devices.cpu import guard
from rop.devices.cpu.threads import CALLS_BEFORE_FIRST_TRIAL, TRIAL_CALLS
from rop.devices.cpu.vectors import POOLED_ARRAYS, Pool
from rop.kernels.cpu.transfer import LONG


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of canaries allocates memory of its own."""
    monkeypatch.setattr(guard, "ACTIVE", False)


def images() -> tuple[rop.Objective, np.ndarray, np.ndarray]:
    """A net with few parameters and large activations."""
    net = rop.Sequential(
        rop.Conv2d(1, 8, 3, padding=1),
        rop.ReLU(),
        rop.Conv2d(8, 8, 3, padding=1),
        rop.ReLU(),
        rop.Flatten(),
        rop.Linear(8 * 16 * 16, 2),
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 1, 16, 16)).astype(np.float32)
    f = rop.Objective(net, rop.CrossEntropy(), x, rng.integers(0, 2, 64))
    return f, net.init(), rng.standard_normal(net.size).astype(np.float32)


def large() -> tuple[rop.Objective, np.ndarray, np.ndarray]:
    """A net whose vectors of parameters are long."""
    net = rop.Sequential(rop.Linear(300, 250), rop.Tanh(), rop.Linear(250, 2))
    assert net.size >= LONG
    rng = np.random.default_rng(0)
    f = rop.Objective(net, rop.CrossEntropy(), rng.standard_normal((32, 300)), rng.integers(0, 2, 32))
    return f, net.init(), rng.standard_normal(net.size).astype(np.float32)


def works(f: rop.Objective, w: np.ndarray, v: np.ndarray) -> dict[str, Callable[[], object]]:
    p = f.at(w)
    return {"at": lambda: f.at(w), "jet": lambda: f.jet(w, v), "hvp": lambda: p.hvp(v), "r2": lambda: p.r2(v)}


@pytest.mark.parametrize("work", ["at", "jet", "hvp", "r2"])
def test_no_allocation_of_activation_size_happens_per_call(work: str) -> None:
    f, w, v = images()
    activations = 64 * 8 * 16 * 16 * 4  # bytes of one layer's outputs at one order
    call = works(f, w, v)[work]
    for _ in range(CALLS_BEFORE_FIRST_TRIAL + TRIAL_CALLS + 1):  # both ways to run are loaded then
        call()
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < activations / 8, peak


@pytest.mark.parametrize("work", ["at", "jet", "hvp", "r2"])
def test_long_results_are_written_into_memory_that_is_there(work: str) -> None:
    f, w, v = large()
    call = works(f, w, v)[work]
    for _ in range(CALLS_BEFORE_FIRST_TRIAL + TRIAL_CALLS + 1):  # both ways to run are loaded then
        call()
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < w.nbytes / 2, peak  # comparing two vectors takes a byte per number


def test_long_results_stay_what_they_are() -> None:
    """Whatever is held, also a slice of it, keeps its values while the engine goes on."""
    f, w, v = large()
    rng = np.random.default_rng(1)
    held = []
    for i in range(4 * POOLED_ARRAYS):
        jet = f.jet(w, v * (1 + i))
        kept = [jet.hvp, jet.r2[::3], f.at(w).hvp(v)][i % 3]
        held.append((kept, kept.copy()))
        if i % 5 == 4:
            del held[rng.integers(len(held))]
    for kept, copy in held:
        np.testing.assert_array_equal(kept, copy)


def test_results_may_be_changed_by_the_user() -> None:
    f, w, v = large()
    first = f.jet(w, v)
    grad = first.grad.copy()
    for result in first[1:]:
        result[:] = np.nan
    np.testing.assert_array_equal(f.jet(w, v).grad, grad)


def test_pool_gives_an_array_twice_only_when_nobody_holds_it() -> None:
    pool = Pool(100, np.float32)
    a, b = pool.take(), pool.take()
    assert not np.shares_memory(a, b) and a.ctypes.data % 64 == 0
    address, part = a.ctypes.data, a[10:20]
    del a
    assert pool.take().ctypes.data != address  # part of it is still held
    del part
    assert address in {array.ctypes.data for array in [pool.take() for _ in range(3)]}


def test_pool_does_not_grow_without_end() -> None:
    pool = Pool(100, np.float32)
    held = [pool.take() for _ in range(3 * POOLED_ARRAYS)]
    assert len({array.ctypes.data for array in held}) == len(held)
    held.clear()
    assert len(pool._free) == POOLED_ARRAYS
