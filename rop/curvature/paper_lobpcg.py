"""The paper's Algorithm 2, to repeat its experiments: a preconditioned step of a prescribed length.

    u = H v        λ = uᵀ v        r = u − λ v        v ← w / ‖w‖  with  w = v + α̃(j) T r

T is K-FAC's damped inverse (K + λI)⁻¹. Unlike ``lobpcg`` it has no Rayleigh–Ritz step, so how far v moves is decided by
α̃ alone.

>>> [round(step(1), 4) for step in (forest_step, usps_step)]
[0.0025, 0.0183]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rop.arguments import check_function
from rop.curvature.common import Eigen, Preconditioner, Seed, Start, check_eigenproblem, check_preconditioner
from rop.curvature.hessian import Matrix
from rop.curvature.single import check_single, iterate
from rop.devices.cpu.solver_vectors import SolverVectors
from rop.errors import ArgumentError

__all__ = ["forest_step", "paper_lobpcg", "usps_step"]


def forest_step(j: int) -> float:
    """α̃(j) = exp(−4j − 2), the paper's step sizes for the forest network; j = 0 is a solve's first iteration.

    >>> round(forest_step(0), 4), round(forest_step(1), 4)
    (0.1353, 0.0025)
    """
    return math.exp(-4 * j - 2)


def usps_step(j: int) -> float:
    """α̃(j) = exp(−4j), the paper's step sizes for the USPS network; j = 0 is a solve's first iteration.

    >>> round(usps_step(0), 4), round(usps_step(1), 4)
    (1.0, 0.0183)
    """
    return math.exp(-4 * j)


def paper_lobpcg(
    p: Matrix,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Start = None,
    seed: Seed = 0,
    *,
    preconditioner: Preconditioner | None = None,
    alpha: Callable[[int], float] = forest_step,
    stop: str = "relative",
) -> Eigen:
    """The paper's Algorithm 2: u = Hv, λ = uᵀv, r = u − λv; if ‖r‖ is small stop, else v = w/‖w‖ with w = v + α̃(j) T r.

    It has no Rayleigh–Ritz step, and with the paper's step sizes, which shrink by e⁻⁴ from one iteration to the next,
    v soon stands still wherever it is: expect ``converged`` False unless v0 is good or stop="paper". A v that does not
    move any more ends the solve. Use ``lobpcg`` or ``lanczos`` to find an eigenvalue, this to repeat the paper.

    Args:
        preconditioner: T, as for ``lobpcg``; None makes rop.kfac.kfac(p), whose ``solve`` is the paper's T.
        alpha: α̃, a function of the iteration j = 0, 1, … within this solve: forest_step, usps_step or any other.
        stop: as for ``power``.

    >>> import numpy as np
    >>> H = np.diag([3.0, 1.0, 0.5])
    >>> found = paper_lobpcg(H, preconditioner=lambda r: r, alpha=lambda j: 0.3)
    >>> found.converged, round(found.value, 3)
    (True, 3.0)
    """
    problem = check_eigenproblem("paper_lobpcg", p, k, which, tol, maxiter, v0, seed)
    check_single(problem, stop)
    check_function("paper_lobpcg", "alpha", alpha, "the iteration (for one size use lambda j: size)", 1)
    T = check_preconditioner(_kfac_of(p) if preconditioner is None else preconditioner, "paper_lobpcg", problem.H)
    vectors = SolverVectors(problem.H, problem.H.dtype)  # in the host's memory, as T's blocks are

    def step(u: np.ndarray, v: np.ndarray, value: float, j: int) -> np.ndarray | None:
        return vectors.unit(v + float(alpha(j)) * T((u - value * v)[:, None])[:, 0])

    return iterate(problem, vectors, step, stop)


def _kfac_of(p: Matrix) -> Preconditioner:
    from rop.curvature.kfac import kfac  # these load the engine
    from rop.objective import Point

    if not isinstance(p, Point):
        raise ArgumentError(
            "paper_lobpcg: expected a preconditioner for an operator or a matrix, got none; K-FAC is "
            "made for a rop.Point only. Give preconditioner=lambda r: r for none"
        )
    return kfac(p)
