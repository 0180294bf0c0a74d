"""Arithmetic with vectors that stay in a GPU's memory.

Sums over a vector are made in a fixed number of parts on the device, which the host adds up exactly: they depend on
the vector alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from rop.kernels.cuda import sums, transfer

Vector = Any  # (n,) on the device


def device_array(count: int, dtype: Any) -> Vector:
    """Room for so many numbers; CUDA has no empty arrays."""
    return cuda.device_array(max(count, 1), dtype)[:count]


class Vectors:
    """Sums and updates of vectors of one length and precision."""

    def __init__(self, count: int, dtype: Any):
        self.dtype = np.dtype(dtype)
        self._type = self.dtype.type
        self._partial = cuda.device_array((sums.blocks(count), 3), dtype)
        self._sums = cuda.device_array(sums.blocks(count), dtype)

    def moments(self, u: Vector, v: Vector) -> tuple[float, float, float]:
        """uᵀu, uᵀv and vᵀv."""
        sums.moments(self._type).bind(u=u, v=v, partial=self._partial)()
        uu, uv, vv = (math.fsum(column) for column in self._partial.copy_to_host().T.tolist())
        return uu, uv, vv

    def distance(self, u: Vector, v: Vector, factor: float = 1.0) -> float:
        """‖u − factor·v‖."""
        sums.distance(self._type).bind(u=u, v=v, factor=factor, partial=self._sums)()
        return math.sqrt(self._total())

    def finite(self, x: Vector) -> bool:
        sums.finite(self._type).bind(x=x, partial=self._sums)()
        return bool(np.isfinite(self._sums.copy_to_host()).all())

    def equal(self, u: Vector, v: Vector) -> bool:
        sums.differences(self._type).bind(u=u, v=v, partial=self._sums)()
        return not self._sums.copy_to_host().any()

    def scale(self, y: Vector, x: Vector, factor: float) -> None:
        """y = factor·x; y may be x."""
        transfer.scale(self._type).bind(y=y, x=x, factor=factor)()

    def add(self, y: Vector, x: Vector, factor: float = 1.0) -> None:
        """y += factor·x."""
        transfer.axpy(self._type).bind(y=y, x=x, factor=factor)()

    def copy(self, x: Vector) -> Vector:
        """The same numbers in memory of their own."""
        result = device_array(x.size, self.dtype)
        if x.size:
            self.scale(result, x, 1.0)
        return result

    def _total(self) -> float:
        return math.fsum(self._sums.copy_to_host().tolist())
