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
    BoundNames,
    Count,
    Indices,
    Jet,
    Matrix,
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
def put_seed(g, row, lane, seed):
    """Writes the wanted orders of one number of the seed. Returns its orders 0 and 1, as an earlier launch has
    written them if this one does not compute them; 0 for order 1 if no order needs it."""
    put(g, row, lane, seed)
    f0 = seed[0] if wants_0 else g[0][row, lane]
    f1 = seed[1] if wants_1 else g[1][row, lane] if wants_2 else real(0)
    return f0, f1


@helper
def energies(f0, f1, u1, u2):
    """The contribution of one number to E_1 and E_2, by the chain rule at the output."""
    return f0 * u1, energy_2(f1 * u1, f0 * u2)


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


@helper
def square_terms(omega, z, t, u1, u2):
    """E_0 and the jet of the seed g = 2ω (z − t) of one number."""
    d = residual(z, t)
    return square_energy(omega, d), (square_seed(omega, d), square_seed(omega, u1), square_seed(omega, u2))


@helper
def binary_terms(omega, z, t, u1, u2):
    """E_0 and the jet of the seed g = ω (sigmoid(z) − t) of one number."""
    s, d1, d2, _ = sigmoid(z)
    energy0 = omega * binary_energy(z, t)
    return energy0, (omega * residual(s, t), omega * output_1(d1, u1), omega * output_2(d1, d2, u1, u2))


terms: Any = None  # E_0 and the seed of one number: bound below


def _elementwise(g, z, energy, dense, weight, samples, scale, pixels, rows):
    """A loss that is a sum over the numbers of the output, each with a target t that has order 0 only."""
    pixel, first, lane = place(g[0].shape[1], rows)
    omega = lane_weight(weight, samples, scale, pixel, lane)
    share0 = share1 = share2 = real(0)
    for row in range(first + cuda.threadIdx.y, first + rows, STRIPES):
        t = wanted(dense, samples, pixels, row - first, pixel, lane) if wants_0 else real(0)
        u1, u2 = along(z, row, lane)
        energy0, seed = terms(omega, z[0][row, lane], t, u1, u2)
        share0 += energy0
        f0, f1 = put_seed(g, row, lane, seed)
        change1, change2 = energies(f0, f1, u1, u2)
        share1 += change1
        share2 += change2
    report(energy, (share0, share1, share2))


sum_of_squares = helper(_elementwise, terms=square_terms)
sum_of_logits = helper(_elementwise, terms=binary_terms)


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
    """E = Σ ω (z − t)² and the jet of g = 2ω (z − t)."""
    sum_of_squares(g, z, energy, dense, weight, samples, scale, pixels, rows)


@kernel(per_pixel("g"), ROW_BLOCK, by_order)
def binary_cross_entropy(
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
    """E = Σ ω (log(1 + e^z) − t z) and the jet of g = ω (sigmoid(z) − t)."""
    sum_of_logits(g, z, energy, dense, weight, samples, scale, pixels, rows)


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
