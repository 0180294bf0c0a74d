"""The covariate shift against its definition, and both ρ against dense Hessians."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import rop
from rop.reproduce import shift
from rop.reproduce.measures import correct, rho_batch, rho_full


def directly(x: np.ndarray, right: np.ndarray, delta: np.ndarray) -> float:
    """Σ weight [right], the weights being ratios of normal densities, multiplied feature by feature."""
    weights = np.prod(stats.norm.pdf(x, delta, 1) / stats.norm.pdf(x, 0, 1), axis=1)
    return float(weights @ right / weights.sum())


@pytest.mark.parametrize("block", [1, 700, 2**23])
def test_shifted_accuracy_is_the_paper_s_formula(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "BLOCK", block)  # one draw at a time, two, all
    rng = np.random.default_rng(0)
    x, right = rng.standard_normal((300, 6)).astype(np.float32), rng.random(300) < 0.7
    delta = shift.shifts(6, 5)
    found = shift.shifted_accuracy(x, right, delta)
    np.testing.assert_allclose(found, [directly(x.astype(float), right, one) for one in delta], rtol=1e-12)


def test_large_shifts_do_not_overflow() -> None:
    x = np.array([[1000.0], [-1000.0]])
    assert shift.shifted_accuracy(x, np.array([True, False]), np.array([[5.0], [-5.0]])).tolist() == [1.0, 0.0]


def test_relative_accuracy_leaves_rare_features_out() -> None:
    rng = np.random.default_rng(1)
    x, right = rng.standard_normal((400, 4)), rng.random(400) < 0.6
    found = shift.relative_accuracy(x, right, draws=40, without=[2])
    relative = [directly(x[:, [0, 1, 3]], right, one) / right.mean() - 1 for one in shift.shifts(3, 40)]
    assert found["shift_mean"] == pytest.approx(np.mean(relative))
    assert found["shift_sd"] == pytest.approx(np.std(relative, ddof=1))
    assert found["shift_half"] == pytest.approx(1.96 * np.std(relative, ddof=1) / 40**0.5)


def test_shifts_have_the_paper_s_spread() -> None:
    found = shift.shifts(53)
    assert found.shape == (1000, 53) and found.std() == pytest.approx(0.05, rel=0.02)


def test_both_spectral_radii_are_those_of_dense_hessians() -> None:
    net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 3))
    rng = np.random.default_rng(2)
    x, y, w = rng.standard_normal((50, 3)), rng.integers(3, size=50), net.init(dtype=np.float64)

    def radius(rows: slice) -> float:
        p = rop.Objective(net, rop.CrossEntropy(), x[rows], y[rows], dtype=np.float64).at(w)
        return float(np.abs(np.linalg.eigvalsh(p.hvp(np.eye(net.size)))).max())

    assert rho_full(net, rop.CrossEntropy(), w, x, y) == pytest.approx(radius(slice(None)), rel=1e-3)
    parts = [slice(start, start + 16) for start in range(0, 50, 16)]  # the last has 2 samples
    mean = np.average([radius(rows) for rows in parts], weights=[16, 16, 16, 2])
    assert rho_batch(net, rop.CrossEntropy(), w, x, y, 16) == pytest.approx(mean, rel=1e-5)
    assert correct(net, w, x, y).mean() == rop.evaluate(net, rop.CrossEntropy(), w, x, y)[1]
