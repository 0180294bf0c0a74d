"""Layers that are one fixed linear map (average pooling, concatenation, addition, flattening), the same at all
orders."""

from __future__ import annotations

from rop.kernels.compile import Extent, PerPrecision, Slice, Windows, itemsize, kernel, loop
from rop.kernels.cpu.memory import bounds_of, clear, integers, reals, window_entry
from rop.kernels.cpu.select import ENTRY
from rop.kernels.cpu.vector import VECTOR, VectorBuilder, const, peek, vector_function


def _emit_weighted(e: VectorBuilder, y, x, entries, count, size) -> None:
    """y = Σ coefficient · x over the entries (byte offset, bits of the coefficient as float64)."""

    def vector(i, _):
        lane = e.b.mul(i, const(VECTOR))

        def add(j, total):
            where = e.at(entries, e.b.mul(j, const(ENTRY)))
            coefficient = e.splat(e.load_scalar(e.at(where, 8)))
            return [e.fma(coefficient, e.load(e.at(x, e.load_int(where), lane)), total[0])]

        e.store(e.loop(count, [e.number(0)], add)[0], e.at(y, lane))
        return []

    e.loop(e.b.sdiv(size, const(VECTOR)), [], vector)


weighted = PerPrecision(vector_function(_emit_weighted))


@kernel
def weighted_sum(y, x, bounds, pixels, size):
    """Average pooling in both directions: each pixel (``size`` bytes of rows) is a weighted sum of pixels of x. The
    coefficient of an entry lies in its second word, in the engine's precision."""
    for p in range(pixels):
        first = peek(bounds + 8 * p)
        weighted(y + p * size, x, first, (peek(bounds + 8 * p + 8) - first) // ENTRY, size)


@loop
def _add_weighted(y, x, lane, weight):
    for t in range(y.size):
        y[t] += weight[t] * x[lane[t]]


@kernel
def weighted_lanes(y, x, windows: Windows, y_extent: Extent, x_extent: Extent, part: Slice):
    """Average pooling on pixel lanes, in both directions: each lane of y is a weighted sum of lanes of x, with the
    same windows and weights in every channel."""
    (_, channels, count, y_step), (_, _, source_count, x_step) = y_extent, x_extent
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target = reals(y + c * y_step, count)
        clear(target)
        for entry in range(windows[0]):
            lane, weight = window_entry(windows, entry, count)
            _add_weighted(target, reals(x + c * x_step, source_count), lane, weight)


@loop
def _copy(y, x):
    for i in range(y.size):
        y[i] = x[i]


@loop
def _add(y, x):
    for i in range(y.size):
        y[i] += x[i]


@kernel
def copy_rows(y, x, pixels, y_step, x_step, count, part: Slice):
    """Copies ``count`` numbers per pixel, for concatenation and its reverse; pixels are y_step or x_step bytes
    apart."""
    low, high = bounds_of(count, part)
    for p in range(pixels):
        at = low * itemsize
        _copy(reals(y + p * y_step + at, high - low), reals(x + p * x_step + at, high - low))


@kernel
def add_rows(y, x, count, part: Slice):
    """y += x, both (count,)."""
    low, high = bounds_of(count, part)
    _add(reals(y + low * itemsize, high - low), reals(x + low * itemsize, high - low))


@kernel
def permute_rows(y, x, order, rows, lanes):
    """Row i of y (row, lane) is row order[i] of x (row, lane)."""
    source = integers(order, rows)
    for i in range(rows):
        _copy(reals(y + i * lanes * itemsize, lanes), reals(x + source[i] * lanes * itemsize, lanes))
