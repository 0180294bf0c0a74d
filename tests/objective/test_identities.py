"""What must hold without any oracle: the calculus of jets, and the promise that results do not depend on the way."""

from __future__ import annotations

import hashlib
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rop
from rop.devices.cpu import choice
from tests.helpers.processes import run_python
from tests.helpers.zoo import Setting, direction, point
from tests.helpers.zoo import settings as zoo

ZOO = zoo()
BATCH = 37  # two full tiles of 16 lanes and a piece of a third

every_network = pytest.mark.parametrize("name", ZOO)
both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)

# Sums of a few thousand products in another order: relative to ‖a‖·‖b‖.
ROUNDING = {np.float64: 1e-12, np.float32: 2e-4}


def start(name: str, dtype: Any = np.float64, **options: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Objective, point and two directions for one network of the zoo."""
    net = ZOO[name].net
    objective = ZOO[name].objective(BATCH, dtype, **options)
    return objective, point(net, 0, dtype), direction(net, 0, dtype), direction(net, 1, dtype)


def assert_near(a: Any, b: Any, scale: float, dtype: Any) -> None:
    """Equal up to rounding, relative to the given scale."""
    assert np.linalg.norm(np.float64(a) - np.float64(b)) <= ROUNDING[dtype] * scale, (a, b, scale)


def assert_same(first: Any, second: Any) -> None:
    """Equal bit for bit, and finite."""
    for name, a, b in zip(first._fields, first, second, strict=True):
        assert np.all(np.isfinite(a)), f"{name} is not finite"
        assert np.array_equal(a, b), f"{name} differs"


def length(*vectors: Any) -> float:
    """Product of the vectors' lengths."""
    return float(np.prod([np.linalg.norm(np.float64(v)) for v in vectors]))


# ---------------------------------------------------------------------------------------------------------------
# the calculus of jets
# ---------------------------------------------------------------------------------------------------------------


@both_precisions
@every_network
def test_the_loss_reports_the_derivatives_along_the_line(name: str, dtype: Any) -> None:
    """E⁰ = f, E¹ = ⟨∇f, v⟩, E² = vᵀHv, reported by the loss at the end of the forward pass alone."""
    f, w, v, _ = start(name, dtype)
    p = f.at(w)
    e0, e1, e2 = p.taylor(v)
    assert e0 == p.loss
    assert_near(e1, np.float64(p.grad) @ v, length(p.grad, v), dtype)
    assert_near(e2, np.float64(p.hvp(v)) @ v, length(p.hvp(v), v), dtype)


@both_precisions
@every_network
def test_the_hessian_is_symmetric(name: str, dtype: Any) -> None:
    f, w, u, v = start(name, dtype)
    p = f.at(w)
    hu, hv = np.float64(p.hvp(u)), np.float64(p.hvp(v))
    assert_near(u @ hv, v @ hu, max(length(u, hv), length(v, hu)), dtype)


@both_precisions
@every_network
def test_the_third_derivative_is_symmetric(name: str, dtype: Any) -> None:
    """D³f[u+v, u+v, u] = D³f[u, u, u] + 2 D³f[u, u, v] + D³f[v, v, u], each term being ⟨R²(·), ·⟩."""
    f, w, u, v = start(name, dtype)
    p = f.at(w)
    ru, rv, both = np.float64(p.r2(u)), np.float64(p.r2(v)), np.float64(p.r2(u + v))
    assert_near(both @ u, ru @ u + 2 * ru @ v + rv @ u, length(both) + length(ru) + length(rv), dtype)


@both_precisions
@every_network
def test_hvp_is_linear_and_r2_quadratic(name: str, dtype: Any) -> None:
    f, w, u, v = start(name, dtype)
    p = f.at(w)
    hu, hv, ru, rv = p.hvp(u), p.hvp(v), p.r2(u), p.r2(v)
    assert_near(p.hvp(u + v), hu + hv, length(hu) + length(hv), dtype)
    assert_near(p.r2(u + v) + p.r2(u - v), 2 * ru + 2 * rv, 4 * (length(ru) + length(rv)), dtype)


@both_precisions
@every_network
@pytest.mark.parametrize("alpha", [-1.0, 0.5, 4.0])
def test_scaling_by_a_power_of_two_is_exact(name: str, alpha: float, dtype: Any) -> None:
    """Rᵏ(αv) = αᵏ Rᵏ(v); with a power of two nothing is rounded, so not a bit may differ."""
    f, w, v, _ = start(name, dtype)
    p = f.at(w)
    v[np.abs(v) < 1e-6] = 0  # keep clear of subnormal products
    np.testing.assert_array_equal(p.hvp(dtype(alpha) * v), dtype(alpha) * p.hvp(v))
    np.testing.assert_array_equal(p.r2(dtype(alpha) * v), dtype(alpha**2) * p.r2(v))


@settings(max_examples=10)
@given(name=st.sampled_from(sorted(ZOO)), alpha=st.floats(-30.0, 30.0).filter(lambda a: abs(a) > 1e-2))
def test_scaling_by_any_number(name: str, alpha: float) -> None:
    f, w, v, _ = start(name)
    p = f.at(w)
    assert_near(p.hvp(alpha * v), alpha * p.hvp(v), abs(alpha) * length(p.hvp(v)), np.float64)
    assert_near(p.r2(alpha * v), alpha**2 * p.r2(v), alpha**2 * length(p.r2(v)), np.float64)


@both_precisions
@every_network
def test_a_zero_direction_gives_zeros(name: str, dtype: Any) -> None:
    f, w, v, _ = start(name, dtype)
    p = f.at(w)
    p.r2(v)  # leave something in the workspaces
    assert not p.hvp(0 * v).any() and not p.r2(0 * v).any()
    assert p.taylor(0 * v) == (p.loss, 0.0, 0.0)


@every_network
def test_orders_agree_with_finite_differences_of_the_engine_itself(name: str) -> None:
    """Each order is the derivative along v of the one before it."""
    f, w, v, _ = start(name)
    h = 1e-6
    ahead, behind, here = f.jet(w + h * v, v), f.jet(w - h * v, v), f.jet(w, v)
    slopes = [(a - b) / (2 * h) for a, b in zip(ahead[:3], behind[:3], strict=True)]
    expected = here.grad @ v, here.hvp, here.r2
    for order, (slope, value) in enumerate(zip(slopes, expected, strict=True)):
        error = np.linalg.norm(slope - value)
        assert error <= 1e-5 * np.linalg.norm(value) + 1e-7, f"order {order}: {error:.1e}"


# ---------------------------------------------------------------------------------------------------------------
# results do not depend on the way
# ---------------------------------------------------------------------------------------------------------------


@both_precisions
@every_network
def test_lower_orders_are_untouched_by_higher_passes(name: str, dtype: Any) -> None:
    f, w, v, u = start(name, dtype)
    p = f.at(w)
    loss, grad, hvp = p.loss, p.grad.copy(), p.hvp(v)
    r2 = p.r2(v)
    p.r2(u)
    assert p.loss == loss
    np.testing.assert_array_equal(p.grad, grad)
    np.testing.assert_array_equal(p.hvp(v), hvp)
    np.testing.assert_array_equal(p.r2(v), r2)


@both_precisions
@every_network
def test_jet_equals_the_single_calls(name: str, dtype: Any) -> None:
    f, w, v, _ = start(name, dtype)
    jet = f.jet(w, v)
    p = f.at(w)
    assert_same(jet, (p.loss, p.grad, p.hvp(v), p.r2(v)))
    q = f.at(w)
    np.testing.assert_array_equal(q.r2(v), jet.r2)  # without an hvp before it
    np.testing.assert_array_equal(q.hvp(v), jet.hvp)


@both_precisions
@every_network
@pytest.mark.parametrize("training", [True, False])
def test_a_block_of_directions_equals_its_columns(name: str, dtype: Any, training: bool) -> None:
    f, w, u, v = start(name, dtype, training=training)
    p = f.at(w)
    for columns in (0, 1, 3, 9, 17):  # also more than go through the network together
        block = np.stack([u - k * v for k in range(columns)], axis=1) if columns else np.zeros((u.size, 0), dtype)
        together = p.hvp(block)
        assert together.shape == block.shape
        for k in range(columns):
            np.testing.assert_array_equal(together[:, k], p.hvp(block[:, k]))


@both_precisions
@every_network
def test_nothing_is_read_from_a_workspace_before_it_was_written(name: str, dtype: Any) -> None:
    """All scratch memory is filled with NaN before every evaluation; not a bit of the results changes."""
    f, w, v, u = start(name, dtype)
    expected = f.jet(w, v)
    other = f.jet(w + u, u)
    fresh, *_ = start(name, dtype)
    fresh._workspace.poison()
    assert_same(fresh.jet(w, v), expected)
    fresh._workspace.poison()
    assert_same(fresh.jet(w + u, u), other)
    fresh._workspace.poison()
    smaller = fresh.with_data(*ZOO[name].data(5, seed=1))
    fresh._workspace.poison()
    assert_same(smaller.jet(w, v), ZOO[name].objective(5, dtype, seed=1).jet(w, v))


@both_precisions
@every_network
def test_repeated_evaluation_gives_the_same_bits(name: str, dtype: Any) -> None:
    f, w, v, _ = start(name, dtype)
    first = f.jet(w, v)
    for _ in range(5):
        assert_same(f.jet(w, v), first)
    again, *_ = start(name, dtype)
    assert_same(again.jet(w, v), first)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one processor only")
@both_precisions
@every_network
def test_the_number_of_threads_changes_no_bit(name: str, dtype: Any) -> None:
    f, w, v, _ = start(name, dtype)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
            numba.set_num_threads(threads)
            results.append(f.jet(w, v))
    finally:
        numba.set_num_threads(before)
    for result in results[1:]:
        assert_same(result, results[0])


FINGERPRINT = """
import numpy as np
from tests.objective.test_identities import ZOO, fingerprint
print(fingerprint())
"""


def fingerprint() -> str:
    """A digest of the results for the whole zoo, in both precisions."""
    digest = hashlib.sha256()
    for name in sorted(ZOO):
        for dtype in (np.float32, np.float64):
            f, w, v, _ = start(name, dtype)
            for result in f.jet(w, v):
                digest.update(np.asarray(result).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_process_with_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    output = run_python(FINGERPRINT, NUMBA_NUM_THREADS=str(threads)).stdout
    assert output.split()[-1] == fingerprint()


# ---------------------------------------------------------------------------------------------------------------
# large data
# ---------------------------------------------------------------------------------------------------------------

SLOWLY = ("usps", "usps tanh", "wide")
STREAMED = [name for name in ZOO if name != "residual"]  # batchnorm needs the whole batch at once


def large(name: str, dtype: Any, memory_limit: int = 1 << 32) -> Any:
    """An objective on more samples than go through the network in one piece."""
    batch = 5003 if len(ZOO[name].shape) == 1 else 2203
    return ZOO[name].objective(batch, dtype, memory_limit=memory_limit)


@both_precisions
@pytest.mark.parametrize("planes", [0, 1])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOWLY else ()) for name in STREAMED]
)
def test_streaming_gives_the_same_bits_as_one_batch(
    name: str, planes: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little memory everything, or all but order 0, is computed again piece by piece; not a bit changes."""
    monkeypatch.setattr(choice, "PIXEL_TILE_BYTES", 1 << 18)  # several tiles on pixel lanes as well
    net = ZOO[name].net
    w, v, u = point(net, 0, dtype), direction(net, 0, dtype), direction(net, 1, dtype)
    kept = large(name, dtype)
    space = kept._workspace
    streamed = large(name, dtype, 1 << 16 if planes == 0 else 2 * space.stride * space.tiles)
    assert space.kept == 3 and streamed._workspace.kept == planes, "the test must compare different ways"
    assert_same(streamed.jet(w, v), kept.jet(w, v))
    p, q = kept.at(w), streamed.at(w)
    for direction_ in (v, u, v):  # power iteration: several directions at one point
        np.testing.assert_array_equal(q.hvp(direction_), p.hvp(direction_))
    np.testing.assert_array_equal(q.r2(v), p.r2(v))
    np.testing.assert_array_equal(q.r2(u), p.r2(u))
    np.testing.assert_array_equal(q.hvp(np.stack([u, v], axis=1)), p.hvp(np.stack([u, v], axis=1)))
    assert q.taylor(v) == p.taylor(v)


@both_precisions
@pytest.mark.parametrize("name", STREAMED)
def test_a_sum_over_the_data_is_the_sum_over_its_parts(name: str, dtype: Any) -> None:
    setting = ZOO[name]
    loss = type(setting.loss)(reduction="sum")
    x, y = Setting(setting.net, loss, setting.shape, setting.classes).data(101)
    w, v = point(setting.net, 0, dtype), direction(setting.net, 0, dtype)
    parts = [rop.Objective(setting.net, loss, x[s], y[s], dtype=dtype).jet(w, v) for s in (slice(64), slice(64, 101))]
    whole = rop.Objective(setting.net, loss, x, y, dtype=dtype).jet(w, v)
    for all_rows, first, second in zip(whole, *parts, strict=True):
        assert_near(all_rows, np.add(first, second), length(first) + length(second), dtype)


def test_batchnorm_over_data_that_fits_takes_the_whole_batch() -> None:
    """Statistics over 1003 samples are those of the set, not of its tiles: shuffling changes rounding only."""
    setting = ZOO["residual"]
    x, y = setting.data(1003)
    order = np.random.default_rng(0).permutation(1003)
    w, v = point(setting.net, 0), direction(setting.net, 0)
    first = rop.Objective(setting.net, setting.loss, x, y, dtype=np.float64).jet(w, v)
    second = rop.Objective(setting.net, setting.loss, x[order], y[order], dtype=np.float64).jet(w, v)
    for a, b in zip(first, second, strict=True):
        assert_near(a, b, 10 * length(a), np.float64)
