"""The phases of a map on pixel lanes: pixels whose row and column leave the same remainders when divided by a stride.

Windows that move by the stride read each phase as windows that move by one pixel read a map. So a map is divided into
its phases before a layer with a stride reads it, and the phases of a gradient are joined after the layer has made them.

    x (channel, sample, row, column)      y (channel, phase, sample, row // stride, column // stride)
"""

from __future__ import annotations

from rop.kernels.compile import Pair, PerPrecision, Slice, algebra, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, integers, reals
from rop.kernels.cpu.vector import VECTOR, Value, VectorBuilder, const, vector_function
from rop.layers import relu as layer

rectified = algebra(layer.rectified)

# The words of the table of a division.
PHASE_WORDS = 11
(
    CHANNELS,
    IMAGES,
    HEIGHT,
    WIDTH,
    DOWN,  # the stride from row to row,
    ACROSS,  # and from column to column
    PHASE_HEIGHT,
    PHASE_WIDTH,
    PHASE_STEP,  # bytes from phase to phase
    X_STEP,  # bytes from channel to channel
    Y_STEP,
) = range(PHASE_WORDS)


def _both(e: VectorBuilder, width: Value, i: Value) -> tuple[list[Value], list[Value]]:
    """Of a row, from its pixel 2·i·lanes on: which lanes of the next two vectors are pixels, and which of those that
    have its even, and its odd pixels."""
    left = e.b.sub(width, e.b.mul(i, const(2 * e.lanes)))
    odd = e.b.ashr(left, const(1))
    pixels = [e.first_lanes(left), e.first_lanes(e.b.sub(left, const(e.lanes)))]
    return pixels, [e.first_lanes(e.b.sub(left, odd)), e.first_lanes(odd)]


def _each_two_vectors(e: VectorBuilder, width: Value, work) -> None:
    def step(i, _):
        work(i, e.b.mul(i, const(2 * VECTOR)), e.b.mul(i, const(VECTOR)))
        return []

    e.loop(e.b.sdiv(e.at(width, 2 * e.lanes - 1), const(2 * e.lanes)), [], step)


def _emit_divide_row(e: VectorBuilder, y, phase_step, x, width) -> None:
    """The even and the odd pixels of a row, into two phases."""
    orders = [[2 * i + odd for i in range(e.lanes)] for odd in (0, 1)]

    def work(i, at, half):
        pixels, halves = _both(e, width, i)
        a, b = (e.load_some(e.at(x, at, VECTOR * v), there) for v, there in enumerate(pixels))
        for odd, (order, there) in enumerate(zip(orders, halves, strict=True)):
            e.store_some(e.shuffle(a, b, order), e.at(y, half, e.b.mul(phase_step, const(odd))), there)

    _each_two_vectors(e, width, work)


def _emit_join_row(e: VectorBuilder, x, y, phase_step, width, add, mask) -> None:
    """x (+)= a row from its even and its odd pixels; with ``mask``, which lies like x or is the address 0, zero where
    the mask is ≤ 0."""
    adds, zero = e.truth(e.b.icmp_signed("!=", add, const(0))), e.number(0)
    orders = [[i // 2 + i % 2 * e.lanes for i in range(v * e.lanes, (v + 1) * e.lanes)] for v in (0, 1)]

    def work(i, at, half):
        pixels, halves = _both(e, width, i)
        even, odd = (e.load_some(e.at(y, half, e.b.mul(phase_step, const(k))), there) for k, there in enumerate(halves))
        offsets = [e.at(at, VECTOR * v) for v in range(2)]
        values = [
            e.b.fadd(e.shuffle(even, odd, order), e.load_some(e.at(x, offset), e.b.and_(there, adds)))
            for order, there, offset in zip(orders, pixels, offsets, strict=True)
        ]
        with e.b.if_else(e.b.icmp_signed("==", mask, const(0))) as (plain, masked):
            with plain:
                for value, there, offset in zip(values, pixels, offsets, strict=True):
                    e.store_some(value, e.at(x, offset), there)
            with masked:  # relu.is_off, as vector instructions
                for value, there, offset in zip(values, pixels, offsets, strict=True):
                    off = e.b.fcmp_ordered("<=", e.load_some(e.at(mask, offset), there), zero)
                    e.store_some(e.b.select(off, zero, value), e.at(x, offset), there)

    _each_two_vectors(e, width, work)


divide_row = PerPrecision(vector_function(_emit_divide_row))
join_row = PerPrecision(vector_function(_emit_join_row))


@loop
def _take(target, source, stride):
    for i in range(target.size):
        target[i] = source[i * stride]


@loop
def _give(target, stride, source, add):
    for i in range(source.size):
        target[i * stride] = target[i * stride] + source[i] if add else source[i]


@loop
def _switch_off(x, mask):
    for i in range(x.size):
        x[i] = rectified(x[i], mask[i], real(0))


@helper
def row_places(words, channel, sample, row):
    """Bytes before a row of an image in x, and before its first phase in y."""
    x = channel * words[X_STEP] + (sample * words[HEIGHT] + row) * words[WIDTH] * itemsize
    phase, within = row % words[DOWN] * words[ACROSS], row // words[DOWN]
    line = (sample * words[PHASE_HEIGHT] + within) * words[PHASE_WIDTH] * itemsize
    return x, channel * words[Y_STEP] + phase * words[PHASE_STEP] + line


@helper
def columns_of(words, phase):
    """How many columns of an image a phase has."""
    return (words[WIDTH] - phase + words[ACROSS] - 1) // words[ACROSS]


@kernel
def divide(y, x, table, part: Slice):
    """y = the phases of x, of a slice of the channels."""
    words = integers(table, PHASE_WORDS)
    low, high = bounds_of(words[CHANNELS], part)
    for channel in range(low, high):
        for sample in range(words[IMAGES]):
            for row in range(words[HEIGHT]):
                from_x, to_y = row_places(words, channel, sample, row)
                if words[ACROSS] == 2:
                    divide_row(y + to_y, words[PHASE_STEP], x + from_x, words[WIDTH])
                else:
                    for phase in range(min(words[ACROSS], words[WIDTH])):
                        source = reals(x + from_x + phase * itemsize, words[WIDTH] - phase)
                        target = reals(y + to_y + phase * words[PHASE_STEP], columns_of(words, phase))
                        _take(target, source, words[ACROSS])


@kernel
def join(x, y, gate: Pair, table, part: Slice):
    """x (+)= what the phases y belong to, of a slice of the channels; ``gate`` is (whether to add, mask)."""
    words = integers(table, PHASE_WORDS)
    add, mask = gate
    low, high = bounds_of(words[CHANNELS], part)
    for channel in range(low, high):
        for sample in range(words[IMAGES]):
            for row in range(words[HEIGHT]):
                to_x, from_y = row_places(words, channel, sample, row)
                if words[ACROSS] == 2:
                    here = mask + to_x if mask != 0 else 0
                    join_row(x + to_x, y + from_y, words[PHASE_STEP], words[WIDTH], add, here)
                else:
                    for phase in range(min(words[ACROSS], words[WIDTH])):
                        target = reals(x + to_x + phase * itemsize, words[WIDTH] - phase)
                        source = reals(y + from_y + phase * words[PHASE_STEP], columns_of(words, phase))
                        _give(target, words[ACROSS], source, add != 0)
                    if mask != 0:
                        _switch_off(reals(x + to_x, words[WIDTH]), reals(mask + to_x, words[WIDTH]))
