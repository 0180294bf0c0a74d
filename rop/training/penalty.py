"""The penalty μ·max(0, ρ − K) in steps that are made in Python: the dominant eigenpair, and what it adds to ∇f."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rop import eigen
from rop.kernels.cpu.training import shortening
from rop.objective import Point
from rop.optim import SpectralRadius
from rop.training.compiled import SENSE


class Penalty:
    """Carries the eigenvector from step to step; rop/kernels/cpu/training.py does the same in compiled code.

    Args:
        regularizer: what ρ may be, and how its eigenvector is found. Its schedules are the caller's business.
        size, dtype: of the parameters.
        seed: of the first direction, and of random starts.

    Attributes:
        v: where the next solve starts, (n,); written in place.
    """

    def __init__(self, regularizer: SpectralRadius, size: int, dtype: Any, seed: int = 0):
        self.regularizer, self.seed = regularizer, seed
        random = np.random.default_rng(seed).standard_normal(size)
        self.v = (random / np.linalg.norm(random)).astype(dtype)

    def at(
        self,
        p: Point,
        number: int,
        *,
        mu: float,
        tol: float,
        rate: float,
        preconditioner: Any = None,
        free: np.ndarray | None = None,
    ) -> tuple[eigen.Eigen, np.ndarray | None]:
        """The dominant eigenpair at a point and μ∇ρ = μ·sign(λ)·vᵀ∇Hv; None instead where the step goes without it.

        ``number`` counts the steps before this one, ``rate`` is the learning rate that the step will use, and ``free``
        (n,) is 1 for parameters that may move, 0 for others: H is then that of f as a function of the former.
        """
        moving: Any = 1 if free is None else free
        found = self._solve(p, number, tol, preconditioner, moving)
        r = self.regularizer
        sensible = r.solver != "track" or found.residuals[0] <= SENSE * found.rho
        if not (r.K < found.rho < np.inf and sensible):
            return found, None
        gradient = np.sign(found.value) * p.r2(found.vector * moving) * moving
        return found, mu * shortening(r.clip or 0, r.limit or 0, rate * mu, found.rho, _length(gradient)) * gradient

    def _solve(self, p: Point, number: int, tol: float, preconditioner: Any, free: Any) -> eigen.Eigen:
        r, H = self.regularizer, _Following(p, free)
        options: dict[str, Any] = {"tol": tol, "maxiter": r.maxiter, "seed": [self.seed, number]}
        if r.warm_start and (self.v * free).any():
            options["v0"] = self.v * free
        if r.solver == "track":
            options["maxiter"] = r.products
        if r.solver not in ("lanczos", "lobpcg"):
            options["stop"] = r.stop
        if r.solver == "paper_lobpcg":
            options["preconditioner"] = preconditioner
        found = eigen.spectral_radius(H, "power" if r.compiled else r.solver, **options)
        following = H.following if r.compiled else found.vector
        if np.isfinite(following).all() and following.any():
            self.v[:] = following
        return found


class _Following(eigen.Hessian):
    """H(w) between parameters that may move, with the direction to which power iteration would go on from the last
    product."""

    following: np.ndarray

    def __init__(self, p: Point, free: Any):
        super().__init__(p)
        self._free = free

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return (super()._matmat((x.T * self._free).T).T * self._free).T

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        product = super()._matvec(x.reshape(-1) * self._free) * self._free
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            self.following = product / _length(product)
        return product


def _length(vector: np.ndarray) -> float:
    """‖vector‖ in float64, by plain loops: see rop/devices/cpu/solver_vectors.py on the threads of BLAS."""
    return math.sqrt(np.einsum("i,i->", vector, vector, dtype=np.float64))
