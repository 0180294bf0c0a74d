"""LOBPCG: eigenpairs at the ends of the spectrum by preconditioned conjugate gradients (Knyazev 2001).

    R = H X − X Λ        (Λ, C) = eigenpairs of SᵀHS with S = [X, T R, P]        X ← S C        P ← the change of X

It takes a preconditioner T and needs the memory of 3k vectors only, where Lanczos needs one vector per product. The
paper's Algorithm 2, which the paper calls LOBPCG, is in paper_lobpcg.py.

>>> import numpy as np
>>> H = np.diag(np.geomspace(1.0, 1e4, 200))
>>> plain = lobpcg(H, which="SA", tol=1e-4)
>>> conditioned = lobpcg(H, which="SA", tol=1e-4, preconditioner=np.linalg.inv(H))
>>> conditioned.converged, conditioned.hvps < plain.hvps / 10
(True, True)
"""

from __future__ import annotations

from itertools import count

import numpy as np

from rop.curvature.common import (
    ROUNDING,
    Apply,
    Block,
    Eigen,
    EigenProblem,
    Pairs,
    Preconditioner,
    Seed,
    Start,
    check_eigenproblem,
    check_preconditioner,
    ends,
    ranking,
    true_pairs,
    unsettled,
)
from rop.curvature.hessian import Matrix
from rop.devices.cpu.solver_vectors import combinations, lengths, orthonormal, products, without

__all__ = ["lobpcg"]


@np.errstate(over="ignore", invalid="ignore")
def lobpcg(
    p: Matrix,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Start = None,
    seed: Seed = 0,
    *,
    preconditioner: Preconditioner | None = None,
) -> Eigen:
    """Locally optimal block preconditioned conjugate gradients (Knyazev 2001): Rayleigh–Ritz in span{X, T R, P}.

    X are k Ritz vectors (with "LM" k at each end of the spectrum, until the smaller end is known to be smaller), R
    their residuals, P the last change of X. All three are kept orthonormal, dependent directions are dropped, and
    columns that have converged are not multiplied any more. Residuals are checked by products before the answer is
    given. See ``rop.eigen`` for the other arguments.

    Args:
        preconditioner: T, positive definite: an object with solve(block), a LinearOperator, a matrix or a function of
            a block (n, m). For the largest eigenvalue it should resemble (θI − H)⁻¹ with θ above the spectrum, see
            ``rop.kfac.Kfac.shifted``; an approximation of H⁻¹ helps at the small end. None: the identity.

    >>> import numpy as np
    >>> lobpcg(np.diag(np.arange(-50.0, 101.0)), k=2, tol=1e-6).values.round(6)
    array([100.,  99.])
    """
    problem = check_eigenproblem("lobpcg", p, k, which, tol, maxiter, v0, seed)
    H = problem.H
    T = None if preconditioner is None else check_preconditioner(preconditioner, "lobpcg", problem.H)
    W, HW, carried = _first_block(problem)
    space = Subspace(H.size, carried, which)
    for iteration in count(1):
        if not (np.isfinite(HW).all() and space.improve(W, HW)):
            return problem.not_finite(iteration)
        residuals = lengths(space.residuals())
        open_pairs = unsettled(space.values, residuals, k, which, tol, carried > k)
        last = iteration == maxiter
        if last or not open_pairs.any():
            wanted = ranking(space.values, which)[:k]
            pairs = true_pairs(H, space.X[:, wanted])
            found = problem.result(pairs, iteration, not open_pairs.any())
            if last or found.converged or not np.isfinite(found.residuals).all():
                return found
            space.replace(wanted, pairs)
            open_pairs[wanted] = ~(pairs.residuals <= tol * np.abs(pairs.values))
        W = space.new_directions(T, open_pairs)
        if not W.size:  # the whole space, or T and rounding leave nothing to try
            pairs = true_pairs(H, space.X[:, ranking(space.values, which)[:k]])
            return problem.result(pairs, iteration, space.is_whole)
        W = H.round(W)
        HW = H(W)
    raise AssertionError("count() does not end")


def _first_block(problem: EigenProblem) -> tuple[Block, Block, int]:
    """X, HX, and the number of columns to carry at each end: k, or k + 1 if the user starts at an eigenvector.

    An eigenvector has no residual to follow. The iteration would stay at it even if there are larger eigenvalues; the
    additional column finds them.
    """
    H, v0, k = problem.H, problem.v0, problem.k
    number = 2 if problem.which == "LM" else 1  # of ends of the spectrum
    X = problem.start(min(number * k, H.dimension), v0)
    HX = H(X)
    residuals = lengths(HX - X * np.einsum("ij,ij->j", X, HX))
    if v0 is None or not residuals.min() <= ROUNDING * H.eps * lengths(HX).max():
        return X, HX, k
    more = problem.start(number, against=[X])
    if more.size:
        X, HX = np.hstack([X, more]), np.hstack([HX, H(more)])
    return X, HX, k + 1


class Subspace:
    """X and P of LOBPCG with their products, all columns orthonormal, and the Ritz values of X."""

    def __init__(self, size: int, carried: int, which: str):
        self._carried, self._which = carried, which
        self.X = self.HX = self.P = self.HP = np.zeros((size, 0))
        self.values = np.zeros(0)

    @property
    def is_whole(self) -> bool:
        """Whether X and P span everything."""
        return self.X.shape[1] + self.P.shape[1] >= len(self.X)

    def residuals(self) -> Block:
        """R = HX − XΛ."""
        return self.HX - self.X * self.values

    def replace(self, columns: np.ndarray, pairs: Pairs) -> None:
        """Puts pairs with fresh products in the place of some columns."""
        self.X[:, columns], self.HX[:, columns], self.values[columns] = pairs.vectors, pairs.products, pairs.values

    def new_directions(self, T: Apply | None, columns: np.ndarray) -> Block:
        """T R for some columns, orthogonal to X and P; R itself if T R is in their span."""
        R = self.residuals()[:, columns]
        R = R[:, lengths(R) > 0]
        R = R / lengths(R)
        for directions in [T(R), R] if T is not None else [R]:
            sizes = lengths(directions)
            directions = directions[:, sizes > 0] / sizes[sizes > 0]
            span = [self.X, self.P]
            new = orthonormal(without(directions, span), span, ROUNDING * float(np.finfo(np.float64).eps))
            if new.size:
                return new
        return R[:, :0]

    def improve(self, W: Block, HW: Block) -> bool:
        """Rayleigh–Ritz in span{X, W, P}; False if numbers have become too large for it."""
        S, HS = np.hstack([self.X, W, self.P]), np.hstack([self.HX, HW, self.HP])
        G = products(S, HS)
        if not np.isfinite(G).all():
            return False
        values, C = np.linalg.eigh((G + G.T) / 2)
        carried = ends(len(values), self._carried, self._which)
        self.values, C = values[carried], C[:, carried]
        change = C.copy()
        change[: self.X.shape[1]] = 0  # the contribution of W and P becomes the next P,
        change = orthonormal(without(change, [C]), [C], 1e-12)  # which is made orthogonal to X within the small space
        self.X, self.HX = combinations(S, C), combinations(HS, C)
        self.P, self.HP = combinations(S, change), combinations(HS, change)
        return True
