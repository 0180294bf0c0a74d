"""Batch normalisation in both modes, all orders.

Each node has, per order, a table of numbers per channel (``channel tables``): the jets of the mean m, of r, q = γ r,
t = q r², and of a and b of the backward pass. Tiles add up their share of the sums (in float64), one unit combines them
into the tables, tiles apply them. Padding lanes are left out of sums and get gradient 0. Evaluation mode fills the
tables from running statistics instead, with a = b = 0; the rest is the same.
"""

from __future__ import annotations

import numpy as np

from rop.kernels.compile import formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import doubles, integers, reals
from rop.kernels.cpu.vector import number_in, peek
from rop.layers import batchnorm as layer

inverse_root_1, inverse_root_2 = formula(layer.inverse_root_1), formula(layer.inverse_root_2)

MEAN, ROOT, SCALE, CUBE, SHIFT, SLOPE, VARIANCE, COUNT = range(8)  # rows of a channel table: m, r, q, t, a, b, s, N
FIELDS = 8
SUMS = 3  # float64 per channel and tile


@helper
def field(table, which, channels):
    return reals(table + which * channels * itemsize, channels)


@helper
def valid_lanes(mask, samples):
    """mask (lane) = 1, or 0 for padding; returns how many count."""
    sample = integers(samples, mask.size)
    count = 0
    for t in range(mask.size):
        mask[t] = real(1) if sample[t] >= 0 else real(0)
        count += 1 if sample[t] >= 0 else 0
    return count


@loop
def _masked_sum(x, mask):
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * x[t]
    return s


@loop
def _masked_product(x, y, a, b, mask):
    """Σ (x − a)(y − b)."""
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * (x[t] - a) * (y[t] - b)
    return s


@loop
def _masked_square(x, a, mask):
    s = real(0)
    for t in range(mask.size):
        s += mask[t] * (x[t] - a) * (x[t] - a)
    return s


# ----------------------------------------------------------------------------------------------------------- statistics
@kernel
def moments(sums, order, x0, x1, x2, table0, table1, samples, pixels, channels, lanes, scratch):
    """A tile's share: order 0 (count, mean, Σ(x−mean)²), order 1 (Σx_1, Σc_0 x_1), order 2 (Σx_2, Σc_0 x_2, Σc_1²)."""
    mask = reals(scratch, lanes)
    count = valid_lanes(mask, samples) * pixels
    result = doubles(sums, SUMS * channels)
    mean_0, mean_1 = field(table0, MEAN, channels), field(table1, MEAN, channels)
    for c in range(channels):
        first = 0.0
        second = 0.0
        third = 0.0
        if order == 0:
            for p in range(pixels):
                first += _masked_sum(reals(x0 + (p * channels + c) * lanes * itemsize, lanes), mask)
            mean = first / count
            for p in range(pixels):
                second += _masked_square(reals(x0 + (p * channels + c) * lanes * itemsize, lanes), real(mean), mask)
            first, second, third = float(count), mean, second
        else:
            for p in range(pixels):
                o = (p * channels + c) * lanes * itemsize
                value = reals((x1 if order == 1 else x2) + o, lanes)
                first += _masked_sum(value, mask)
                second += _masked_product(reals(x0 + o, lanes), value, mean_0[c], real(0), mask)
                if order == 2:
                    third += _masked_square(reals(x1 + o, lanes), mean_1[c], mask)
        result[SUMS * c] = first
        result[SUMS * c + 1] = second
        result[SUMS * c + 2] = third


@kernel
def statistics(order, table0, table1, table2, sums, step, tiles, channels, eps, gamma0, gamma1):
    """Combines the tiles' shares, in their order, into order k of the channel tables."""
    n_tiles = peek(tiles)
    table = table0 if order == 0 else table1 if order == 1 else table2
    for c in range(channels):
        count = 0.0
        first = 0.0
        second = 0.0
        third = 0.0
        for tile in range(n_tiles):
            one = doubles(sums + tile * step + SUMS * c * 8, SUMS)
            if order == 0:  # merge (count, mean, Σ(x−mean)²)
                both = count + one[0]
                apart = one[1] - first
                first += apart * one[0] / both
                second += one[2] + apart * apart * count * one[0] / both
                count = both
            else:
                first += one[0]
                second += one[1]
                third += one[2]
        if order == 0:
            field(table0, COUNT, channels)[c] = real(count)
            field(table0, MEAN, channels)[c] = real(first)
            field(table0, VARIANCE, channels)[c] = real(second / count)
            field(table0, ROOT, channels)[c] = real(1.0 / np.sqrt(second / count + number_in(eps)))
        else:
            n = field(table0, COUNT, channels)[c]
            r0 = field(table0, ROOT, channels)[c]
            field(table, MEAN, channels)[c] = real(first) / n
            if order == 1:
                variance = real(2) * real(second) / n
                field(table, VARIANCE, channels)[c] = variance
                field(table, ROOT, channels)[c] = inverse_root_1(r0, variance)
            else:
                variance = (real(2) * real(second) + real(third)) / n
                field(table, ROOT, channels)[c] = inverse_root_2(r0, field(table1, VARIANCE, channels)[c], variance)
        _scales(order, table0, table1, table2, c, channels, reals(gamma0, channels)[c], reals(gamma1, channels)[c])


@helper
def _scales(order, table0, table1, table2, c, channels, gamma0, gamma1):
    """Order k of q = γ r and of t = q r²."""
    r0, q0 = field(table0, ROOT, channels), field(table0, SCALE, channels)
    if order == 0:
        q0[c] = gamma0 * r0[c]
        field(table0, CUBE, channels)[c] = q0[c] * r0[c] * r0[c]
        return
    r1, q1 = field(table1, ROOT, channels), field(table1, SCALE, channels)
    square_1 = real(2) * r0[c] * r1[c]
    if order == 1:
        q1[c] = gamma0 * r1[c] + gamma1 * r0[c]
        field(table1, CUBE, channels)[c] = q1[c] * r0[c] * r0[c] + q0[c] * square_1
        return
    r2, q2 = field(table2, ROOT, channels), field(table2, SCALE, channels)
    q2[c] = gamma0 * r2[c] + gamma1 * r1[c]
    square_2 = real(2) * r0[c] * r2[c] + r1[c] * r1[c]
    field(table2, CUBE, channels)[c] = q2[c] * r0[c] * r0[c] + q1[c] * square_1 + q0[c] * square_2


@kernel
def frozen(order, table0, table1, table2, channels, mean, variance, eps, gamma0, gamma1):
    """The tables of evaluation mode, from running statistics."""
    table = table0 if order == 0 else table1 if order == 1 else table2
    for c in range(channels):
        for which in range(FIELDS):
            field(table, which, channels)[c] = real(0)
        if order == 0:
            field(table, MEAN, channels)[c] = reals(mean, channels)[c]
            field(table, ROOT, channels)[c] = real(1.0 / np.sqrt(reals(variance, channels)[c] + number_in(eps)))
        _scales(order, table0, table1, table2, c, channels, reals(gamma0, channels)[c], reals(gamma1, channels)[c])
        field(table, CUBE, channels)[c] = real(0)


# ------------------------------------------------------------------------------------------------------ the two passes
@loop
def _normalise_0(y, x0, m0, q0, beta):
    for t in range(y.size):
        y[t] = q0 * (x0[t] - m0) + beta


@loop
def _normalise_1(y, x0, x1, m0, m1, q0, q1, beta):
    for t in range(y.size):
        y[t] = q0 * (x1[t] - m1) + q1 * (x0[t] - m0) + beta


@loop
def _normalise_2(y, x0, x1, x2, m0, m1, m2, q0, q1, q2):
    for t in range(y.size):
        y[t] = q0 * (x2[t] - m2) + q1 * (x1[t] - m1) + q2 * (x0[t] - m0)


@kernel
def normalise(y, order, x0, x1, x2, table0, table1, table2, beta, pixels, channels, lanes):
    """Order k of y = q c + β."""
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    q0, q1, q2 = field(table0, SCALE, channels), field(table1, SCALE, channels), field(table2, SCALE, channels)
    shift = reals(beta, channels)
    for p in range(pixels):
        for c in range(channels):
            o = (p * channels + c) * lanes * itemsize
            target, a, b, d = reals(y + o, lanes), reals(x0 + o, lanes), reals(x1 + o, lanes), reals(x2 + o, lanes)
            if order == 0:
                _normalise_0(target, a, m0[c], q0[c], shift[c])
            elif order == 1:
                _normalise_1(target, a, b, m0[c], m1[c], q0[c], q1[c], shift[c])
            else:
                _normalise_2(target, a, b, d, m0[c], m1[c], m2[c], q0[c], q1[c], q2[c])


@kernel
def gradient_sums(
    sums, order, x0, x1, x2, g0, g1, g2, table0, table1, table2, samples, pixels, channels, lanes, scratch
):
    """A tile's share of order k of G = Σ g and D = Σ g c."""
    mask = reals(scratch, lanes)
    valid_lanes(mask, samples)
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    zero = real(0)
    for c in range(channels):
        total = 0.0
        product = 0.0
        for p in range(pixels):
            o = (p * channels + c) * lanes * itemsize
            a, f0 = reals(x0 + o, lanes), reals(g0 + o, lanes)
            if order == 0:
                total += _masked_sum(f0, mask)
                product += _masked_product(f0, a, zero, m0[c], mask)
            elif order == 1:
                f1 = reals(g1 + o, lanes)
                total += _masked_sum(f1, mask)
                product += _masked_product(f1, a, zero, m0[c], mask)
                product += _masked_product(f0, reals(x1 + o, lanes), zero, m1[c], mask)
            else:
                f1, f2 = reals(g1 + o, lanes), reals(g2 + o, lanes)
                total += _masked_sum(f2, mask)
                product += _masked_product(f2, a, zero, m0[c], mask)
                product += _masked_product(f1, reals(x1 + o, lanes), zero, m1[c], mask)
                product += _masked_product(f0, reals(x2 + o, lanes), zero, m2[c], mask)
        result = doubles(sums + SUMS * c * 8, SUMS)
        result[0] = total
        result[1] = product


@kernel
def gradient_statistics(
    order, table0, table1, table2, sums, step, tiles, channels, totals0, totals1, totals2, d_gamma, d_beta
):
    """Combines the tiles' G and D; a = q G / N, b = t D / N, and the gradients of γ (r D) and β (G)."""
    for c in range(channels):
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
def frozen_gradients(d_gamma, d_beta, sums, table0, channels):
    """The same gradients in evaluation mode, from one tile."""
    root = field(table0, ROOT, channels)
    for c in range(channels):
        one = doubles(sums + SUMS * c * 8, SUMS)
        reals(d_gamma, channels)[c] = real(root[c] * one[1])
        reals(d_beta, channels)[c] = real(one[0])


@loop
def _backward_0(h, x0, g0, mask, m0, q0, a, b0):
    for t in range(h.size):
        h[t] = mask[t] * (q0 * g0[t] - a - b0 * (x0[t] - m0))


@loop
def _backward_1(h, x0, x1, g0, g1, mask, m0, m1, q0, q1, a, b0, b1):
    for t in range(h.size):
        h[t] = mask[t] * (q0 * g1[t] + q1 * g0[t] - a - b0 * (x1[t] - m1) - b1 * (x0[t] - m0))


@loop
def _backward_2(h, x0, x1, x2, g0, g1, g2, mask, m0, m1, m2, q0, q1, q2, a, b0, b1, b2):
    for t in range(h.size):
        h[t] = mask[t] * (
            q0 * g2[t] + q1 * g1[t] + q2 * g0[t] - a - b0 * (x2[t] - m2) - b1 * (x1[t] - m1) - b2 * (x0[t] - m0)
        )


@kernel
def backward(h, order, x0, x1, x2, g0, g1, g2, table0, table1, table2, samples, pixels, channels, lanes, scratch):
    """Order k of h = q g − a − b c."""
    mask = reals(scratch, lanes)
    valid_lanes(mask, samples)
    m0, m1, m2 = field(table0, MEAN, channels), field(table1, MEAN, channels), field(table2, MEAN, channels)
    q0, q1, q2 = field(table0, SCALE, channels), field(table1, SCALE, channels), field(table2, SCALE, channels)
    b0, b1, b2 = field(table0, SLOPE, channels), field(table1, SLOPE, channels), field(table2, SLOPE, channels)
    a = field(table0 if order == 0 else table1 if order == 1 else table2, SHIFT, channels)
    for p in range(pixels):
        for c in range(channels):
            o = (p * channels + c) * lanes * itemsize
            target, u0, f0 = reals(h + o, lanes), reals(x0 + o, lanes), reals(g0 + o, lanes)
            if order == 0:
                _backward_0(target, u0, f0, mask, m0[c], q0[c], a[c], b0[c])
            elif order == 1:
                _backward_1(
                    target,
                    u0,
                    reals(x1 + o, lanes),
                    f0,
                    reals(g1 + o, lanes),
                    mask,
                    m0[c],
                    m1[c],
                    q0[c],
                    q1[c],
                    a[c],
                    b0[c],
                    b1[c],
                )
            else:
                _backward_2(
                    target,
                    u0,
                    reals(x1 + o, lanes),
                    reals(x2 + o, lanes),
                    f0,
                    reals(g1 + o, lanes),
                    reals(g2 + o, lanes),
                    mask,
                    m0[c],
                    m1[c],
                    m2[c],
                    q0[c],
                    q1[c],
                    q2[c],
                    a[c],
                    b0[c],
                    b1[c],
                    b2[c],
                )
