"""Penalties on several eigenvalues and on the trace, against dense Hessians and differences."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.check.reference import hessian
from rop.devices import obstacle
from rop.optim import revive
from rop.optim.plain import describe
from rop.training.block_penalty import (
    first_block,
    largest_pairs,
    mean_magnitude_gradient,
    signs,
    trace_estimate,
    trace_gradient,
)
from rop.training.penalty import weighted
from tests.helpers.zoo import normal

NET = rop.Sequential(rop.Linear(2, 2), rop.Tanh(), rop.Linear(2, 2))
X, Y = normal(0, (7, 2)), np.random.default_rng(1).integers(2, size=7)
F = rop.Objective(NET, rop.CrossEntropy(), X, Y, dtype=np.float64)
W = 1.5 * normal(2, (NET.size,))
CUDA = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(
        obstacle() is not None, reason=f"{obstacle()} (test_the_simulated_gpu of test_paths.py runs this)"
    ),
)


def dense(w: np.ndarray) -> np.ndarray:
    return hessian(NET, rop.CrossEntropy(), X, Y, w)


def mean_of_largest(w: np.ndarray, k: int) -> float:
    return float(np.sort(np.abs(np.linalg.eigvalsh(dense(w))))[-k:].mean())


def differences(function: Any, w: np.ndarray, step: float = 1e-5) -> np.ndarray:
    moves = step * np.eye(w.size)
    return np.array([(function(w + move) - function(w - move)) / (2 * step) for move in moves])


@pytest.mark.parametrize("k", [1, 3, 5])
def test_largest_pairs_are_those_of_the_dense_hessian(k: int) -> None:
    found = largest_pairs(F.at(W), first_block(NET.size, k, np.dtype("f8"), 0), 3000, 1e-11)
    values, vectors = np.linalg.eigh(dense(W))
    order = np.argsort(-np.abs(values))[:k]
    np.testing.assert_allclose(found.values, values[order], rtol=1e-9)
    assert (values[order] < 0).any() or k < 5  # negative ones are among them
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * vectors[:, order], axis=0)), 1, rtol=1e-7)
    assert found.residuals.mean() <= 1e-11 * np.abs(found.values).mean() and found.hvps % k == 0


@pytest.mark.parametrize("k", [1, 3, 5])
def test_gradient_of_the_mean_magnitude_agrees_with_differences(k: int) -> None:
    pairs = largest_pairs(F.at(W), first_block(NET.size, k, np.dtype("f8"), 0), 3000, 1e-11)
    expected = differences(lambda w: mean_of_largest(w, k), W)
    np.testing.assert_allclose(mean_magnitude_gradient(F.at(W), pairs), expected, rtol=1e-5, atol=1e-8)


def test_one_eigenvalue_is_the_spectral_radius() -> None:
    """The same steps as SpectralRadius with a tight tolerance."""
    options: dict[str, Any] = {"mu": 0.5, "K": 0.01, "tol": 1e-10, "maxiter": 5000}
    fits = [
        rop.train(NET, rop.CrossEntropy(), (X, Y), epochs=3, batch_size=7, regularizer=penalty, w=W, dtype=np.float64)
        for penalty in (rop.TopEigenvalues(k=1, **options), rop.SpectralRadius(stop="relative", **options))
    ]
    np.testing.assert_allclose(fits[0].w, fits[1].w, rtol=1e-7)
    np.testing.assert_allclose(fits[0].column("rho"), fits[1].column("rho"), rtol=1e-7)


def test_hutchinson_over_all_signs_is_the_trace_and_its_gradient() -> None:
    small = rop.Sequential(rop.Linear(1, 2), rop.Tanh(), rop.Linear(2, 1, bias=False))
    x, t, w = normal(3, (5, 1)), normal(4, (5, 1)), normal(5, (small.size,))
    f = rop.Objective(small, rop.MSE(), x, t, dtype=np.float64)
    probes = np.array(list(itertools.product([-1.0, 1.0], repeat=small.size))).T  # (n, 2^n)

    def exact(w: np.ndarray) -> float:
        return float(np.trace(hessian(small, rop.MSE(), x, t, w)))

    assert trace_estimate(f.at(w), probes) == pytest.approx(exact(w), rel=1e-12)
    np.testing.assert_allclose(trace_gradient(f.at(w), probes), differences(exact, w), rtol=1e-6, atol=1e-8)


def test_signs_depend_on_seed_and_step_only() -> None:
    kind = np.dtype("f4")
    again = signs(50, 3, kind, [1, 2, 1])
    assert np.array_equal(again, signs(50, 3, kind, [1, 2, 1])) and again.dtype == kind
    assert not np.array_equal(again, signs(50, 3, kind, [1, 3, 1])) and set(again.ravel()) == {-1, 1}


PENALTIES: dict[str, Any] = {
    "top-k": rop.TopEigenvalues(mu=0.3, k=3, tol=1e-3),
    "top-k, track": rop.TopEigenvalues(mu=0.3, k=3, solver="track", products=3),
    "trace": rop.Trace(mu=0.1, samples=3),
}
penalties = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=list(PENALTIES))


def trained(penalty: Any, epochs: int, **options: Any) -> rop.Fit:
    x, y = normal(6, (24, 2)), np.random.default_rng(7).integers(2, size=24)
    return rop.train(
        NET, rop.CrossEntropy(), (x, y), epochs=epochs, batch_size=6, regularizer=penalty, optimizer=rop.SGD(lr=0.3),
        seed=3, **options,
    )  # fmt: skip


@penalties
def test_training_lowers_what_is_penalised(penalty: Any) -> None:
    plain, fit = (trained(replace(penalty, mu=mu), 40) for mu in (1e-30, 10 * penalty.mu))
    assert fit.history[-1]["rho"] < 0.7 * plain.history[-1]["rho"] and fit.history[-1]["hvps"] > 0


@penalties
def test_runs_resume_to_the_same_bits(penalty: Any, tmp_path: Path) -> None:
    whole, first = trained(penalty, 4), trained(penalty, 2, checkpoint=tmp_path / "run")
    resumed = trained(penalty, 4, checkpoint=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(whole.w, resumed.w)
    assert first.epochs == 2 and [row["rho"] for row in whole.history] == [row["rho"] for row in resumed.history]
    assert revive(describe(penalty)) == penalty


@penalties
@pytest.mark.parametrize("device", [CUDA])
def test_steps_on_a_gpu_are_those_of_the_cpu(penalty: Any, device: str) -> None:
    ours, theirs = (trained(penalty, 1, device=one, dtype=np.float64) for one in ("cpu", device))
    np.testing.assert_allclose(ours.w, theirs.w, rtol=1e-9, atol=1e-12)


def test_nothing_is_added_up_to_K_nor_by_directions_that_are_too_inaccurate() -> None:
    plain = trained(None, 2).w
    for penalty in (rop.TopEigenvalues(K=1e6), rop.Trace(K=1e6)):
        np.testing.assert_allclose(trained(penalty, 2).w, plain, rtol=1e-5)
    fit = trained(rop.TopEigenvalues(mu=1.0, k=6, solver="track", products=1), 1)
    assert np.isfinite(fit.w).all() and fit.history[-1]["residual"] > 0


def test_clip_and_limit_shorten_the_gradient_as_that_of_the_spectral_radius() -> None:
    g = np.array([3.0, 4.0])
    np.testing.assert_allclose(weighted(rop.Trace(clip=1.0, limit=None), 9.0, g, 2.0, 0.1), 2 * g / 5)
    limited = weighted(rop.TopEigenvalues(limit=0.5), 1.0, g, 2.0, 0.1)  # α μ ‖g‖² may be 0.5·1
    np.testing.assert_allclose(limited, 2 * g * 0.5 / (0.2 * 25))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rop.TopEigenvalues(k=0), ("TopEigenvalues", "k", "0")),
        (lambda: rop.TopEigenvalues(solver="lanczos"), ("solver", "lanczos")),
        (lambda: rop.TopEigenvalues(products=0), ("products",)),
        (lambda: rop.TopEigenvalues(limit=-1.0), ("limit", "-1")),
        (lambda: trained(rop.TopEigenvalues(k=99), 1), ("TopEigenvalues", "12", "99")),
        (lambda: rop.Trace(samples=0), ("Trace", "samples")),
        (lambda: rop.Trace(K=-1.0), ("Trace", "K", "-1")),
        (lambda: rop.Trace(clip=0.0), ("Trace", "clip")),
        (lambda: rop.Trace(mu="big"), ("Trace", "mu")),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, words: tuple[str, ...]) -> None:
    with pytest.raises((rop.ArgumentError, rop.ArgumentTypeError)) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value
