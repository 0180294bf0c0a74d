"""``math`` for formulas: the same names as Python's module, written so that loops over lanes become vector code.

exp and expm1 reduce x = n·ln 2 + r with |r| ≤ ln 2 / 2 and sum the Taylor series of e^r − 1 (7 terms give float32,
13 give float64); tanh and the rest follow. Functions without a version here are Python's, one lane at a time.
"""
from __future__ import annotations

import math
import types as pytypes
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rop.kernels.compile import FORMULA_MATH, OPTIONS, PerPrecision, specialised, with_literals


def _power_of_two(dtype: Any) -> Any:
    bits, mantissa, bias = (32, 23, 127) if dtype == np.float32 else (64, 52, 1023)
    integer = ir.IntType(bits)
    scalar = types.float32 if dtype == np.float32 else types.float64

    @intrinsic
    def power_of_two(typingctx, n):
        """2ⁿ for a whole number n within the exponent's range, by its bits."""
        def codegen(context, builder, signature, args):
            whole = builder.fptosi(args[0], integer)
            shifted = builder.shl(builder.add(whole, ir.Constant(integer, bias)), ir.Constant(integer, mantissa))
            return builder.bitcast(shifted, context.get_value_type(scalar))
        return scalar(scalar), codegen
    return power_of_two


power_of_two = PerPrecision(_power_of_two)


def _series_float32(r):
    """e^r − 1 for |r| ≤ 0.35."""
    s = r * (1 / 5040) + 1 / 720
    s = s * r + 1 / 120
    s = s * r + 1 / 24
    s = s * r + 1 / 6
    s = s * r + 0.5
    return s * r * r + r


def _series_float64(r):
    """e^r − 1 for |r| ≤ 0.35."""
    s = r * (1 / 6227020800) + 1 / 479001600
    s = s * r + 1 / 39916800
    s = s * r + 1 / 3628800
    s = s * r + 1 / 362880
    s = s * r + 1 / 40320
    s = s * r + 1 / 5040
    s = s * r + 1 / 720
    s = s * r + 1 / 120
    s = s * r + 1 / 24
    s = s * r + 1 / 6
    s = s * r + 0.5
    return s * r * r + r


def _compiled(function: Any, dtype: Any, **bind: Any) -> Any:
    return numba.njit(fastmath=FORMULA_MATH, **OPTIONS)(specialised(with_literals(function, dtype), dtype, **bind))


series = PerPrecision(lambda dtype: _compiled(_series_float32 if dtype == np.float32 else _series_float64, dtype))

# x beyond which 2ⁿ leaves the normal numbers, and ln 2 in two parts, the first short enough for n·high to be exact
_LIMITS = {np.float32: (-87.0, 88.72284, 0.693359375, -2.12194440e-4),
           np.float64: (-708.0, 709.782712893384, 6.93147180369123816490e-01, 1.90821492927058770002e-10)}


limits: Any = ()                # bound per precision: the numbers above
infinity: Any = np.inf          # likewise: a float64 among float32 would make all that follows float64
expm1: Any = None


def _exp(x):
    low, high, ln2_high, ln2_low = limits
    inside = min(max(x, low), high)
    n = np.floor(inside * 1.4426950408889634 + 0.5)
    r = (inside - n * ln2_high) - n * ln2_low
    half = power_of_two(n - 1)                               # n may be one too large for the exponent: two steps
    y = (half * series(r) + half) * 2
    return x if x != x else (y if x >= low else 0.0) if x <= high else infinity


def _expm1(x):
    low, high, ln2_high, ln2_low = limits
    inside = min(max(x, low), high)
    n = np.floor(inside * 1.4426950408889634 + 0.5)
    r = (inside - n * ln2_high) - n * ln2_low
    half = power_of_two(n - 1)
    y = (half * series(r) + (half - 0.5)) * 2
    return x if x != x else y if x <= high else infinity


def _tanh(x):
    """tanh x = −m/(m + 2) with m = e^(−2|x|) − 1, odd in x."""
    m = expm1(-2 * abs(x))
    y = -m / (m + 2)
    return y if x >= 0 else -y


def _functions(dtype: Any) -> dict[str, Any]:
    bind = {"limits": tuple(dtype(value) for value in _LIMITS[dtype]), "infinity": dtype(np.inf)}
    expm1 = _compiled(_expm1, dtype, **bind)
    return {"exp": _compiled(_exp, dtype, **bind), "expm1": expm1, "tanh": _compiled(_tanh, dtype, expm1=expm1)}


def _module(dtype: Any, original: pytypes.ModuleType = math) -> pytypes.ModuleType:
    """The module ``original`` with our functions in place of its own."""
    module = pytypes.ModuleType(f"{original.__name__}_{np.dtype(dtype).name}")
    module.__dict__.update({name: value for name, value in vars(original).items() if not name.startswith("_")})
    module.__dict__.update(functions.made(dtype))
    return module


def _versions(dtype: Any) -> dict[Any, Any]:
    ours = {getattr(module, name): own for module in (math, np) for name, own in functions.made(dtype).items()}
    return {math: vector_math.made(dtype), np: _module(dtype, np), **ours}


functions = PerPrecision(_functions)
vector_math = PerPrecision(_module)
versions = PerPrecision(_versions)      # of modules and functions, for ``scalar.compilable``
exp = PerPrecision(lambda dtype: functions.made(dtype)["exp"])
