"""Losses: the seed g of the backward pass and the energies E⁰, E¹, E², all orders in one launch.

Targets are in the user's order (sample, class, pixel) and are looked up by the samples of the lanes. A lane whose
sample is negative is padding and has weight 0. ``scale`` (1,) holds κ = 1/total (or 1). Every block (a pixel and a warp
of lanes) writes its share of each energy; the sum of the shares is the energy.

    g_k, z_k, p   (pixel · row, lane)      labels   (sample, pixel)      dense     (sample, row · pixel)
    energy_k      (blocks,)                weight   (sample, pixel)      samples   (lane,)

BCEWithLogits has two rows of ``dense`` for each row of the output: all of b, then all of c.
"""

from __future__ import annotations

import math
from typing import Any

from numba import cuda

from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    STRIPES,
    THREADS,
    WARP,
    BoundNames,
    Count,
    Function,
    Indices,
    Jet,
    Matrix,
    Number,
    Orders,
    Table,
    Vector,
    VectorJet,
    by_order,
    formula,
    helper,
    kernel,
    put,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.cuda.elementwise import activation, output_1, output_2
from rop.kernels.cuda.softmax import (
    along,
    exponentials,
    inner_products,
    log_probability,
    per_pixel,
    place,
    probability,
    tilt_2,
)
from rop.kernels.cuda.sums import block_sum
from rop.layers import elementwise
from rop.layers import loss as layer

sigmoid = formula(elementwise.sigmoid)
binary_energy = formula(layer.binary_energy)
residual, surprise, energy_2 = formula(layer.residual), formula(layer.surprise), formula(layer.energy_2)
square_energy, square_seed = formula(layer.square_energy), formula(layer.square_seed)


def blocks(pixels: int, lanes: int) -> int:
    """The number of shares of each energy."""
    return pixels * (lanes // WARP)


@helper
def lane_weight(weight, samples, scale, pixel, lane):
    """scale · weight of the sample's pixel, 0 for padding."""
    sample = samples[lane]
    return scale[0] * weight[sample, pixel] if sample >= 0 else real(0)


@helper
def wanted(dense, samples, pixels, row, pixel, lane):
    """The target of one number of the output; padding has the target of the sample that it copies."""
    sample = samples[lane]
    return dense[sample if sample >= 0 else ~sample, row * pixels + pixel]


@helper
def report(energy, shares):
    """Writes this block's share of the energies that are wanted."""
    buffer = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.y * WARP + cuda.threadIdx.x
    if wants_0:
        share = block_sum(buffer, thread, shares[0])
        if thread == 0:
            energy[0][cuda.blockIdx.x] = share
    if wants_1:
        share = block_sum(buffer, thread, shares[1])
        if thread == 0:
            energy[1][cuda.blockIdx.x] = share
    if wants_2:
        share = block_sum(buffer, thread, shares[2])
        if thread == 0:
            energy[2][cuda.blockIdx.x] = share


@helper
def energies(f0, f1, u1, u2):
    """The contribution of one number to E_1 and E_2, by the chain rule at the output."""
    return f0 * u1, energy_2(f1 * u1, f0 * u2)


@helper
def put_seed(g, row, lane, seed, u1, u2):
    """Writes the wanted orders of one number of the seed; returns its contribution to E_1 and E_2. Orders that this
    launch does not compute are as an earlier one has written them."""
    put(g, row, lane, seed)
    f0 = seed[0] if wants_0 else g[0][row, lane]
    f1 = seed[1] if wants_1 else g[1][row, lane] if wants_2 else real(0)
    return energies(f0, f1, u1, u2)


def with_targets(orders: Orders = ORDERS, levels: Orders = ORDERS, dense: bool = False) -> BoundNames:
    return {**by_order(orders, levels), "has_dense": dense}


has_dense = False


@helper
def class_target(labels, dense, samples, scale, omega, pixels, row, label, pixel, lane):
    """q of one class."""
    if has_dense:
        return scale[0] * wanted(dense, samples, pixels, row, pixel, lane) if samples[lane] >= 0 else real(0)
    return omega if row == label else real(0)


@kernel(per_pixel("g"), ROW_BLOCK, with_targets)
def cross_entropy(
    g: Jet,
    z: Jet,
    p: Matrix,
    energy: VectorJet,
    labels: Table,
    dense: Matrix,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """The jet of g = ω p − q, where p = softmax(z) and q has order 0 only, and E_0 = −⟨q, log p⟩. Order 0 writes p,
    later orders read it. q is ω at the label, or ``dense``."""
    buffer = cuda.shared.array((STRIPES, WARP), real)
    pixel, first, lane = place(g[0].shape[1], rows)
    stripe = cuda.threadIdx.y
    omega = lane_weight(weight, samples, scale, pixel, lane)
    label = -1
    if not has_dense and samples[lane] >= 0:
        label = labels[samples[lane], pixel]
    share0 = share1 = share2 = real(0)
    if wants_0:
        largest, total = exponentials(buffer, p, z[0], first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            q = class_target(labels, dense, samples, scale, omega, pixels, row - first, label, pixel, lane)
            p[row, lane] /= total
            g[0][row, lane] = residual(omega * p[row, lane], q)
            if q != real(0):  # otherwise 0·∞ could arise
                share0 += q * surprise(z[0][row, lane], largest, math.log(total))
    if wants_1 or wants_2:
        r, s = inner_products(buffer, p, z, first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            u1, u2 = along(z, row, lane)
            weighted = omega * p[row, lane]
            f1 = probability(weighted, u1, r) if wants_1 else g[1][row, lane]
            if wants_1:
                g[1][row, lane] = f1
            if wants_2:
                g[2][row, lane] = probability(weighted, tilt_2(u2, log_probability(u1, r)), s)
            change1, change2 = energies(g[0][row, lane], f1, u1, u2)
            share1 += change1
            share2 += change2
    report(energy, (share0, share1, share2))


@kernel(per_pixel("g"), ROW_BLOCK, by_order)
def negative_log_likelihood(
    g: Jet,
    z: Jet,
    energy: VectorJet,
    labels: Table,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = −Σ ω z_label, linear in z: g is 0 from order 1 on."""
    pixel, first, lane = place(g[0].shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    label = labels[samples[lane], pixel] if samples[lane] >= 0 else -1
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        f0 = -omega if row - first == label else real(0)
        put(g, row, lane, (f0, real(0), real(0)))
        if f0 != real(0):
            u1, u2 = along(z, row, lane)
            change1, change2 = energies(f0, real(0), u1, u2)
            if wants_0:
                share0 += f0 * z[0][row, lane]
            share1 += change1
            share2 += change2
    report(energy, (share0, share1, share2))


@kernel(per_pixel("g"), ROW_BLOCK, by_order)
def squared_error(
    g: Jet,
    z: Jet,
    energy: VectorJet,
    dense: Matrix,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = Σ ω (z − t)² and the jet of g = 2ω (z − t), where t has order 0 only."""
    pixel, first, lane = place(g[0].shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        t = wanted(dense, samples, pixels, row - first, pixel, lane) if wants_0 else real(0)
        u1, u2 = along(z, row, lane)
        d = residual(z[0][row, lane], t)
        share0 += square_energy(omega, d)
        seed = square_seed(omega, d), square_seed(omega, u1), square_seed(omega, u2)
        change1, change2 = put_seed(g, row, lane, seed, u1, u2)
        share1 += change1
        share2 += change2
    report(energy, (share0, share1, share2))


value: Any = None  # the function of a separable loss, of z, t and a: bound by ``of_loss``


def of_loss(of: Function, count: int = 0, orders: Orders = ORDERS, levels: Orders = ORDERS) -> BoundNames:
    """Bound names of the kernel of one separable loss, whose function takes z, t and ``count`` parameters."""
    return {**by_order(orders, levels), "value": activation(of, 1 + count)}


@kernel(per_pixel("g"), ROW_BLOCK, of_loss)
def separable(
    g: Jet,
    z: Jet,
    energy: VectorJet,
    dense: Matrix,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    a: Number,
    pixels: Count,
    rows: Count,
):
    """E = Σ ω l(z, t) and the jet of g = ω l′(z, t), where t has order 0 only; a is the loss's parameter."""
    pixel, first, lane = place(g[0].shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        e, d1, d2, d3 = value(z[0][row, lane], wanted(dense, samples, pixels, row - first, pixel, lane), a)
        u1, u2 = along(z, row, lane)
        share0 += omega * e
        seed = omega * d1, omega * output_1(d2, u1), omega * output_2(d2, d3, u1, u2)
        change1, change2 = put_seed(g, row, lane, seed, u1, u2)
        share1 += change1
        share2 += change2
    report(energy, (share0, share1, share2))


@kernel(per_pixel("g"), ROW_BLOCK, by_order)
def binary_cross_entropy(
    g: Jet,
    z: Jet,
    energy: VectorJet,
    dense: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = Σ κ (b log(1 + e^−z) + c log(1 + e^z)) and the jet of g = κ (a sigmoid(z) − b) with a = b + c; b and c have
    order 0 only."""
    pixel, first, lane = place(g[0].shape[1], rows)
    factor = scale[0] if samples[lane] >= 0 else real(0)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        b = factor * wanted(dense, samples, pixels, row - first, pixel, lane)
        c = factor * wanted(dense, samples, pixels, rows + row - first, pixel, lane)
        u1, u2 = along(z, row, lane)
        s, d1, d2, _ = sigmoid(z[0][row, lane])
        if wants_0:
            share0 += binary_energy(z[0][row, lane], b, c)
        seed = residual((b + c) * s, b), (b + c) * output_1(d1, u1), (b + c) * output_2(d1, d2, u1, u2)
        change1, change2 = put_seed(g, row, lane, seed, u1, u2)
        share1 += change1
        share2 += change2
    report(energy, (share0, share1, share2))


@kernel(lambda names, given: (given["z"].shape[1] // WARP,), (WARP,))
def correct(hits: Indices, z: Matrix, labels: Table, samples: Indices):
    """The number of samples of each warp of lanes whose largest output, the first of equal ones, is at their label."""
    found = cuda.shared.array(WARP, real)
    lane = cuda.blockIdx.x * WARP + cuda.threadIdx.x
    hit = real(0)
    if samples[lane] >= 0:
        label = labels[samples[lane], 0]
        best = z[label, lane]
        hit = real(1)
        for row in range(z.shape[0]):
            if not (z[row, lane] < best or (row >= label and z[row, lane] == best)):
                hit = real(0)
    found[cuda.threadIdx.x] = hit
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        count = 0
        for i in range(WARP):
            count += 1 if found[i] > real(0) else 0
        hits[cuda.blockIdx.x] = count
