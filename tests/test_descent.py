"""Compiled training steps do what the same steps written with the public interface do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rop
from rop.descent import Descent
from tests.zoo import normal

SAMPLES, BATCH, RATE = 100, 24, 0.2  # 24 is no multiple of a tile: every step has padding


def network() -> rop.Graph:
    """Small, with curvature of either sign."""
    return rop.Sequential(rop.Linear(6, 8), rop.Tanh(), rop.Linear(8, 3))


def data() -> tuple[np.ndarray, np.ndarray]:
    return normal(0, (SAMPLES, 6)), np.random.default_rng(1).integers(3, size=SAMPLES)


def by_hand(net: rop.Graph, loss: Any, batches: Any, w: np.ndarray, v: np.ndarray, mu: float, iterations: int) -> Any:
    """Algorithm 1 in a few lines of Python; R² is taken at the v of the last product."""
    reports = []
    for x, y in batches:
        p = rop.Objective(net, loss, x, y, dtype=np.float64).at(w)
        step, value, hv = p.grad, 0.0, v
        if mu:
            for i in range(iterations):
                v = v if i == 0 else hv / np.linalg.norm(hv)
                hv = p.hvp(v)
                value = v @ hv
            step = step + mu * np.sign(value) * p.r2(v)
        reports.append((p.loss, abs(value), np.linalg.norm(hv - value * v) if mu else 0.0, iterations if mu else 0))
        w = w - RATE * step
    return w, v, np.array(reports)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("loss", [rop.CrossEntropy(), rop.CrossEntropy(weight=[1.0, 5.0, 0.5]),
                                  rop.CrossEntropy(reduction="sum")], ids=["mean", "weighted", "sum"])
def test_an_epoch_equals_the_same_steps_by_hand(loss: Any, mu: float, dtype: Any) -> None:
    net, (x, y) = network(), data()
    w, order = net.init(seed=3, dtype=np.float64), np.random.default_rng(2).permutation(SAMPLES)
    descent = Descent(net, loss, x, y, batch_size=BATCH, w=w, dtype=dtype, mu=mu, iterations=6)
    batches = [(x[order[i : i + BATCH]], y[order[i : i + BATCH]]) for i in range(0, SAMPLES - BATCH + 1, BATCH)]
    expected_w, expected_v, expected = by_hand(net, loss, batches, w, descent.v.astype(np.float64), mu, 6)
    reports = descent.epoch(order, RATE)
    close: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10} if dtype == np.float64 else {"rtol": 2e-3, "atol": 2e-4}
    np.testing.assert_allclose(descent.w, expected_w, **close)
    np.testing.assert_allclose(reports, expected, **close)
    if mu:
        np.testing.assert_allclose(descent.v, expected_v, **close)


def test_power_iteration_stops_at_the_tolerance() -> None:
    net, (x, y) = network(), data()
    w = net.init(dtype=np.float64)
    settings: dict[str, Any] = {"batch_size": SAMPLES, "w": w, "dtype": np.float64, "mu": 1e-9, "iterations": 500}
    report = Descent(net, rop.CrossEntropy(), x, y, tol=1e-3, **settings).epoch(np.arange(SAMPLES), 0.0)[0]
    assert report[3] < 500 and report[2] <= 1e-3 * report[1]
    exact = Descent(net, rop.CrossEntropy(), x, y, tol=1e-9, **settings).epoch(np.arange(SAMPLES), 0.0)[0]
    assert exact[3] > report[3] and abs(exact[1] - report[1]) < 1e-3 * exact[1]


def test_no_penalty_below_the_target() -> None:
    """With ρ below K the update is plain SGD, bit for bit."""
    net, (x, y) = network(), data()
    w = net.init(dtype=np.float64)
    plain = Descent(net, rop.CrossEntropy(), x, y, batch_size=BATCH, w=w, dtype=np.float64)
    below = Descent(net, rop.CrossEntropy(), x, y, batch_size=BATCH, w=w, dtype=np.float64, mu=1.0, K=1e6)
    for descent in (plain, below):
        descent.epoch(np.arange(SAMPLES), RATE)
    np.testing.assert_array_equal(plain.w, below.w)


def test_too_few_samples_are_refused() -> None:
    net, (x, y) = network(), data()
    with pytest.raises(rop.ArgumentError, match="at least one batch of 101"):
        Descent(net, rop.CrossEntropy(), x, y, batch_size=101, w=net.init())
