"""K-FAC's direction from the gradient: each block G of it between two orthogonal matrices, weighed in between.

    U = S (W ∘ (Sᵀ G A)) Aᵀ, then G ← ν U with the factor ν that all blocks share

Blocks and all their matrices lie in rows of whole blocks of lanes, with zeros behind the last column. A kernel works on
a slice of the rows, in whole panels, or of the lanes, in whole spans, so that slices do not change a bit.
"""

from __future__ import annotations

import numpy as np

from rop.kernels import rules
from rop.kernels.compile import Slice, helper, itemsize, kernel, loop
from rop.kernels.cpu.gemm import BY_ROWS, PANEL, SPAN, multiply
from rop.kernels.cpu.memory import doubles, reals
from rop.kernels.cpu.vector import number_in

STRIP = 8 * SPAN  # bytes of the lanes that a product takes at a time: a strip of a wide matrix stays in the cache

natural_scale = helper(rules.natural_scale)


@helper
def units_of(size, unit, part):
    """Begin and end of a slice of so much in whole units; ``part`` is a Slice."""
    units = (size + unit - 1) // unit
    return min(size, units * part[0] // part[1] * unit), min(size, units * (part[0] + 1) // part[1] * unit)


@kernel
def take_block(g, weight, bias, rows, columns, row_bytes, of_rows: Slice):
    """G (row, column) = [W b], from W (row, column) and b (row,), the address 0 for none."""
    low, high = units_of(rows, PANEL, of_rows)
    for row in range(low, high):
        target, source = reals(g + row * row_bytes, columns + 1), reals(weight + row * columns * itemsize, columns)
        for i in range(columns):
            target[i] = source[i]
        if bias != 0:
            target[columns] = reals(bias + row * itemsize, 1)[0]


@kernel
def product(c, a, a_row, b, row_bytes, rows, lane_bytes, segment, zeros, of_rows: Slice, of_lanes: Slice):
    """C (row, lane) = A B, with rows of A that are ``a_row`` bytes apart and rows of B and C that are ``row_bytes``
    apart; ``segment`` is the address of the one segment, all rows of B."""
    low, high = units_of(rows, PANEL, of_rows)
    begin, end = units_of(lane_bytes, SPAN, of_lanes)
    for t in range(begin, end, STRIP):
        left, right = a + low * a_row, b + t
        multiply(
            (c + low * row_bytes + t, row_bytes),
            (high - low, a_row, BY_ROWS),
            (min(STRIP, end - t), row_bytes),
            (zeros, 0),
            (0, 0),
            (1, left, right, left, right, left, right),
            (segment, 1),
        )


@loop
def _multiply_into(y, x):
    for i in range(y.size):
        y[i] *= x[i]


@kernel
def weigh(y, weights, rows, row_bytes, lane_bytes, of_lanes: Slice):
    """Y (row, lane) ∘= weights."""
    begin, end = units_of(lane_bytes, SPAN, of_lanes)
    for row in range(rows):
        at, count = row * row_bytes + begin, (end - begin) // itemsize
        _multiply_into(reals(y + at, count), reals(weights + at, count))


@loop
def _dot(x, y):
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@kernel
def agreement(sums, u, g, rows, columns, row_bytes, of_rows: Slice):
    """sums[slice] = Σ U ∘ G over the rows of a slice."""
    low, high = units_of(rows, PANEL, of_rows)
    total = 0.0
    for row in range(low, high):
        total += _dot(reals(u + row * row_bytes, columns), reals(g + row * row_bytes, columns))
    doubles(sums, of_rows[0] + 1)[of_rows[0]] = total


@kernel
def shorten(scale, sums, count, rate, clip):
    """scale[0] = ν, from the sums of all slices, in their order; ``rate`` is the address of the learning rate."""
    total = 0.0
    for one in doubles(sums, count):
        total += one
    reals(scale, 1)[0] = natural_scale(number_in(clip), doubles(rate, 1)[0], total)


@kernel
def put_block(weight, bias, u, scale, rows, columns, row_bytes, of_rows: Slice):
    """The reverse of ``take_block``, times scale[0]."""
    low, high = units_of(rows, PANEL, of_rows)
    factor = reals(scale, 1)[0]
    for row in range(low, high):
        source, target = reals(u + row * row_bytes, columns + 1), reals(weight + row * columns * itemsize, columns)
        for i in range(columns):
            target[i] = factor * source[i]
        if bias != 0:
            reals(bias + row * itemsize, 1)[0] = factor * source[columns]
