"""Vectors of parameters on their way in and out of the engine: copied, checked and scaled in one run over them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
from numba import prange, types

from rop.kernels.compile import LOOP_MATH, KernelCache, PerPrecision, loop, real, specialised
from rop.kernels.cpu.interpreter import load_threads

PARTS = 8  # slices that threads share …
LONG = 1 << 16  # … of a vector that has at least this many numbers


@loop
def _copy(target, source):
    """Copies, and returns 0 if all is finite: NaN and Inf make the product with zero NaN."""
    total = real(0)
    for i in range(source.size):
        target[i] = source[i]
        total += source[i] * real(0)
    return total


@loop
def _spoilt(source):
    """0 if all is finite."""
    total = real(0)
    for i in range(source.size):
        total += source[i] * real(0)
    return total


@loop
def _multiply(target, factor):
    for i in range(target.size):
        target[i] *= factor


def _adopt(target, source, parts):
    n = source.size
    spoilt = 0.0
    for part in prange(parts):
        low, high = n * part // parts, n * (part + 1) // parts
        spoilt += _copy(target[low:high], source[low:high])
    return spoilt


def _check(source, parts):
    n = source.size
    spoilt = 0.0
    for part in prange(parts):
        spoilt += _spoilt(source[n * part // parts : n * (part + 1) // parts])
    return spoilt


def _turn(rows, columns, parts):
    """rows (k, n) = columns (n, k), transposed."""
    n = columns.shape[0]
    for part in prange(parts):
        for i in range(n * part // parts, n * (part + 1) // parts):
            for j in range(columns.shape[1]):
                rows[j, i] = columns[i, j]


def _scale(target, factor, parts):
    n = target.size
    for part in prange(parts):
        _multiply(target[n * part // parts : n * (part + 1) // parts], real(factor))


def entry_name(function: str, dtype: Any, parallel: bool) -> str:
    """The name of a function's entry in the cache."""
    return f"transfer.{function}_{np.dtype(dtype).name}_{'parallel' if parallel else 'serial'}"


def _made(function: Any, arguments: Any, parallel: bool, dtype: Any) -> Any:
    if parallel:
        load_threads()
    made = numba.njit(parallel=parallel, nogil=True, fastmath=LOOP_MATH)(specialised(function, dtype))
    made._cache = KernelCache(entry_name(function.__name__, dtype, parallel))
    made.compile(arguments(numba.from_dtype(np.dtype(dtype))))
    made.disable_compile()
    return made


def _both(function: Any, arguments: Any) -> dict[bool, PerPrecision]:
    return {parallel: PerPrecision(partial(_made, function, arguments, parallel)) for parallel in (True, False)}


def _vector(real: Any) -> Any:
    return types.Array(real, 1, "C")


def _given(real: Any, axes: int = 1) -> Any:
    return types.Array(real, axes, "C", readonly=True)


_adopts = _both(_adopt, lambda real: (_vector(real), _given(real), types.int64))
_checks = _both(_check, lambda real: (_given(real), types.int64))
_turns = _both(_turn, lambda real: (types.Array(real, 2, "A"), _given(real, 2), types.int64))
_scales = _both(_scale, lambda real: (_vector(real), types.float64, types.int64))


FUNCTIONS = {"_adopt": _adopts, "_check": _checks, "_turn": _turns, "_scale": _scales}


def functions(dtype: Any) -> dict[str, PerPrecision]:
    """All functions of this file, by the names of their entries in the cache."""
    return {entry_name(name, dtype, mode): both[mode] for name, both in FUNCTIONS.items() for mode in both}


def needed(dtype: Any, size: int) -> list[str]:
    """The entries of the functions that a vector of this size needs."""
    return [entry_name(name, dtype, size >= LONG) for name in FUNCTIONS if name != "_check" or size >= LONG]


class _Versions(dict[bool, Any]):
    """The parallel version of a function and the serial one, each compiled or loaded at first use."""

    def __init__(self, both: dict[bool, PerPrecision], dtype: Any):
        super().__init__()
        self._both, self._dtype = both, dtype

    def __missing__(self, parallel: bool) -> Any:
        self[parallel] = self._both[parallel].made(self._dtype)
        return self[parallel]


class Transfer:
    """What is done with vectors of one precision; long ones are shared among threads if ``parallel``."""

    def __init__(self, dtype: Any):
        self._adopt, self._check, self._turn, self._scale = (
            _Versions(both, np.dtype(dtype).type) for both in FUNCTIONS.values()
        )

    def adopt(self, target: np.ndarray, source: np.ndarray, parallel: bool) -> bool:
        """Copies a vector to the start of a buffer; returns whether all of it is finite."""
        many = parallel and source.size >= LONG
        return self._adopt[many](target, source, PARTS if many else 1) == 0

    def finite(self, source: np.ndarray, parallel: bool) -> bool:
        """Whether all of a vector is finite."""
        many = parallel and source.size >= LONG
        return self._check[many](source, PARTS if many else 1) == 0

    def turn(self, rows: np.ndarray, columns: np.ndarray, parallel: bool) -> None:
        """Columns (n, k), C-contiguous, into rows (k, n)."""
        many = parallel and columns.size >= LONG
        self._turn[many](rows, columns, PARTS if many else 1)

    def scale(self, target: np.ndarray, factor: float, parallel: bool) -> None:
        many = parallel and target.size >= LONG
        self._scale[many](target, factor, PARTS if many else 1)
