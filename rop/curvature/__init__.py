"""Curvature of an objective: a file for each operator or method, with its mathematics and an example.

    hessian.py        H(w) as an operator: for SciPy, and for the solvers
    power.py          power iteration, one pair
    lanczos.py        block Lanczos, several pairs at either end of the spectrum
    lobpcg.py         LOBPCG with a preconditioner, several pairs at either end
    paper_lobpcg.py   the paper's Algorithm 2
    radius.py         the spectral radius by any of these
    density.py        the distribution of all eigenvalues
    trace.py          their sum
    kfac.py           K-FAC, a positive semidefinite approximation of H that can be inverted
    common.py         shared by all solvers: result, arguments, start, and which pairs are wanted
    single.py         shared by the solvers of one vector: their loop, and the interface to the device

The functions are public as ``rop.eigen`` and ``rop.kfac``.

>>> import rop
>>> rop.curvature.lanczos.lanczos is rop.eigen.lanczos
True
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["density", "hessian", "kfac", "lanczos", "lobpcg", "paper_lobpcg", "power", "radius", "trace"]


def __getattr__(name: str) -> Any:
    """Modules are loaded when they are first asked for: SciPy and the engine take time to import."""
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
