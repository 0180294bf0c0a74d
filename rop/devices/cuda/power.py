"""Power iteration with its vectors in a GPU's memory: only the numbers it decides by come to the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from rop.devices import on_device
from rop.devices.cuda.vectors import Vector, Vectors, device_array
from rop.objective import Point


class DeviceVectors:
    """What rop.eigen does with single vectors. u and v are buffers of this object and of the point's workspace."""

    def __init__(self, p: Point, H: Any, v0: Any):
        self._p, self._H = p, H
        self._vectors = Vectors(H.size, p._f.dtype)
        self._rooms = [device_array(H.size, p._f.dtype) for _ in range(2)]  # v, and the v after it
        self._for_device = on_device(p.w if v0 is None else v0)

    def start(self, v0: Any, rng: np.random.Generator, owner: str) -> Vector:
        from rop.curvature.common import _start

        host = v0.copy_to_host() if hasattr(v0, "copy_to_host") else v0
        if on_device(host):
            host = cuda.as_cuda_array(host).copy_to_host()
        v = _start(self._H, host, 1, rng, owner)[:, 0]
        return self._next(lambda room: room.copy_to_device(v.astype(self._H.dtype)))

    def _next(self, fill: Any) -> Vector:
        """The room that v is not in, filled."""
        self._rooms.reverse()
        fill(self._rooms[0])
        return self._rooms[0]

    def product(self, v: Vector) -> Vector | None:
        """u = H v, in the workspace's own memory; None if it is not finite."""
        self._H.hvps += 1
        u = self._p.product(v)
        self._uu, self._uv, _ = self._vectors.moments(u, v)
        return u if math.isfinite(self._uu) else None

    def is_zero(self, u: Vector) -> bool:
        return self._uu == 0

    def quotient(self, u: Vector, v: Vector) -> tuple[float, float]:
        """λ = uᵀv, and ‖u − λv‖."""
        return self._uv, self._vectors.distance(u, v, self._uv)

    def unit(self, u: Vector) -> Vector | None:
        length = math.sqrt(self._uu)
        return self._next(lambda room: self._vectors.scale(room, u, 1 / length)) if length > 0 else None

    def equal(self, u: Vector, v: Vector) -> bool:
        return self._vectors.equal(u, v)

    def column(self, v: Vector) -> Any:
        """v for the user, (n, 1), on the device if that is where the user's vectors are."""
        return (self._vectors.copy(v) if self._for_device else v.copy_to_host()).reshape((self._H.size, 1))
