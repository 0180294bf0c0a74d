"""Training steps in compiled code: sampling, power iteration, R² and the update, without returning to Python.

One call does a number of steps of Algorithm 1: gradient, dominant eigenpair by power iteration, third-order product,
SGD update. All passes are tables for the interpreter; a step's samples are those of its tiles in the epoch's list.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
from numba import types

from rop.kernels.compile import LOOP_MATH, OPTIONS, KernelCache, PerPrecision, loop, real, specialised
from rop.kernels.cpu.interpreter import _run_parallel, _run_serial, load_threads
from rop.kernels.cpu.memory import doubles, integers, reals
from rop.kernels.cpu.vector import peek

# Words of the descriptor of a run: three passes (table, stages, number of stages) and the addresses they share.
PASSES = 9
(TILES, CANCEL, W, V, GRAD, HVP, R2, SCALE, WEIGHT, SAMPLES, LANES, PIXELS, MEAN, SIZE, ENERGY,
 VELOCITY) = range(PASSES, PASSES + 16)
WORDS = PASSES + 16

# Settings of a run, float64.
RATE, MOMENTUM, DECAY, MU, TARGET, TOLERANCE, ITERATIONS, RELATIVE = range(8)
SETTINGS = 8

# What a step reports, float64.
LOSS, RHO, RESIDUAL, PRODUCTS = range(4)
REPORT = 4

run: Any = None                       # the interpreter: bound below, parallel or not


@loop
def dot(a, b):
    s = real(0)
    for i in range(a.size):
        s += a[i] * b[i]
    return s


@loop
def residual(u, v, rho):
    """‖u − ρ v‖²."""
    s = real(0)
    for i in range(u.size):
        d = u[i] - rho * v[i]
        s += d * d
    return s


@loop
def scale_into(y, x, factor):
    for i in range(y.size):
        y[i] = factor * x[i]


@loop
def update(w, velocity, g, h, mu, rate, momentum, decay):
    """p = g + μ h + decay·w; velocity = momentum·velocity + p; w −= rate·velocity."""
    for i in range(w.size):
        p = g[i] + mu * h[i] + decay * w[i]
        velocity[i] = momentum * velocity[i] + p
        w[i] -= rate * velocity[i]


@loop
def plain_update(w, g, rate):
    for i in range(w.size):
        w[i] -= rate * g[i]


def _batch_scale(d, first):
    """1 / Σ weight of a step's samples: torch's meaning of mean, batch by batch."""
    samples = integers(d[SAMPLES] + 8 * first * d[LANES], d[TILES] * d[LANES])
    weight = reals(d[WEIGHT], 1 << 40)
    total = 0.0
    for i in samples:
        if i >= 0:
            for p in range(d[PIXELS]):
                total += weight[i * d[PIXELS] + p]
    return 1.0 / total


def _pass(d, which, first):
    run(d[3 * which], d[3 * which + 1], d[3 * which + 2], d[TILES], first, d[CANCEL])


def _power(d, first, settings, report):
    """Power iteration from the v in place; leaves v with the product H v that belongs to it, and returns λ."""
    n = d[SIZE]
    u, v = reals(d[HVP], n), reals(d[V], n)
    eigenvalue = 0.0
    for iteration in range(int(settings[ITERATIONS])):
        if iteration > 0:
            scale_into(v, u, real(1.0 / np.sqrt(dot(u, u))))
        _pass(d, 1, first)
        before = eigenvalue
        eigenvalue = float(dot(u, v))
        report[RESIDUAL] = np.sqrt(residual(u, v, real(eigenvalue)))
        report[PRODUCTS] = iteration + 1
        if report[RESIDUAL] <= settings[TOLERANCE] * (abs(eigenvalue) if settings[RELATIVE] != 0 else 1.0):
            break
        if settings[RELATIVE] == 0 and abs(eigenvalue - before) <= settings[TOLERANCE] * abs(eigenvalue):
            break
        if not np.isfinite(eigenvalue) or dot(u, u) == 0:
            break
    return eigenvalue


def _steps(descriptor, settings_at, reports, first_step, count):
    """``count`` steps of Algorithm 1 from ``first_step`` of the epoch; returns how many were done."""
    d = integers(descriptor, WORDS)
    settings = doubles(settings_at, SETTINGS)
    n = d[SIZE]
    w, g, h = reals(d[W], n), reals(d[GRAD], n), reals(d[R2], n)
    for step in range(first_step, first_step + count):
        report = doubles(reports + 8 * REPORT * (step - first_step), REPORT)
        first = step * d[TILES]
        doubles(d[SCALE], 1)[0] = batch_scale(d, first) if d[MEAN] else 1.0
        run_pass(d, 0, first)
        report[LOSS] = 0.0
        for tile in range(d[TILES]):
            report[LOSS] += doubles(d[ENERGY], d[TILES])[tile]
        factor = 0.0
        if settings[MU] != 0:
            eigenvalue = power(d, first, settings, report)
            report[RHO] = abs(eigenvalue)
            if abs(eigenvalue) > settings[TARGET]:
                run_pass(d, 2, first)
                factor = 2.0 * settings[MU] * np.sign(eigenvalue)        # 2: order 2 is a Taylor coefficient
        if peek(d[CANCEL]) != 0:
            return step - first_step
        if d[VELOCITY] == 0 and factor == 0.0:
            plain_update(w, g, real(settings[RATE]))
        else:
            update(w, reals(d[VELOCITY], n), g, h, real(factor), real(settings[RATE]), real(settings[MOMENTUM]),
                   real(settings[DECAY]))
    return count


batch_scale: Any = None
run_pass: Any = None
power: Any = None


def _made(parallel: bool, dtype: Any) -> Any:
    """The compiled steps of one precision."""
    if parallel:
        load_threads()
    interpreter = numba.njit(parallel=parallel, nogil=True, fastmath=LOOP_MATH, no_cfunc_wrapper=True)(
        _run_parallel if parallel else _run_serial)

    def njit(function: Any, **bind: Any) -> Any:
        return numba.njit(fastmath=LOOP_MATH, **OPTIONS)(specialised(function, dtype, **bind))

    one_pass = njit(_pass, run=interpreter)
    steps = njit(_steps, batch_scale=njit(_batch_scale), run_pass=one_pass, power=njit(_power, _pass=one_pass))
    steps._cache = KernelCache(f"descent.steps_{np.dtype(dtype).name}_{'parallel' if parallel else 'serial'}")
    steps.compile((types.int64,) * 5)
    steps.disable_compile()
    return steps


_steps_of = {parallel: PerPrecision(partial(_made, parallel)) for parallel in (True, False)}


def steps(dtype: Any, parallel: bool) -> Any:
    """steps(descriptor, settings, reports, first step, count) for a precision, compiled at first use."""
    return _steps_of[parallel].made(np.dtype(dtype).type)
