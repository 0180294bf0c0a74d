"""The mean of the largest eigenvalues of the Hessian as a penalty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.arguments import check_choice, check_float, check_int
from rop.errors import ArgumentError
from rop.optim.method import Memory, Problem, Step, check_shortening
from rop.optim.schedules import Schedule, check_schedule


@dataclass(frozen=True)
class TopEigenvalues:
    """The penalty μ·max(0, (|λ_1| + … + |λ_k|)/k − K), λ_1 … λ_k the eigenvalues of largest magnitude of the Hessian of
    the batch's loss.

    Negative eigenvalues count with their magnitude, as in the spectral radius, which is the case k = 1. The gradient is
    (μ/k) Σ sign(λ_i) v_iᵀ∇H v_i. Pairs are found by subspace iteration with Rayleigh–Ritz from the eigenvectors of the
    step before, all k directions in one pass.

    Args:
        mu: its weight, a number or a schedule.
        K: the mean up to which there is no penalty.
        k: the number of eigenvalues.
        solver: "power": until the mean of ‖Hv_i − λ_i v_i‖ is at most tol times the mean of |λ_i|, at most ``maxiter``
            products with the block. "track": ``products`` products with the block; where the mean of the residuals is
            above that of the |λ_i|, the step leaves the penalty out.
        tol: tolerance of "power", a number or a schedule.
        maxiter: most products of "power" with the block in a step.
        products: products of "track" with the block in a step.
        clip, limit: longest gradient of the mean, and the part of it that one step may take away; see SpectralRadius.

    >>> TopEigenvalues(mu=0.01, k=3).solver
    'power'
    """

    mu: Schedule = 0.01
    K: float = 0.0
    k: int = 4
    solver: str = "power"
    tol: Schedule = 1e-3
    maxiter: int = 100
    products: int = 2
    clip: float | None = None
    limit: float | None = 0.5

    def __post_init__(self) -> None:
        owner = "TopEigenvalues"
        check_schedule(owner, "mu", self.mu)
        check_float(owner, "K", self.K)
        check_int(owner, "k", self.k)
        check_choice(owner, "solver", self.solver, ("power", "track"))
        check_schedule(owner, "tol", self.tol)
        check_int(owner, "maxiter", self.maxiter)
        check_int(owner, "products", self.products)
        check_shortening(owner, self.clip, self.limit)

    def start(self, problem: Problem) -> Memory:
        """The first directions, (n, k)."""
        from rop.training.block_penalty import first_block

        if self.k > problem.size:
            raise ArgumentError(
                f"TopEigenvalues: k must be at most the number of parameters, {problem.size}, got {self.k}"
            )
        return {"directions": first_block(problem.size, self.k, problem.dtype, problem.seed)}

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, dict[str, float]]:
        """The mean of |λ_i| and μ times its gradient, shortened; None where the step goes without it."""
        from rop.kernels.rules import SENSE, takes_part
        from rop.training.block_penalty import largest_pairs, mean_magnitude_gradient
        from rop.training.penalty import weighted

        track = self.solver == "track"
        iterations, tol = (self.products, None) if track else (self.maxiter, now.tol)
        pairs = largest_pairs(now.point, memory["directions"], iterations, tol)
        value, residual = float(np.abs(pairs.values).mean()), float(pairs.residuals.mean())
        numbers = {"residual": residual, "hvps": float(pairs.hvps)}
        if not takes_part(value, self.K, residual, SENSE if track else 0.0):
            return value, None, numbers
        gradient = mean_magnitude_gradient(now.point, pairs)
        return value, weighted(self, value, gradient, now.mu, now.rate), numbers
