"""The penalty μ·max(0, ρ − K) in steps that are made in Python: the dominant eigenpair, and what it adds to ∇f."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from rop import eigen
from rop.curvature.common import Preconditioner
from rop.kernels.rules import SENSE, shortening, takes_part
from rop.objective import Point
from rop.optim import SpectralRadius
from rop.optim.start import first_direction


class Shortened(Protocol):
    """The settings of a penalty that say how long its gradient may be; see SpectralRadius."""

    @property
    def clip(self) -> float | None: ...

    @property
    def limit(self) -> float | None: ...


def dominant(
    regularizer: SpectralRadius,
    v: np.ndarray,
    p: Point,
    *,
    seed: int,
    number: int,
    mu: float,
    tol: float,
    rate: float,
    preconditioner: Preconditioner | None = None,
) -> tuple[eigen.Eigen, np.ndarray | None]:
    """The dominant eigenpair at a point and μ∇ρ = μ·sign(λ)·vᵀ∇Hv, or μ·vᵀ∇Hv if the penalty is not ``signed``; None
    instead where the step goes without it.

    Args:
        regularizer: the settings of the penalty and of its solver. The caller evaluates the schedules.
        v: the vector from which the search starts, (n,). The start of the next search is written into it.
        seed, number: the seed of the run, and the number of steps before this one.
        mu, tol, rate: weight, tolerance and learning rate of this step.
        preconditioner: of solver "paper_lobpcg".
    """
    found = _solve(regularizer, v, p, [seed, number], tol, preconditioner)
    r, sense = regularizer, SENSE if regularizer.solver == "track" else 0.0
    if not takes_part(found.rho, r.K, found.residuals[0], sense):
        return found, None
    sign = np.sign(found.value) if r.signed else 1.0
    gradient = sign * p.r2(found.vector)
    return found, weighted(r, found.rho, gradient, mu, rate)


def weighted(settings: Shortened, value: float, gradient: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """μ times the gradient of a penalty's value, shortened by its ``clip`` and ``limit``."""
    clip, limit = settings.clip or 0, settings.limit or 0
    return mu * shortening(clip, limit, rate * mu, value, _length(gradient)) * gradient


def _solve(
    r: SpectralRadius,
    v: np.ndarray,
    p: Point,
    seed: list[int],
    tol: float,
    preconditioner: Preconditioner | None,
) -> eigen.Eigen:
    """The dominant eigenpair by the solver of the settings; v becomes the start of the next search."""
    H = _Following(p)
    options: dict[str, Any] = {"tol": tol, "maxiter": r.maxiter, "seed": seed}
    if r.warm_start and v.any():
        options["v0"] = v
    elif r.start_vector == "constant":
        options["v0"] = first_direction(v.size, v.dtype, seed, r.start_vector)
    if r.solver == "track":
        options["maxiter"] = r.products
    if r.solver not in ("lanczos", "lobpcg"):
        options["stop"] = r.stop
    if r.solver == "paper_lobpcg":
        options["preconditioner"] = preconditioner
    found = eigen.spectral_radius(H, "power" if r.compiled else r.solver, **options)
    following = H.following if r.compiled else found.vector
    if np.isfinite(following).all() and following.any():
        v[:] = following
    return found


class StandalonePenalty:
    """The penalty outside of a run, as rop.torch.SpectralRadius uses it: it keeps the eigenvector between steps.

    Attributes:
        v: the vector from which the next search starts, (n,); written in place.
    """

    def __init__(self, regularizer: SpectralRadius, size: int, dtype: DTypeLike, seed: int = 0):
        self.regularizer, self.seed = regularizer, seed
        self.v = first_direction(size, dtype, seed, regularizer.start_vector)

    def fit(self, size: int, dtype: DTypeLike) -> None:
        """Goes on with a module of another precision, or of another number of parameters from a new start."""
        if self.v.size != size:
            self.v = first_direction(size, dtype, self.seed, self.regularizer.start_vector)
        self.v = self.v.astype(dtype, copy=False)

    def at(self, p: Point, number: int, **given: Any) -> tuple[eigen.Eigen, np.ndarray | None]:
        """``dominant`` from the vector that is kept; see there for the other arguments and the result."""
        return dominant(self.regularizer, self.v, p, seed=self.seed, number=number, **given)


class _Following(eigen.Hessian):
    """H(w). ``following`` is the normalised last product: the vector with which power iteration would continue."""

    following: np.ndarray

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        product = super()._matvec(x)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            self.following = product / _length(product)
        return product


def _length(vector: np.ndarray) -> float:
    """‖vector‖ in float64, by plain loops: see rop/devices/cpu/solver_vectors.py on the threads of BLAS."""
    return math.sqrt(np.einsum("i,i->", vector, vector, dtype=np.float64))
