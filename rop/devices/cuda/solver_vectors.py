"""The vectors of a solver in a GPU's memory; ../cpu/solver_vectors.py is its counterpart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from rop.devices import on_device
from rop.devices.cuda.vectors import Vectors, device_array
from rop.devices.workspace import Block, Vector


class SolverVectors:
    """The vectors of a solver that multiplies one vector at a time: see ``rop.curvature.single.SingleVectors``.

    Two buffers hold v and the v that follows it, so that iterations allocate nothing. Only the sums that the solver
    decides by are copied to the host.

    Args:
        multiply: v ↦ H v on the device; the product is valid until the next one.
        size, dtype: of the vectors.
        stay: whether the user gets results in the memory of the device.
    """

    def __init__(self, multiply: Callable[[Vector], Vector], size: int, dtype: np.dtype, stay: bool):
        self._multiply, self._size, self._stay = multiply, size, stay
        self._vectors = Vectors(size, dtype)
        self._buffers = [device_array(size, dtype) for _ in range(2)]  # v, and the one before or after it

    def fetch(self, v0: Any) -> Any:
        host = v0.copy_to_host() if hasattr(v0, "copy_to_host") else v0
        return cuda.as_cuda_array(host).copy_to_host() if on_device(host) else host

    def put(self, v: np.ndarray) -> Vector:
        return self._next(lambda buffer: buffer.copy_to_device(v.astype(self._vectors.dtype)))

    def _next(self, fill: Callable[[Vector], None]) -> Vector:
        """Fills the buffer that does not hold v."""
        self._buffers.reverse()
        fill(self._buffers[0])
        return self._buffers[0]

    def product(self, v: Vector) -> Vector | None:
        u = self._multiply(v)
        self._uu, self._uv, _ = self._vectors.moments(u, v)
        return u if math.isfinite(self._uu) else None

    def is_zero(self, u: Vector) -> bool:
        return self._uu == 0

    def quotient(self, u: Vector, v: Vector) -> tuple[float, float]:
        return self._uv, self._vectors.distance(u, v, self._uv)

    def unit(self, u: Vector) -> Vector | None:
        length = math.sqrt(self._uu)
        return self._next(lambda buffer: self._vectors.scale(buffer, u, 1 / length)) if length > 0 else None

    def equal(self, u: Vector, v: Vector) -> bool:
        return self._vectors.equal(u, v)

    def column(self, v: Vector) -> Block:
        return (self._vectors.copy(v) if self._stay else v.copy_to_host()).reshape((self._size, 1))
