"""What instructions compute: one table from opcode to a function of NumPy arrays, an element per thread.

Rounding is the hardware's. float32 operations are done in float32. A fused multiply-add rounds once: the float32 one is
summed in float64 and *rounded to odd* there, after which the second rounding, to float32, gives what one rounding would
have given (Boldo and Melquiond 2008); the float64 one uses error-free transformations and the same trick, and exact
fractions where these would over- or underflow. Directed rounding (.rm, .rp, .rz) of add, sub, mul and fma comes from
the same exact errors.

Approximate instructions (ex2.approx, rcp.approx, sin.approx, ...) give the correctly rounded result, where hardware
differs in the last bits; rcp.approx.f64 keeps 20 bits of mantissa as specified, because code around it relies on Newton
steps that should be seen to work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tests.helpers.ptx.parse import SIZES, Instruction

Array = Any  # np.ndarray or NumPy scalar: constants take part without being spread over the threads
Compute = Callable[..., Any]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(
        np.bool_ if name == "pred" else f"f{size}" if name[0] == "f" else f"i{size}" if name[0] == "s" else f"u{size}"
    )
    for name, size in SIZES.items()
}


def is_float(kind: str) -> bool:
    return kind[0] == "f"


def bits(kind: str) -> int:
    return 8 * SIZES[kind]


def literal(text: str, kind: str) -> Array:
    """A literal as a scalar of that type; 0f3F800000 and 0d... give the bits of a float."""
    dtype = DTYPES[kind]
    if text[:2].lower() in ("0f", "0d"):
        number = np.array(int(text[2:], 16), np.uint32 if text[1] in "fF" else np.uint64)
        as_float = number.view(np.float32 if text[1] in "fF" else np.float64)
        return as_float.astype(dtype)[()] if is_float(kind) else number.astype(f"u{dtype.itemsize}").view(dtype)[()]
    if is_float(kind):
        return dtype.type(text)
    if kind == "pred":
        return np.bool_(int(text))
    value = int(text.rstrip("U"), 0) % (1 << bits(kind))
    return np.array(value, f"u{dtype.itemsize}").view(dtype)[()]


# -----------------------------------------------------------------------------------------------------------------
# rounding
# -----------------------------------------------------------------------------------------------------------------


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b = sum + error exactly (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a · b = product + error exactly, if nothing over- or underflows (Dekker)."""

    def split(x: Array) -> tuple[Array, Array]:
        scaled = 134217729.0 * x
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    (a1, a2), (b1, b2) = split(a), split(b)
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def to_odd(nearest: Array, error: Array) -> Array:
    """Of the two float64 around nearest + error, the one with an odd last bit; `nearest` where it is exact."""
    inexact = (error > 0) | (error < 0)
    if not np.any(inexact):
        return nearest
    whole = np.atleast_1d(np.array(nearest, np.float64)).view(np.int64)
    away = (error > 0) == (nearest > 0)  # a larger magnitude is a larger integer
    step = np.where(inexact & (whole & 1 == 0), np.where(away, 1, -1), 0)
    return (whole + step).view(np.float64).reshape(np.shape(nearest + error))


def narrow(x: Array, mode: str) -> Array:
    """float64 to float32 in a rounding mode."""
    near = x.astype(np.float32)
    if mode == "rn":
        return near
    return _shift(near, x < near, x > near, mode)


def _shift(near: Array, below: Array, above: Array, mode: str) -> Array:
    """From the nearest number to the one that the mode asks for; `below`: the exact value is below `near`."""
    down = below & ((mode == "rm") | ((mode == "rz") & (near > 0)))
    up = above & ((mode == "rp") | ((mode == "rz") & (near < 0)))
    infinity = near.dtype.type(np.inf)
    return np.where(down, np.nextafter(near, -infinity), np.where(up, np.nextafter(near, infinity), near))


def fused64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """a · b + c rounded once, and a number with the sign of what was rounded away (Boldo and Melquiond)."""
    product, low = two_product(a, b)
    middle, lowest = two_sum(c, low)
    high, rest = two_sum(product, middle)
    correction = to_odd(*two_sum(rest, lowest))
    result, error = two_sum(high, correction)
    plain = a * b + c
    safe = _moderate(a, 450) & _moderate(b, 450) & (_moderate(c, 960) | (c == 0))
    odd_one_out = ~safe & np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    result, error = np.where(safe, result, plain), np.where(safe, error, 0.0)
    if np.any(odd_one_out):
        for place in zip(*np.nonzero(odd_one_out), strict=True):
            x, y, z = (np.broadcast_to(operand, result.shape)[place] for operand in (a, b, c))
            result[place], error[place] = _fused_exactly(float(x), float(y), float(z))
    return result, error


def _moderate(x: Array, exponent: int) -> Array:
    magnitude = np.abs(x)
    return (magnitude > 2.0**-exponent) & (magnitude < 2.0**exponent)


def _fused_exactly(a: float, b: float, c: float) -> tuple[float, float]:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c, 0.0
    sign = 1.0 if exact > 0 else -1.0
    try:
        result = float(exact)
    except OverflowError:
        return sign * math.inf, -sign
    if result == 0.0:
        return sign * 0.0, sign
    error = exact - Fraction(result)
    return result, float((error > 0) - (error < 0))


def _rounding(instruction: Instruction) -> str:
    """The mode; `approx` and `full` are computed as if they were exact."""
    return next((mode for mode in ("rn", "rz", "rm", "rp") if mode in instruction.modifiers), "rn")


def flushed(x: Array) -> Array:
    """Subnormal float32 numbers as zeros of the same sign (.ftz)."""
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(x.dtype.type(0), x), x)


def saturated(x: Array) -> Array:
    """Clamped to [0, 1]; NaN becomes 0 (.sat)."""
    return np.fmin(np.fmax(x, x.dtype.type(0)), x.dtype.type(1))


def _with_float_modifiers(instruction: Instruction, compute: Compute) -> Compute:
    """`compute` with what .ftz and .sat ask for around it."""
    ftz, sat = instruction.has("ftz") and "f32" in instruction.types, instruction.has("sat")
    if not (ftz or sat):
        return compute

    def modified(*operands: Array) -> Array:
        if ftz:
            operands = tuple(flushed(x) if x.dtype == np.float32 else x for x in operands)
        result = compute(*operands)
        if ftz and result.dtype == np.float32:
            result = flushed(result)
        return saturated(result) if sat and result.dtype.kind == "f" else result

    return modified


def _float_sum_or_product(plain: Compute, exact: Compute) -> Callable[[Instruction], Compute]:
    """Instructions with rounding modes, from the plain operation and from one that also gives its float64 error."""

    def make(instruction: Instruction) -> Compute:
        mode, single = _rounding(instruction), instruction.type == "f32"
        if mode == "rn":
            return plain

        def directed(*operands: Array) -> Array:
            value, error = exact(*(x.astype(np.float64) for x in operands))
            return narrow(to_odd(value, error), mode) if single else _shift(value, error < 0, error > 0, mode)

        return directed

    return make


def _fma(instruction: Instruction) -> Compute:
    mode = _rounding(instruction)
    if instruction.type == "f64":
        return _float_sum_or_product(lambda a, b, c: fused64(a, b, c)[0], fused64)(instruction)

    def fused32(a: Array, b: Array, c: Array) -> Array:
        product = a.astype(np.float64) * b.astype(np.float64)  # exact: 24 + 24 bits
        return narrow(to_odd(*two_sum(product, c.astype(np.float64))), mode)

    return fused32


def _nearest_only(compute: Compute) -> Callable[[Instruction], Compute]:
    def make(instruction: Instruction) -> Compute:
        if _rounding(instruction) != "rn":
            raise instruction.error("this rounding mode is not supported")
        return compute

    return make


def _through_float64(function: Compute) -> Compute:
    """A function of approximate instructions: computed in float64, rounded to the type of the operand."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _reciprocal(instruction: Instruction) -> Compute:
    if instruction.type == "f64" and instruction.has("approx"):
        return _coarse_reciprocal
    return _nearest_only(lambda x: x.dtype.type(1) / x)(instruction)


def _coarse_reciprocal(x: Array) -> Array:
    """rcp.approx.ftz.f64: subnormal operands are zeros, and the low half of the result is zero."""
    x = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)
    inverse = 1.0 / x
    cut = (inverse.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return np.where(np.isnan(inverse), inverse, cut)


def _extreme(smallest: bool) -> Callable[[Instruction], Compute]:
    """min and max; for floats a number wins over NaN (unless .NaN), and −0 lies below +0."""

    def make(instruction: Instruction) -> Compute:
        if not is_float(instruction.type):
            return np.minimum if smallest else np.maximum
        quiet, strict = (np.fmin, np.minimum) if smallest else (np.fmax, np.maximum)
        choose = strict if instruction.has("NaN") else quiet

        def extreme(a: Array, b: Array) -> Array:
            zeros = (a == 0) & (b == 0)
            negative = np.signbit(a) | np.signbit(b) if smallest else np.signbit(a) & np.signbit(b)
            return np.where(zeros, np.copysign(a.dtype.type(0), np.where(negative, -1, 1)), choose(a, b))

        return extreme

    return make


# -----------------------------------------------------------------------------------------------------------------
# integers
# -----------------------------------------------------------------------------------------------------------------


def _unsigned(x: Array) -> Array:
    return x.astype(f"u{x.dtype.itemsize}")


def _magnitude(x: Array) -> Array:
    """|x| as an unsigned number, right even for the most negative one."""
    return _unsigned(np.where(x < 0, -x, x))


def _quotient(a: Array, b: Array) -> Array:
    """Division that rounds towards zero; by zero it gives all ones, as the hardware does."""
    zero = b == 0
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // np.where(zero, a.dtype.type(1), b))
    size = _magnitude(a) // np.where(zero, 1, _magnitude(b)).astype(_unsigned(b).dtype)
    signed = np.where((a < 0) != (b < 0), -size, size).astype(a.dtype)
    return np.where(zero, a.dtype.type(-1), signed)


def _divide(instruction: Instruction) -> Compute:
    return _nearest_only(np.divide)(instruction) if is_float(instruction.type) else _quotient


def _remainder(a: Array, b: Array) -> Array:
    """What a quotient towards zero leaves: the sign is that of the dividend."""
    return a - _quotient(a, b) * b


def high_product(a: Array, b: Array) -> Array:
    """The upper half of the product of two integers of the same width."""
    width = a.dtype.itemsize * 8
    if width < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(width)).astype(a.dtype)
    x, y = _unsigned(a), _unsigned(b)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + (x0 * y0 >> half)
    high = x1 * y1 + (middle >> half) + ((x0 * y1 + (middle & low)) >> half)
    if a.dtype.kind == "i":  # a negative number was read as itself plus 2⁶⁴
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(a.dtype)


def _wide(x: Array) -> Array:
    return x.astype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")


def _multiply(instruction: Instruction) -> Compute:
    if is_float(instruction.type):
        return _float_sum_or_product(np.multiply, two_product)(instruction)
    if instruction.has("wide"):
        return lambda a, b: _wide(a) * _wide(b)
    return high_product if instruction.has("hi") else np.multiply


def _multiply_add(instruction: Instruction) -> Compute:
    if is_float(instruction.type):
        return _fma(instruction)
    multiply = _multiply(instruction)
    return lambda a, b, c: multiply(a, b) + c


def _sum(sign: int) -> Callable[[Instruction], Compute]:
    plain = np.add if sign > 0 else np.subtract

    def make(instruction: Instruction) -> Compute:
        if is_float(instruction.type):
            return _float_sum_or_product(plain, lambda a, b: two_sum(a, sign * b))(instruction)
        if instruction.has("sat"):
            limits = np.iinfo(np.int32)
            return lambda a, b: np.clip(plain(_wide(a), _wide(b)), limits.min, limits.max).astype(np.int32)
        return plain

    return make


def with_carry(opcode: str, high: bool, a: Array, b: Array, c: Array, carry: Array) -> tuple[Array, Array]:
    """Extended-precision add, sub and mad on unsigned operands: the result and the carry (borrow) out."""
    if opcode.startswith("mad"):
        a, b = (high_product(a, b) if high else a * b), c
    carry = carry.astype(a.dtype)
    if opcode.startswith("sub"):
        return a - b - carry, (a < b) | ((a == b) & (carry > 0))
    total = a + b + carry
    return total, (total < a) | ((total == a) & (carry > 0))


def _shift_left(x: Array, count: Array) -> Array:
    """Counts of the width and above push everything out."""
    width = x.dtype.itemsize * 8
    return np.where(count >= width, x.dtype.type(0), x << np.minimum(count, width - 1).astype(x.dtype))


def _shift_right(x: Array, count: Array) -> Array:
    """As `_shift_left`; of a signed number the sign stays."""
    width = x.dtype.itemsize * 8
    moved = x >> np.minimum(count, width - 1).astype(x.dtype)
    return moved if x.dtype.kind == "i" else np.where(count >= width, x.dtype.type(0), moved)


def _funnel(instruction: Instruction) -> Compute:
    """shf: 32 bits out of the 64 of high:low, moved by a count that wraps or clamps."""
    left, wrap = instruction.has("l"), instruction.has("wrap")

    def funnel(low: Array, high: Array, count: Array) -> Array:
        count = (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        moved = (both << count) >> np.uint64(32) if left else both >> count
        return moved.astype(np.uint32)

    return funnel


def _population(x: Array) -> Array:
    every = np.atleast_1d(np.asarray(x))
    ones = np.unpackbits(np.ascontiguousarray(every)[:, None].view(np.uint8), axis=1).sum(axis=1, dtype=np.uint32)
    return ones.reshape(np.shape(x))


def _leading_zeros(x: Array) -> Array:
    width = x.dtype.itemsize * 8
    filled = x
    for step in (1, 2, 4, 8, 16, 32)[: width.bit_length() - 1]:
        filled = filled | (filled >> x.dtype.type(step))
    return np.uint32(width) - _population(filled)


def _bit_reverse(x: Array) -> Array:
    every = np.ascontiguousarray(np.atleast_1d(np.asarray(x)))
    single = np.unpackbits(every[:, None].view(np.uint8), axis=1, bitorder="little")
    return np.packbits(single[:, ::-1], axis=1, bitorder="little").view(x.dtype).reshape(np.shape(x))


def _find_leading(instruction: Instruction) -> Compute:
    """bfind: the place of the highest bit that is not a copy of the sign, all ones if there is none."""
    if instruction.has("shiftamt"):
        raise instruction.error("this variant is not supported")

    def find(x: Array) -> Array:
        plain = _unsigned(np.where(x < 0, ~x, x))
        place = np.uint32(x.dtype.itemsize * 8 - 1) - _leading_zeros(plain)
        return np.where(plain == 0, np.uint32(0xFFFFFFFF), place)

    return find


def _extract(x: Array, start: Array, length: Array) -> Array:
    """bfe: `length` bits from `start`, zero- or sign-extended; bits beyond the top are the sign (or zero)."""
    width = x.dtype.itemsize * 8
    start, length = start & np.uint32(255), length & np.uint32(255)
    field = _shift_right(x, start)
    if x.dtype.kind == "u":
        return field & ~_shift_left(~x.dtype.type(0), length)
    spare = np.where(length >= width, 0, width - length.astype(np.int64)).astype(np.uint32)
    return np.where(length == 0, x.dtype.type(0), _shift_right(_shift_left(field, spare), spare))


def _insert(x: Array, into: Array, start: Array, length: Array) -> Array:
    """bfi: the low `length` bits of x placed at `start`."""
    start, length = start & np.uint32(255), length & np.uint32(255)
    mask = _shift_left(~_shift_left(~x.dtype.type(0), length), start)
    return (into & ~mask) | (_shift_left(x, start) & mask)


def _permute(instruction: Instruction) -> Compute:
    if len(instruction.modifiers) > 1:
        raise instruction.error("this mode is not supported")
    return _pick_bytes


def _pick_bytes(a: Array, b: Array, selector: Array) -> Array:
    """prmt: four bytes picked from the eight of b:a; bit 3 of a selector spreads the sign of the byte instead."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(np.shape(both + selector), np.uint32)
    for place in range(4):
        pick = (selector >> np.uint32(4 * place)) & np.uint32(15)
        byte = (both >> (np.uint64(8) * (pick & np.uint32(7)).astype(np.uint64))).astype(np.uint8)
        byte = np.where(pick & np.uint32(8), np.where(byte & np.uint8(128), 255, 0), byte).astype(np.uint32)
        result = result | (byte << np.uint32(8 * place))
    return result


# -----------------------------------------------------------------------------------------------------------------
# comparison, selection, conversion
# -----------------------------------------------------------------------------------------------------------------

ORDERED: dict[str, Compute] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
UNORDERED = {"equ": "eq", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
BOOLEAN: dict[str, Compute] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def comparison(instruction: Instruction) -> Compute:
    """The comparison that a setp or set asks for. `ne` is false for NaN, `neu` is true; so for the others with u."""
    name = instruction.modifiers[0]
    floating = is_float(instruction.type)
    if name in ORDERED:
        return ORDERED[name]
    if name == "ne":
        return (lambda a, b: (a != b) & ~_unordered(a, b)) if floating else np.not_equal
    special: dict[str, Compute] = {"neu": np.not_equal, "nan": _unordered, "num": lambda a, b: ~_unordered(a, b)}
    if name in special:
        return special[name]
    if name in UNORDERED:
        ordered = ORDERED[UNORDERED[name]]
        return lambda a, b: ordered(a, b) | _unordered(a, b)
    raise instruction.error("this comparison is not supported")


def _set_predicates(instruction: Instruction) -> Compute:
    """setp: the predicate and its opposite, either combined with a third operand if there is one."""
    compare = _with_float_modifiers(instruction, comparison(instruction))
    combine = next((BOOLEAN[name] for name in instruction.modifiers if name in BOOLEAN), None)

    def both(a: Array, b: Array, c: Array | None = None) -> tuple[Array, Array]:
        holds = compare(a, b)
        if combine is None:
            return holds, ~holds
        return combine(holds, c), combine(~holds, c)

    return both


def _set_number(instruction: Instruction) -> Compute:
    """set: 1.0 or all ones where the comparison holds."""
    compare, result = comparison(instruction), instruction.types[0]
    true = DTYPES[result].type(1) if is_float(result) else literal("-1", result)
    return lambda a, b: np.where(compare(a, b), true, DTYPES[result].type(0))


TO_INTEGER: dict[str, Compute] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _float_to_integer(x: Array, to_whole: Compute, result: np.dtype[Any]) -> Array:
    """Saturates; NaN becomes 0, or the top bit alone where 64 bits are on either side."""
    whole = to_whole(x.astype(np.float64))
    low, high = int(np.iinfo(result).min), int(np.iinfo(result).max)
    inside = (whole >= float(low)) & (whole < float(high + 1))
    number = np.where(inside, whole, 0.0).astype(result)
    number = np.where(whole >= float(high + 1), result.type(high), number)
    number = np.where(whole < float(low), result.type(low), number)
    wide = result.itemsize == 8 or x.dtype.itemsize == 8
    nan = np.array(1 << (8 * result.itemsize - 1) if wide else 0, f"u{result.itemsize}").view(result)
    return np.where(np.isnan(x), nan, number)


def _convert(instruction: Instruction) -> Compute:
    if len(instruction.types) != 2:
        raise instruction.error("a conversion needs two types that the machine knows")
    to, origin = instruction.types
    result = DTYPES[to]
    whole = next((TO_INTEGER[name] for name in instruction.modifiers if name in TO_INTEGER), None)
    if is_float(origin) and not is_float(to):
        if whole is None:
            raise instruction.error("a conversion to an integer needs .rni, .rzi, .rmi or .rpi")
        chosen = whole
        return lambda x: _float_to_integer(x, chosen, result)
    if is_float(origin):
        if whole is not None:
            return lambda x: whole(x).astype(result)
        mode = _rounding(instruction)
        return (lambda x: narrow(x, mode)) if (to, origin) == ("f32", "f64") else (lambda x: x.astype(result))
    if is_float(to):
        return _nearest_only(lambda x: x.astype(result))(instruction)
    if instruction.has("sat"):
        return lambda x: _clamp_integer(x, result)
    return lambda x: x.astype(result)


def _clamp_integer(x: Array, result: np.dtype[Any]) -> Array:
    low, high = (np.iinfo(result).min, np.iinfo(result).max)
    own = np.iinfo(x.dtype)
    return np.clip(x, max(low, own.min), min(high, own.max)).astype(result)


# -----------------------------------------------------------------------------------------------------------------
# the table
# -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """An elementwise instruction.

    `make` builds the function from the modifiers. `operands` and `result` have a letter each: T the first type of the
    instruction, S the last, W twice as wide as T, u for u32, p for a predicate; operands in brackets may be missing.
    """

    make: Callable[[Instruction], Compute]
    operands: str
    result: str = "T"

    def kinds(self, instruction: Instruction) -> tuple[list[str], str]:
        """The types of the operands that are there, and of the result."""
        instruction.type  # noqa: B018  refuses an instruction without a known type
        first, last = instruction.types[0], instruction.types[-1]
        wide = f"{first[0]}{2 * bits(first)}" if instruction.has("wide") else first
        names = {"T": first, "S": last, "W": wide, "u": "u32", "p": "pred"}
        given = len(instruction.operands) - 1
        letters = self.operands.replace("[", "").replace("]", "")
        if not len(self.operands.partition("[")[0]) <= given <= len(letters):
            raise instruction.error(f"{given} operands where {self.operands} were expected")
        return [names[letter] for letter in letters[:given]], names[self.result]

    def compute(self, instruction: Instruction) -> Compute:
        """The function, with .ftz and .sat applied where floats are concerned."""
        made = self.make(instruction)
        floats = any(is_float(kind) for kind in instruction.types)
        return _with_float_modifiers(instruction, made) if floats and self.result != "p" else made


def _plain(compute: Compute) -> Callable[[Instruction], Compute]:
    return lambda instruction: compute


def _bitwise_not(instruction: Instruction) -> Compute:
    return np.logical_not if instruction.type == "pred" else np.invert


OPERATIONS: dict[str, Operation] = {
    "add": Operation(_sum(+1), "TT"),
    "sub": Operation(_sum(-1), "TT"),
    "mul": Operation(_multiply, "TT", "W"),
    "mad": Operation(_multiply_add, "TTW", "W"),
    "fma": Operation(_fma, "TTT"),
    "div": Operation(_divide, "TT"),
    "rem": Operation(_plain(_remainder), "TT"),
    "neg": Operation(_plain(np.negative), "T"),
    "abs": Operation(_plain(np.abs), "T"),
    "min": Operation(_extreme(True), "TT"),
    "max": Operation(_extreme(False), "TT"),
    "sqrt": Operation(_nearest_only(np.sqrt), "T"),
    "rsqrt": Operation(_plain(_through_float64(lambda x: 1 / np.sqrt(x))), "T"),
    "rcp": Operation(_reciprocal, "T"),
    "ex2": Operation(_plain(_through_float64(np.exp2)), "T"),
    "lg2": Operation(_plain(_through_float64(np.log2)), "T"),
    "sin": Operation(_plain(_through_float64(np.sin)), "T"),
    "cos": Operation(_plain(_through_float64(np.cos)), "T"),
    "tanh": Operation(_plain(_through_float64(np.tanh)), "T"),
    "copysign": Operation(_plain(lambda sign, size: np.copysign(size, sign)), "TT"),
    "and": Operation(_plain(np.bitwise_and), "TT"),
    "or": Operation(_plain(np.bitwise_or), "TT"),
    "xor": Operation(_plain(np.bitwise_xor), "TT"),
    "not": Operation(_bitwise_not, "T"),
    "shl": Operation(_plain(_shift_left), "Tu"),
    "shr": Operation(_plain(_shift_right), "Tu"),
    "shf": Operation(_funnel, "TTu"),
    "popc": Operation(_plain(_population), "T", "u"),
    "clz": Operation(_plain(_leading_zeros), "T", "u"),
    "brev": Operation(_plain(_bit_reverse), "T"),
    "bfind": Operation(_find_leading, "T", "u"),
    "bfe": Operation(_plain(_extract), "Tuu"),
    "bfi": Operation(_plain(_insert), "TTuu"),
    "prmt": Operation(_permute, "TTu"),
    "setp": Operation(_set_predicates, "TT[p]", "p"),
    "set": Operation(_set_number, "SS"),
    "selp": Operation(_plain(lambda a, b, p: np.where(p, a, b)), "TTp"),
    "slct": Operation(_plain(lambda a, b, c: np.where(c >= 0, a, b)), "TTS"),
    "cvt": Operation(_convert, "S"),
    "cvta": Operation(_plain(lambda x: x), "T"),  # all spaces share one range of addresses, see memory.py
}
