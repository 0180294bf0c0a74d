"""``math`` for formulas: the same names as Python's module, written so that loops over lanes become vector code.

exp and expm1 reduce x = n·ln 2 + r with |r| ≤ ln 2 / 2 and sum the Taylor series of e^r − 1 (7 terms are enough for
float32, 13 for float64); tanh is computed from expm1. log splits x = 2ⁿ·m with √½ ≤ m < √2 and sums the series of
2·artanh((m − 1)/(m + 1)). Functions without a version here are Python's and run one lane at a time.
"""

from __future__ import annotations

import math
import types as pytypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rop.kernels.compile import FORMULA_MATH, PART, PerPrecision, specialised


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


def _parts(dtype: Any) -> tuple[Any, Any]:
    bits, mantissa, root = (32, 23, 0x3F3504F3) if dtype == np.float32 else (64, 52, 0x3FE6A09E667F3BCD)
    integer = ir.IntType(bits)
    shift = ir.Constant(integer, mantissa)
    scalar = types.float32 if dtype == np.float32 else types.float64

    def whole(builder: Any, number: Any) -> Any:
        return builder.ashr(builder.sub(number, ir.Constant(integer, root)), shift)  # root: √½ by its bits

    @intrinsic
    def exponent(typingctx, x):
        """The n with √½ ≤ x / 2ⁿ < √2, for a normal x > 0."""

        def codegen(context, builder, signature, args):
            number = builder.bitcast(args[0], integer)
            return builder.sitofp(whole(builder, number), context.get_value_type(scalar))

        return scalar(scalar), codegen

    @intrinsic
    def fraction(typingctx, x):
        """x / 2ⁿ for that n."""

        def codegen(context, builder, signature, args):
            number = builder.bitcast(args[0], integer)
            scaled = builder.sub(number, builder.shl(whole(builder, number), shift))
            return builder.bitcast(scaled, context.get_value_type(scalar))

        return scalar(scalar), codegen

    return exponent, fraction


_both = PerPrecision(_parts)
exponent = PerPrecision(lambda dtype: _both.made(dtype)[0])
fraction = PerPrecision(lambda dtype: _both.made(dtype)[1])


# The Taylor coefficients of the two series, highest power first.
_EXPONENTIAL = {  # (e^r − 1 − r) / r² = 1/2! + r/3! + …
    np.float32: tuple(1 / math.factorial(k) for k in range(7, 1, -1)),
    np.float64: tuple(1 / math.factorial(k) for k in range(13, 1, -1)),
}
_ARTANH = {  # (artanh(s)/s − 1) / s² = 1/3 + s²/5 + …
    np.float32: tuple(1 / k for k in range(11, 1, -2)),
    np.float64: tuple(1 / k for k in range(21, 1, -2)),
}


highest: Any = 0.0  # bound per series and precision: the first of the numbers above
others: Any = ()  # and those after it


def _horner(x):
    """Σ_k c_k x^k by Horner's rule; the compiler unrolls the loop over constants."""
    total = highest
    for coefficient in others:
        total = total * x + coefficient
    return total


def _series(r):
    """e^r − 1 for |r| ≤ 0.35."""
    return exponential_rest(r) * r * r + r


def _artanh(z):
    """artanh(s)/s − 1 for z = s² ≤ 0.03."""
    return artanh_rest(z) * z


def _compiled(function: Callable[..., Any], dtype: Any, name: str = "", **bind: Any) -> Any:
    """The function for one precision. Its number literals take that type: a float64 among float32 would make all that
    follows float64. ``name`` tells copies with different bindings apart, because compiled code is linked by name."""

    def typed(constant: Any) -> Any:
        return dtype(constant) if isinstance(constant, (int, float)) and not isinstance(constant, bool) else constant

    code = function.__code__.replace(co_consts=tuple(map(typed, function.__code__.co_consts)))
    copy = pytypes.FunctionType(code, function.__globals__, name or function.__name__)
    copy.__module__ = function.__module__
    return numba.njit(fastmath=FORMULA_MATH, **PART)(specialised(copy, dtype, **bind))


def _polynomial(name: str, numbers: dict[Any, tuple[float, ...]], dtype: Any) -> Any:
    highest, *others = map(dtype, numbers[dtype])
    return _compiled(_horner, dtype, name, highest=highest, others=tuple(others))


exponential_rest = PerPrecision(partial(_polynomial, "exponential_rest", _EXPONENTIAL))
artanh_rest = PerPrecision(partial(_polynomial, "artanh_rest", _ARTANH))
series = PerPrecision(partial(_compiled, _series))
artanh = PerPrecision(partial(_compiled, _artanh))

# x beyond which 2ⁿ leaves the normal numbers, and ln 2 in two parts, the first short enough for n·high to be exact
_LIMITS = {
    np.float32: (-87.0, 88.72284, 0.693359375, -2.12194440e-4),
    np.float64: (-708.0, 709.782712893384, 6.93147180369123816490e-01, 1.90821492927058770002e-10),
}


limits: Any = ()  # bound per precision: the numbers above
infinity: Any = np.inf  # likewise: a float64 among float32 would make all that follows float64
smallest: Any = 0.0  # likewise: the smallest normal number
expm1: Any = None


def _exp(x):
    low, high, ln2_high, ln2_low = limits
    inside = min(max(x, low), high)
    n = np.floor(inside * 1.4426950408889634 + 0.5)
    r = (inside - n * ln2_high) - n * ln2_low
    half = power_of_two(n - 1)  # n may be one too large for the exponent: two steps
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


def _log(x):
    """log x = n ln 2 + log m; subnormal numbers are multiplied by 2⁶⁰ first."""
    _, _, ln2_high, ln2_low = limits
    tiny = x < smallest
    y = x * 1152921504606846976 if tiny else x
    f = fraction(y) - 1
    n = exponent(y) - (60 if tiny else 0)
    s = f / (f + 2)
    result = n * ln2_high + (2 * s + (2 * s * artanh(s * s) + n * ln2_low))
    return (result if x < infinity else x) if x > 0 else -infinity if x == 0 else infinity - infinity


def _functions(dtype: Any) -> dict[str, Any]:
    bind = {
        "limits": tuple(dtype(value) for value in _LIMITS[dtype]),
        "infinity": dtype(np.inf),
        "smallest": np.finfo(dtype).tiny,
    }
    expm1 = _compiled(_expm1, dtype, **bind)
    return {
        "exp": _compiled(_exp, dtype, **bind),
        "expm1": expm1,
        "tanh": _compiled(_tanh, dtype, expm1=expm1),
        "log": _compiled(_log, dtype, **bind),
    }


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
versions = PerPrecision(_versions)  # of modules and functions, for ``scalar.compilable``
exp = PerPrecision(lambda dtype: functions.made(dtype)["exp"])
log = PerPrecision(lambda dtype: functions.made(dtype)["log"])
