"""Power iteration, the eigen-solver of the paper's Algorithm 1.

    u = H v        λ = uᵀ v        r = ‖u − λ v‖        v ← u / ‖u‖

Components of v along the other eigenvectors shrink by |λ₂/λ₁| from one iteration to the next, λ₁ and λ₂ being the
eigenvalues of largest magnitude. An iteration costs one product, and two vectors are all the memory it needs;
``lanczos`` needs far fewer products.

>>> import numpy as np
>>> [power(np.diag([4.0, second]), tol=1e-6).hvps for second in (0.4, 2.0, 3.6)]
[7, 21, 111]
"""

from __future__ import annotations

from rop.curvature.common import Eigen, Seed, Start, check_eigenproblem
from rop.curvature.hessian import Matrix
from rop.curvature.single import check_single, iterate, vectors_for

__all__ = ["power"]


def power(
    p: Matrix,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Start = None,
    seed: Seed = 0,
    *,
    stop: str = "relative",
) -> Eigen:
    """Power iteration: u = Hv, λ = uᵀv, r = ‖u − λv‖; if r is small stop, else v = u/‖u‖.

    The pair that is returned belongs together: v is the vector that was multiplied last. If λ and −λ are both extreme,
    v does not settle and ``converged`` is False. A v0 that is an eigenvector already is returned as it is, so a warm
    start costs one product; a v0 with Hv = 0 is replaced by a random one. See ``rop.eigen`` for the other arguments.

    Args:
        stop: "relative": r ≤ tol·|λ|. "paper", as the published experiments stopped: r ≤ tol, or λ within tol·|λ| of
            the iteration before, which may be far from an eigenvalue.

    >>> import numpy as np
    >>> found = power(np.diag([3.0, 1.0, 0.0]), tol=1e-8)
    >>> round(found.value, 12), np.abs(found.vector).round(6)
    (3.0, array([1., 0., 0.]))
    """
    problem = check_eigenproblem("power", p, k, which, tol, maxiter, v0, seed)
    check_single(problem, stop)
    vectors = vectors_for(problem)
    return iterate(problem, vectors, lambda u, v, value, j: vectors.unit(u), stop)
