"""The update of a training step: w, and what the optimizer remembers, in one run over them."""

from __future__ import annotations

import math

from numba import cuda

from rop.kernels.cuda.compile import Count, Number, Vector, kernel, per_number, real


@kernel(per_number("w"))
def plain(w: Vector, g: Vector, h: Vector, factor: Number, rate: Number):
    """w −= rate·(g + factor·h)."""
    i = cuda.grid(1)
    if i < w.size:
        step = g[i]
        if factor != real(0):  # without a penalty there is no h
            step += factor * h[i]
        w[i] -= rate * step


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
        p = g[i] + decay * w[i]
        if factor != real(0):
            p += factor * h[i]
        moved = momentum * velocity[i] + p
        velocity[i] = moved
        w[i] -= rate * (p + momentum * moved if nesterov != 0 else moved)


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
        p = g[i] + decay * w[i]
        if factor != real(0):
            p += factor * h[i]
        first = beta1 * mean[i] + (real(1) - beta1) * p
        second = beta2 * squares[i] + (real(1) - beta2) * p * p
        mean[i] = first
        squares[i] = second
        w[i] -= rate * first / (math.sqrt(second) * unbiased + eps)
