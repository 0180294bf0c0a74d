"""Vectors of parameters on their way in and out of the engine: copied, checked and scaled in one run over them.

A question about short vectors is answered by one compiled call (``answers``): it takes w and v in, runs a pass and
hands the results out. In Python each of these steps would take as long as a tenth of a small network's pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
from numba import prange, types

from rop.kernels.compile import LOOP_MATH, OPTIONS, KernelCache, PerPrecision, loop, real, specialised
from rop.kernels.cpu.interpreter import load_threads, version
from rop.kernels.cpu.memory import integers, reals

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
def _hand_out(target, source, factor):
    for i in range(target.size):
        target[i] = source[i] * factor


@loop
def _spoilt(source):
    """0 if all is finite."""
    total = real(0)
    for i in range(source.size):
        total += source[i] * real(0)
    return total


@loop
def _differences(kept, source):
    """0 if all numbers are equal; NaN is equal to nothing."""
    count = 0
    for i in range(source.size):
        count += 1 if kept[i] != source[i] else 0
    return count


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


def _differ(kept, source, parts):
    n = source.size
    count = 0
    for part in prange(parts):
        low, high = n * part // parts, n * (part + 1) // parts
        count += _differences(kept[low:high], source[low:high])
    return count


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


RESULTS = 3  # of a question, at most: one for each order
# The words of a question, int64: where w, v and its results are in the workspace, the factors of the results, and the
# pass with what the interpreter is told besides.
(W, V, RESULT, FACTOR, TABLE, STAGES, STAGE_COUNT, TILES, ASKED, WORDS) = (0, 1, 2, 5, 8, 9, 10, 11, 12, 13)
# What an answer must find: finite numbers, and a v that is equal to the one that was taken in last.
FINITE, SAME = 1, 2
# What it says: all is done, or why the pass has not run.
DONE, BAD_W, BAD_V, OTHER_V = range(4)
run: Any = None  # the interpreter, which ``_asked`` binds


def _ask(question, wanted, w, v, result_0, result_1, result_2):
    """Takes in w and v, runs the pass of a question, whose address this is, and hands out its results; arrays that are
    empty are left out. ``wanted`` has the bits of FINITE and SAME; with SAME v is compared instead of taken in."""
    at = integers(question, WORDS)
    if w.size > 0 and _copy(reals(at[W], w.size), w) != 0 and wanted & FINITE:
        return BAD_W
    if v.size > 0:
        kept = reals(at[V], v.size)
        if wanted & SAME:
            if _differences(kept, v) != 0:
                return OTHER_V
        elif _copy(kept, v) != 0 and wanted & FINITE:
            return BAD_V
    run(at[TABLE], at[STAGES], at[STAGE_COUNT], at[TILES], 0, at[ASKED])
    if result_0.size > 0:
        _hand_out(result_0, reals(at[RESULT], result_0.size), real(at[FACTOR]))
    if result_1.size > 0:
        _hand_out(result_1, reals(at[RESULT + 1], result_1.size), real(at[FACTOR + 1]))
    if result_2.size > 0:
        _hand_out(result_2, reals(at[RESULT + 2], result_2.size), real(at[FACTOR + 2]))
    return DONE


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
_differs = _both(_differ, lambda real: (_vector(real), _given(real), types.int64))
_turns = _both(_turn, lambda real: (types.Array(real, 2, "A"), _given(real, 2), types.int64))
_scales = _both(_scale, lambda real: (_vector(real), types.float64, types.int64))


def _asked(parallel: bool, dtype: Any) -> Any:
    """The compiled answer to a question."""
    if parallel:
        load_threads()
    made = numba.njit(fastmath=LOOP_MATH, **OPTIONS)(specialised(_ask, dtype, run=version(parallel)))
    made._cache = KernelCache(entry_name("_ask", dtype, parallel))
    real = numba.from_dtype(np.dtype(dtype))
    vectors = (_given(real),) * 2 + (_vector(real),) * RESULTS
    made.compile((types.int64, types.int64, *vectors))
    made.disable_compile()
    return made


_asks = {parallel: PerPrecision(partial(_asked, parallel)) for parallel in (True, False)}
FUNCTIONS = {"_adopt": _adopts, "_check": _checks, "_differ": _differs, "_turn": _turns, "_scale": _scales}


def functions(dtype: Any) -> dict[str, PerPrecision]:
    """All functions of this file, by the names of their entries in the cache."""
    both_of = {**FUNCTIONS, "_ask": _asks}
    return {entry_name(name, dtype, mode): both[mode] for name, both in both_of.items() for mode in both}


def needed(dtype: Any, size: int) -> list[str]:
    """The entries of the functions that a vector of this size needs."""
    if size >= LONG:
        return [entry_name(name, dtype, True) for name in FUNCTIONS]
    asks = [entry_name("_ask", dtype, parallel) for parallel in (True, False)]
    return asks + [entry_name(name, dtype, False) for name in FUNCTIONS if name != "_check"]


def serial(name: str, dtype: Any) -> Any:
    """One of the functions of this file, for one thread: its last argument is the number of parts, 1."""
    return FUNCTIONS[name][False].made(np.dtype(dtype).type)


def answers(dtype: Any) -> dict[bool, Any]:
    """``_ask`` with threads and without."""
    return _Versions(_asks, np.dtype(dtype).type)


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
        self._adopt, self._check, self._differ, self._turn, self._scale = (
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

    def equal(self, kept: np.ndarray, source: np.ndarray, parallel: bool) -> bool:
        """Whether the start of a buffer is equal to a vector."""
        many = parallel and source.size >= LONG
        return self._differ[many](kept, source, PARTS if many else 1) == 0

    def turn(self, rows: np.ndarray, columns: np.ndarray, parallel: bool) -> None:
        """Columns (n, k), C-contiguous, into rows (k, n)."""
        many = parallel and columns.size >= LONG
        self._turn[many](rows, columns, PARTS if many else 1)

    def scale(self, target: np.ndarray, factor: float, parallel: bool) -> None:
        many = parallel and target.size >= LONG
        self._scale[many](target, factor, PARTS if many else 1)
