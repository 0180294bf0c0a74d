"""Solvers that multiply one vector at a time: their loop, and its interface to the device that holds the vectors.

    u = H v        λ = uᵀ v        r = ‖u − λ v‖        stop if r is small, else v = step(u, v, λ, j)

``power`` and ``paper_lobpcg`` differ in the step alone. The vectors stay where H is computed: in the host's memory
(rop/devices/cpu/solver_vectors.py) or in a GPU's (rop/devices/cuda/solver_vectors.py), of which only the numbers that
decide come to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from rop.arguments import check_choice
from rop.curvature.common import Eigen, EigenProblem, Start
from rop.devices import on_device
from rop.devices.cpu import solver_vectors as cpu
from rop.errors import ArgumentError
from rop.kernels.rules import STOP_RULES, is_enough

Vector: TypeAlias = Any  # (n,): a NumPy array or an array in a GPU's memory; only its SingleVectors looks into it
Following: TypeAlias = Callable[[Vector, Vector, float, int], Vector | None]  # u, v, λ, j ↦ the next v; None: the end


class SingleVectors(Protocol):
    """Vectors v and their products u = H v on one device. u is valid until the next product."""

    def fetch(self, v0: Start) -> Start:
        """A start vector of the user's, moved to the host's memory if it is not there."""

    def put(self, v: np.ndarray) -> Vector:
        """A vector (n,) of float64 in the host's memory, as this device keeps it."""

    def product(self, v: Vector) -> Vector | None:
        """u = H v; None if it is not finite."""

    def is_zero(self, u: Vector) -> bool:
        """Whether the last product is 0."""

    def quotient(self, u: Vector, v: Vector) -> tuple[float, float]:
        """λ = uᵀv and ‖u − λv‖."""

    def unit(self, u: Vector) -> Vector | None:
        """u scaled to length one, in H's precision; None if it has no length."""

    def equal(self, u: Vector, v: Vector) -> bool:
        """Whether all components are equal."""

    def column(self, v: Vector) -> Any:
        """v for the user, (n, 1)."""


def vectors_for(problem: EigenProblem) -> SingleVectors:
    """Vectors on the device where products are computed; results are on the user's side, as v0 is, or else w."""
    H, v0 = problem.H, problem.v0
    if H.device != "cuda":
        return cpu.SolverVectors(H, H.dtype)
    from rop.devices.cuda import solver_vectors as cuda

    return cuda.SolverVectors(H.on_device, H.size, H.dtype, stay=on_device(H.parameters if v0 is None else v0))


@np.errstate(over="ignore", invalid="ignore")
def iterate(problem: EigenProblem, vectors: SingleVectors, step: Following, stop: str) -> Eigen:
    """Repeats u = H v and v = step(u, v, λ, j) until the residual is small, v stands still, or maxiter is reached.

    A v0 in the null space of H carries no information about H elsewhere: a random vector replaces it.
    """
    H, tol = problem.H, problem.tol
    v = vectors.put(problem.start(1, vectors.fetch(problem.v0))[:, 0])
    given, rule = problem.v0 is not None, STOP_RULES.index(stop)
    previous = last = math.nan
    for iteration in range(1, problem.maxiter + 1):
        u = vectors.product(v)
        if u is None:
            return problem.not_finite(iteration)
        value, residual = vectors.quotient(u, v)
        says_nothing = given and vectors.is_zero(u)
        small = is_enough(rule, tol, value, residual, previous, last, iteration)
        converged = bool(small and not says_nothing)
        if converged or iteration == problem.maxiter:
            break
        following = vectors.put(problem.start(1)[:, 0]) if says_nothing else step(u, v, value, iteration - 1)
        if following is None or vectors.equal(following, v):
            break
        given, previous, last, v = given and not says_nothing, value, residual, following
    return Eigen(np.array([value]), vectors.column(v), np.array([residual]), iteration, H.hvps, converged)


def check_single(problem: EigenProblem, stop: str) -> None:
    """Refuses several pairs and one end of the spectrum, which a solver of one vector cannot find."""
    owner, k, which = problem.owner, problem.k, problem.which
    if k != 1:
        raise ArgumentError(
            f"{owner}: expected k = 1, it finds one eigenvalue, got {k}; use rop.eigen.lanczos or "
            "rop.eigen.lobpcg for several"
        )
    if which != "LM":
        raise ArgumentError(
            f"{owner}: expected which='LM', got {which!r}; use rop.eigen.lanczos or rop.eigen.lobpcg "
            "for one end of the spectrum"
        )
    check_choice(owner, "stop", stop, STOP_RULES)
