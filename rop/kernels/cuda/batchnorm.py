"""Batch normalisation in both modes, all orders in one launch.

Each node has, per order, a *channel table* (FIELDS, channels): the jets of the mean m, of r, q = γ r, t = q r², and of
a and b of the backward pass; the sums G and D are stored as well, for later orders. A block makes the sums of one
channel, over all pixels and lanes, in two rounds: means first, then products of centred values. Padding lanes are left
out of sums and get gradient 0. Evaluation mode fills the tables from running statistics instead, with N = 0, which
stands for a = b = 0; the rest is the same. The formulas are those of rop/layers/batchnorm.py.

    x_k, g_k, y_k, h_k   (pixel · channel, lane)      table_k   (FIELDS, channels)      samples   (lane,)
    w, v, out_k          (parameters,), with γ at gamma_at and β at beta_at, −1 if the layer has none
"""

from __future__ import annotations

from numba import cuda

from rop.kernels.cuda.compile import (
    ROW_BLOCK,
    THREADS,
    Arguments,
    BoundNames,
    Count,
    Indices,
    Jet,
    Number,
    Vector,
    VectorJet,
    add_to,
    by_order,
    formula,
    has_1,
    has_2,
    helper,
    kernel,
    per_number,
    per_row,
    position,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.cuda.sums import added, block_sum
from rop.layers import batchnorm as layer
from rop.layers import jet

product_1, product_2 = formula(jet.product_1), formula(jet.product_2)
centred = formula(layer.centred)
variance_0 = formula(layer.variance_0)
variance_1 = formula(layer.variance_1)
variance_2 = formula(layer.variance_2)
inverse_root_0 = formula(layer.inverse_root_0)
inverse_root_1, inverse_root_2 = formula(layer.inverse_root_1), formula(layer.inverse_root_2)
scale_0 = formula(layer.scale_0)
scale_1 = formula(layer.scale_1)
scale_2 = formula(layer.scale_2)
square_1, square_2 = formula(layer.square_1), formula(layer.square_2)
cube_0 = formula(layer.cube_0)
cube_1 = formula(layer.cube_1)
cube_2 = formula(layer.cube_2)
output_0 = formula(layer.output_0)
output_1 = formula(layer.output_1)
output_2 = formula(layer.output_2)
input_gradient_0 = formula(layer.input_gradient_0)
input_gradient_1 = formula(layer.input_gradient_1)
input_gradient_2 = formula(layer.input_gradient_2)

# Rows of a channel table: m, r, q, t, a, b, s, N, G, D.
MEAN, ROOT, SCALE, CUBE, SHIFT, SLOPE, VARIANCE, COUNT, TOTAL, PRODUCT = range(10)
FIELDS = 10


def _per_channel(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    """A grid with a block for every channel."""
    return (given["channels"],)


# ----------------------------------------------------------------------------------------------------------- statistics
@helper
def gamma_of(w, v, gamma_at, c):
    """Orders 0 and 1 of γ; 1 and 0 if the layer has no γ."""
    if gamma_at < 0:
        return real(1), real(0)
    return w[gamma_at + c], v[gamma_at + c] if wants_1 or wants_2 else real(0)


@helper
def put_scales(table, c, gamma0, gamma1):
    """Writes the wanted orders of q = γ r and of t = q r², from those of r."""
    r0 = table[0][ROOT, c]
    if wants_0:
        q0 = scale_0(gamma0, r0)
        table[0][SCALE, c] = q0
        table[0][CUBE, c] = cube_0(q0, r0)
    if wants_1 or wants_2:
        q0 = table[0][SCALE, c]
        r1 = table[1][ROOT, c]
        square1 = square_1(r0, r1)
        q1 = scale_1(gamma0, gamma1, r0, r1)
        if wants_1:
            table[1][SCALE, c] = q1
            table[1][CUBE, c] = cube_1(q0, q1, r0, square1)
        if wants_2:
            r2 = table[2][ROOT, c]
            q2 = scale_2(gamma0, gamma1, r1, r2)
            table[2][SCALE, c] = q2
            table[2][CUBE, c] = cube_2(q0, q1, q2, r0, square1, square_2(r0, r1, r2))


@helper
def channel_means(buffer, x, samples, c, pixels, channels):
    """N, and the means of a channel at the orders that are wanted and not zero; 0 for the others."""
    lanes = samples.size
    count = sum0 = sum1 = sum2 = real(0)
    lost0 = lost1 = lost2 = real(0)
    for i in range(cuda.threadIdx.x, pixels * lanes, THREADS):
        pixel = i // lanes
        lane = i - pixel * lanes
        if samples[lane] >= 0:
            row = pixel * channels + c
            count += real(1)
            if wants_0:
                sum0, lost0 = added(sum0, lost0, x[0][row, lane])
            if wants_1 and has_1:
                sum1, lost1 = added(sum1, lost1, x[1][row, lane])
            if wants_2 and has_2:
                sum2, lost2 = added(sum2, lost2, x[2][row, lane])
    n = block_sum(buffer, cuda.threadIdx.x, count)
    if wants_0:
        sum0 = block_sum(buffer, cuda.threadIdx.x, sum0)
    if wants_1 and has_1:
        sum1 = block_sum(buffer, cuda.threadIdx.x, sum1)
    if wants_2 and has_2:
        sum2 = block_sum(buffer, cuda.threadIdx.x, sum2)
    return n, sum0 / n, sum1 / n, sum2 / n


@helper
def channel_products(buffer, x, samples, c, pixels, channels, means):
    """S_00, S_01, S_02 and S_11 of a channel (see rop/layers/batchnorm.py), those that are needed."""
    lanes = samples.size
    sum00 = sum01 = sum02 = sum11 = real(0)
    lost00 = lost01 = lost02 = lost11 = real(0)
    for i in range(cuda.threadIdx.x, pixels * lanes, THREADS):
        pixel = i // lanes
        lane = i - pixel * lanes
        if samples[lane] >= 0:
            row = pixel * channels + c
            c0 = centred(x[0][row, lane], means[0])
            if wants_0:
                sum00, lost00 = added(sum00, lost00, c0 * c0)
            if has_1 and (wants_1 or wants_2):
                c1 = centred(x[1][row, lane], means[1])
                if wants_1:
                    sum01, lost01 = added(sum01, lost01, c0 * c1)
                if wants_2:
                    sum11, lost11 = added(sum11, lost11, c1 * c1)
            if has_2 and wants_2:
                sum02, lost02 = added(sum02, lost02, c0 * centred(x[2][row, lane], means[2]))
    if wants_0:
        sum00 = block_sum(buffer, cuda.threadIdx.x, sum00)
    if has_1 and wants_1:
        sum01 = block_sum(buffer, cuda.threadIdx.x, sum01)
    if has_1 and wants_2:
        sum11 = block_sum(buffer, cuda.threadIdx.x, sum11)
    if has_2 and wants_2:
        sum02 = block_sum(buffer, cuda.threadIdx.x, sum02)
    return sum00, sum01, sum02, sum11


@kernel(_per_channel, names=by_order)
def statistics(
    table: Jet,
    x: Jet,
    w: Vector,
    v: Vector,
    samples: Indices,
    gamma_at: Count,
    eps: Number,
    pixels: Count,
    channels: Count,
):
    """The channel tables of training mode, from the batch: mean, variance s, r = (s + ε)^(−1/2), q and t."""
    buffer = cuda.shared.array(THREADS, real)
    c = cuda.blockIdx.x
    n, m0, m1, m2 = channel_means(buffer, x, samples, c, pixels, channels)
    if not wants_0:
        m0 = table[0][MEAN, c]
    if wants_2 and not wants_1:
        m1 = table[1][MEAN, c]
    s00, s01, s02, s11 = channel_products(buffer, x, samples, c, pixels, channels, (m0, m1, m2))
    if cuda.threadIdx.x > 0:
        return
    if wants_0:
        table[0][COUNT, c] = n
        table[0][MEAN, c] = m0
        s0 = variance_0(s00, n)
        table[0][VARIANCE, c] = s0
        table[0][ROOT, c] = inverse_root_0(s0, eps)
    r0 = table[0][ROOT, c]
    if wants_1:
        s1 = variance_1(s01, n)
        table[1][MEAN, c] = m1
        table[1][VARIANCE, c] = s1
        table[1][ROOT, c] = inverse_root_1(r0, s1)
    if wants_2:
        table[2][MEAN, c] = m2
        table[2][ROOT, c] = inverse_root_2(r0, table[1][VARIANCE, c], variance_2(s02, s11, n))
    gamma0, gamma1 = gamma_of(w, v, gamma_at, c)
    put_scales(table, c, gamma0, gamma1)


@kernel(per_number("mean"), names=by_order)
def frozen(table: Jet, mean: Vector, variance: Vector, w: Vector, v: Vector, gamma_at: Count, eps: Number):
    """The channel tables of evaluation mode; mean and variance (channels,) are running statistics."""
    c = cuda.grid(1)
    if c < mean.size:
        for field in range(FIELDS):
            if wants_0:
                table[0][field, c] = real(0)
            if wants_1:
                table[1][field, c] = real(0)
            if wants_2:
                table[2][field, c] = real(0)
        if wants_0:
            table[0][MEAN, c] = mean[c]
            table[0][ROOT, c] = inverse_root_0(variance[c], eps)
        gamma0, gamma1 = gamma_of(w, v, gamma_at, c)
        put_scales(table, c, gamma0, gamma1)


# ------------------------------------------------------------------------------------------------------ the two passes
@helper
def centred_jet(table, x, row, lane, c):
    """The jet of c = x − m at the orders that are needed; 0 for the others."""
    c0 = centred(x[0][row, lane], table[0][MEAN, c])
    c1 = c2 = real(0)
    if has_1 and (wants_1 or wants_2):
        c1 = centred(x[1][row, lane], table[1][MEAN, c])
    if has_2 and wants_2:
        c2 = centred(x[2][row, lane], table[2][MEAN, c])
    return c0, c1, c2


@kernel(per_row("y"), ROW_BLOCK, by_order)
def normalise(y: Jet, x: Jet, table: Jet, w: Vector, v: Vector, beta_at: Count, channels: Count):
    """The jet of y = q c + β."""
    row, lane = position()
    if row < y[0].shape[0]:
        c = row % channels
        c0, c1, c2 = centred_jet(table, x, row, lane, c)
        q0 = table[0][SCALE, c]
        if wants_0:
            y[0][row, lane] = output_0(q0, c0, w[beta_at + c] if beta_at >= 0 else real(0))
        if wants_1:
            y[1][row, lane] = output_1(q0, table[1][SCALE, c], c0, c1, v[beta_at + c] if beta_at >= 0 else real(0))
        if wants_2:
            y[2][row, lane] = output_2(q0, table[1][SCALE, c], table[2][SCALE, c], c0, c1, c2)


@helper
def channel_gradients(buffer, table, x, g, samples, c, pixels, channels):
    """G = Σ g and D = Σ g c of a channel, at the orders that are wanted."""
    lanes = samples.size
    total0 = total1 = total2 = product0 = product1 = product2 = real(0)
    lost0 = lost1 = lost2 = missed0 = missed1 = missed2 = real(0)
    for i in range(cuda.threadIdx.x, pixels * lanes, THREADS):
        pixel = i // lanes
        lane = i - pixel * lanes
        if samples[lane] >= 0:
            row = pixel * channels + c
            c0, c1, c2 = centred_jet(table, x, row, lane, c)
            f0 = g[0][row, lane]
            if wants_0:
                total0, lost0 = added(total0, lost0, f0)
                product0, missed0 = added(product0, missed0, f0 * c0)
            if wants_1 or wants_2:
                f1 = g[1][row, lane]
                if wants_1:
                    total1, lost1 = added(total1, lost1, f1)
                    product1, missed1 = added(product1, missed1, product_1(c0, c1, f0, f1))
                if wants_2:
                    f2 = g[2][row, lane]
                    total2, lost2 = added(total2, lost2, f2)
                    product2, missed2 = added(product2, missed2, product_2(c0, c1, c2, f0, f1, f2))
    if wants_0:
        total0 = block_sum(buffer, cuda.threadIdx.x, total0)
        product0 = block_sum(buffer, cuda.threadIdx.x, product0)
    if wants_1:
        total1 = block_sum(buffer, cuda.threadIdx.x, total1)
        product1 = block_sum(buffer, cuda.threadIdx.x, product1)
    if wants_2:
        total2 = block_sum(buffer, cuda.threadIdx.x, total2)
        product2 = block_sum(buffer, cuda.threadIdx.x, product2)
    return total0, total1, total2, product0, product1, product2


@helper
def put_gradients(table, out, c, shift, slope, gradients, places, add):
    """Writes a and b to the table, both 0 in evaluation mode, and the gradients of γ and β to their places in the
    vector ``out`` of all parameters, unless a place is −1."""
    table[SHIFT, c] = shift
    table[SLOPE, c] = slope
    if places[0] >= 0:
        add_to(out, places[0] + c, gradients[0], add)
    if places[1] >= 0:
        add_to(out, places[1] + c, gradients[1], add)


@kernel(_per_channel, names=by_order)
def gradient_statistics(
    table: Jet,
    x: Jet,
    g: Jet,
    out: VectorJet,
    samples: Indices,
    gamma_at: Count,
    beta_at: Count,
    add: Count,
    pixels: Count,
    channels: Count,
):
    """a = q G / N, b = t D / N, and the gradients of γ (r D) and β (G), each a Cauchy product of jets."""
    buffer = cuda.shared.array(THREADS, real)
    c = cuda.blockIdx.x
    total0, total1, total2, product0, product1, product2 = channel_gradients(
        buffer, table, x, g, samples, c, pixels, channels
    )
    if cuda.threadIdx.x > 0:
        return
    n = table[0][COUNT, c]
    share = real(1) / n if n > real(0) else real(0)
    places = gamma_at, beta_at
    q0, t0, r0 = table[0][SCALE, c], table[0][CUBE, c], table[0][ROOT, c]
    if wants_0:
        table[0][TOTAL, c] = total0
        table[0][PRODUCT, c] = product0
        shift, slope = q0 * total0 * share, t0 * product0 * share
        put_gradients(table[0], out[0], c, shift, slope, (r0 * product0, total0), places, add)
    if wants_1 or wants_2:
        total0, product0 = table[0][TOTAL, c], table[0][PRODUCT, c]
        q1, t1, r1 = table[1][SCALE, c], table[1][CUBE, c], table[1][ROOT, c]
        if wants_1:
            table[1][TOTAL, c] = total1
            table[1][PRODUCT, c] = product1
            shift = product_1(q0, q1, total0, total1) * share
            slope = product_1(t0, t1, product0, product1) * share
            gamma = product_1(r0, r1, product0, product1)
            put_gradients(table[1], out[1], c, shift, slope, (gamma, total1), places, add)
        if wants_2:
            total1, product1 = table[1][TOTAL, c], table[1][PRODUCT, c]
            q2, t2, r2 = table[2][SCALE, c], table[2][CUBE, c], table[2][ROOT, c]
            shift = product_2(q0, q1, q2, total0, total1, total2) * share
            slope = product_2(t0, t1, t2, product0, product1, product2) * share
            gamma = product_2(r0, r1, r2, product0, product1, product2)
            put_gradients(table[2], out[2], c, shift, slope, (gamma, total2), places, add)


@kernel(per_row("h"), ROW_BLOCK, by_order)
def backward(h: Jet, x: Jet, g: Jet, table: Jet, samples: Indices, channels: Count):
    """The jet of h = q g − a − b c; padding lanes get 0."""
    row, lane = position()
    if row < h[0].shape[0]:
        counts = samples[lane] >= 0
        c = row % channels
        c0, c1, c2 = centred_jet(table, x, row, lane, c)
        q0, b0 = table[0][SCALE, c], table[0][SLOPE, c]
        f0 = g[0][row, lane]
        if wants_0:
            h[0][row, lane] = input_gradient_0(q0, b0, f0, c0, table[0][SHIFT, c]) if counts else real(0)
        if wants_1 or wants_2:
            q1, b1 = table[1][SCALE, c], table[1][SLOPE, c]
            f1 = g[1][row, lane]
            if wants_1:
                value = input_gradient_1(q0, q1, b0, b1, f0, f1, c0, c1, table[1][SHIFT, c])
                h[1][row, lane] = value if counts else real(0)
            if wants_2:
                q2, b2, a2 = table[2][SCALE, c], table[2][SLOPE, c], table[2][SHIFT, c]
                value = input_gradient_2(q0, q1, q2, b0, b1, b2, f0, f1, g[2][row, lane], c0, c1, c2, a2)
                h[2][row, lane] = value if counts else real(0)
