"""Penalties that need several directions at once: the k largest |λ| of the Hessian, and its trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rop.devices.cpu.solver_vectors import combinations, lengths, products
from rop.objective import Point


class Pairs(NamedTuple):
    """Approximate eigenpairs of the Hessian, the largest |λ| first, and the products it took to find them."""

    values: np.ndarray  # (k,)
    vectors: np.ndarray  # (n, k), columns of length one
    residuals: np.ndarray  # ‖Hv − λv‖, (k,)
    hvps: int


def first_block(size: int, columns: int, dtype: np.dtype, seed: int) -> np.ndarray:
    """Random orthonormal columns (n, k).

    >>> block = first_block(5, 2, np.dtype("f8"), seed=0)
    >>> bool(np.allclose(block.T @ block, np.eye(2)))
    True
    """
    random = np.random.default_rng(seed).standard_normal((size, columns))
    return np.ascontiguousarray(np.linalg.qr(random)[0], dtype)


def largest_pairs(p: Point, block: np.ndarray, iterations: int, tol: float | None) -> Pairs:
    """Subspace iteration with Rayleigh–Ritz: the pairs of H with the largest |λ| in the span of the block.

    V is a block of orthonormal columns. With T = VᵀHV = QΘQᵀ the Ritz pairs are (Θ, VQ), their residuals HVQ − VQΘ, and
    the next V is an orthonormal basis of HVQ.

    Args:
        block: V at the start, (n, k). The V that the next search should start with is written into it.
        iterations: most products with the block.
        tol: ends the iteration when the mean residual is at most tol times the mean |λ|; None to use all iterations.
    """
    columns, done = block.shape[1], 0
    while True:
        image = p.hvp(block)  # (n, k)
        done += 1
        if not np.isfinite(image).all():
            nothing = np.full(columns, np.nan)
            return Pairs(nothing, block.copy(), nothing, done * columns)
        small = products(block, image)
        values, rotation = np.linalg.eigh((small + small.T) / 2)
        order = np.argsort(-np.abs(values), kind="stable")
        values, rotation = values[order], rotation[:, order]
        vectors, moved = combinations(block, rotation), combinations(image, rotation)
        residuals = lengths(moved - vectors * values)
        block[:] = np.linalg.qr(np.asarray(moved, np.float64))[0]
        mean, error = float(np.abs(values).mean()), float(residuals.mean())
        if done == iterations or (tol is not None and error <= tol * mean):
            return Pairs(values, np.asarray(vectors), residuals, done * columns)


def mean_magnitude_gradient(p: Point, pairs: Pairs) -> np.ndarray:
    """The gradient of the mean of |λ| over the pairs: (1/k) Σ sign(λ) vᵀ∇Hv, (n,)."""
    total = np.zeros(len(pairs.vectors))
    for value, vector in zip(pairs.values, pairs.vectors.T, strict=True):
        total += np.sign(value) * p.r2(np.ascontiguousarray(vector, p.objective.dtype))
    return (total / len(pairs.values)).astype(p.objective.dtype)


def signs(size: int, columns: int, dtype: np.dtype, seed: list[int]) -> np.ndarray:
    """Columns of random signs (n, m), which depend on the seed only.

    >>> sorted(set(signs(9, 4, np.dtype("f8"), [1, 2]).ravel().tolist()))
    [-1.0, 1.0]
    """
    return (2 * np.random.default_rng(seed).integers(0, 2, (size, columns)) - 1).astype(dtype)


def trace_estimate(p: Point, probes: np.ndarray) -> float:
    """Hutchinson's estimate of tr H from columns of signs z: the mean of zᵀHz."""
    return float(np.einsum("ij,ij->", probes, p.hvp(probes), dtype=np.float64)) / probes.shape[1]


def trace_gradient(p: Point, probes: np.ndarray) -> np.ndarray:
    """The gradient of ``trace_estimate`` with respect to w: the mean of zᵀ∇Hz, (n,)."""
    total = np.zeros(len(probes))
    for z in probes.T:
        total += p.r2(np.ascontiguousarray(z))
    return (total / probes.shape[1]).astype(p.objective.dtype)
