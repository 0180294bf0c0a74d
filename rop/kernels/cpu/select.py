"""Select layers (ReLU, leaky ReLU, max pooling): order 0 picks a linear map, every order goes through it.

A window's choice is stored as the number of the chosen position, −1 for none. ``bounds`` (pixels + 1,) holds, for each
pixel, the address of its first entry; an entry is (byte offset of the other pixel's rows, position). The backward table
is sorted by input pixel, so that every gradient is written once, even where windows overlap.

    x, g     (input pixel, channel, lane)      y, chosen, h   likewise for the pixels of the output or input
"""

from __future__ import annotations

from rop.kernels.compile import PerPrecision, Slice, algebra, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, integers, reals
from rop.kernels.cpu.reads import C_STEP, READS_WORDS, SHIFTS, TAPS, TARGET, X_STEP, Strip, per_strip, strips_of
from rop.kernels.cpu.vector import VECTOR, Value, VectorBuilder, const, number_in, peek, vector_function
from rop.layers import relu as layer

ENTRY = 16  # bytes: offset, position (or, for averages, coefficient)


rectified = algebra(layer.rectified)


@loop
def _rectify(y, x, x0, slope):
    for i in range(y.size):
        y[i] = rectified(x[i], x0[i], slope)


@loop
def _rectify_self(y, x, slope):
    for i in range(y.size):
        y[i] = rectified(x[i], x[i], slope)


@loop
def _rectify_in_place(y, x0, slope):
    for i in range(y.size):
        y[i] = rectified(y[i], x0[i], slope)


@loop
def _rectify_self_in_place(y, slope):
    for i in range(y.size):
        y[i] = rectified(y[i], y[i], slope)


@kernel
def rectify(y, x, mask, slope, count, part: Slice):
    """y = φ x, all (count,); y may be x. The slope φ is picked by ``mask``, which is order 0 of the layer's input, or,
    for a ReLU, of its output. ``slope`` holds the bits of the negative slope."""
    low, high = bounds_of(count, part)
    count = high - low
    y, x, mask = y + low * itemsize, x + low * itemsize, mask + low * itemsize
    if y == x and mask == x:
        _rectify_self_in_place(reals(y, count), real(number_in(slope)))
    elif y == x:
        _rectify_in_place(reals(y, count), reals(mask, count), real(number_in(slope)))
    elif mask == x:
        _rectify_self(reals(y, count), reals(x, count), real(number_in(slope)))
    else:
        _rectify(reals(y, count), reals(x, count), reals(mask, count), real(number_in(slope)))


# ---------------------------------------------------------------------------------------------------------- max pooling
def _each_vector(e: VectorBuilder, size, work) -> None:
    """work(byte offset) for every vector of ``size`` bytes of rows."""

    def step(i, _):
        work(e.b.mul(i, const(VECTOR)))
        return []

    e.loop(e.b.sdiv(size, const(VECTOR)), [], step)


def _entry(e: VectorBuilder, entries, i):
    where = e.at(entries, e.b.mul(i, const(ENTRY)))
    return e.load_int(where), e.splat(e.b.sitofp(e.load_int(e.at(where, 8)), e.scalar))


def _emit_largest(e: VectorBuilder, y, chosen, x, entries, count, size, relu) -> None:
    """y = max over the window: the first of equal numbers, or a NaN if there is one; with ``relu``, y = 0 and no choice
    where the maximum is off (``is_off`` in rop/layers/relu.py, here in vector instructions)."""
    floor = e.b.select(e.b.icmp_signed("!=", relu, const(0)), e.number(0), e.number(float("-inf")))

    def work(lane):
        def better(i, best):
            offset, position = _entry(e, entries, i)
            value = e.load(e.at(x, offset, lane))
            larger = e.b.or_(e.b.fcmp_ordered(">", value, best[0]), e.b.fcmp_unordered("uno", value, value))
            take = e.b.or_(larger, e.truth(e.b.icmp_signed("==", i, const(0))))  # the first even if it is -inf
            return [e.b.select(take, value, best[0]), e.b.select(take, position, best[1])]

        value, position = e.loop(count, [e.number(float("-inf")), e.number(-1)], better)
        cut = e.b.and_(e.b.fcmp_ordered("<=", value, floor), e.truth(e.b.icmp_signed("!=", relu, const(0))))
        e.store(e.b.select(cut, floor, value), e.at(y, lane))
        e.store(e.b.select(cut, e.number(-1), position), e.at(chosen, lane))

    _each_vector(e, size, work)


def _emit_chosen(e: VectorBuilder, y, chosen, x, entries, count, size) -> None:
    """y = x at the chosen position of the window."""

    def work(lane):
        choice = e.load(e.at(chosen, lane))

        def pick(i, value):
            offset, position = _entry(e, entries, i)
            here = e.b.fcmp_ordered("==", choice, position)
            return [e.b.select(here, e.load(e.at(x, offset, lane)), value[0])]

        e.store(e.loop(count, [e.number(0)], pick)[0], e.at(y, lane))

    _each_vector(e, size, work)


def _emit_returned(e: VectorBuilder, h, chosen, g, entries, count, size) -> None:
    """h = Σ g over the windows that chose this pixel."""

    def work(lane):
        def add(i, total):
            offset, position = _entry(e, entries, i)
            here = e.b.fcmp_ordered("==", e.load(e.at(chosen, offset, lane)), position)
            value = e.b.select(here, e.load(e.at(g, offset, lane)), e.number(0))
            return [e.b.fadd(total[0], value)]

        e.store(e.loop(count, [e.number(0)], add)[0], e.at(h, lane))

    _each_vector(e, size, work)


largest = PerPrecision(vector_function(_emit_largest))
chosen_of = PerPrecision(vector_function(_emit_chosen))
returned = PerPrecision(vector_function(_emit_returned))


@kernel
def pool_largest(y, chosen, x, bounds, pixels, size, relu):
    """Order 0 of max pooling (followed by a ReLU, if ``relu``); ``size`` bytes of rows per pixel."""
    for p in range(pixels):
        first = peek(bounds + 8 * p)
        largest(y + p * size, chosen + p * size, x, first, (peek(bounds + 8 * p + 8) - first) // ENTRY, size, relu)


@kernel
def pool_chosen(y, chosen, x, bounds, pixels, size):
    """Order 1 or 2 of max pooling, which reads the choice of order 0."""
    for p in range(pixels):
        first = peek(bounds + 8 * p)
        chosen_of(y + p * size, chosen + p * size, x, first, (peek(bounds + 8 * p + 8) - first) // ENTRY, size)


@kernel
def pool_returned(h, chosen, g, bounds, pixels, size):
    """Any order of the gradient h of max pooling; bounds are those of the input pixels."""
    for p in range(pixels):
        first = peek(bounds + 8 * p)
        returned(h + p * size, chosen, g, first, (peek(bounds + 8 * p + 8) - first) // ENTRY, size)


# On pixel lanes windows are read strip by strip (reads.py). A tap of a window is a position; ``taps`` are their number,
# the address of their shifts and that of their positions.
def _over_taps(e: VectorBuilder, strip: Strip, taps, first: list[Value], step) -> list[Value]:
    """What step(carried, tap, position) makes of ``first``, tap by tap."""
    count, shifts, positions = taps

    def body(i, carried):
        position = e.b.sitofp(e.load_int(e.at(positions, e.b.mul(i, const(8)))), e.scalar)
        return step(carried, strip.tap(i, shifts), e.splat(position))

    return e.loop(count, first, body)


def _emit_largest_strip(e: VectorBuilder, y, chosen, x, words, taps, relu) -> None:
    """The same as ``largest``, at the positions of a strip."""
    relus, none = e.truth(e.b.icmp_signed("!=", relu, const(0))), e.number(-2)

    def emit(strip: Strip) -> None:
        for lane in strip:

            def step(best, tap, position, lane=lane):
                value = tap.read(x, lane)
                larger = e.b.or_(e.b.fcmp_ordered(">", value, best[0]), e.b.fcmp_unordered("uno", value, value))
                is_first = e.b.fcmp_ordered("==", best[1], none)  # it counts even if it is -inf
                take = e.b.and_(tap.there(lane), e.b.or_(larger, is_first))
                return [e.b.select(take, value, best[0]), e.b.select(take, position, best[1])]

            value, position = _over_taps(e, strip, taps, [e.number(float("-inf")), none], step)
            cut = e.b.and_(e.b.fcmp_ordered("<=", value, e.number(0)), relus)
            e.store(e.b.select(cut, e.number(0), value), e.at(y, lane))
            e.store(e.b.select(cut, e.number(-1), position), e.at(chosen, lane))

    per_strip(e, words, emit)


def _emit_chosen_strip(e: VectorBuilder, y, chosen, x, words, taps) -> None:
    """The same as ``chosen_of``, at the positions of a strip."""

    def emit(strip: Strip) -> None:
        for lane in strip:
            choice = e.load(e.at(chosen, lane))

            def step(value, tap, position, lane=lane, choice=choice):
                here = e.b.fcmp_ordered("==", choice, position)
                return [e.b.select(here, tap.read(x, lane), value[0])]

            e.store(_over_taps(e, strip, taps, [e.number(0)], step)[0], e.at(y, lane))

    per_strip(e, words, emit)


def _emit_returned_strip(e: VectorBuilder, h, chosen, g, words, taps) -> None:
    """The same as ``returned``, at the positions of a strip."""

    def emit(strip: Strip) -> None:
        for lane in strip:

            def step(total, tap, position, lane=lane):
                here = e.b.and_(e.b.fcmp_ordered("==", tap.read(chosen, lane), position), tap.there(lane))
                return [e.b.fadd(total[0], e.b.select(here, tap.read(g, lane), e.number(0)))]

            e.store(_over_taps(e, strip, taps, [e.number(0)], step)[0], e.at(h, lane))

    per_strip(e, words, emit)


largest_strip = PerPrecision(vector_function(_emit_largest_strip, taps=3))
chosen_strip = PerPrecision(vector_function(_emit_chosen_strip, taps=3))
returned_strip = PerPrecision(vector_function(_emit_returned_strip, taps=3))


@kernel
def pool_largest_strips(y, chosen, x, table, positions, channels, relu, part: Slice):
    """Order 0 of max pooling (followed by a ReLU, if ``relu``) on a slice of the channels."""
    words = integers(table, READS_WORDS)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        for strip in strips_of(words):
            at, source = c * words[C_STEP] + peek(strip + 8 * TARGET), x + c * words[X_STEP]
            largest_strip(y + at, chosen + at, source, strip, (words[TAPS], words[SHIFTS], positions), relu)


@kernel
def pool_chosen_strips(y, chosen, x, table, positions, channels, part: Slice):
    """Order 1 or 2 of max pooling, which reads the choice of order 0."""
    words = integers(table, READS_WORDS)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        for strip in strips_of(words):
            at, source = c * words[C_STEP] + peek(strip + 8 * TARGET), x + c * words[X_STEP]
            chosen_strip(y + at, chosen + at, source, strip, (words[TAPS], words[SHIFTS], positions))


@kernel
def pool_returned_strips(h, chosen, g, table, positions, channels, part: Slice):
    """Any order of the gradient h of max pooling."""
    words = integers(table, READS_WORDS)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        for strip in strips_of(words):
            at, source = c * words[C_STEP] + peek(strip + 8 * TARGET), c * words[X_STEP]
            returned_strip(h + at, chosen + source, g + source, strip, (words[TAPS], words[SHIFTS], positions))
