"""Batch normalisation in both modes, all orders.

Each node has, per order, a *channel table* (FIELDS, channels): the jets of the mean m, of r, q = γ r, t = q r², and of
a and b of the backward pass. Tiles add up their share of the sums (in float64), one unit combines the shares into the
tables, and tiles apply them. A kernel's work can be divided into slices of the channels. Padding lanes, where ``mask``
is 0, are left out of sums and get gradient 0. Evaluation mode fills the tables
from running statistics instead, with a = b = 0; the rest is the same. The formulas are those of
rop/layers/batchnorm.py.

    x_k, g_k, y, h   (pixel, channel, lane), as an Extent says      mask   (lane,)
    table_k   (FIELDS, channels)                                      sums   (channels, SUMS) float64
"""

from __future__ import annotations

from rop.kernels.compile import Extent, Jet, Pair, Slice, algebra, formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, doubles, reals
from rop.kernels.cpu.vector import number_in, peek
from rop.layers import batchnorm as layer
from rop.layers import relu as rectifier

merged, centred = algebra(layer.merged), algebra(layer.centred)
variance_0 = algebra(layer.variance_0)
variance_1 = algebra(layer.variance_1)
variance_2 = algebra(layer.variance_2)
inverse_root_0 = algebra(layer.inverse_root_0)
inverse_root_1, inverse_root_2 = formula(layer.inverse_root_1), formula(layer.inverse_root_2)
scale_0 = algebra(layer.scale_0)
scale_1 = algebra(layer.scale_1)
scale_2 = algebra(layer.scale_2)
square_1, square_2 = algebra(layer.square_1), algebra(layer.square_2)
cube_0 = algebra(layer.cube_0)
cube_1 = algebra(layer.cube_1)
cube_2 = algebra(layer.cube_2)
output_0 = algebra(layer.output_0)
output_1 = algebra(layer.output_1)
output_2 = algebra(layer.output_2)
rectified = algebra(rectifier.rectified)
input_gradient_0 = algebra(layer.input_gradient_0)
input_gradient_1 = algebra(layer.input_gradient_1)
input_gradient_2 = algebra(layer.input_gradient_2)

# Rows of a channel table: m, r, q, t, a, b, s, N.
MEAN, ROOT, SCALE, CUBE, SHIFT, SLOPE, VARIANCE, COUNT = range(8)
FIELDS = 8
SUMS = 3  # float64 per channel and tile
PIECE = 1024  # lanes that are summed in the engine's precision; pieces are added up in float64


@helper
def field(table, which, channels):
    """Row ``which`` of a channel table, as an array (channels,)."""
    return reals(table + which * channels * itemsize, channels)


@helper
def counted(mask):
    """The number of lanes that are not padding."""
    count = 0
    for t in range(mask.size):
        count += 1 if mask[t] != 0 else 0
    return count


@loop
def _masked_sum(x, mask):
    """Σ x over the lanes that are not padding."""
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * x[t]
    return s


@loop
def _masked_product(x, y, a, b, mask):
    """Σ (x − a)(y − b) over the lanes that are not padding."""
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * centred(x[t], a) * centred(y[t], b)
    return s


@loop
def _masked_square(x, a, mask):
    """Σ (x − a)² over the lanes that are not padding."""
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * centred(x[t], a) * centred(x[t], a)
    return s


# ----------------------------------------------------------------------------------------------------------- statistics
@helper
def _row_sum(x, mask, lanes):
    """Σ x of a row, in float64 over pieces."""
    total = 0.0
    for t in range(0, lanes, PIECE):
        n = min(PIECE, lanes - t)
        total += _masked_sum(reals(x + t * itemsize, n), reals(mask + t * itemsize, n))
    return total


@helper
def _row_square(x, a, mask, lanes):
    """Σ (x − a)² of a row."""
    total = 0.0
    for t in range(0, lanes, PIECE):
        n = min(PIECE, lanes - t)
        total += _masked_square(reals(x + t * itemsize, n), a, reals(mask + t * itemsize, n))
    return total


@helper
def _row_product(x, y, a, b, mask, lanes):
    """Σ (x − a)(y − b) of a row."""
    total = 0.0
    for t in range(0, lanes, PIECE):
        n, o = min(PIECE, lanes - t), t * itemsize
        total += _masked_product(reals(x + o, n), reals(y + o, n), a, b, reals(mask + o, n))
    return total


@kernel
def moments(sums, order, x: Jet, tables: Jet, mask, extent: Extent, part: Slice):
    """A tile's share of the sums, three numbers per channel: at order 0 the count, the mean and S_00 of the tile, at
    order 1 Σ x_1 and S_01, at order 2 Σ x_2, S_02 and S_11."""
    (x0, x1, x2), (table0, table1, _) = x, tables
    pixels, channels, lanes, row = extent
    count = counted(reals(mask, lanes)) * pixels
    result = doubles(sums, SUMS * channels)
    mean_0, mean_1 = field(table0, MEAN, channels), field(table1, MEAN, channels)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        first = 0.0
        second = 0.0
        third = 0.0
        if order == 0:
            for p in range(pixels):
                first += _row_sum(x0 + (p * channels + c) * row, mask, lanes)
            mean = first / max(count, 1)  # a tile may hold nothing but padding: the last batch of an epoch
            for p in range(pixels):
                second += _row_square(x0 + (p * channels + c) * row, real(mean), mask, lanes)
            first, second, third = float(count), mean, second
        else:
            for p in range(pixels):
                o = (p * channels + c) * row
                value = (x1 if order == 1 else x2) + o
                first += _row_sum(value, mask, lanes)
                second += _row_product(x0 + o, value, mean_0[c], real(0), mask, lanes)
                if order == 2:
                    third += _row_square(x1 + o, mean_1[c], mask, lanes)
        result[SUMS * c] = first
        result[SUMS * c + 1] = second
        result[SUMS * c + 2] = third


@kernel
def statistics(order, tables: Jet, sums, step, tiles, channels, eps, gamma: Pair, part: Slice):
    """Order k of the channel tables in training mode, from the shares of all tiles, added in the order of the tiles.
    ``tiles`` is the address of their number, ``step`` the bytes from one tile's share to the next."""
    (table0, table1, table2), (gamma0, gamma1), n_tiles = tables, gamma, peek(tiles)
    table = table0 if order == 0 else table1 if order == 1 else table2
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        count = 0.0
        first = 0.0
        second = 0.0
        third = 0.0
        for tile in range(n_tiles):
            one = doubles(sums + tile * step + SUMS * c * 8, SUMS)
            if order == 0:
                count, first, second = merged(count, first, second, one[0], one[1], one[2])
            else:
                first += one[0]
                second += one[1]
                third += one[2]
        if order == 0:
            field(table0, COUNT, channels)[c] = real(count)
            field(table0, MEAN, channels)[c] = real(first)
            variance = variance_0(second, count)  # in float64, like the sums of the tiles
            field(table0, VARIANCE, channels)[c] = real(variance)
            field(table0, ROOT, channels)[c] = real(inverse_root_0(variance, number_in(eps)))
        else:
            n = field(table0, COUNT, channels)[c]
            r0 = field(table0, ROOT, channels)[c]
            field(table, MEAN, channels)[c] = real(first) / n
            if order == 1:
                s1 = variance_1(real(second), n)
                field(table, VARIANCE, channels)[c] = s1
                field(table, ROOT, channels)[c] = inverse_root_1(r0, s1)
            else:
                s2 = variance_2(real(second), real(third), n)
                field(table, ROOT, channels)[c] = inverse_root_2(r0, field(table1, VARIANCE, channels)[c], s2)
        _scales(order, table0, table1, table2, c, channels, reals(gamma0, channels)[c], reals(gamma1, channels)[c])


@helper
def _scales(order, table0, table1, table2, c, channels, gamma0, gamma1):
    """Order k of q = γ r and of t = q r²."""
    r0, q0 = field(table0, ROOT, channels), field(table0, SCALE, channels)
    if order == 0:
        q0[c] = scale_0(gamma0, r0[c])
        field(table0, CUBE, channels)[c] = cube_0(q0[c], r0[c])
        return
    r1, q1 = field(table1, ROOT, channels), field(table1, SCALE, channels)
    square1 = square_1(r0[c], r1[c])
    if order == 1:
        root1, root0 = r1[c], r0[c]
        q1[c] = scale_1(gamma0, gamma1, root0, root1)
        scale1, root0, scale0 = q1[c], r0[c], q0[c]
        field(table1, CUBE, channels)[c] = cube_1(scale0, scale1, root0, square1)
        return
    r2, q2 = field(table2, ROOT, channels), field(table2, SCALE, channels)
    q2[c] = scale_2(gamma0, gamma1, r1[c], r2[c])
    root0, root2, root1 = r0[c], r2[c], r1[c]
    square2 = square_2(root0, root1, root2)
    scale2, scale1, scale0 = q2[c], q1[c], q0[c]
    field(table2, CUBE, channels)[c] = cube_2(scale0, scale1, scale2, root0, square1, square2)


@kernel
def frozen(order, tables: Jet, channels, mean, variance, eps, gamma: Pair):
    """Order k of the channel tables in evaluation mode; mean and variance (channels,) are running statistics."""
    (table0, table1, table2), (gamma0, gamma1) = tables, gamma
    table = table0 if order == 0 else table1 if order == 1 else table2
    for c in range(channels):
        for which in range(FIELDS):
            field(table, which, channels)[c] = real(0)
        if order == 0:
            field(table, MEAN, channels)[c] = reals(mean, channels)[c]
            field(table, ROOT, channels)[c] = real(inverse_root_0(reals(variance, channels)[c], number_in(eps)))
        _scales(order, table0, table1, table2, c, channels, reals(gamma0, channels)[c], reals(gamma1, channels)[c])
        field(table, CUBE, channels)[c] = real(0)


# ------------------------------------------------------------------------------------------------------ the two passes
# The loops read numbers term by term of their sums, highest order first: see the note in elementwise.py. Each is
# compiled twice: for a ReLU behind the map, with slope 0 where it is off, and with slope 1 for none; then no mask is
# read.
slope = 1.0


def _order_0(y, x0, m0, q0, beta):
    for t in range(y.size):
        value = output_0(q0, centred(x0[t], m0), beta)
        y[t] = rectified(value, value, real(slope))


def _order_1(y, x0, x1, mask, m0, m1, q0, q1, beta):
    for t in range(y.size):
        c1, c0 = centred(x1[t], m1), centred(x0[t], m0)
        value = output_1(q0, q1, c0, c1, beta)
        y[t] = rectified(value, mask[t], real(slope))


def _order_2(y, x0, x1, x2, mask, m0, m1, m2, q0, q1, q2):
    for t in range(y.size):
        c2, c1, c0 = centred(x2[t], m2), centred(x1[t], m1), centred(x0[t], m0)
        value = output_2(q0, q1, q2, c0, c1, c2)
        y[t] = rectified(value, mask[t], real(slope))


_normalise_0, _rectify_0 = loop(_order_0, slope=1.0), loop(_order_0, slope=0.0)
_normalise_1, _rectify_1 = loop(_order_1, slope=1.0), loop(_order_1, slope=0.0)
_normalise_2, _rectify_2 = loop(_order_2, slope=1.0), loop(_order_2, slope=0.0)


@kernel
def normalise(y, order, x: Jet, tables: Jet, beta, relu, mask, extent: Extent, part: Slice):
    """Order k of y = q c + β; beta (channels,) is order k of β. With ``relu`` negative results become 0; with ``mask``,
    an array that lies like y, so do those where it is ≤ 0."""
    pixels, channels, lanes, row = extent
    low, high = bounds_of(channels, part)
    (x0, x1, x2), (table0, table1, table2) = x, tables
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    q0, q1, q2 = field(table0, SCALE, channels), field(table1, SCALE, channels), field(table2, SCALE, channels)
    shift = reals(beta, channels)
    for p in range(pixels):
        for c in range(low, high):
            o = (p * channels + c) * row
            target, a, b, d = reals(y + o, lanes), reals(x0 + o, lanes), reals(x1 + o, lanes), reals(x2 + o, lanes)
            gate = reals(mask + o, lanes)
            if order == 0 and relu == 0:
                _normalise_0(target, a, m0[c], q0[c], shift[c])
            elif order == 0:
                _rectify_0(target, a, m0[c], q0[c], shift[c])
            elif order == 1 and mask == 0:
                _normalise_1(target, a, b, a, m0[c], m1[c], q0[c], q1[c], shift[c])
            elif order == 1:
                _rectify_1(target, a, b, gate, m0[c], m1[c], q0[c], q1[c], shift[c])
            elif mask == 0:
                _normalise_2(target, a, b, d, a, m0[c], m1[c], m2[c], q0[c], q1[c], q2[c])
            else:
                _rectify_2(target, a, b, d, gate, m0[c], m1[c], m2[c], q0[c], q1[c], q2[c])


@kernel
def gradient_sums(sums, order, x: Jet, g: Jet, tables: Jet, mask, extent: Extent, part: Slice):
    """A tile's share of order k of G = Σ g and D = Σ g c."""
    (x0, x1, x2), (g0, g1, g2), (table0, table1, table2) = x, g, tables
    pixels, channels, lanes, row = extent
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    zero = real(0)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        total = 0.0
        product = 0.0
        for p in range(pixels):
            o = (p * channels + c) * row
            newest = (g0 if order == 0 else g1 if order == 1 else g2) + o
            total += _row_sum(newest, mask, lanes)
            product += _row_product(newest, x0 + o, zero, m0[c], mask, lanes)
            if order == 1:
                product += _row_product(g0 + o, x1 + o, zero, m1[c], mask, lanes)
            elif order == 2:
                product += _row_product(g1 + o, x1 + o, zero, m1[c], mask, lanes)
                product += _row_product(g0 + o, x2 + o, zero, m2[c], mask, lanes)
        result = doubles(sums + SUMS * c * 8, SUMS)
        result[0] = total
        result[1] = product


@kernel
def gradient_statistics(order, tables: Jet, sums, step, tiles, channels, totals: Jet, d_gamma, d_beta, part: Slice):
    """Order k of a = q G / N and b = t D / N, and of the gradients of γ (r D) and β (G), both (channels,), from the
    shares of all tiles. totals_k (channels, 2) keep G and D for later orders. The Cauchy sums run over tables and
    totals in float64, one order after the other."""
    (table0, table1, table2), (totals0, totals1, totals2) = tables, totals
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        total = 0.0
        product = 0.0
        for tile in range(peek(tiles)):
            one = doubles(sums + tile * step + SUMS * c * 8, SUMS)
            total += one[0]
            product += one[1]
        mine = doubles((totals0 if order == 0 else totals1 if order == 1 else totals2) + 16 * c, 2)
        mine[0] = total
        mine[1] = product
        n = field(table0, COUNT, channels)[c]
        shift = 0.0
        slope = 0.0
        gamma = 0.0
        for j in range(order + 1):
            rest = order - j
            table = table0 if j == 0 else table1 if j == 1 else table2
            other = doubles((totals0 if rest == 0 else totals1 if rest == 1 else totals2) + 16 * c, 2)
            shift += field(table, SCALE, channels)[c] * other[0]
            slope += field(table, CUBE, channels)[c] * other[1]
            gamma += field(table, ROOT, channels)[c] * other[1]
        table = table0 if order == 0 else table1 if order == 1 else table2
        field(table, SHIFT, channels)[c] = real(shift / n)
        field(table, SLOPE, channels)[c] = real(slope / n)
        reals(d_gamma, channels)[c] = real(gamma)
        reals(d_beta, channels)[c] = real(total)


@kernel
def frozen_gradients(d_gamma, d_beta, sums, table0, channels, part: Slice):
    """The gradients of γ and β in evaluation mode, where r has order 0 only, from one tile."""
    root = field(table0, ROOT, channels)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        one = doubles(sums + SUMS * c * 8, SUMS)
        reals(d_gamma, channels)[c] = real(root[c] * one[1])
        reals(d_beta, channels)[c] = real(one[0])


# Each of these is compiled twice as well: with ``adds`` the gradient is added to what another use has written.
adds = False


def _gradient_0(h, x0, g0, mask, m0, q0, a, b0):
    for t in range(h.size):
        value = mask[t] * input_gradient_0(q0, b0, g0[t], centred(x0[t], m0), a)
        h[t] = h[t] + value if adds else value


def _gradient_1(h, x0, x1, g0, g1, mask, m0, m1, q0, q1, a, b0, b1):
    for t in range(h.size):
        counts, f1, f0 = mask[t], g1[t], g0[t]
        c1, c0 = centred(x1[t], m1), centred(x0[t], m0)
        value = counts * input_gradient_1(q0, q1, b0, b1, f0, f1, c0, c1, a)
        h[t] = h[t] + value if adds else value


def _gradient_2(h, x0, x1, x2, g0, g1, g2, mask, m0, m1, m2, q0, q1, q2, a, b0, b1, b2):
    for t in range(h.size):
        counts, f2, f1, f0 = mask[t], g2[t], g1[t], g0[t]
        c2, c1, c0 = centred(x2[t], m2), centred(x1[t], m1), centred(x0[t], m0)
        value = counts * input_gradient_2(q0, q1, q2, b0, b1, b2, f0, f1, f2, c0, c1, c2, a)
        h[t] = h[t] + value if adds else value


_backward_0, _add_0 = loop(_gradient_0, adds=False), loop(_gradient_0, adds=True)
_backward_1, _add_1 = loop(_gradient_1, adds=False), loop(_gradient_1, adds=True)
_backward_2, _add_2 = loop(_gradient_2, adds=False), loop(_gradient_2, adds=True)


@kernel
def backward(h, order, x: Jet, g: Jet, tables: Jet, mask, add, extent: Extent, part: Slice):
    """Order k of h = q g − a − b c; with ``add`` it is added to h."""
    (x0, x1, x2), (g0, g1, g2), (table0, table1, table2) = x, g, tables
    pixels, channels, lanes, row = extent
    valid = reals(mask, lanes)
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    q0, q1, q2 = field(table0, SCALE, channels), field(table1, SCALE, channels), field(table2, SCALE, channels)
    b0, b1, b2 = field(table0, SLOPE, channels), field(table1, SLOPE, channels), field(table2, SLOPE, channels)
    a = field(table0 if order == 0 else table1 if order == 1 else table2, SHIFT, channels)
    low, high = bounds_of(channels, part)
    for p in range(pixels):
        for c in range(low, high):
            o = (p * channels + c) * row
            target, u0, f0 = reals(h + o, lanes), reals(x0 + o, lanes), reals(g0 + o, lanes)
            u1, u2, f1, f2 = reals(x1 + o, lanes), reals(x2 + o, lanes), reals(g1 + o, lanes), reals(g2 + o, lanes)
            n0, n1, n2, s0, s1, s2 = m0[c], m1[c], m2[c], q0[c], q1[c], q2[c]
            if order == 0 and add:
                _add_0(target, u0, f0, valid, n0, s0, a[c], b0[c])
            elif order == 0:
                _backward_0(target, u0, f0, valid, n0, s0, a[c], b0[c])
            elif order == 1 and add:
                _add_1(target, u0, u1, f0, f1, valid, n0, n1, s0, s1, a[c], b0[c], b1[c])
            elif order == 1:
                _backward_1(target, u0, u1, f0, f1, valid, n0, n1, s0, s1, a[c], b0[c], b1[c])
            elif add:
                _add_2(target, u0, u1, u2, f0, f1, f2, valid, n0, n1, n2, s0, s1, s2, a[c], b0[c], b1[c], b2[c])
            else:
                _backward_2(target, u0, u1, u2, f0, f1, f2, valid, n0, n1, n2, s0, s1, s2, a[c], b0[c], b1[c], b2[c])
