"""Losses: the seed g of the backward pass at each order, and the energies E⁰, E¹, E².

Targets lie in the user's order (sample, class, pixel) and are looked up by the samples of the tile. A lane whose sample
is negative is padding and has weight 0. ``scale`` is the address of 1/total (or 1), a float64. Order 0 leaves the
weights of the lanes in ``omega`` (pixel, lane) for the orders after it.
"""

from __future__ import annotations

from rop.kernels.compile import formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.elementwise import output_1, output_2
from rop.kernels.cpu.mathematics import log, vector_math
from rop.kernels.cpu.memory import doubles, integers, of_pixel, reals
from rop.kernels.cpu.softmax import softmax_order
from rop.layers import elementwise

sigmoid = formula(elementwise.sigmoid, vector_math)
softplus = formula(elementwise.softplus, vector_math)


@helper
def lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes):
    """The weights of a pixel's lanes: at order 0, scale · weight of the sample, 0 for padding."""
    row = reals(omega + pixel * lanes * itemsize, lanes)
    if order == 0:
        sample = integers(samples, lanes)
        factor = doubles(scale, 1)[0]
        value = reals(weight, 1 << 40)
        for t in range(lanes):
            row[t] = real(factor * value[sample[t] * pixels + pixel]) if sample[t] >= 0 else real(0)
    return row


@helper
def target(dense, sample, rows, pixels, row, pixel):
    """The target of one number of the output; any finite number for padding, whose weight is 0."""
    i = sample if sample >= 0 else ~sample
    return reals(dense + ((i * rows + row) * pixels + pixel) * itemsize, 1)[0]


@loop
def _weigh(g, omega):
    lanes = omega.size
    for row in range(g.shape[0]):
        for t in range(lanes):
            g[row, t] *= omega[t]


@loop
def _weigh_from(g, p, omega):
    lanes = omega.size
    for row in range(g.shape[0]):
        for t in range(lanes):
            g[row, t] = p[row, t] * omega[t]


@loop
def _logarithms(s):
    for t in range(s.size):
        s[t] = log(s[t])


@helper
def _class_energy(g, z, r, s, labels, dense, samples, scale, omega, pixels, pixel, rows):
    """Subtracts q from g and returns −⟨q, log p⟩, for the lanes of one pixel. With r = max z and s = log Σ e^(z − r),
    −log p = (r − z) + s, also where p has underflowed."""
    lanes = omega.size
    sample = integers(samples, lanes)
    factor = doubles(scale, 1)[0]
    energy = 0.0
    for t in range(lanes):
        if sample[t] < 0:
            continue
        if labels != 0:
            label = integers(labels, 1 << 40)[sample[t] * pixels + pixel]
            g[label, t] -= omega[t]
            energy += omega[t] * (r[t] - z[label, t] + s[t])
        else:
            for row in range(rows):
                q = real(factor * target(dense, sample[t], rows, pixels, row, pixel))
                g[row, t] -= q
                if q != 0:
                    energy += q * (r[t] - z[row, t] + s[t])
    return energy


@kernel
def cross_entropy(
    g, energy, order, p, z0, z1, z2, labels, dense, weight, samples, scale, omega, pixels, rows, lanes, scratch
):
    """g_k = ω p_k (− q at order 0) with p = softmax(z); order 0 is kept in p."""
    r = reals(scratch, lanes)
    s = reals(scratch + lanes * itemsize, lanes)
    total = 0.0
    for pixel in range(pixels):
        at = pixel, rows, lanes
        seed, probability = of_pixel(g, at), of_pixel(p, at)
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        if order == 0:
            z = of_pixel(z0, at)
            softmax_order(probability, 0, probability, z, z, z, r, s)
            _weigh_from(seed, probability, factors)
            _logarithms(s)
            total += _class_energy(seed, z, r, s, labels, dense, samples, scale, factors, pixels, pixel, rows)
        else:
            softmax_order(seed, order, probability, of_pixel(z0, at), of_pixel(z1, at), of_pixel(z2, at), r, s)
            _weigh(seed, factors)
    if order == 0:
        doubles(energy, 1)[0] = total


@loop
def _clear(y):
    for i in range(y.size):
        y[i] = real(0)


@kernel
def negative_log_likelihood(g, energy, order, z0, labels, weight, samples, scale, omega, pixels, rows, lanes):
    """E = −Σ ω z_label, linear in z: g is 0 from order 1 on."""
    n = rows * lanes
    sample = integers(samples, lanes)
    total = 0.0
    _clear(reals(g, n * pixels))
    if order > 0:
        return
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for t in range(lanes):
            if sample[t] >= 0:
                c = (pixel * rows + integers(labels, 1 << 40)[sample[t] * pixels + pixel]) * lanes + t
                reals(g, n * pixels)[c] = -factors[t]
                total -= factors[t] * reals(z0, n * pixels)[c]
    doubles(energy, 1)[0] = total


@kernel
def squared_error(g, energy, order, z, dense, weight, samples, scale, omega, pixels, rows, lanes):
    """g_0 = 2ω (z − t), g_k = 2ω z_k; z is the output's order k."""
    sample = integers(samples, lanes)
    total = 0.0
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for row in range(rows):
            o = (pixel * rows + row) * lanes * itemsize
            seed, value = reals(g + o, lanes), reals(z + o, lanes)
            for t in range(lanes):
                d = value[t]
                if order == 0:
                    d -= target(dense, sample[t], rows, pixels, row, pixel)
                    total += factors[t] * d * d
                seed[t] = real(2) * factors[t] * d
    if order == 0:
        doubles(energy, 1)[0] = total


@kernel
def binary_cross_entropy(g, energy, order, z0, z1, z2, dense, weight, samples, scale, omega, pixels, rows, lanes):
    """E = Σ ω (log(1 + e^z) − t z); g is ω times the jet of sigmoid(z) (− t at order 0)."""
    sample = integers(samples, lanes)
    total = 0.0
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for row in range(rows):
            o = (pixel * rows + row) * lanes * itemsize
            seed, x0, x1, x2 = reals(g + o, lanes), reals(z0 + o, lanes), reals(z1 + o, lanes), reals(z2 + o, lanes)
            for t in range(lanes):
                s, d1, d2, _ = sigmoid(x0[t])
                if order == 0:
                    wanted = target(dense, sample[t], rows, pixels, row, pixel)
                    total += factors[t] * (softplus(x0[t], real(1), real(1000))[0] - wanted * x0[t])
                    seed[t] = factors[t] * (s - wanted)
                elif order == 1:
                    seed[t] = factors[t] * output_1(d1, x1[t])
                else:
                    seed[t] = factors[t] * output_2(d1, d2, x1[t], x2[t])
    if order == 0:
        doubles(energy, 1)[0] = total


@loop
def _dot(a, b):
    s = real(0)
    for i in range(a.size):
        s += a[i] * b[i]
    return s


@kernel
def energy(result, order, g0, g1, z1, z2, count):
    """E along the direction, from the chain rule at the output: E_1 = ⟨g_0, z_1⟩, E_2 = ⟨g_1, z_1⟩/2 + ⟨g_0, z_2⟩."""
    if order == 1:
        doubles(result, 1)[0] = _dot(reals(g0, count), reals(z1, count))
    else:
        doubles(result, 1)[0] = _dot(reals(g1, count), reals(z1, count)) / 2.0 + _dot(
            reals(g0, count), reals(z2, count)
        )
