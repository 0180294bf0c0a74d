"""Section 4 and appendix B, the proofs: inequalities that hold, and statements that have a counterexample."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.linalg import norm

from tests.appendix import algorithms as a
from tests.appendix.test_algorithms import dominant, symmetric

# ---- what holds ------------------------------------------------------------------------------------------------------


def test_phi_bound() -> None:
    """Lemma 4.4's inequality for φ, on a grid about D, and its equality for x, y > D."""
    D = 2.0
    x, y = np.meshgrid(np.linspace(-1, 6, 141), np.linspace(-1, 6, 141))
    left, right = a.phi(y, D) - a.phi(x, D), a.phi_bound(y, x, D)
    assert (left <= right + 1e-12).all()
    np.testing.assert_allclose(left[(x > D) & (y > D)], right[(x > D) & (y > D)], atol=1e-12)


def test_gradient_error_bound() -> None:
    """‖vᵀ∇Hv − v̄ᵀ∇Hv̄‖ ≤ 2L‖v − v̄‖ for random symmetric third derivatives.

    It is vᵀAv − v̄ᵀAv̄ = (v − v̄)ᵀA(v + v̄) that gives the 2; the printed sum of two terms gives 2Lε + Lε².
    """
    rng = np.random.default_rng(0)
    for _ in range(50):
        raw = rng.standard_normal((6, 6, 6))
        T = sum(raw.transpose(axes) for axes in itertools.permutations(range(3))) / 6
        # L = max ‖Σ_i T_i c_i‖ over unit c; ‖T as a 36 × 6 matrix‖ is an upper bound of it
        L = float(norm(T.reshape(36, 6), 2))
        v, w = (u / norm(u) for u in rng.standard_normal((2, 6)))
        for near in (w, v + 0.1 * w, v + 1e-3 * w):
            near = near / norm(near)
            difference = np.einsum("i,ijk,j->k", v, T, v) - np.einsum("i,ijk,j->k", near, T, near)
            assert norm(difference) <= a.gradient_error_bound(L, float(norm(v - near))) * (1 + 1e-12)


# ---- ρ is not smooth -------------------------------------------------------------------------------------------------


def radius(t: float, other: float) -> float:
    """ρ at (0, 0, t) of f(x, y, t) = (1 + t) x²/2 + other (1 − t) y²/2, a polynomial: |1 + t| or |other (1 − t)|."""

    def f(w: torch.Tensor) -> torch.Tensor:
        x, y, t = w
        return (1 + t) * x**2 / 2 + other * (1 - t) * y**2 / 2

    H = torch.autograd.functional.hessian(f, torch.tensor([0.0, 0.0, t], dtype=torch.float64))
    return float(torch.linalg.eigvalsh(H).abs().max())


@pytest.mark.parametrize("other", [1.0, -1.0], ids=["a double eigenvalue", "λ and −λ"])
def test_rho_has_a_kink_where_the_dominant_eigenvalue_changes(other: float) -> None:
    """Theorem 4.1's proof has g ∈ C³ because f ∈ C⁵; here f ∈ C^∞, and ρ = 1 + |t| is not even C¹."""
    right, left = radius(1e-6, other) - radius(0.0, other), radius(0.0, other) - radius(-1e-6, other)
    assert [right, left] == pytest.approx([1e-6, -1e-6])


def test_g_has_a_kink_where_rho_is_k() -> None:
    """max{0, ρ − K} has the slopes 0 and ‖∇ρ‖ there, also where ρ is smooth."""
    below, at, above = (max(0.0, radius(t, 0.1) - 1.0) for t in (-1e-6, 0.0, 1e-6))
    assert [above - at, at - below] == pytest.approx([1e-6, 0.0])


# ---- batches: the expectation of ∇ρ is not ∇ρ ------------------------------------------------------------------------


def test_a_batch_has_a_larger_rho_on_average() -> None:
    """ρ is convex in H, so E ρ(H_B) ≥ ρ(E H_B), the more so the smaller the batch.

    The paper's Table 4 shows it: 4.82, 3.31, 2.16, 1.39, 0.93 for batches of 32 to 512 of one and the same net.
    """
    rng = np.random.default_rng(1)
    hessians = np.array([symmetric(rng.standard_normal(4), seed) for seed in range(8)])
    whole = np.abs(np.linalg.eigvalsh(hessians.mean(0))).max()
    means = [
        np.mean(
            [
                np.abs(np.linalg.eigvalsh(hessians[list(batch)].mean(0))).max()
                for batch in itertools.combinations(range(8), size)
            ]
        )
        for size in (1, 2, 4, 8)
    ]
    assert all(larger > smaller for larger, smaller in itertools.pairwise(means))
    assert means[0] > 1.5 * whole and means[-1] == pytest.approx(whole)


class Counterexample:
    """Two samples, two parameters w = (s, t): f⁽¹⁾, f⁽²⁾ = (s − π/4)²/2 ± A sin s + d t²/2, batches of one.

    Hessians are diag(1 ∓ A sin s, d), positive definite for A < 1, with simple eigenvalues near the points that matter.
    Their mean is diag(1, d) with d > 1, so ρ = d everywhere, ∇ρ = 0, and ∇g = (s − π/4, d t) vanishes at s = π/4 only.
    But the second sample's own ρ is 1 + A sin s there, and its gradient pulls s away. All six assumptions hold: f is
    smooth, g ≥ 0, ∇f grows linearly, H is bounded and Lipschitz, wᵀ(∇f + μvᵀ∇Hv) > 0 far out, ε_k = 0.
    """

    A, d, mu, K, centre = 0.9, 1.2, 0.5, 0.0, math.pi / 4

    def gradient(self, sample: int, w: np.ndarray) -> np.ndarray:
        sign = 1 if sample == 0 else -1
        return np.array([w[0] - self.centre + sign * self.A * math.cos(w[0]), self.d * w[1]])

    def hessian(self, sample: int, w: np.ndarray) -> np.ndarray:
        sign = 1 if sample == 0 else -1
        return np.diag([1 - sign * self.A * math.sin(w[0]), self.d])

    def third(self, sample: int, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """vᵀ∇Hv."""
        sign = 1 if sample == 0 else -1
        return np.array([-sign * self.A * math.cos(w[0]) * v[0] ** 2, 0.0])

    def update(self, sample: int, w: np.ndarray) -> np.ndarray:
        """p_k with the exact eigenvector."""
        H = self.hessian(sample, w)
        _, v = dominant(H)
        return a.update(
            self.gradient(sample, w), a.rho(H, v), a.gradient_of_rho(H, v, self.third(sample, w, v)), self.mu, self.K
        )

    def run(self, steps: int, seed: int) -> np.ndarray:
        """w after so many steps of Algorithm 1, with Σ α = ∞ and Σ α² < ∞."""
        w = np.array([1.0, 0.5])
        for k, sample in enumerate(np.random.default_rng(seed).integers(2, size=steps), start=1):
            w = w - k**-0.8 * self.update(sample, w)
        return w

    def gradient_of_g(self, w: np.ndarray) -> np.ndarray:
        """Of the whole sample's mean."""
        return np.array([w[0] - self.centre, self.d * w[1]])


def test_the_expected_update_is_not_the_gradient_of_g() -> None:
    """‖E_B[p_k] − ∇g_k‖ ≤ C ε_k, on which Theorem 4.1 rests, fails with ε = 0 and exact eigenvectors."""
    problem, w = Counterexample(), np.array([0.7, 0.1])
    expected = (problem.update(0, w) + problem.update(1, w)) / 2
    assert norm(expected - problem.gradient_of_g(w)) > 0.1


def test_sgd_need_not_converge_to_a_critical_point_of_g() -> None:
    """Algorithm 1 on the counterexample, with step sizes as assumed: w settles where E_B[p] = 0, ‖∇g‖ = 0.19."""
    problem = Counterexample()
    w = problem.run(steps=20_000, seed=2)
    assert norm(problem.gradient_of_g(w)) == pytest.approx(0.19, abs=0.02)
    expected = (problem.update(0, w) + problem.update(1, w)) / 2
    assert norm(expected) < 0.02


def test_the_counterexample_is_what_it_says() -> None:
    """Its derivatives by differences, its eigenvalues positive and apart where SGD settles, A6 on a circle about 0."""
    problem, w, step = Counterexample(), np.array([0.6, 0.1]), 1e-6
    for sample in (0, 1):
        for entry, e in enumerate(np.eye(2)):
            slope = (problem.gradient(sample, w + step * e) - problem.gradient(sample, w - step * e)) / (2 * step)
            np.testing.assert_allclose(slope, problem.hessian(sample, w)[entry], atol=1e-8)
            bend = (problem.hessian(sample, w + step * e) - problem.hessian(sample, w - step * e)) / (2 * step)
            v = np.array([0.6, 0.8])
            assert v @ bend @ v == pytest.approx(problem.third(sample, w, v)[entry], abs=1e-8)
        first, second = np.linalg.eigvalsh(problem.hessian(sample, w))
        assert 0 < first < second - 0.1
    for angle, sample, turn in itertools.product(np.linspace(0, 6.2, 63), (0, 1), np.linspace(0, 3.1, 32)):  # A6
        far, v = 4 * np.array([math.cos(angle), math.sin(angle)]), np.array([math.cos(turn), math.sin(turn)])
        assert far @ (problem.gradient(sample, far) + problem.mu * problem.third(sample, far, v)) > 0
    mean = (problem.hessian(0, w) + problem.hessian(1, w)) / 2
    np.testing.assert_allclose(mean, np.diag([1.0, problem.d]), atol=1e-15)


# ---- assumptions -----------------------------------------------------------------------------------------------------


def test_only_weight_decay_makes_gradients_point_to_the_origin() -> None:
    """A6's remark, "adding a small linear term": to the gradient, that is. A linear term of the loss does not help.

    The least wᵀ∇f on a circle of radius 100, f(w) = log(1 + exp(−aᵀw)) plus a term.
    """
    slope, c, decay = np.array([1.0, 0.5]), np.array([-0.1, 0.2]), 0.1
    angles = np.linspace(0, 2 * math.pi, 721)
    w = 100 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    gradient = -slope / (1 + np.exp(np.clip(w @ slope, -500, 500)))[:, None]
    least = {
        name: np.einsum("ij,ij->i", w, gradient + term).min()
        for name, term in {"nothing": 0.0, "linear in f": c, "linear in ∇f": decay * w}.items()
    }
    assert least["nothing"] <= 0 and least["linear in f"] < -1 and least["linear in ∇f"] > 100
