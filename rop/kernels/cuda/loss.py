"""Losses: the seed g of the backward pass and the energies E⁰, E¹, E², all orders in one launch.

Targets are in the user's order (sample, class, pixel) and are looked up by the samples of the lanes. A lane whose
sample is negative is padding and has weight 0. ``scale`` (1,) holds κ = 1/total (or 1). Every block (a pixel and a warp
of lanes) writes its share of each energy; the sum of the shares is the energy.

    g_k, z_k, p   (pixel · row, lane)      labels   (sample, pixel)      dense     (sample, row · pixel)
    energy_k      (blocks,)                weight   (sample, pixel)      samples   (lane,)
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
    Count,
    Indices,
    Matrix,
    Table,
    Vector,
    by_order,
    formula,
    helper,
    kernel,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.cuda.elementwise import output_1, output_2
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
def seed_0(g0, value, row, lane):
    """Order 0 of the seed: this value, which is written, or the one that an earlier launch has written."""
    if wants_0:
        g0[row, lane] = value
        return value
    return g0[row, lane]


@helper
def seed_1(g1, value, row, lane):
    """The same for order 1; 0 if no order needs it."""
    if wants_1:
        g1[row, lane] = value
        return value
    return g1[row, lane] if wants_2 else real(0)


@helper
def report(energy0, energy1, energy2, share0, share1, share2):
    """Writes this block's share of the energies that are wanted."""
    buffer = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.y * WARP + cuda.threadIdx.x
    if wants_0:
        share0 = block_sum(buffer, thread, share0)
        if thread == 0:
            energy0[cuda.blockIdx.x] = share0
    if wants_1:
        share1 = block_sum(buffer, thread, share1)
        if thread == 0:
            energy1[cuda.blockIdx.x] = share1
    if wants_2:
        share2 = block_sum(buffer, thread, share2)
        if thread == 0:
            energy2[cuda.blockIdx.x] = share2


@helper
def energies(f0, f1, u1, u2):
    """The contribution of one number to E_1 and E_2, by the chain rule at the output."""
    return f0 * u1, energy_2(f1 * u1, f0 * u2)


def with_targets(
    orders: tuple[int, ...] = ORDERS, levels: tuple[int, ...] = ORDERS, dense: bool = False
) -> dict[str, Any]:
    return {**by_order(orders, levels), "has_dense": dense}


has_dense = False


@helper
def class_target(labels, dense, samples, scale, omega, pixels, row, label, pixel, lane):
    """q of one class."""
    if has_dense:
        return scale[0] * wanted(dense, samples, pixels, row, pixel, lane) if samples[lane] >= 0 else real(0)
    return omega if row == label else real(0)


@kernel(per_pixel, ROW_BLOCK, with_targets)
def cross_entropy(
    g0: Matrix,
    g1: Matrix,
    g2: Matrix,
    z0: Matrix,
    z1: Matrix,
    z2: Matrix,
    p: Matrix,
    energy0: Vector,
    energy1: Vector,
    energy2: Vector,
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
    pixel, first, lane = place(g0.shape[1], rows)
    stripe = cuda.threadIdx.y
    omega = lane_weight(weight, samples, scale, pixel, lane)
    label = -1
    if not has_dense and samples[lane] >= 0:
        label = labels[samples[lane], pixel]
    share0 = share1 = share2 = real(0)
    if wants_0:
        largest, total = exponentials(buffer, p, z0, first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            q = class_target(labels, dense, samples, scale, omega, pixels, row - first, label, pixel, lane)
            p[row, lane] /= total
            g0[row, lane] = residual(omega * p[row, lane], q)
            if q != real(0):  # otherwise 0·∞ could arise
                share0 += q * surprise(z0[row, lane], largest, math.log(total))
    if wants_1 or wants_2:
        r, s = inner_products(buffer, p, z1, z2, first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            u1, u2 = along(z1, z2, row, lane)
            weighted = omega * p[row, lane]
            f1 = seed_1(g1, probability(weighted, u1, r), row, lane)
            if wants_2:
                g2[row, lane] = probability(weighted, tilt_2(u2, log_probability(u1, r)), s)
            change1, change2 = energies(g0[row, lane], f1, u1, u2)
            share1 += change1
            share2 += change2
    report(energy0, energy1, energy2, share0, share1, share2)


@kernel(per_pixel, ROW_BLOCK, by_order)
def negative_log_likelihood(
    g0: Matrix,
    g1: Matrix,
    g2: Matrix,
    z0: Matrix,
    z1: Matrix,
    z2: Matrix,
    energy0: Vector,
    energy1: Vector,
    energy2: Vector,
    labels: Table,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = −Σ ω z_label, linear in z: g is 0 from order 1 on."""
    pixel, first, lane = place(g0.shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    label = labels[samples[lane], pixel] if samples[lane] >= 0 else -1
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        f0 = -omega if row - first == label else real(0)
        if wants_0:
            g0[row, lane] = f0
        if wants_1:
            g1[row, lane] = real(0)
        if wants_2:
            g2[row, lane] = real(0)
        if f0 != real(0):
            u1, u2 = along(z1, z2, row, lane)
            change1, change2 = energies(f0, real(0), u1, u2)
            if wants_0:
                share0 += f0 * z0[row, lane]
            share1 += change1
            share2 += change2
    report(energy0, energy1, energy2, share0, share1, share2)


@kernel(per_pixel, ROW_BLOCK, by_order)
def squared_error(
    g0: Matrix,
    g1: Matrix,
    g2: Matrix,
    z0: Matrix,
    z1: Matrix,
    z2: Matrix,
    energy0: Vector,
    energy1: Vector,
    energy2: Vector,
    dense: Matrix,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = Σ ω (z − t)² and the jet of g = 2ω (z − t), where t has order 0 only."""
    pixel, first, lane = place(g0.shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        d = real(0)
        if wants_0:
            d = residual(z0[row, lane], wanted(dense, samples, pixels, row - first, pixel, lane))
            share0 += square_energy(omega, d)
        u1, u2 = along(z1, z2, row, lane)
        f0 = seed_0(g0, square_seed(omega, d), row, lane)
        f1 = seed_1(g1, square_seed(omega, u1), row, lane)
        if wants_2:
            g2[row, lane] = square_seed(omega, u2)
        change1, change2 = energies(f0, f1, u1, u2)
        share1 += change1
        share2 += change2
    report(energy0, energy1, energy2, share0, share1, share2)


@kernel(per_pixel, ROW_BLOCK, by_order)
def binary_cross_entropy(
    g0: Matrix,
    g1: Matrix,
    g2: Matrix,
    z0: Matrix,
    z1: Matrix,
    z2: Matrix,
    energy0: Vector,
    energy1: Vector,
    energy2: Vector,
    dense: Matrix,
    weight: Matrix,
    samples: Indices,
    scale: Vector,
    pixels: Count,
    rows: Count,
):
    """E = Σ ω (log(1 + e^z) − t z) and the jet of g = ω (sigmoid(z) − t), where t has order 0 only."""
    pixel, first, lane = place(g0.shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        z = z0[row, lane]
        s, d1, d2, _ = sigmoid(z)
        t = real(0)
        if wants_0:
            t = wanted(dense, samples, pixels, row - first, pixel, lane)
            share0 += omega * binary_energy(z, t)
        u1, u2 = along(z1, z2, row, lane)
        f0 = seed_0(g0, omega * residual(s, t), row, lane)
        f1 = seed_1(g1, omega * output_1(d1, u1), row, lane)
        if wants_2:
            g2[row, lane] = omega * output_2(d1, d2, u1, u2)
        change1, change2 = energies(f0, f1, u1, u2)
        share1 += change1
        share2 += change2
    report(energy0, energy1, energy2, share0, share1, share2)


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
