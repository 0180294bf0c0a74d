"""Losses: the seed g of the backward pass and the energies E⁰, E¹, E², all orders in one launch.

Targets lie in the user's order (sample, class, pixel) and are looked up by the samples of the lanes. A lane whose
sample is negative is padding and has weight 0. ``scale`` holds 1/total (or 1). Every block (a pixel and a warp of
lanes) leaves its share of each energy; their sum is the energy.
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
from rop.kernels.cuda.softmax import along, exponentials, inner_products, per_pixel, place, tilt_2
from rop.kernels.cuda.sums import block_sum
from rop.layers import elementwise

sigmoid = formula(elementwise.sigmoid)
softplus = formula(elementwise.softplus)


def blocks(pixels: int, lanes: int) -> int:
    """How many shares of each energy there are."""
    return pixels * (lanes // WARP)


@helper
def lane_weight(weight, samples, scale, pixel, lane):
    """scale · weight of the sample's pixel, 0 for padding."""
    sample = samples[lane]
    return scale[0] * weight[sample, pixel] if sample >= 0 else real(0)


@helper
def wanted(dense, samples, pixels, row, pixel, lane):
    """The target of one number of the output, of padding that of the sample it is a copy of."""
    sample = samples[lane]
    return dense[sample if sample >= 0 else ~sample, row * pixels + pixel]


@helper
def seed_0(g0, value, row, lane):
    """Order 0 of the seed: what was just computed, or what an earlier launch has left."""
    if wants_0:
        g0[row, lane] = value
        return value
    return g0[row, lane]


@helper
def seed_1(g1, value, row, lane):
    if wants_1:
        g1[row, lane] = value
        return value
    return g1[row, lane] if wants_2 else real(0)


@helper
def report(energy0, energy1, energy2, share0, share1, share2):
    """Leaves this block's share of the energies that are wanted."""
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
    """What one number adds to E_1 = ⟨g_0, z_1⟩ and E_2 = ⟨g_1, z_1⟩/2 + ⟨g_0, z_2⟩: the chain rule at the output."""
    return f0 * u1, f1 * u1 / real(2) + f0 * u2


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
    """g_k = ω p_k (− q at order 0) with p = softmax(z), which order 0 writes and later orders read; E_0 = −⟨q, log p⟩.
    q is ω at the label, or ``dense``."""
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
            g0[row, lane] = omega * p[row, lane] - q
            if q != real(0):  # not 0·∞
                share0 -= q * ((z0[row, lane] - largest) - math.log(total))
    if wants_1 or wants_2:
        r, s = inner_products(buffer, p, z1, z2, first, rows, lane)
        for row in range(first + stripe, first + rows, STRIPES):
            u1, u2 = along(z1, z2, row, lane)
            weighted = omega * p[row, lane]
            f1 = seed_1(g1, weighted * (u1 - r), row, lane)
            if wants_2:
                g2[row, lane] = weighted * (tilt_2(u2, u1 - r) - s)
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
    """E = Σ ω (z − t)²: g_0 = 2ω (z − t), g_k = 2ω z_k."""
    pixel, first, lane = place(g0.shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        d = real(0)
        if wants_0:
            d = z0[row, lane] - wanted(dense, samples, pixels, row - first, pixel, lane)
            share0 += omega * d * d
        u1, u2 = along(z1, z2, row, lane)
        f0 = seed_0(g0, real(2) * omega * d, row, lane)
        f1 = seed_1(g1, real(2) * omega * u1, row, lane)
        if wants_2:
            g2[row, lane] = real(2) * omega * u2
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
    """E = Σ ω (log(1 + e^z) − t z); g is ω times the jet of sigmoid(z) (− t at order 0)."""
    pixel, first, lane = place(g0.shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        z = z0[row, lane]
        s, d1, d2, _ = sigmoid(z)
        t = real(0)
        if wants_0:
            t = wanted(dense, samples, pixels, row - first, pixel, lane)
            share0 += omega * (softplus(z, real(1), real(1000))[0] - t * z)
        u1, u2 = along(z1, z2, row, lane)
        f0 = seed_0(g0, omega * (s - t), row, lane)
        f1 = seed_1(g1, omega * output_1(d1, u1), row, lane)
        if wants_2:
            g2[row, lane] = omega * output_2(d1, d2, u1, u2)
        change1, change2 = energies(f0, f1, u1, u2)
        share1 += change1
        share2 += change2
    report(energy0, energy1, energy2, share0, share1, share2)


@kernel(lambda names, given: (given["z"].shape[1] // WARP,), (WARP,))
def correct(hits: Indices, z: Matrix, labels: Table, samples: Indices):
    """How many samples of each warp of lanes have their largest output, the first of equals, at their label."""
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
