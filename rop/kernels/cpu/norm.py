"""Normalisation of each sample by statistics of its own, all orders; lanes are independent, so every loop is vector
code. The formulas are those of rop/layers/norm.py and rop/layers/batchnorm.py.

A set is some neighbouring rows of each of some pixels. Per order it has FIELDS rows of numbers, one for each lane. A
kernel's work can be divided into slices of the lanes.

    x_k, y_k, g_k, h   (pixel, channel, lane), as an Extent says
    table_k            (set, FIELDS, lane)
    sets               how many, rows of a set in each of its pixels, pixels of a set, rows from pixel to pixel
"""

from __future__ import annotations

from rop.kernels.compile import Extent, Jet, Sets, Slice, algebra, formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, clear, reals
from rop.kernels.cpu.vector import number_in
from rop.layers import batchnorm, jet
from rop.layers import norm as layer

product_1, product_2 = algebra(jet.product_1), algebra(jet.product_2)
centred, square_1, square_2 = algebra(batchnorm.centred), algebra(batchnorm.square_1), algebra(batchnorm.square_2)
variance_0, variance_1 = algebra(batchnorm.variance_0), algebra(batchnorm.variance_1)
variance_2 = algebra(batchnorm.variance_2)
inverse_root_0 = algebra(batchnorm.inverse_root_0)
inverse_root_1, inverse_root_2 = formula(batchnorm.inverse_root_1), formula(batchnorm.inverse_root_2)
cube_0, cube_1, cube_2 = algebra(batchnorm.cube_0), algebra(batchnorm.cube_1), algebra(batchnorm.cube_2)
standardised_0, share_0 = algebra(layer.standardised_0), algebra(layer.share_0)
input_gradient_0 = algebra(batchnorm.input_gradient_0)
input_gradient_1 = algebra(batchnorm.input_gradient_1)
input_gradient_2 = algebra(batchnorm.input_gradient_2)

# Rows of a set's numbers: m, r, t, a, b, s, G, D.
MEAN, ROOT, CUBE, SHIFT, SLOPE, VARIANCE, TOTAL, PRODUCT = range(8)
FIELDS = 8
LANE_BLOCK = 32  # slices are whole blocks of lanes


@helper
def lanes_of(extent, part):
    """First lane of a slice, and how many it has."""
    low, high = bounds_of(-(-extent[2] // LANE_BLOCK), part)
    first = min(low * LANE_BLOCK, extent[2])
    return first, min(high * LANE_BLOCK, extent[2]) - first


@helper
def row_of(address, row, place):
    """A row of numbers in the lanes of a slice; ``place`` is (first lane, lanes, bytes of a row)."""
    first, count, size = place
    return reals(address + row * size + first * itemsize, count)


@helper
def field(table, which, one, place):
    """One of the numbers of a set, in the lanes of a slice."""
    return row_of(table, FIELDS * one + which, place)


@helper
def jet_of_field(tables, which, one, place):
    """The same number of a set at all orders."""
    return (
        field(tables[0], which, one, place),
        field(tables[1], which, one, place),
        field(tables[2], which, one, place),
    )


@helper
def row_in(one, i, sets):
    """Row number i of a set."""
    _, rows, _, step = sets
    return one * rows + i // rows * step + i % rows


# ------------------------------------------------------------------------------------------------------------- forward
@loop
def _add(total, x):
    for t in range(total.size):
        total[t] += x[t]


@loop
def _divide(total, n):
    for t in range(total.size):
        total[t] /= n


@loop
def _add_product(total, x, y, a, b):
    for t in range(total.size):
        total[t] += centred(x[t], a[t]) * centred(y[t], b[t])


@loop
def _add_square(total, x, a):
    for t in range(total.size):
        total[t] += centred(x[t], a[t]) * centred(x[t], a[t])


@loop
def _root_0(s, r, t, n, eps):
    for i in range(s.size):
        s[i] = variance_0(s[i], n)
        r[i] = inverse_root_0(s[i], eps)
        t[i] = cube_0(r[i], r[i])


@loop
def _root_1(s, r, t, r0, n):
    for i in range(s.size):
        s[i] = variance_1(s[i], n)
        r[i] = inverse_root_1(r0[i], s[i])
        t[i] = cube_1(r0[i], r[i], r0[i], square_1(r0[i], r[i]))


@loop
def _root_2(s, s11, r, t, r0, r1, s1, n):
    for i in range(s.size):
        s[i] = variance_2(s[i], s11[i], n)
        r[i] = inverse_root_2(r0[i], s1[i], s[i])
        square1, square2 = square_1(r0[i], r1[i]), square_2(r0[i], r1[i], r[i])
        t[i] = cube_2(r0[i], r1[i], r[i], r0[i], square1, square2)


@loop
def _order_0(y, x0, m0, r0):
    for t in range(y.size):
        y[t] = standardised_0(r0[t], centred(x0[t], m0[t]))


@loop
def _order_1(y, x0, x1, m0, m1, r0, r1):
    for t in range(y.size):
        y[t] = product_1(r0[t], r1[t], centred(x0[t], m0[t]), centred(x1[t], m1[t]))


@loop
def _order_2(y, x0, x1, x2, m0, m1, m2, r0, r1, r2):
    for t in range(y.size):
        c0, c1, c2 = centred(x0[t], m0[t]), centred(x1[t], m1[t]), centred(x2[t], m2[t])
        y[t] = product_2(r0[t], r1[t], r2[t], c0, c1, c2)


@helper
def moments(order, x, tables, s11, one, sets, centres, place):
    """Order k of m, and in place of s order k of S_00 (k = 0) or S_0k; at order 2 also S_11."""
    (x0, x1, x2), (table0, table1, table2) = x, tables
    newest, table = (x0, table0) if order == 0 else (x1, table1) if order == 1 else (x2, table2)
    mean, total, count = field(table, MEAN, one, place), field(table, VARIANCE, one, place), sets[1] * sets[2]
    mean0, mean1 = field(table0, MEAN, one, place), field(table1, MEAN, one, place)
    clear(mean)
    clear(total)
    clear(s11)
    if centres != 0:
        for i in range(count):
            _add(mean, row_of(newest, row_in(one, i, sets), place))
        _divide(mean, real(count))
    for i in range(count):
        row = row_in(one, i, sets)
        if order == 0:
            _add_square(total, row_of(x0, row, place), mean0)
        else:
            _add_product(total, row_of(x0, row, place), row_of(newest, row, place), mean0, mean)
        if order == 2:
            _add_square(s11, row_of(x1, row, place), mean1)


@helper
def roots(order, tables, s11, one, n, eps, place):
    """Order k of r and t, from the sums that ``moments`` has made."""
    s0, s1, s2 = jet_of_field(tables, VARIANCE, one, place)
    r0, r1, r2 = jet_of_field(tables, ROOT, one, place)
    t0, t1, t2 = jet_of_field(tables, CUBE, one, place)
    if order == 0:
        _root_0(s0, r0, t0, n, eps)
    elif order == 1:
        _root_1(s1, r1, t1, r0, n)
    else:
        _root_2(s2, s11, r2, t2, r0, r1, s1, n)


@kernel
def standardise(y, order, x: Jet, tables: Jet, sets: Sets, centres, eps, extent: Extent, scratch, part: Slice):
    """Order k of n = r c, and of the numbers of every set that this takes."""
    first, lanes = lanes_of(extent, part)
    place = first, lanes, extent[3]
    x0, x1, x2 = x
    s11, count = reals(scratch + first * itemsize, lanes), sets[1] * sets[2]
    for one in range(sets[0]):
        moments(order, x, tables, s11, one, sets, centres, place)
        roots(order, tables, s11, one, real(count), real(number_in(eps)), place)
        m0, m1, m2 = jet_of_field(tables, MEAN, one, place)
        r0, r1, r2 = jet_of_field(tables, ROOT, one, place)
        for i in range(count):
            row = row_in(one, i, sets)
            target, a, b = row_of(y, row, place), row_of(x0, row, place), row_of(x1, row, place)
            if order == 0:
                _order_0(target, a, m0, r0)
            elif order == 1:
                _order_1(target, a, b, m0, m1, r0, r1)
            else:
                _order_2(target, a, b, row_of(x2, row, place), m0, m1, m2, r0, r1, r2)


# ------------------------------------------------------------------------------------------------------------ backward
@loop
def _sums_0(total, product, g0, x0, m0):
    for t in range(total.size):
        total[t] += g0[t]
        product[t] += g0[t] * centred(x0[t], m0[t])


@loop
def _sums_1(total, product, g0, g1, x0, x1, m0, m1):
    for t in range(total.size):
        total[t] += g1[t]
        product[t] += product_1(g0[t], g1[t], centred(x0[t], m0[t]), centred(x1[t], m1[t]))


@loop
def _sums_2(total, product, g0, g1, g2, x0, x1, x2, m0, m1, m2):
    for t in range(total.size):
        total[t] += g2[t]
        c0, c1, c2 = centred(x0[t], m0[t]), centred(x1[t], m1[t]), centred(x2[t], m2[t])
        product[t] += product_2(g0[t], g1[t], g2[t], c0, c1, c2)


@loop
def _share_0(share, r0, total0, n):
    for t in range(share.size):
        share[t] = share_0(r0[t], total0[t], n)


@loop
def _share_1(share, r0, r1, total0, total1, n):
    for t in range(share.size):
        share[t] = product_1(r0[t], r1[t], total0[t], total1[t]) / n


@loop
def _share_2(share, r0, r1, r2, total0, total1, total2, n):
    for t in range(share.size):
        share[t] = product_2(r0[t], r1[t], r2[t], total0[t], total1[t], total2[t]) / n


@loop
def _gradient_0(h, x0, g0, m0, r0, a, b0):
    for t in range(h.size):
        h[t] = input_gradient_0(r0[t], b0[t], g0[t], centred(x0[t], m0[t]), a[t])


@loop
def _gradient_1(h, x0, x1, g0, g1, m0, m1, r0, r1, a, b0, b1):
    for t in range(h.size):
        c0, c1 = centred(x0[t], m0[t]), centred(x1[t], m1[t])
        h[t] = input_gradient_1(r0[t], r1[t], b0[t], b1[t], g0[t], g1[t], c0, c1, a[t])


@loop
def _gradient_2(h, x0, x1, x2, g0, g1, g2, m0, m1, m2, r0, r1, r2, a, b0, b1, b2):
    for t in range(h.size):
        c0, c1, c2 = centred(x0[t], m0[t]), centred(x1[t], m1[t]), centred(x2[t], m2[t])
        h[t] = input_gradient_2(r0[t], r1[t], r2[t], b0[t], b1[t], b2[t], g0[t], g1[t], g2[t], c0, c1, c2, a[t])


@helper
def gradient_sums(order, x, g, tables, one, sets, place):
    """Order k of G and D of a set."""
    (x0, x1, x2), (g0, g1, g2), (table0, table1, table2) = x, g, tables
    table = table0 if order == 0 else table1 if order == 1 else table2
    total, product = field(table, TOTAL, one, place), field(table, PRODUCT, one, place)
    m0, m1, m2 = jet_of_field(tables, MEAN, one, place)
    clear(total)
    clear(product)
    for i in range(sets[1] * sets[2]):
        row = row_in(one, i, sets)
        u0, u1, u2 = row_of(x0, row, place), row_of(x1, row, place), row_of(x2, row, place)
        f0, f1, f2 = row_of(g0, row, place), row_of(g1, row, place), row_of(g2, row, place)
        if order == 0:
            _sums_0(total, product, f0, u0, m0)
        elif order == 1:
            _sums_1(total, product, f0, f1, u0, u1, m0, m1)
        else:
            _sums_2(total, product, f0, f1, f2, u0, u1, u2, m0, m1, m2)


@helper
def shares(order, tables, one, n, which, place):
    """Order k of a or b of a set; ``which`` names the share, its factor and the sum."""
    target, factor, of = which
    r0, r1, r2 = jet_of_field(tables, factor, one, place)
    share0, share1, share2 = jet_of_field(tables, target, one, place)
    total0, total1, total2 = jet_of_field(tables, of, one, place)
    if order == 0:
        _share_0(share0, r0, total0, n)
    elif order == 1:
        _share_1(share1, r0, r1, total0, total1, n)
    else:
        _share_2(share2, r0, r1, r2, total0, total1, total2, n)


@kernel
def standardise_backward(h, order, x: Jet, g: Jet, tables: Jet, sets: Sets, centres, extent: Extent, part: Slice):
    """Order k of h = r g − a − b c, and of the numbers of every set that this takes."""
    first, lanes = lanes_of(extent, part)
    place = first, lanes, extent[3]
    (x0, x1, x2), (g0, g1, g2), (table0, table1, table2) = x, g, tables
    table, count = table0 if order == 0 else table1 if order == 1 else table2, sets[1] * sets[2]
    for one in range(sets[0]):
        gradient_sums(order, x, g, tables, one, sets, place)
        shares(order, tables, one, real(count), (SLOPE, CUBE, PRODUCT), place)
        shift = field(table, SHIFT, one, place)
        if centres != 0:
            shares(order, tables, one, real(count), (SHIFT, ROOT, TOTAL), place)
        else:
            clear(shift)
        m0, m1, m2 = jet_of_field(tables, MEAN, one, place)
        r0, r1, r2 = jet_of_field(tables, ROOT, one, place)
        b0, b1, b2 = jet_of_field(tables, SLOPE, one, place)
        for i in range(count):
            row = row_in(one, i, sets)
            target, u0, f0 = row_of(h, row, place), row_of(x0, row, place), row_of(g0, row, place)
            u1, f1 = row_of(x1, row, place), row_of(g1, row, place)
            if order == 0:
                _gradient_0(target, u0, f0, m0, r0, shift, b0)
            elif order == 1:
                _gradient_1(target, u0, u1, f0, f1, m0, m1, r0, r1, shift, b0, b1)
            else:
                u2, f2 = row_of(x2, row, place), row_of(g2, row, place)
                _gradient_2(target, u0, u1, u2, f0, f1, f2, m0, m1, m2, r0, r1, r2, shift, b0, b1, b2)
