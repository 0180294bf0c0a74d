"""Select layers (ReLU, leaky ReLU, max pooling): order 0 picks a linear map, every order goes through it.

A window's choice is stored as the number of the chosen position, −1 for none. ``bounds`` (pixels + 1,) holds, for each
pixel, the address of its first entry; an entry is (byte offset of the other pixel's rows, position). The backward table
is sorted by input pixel, so that every gradient is written once, even where windows overlap.

    x, g     (input pixel, channel, lane)      y, chosen, h   likewise for the pixels of the output or input
"""

from __future__ import annotations

from rop.kernels.compile import Extent, PerPrecision, Slice, Windows, algebra, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, clear, reals, window_entry
from rop.kernels.cpu.vector import VECTOR, VectorBuilder, const, number_in, peek, vector_function
from rop.layers import relu as layer

ENTRY = 16  # bytes: offset, position (or, for averages, coefficient)


is_off, rectified = algebra(layer.is_off), algebra(layer.rectified)


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


# On pixel lanes every channel has the same windows. An entry has a lane of the other map for each window, and its
# position; windows with fewer entries repeat their first one, or have a position that nothing chooses. One entry of all
# windows is a loop that reads many lanes at once.
@loop
def _begin(best, choice, x, lane, position):
    for t in range(best.size):
        best[t] = x[lane[t]]
        choice[t] = position[t]


@loop
def _larger(best, choice, x, lane, position):
    """Takes what is larger, or not a number."""
    for t in range(best.size):
        value = x[lane[t]]
        take = value > best[t] or value != value
        best[t] = value if take else best[t]
        choice[t] = position[t] if take else choice[t]


@loop
def _rectify_choice(best, choice):
    for t in range(best.size):
        off = is_off(best[t])
        best[t] = real(0) if off else best[t]
        choice[t] = real(-1) if off else choice[t]


@loop
def _pick(y, choice, x, lane, position):
    for t in range(y.size):
        y[t] = x[lane[t]] if choice[t] == position[t] else y[t]


@loop
def _return(h, choice, g, lane, position):
    for t in range(h.size):
        h[t] += g[lane[t]] if choice[lane[t]] == position[t] else real(0)


@kernel
def pool_largest_lanes(y, chosen, x, windows: Windows, y_extent: Extent, x_extent: Extent, relu, part: Slice):
    """Order 0 of max pooling (followed by a ReLU, if ``relu``)."""
    (_, channels, count, y_step), (_, _, source_count, x_step) = y_extent, x_extent
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target, choice = reals(y + c * y_step, count), reals(chosen + c * y_step, count)
        source = reals(x + c * x_step, source_count)
        for entry in range(windows[0]):
            lane, position = window_entry(windows, entry, count)
            if entry == 0:
                _begin(target, choice, source, lane, position)
            else:
                _larger(target, choice, source, lane, position)
        if relu != 0:
            _rectify_choice(target, choice)


@kernel
def pool_chosen_lanes(y, chosen, x, windows: Windows, y_extent: Extent, x_extent: Extent, part: Slice):
    """Order 1 or 2 of max pooling, which reads the choice of order 0."""
    (_, channels, count, y_step), (_, _, source_count, x_step) = y_extent, x_extent
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target, choice = reals(y + c * y_step, count), reals(chosen + c * y_step, count)
        clear(target)
        for entry in range(windows[0]):
            lane, position = window_entry(windows, entry, count)
            _pick(target, choice, reals(x + c * x_step, source_count), lane, position)


@kernel
def pool_returned_lanes(h, chosen, g, windows: Windows, h_extent: Extent, g_extent: Extent, part: Slice):
    """Any order of the gradient h of max pooling; windows are those of the lanes of h."""
    (_, channels, count, h_step), (_, _, source_count, g_step) = h_extent, g_extent
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target = reals(h + c * h_step, count)
        source, choice = reals(g + c * g_step, source_count), reals(chosen + c * g_step, source_count)
        clear(target)
        for entry in range(windows[0]):
            lane, position = window_entry(windows, entry, count)
            _return(target, choice, source, lane, position)
