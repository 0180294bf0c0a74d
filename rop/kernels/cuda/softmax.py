"""Softmax and log-softmax over the rows of each pixel, all orders in one launch.

A block has the lanes of a warp and STRIPES threads for each of them, which divide the rows among themselves. Every
order of the softmax is  p_k = p ⊙ (u_k − ⟨p, u_k⟩)  (rop/layers/softmax.py), so a kernel makes inner products over the
rows first and applies them to each row then. All matrices are (pixel · row, lane).
"""

from __future__ import annotations

import math

from numba import cuda

from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    STRIPES,
    WARP,
    BoundNames,
    Count,
    Grid,
    Jet,
    Matrix,
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
from rop.kernels.cuda.sums import block_and_lane, stripe_largest, stripe_sum
from rop.layers import jet
from rop.layers import softmax as layer

product_1, product_2 = formula(jet.product_1), formula(jet.product_2)
log_probability, probability = formula(layer.log_probability), formula(layer.probability)
tilt_2 = formula(layer.tilt_2)
exponential_2 = formula(layer.exponential_2)
log_gradient_0 = formula(layer.log_gradient_0)
log_gradient_1, log_gradient_2 = formula(layer.log_gradient_1), formula(layer.log_gradient_2)


def per_pixel(parameter: str) -> Grid:
    """A grid with a block for every pixel and warp of lanes of a jet."""
    return lambda names, arguments: (arguments["pixels"] * (arguments[parameter][0].shape[1] // WARP),)


def with_log(orders: Orders = ORDERS, levels: Orders = ORDERS, log: bool = False) -> BoundNames:
    """Bound names of the kernels of softmax or, with ``log``, of log-softmax."""
    return {**by_order(orders, levels), "log": log}


log = False


@helper
def place(lanes, rows):
    """Pixel, first row and lane of this thread, in the grid ``per_pixel``."""
    pixel, lane = block_and_lane(lanes)
    return pixel, pixel * rows, lane


@helper
def exponentials(buffer, p, x, first, rows, lane):
    """p = e^(x − m) with m = max x, not yet divided by its sum; returns m and the sum."""
    column, stripe = cuda.threadIdx.x, cuda.threadIdx.y
    largest = -real(math.inf)
    for row in range(first + stripe, first + rows, STRIPES):
        largest = x[row, lane] if x[row, lane] > largest else largest
    largest = stripe_largest(buffer, stripe, column, largest)
    total = real(0)
    for row in range(first + stripe, first + rows, STRIPES):
        e = math.exp(x[row, lane] - largest)
        p[row, lane] = e
        total += e
    return largest, stripe_sum(buffer, stripe, column, total)


@helper
def inner(buffer, p, z, first, rows, lane):
    """⟨p, z⟩ over the rows of a pixel."""
    total = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        total += p[row, lane] * z[row, lane]
    return stripe_sum(buffer, cuda.threadIdx.y, cuda.threadIdx.x, total)


@helper
def along(z, row, lane):
    """Orders 1 and 2 of z, those that are needed; 0 for the others."""
    u1 = z[1][row, lane] if has_1 and (wants_1 or wants_2) else real(0)
    u2 = z[2][row, lane] if has_2 and wants_2 else real(0)
    return u1, u2


@helper
def inner_tilt(buffer, p, z, r, first, rows, lane):
    """⟨p, u_2⟩, given r = ⟨p, z_1⟩."""
    total = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        u1, u2 = along(z, row, lane)
        total += p[row, lane] * tilt_2(u2, log_probability(u1, r))
    return stripe_sum(buffer, cuda.threadIdx.y, cuda.threadIdx.x, total)


@helper
def inner_products(buffer, p, z, first, rows, lane):
    """⟨p, u_1⟩ and ⟨p, u_2⟩, those that are needed; 0 for the others."""
    r = inner(buffer, p, z[1], first, rows, lane) if has_1 else real(0)
    s = inner_tilt(buffer, p, z, r, first, rows, lane) if wants_2 else real(0)
    return r, s


@kernel(per_pixel("y"), ROW_BLOCK, with_log)
def forward(y: Jet, x: Jet, p: Matrix, pixels: Count, rows: Count):
    """The jet of y = softmax(x), or of its logarithm, over the rows of each pixel. p are the probabilities: order 0
    writes them, later orders read them. Without ``log`` they are order 0 of y itself, the same array."""
    buffer = cuda.shared.array((STRIPES, WARP), real)
    _, first, lane = place(p.shape[1], rows)
    stripe = cuda.threadIdx.y
    if wants_0:
        largest, total = exponentials(buffer, p, x[0], first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            p[row, lane] /= total
            if log:
                y[0][row, lane] = log_probability(x[0][row, lane], math.log(total) + largest)
    if wants_1 or wants_2:
        r, s = inner_products(buffer, p, x, first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            q = p[row, lane]
            u1, u2 = along(x, row, lane)
            if wants_1:
                y[1][row, lane] = log_probability(u1, r) if log else probability(q, u1, r)
            if wants_2:
                tilted = tilt_2(u2, log_probability(u1, r))
                y[2][row, lane] = log_probability(u2, s) if log else probability(q, tilted, s)


@kernel(per_pixel("h"), ROW_BLOCK, with_log)
def backward(h: Jet, g: Jet, p: Matrix, y: Jet, pixels: Count, rows: Count):
    """The jet of h = p ⊙ (g − ⟨p, g⟩), with log of h = g − p Σ g: h_k = Σ_j p_j (g_{k−j} − G_{k−j}) with
    G_k = Σ_j ⟨p_j, g_{k−j}⟩, with log h_k = g_k − Σ_j p_j Σ g_{k−j}. y are the orders 1 and 2 of the layer's output."""
    buffer = cuda.shared.array((STRIPES, WARP), real)
    _, first, lane = place(p.shape[1], rows)
    stripe = cuda.threadIdx.y
    sum0 = sum1 = sum2 = real(0)
    for row in range(first + stripe, first + rows, STRIPES):
        p0, p1, p2 = probabilities(p, y, row, lane)
        f0 = g[0][row, lane]
        sum0 += f0 if log else p0 * f0
        if wants_1 or wants_2:
            f1 = g[1][row, lane]
            sum1 += f1 if log else product_1(p0, p1, f0, f1)
            if wants_2:
                f2 = g[2][row, lane]
                sum2 += f2 if log else product_2(p0, p1, p2, f0, f1, f2)
    sum0 = stripe_sum(buffer, stripe, cuda.threadIdx.x, sum0)
    if wants_1 or wants_2:
        sum1 = stripe_sum(buffer, stripe, cuda.threadIdx.x, sum1)
    if wants_2:
        sum2 = stripe_sum(buffer, stripe, cuda.threadIdx.x, sum2)
    for row in range(first + stripe, first + rows, STRIPES):
        p0, p1, p2 = probabilities(p, y, row, lane)
        f0 = g[0][row, lane]
        if log:
            if wants_0:
                h[0][row, lane] = log_gradient_0(f0, p0, sum0)
            if wants_1:
                h[1][row, lane] = log_gradient_1(g[1][row, lane], p0, p1, sum0, sum1)
            if wants_2:
                h[2][row, lane] = log_gradient_2(g[2][row, lane], p0, p1, p2, sum0, sum1, sum2)
        else:
            u0 = f0 - sum0
            if wants_0:
                h[0][row, lane] = p0 * u0
            if wants_1 or wants_2:
                u1 = g[1][row, lane] - sum1
                if wants_1:
                    h[1][row, lane] = product_1(p0, p1, u0, u1)
                if wants_2:
                    h[2][row, lane] = product_2(p0, p1, p2, u0, u1, g[2][row, lane] - sum2)


@helper
def probabilities(p, y, row, lane):
    """Orders 0, 1, 2 of the softmax, from the orders of the layer's output; those that are not needed are 0."""
    p0 = p[row, lane]
    p1 = p2 = real(0)
    if wants_1 or wants_2:
        l1 = y[1][row, lane]
        p1 = p0 * l1 if log else l1
        if wants_2:
            p2 = p0 * exponential_2(l1, y[2][row, lane]) if log else y[2][row, lane]
    return p0, p1, p2
