"""Algorithms 1 and 2, ∇ρ and the claims about their convergence, as printed, each with the right form beside it.

H is a symmetric matrix and T a preconditioner, both as arrays: how H·v is computed is the other file's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.linalg import norm

Array = np.ndarray


class Found(NamedTuple):
    """What a solver returns. `finished` is False if it was stopped from outside, after `most` iterations."""

    rho: float
    v: Array
    iterations: int
    finished: bool


# ---- Algorithm 1, lines 5 to 10 --------------------------------------------------------------------------------------


def algorithm_1(H: Array, v: Array, epsilon: float, most: int = 10_000) -> Found:
    """while ‖u − λv‖ > ε: u = Hv, λ = uᵀv, v = u/‖u‖; then ρ = λ, v_k = v. (At first u, λ are such that it starts.)"""
    lam = np.nan
    for iteration in range(1, most + 1):
        u = H @ v
        lam = u @ v
        v = u / norm(u)
        if not norm(u - lam * v) > epsilon:
            return Found(lam, v, iteration, True)
    return Found(lam, v, most, False)


def algorithm_1_corrected(H: Array, v: Array, epsilon: float, most: int = 10_000) -> Found:
    """The residual is that of the v that was multiplied, and ρ = |λ|."""
    for iteration in range(1, most + 1):
        u = H @ v
        lam = u @ v
        if norm(u - lam * v) <= epsilon:
            return Found(abs(lam), v, iteration, True)
        v = u / norm(u)
    return Found(abs(lam), v, most, False)


def power_iteration_rate(first: float, second: float) -> float:
    """Section 3.1: "a rate proportional to the square of the ratio", O(|λ₁/λ₂|²); here per iteration."""
    return abs(first / second) ** 2


def power_iteration_rate_corrected(first: float, second: float) -> tuple[float, float]:
    """What an iteration leaves of the error of λ = uᵀv, and of the error of v: |λ₂/λ₁|² and |λ₂/λ₁|."""
    return abs(second / first) ** 2, abs(second / first)


# ---- Algorithm 2, lines 7 to 14 --------------------------------------------------------------------------------------


def algorithm_2(
    H: Array, T: Array, step: Callable[[int], float], v: Array, epsilon: float, most: int = 10_000
) -> Found:
    """while ‖r‖ > ε: u = Hv, λ = uᵀv, r = u − λv, w = v + α̃ T r, v = w/‖w‖; then ρ = λ, v_k = v."""
    lam = np.nan
    for iteration in range(1, most + 1):
        u = H @ v
        lam = u @ v
        r = u - lam * v
        w = v + step(iteration - 1) * T @ r
        v = w / norm(w)
        if not norm(r) > epsilon:
            return Found(lam, v, iteration, True)
    return Found(lam, v, most, False)


def algorithm_2_corrected(H: Array, T: Array, v: Array, epsilon: float, most: int = 10_000) -> Found:
    """LOBPCG for one vector: of all vectors in span{v, T r, p} the one whose |λ| is largest, p the last change of v."""
    lam, p = np.nan, np.zeros((len(v), 0))
    for iteration in range(1, most + 1):
        lam = v @ H @ v
        r = H @ v - lam * v
        if norm(r) <= epsilon:
            return Found(abs(lam), v, iteration, True)
        basis = np.linalg.qr(np.column_stack([v, T @ r, p]))[0]
        values, vectors = np.linalg.eigh(basis.T @ H @ basis)
        coefficients = vectors[:, np.argmax(np.abs(values))]
        p = basis[:, 1:] @ coefficients[1:, None]
        v = basis @ coefficients
    return Found(abs(lam), v, most, False)


def preconditioner(H: Array) -> Array:
    """Section 3.1: T is "an approximation of H⁻¹"; here H⁻¹ itself, to leave no doubt about the approximation."""
    return np.linalg.inv(H)


def preconditioner_corrected(H: Array, theta: float) -> Array:
    """For the largest eigenvalue: (θI − H)⁻¹ with θ a little above it."""
    return np.linalg.inv(theta * np.eye(len(H)) - H)


# ---- ρ, ∇ρ and the update --------------------------------------------------------------------------------------------


def rho(H: Array, v: Array) -> float:
    """Section 3.2: ρ = v̄ᵀ H v̄ with v̄ of the largest |λ|"""
    return float(v @ H @ v)


def rho_corrected(H: Array, v: Array) -> float:
    """ρ = |v̄ᵀ H v̄|"""
    return float(abs(v @ H @ v))


def eigenvalue_derivative(v: Array, dH: Array) -> float:
    """Lemma 3.1: dλ/dx = v̄ᵀ (dH/dx) v̄ (for ‖v̄‖ = 1)"""
    return float(v @ dH @ v)


def gradient_of_rho(H: Array, v: Array, third: Array) -> Array:
    """∇ρ = v̄ᵀ ∇H v̄, with third = v̄ᵀ ∇H v̄ as R² gives it"""
    return third


def gradient_of_rho_corrected(H: Array, v: Array, third: Array) -> Array:
    """∇ρ = sign(λ) v̄ᵀ ∇H v̄"""
    return np.sign(v @ H @ v) * third


def update(gradient: Array, rho: float, gradient_of_rho: Array, mu: float, K: float) -> Array:
    """Algorithm 1, line 12, and Algorithm 2, line 16: p_k = ∇f_k + μ ∇ρ_k 1(ρ_k > K)"""
    return gradient + mu * gradient_of_rho * (rho > K)


# ---- Lemma 4.1: what the stopping test says about the eigenvector ----------------------------------------------------


def eigenvector_bound(epsilon: float) -> float:
    """Lemma 4.1: ‖v_k − v̄_k‖ ≤ ε_k once the test is met"""
    return epsilon


def eigenvector_bound_corrected(residual: float, gap: float) -> float:
    """sin ∠(v_k, v̄_k) ≤ ‖Hv − λv‖ / gap, where gap is the distance of λ = vᵀHv to the other eigenvalues of H"""
    return residual / gap


# ---- the proofs ------------------------------------------------------------------------------------------------------


def gradient_error_bound(L: float, epsilon: float) -> float:
    """Theorem 4.1: ‖vᵀ∇Hv − v̄ᵀ∇Hv̄‖ ≤ 2Lε if ‖v − v̄‖ ≤ ε and H has the Lipschitz constant L"""
    return 2 * L * epsilon


def phi(x: Array, D: float) -> Array:
    """Lemma 4.4: φ(x) = 0 for x < D, else (x − D)²"""
    return np.where(x < D, 0.0, (x - D) ** 2)


def phi_bound(y: Array, x: Array, D: float) -> Array:
    """Lemma 4.4: φ(y) − φ(x) ≤ (y − x) φ′(x) + (y − x)²"""
    return (y - x) * np.where(x < D, 0.0, 2 * (x - D)) + (y - x) ** 2
