"""Extreme eigenvalues, spectral density and trace of a Hessian that is known by its products only.

    power          v ← Hv / ‖Hv‖                                             one pair, the largest in magnitude
    lanczos        Rayleigh–Ritz in span{B, HB, H²B, …}, B of k columns      k pairs, either end or both
    lobpcg         Rayleigh–Ritz in span{X, T R, P}, step by step            k pairs, either end or both
    paper_lobpcg   v ← v + α̃(j) T r, normalised (the paper's Algorithm 2)     one pair

R = HX − XΛ are the residuals, P the last change of X, T a preconditioner. These arguments are the same for all:

    p         the matrix H: a rop.Point, which stands for its Hessian, a scipy LinearOperator or a symmetric matrix.
    k         the number of pairs.
    which     "LM": largest |λ|, "LA": largest λ, "SA": smallest λ. Results come in that order, the extreme one first.
    tol       a pair has converged when ‖Hv − λv‖ ≤ tol·|λ|, v of length one. (So an eigenvalue 0 needs a residual 0.)
    maxiter   most iterations; one iteration multiplies one vector, or one block of vectors, by H.
    v0        where to start, (n,), or (n, j) for a block; missing columns are random.
    seed      of the random numbers: an integer, a list of integers or a NumPy generator.

They return an ``Eigen``. Products are computed in H's own precision, everything else in float64 where that is cheap.
``spectral_radius`` calls any of them. ``density`` and ``trace`` describe the whole spectrum. ``Hessian`` is what
``Point.hessian()`` returns. The code is in rop/curvature, a file for each method.

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
>>> x, y = np.random.default_rng(0).standard_normal((16, 3)), np.arange(16) % 2
>>> p = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
>>> found = rop.spectral_radius(p, method="lanczos")
>>> bool(found.converged and np.isclose(found.rho, np.abs(np.linalg.eigvalsh(p.hvp(np.eye(net.size)))).max()))
True
"""

from rop.curvature.common import Eigen
from rop.curvature.density import Density, density
from rop.curvature.hessian import Hessian
from rop.curvature.lanczos import lanczos
from rop.curvature.lobpcg import lobpcg
from rop.curvature.paper_lobpcg import forest_step, paper_lobpcg, usps_step
from rop.curvature.power import power
from rop.curvature.radius import spectral_radius
from rop.curvature.trace import Trace, trace

__all__ = [
    "Eigen",
    "power",
    "lanczos",
    "lobpcg",
    "paper_lobpcg",
    "spectral_radius",
    "forest_step",
    "usps_step",
    "Density",
    "density",
    "Trace",
    "trace",
    "Hessian",
]
