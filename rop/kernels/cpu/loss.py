"""Losses: the seed g of the backward pass at each order, and the energies E⁰, E¹, E².

Targets are in the user's order (sample, class, pixel) and are looked up by the samples of the tile. A lane whose sample
is negative is padding and has weight 0. ``scale`` is the address of κ = 1/total (or 1), a float64. Order 0 writes the
weights of the lanes to ``omega`` (pixel, lane), and later orders read them.

    g, p, z_k   (pixel, row, lane)      labels   (sample, pixel) int64      dense    (sample, row, pixel)
    energy      (1,) float64            weight   (sample, pixel)            samples  (lane,) int64

BCEWithLogits has two rows of ``dense`` for each row of the output: all of b, then all of c.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rop.kernels.compile import KERNELS, Jet, Kernel, algebra, formula, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.elementwise import output_1, output_2, renamed
from rop.kernels.cpu.mathematics import log, versions
from rop.kernels.cpu.memory import clear, doubles, integers, jet_of_pixel, jet_of_reals, of_pixel, reals
from rop.kernels.cpu.softmax import softmax_order
from rop.kernels.cpu.vector import number_in
from rop.kernels.scalar import CALLS
from rop.layers import LOSSES, elementwise
from rop.layers import loss as layer

sigmoid = formula(elementwise.sigmoid, versions)
binary_energy = formula(layer.binary_energy, versions)
residual, surprise, energy_2 = algebra(layer.residual), algebra(layer.surprise), algebra(layer.energy_2)
square_energy, square_seed = algebra(layer.square_energy), algebra(layer.square_seed)


@helper
def lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes):
    """The weights of a pixel's lanes (lane,). Order 0 computes them: scale · weight of the sample, 0 for padding."""
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
    """The target of one number of the output. Padding has the target of the sample that it copies, and weight 0."""
    i = sample if sample >= 0 else ~sample
    return reals(dense + ((i * rows + row) * pixels + pixel) * itemsize, 1)[0]


@loop
def _weigh(g, omega):
    """g *= ω."""
    lanes = omega.size
    for row in range(g.shape[0]):
        for t in range(lanes):
            g[row, t] *= omega[t]


@loop
def _weigh_from(g, p, omega):
    """g = ω p."""
    lanes = omega.size
    for row in range(g.shape[0]):
        for t in range(lanes):
            g[row, t] = p[row, t] * omega[t]


@loop
def _logarithms(s):
    """s = log s."""
    for t in range(s.size):
        s[t] = log(s[t])


@helper
def _class_energy(g, z, r, s, labels, dense, samples, scale, omega, pixels, pixel, rows):
    """Subtracts q from g and returns −⟨q, log p⟩, for the lanes of one pixel; r = max z and s = log Σ e^(z − r)."""
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
            energy += omega[t] * surprise(z[label, t], r[t], s[t])
        else:
            for row in range(rows):
                q = real(factor * target(dense, sample[t], rows, pixels, row, pixel))
                g[row, t] -= q
                if q != 0:
                    energy += q * surprise(z[row, t], r[t], s[t])
    return energy


@kernel
def cross_entropy(
    g, energy, order, p, z: Jet, labels, dense, weight, samples, scale, omega, pixels, rows, lanes, scratch
):
    """Order k of g = ω p − q, where p = softmax(z) and q has order 0 only; order 0 of the softmax is kept in p."""
    r = reals(scratch, lanes)
    s = reals(scratch + lanes * itemsize, lanes)
    total = 0.0
    for pixel in range(pixels):
        at = pixel, rows, lanes
        seed, probability = of_pixel(g, at), of_pixel(p, at)
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        if order == 0:
            z0 = of_pixel(z[0], at)
            softmax_order(probability, 0, probability, (z0, z0, z0), r, s)
            _weigh_from(seed, probability, factors)
            _logarithms(s)
            total += _class_energy(seed, z0, r, s, labels, dense, samples, scale, factors, pixels, pixel, rows)
        else:
            softmax_order(seed, order, probability, jet_of_pixel(z, at), r, s)
            _weigh(seed, factors)
    if order == 0:
        doubles(energy, 1)[0] = total


@kernel
def negative_log_likelihood(g, energy, order, z, labels, weight, samples, scale, omega, pixels, rows, lanes):
    """E = −Σ ω z_label, linear in z: g is 0 from order 1 on."""
    n = rows * lanes
    sample = integers(samples, lanes)
    total = 0.0
    clear(reals(g, n * pixels))
    if order > 0:
        return
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for t in range(lanes):
            if sample[t] >= 0:
                c = (pixel * rows + integers(labels, 1 << 40)[sample[t] * pixels + pixel]) * lanes + t
                reals(g, n * pixels)[c] = -factors[t]
                total -= factors[t] * reals(z, n * pixels)[c]
    doubles(energy, 1)[0] = total


@kernel
def squared_error(g, energy, order, z, dense, weight, samples, scale, omega, pixels, rows, lanes):
    """Order k of g = 2ω (z − t), where t has order 0 only; z is order k of the output."""
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
                    d = residual(d, target(dense, sample[t], rows, pixels, row, pixel))
                    total += square_energy(factors[t], d)
                seed[t] = square_seed(factors[t], d)
    if order == 0:
        doubles(energy, 1)[0] = total


value: Any = None  # the function of a separable loss, of z, t and a: bound by ``separable``


def _separable(g, energy, order, z: Jet, dense, weight, samples, scale, omega, a, pixels, rows, lanes):
    """E = Σ ω l(z, t), and order k of g = ω l′(z, t), where t has order 0 only; a holds the bits of the parameter."""
    sample, parameter = integers(samples, lanes), real(number_in(a))
    total = 0.0
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for row in range(rows):
            o = (pixel * rows + row) * lanes * itemsize
            seed, (x0, x1, x2) = reals(g + o, lanes), jet_of_reals((z[0] + o, z[1] + o, z[2] + o), lanes)
            for t in range(lanes):
                e, d1, d2, d3 = value(x0[t], target(dense, sample[t], rows, pixels, row, pixel), parameter)
                if order == 0:
                    total += factors[t] * e
                    seed[t] = factors[t] * d1
                elif order == 1:
                    seed[t] = factors[t] * output_1(d2, x1[t])
                else:
                    seed[t] = factors[t] * output_2(d2, d3, x1[t], x2[t])
    if order == 0:
        doubles(energy, 1)[0] = total


@cache
def separable(of: Callable[..., Any], count: int) -> Kernel:
    """The kernel of a separable loss, whose function takes z, t and ``count`` parameters, of which there is at most
    one."""
    called = helper(renamed(CALLS[1 + count], of.__name__), function=formula(of, versions))
    made = Kernel(renamed(_separable, of.__name__), f"loss.{of.__name__}", value=called)
    KERNELS[made.name] = made
    return made


for _kind in LOSSES.values():
    if issubclass(_kind, layer.Separable):
        separable(_kind.function, len(_kind().parameters))


@helper
def counts(dense, sample, factor, rows, pixels, row, pixel):
    """κ b and κ c of one number, 0 for padding; the rows of c follow those of b."""
    if sample < 0:
        return real(0), real(0)
    b = target(dense, sample, 2 * rows, pixels, row, pixel)
    c = target(dense, sample, 2 * rows, pixels, rows + row, pixel)
    return real(factor * b), real(factor * c)


@kernel
def binary_cross_entropy(g, energy, order, z: Jet, dense, samples, scale, omega, pixels, rows, lanes):
    """E = Σ κ (b log(1 + e^−z) + c log(1 + e^z)), and order k of g = κ (a sigmoid(z) − b) with a = b + c; b and c have
    order 0 only. Here omega is κ a, (pixel, row, lane)."""
    sample = integers(samples, lanes)
    factor = doubles(scale, 1)[0]
    total = 0.0
    for pixel in range(pixels):
        for row in range(rows):
            o = (pixel * rows + row) * lanes * itemsize
            seed, (x0, x1, x2) = reals(g + o, lanes), jet_of_reals((z[0] + o, z[1] + o, z[2] + o), lanes)
            weight = reals(omega + o, lanes)
            for t in range(lanes):
                s, d1, d2, _ = sigmoid(x0[t])
                if order == 0:
                    b, c = counts(dense, sample[t], factor, rows, pixels, row, pixel)
                    weight[t] = b + c
                    total += binary_energy(x0[t], b, c)
                    seed[t] = residual(weight[t] * s, b)
                elif order == 1:
                    seed[t] = weight[t] * output_1(d1, x1[t])
                else:
                    seed[t] = weight[t] * output_2(d1, d2, x1[t], x2[t])
    if order == 0:
        doubles(energy, 1)[0] = total


@loop
def _dot(a, b):
    s = real(0)
    for i in range(a.size):
        s += a[i] * b[i]
    return s


@kernel
def energy(result, order, g: Jet, z: Jet, count):
    """Order 1 or 2 of E, from the chain rule at the output; g_k and z_k are (count,)."""
    (g0, g1, _), (_, z1, z2) = jet_of_reals(g, count), jet_of_reals(z, count)
    if order == 1:
        doubles(result, 1)[0] = _dot(g0, z1)
    else:
        g1_z1 = np.float64(_dot(g1, z1))
        g0_z2 = np.float64(_dot(g0, z2))
        doubles(result, 1)[0] = energy_2(g1_z1, g0_z2)
