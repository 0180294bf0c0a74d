"""The spectral radius ρ(H) = max |λ|, by any of the solvers.

The dominant eigenvalue of a Hessian may be negative: ρ = |λ|, and with its eigenvector v of length one

    ∇ρ(w) = sign(λ) vᵀ∇H(w) v

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
>>> x, y = np.random.default_rng(0).standard_normal((16, 3)), np.arange(16) % 2
>>> f = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64)
>>> w, d = net.init(dtype=np.float64), np.random.default_rng(1).standard_normal(net.size)
>>> rho = lambda w: spectral_radius(f.at(w), "lanczos", tol=1e-10)
>>> p, found = f.at(w), rho(w)
>>> gradient = np.sign(found.value) * p.r2(found.vector)
>>> bool(np.isclose(gradient @ d, (rho(w + 1e-4 * d).rho - rho(w - 1e-4 * d).rho) / 2e-4, rtol=1e-4))
True
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from rop.arguments import check_choice
from rop.curvature.common import Eigen
from rop.curvature.hessian import Matrix
from rop.curvature.lanczos import lanczos
from rop.curvature.lobpcg import lobpcg
from rop.curvature.paper_lobpcg import paper_lobpcg
from rop.curvature.power import power
from rop.errors import ArgumentError, ArgumentTypeError

__all__ = ["spectral_radius"]

SOLVERS: dict[str, Callable[..., Eigen]] = {
    "power": power,
    "lanczos": lanczos,
    "lobpcg": lobpcg,
    "paper_lobpcg": paper_lobpcg,
}


def spectral_radius(p: Matrix, method: str = "power", **options: Any) -> Eigen:
    """ρ = max |λ| and its eigenvector, by "power", "lanczos", "lobpcg" or "paper_lobpcg"; options are the solver's.

    >>> import numpy as np
    >>> round(spectral_radius(np.diag([1.0, -3.0]), method="lanczos").rho, 6)
    3.0
    """
    check_choice("spectral_radius", "method", method, tuple(SOLVERS))
    known = [name for name in signature(SOLVERS[method]).parameters if name != "p"]
    if unknown := [name for name in options if name not in known]:
        raise ArgumentTypeError(f"spectral_radius: the options of {method!r} are {', '.join(known)}, got {unknown[0]}")
    if options.get("which", "LM") != "LM":
        raise ArgumentError(
            f"spectral_radius: expected which='LM', the largest magnitude, got {options['which']!r}; "
            f"call rop.eigen.{method} for the ends of the spectrum"
        )
    return SOLVERS[method](p, **options)
