"""Softmax and log-softmax over the rows of each pixel, all orders; lanes are independent, so every loop is vector code.

Every order of the softmax is  p_k = p ⊙ (u_k − ⟨p, u_k⟩)  (rop/layers/softmax.py), so a kernel makes inner products
over the rows first and applies them to each row then.

    x_k, y_k, p_k, g_k, h   (pixel, row, lane)      scratch   (2, lane)

In helpers, arrays of one pixel are (row, lane), and sums over the rows (m, r, s) are (lane,).
"""

from __future__ import annotations

from rop.kernels.compile import Jet, algebra, formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.mathematics import exp, log
from rop.kernels.cpu.memory import clear, jet_of_pixel, of_pixel, reals
from rop.layers import softmax as layer

log_probability, probability = algebra(layer.log_probability), algebra(layer.probability)
tilt_2 = formula(layer.tilt_2)
exponential_2 = formula(layer.exponential_2)


@loop
def largest_row(m, z):
    """m (lane) = max over the rows of z (row, lane)."""
    lanes = m.size
    for t in range(lanes):
        m[t] = z[0, t]
    for row in range(1, z.shape[0]):
        for t in range(lanes):
            m[t] = z[row, t] if z[row, t] > m[t] else m[t]


@loop
def exponentials(p, s, z, m):
    """p = e^(z − m), s = Σ_rows p."""
    lanes = m.size
    for t in range(lanes):
        s[t] = real(0)
    for row in range(z.shape[0]):
        for t in range(lanes):
            e = exp(z[row, t] - m[t])
            p[row, t] = e
            s[t] += e


@loop
def divide_rows(p, s):
    """p /= s, row by row."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            p[row, t] /= s[t]


@loop
def inner(s, p, z):
    """s (lane) = Σ_rows p z."""
    lanes = s.size
    for t in range(lanes):
        s[t] = real(0)
    for row in range(p.shape[0]):
        for t in range(lanes):
            s[t] += p[row, t] * z[row, t]


@loop
def add_inner(s, p, z):
    """s (lane) += Σ_rows p z."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            s[t] += p[row, t] * z[row, t]


@loop
def inner_tilt(s, r, p, z1, z2):
    """s = ⟨p, u_2⟩, given r = ⟨p, z_1⟩."""
    lanes = s.size
    for t in range(lanes):
        s[t] = real(0)
    for row in range(p.shape[0]):
        for t in range(lanes):
            s[t] += p[row, t] * tilt_2(z2[row, t], log_probability(z1[row, t], r[t]))


@loop
def _order_1(y, p, z1, s):
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            y[row, t] = probability(p[row, t], z1[row, t], s[t])


@loop
def _order_2(y, p, z1, z2, r, s):
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            u2 = tilt_2(z2[row, t], log_probability(z1[row, t], r[t]))
            y[row, t] = probability(p[row, t], u2, s[t])


@helper
def softmax_order(y, order, p, z, r, s):
    """Order k of y = softmax(z), given its order 0 in p, for one pixel; z is a jet of arrays. At order 0, y and p are
    the same array. r and s are scratch."""
    z0, z1, z2 = z
    if order == 0:
        largest_row(r, z0)
        exponentials(y, s, z0, r)
        divide_rows(y, s)
        return
    inner(r, p, z1)
    if order == 1:
        _order_1(y, p, z1, r)
    else:
        inner_tilt(s, r, p, z1, z2)
        _order_2(y, p, z1, z2, r, s)


@kernel
def softmax(y, order, y0, x: Jet, pixels, rows, lanes, scratch):
    """Order k of y = softmax(x) over the rows of each pixel; y0 is order 0 of y."""
    r = reals(scratch, lanes)
    s = reals(scratch + lanes * itemsize, lanes)
    for pixel in range(pixels):
        at = pixel, rows, lanes
        softmax_order(of_pixel(y, at), order, of_pixel(y0, at), jet_of_pixel(x, at), r, s)


@loop
def _add_centred(h, p, g, s):
    """h += p ⊙ (g − s), one product of the Cauchy sum."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            h[row, t] += probability(p[row, t], g[row, t], s[t])


@kernel
def softmax_backward(h, order, p: Jet, g: Jet, pixels, rows, lanes, scratch):
    """Order k of h = p ⊙ (g − ⟨p, g⟩): h_k = Σ_j p_j (g_{k−j} − G_{k−j}), G_k = Σ_j ⟨p_j, g_{k−j}⟩."""
    s = reals(scratch, lanes)
    for pixel in range(pixels):
        at = pixel, rows, lanes
        target = of_pixel(h, at)
        (q0, q1, q2), (f0, f1, f2) = jet_of_pixel(p, at), jet_of_pixel(g, at)
        clear(reals(h + pixel * rows * lanes * itemsize, rows * lanes))
        inner(s, q0, f0)
        _add_centred(target, q0 if order == 0 else q1 if order == 1 else q2, f0, s)
        if order >= 1:
            inner(s, q0, f1)
            add_inner(s, q1, f0)
            _add_centred(target, q0 if order == 1 else q1, f1, s)
        if order == 2:
            inner(s, q0, f2)
            add_inner(s, q1, f1)
            add_inner(s, q2, f0)
            _add_centred(target, q0, f2, s)


# ---------------------------------------------------------------------------------------------------------- log-softmax
@loop
def _subtract(y, z, s):
    """y = z − s, row by row."""
    lanes = s.size
    for row in range(z.shape[0]):
        for t in range(lanes):
            y[row, t] = log_probability(z[row, t], s[t])


@loop
def _log_sum(s, m):
    """s = m + log s."""
    for t in range(s.size):
        s[t] = m[t] + log(s[t])


@kernel
def log_softmax(y, order, p, x: Jet, pixels, rows, lanes, scratch):
    """Order k of y = x − log Σ e^x; order 0 writes the softmax to p, later orders read it."""
    r = reals(scratch, lanes)
    s = reals(scratch + lanes * itemsize, lanes)
    for pixel in range(pixels):
        at = pixel, rows, lanes
        target, q = of_pixel(y, at), of_pixel(p, at)
        z0, z1, z2 = jet_of_pixel(x, at)
        if order == 0:
            largest_row(r, z0)
            exponentials(q, s, z0, r)
            divide_rows(q, s)
            _log_sum(s, r)
            _subtract(target, z0, s)
        elif order == 1:
            inner(r, q, z1)
            _subtract(target, z1, r)
        else:
            inner(r, q, z1)
            inner_tilt(s, r, q, z1, z2)
            _subtract(target, z2, s)


@loop
def _row_sum(s, g):
    """s (lane) = Σ_rows g."""
    lanes = s.size
    for t in range(lanes):
        s[t] = real(0)
    for row in range(g.shape[0]):
        for t in range(lanes):
            s[t] += g[row, t]


@loop
def _subtract_times(h, p, s):
    """h −= p_0 s."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            h[row, t] -= p[row, t] * s[t]


@loop
def _subtract_times_1(h, p, y1, s):
    """h −= p_1 s."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            h[row, t] -= p[row, t] * y1[row, t] * s[t]


@loop
def _subtract_times_2(h, p, y1, y2, s):
    """h −= p_2 s."""
    lanes = s.size
    for row in range(p.shape[0]):
        for t in range(lanes):
            h[row, t] -= p[row, t] * exponential_2(y1[row, t], y2[row, t]) * s[t]


@loop
def _copy(y, x):
    for row in range(y.shape[0]):
        for t in range(y.shape[1]):
            y[row, t] = x[row, t]


@kernel
def log_softmax_backward(h, order, p, y: Jet, g: Jet, pixels, rows, lanes, scratch):
    """Order k of h = g − p Σ g, with p = e^y: h_k = g_k − Σ_j p_j Σ g_{k−j}."""
    s = reals(scratch, lanes)
    for pixel in range(pixels):
        at = pixel, rows, lanes
        target, q = of_pixel(h, at), of_pixel(p, at)
        (_, z1, z2), (f0, f1, f2) = jet_of_pixel(y, at), jet_of_pixel(g, at)
        _copy(target, f0 if order == 0 else f1 if order == 1 else f2)
        _row_sum(s, target)
        _subtract_times(target, q, s)
        if order == 1:
            _row_sum(s, f0)
            _subtract_times_1(target, q, z1, s)
        elif order == 2:
            _row_sum(s, f1)
            _subtract_times_1(target, q, z1, s)
            _row_sum(s, f0)
            _subtract_times_2(target, q, z1, z2, s)
