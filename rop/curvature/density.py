"""Spectral density: how the eigenvalues are distributed, by stochastic Lanczos quadrature.

    φ(t) = (1/n) Σ_i δ(t − λ_i)  ≈  mean over random z of  Σ_j s_j² δ(t − θ_j)

θ_j are the eigenvalues and s_j the first components of the eigenvectors of the tridiagonal matrix that Lanczos makes
from a random vector z of length one.

>>> import numpy as np
>>> found = density(np.diag(np.repeat([0.0, 10.0], [90, 10])), probes=50)
>>> bool(abs(found.weights @ found.nodes - 1.0) < 0.1)          # the mean eigenvalue
True
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from rop.arguments import check_float, check_int
from rop.curvature.common import Seed, generator, start
from rop.curvature.hessian import Matrix, Operator
from rop.curvature.lanczos import Krylov
from rop.errors import RopError

__all__ = ["Density", "density"]

TAILS = 6.0  # bandwidths by which the grid of a density reaches beyond its nodes


@dataclass(frozen=True, eq=False)
class Density:
    """The distribution of the eigenvalues: Σ weights·δ(nodes), and the same smoothed on a grid."""

    grid: np.ndarray  # (points,), evenly spaced
    density: np.ndarray  # (points,), integrates to 1
    nodes: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)  # they sum up to 1
    hvps: int


def density(
    p: Matrix, probes: int = 8, steps: int = 64, seed: Seed = 0, points: int = 1024, bandwidth: float | None = None
) -> Density:
    """Spectral density φ(t) = (1/n) Σ δ(t − λ_i) by stochastic Lanczos quadrature.

    For a random z of length one, zᵀδ(t − H)z ≈ Σ_j s_j² δ(t − θ_j): θ_j the eigenvalues and s_j the first components of
    the eigenvectors of the tridiagonal matrix that Lanczos makes from z. The mean over probes estimates φ; the grid
    shows it smoothed with a Gaussian, as the mean over each grid cell, so that it integrates to 1 at any bandwidth.

    Args:
        probes: random vectors.
        steps: Lanczos steps, so products, per probe.
        points: of the grid.
        bandwidth: standard deviation of the Gaussian; None: a hundredth of the spectrum's width.

    >>> import numpy as np
    >>> found = density(np.diag([0.0, 0.0, 0.0, 1.0]), probes=200)
    >>> bool(abs(found.weights[found.nodes > 0.5].sum() - 0.25) < 0.05)
    True
    >>> round(float(found.density.sum() * (found.grid[1] - found.grid[0])), 12)
    1.0
    """
    probes, steps = check_int("density", "probes", probes), check_int("density", "steps", steps)
    points = check_int("density", "points", points, minimum=8)
    if bandwidth is not None:
        bandwidth = check_float("density", "bandwidth", bandwidth, positive=True)
    H, rng = Operator(p, "density"), generator("density", seed)
    found = [_quadrature(H, rng, steps) for _ in range(probes)]
    nodes = np.concatenate([theta for theta, _ in found])
    weights = np.concatenate([weight for _, weight in found]) / probes
    largest = float(np.abs(nodes).max()) or 1.0
    sigma = np.ptp(nodes) / 100 if bandwidth is None else bandwidth
    sigma = max(float(sigma), 1e-9 * largest)  # so that a single eigenvalue has a grid around it, too
    edges = np.linspace(nodes.min() - TAILS * sigma, nodes.max() + TAILS * sigma, points + 1)
    below = sum(weight * ndtr((edges - theta) / sigma) for theta, weight in zip(nodes, weights, strict=True))
    share = np.diff(below)
    return Density((edges[1:] + edges[:-1]) / 2, share / (share.sum() * (edges[1] - edges[0])), nodes, weights, H.hvps)


def _quadrature(H: Operator, rng: np.random.Generator, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of one random vector."""
    space, block = Krylov(H), start(H, rng, "density", 1)
    for _ in range(min(steps, H.dimension)):
        following = space.extend(block)
        if following is None:
            raise RopError("density: the operator gave NaN or Inf")
        if not following.size:
            break
        block = following
    nodes, vectors, _ = space.ritz()
    return nodes, vectors[0] ** 2
