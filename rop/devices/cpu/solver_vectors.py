"""Arithmetic with vectors and blocks of vectors in the host's memory, in NumPy; its counterpart is in ../cuda.

BLAS divides even a dot product among its threads. These then spin while they wait for more work, and take the cores
from the engine's threads: on two cores a Hessian-vector product of 2 ms took 8 to 16 ms after one dot product. So small
products are computed by ``einsum``, which is a plain loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Vector = np.ndarray  # (n,)
Block = np.ndarray  # (n, k)

FEW = 1 << 22  # below this number of multiplications it does not pay to wake the threads of BLAS


def dot(x: Vector, y: Vector) -> float:
    """xᵀ y."""
    return float(np.einsum("i,i->", x, y))


def length(x: Vector) -> float:
    """‖x‖, also where the squares overflow or underflow.

    >>> round(length(np.array([3e200, 4e200])) / 5e200, 12)
    1.0
    """
    result = math.sqrt(dot(x, x))
    if 1e-140 < result < 1e140:
        return result
    largest = float(np.abs(x).max(initial=0.0))
    return largest * math.sqrt(dot(x / largest, x / largest)) if 0 < largest < math.inf else largest


def lengths(block: Block) -> np.ndarray:
    """‖·‖ of every column, (k,)."""
    return np.array([length(column) for column in block.T])


def products(a: Block, b: Block) -> np.ndarray:
    """aᵀ b of two blocks (n, k) and (n, m), which is (k, m)."""
    if a.size * b.shape[1] > FEW:
        return a.T @ b
    return np.einsum("ji,ki->jk", np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))


def combinations(block: Block, coefficients: np.ndarray) -> Block:
    """block · coefficients: (n, k) times (k, m)."""
    if block.size * coefficients.shape[1] > FEW:
        return block @ coefficients
    return np.einsum("jk,ji->ki", coefficients, np.ascontiguousarray(block.T)).T


def without(block: np.ndarray, against: Sequence[Block]) -> np.ndarray:
    """A vector or block minus its components along orthonormal columns, which are given in several pieces.

    Each piece is projected out in its own precision.
    """
    columns = block.reshape(len(block), -1)
    for part in against:
        columns = columns - combinations(part, products(part, columns.astype(part.dtype, copy=False)))
    return columns.reshape(block.shape)


def orthonormal(block: Block, against: Sequence[Block], least: float) -> Block:
    """Orthonormal directions in which the columns of a block leave the span of ``against``.

    The columns must be free of components along ``against`` already; those not longer than ``least`` are dropped. The
    projection is repeated once the columns have length one: twice is enough for orthogonality to rounding.

    >>> orthonormal(np.array([[2.0, 1.0], [0.0, 3.0]]), [], 0.0).round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """
    new: list[np.ndarray] = []
    for column in block.T:
        so_far = [np.stack(new, axis=1)] if new else []
        column = without(column, so_far)
        size = length(column)
        if not least < size < math.inf:
            continue
        column = without(column / size, [*against, *so_far])
        new.append(column / length(column))
    return np.stack(new, axis=1) if new else np.zeros((len(block), 0))


class SolverVectors:
    """The vectors of a solver that multiplies one vector at a time: see ``rop.curvature.single.SingleVectors``.

    Vectors are float64 that were rounded to the operator's precision.

    Args:
        multiply: v ↦ H v.
        dtype: the operator's precision.
    """

    def __init__(self, multiply: Callable[[Vector], Vector], dtype: np.dtype):
        self._multiply, self._dtype = multiply, dtype

    def fetch(self, v0: Any) -> Any:
        return v0

    def put(self, v: Vector) -> Vector:
        return v

    def product(self, v: Vector) -> Vector | None:
        u = self._multiply(v)
        return u if np.isfinite(u).all() else None

    def is_zero(self, u: Vector) -> bool:
        return not u.any()

    def quotient(self, u: Vector, v: Vector) -> tuple[float, float]:
        value = dot(u, v)
        return value, length(u - value * v)

    def unit(self, u: Vector) -> Vector | None:
        size = length(u)
        return (u / size).astype(self._dtype).astype(np.float64) if 0 < size < math.inf else None

    def equal(self, u: Vector, v: Vector) -> bool:
        return np.array_equal(u, v)

    def column(self, v: Vector) -> Block:
        return v[:, None].astype(self._dtype)
