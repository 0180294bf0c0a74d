"""The trace of the Hessian, the sum of its eigenvalues, by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

    tr H = tr QᵀHQ + E[gᵀ(I − QQᵀ) H (I − QQᵀ) g]        g: random signs        Q: a basis of H's dominant directions

The first term is exact, and the variance of the second is that of the part of H outside Q.

>>> import numpy as np
>>> found = trace(np.diag(1.0 / np.arange(1, 201) ** 2), products=90)
>>> bool(abs(found.value - np.pi**2 / 6) < 0.02 and found.error < 0.02)
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rop.arguments import check_int
from rop.curvature.common import Block, Seed, generator
from rop.curvature.hessian import Matrix, Operator
from rop.devices.cpu.solver_vectors import without
from rop.errors import RopError

__all__ = ["Trace", "trace"]


@dataclass(frozen=True)
class Trace:
    """An estimate of tr H = Σ λ, its standard error, and the products it took."""

    value: float
    error: float
    hvps: int


def trace(p: Matrix, products: int = 48, seed: Seed = 0) -> Trace:
    """tr H by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

    A third of the products finds a basis Q of H's dominant directions, a third takes their trace exactly, and the rest
    is estimated from random signs g: tr H = tr QᵀHQ + E[gᵀ(I − QQᵀ) H (I − QQᵀ) g]. Q of full size leaves no rest.

    >>> import numpy as np
    >>> round(trace(np.diag([1.0, 2.0, 4.0]), products=9).value, 9)
    7.0
    """
    products = check_int("trace", "products", products, minimum=6)
    H, rng = Operator(p, "trace"), generator("trace", seed)
    third = min(products // 3, H.size)
    sketch = _finite_product(H, _signs(rng, H.size, third))
    Q = H.round(np.linalg.qr(sketch)[0])
    exact = float(np.sum(Q * _finite_product(H, Q)))
    if third == H.size:
        return Trace(exact, 0.0, H.hvps)
    probes = H.round(without(_signs(rng, H.size, products - 2 * third), [Q]))
    samples = np.sum(probes * _finite_product(H, probes), axis=0)
    return Trace(exact + float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(samples.size), H.hvps)


def _signs(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return 2.0 * rng.integers(0, 2, (rows, columns)) - 1.0


def _finite_product(H: Operator, block: Block) -> Block:
    product = H(block)
    if not np.isfinite(product).all():
        raise RopError("trace: the operator gave NaN or Inf")
    return product
