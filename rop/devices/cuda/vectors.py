"""Vectors in a GPU's memory: arithmetic, and their conversion to and from the arrays of users.

Sums over a vector are made in a fixed number of parts on the device, which the host adds up exactly: they depend on
the vector alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from rop.devices import on_device
from rop.devices.batch import lane_samples
from rop.devices.cuda.memory import table
from rop.devices.workspace import Block, Vector
from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels.cuda import memory, sums, transfer
from rop.kernels.cuda.compile import WARP

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray


def device_array(count: int, dtype: Any) -> DeviceNDArray:
    """Memory for ``count`` numbers, (count,); CUDA has no empty arrays."""
    return cuda.device_array(max(count, 1), dtype)[:count]


class Vectors:
    """Vectors of one length and precision."""

    def __init__(self, count: int, dtype: Any):
        self.count, self.dtype = count, np.dtype(dtype)
        self._type = self.dtype.type
        self._partial = cuda.device_array((sums.blocks(count), 3), dtype)
        self._sums = cuda.device_array(sums.blocks(count), dtype)

    # ---- arrays of users -----------------------------------------------------------------------------------------
    def accept(self, name: str, value: Any) -> Vector:
        """A vector or block of vectors that is on the device already."""
        array = value if getattr(value, "__cuda_ndarray__", False) else cuda.as_cuda_array(value)
        if array.dtype != self.dtype:
            raise ArgumentTypeError(
                f"{name}: expected a device array of {self.dtype}, the objective's precision, got {array.dtype}"
            )
        if not (array.is_c_contiguous() or array.is_f_contiguous()):
            raise ArgumentError(
                f"{name}: expected a contiguous device array, got one of shape {array.shape} with "
                f"strides {array.strides}"
            )
        return array

    def keep(self, w: Vector) -> Vector:
        """A copy of w on the same side."""
        return self.copy(w) if on_device(w) else w.copy()

    def given(self, results: Sequence[Vector], orders: tuple[int, ...], w: Vector, v: Vector | None) -> list[Vector]:
        """Copies of results: that of order 0 on the same side as w, the others on the same side as v."""
        return [self._given(result, w if k == 0 else v) for k, result in zip(orders, results, strict=True)]

    def _given(self, result: Vector, like: Vector) -> Vector:
        """A copy of a result on the same side as ``like``."""
        if on_device(like):
            return self.copy(result)
        return result.copy_to_host() if result.size else np.empty(0, self.dtype)

    def rows_of(self, columns: Block) -> Any:
        """The columns of a block (n, k) as contiguous vectors."""
        if not on_device(columns):
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(columns.T, self.dtype)
        if columns.is_f_contiguous():
            return [columns[:, i] for i in range(columns.shape[1])]
        n, k = columns.shape  # C order: the kernel that loads data transposes the block
        samples = lane_samples(n, WARP)
        rows = cuda.device_array((k, samples.size), self.dtype)
        memory.load(self._type).bind(y=rows, x=columns, samples=table(samples), feature=table(np.arange(k)))()
        return [rows[i, :n] for i in range(k)]

    def new_block(self, k: int, like: Block) -> tuple[Block, list[Vector]]:
        """A block (n, k) on the same side as ``like``, and a place for each of its columns."""
        if not on_device(like):
            rows = np.empty((k, self.count), self.dtype)
            return rows.T, list(rows)
        block = cuda.device_array((self.count, k), self.dtype, order="F")
        return block, [block[:, i] for i in range(k)]

    def deliver(self, place: Vector, result: Vector) -> None:
        """Copies a result to a place of ``new_block``."""
        if isinstance(place, np.ndarray):
            result.copy_to_host(place)
        else:
            self.scale(place, result, 1.0)

    # ---- arithmetic ----------------------------------------------------------------------------------------------
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

    def multiply(self, vector: Vector, factor: float) -> None:
        """vector *= factor."""
        if vector.size:
            self.scale(vector, vector, factor)

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
