"""Arrays of the CPU engine: aligned memory, and long result arrays that are used again."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from rop.devices.cpu import guard

CACHE_LINE = 64  # bytes
POOLED_ARRAYS = 8  # free arrays that a pool keeps at most, …
POOLED_BYTES = 64 << 20  # … as long as they do not occupy more than this


def aligned(count: int, dtype: Any) -> np.ndarray:
    """Zeros that start at a cache line, (count,)."""
    count = max(count, 1)
    return _at_cache_line(np.zeros(_bytes_for(count, dtype), np.uint8), count, dtype)


def _bytes_for(count: int, dtype: Any) -> int:
    """Bytes in which an array can start at a cache line, with guard zones around it."""
    return count * np.dtype(dtype).itemsize + CACHE_LINE + 2 * guard.BYTES


def _at_cache_line(raw: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    """``count`` numbers in raw bytes that start at a cache line."""
    start = -raw.ctypes.data % CACHE_LINE + guard.BYTES
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


class _Lease:
    """Owner of the memory of an array that a pool has given away. NumPy keeps it alive for that array and for every
    view of it, because it is not an array itself; when it dies, nobody can read the memory any more."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, array: np.ndarray):
        self.__array_interface__ = array.__array_interface__


class Pool:
    """Long result arrays that are used again once nobody holds them: mapping the pages of a new array costs as much as
    filling it.

    >>> pool = Pool(1000, np.float32)
    >>> first = pool.take()
    >>> address = first.ctypes.data
    >>> del first
    >>> pool.take().ctypes.data == address
    True
    """

    def __init__(self, count: int, dtype: Any):
        self._count, self._dtype = count, dtype
        self._most = max(2, min(POOLED_ARRAYS, POOLED_BYTES // (count * np.dtype(dtype).itemsize)))
        self._free: list[np.ndarray] = []  # raw bytes of arrays that nobody holds

    def take(self) -> np.ndarray:
        """An array (count,) with any content, for the caller to give away."""
        raw = self._free.pop() if self._free else np.empty(_bytes_for(self._count, self._dtype), np.uint8)
        lease = _Lease(_at_cache_line(raw, self._count, self._dtype))
        weakref.finalize(lease, self._take_back, raw).atexit = False
        return np.asarray(lease)

    def _take_back(self, raw: np.ndarray) -> None:
        if len(self._free) < self._most:
            self._free.append(raw)
