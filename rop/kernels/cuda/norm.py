"""Normalisation of each sample by statistics of its own: one launch forward and one backward for all orders.

A block has the lanes of a warp and STRIPES threads for each of them, which divide the rows of a set among themselves.
The formulas are those of rop/layers/norm.py and rop/layers/batchnorm.py. All matrices are (row, lane); a set is some
neighbouring rows of each of some pixels, see rop/kernels/cpu/norm.py.

    table_k   (set · FIELDS, lane): the numbers of a set
"""

from __future__ import annotations

from numba import cuda

from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    STRIPES,
    WARP,
    Arguments,
    BoundNames,
    Count,
    Jet,
    Number,
    Orders,
    by_order,
    formula,
    has_1,
    has_2,
    helper,
    kernel,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.cuda.sums import block_and_lane, stripe_sum
from rop.layers import batchnorm, jet
from rop.layers import norm as layer

product_1, product_2 = formula(jet.product_1), formula(jet.product_2)
centred, square_1, square_2 = formula(batchnorm.centred), formula(batchnorm.square_1), formula(batchnorm.square_2)
variance_0, variance_1 = formula(batchnorm.variance_0), formula(batchnorm.variance_1)
variance_2 = formula(batchnorm.variance_2)
inverse_root_0, inverse_root_1 = formula(batchnorm.inverse_root_0), formula(batchnorm.inverse_root_1)
inverse_root_2 = formula(batchnorm.inverse_root_2)
cube_0, cube_1, cube_2 = formula(batchnorm.cube_0), formula(batchnorm.cube_1), formula(batchnorm.cube_2)
standardised_0, share_0 = formula(layer.standardised_0), formula(layer.share_0)
input_gradient_0 = formula(batchnorm.input_gradient_0)
input_gradient_1 = formula(batchnorm.input_gradient_1)
input_gradient_2 = formula(batchnorm.input_gradient_2)

# Rows of a set's numbers: m, r, t, s, G, D.
MEAN, ROOT, CUBE, VARIANCE, TOTAL, PRODUCT = range(6)
FIELDS = 6

centres = True  # bound per specialisation: whether the mean is subtracted


def with_centre(orders: Orders = ORDERS, levels: Orders = ORDERS, centres: bool = True) -> BoundNames:
    """Bound names of the kernels, with the mean subtracted or not."""
    return {**by_order(orders, levels), "centres": centres}


def per_set(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    """A grid with a block for every set and warp of lanes."""
    return (given["sets"] * (given["x"][0].shape[1] // WARP),)


@helper
def row_in(one, i, rows, step):
    """Row number i of a set."""
    pixel = i // rows
    return one * rows + pixel * step + i - pixel * rows


@helper
def total_of(buffer, value):
    """The sum over the stripes of a block."""
    return stripe_sum(buffer, cuda.threadIdx.y, cuda.threadIdx.x, value)


@helper
def numbers(table, which, one, lane):
    """The jet of one of the numbers of a set, as far as earlier launches have written it and this one needs it."""
    at = FIELDS * one + which
    first = table[0][at, lane] if not wants_0 else real(0)
    second = table[1][at, lane] if wants_2 and not wants_1 else real(0)
    return first, second


@helper
def means(buffer, x, table, one, lane, count, rows, step):
    """The jet of the mean, at the orders that are needed."""
    m0, m1 = numbers(table, MEAN, one, lane)
    m2 = real(0)
    if centres:
        sum0 = sum1 = sum2 = real(0)
        for i in range(cuda.threadIdx.y, count, STRIPES):
            row = row_in(one, i, rows, step)
            if wants_0:
                sum0 += x[0][row, lane]
            if wants_1 and has_1:
                sum1 += x[1][row, lane]
            if wants_2 and has_2:
                sum2 += x[2][row, lane]
        if wants_0:
            m0 = total_of(buffer, sum0) / real(count)
        if wants_1:
            m1 = total_of(buffer, sum1) / real(count)
        if wants_2:
            m2 = total_of(buffer, sum2) / real(count)
    return m0, m1, m2


@helper
def centred_jet(x, m, row, lane):
    """The jet of c = x − m at the orders that are needed; order 1 or 2 of x may be zero."""
    c1 = c2 = real(0)
    if wants_1 or wants_2:
        c1 = centred(x[1][row, lane] if has_1 else real(0), m[1])
    if wants_2:
        c2 = centred(x[2][row, lane] if has_2 else real(0), m[2])
    return centred(x[0][row, lane], m[0]), c1, c2


@helper
def products(buffer, x, m, one, lane, count, rows, step):
    """S_00, S_01, S_02 and S_11 of a set, those that are needed."""
    s00 = s01 = s02 = s11 = real(0)
    for i in range(cuda.threadIdx.y, count, STRIPES):
        c0, c1, c2 = centred_jet(x, m, row_in(one, i, rows, step), lane)
        if wants_0:
            s00 += c0 * c0
        if wants_1:
            s01 += c0 * c1
        if wants_2:
            s02 += c0 * c2
            s11 += c1 * c1
    if wants_0:
        s00 = total_of(buffer, s00)
    if wants_1:
        s01 = total_of(buffer, s01)
    if wants_2:
        s02, s11 = total_of(buffer, s02), total_of(buffer, s11)
    return s00, s01, s02, s11


@helper
def put(table, k, one, lane, mean, variance, root, cube):
    """Writes order k of the numbers of a set that the forward pass makes."""
    if cuda.threadIdx.y == 0:
        at = FIELDS * one
        table[k][at + MEAN, lane] = mean
        table[k][at + VARIANCE, lane] = variance
        table[k][at + ROOT, lane] = root
        table[k][at + CUBE, lane] = cube


@helper
def roots(table, m, s, one, lane, n, eps):
    """The jet of r at the orders that are needed; writes the numbers of the orders that are wanted."""
    r0, r1 = numbers(table, ROOT, one, lane)
    _, s1 = numbers(table, VARIANCE, one, lane)
    r2 = real(0)
    if wants_0:
        s0 = variance_0(s[0], n)
        r0 = inverse_root_0(s0, eps)
        put(table, 0, one, lane, m[0], s0, r0, cube_0(r0, r0))
    if wants_1:
        s1 = variance_1(s[1], n)
        r1 = inverse_root_1(r0, s1)
        put(table, 1, one, lane, m[1], s1, r1, cube_1(r0, r1, r0, square_1(r0, r1)))
    if wants_2:
        s2 = variance_2(s[2], s[3], n)
        r2 = inverse_root_2(r0, s1, s2)
        put(table, 2, one, lane, m[2], s2, r2, cube_2(r0, r1, r2, r0, square_1(r0, r1), square_2(r0, r1, r2)))
    return r0, r1, r2


@kernel(per_set, ROW_BLOCK, with_centre)
def standardise(y: Jet, x: Jet, table: Jet, sets: Count, rows: Count, blocks: Count, step: Count, eps: Number):
    """The jet of n = r c, and the numbers of every set that this takes."""
    buffer = cuda.shared.array((STRIPES, WARP), real)
    one, lane = block_and_lane(x[0].shape[1])
    count = rows * blocks
    m = means(buffer, x, table, one, lane, count, rows, step)
    s = products(buffer, x, m, one, lane, count, rows, step)
    r0, r1, r2 = roots(table, m, s, one, lane, real(count), eps)
    for i in range(cuda.threadIdx.y, count, STRIPES):
        row = row_in(one, i, rows, step)
        c0, c1, c2 = centred_jet(x, m, row, lane)
        if wants_0:
            y[0][row, lane] = standardised_0(r0, c0)
        if wants_1:
            y[1][row, lane] = product_1(r0, r1, c0, c1)
        if wants_2:
            y[2][row, lane] = product_2(r0, r1, r2, c0, c1, c2)


@helper
def jet_of(table, which, one, lane):
    """The jet of one of the numbers that the forward pass has written, at the orders that are needed."""
    at = FIELDS * one + which
    n1 = table[1][at, lane] if wants_1 or wants_2 else real(0)
    return table[0][at, lane], n1, table[2][at, lane] if wants_2 else real(0)


@helper
def gradient_sums(buffer, x, g, m, one, lane, count, rows, step):
    """G and D of a set, at the orders that are wanted."""
    total0 = total1 = total2 = product0 = product1 = product2 = real(0)
    for i in range(cuda.threadIdx.y, count, STRIPES):
        row = row_in(one, i, rows, step)
        c0, c1, c2 = centred_jet(x, m, row, lane)
        f0 = g[0][row, lane]
        if wants_0:
            total0 += f0
            product0 += f0 * c0
        if wants_1 or wants_2:
            f1 = g[1][row, lane]
            if wants_1:
                total1 += f1
                product1 += product_1(f0, f1, c0, c1)
            if wants_2:
                f2 = g[2][row, lane]
                total2 += f2
                product2 += product_2(f0, f1, f2, c0, c1, c2)
    if wants_0:
        total0, product0 = total_of(buffer, total0), total_of(buffer, product0)
    if wants_1:
        total1, product1 = total_of(buffer, total1), total_of(buffer, product1)
    if wants_2:
        total2, product2 = total_of(buffer, total2), total_of(buffer, product2)
    return (total0, total1, total2), (product0, product1, product2)


@helper
def remembered(table, which, one, lane, sums):
    """The sums at the orders that are needed: writes those of this launch, and reads those of earlier ones."""
    s0, s1 = numbers(table, which, one, lane)
    at = FIELDS * one + which
    if wants_0:
        s0 = sums[0]
    if wants_1:
        s1 = sums[1]
    if cuda.threadIdx.y == 0:
        if wants_0:
            table[0][at, lane] = s0
        if wants_1:
            table[1][at, lane] = s1
    return s0, s1, sums[2]


@helper
def shares(r, sums, n):
    """The jet of a = r G / N, or of b = t D / N, at the orders that are needed."""
    share1 = share2 = real(0)
    if wants_1 or wants_2:
        share1 = product_1(r[0], r[1], sums[0], sums[1]) / n
    if wants_2:
        share2 = product_2(r[0], r[1], r[2], sums[0], sums[1], sums[2]) / n
    return share_0(r[0], sums[0], n), share1, share2


@kernel(per_set, ROW_BLOCK, with_centre)
def standardise_backward(h: Jet, x: Jet, g: Jet, table: Jet, sets: Count, rows: Count, blocks: Count, step: Count):
    """The jet of h = r g − a − b c, with a = 0 if nothing is centred."""
    buffer = cuda.shared.array((STRIPES, WARP), real)
    one, lane = block_and_lane(x[0].shape[1])
    count = rows * blocks
    m, r, t = jet_of(table, MEAN, one, lane), jet_of(table, ROOT, one, lane), jet_of(table, CUBE, one, lane)
    totals, dots = gradient_sums(buffer, x, g, m, one, lane, count, rows, step)
    totals = remembered(table, TOTAL, one, lane, totals)
    b0, b1, b2 = shares(t, remembered(table, PRODUCT, one, lane, dots), real(count))
    a0 = a1 = a2 = real(0)
    if centres:
        a0, a1, a2 = shares(r, totals, real(count))
    for i in range(cuda.threadIdx.y, count, STRIPES):
        row = row_in(one, i, rows, step)
        c0, c1, c2 = centred_jet(x, m, row, lane)
        f0 = g[0][row, lane]
        if wants_0:
            h[0][row, lane] = input_gradient_0(r[0], b0, f0, c0, a0)
        if wants_1 or wants_2:
            f1 = g[1][row, lane]
            if wants_1:
                h[1][row, lane] = input_gradient_1(r[0], r[1], b0, b1, f0, f1, c0, c1, a1)
            if wants_2:
                f2 = g[2][row, lane]
                h[2][row, lane] = input_gradient_2(r[0], r[1], r[2], b0, b1, b2, f0, f1, f2, c0, c1, c2, a2)
