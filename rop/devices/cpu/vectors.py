"""Vectors of the CPU engine: aligned memory, long results that are used again, and what users give and get."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from rop.devices.cpu import guard
from rop.devices.lock import in_home_process
from rop.kernels.cpu.transfer import LONG, Transfer, serial
from rop.kernels.cpu.vector import CACHE_LINE

POOLED_ARRAYS = 8  # free arrays that a pool keeps at most, …
POOLED_BYTES = 64 << 20  # … as long as they do not occupy more than this, …
POOLED_LEAST = 4  # … but as many as a caller of ``jet``, or of ``at`` and ``grad``, drops when the next call has ended


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
        self._most = max(POOLED_LEAST, min(POOLED_ARRAYS, POOLED_BYTES // (count * np.dtype(dtype).itemsize)))
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


class Vectors:
    """Vectors of one length and precision on their way in and out of a workspace."""

    def __init__(self, count: int, dtype: Any):
        self.count, self.dtype = count, np.dtype(dtype)
        self._transfer = Transfer(self.dtype)
        self._pools: dict[int, Pool] = {}  # by the length of their arrays
        # Results of long vectors are written where the user gets them, and long w and v read where they are.
        self.are_long = count >= LONG
        if not self.are_long:  # what short calls need is looked up once
            needed = "_adopt", "_differ", "_scale"
            self._adopt, self._differ, self._scale = (serial(name, self.dtype) for name in needed)

    def fresh(self) -> np.ndarray:
        """An array (count,) with any content, to give away."""
        return self._pool(self.count).take() if self.are_long else np.empty(self.count, self.dtype)

    def _pool(self, count: int) -> Pool:
        if count not in self._pools:
            self._pools[count] = Pool(count, self.dtype)
        return self._pools[count]

    # ---- what users give and get ---------------------------------------------------------------------------------
    def accept(self, name: str, value: Any) -> np.ndarray:
        """On the CPU an objective makes NumPy arrays of all that it is given, so nothing is left to accept."""
        raise NotImplementedError

    def keep(self, w: np.ndarray) -> np.ndarray:
        """A copy of w."""
        if not self.are_long:
            return w.copy()
        copy = self.fresh()
        self.copy_into(copy, w)
        return copy

    def given(
        self, results: Sequence[np.ndarray], orders: tuple[int, ...], w: np.ndarray, v: np.ndarray | None
    ) -> Sequence[np.ndarray]:
        """Results are fresh arrays already."""
        return results

    def rows_of(self, columns: np.ndarray) -> np.ndarray:
        """The columns of a block (n, k) as contiguous rows (k, n)."""
        n, k = columns.shape
        with np.errstate(over="ignore"):
            if columns.flags.f_contiguous:
                return np.ascontiguousarray(columns.T, self.dtype)
            columns = np.ascontiguousarray(columns, self.dtype)
        rows = self._rows(k)[:, :n]
        self._transfer.turn(rows, columns, in_home_process())
        return rows

    def new_block(self, k: int, like: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """A block (n, k) to give away, and a contiguous place for each of its columns."""
        rows = self._rows(k)[:, : self.count]
        return rows.T, list(rows)

    def _rows(self, k: int) -> np.ndarray:
        """k vectors in rows of whole cache lines, with a guard zone between them; long ones start at a cache line."""
        n = -(-self.count // 16) * 16 + guard.BYTES // self.dtype.itemsize
        return (self._pool(k * n).take() if n >= LONG else np.empty(k * n, self.dtype)).reshape(k, n)

    # ---- arithmetic ----------------------------------------------------------------------------------------------
    def copy_into(self, target: np.ndarray, source: np.ndarray) -> bool:
        """Copies a vector to the start of an array; returns whether all of it is finite, which costs nothing extra."""
        if not self.are_long:
            return self._adopt(target, source, 1) == 0
        return self._transfer.adopt(target, source, in_home_process())

    def equal(self, kept: np.ndarray, vector: np.ndarray) -> bool:
        """Whether the start of an array is equal to a vector."""
        if not self.are_long:
            return self._differ(kept, vector, 1) == 0
        return self._transfer.equal(kept, vector, in_home_process())

    def finite(self, vector: np.ndarray) -> bool:
        """Whether all of a vector is finite."""
        return self._transfer.finite(vector, in_home_process())

    def multiply(self, vector: np.ndarray, factor: float) -> None:
        """vector *= factor."""
        if not self.are_long:
            self._scale(vector, factor, 1)
            return
        self._transfer.scale(vector, factor, in_home_process())
