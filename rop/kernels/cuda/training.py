"""The update of a training step: w and the optimizer's moments, in one pass over them."""

from __future__ import annotations

from numba import cuda

from rop.kernels import rules
from rop.kernels.cuda.compile import Count, Number, Vector, device_function, helper, kernel, per_number, real

plain_rule, sgd_rule = device_function(rules.plain), device_function(rules.sgd)
adam_rule = device_function(rules.adam)


@helper
def direction(g, h, factor, i):
    """Number i of g + factor·h; without a penalty there is no h."""
    p = g[i]
    if factor != real(0):
        p += factor * h[i]
    return p


@kernel(per_number("w"))
def plain(w: Vector, g: Vector, h: Vector, factor: Number, rate: Number):
    """w −= rate·(g + factor·h)."""
    i = cuda.grid(1)
    if i < w.size:
        w[i] = plain_rule(w[i], direction(g, h, factor, i), rate)


@kernel(per_number("w"))
def sgd(
    w: Vector,
    velocity: Vector,
    g: Vector,
    h: Vector,
    factor: Number,
    rate: Number,
    momentum: Number,
    decay: Number,
    nesterov: Count,
):
    """p = g + factor·h + decay·w; velocity = momentum·velocity + p; w −= rate·(velocity, or p + momentum·velocity)."""
    i = cuda.grid(1)
    if i < w.size:
        p = direction(g, h, factor, i) + decay * w[i]
        w[i], velocity[i] = sgd_rule(w[i], velocity[i], p, rate, momentum, nesterov != 0)


@kernel(per_number("w"))
def adam(
    w: Vector,
    mean: Vector,
    squares: Vector,
    g: Vector,
    h: Vector,
    factor: Number,
    rate: Number,
    beta1: Number,
    beta2: Number,
    eps: Number,
    decay: Number,
    unbiased: Number,
):
    """Moments of p = g + factor·h + decay·w, and w −= rate·mean / (√squares·unbiased + ε); the caller's rate and
    ``unbiased`` correct the biases of both moments."""
    i = cuda.grid(1)
    if i < w.size:
        p = direction(g, h, factor, i) + decay * w[i]
        w[i], mean[i], squares[i] = adam_rule(w[i], mean[i], squares[i], p, rate, beta1, beta2, eps, unbiased)
