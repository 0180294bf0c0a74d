"""Algorithms 1 and 2 and the claims about them, by numerical experiment."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.linalg import norm

from tests.appendix import algorithms as a

SIZE = 20


def symmetric(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """A matrix with these eigenvalues and random eigenvectors."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (basis * values) @ basis.T


def dominant(H: np.ndarray) -> tuple[float, np.ndarray]:
    """The eigenvalue of largest magnitude, and its vector."""
    values, vectors = np.linalg.eigh(H)
    index = np.argmax(np.abs(values))
    return float(values[index]), vectors[:, index]


def start(size: int = SIZE, seed: int = 1) -> np.ndarray:
    v = np.random.default_rng(seed).standard_normal(size)
    return v / norm(v)


def residual(H: np.ndarray, v: np.ndarray) -> float:
    return float(norm(H @ v - (v @ H @ v) * v))


def angle(v: np.ndarray, w: np.ndarray) -> float:
    """sin of the angle between two lines."""
    return float(norm(v - (v @ w) * w))


POSITIVE = symmetric(np.linspace(-1, 2, SIZE))  # λ₁ = 2, λ₂ = 1.84
NEGATIVE = -POSITIVE
RATES = symmetric(np.array([2.0, 1.2, 0.5, 0.3, -0.2, 0.1]))
CLOSE = symmetric(np.array([1.0, 0.99, *np.linspace(-0.5, 0.5, SIZE - 2)]))

# ---- Algorithm 1: its stopping test ----------------------------------------------------------------------------------


def test_algorithm_1_finds_a_positive_dominant_eigenvalue() -> None:
    """What is right as printed: the iteration, λ = uᵀv, and ρ if λ > 0."""
    found = a.algorithm_1(POSITIVE, start(), 1e-12)
    assert found.finished and math.isclose(found.rho, 2.0, rel_tol=1e-9)


def test_algorithm_1_never_stops_for_a_negative_dominant_eigenvalue() -> None:
    """v changes its sign in every iteration; with the new v, u − λv tends to 2u, and its length to 2|λ|."""
    found = a.algorithm_1(NEGATIVE, start(), 1e-3, most=5_000)
    assert not found.finished
    u = NEGATIVE @ found.v
    assert norm(u - (u @ found.v) * u / norm(u)) == pytest.approx(2 * 2.0, rel=1e-6)
    assert residual(NEGATIVE, found.v) < 1e-9  # and yet it is an eigenvector, to rounding


def test_algorithm_1_corrected_stops_for_either_sign() -> None:
    for H in (POSITIVE, NEGATIVE):
        found = a.algorithm_1_corrected(H, start(), 1e-6)
        assert found.finished and math.isclose(found.rho, 2.0, rel_tol=1e-9) and residual(H, found.v) <= 1e-6


def test_algorithm_1_stops_on_length_minus_lambda_and_not_on_the_residual() -> None:
    """Since v = u/‖u‖, ‖u − λv‖ = |‖u‖ − λ|, which is r²/(‖u‖ + λ), r the residual of the v that was multiplied."""
    v, lam = start(), 0.0
    for _ in range(30):
        u, before = POSITIVE @ v, v
        lam, v = u @ v, u / norm(u)
    test, r = norm(u - lam * v), residual(POSITIVE, before)
    assert test == pytest.approx(abs(norm(u) - lam), rel=1e-9)
    assert test == pytest.approx(r**2 / (norm(u) + lam), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7])
def test_algorithm_1_stops_too_early(epsilon: float) -> None:
    """It stops at a residual of about √(2λε), so ε = 10⁻³ leaves one of some 6 %, not 0.1 %."""
    found = a.algorithm_1(POSITIVE, start(), epsilon)
    assert found.finished
    assert 0.5 < residual(POSITIVE, found.v) / math.sqrt(2 * 2.0 * epsilon) <= 1.0
    assert residual(POSITIVE, found.v) > 20 * epsilon


def test_algorithm_1_does_not_notice_a_tie() -> None:
    """λ and −λ both dominant: Lemma 4.1's "always finishes" fails, the corrected test says so."""
    H = symmetric(np.array([3.0, -3.0, 1.0, 0.5]))
    assert not a.algorithm_1(H, start(4), 1e-6, most=2_000).finished
    assert not a.algorithm_1_corrected(H, start(4), 1e-6, most=2_000).finished


def test_algorithm_1_stays_at_another_eigenvector_it_starts_at() -> None:
    """Exact arithmetic: a start without a part along v̄ never gets one."""
    H = np.diag([3.0, 2.0, 1.0])
    found = a.algorithm_1(H, np.array([0.0, 0.6, 0.8]), 1e-9)
    assert found.finished and math.isclose(found.rho, 2.0, rel_tol=1e-6)


# ---- Algorithm 1: its rate -------------------------------------------------------------------------------------------


def measured_rates(H: np.ndarray) -> tuple[float, float]:
    """What one power iteration leaves of the errors of λ and of v, once only λ₁ and λ₂ matter."""
    value, vector = dominant(H)
    v = start(len(H))
    errors = []
    for _ in range(60):
        u = H @ v
        errors.append((abs(u @ v - value), angle(v, vector)))
        v = u / norm(u)
    late = [index for index, (of_value, _) in enumerate(errors) if of_value > 1e-11][-1]
    first, last = errors[late - 5], errors[late]
    return (last[0] / first[0]) ** 0.2, (last[1] / first[1]) ** 0.2


def test_power_iteration_rate() -> None:
    """λ's error shrinks by |λ₂/λ₁|² and v's by |λ₂/λ₁| in every iteration; |λ₁/λ₂|² would be growth."""
    first, second = 2.0, 1.2
    of_value, of_vector = measured_rates(RATES)
    assert (of_value, of_vector) == pytest.approx(a.power_iteration_rate_corrected(first, second), rel=0.02)
    assert a.power_iteration_rate(first, second) > 1
    assert 1 / a.power_iteration_rate(first, second) == pytest.approx(of_value, rel=0.02)  # upside down


def test_the_square_in_the_rate_is_lambdas_alone() -> None:
    """The residual, which stops the iteration, and v, which ∇ρ needs, have the plain ratio, symmetric or not."""
    _, of_vector = measured_rates(RATES)
    assert of_vector > 1.5 * a.power_iteration_rate_corrected(2.0, 1.2)[0]


# ---- Lemma 4.1 -------------------------------------------------------------------------------------------------------


def test_eigenvector_bound_ignores_the_gap() -> None:
    """A residual of ε allows an angle of ε/gap: with a gap of 10⁻³ the vector is wrong by 0.5 at ε = 5·10⁻⁴."""
    gap, sine = 1e-3, 0.5
    H = np.diag([1.0, 1.0 - gap, 0.0])
    v = np.array([math.sqrt(1 - sine**2), sine, 0.0])
    epsilon = residual(H, v)
    assert epsilon < 5e-4
    assert angle(v, np.array([1.0, 0.0, 0.0])) > 1000 * a.eigenvector_bound(epsilon)


def test_eigenvector_bound_ignores_the_gap_in_algorithm_1_itself() -> None:
    """The same when the algorithm is run as printed, with its own weaker test."""
    found = a.algorithm_1(CLOSE, start(), 1e-6)
    assert found.finished
    assert angle(found.v, dominant(CLOSE)[1]) > 1e4 * a.eigenvector_bound(1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_eigenvector_bound_with_the_gap_holds(seed: int) -> None:
    """sin ∠ ≤ residual/gap (Davis and Kahan), at every iterate of power iteration that is nearest to λ₁."""
    values = np.sort(np.random.default_rng(seed).uniform(-1, 1, SIZE))
    values[-1] = 1.3
    H, v = symmetric(values, seed), start(seed=seed)
    checked = 0
    for _ in range(60):
        lam = v @ H @ v
        gap = np.abs(lam - values[:-1]).min()
        if lam > values[-2]:
            checked += 1
            bound = a.eigenvector_bound_corrected(residual(H, v), gap)
            assert angle(v, dominant(H)[1]) <= bound * (1 + 1e-9) + 1e-14
        v = H @ v / norm(H @ v)
    assert checked > 20


# ---- Algorithm 2 -----------------------------------------------------------------------------------------------------

IDENTITY = np.eye(SIZE)
DEFINITE = symmetric(np.geomspace(0.01, 2, SIZE))  # positive, κ = 200


def test_algorithm_2_stops_on_the_true_residual() -> None:
    """What is right as printed: r = u − λv of the v that was multiplied, and a step along T r."""
    found = a.algorithm_2(POSITIVE, IDENTITY, lambda j: 0.6, start(), 1e-8)
    assert found.finished and math.isclose(found.rho, 2.0, rel_tol=1e-9) and residual(POSITIVE, found.v) <= 1e-8


def test_algorithm_2_finds_the_largest_eigenvalue_and_not_the_largest_magnitude() -> None:
    """v + α̃ T r climbs vᵀHv. With H = −POSITIVE, ρ = 2, it ends at λ = 1."""
    found = a.algorithm_2(NEGATIVE, IDENTITY, lambda j: 0.6, start(), 1e-8)
    assert found.finished and math.isclose(found.rho, 1.0, rel_tol=1e-9)
    right = a.algorithm_2_corrected(NEGATIVE, IDENTITY, start(), 1e-8)
    assert right.finished and math.isclose(right.rho, 2.0, rel_tol=1e-9)


def test_algorithm_2_lacks_the_rayleigh_ritz_step() -> None:
    """The best vector of span{v, T r, p} needs no step size, and far fewer iterations than any fixed one."""

    def with_step(size: float) -> a.Found:
        return a.algorithm_2(POSITIVE, IDENTITY, lambda j: size, start(), 1e-8, most=2_000)

    fixed = [with_step(size) for size in (0.2, 0.4, 0.6, 0.8)]
    best = min(found.iterations for found in fixed if found.finished)
    assert a.algorithm_2_corrected(POSITIVE, IDENTITY, start(), 1e-8).iterations < best / 3


def test_algorithm_2_corrected_is_lobpcg() -> None:
    """Every iteration does at least as well as the printed step with any size: |λ| never falls."""
    lams, v = [], start()
    for most in range(1, 12):
        lams.append(a.algorithm_2_corrected(POSITIVE, IDENTITY, v, 0.0, most=most).rho)
    assert all(after >= before - 1e-14 for before, after in itertools.pairwise(lams))
    u = POSITIVE @ v
    for size in (0.1, 0.5, 1.0, 5.0):
        w = v + size * (u - (u @ v) * v)
        assert abs(w @ POSITIVE @ w) / (w @ w) <= lams[1] + 1e-14


def test_algorithm_2_stands_still_with_the_published_step_sizes() -> None:
    """α̃(j) = exp(−4j − 2) adds up to 0.14: v cannot go further than that, wherever it starts."""
    found = a.algorithm_2(POSITIVE, IDENTITY, lambda j: math.exp(-4 * j - 2), start(), 1e-3, most=1_000)
    assert not found.finished and found.rho < 0.8
    at_ten = a.algorithm_2(POSITIVE, IDENTITY, lambda j: math.exp(-4 * j - 2), start(), 1e-3, most=10)
    assert norm(found.v - at_ten.v) < 1e-15


def test_the_inverse_suits_the_other_end_of_the_spectrum() -> None:
    """H⁻¹, for which κ(TH) = 1, makes LOBPCG slower than no preconditioner for the largest eigenvalue; (θI − H)⁻¹
    does what a preconditioner should."""
    iterations = {
        name: a.algorithm_2_corrected(DEFINITE, T, start(), 1e-8).iterations
        for name, T in {
            "none": IDENTITY,
            "inverse": a.preconditioner(DEFINITE),
            "shifted": a.preconditioner_corrected(DEFINITE, 2.02),
        }.items()
    }
    assert np.linalg.cond(a.preconditioner(DEFINITE) @ DEFINITE) == pytest.approx(1.0)
    assert 2 * iterations["shifted"] <= iterations["none"] < iterations["inverse"] / 2


def test_the_inverse_repels_algorithm_2_from_the_dominant_eigenvector() -> None:
    """With T = H⁻¹ a step multiplies the part along v_i by 1 + α̃(1 − λ₁/λ_i): beyond −1 unless α̃ < 2/(κ − 1)."""
    T, v = a.preconditioner(DEFINITE), dominant(DEFINITE)[1]
    near = v + 1e-6 * start()
    near /= norm(near)
    limit = 2 / (np.linalg.cond(DEFINITE) - 1)
    away = a.algorithm_2(DEFINITE, T, lambda j: 2 * limit, near, 1e-12, most=200)
    assert not away.finished and angle(away.v, v) > 0.5
    stays = a.algorithm_2(DEFINITE, T, lambda j: 0.5 * limit, near, 1e-12, most=200)
    assert angle(stays.v, v) < 1e-6


def test_the_inverse_of_an_indefinite_hessian_is_not_positive_definite() -> None:
    """So an SPD approximation of H⁻¹, as section 3.1 asks for, does not exist for such an H."""
    assert np.linalg.eigvalsh(a.preconditioner(POSITIVE)).min() < 0


# ---- ρ and ∇ρ --------------------------------------------------------------------------------------------------------


def wavy(w: torch.Tensor) -> torch.Tensor:
    """A loss whose dominant curvature at the test's point is negative."""
    m = torch.tensor(np.random.default_rng(7).standard_normal((6, w.numel())))
    return (torch.cos(2 * (m @ w)) + 0.05 * (m @ w) ** 2).sum()


def hessian(w: np.ndarray, sign: float) -> np.ndarray:
    return sign * torch.autograd.functional.hessian(wavy, torch.tensor(w)).numpy()


def third(w: np.ndarray, v: np.ndarray, sign: float) -> np.ndarray:
    """vᵀ∇H v by triple backward."""
    point, direction = torch.tensor(w, requires_grad=True), torch.tensor(v)
    (grad,) = torch.autograd.grad(sign * wavy(point), point, create_graph=True)
    (hvp,) = torch.autograd.grad(grad @ direction, point, create_graph=True)
    return torch.autograd.grad(hvp @ direction, point)[0].numpy()


POINT = 0.1 * np.random.default_rng(8).standard_normal(5)


def slopes_of_rho(sign: float, step: float = 1e-6) -> np.ndarray:
    """∇ρ by central differences of max |λ|, entry by entry."""

    def radius(w: np.ndarray) -> float:
        return float(np.abs(np.linalg.eigvalsh(hessian(w, sign))).max())

    return np.array([(radius(POINT + step * e) - radius(POINT - step * e)) / (2 * step) for e in np.eye(5)])


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["negative", "positive"])
def test_gradient_of_rho(sign: float) -> None:
    """vᵀ∇Hv is ∇λ; that of ρ = |λ| has the sign of λ. For λ < 0 the printed one points the wrong way exactly."""
    H = hessian(POINT, sign)
    lam, v = dominant(H)
    expected, found = slopes_of_rho(sign), third(POINT, v, sign)
    assert np.sign(lam) == -sign
    np.testing.assert_allclose(a.gradient_of_rho_corrected(H, v, found), expected, rtol=1e-5, atol=1e-6)
    assert a.rho_corrected(H, v) == pytest.approx(np.abs(np.linalg.eigvalsh(H)).max())
    if lam > 0:
        np.testing.assert_allclose(a.gradient_of_rho(H, v, found), expected, rtol=1e-5, atol=1e-6)
        assert a.rho(H, v) == pytest.approx(lam)
    else:
        np.testing.assert_allclose(a.gradient_of_rho(H, v, found), -expected, rtol=1e-5, atol=1e-6)
        assert a.rho(H, v) == pytest.approx(-a.rho_corrected(H, v))


def test_the_update_ignores_a_negative_rho() -> None:
    """ρ_k = λ < 0 ≤ K: the indicator is 0, however large |λ| is. With |λ| and the sign, a small step lowers ρ."""
    H = hessian(POINT, 1.0)
    lam, v = dominant(H)
    found, gradient = third(POINT, v, 1.0), np.zeros(5)
    printed = a.update(gradient, a.rho(H, v), a.gradient_of_rho(H, v, found), mu=1.0, K=1.0)
    right = a.update(gradient, a.rho_corrected(H, v), a.gradient_of_rho_corrected(H, v, found), mu=1.0, K=1.0)
    assert lam < -1 and not printed.any()
    step = 1e-3 / norm(right)
    assert np.abs(np.linalg.eigvalsh(hessian(POINT - step * right, 1.0))).max() < abs(lam)
    assert np.abs(np.linalg.eigvalsh(hessian(POINT + step * right, 1.0))).max() > abs(lam)


@pytest.mark.parametrize("index", range(5))
def test_eigenvalue_derivative(index: int) -> None:
    """Lemma 3.1 for every eigenvalue of a symmetric A(x), all simple, with vectors of length one."""
    A, B = symmetric(np.arange(5.0), 1), symmetric(np.linspace(-1, 1, 5), 2)
    vector = np.linalg.eigh(A)[1][:, index]
    ahead, behind = (np.linalg.eigvalsh(A + step * B)[index] for step in (1e-6, -1e-6))
    assert a.eigenvalue_derivative(vector, B) == pytest.approx((ahead - behind) / 2e-6, rel=1e-6)
    assert a.eigenvalue_derivative(2 * vector, B) == pytest.approx(4 * (ahead - behind) / 2e-6, rel=1e-6)
