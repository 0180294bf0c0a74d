"""Training steps in compiled code: gradient, dominant eigenpair, R² and the update, without returning to Python.

One call does a number of steps of Algorithm 1. All passes are tables for the interpreter; a step's samples are those of
its tiles in the epoch's list. Sums over parameters are made slice by slice and added up in the order of the slices, in
float64, so they do not depend on threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from rop.kernels import draws, rules
from rop.kernels.compile import (
    LOOP_MATH,
    OPTIONS,
    PART,
    KernelCache,
    PerPrecision,
    formula,
    helper,
    itemsize,
    loop,
    real,
    specialised,
)
from rop.kernels.cpu.batchnorm import COUNT, MEAN, VARIANCE, field
from rop.kernels.cpu.interpreter import CANCELLED, load_threads, version
from rop.kernels.cpu.mathematics import versions
from rop.kernels.cpu.memory import doubles, integers, reals
from rop.kernels.cpu.transfer import LONG, PARTS
from rop.kernels.cpu.vector import I64, address_of, peek, prefetch

# The descriptor of a run, int64: four passes (table, stages, number of stages), then numbers and addresses. The passes
# are those of the orders 0, 1 and 2, and the one of K-FAC that makes the direction of the gradient; 0: none.
PASSES = 12
NATURAL = 3  # the pass of K-FAC
(
    TILES,
    LANES,
    ASKED,
    W,
    V,
    GRAD,
    HVP,
    R2,
    SIZE,
    SAMPLES,
    SCALE,
    SHARES,  # each sample's share of what a mean divides by; 0 for reduction "sum"
    ENERGY,
    VELOCITY,  # momentum or Adam's first moment; 0: none
    SQUARES,  # Adam's second moment
    OUTPUT,  # outputs of the first tile; 0: there is no accuracy
    TILE_BYTES,
    CLASSES,
    LABELS,
    NORMALISATIONS,  # a row for each batchnorm layer: channel table, channels, running mean and variance, the next ones
    NORMALISATION_COUNT,
    AVERAGING,  # and how much of the new statistics its running averages take in, float64
    CLOCK,  # clock_gettime, for a profile; 0: none
    SEED,
    BEFORE,  # a copy of the v with which a step's products began, in case it is cancelled
    X,  # the data
    ROW_BYTES,
    HELD,  # a copy of w while SAM or entropy-SGD look at other points
    MEAN_POINT,  # the mean of entropy-SGD's inner steps
    SPARE,  # the tile in the epoch's list where the samples of an inner step are put
    ROWS,  # of the data
    NATURAL_RATE,  # where the pass of K-FAC reads the learning rate
) = range(PASSES, PASSES + 32)
WORDS = PASSES + 32
ROW = 6  # words of a row of NORMALISATIONS

# The vectors that Python and a compiled step exchange, float64; the rules name their places.
(MOMENTUM, NESTEROV, DECAY, BETA1, BETA2, EPSILON, ADAM) = map(int, list(rules.Setting)[:7])
(TARGET, ITERATIONS, SENSE, STOP, WARM, CLIP, LIMIT, SIGNED, CONSTANT) = map(int, list(rules.Setting)[7:16])
RADIUS, ADAPTIVE = int(rules.Setting.RADIUS), int(rules.Setting.ADAPTIVE)
(INNER_STEPS, INNER_RATE, INNER_DECAY, DEVIATION, MEAN_PART, SCOPE, SCOPING) = map(int, list(rules.Setting)[18:25])
RATE, MU, TOLERANCE = map(int, rules.Given)
LOSS, CORRECT, RHO, RESIDUAL, PRODUCTS, PENALTY, GRADIENT_TIME, POWER_TIME, R2_TIME, REST_TIME = map(int, rules.Report)
UNIFORM_BITS = draws.UNIFORM_BITS
SETTINGS, STEP, REPORT = len(rules.Setting), len(rules.Given), len(rules.Report)

is_enough, takes_part, shortening = helper(rules.is_enough), helper(rules.takes_part), helper(rules.shortening)
plain, sgd, adam = helper(rules.plain), helper(rules.sgd), helper(rules.adam)
unbiased, averaged = helper(rules.unbiased), helper(rules.averaged)
ascent_scale, ascent = helper(rules.ascent_scale), helper(rules.ascent)
adaptive_ascent = helper(rules.adaptive_ascent)
langevin, scope_at = helper(rules.langevin), helper(rules.scope_at)
mixed, scrambled, place_of = helper(draws.mixed), helper(draws.scrambled), helper(draws.place_of)
joined = helper(draws.joined, mixed=mixed)
normal = formula(draws.normal, versions)

run: Any = None  # bound when a version is made: the interpreter and the sums, parallel or not
moments: Any = None
scaled: Any = None
start: Any = None
update: Any = None


# ------------------------------------------------------------------------------------------------- sums over parameters
@loop
def _moments(u, v, sums):
    """sums = uᵀu, uᵀv, vᵀv."""
    uu, uv, vv = 0.0, 0.0, 0.0
    for i in range(u.size):
        a = np.float64(u[i])
        b = np.float64(v[i])
        uu += a * a
        uv += a * b
        vv += b * b
    sums[0] = uu
    sums[1] = uv
    sums[2] = vv


@loop
def _distance(u, v, factor):
    """‖u − factor·v‖²."""
    s = 0.0
    for i in range(u.size):
        d = np.float64(u[i]) - factor * np.float64(v[i])
        s += d * d
    return s


@loop
def _squared_products(w, g):
    """‖w∘g‖²."""
    s = 0.0
    for i in range(w.size):
        product = np.float64(w[i]) * np.float64(g[i])
        s += product * product
    return s


@loop
def _scale_into(y, x, factor):
    for i in range(y.size):
        y[i] = factor * x[i]


def _all_moments(u, v, total):
    """total = uᵀu, uᵀv, vᵀv."""
    n = u.size
    if n < LONG:
        _moments(u, v, total)
        return
    sums = np.empty((PARTS, 3))
    for part in prange(PARTS):
        low, high = n * part // PARTS, n * (part + 1) // PARTS
        _moments(u[low:high], v[low:high], sums[part])
    total[:] = 0.0
    for part in range(PARTS):
        total += sums[part]


def _scaled(y, x, factor):
    """y = factor·x."""
    n = y.size
    if n < LONG:
        _scale_into(y, x, factor)
    else:
        for part in prange(PARTS):
            low, high = n * part // PARTS, n * (part + 1) // PARTS
            _scale_into(y[low:high], x[low:high], factor)


def _adaptive_square(w, g):
    """‖w∘g‖², slice by slice."""
    n = w.size
    if n < LONG:
        return _squared_products(w, g)
    sums = np.empty(PARTS)
    for part in prange(PARTS):
        low, high = n * part // PARTS, n * (part + 1) // PARTS
        sums[part] = _squared_products(w[low:high], g[low:high])
    total = 0.0
    for part in range(PARTS):
        total += sums[part]
    return total


# ------------------------------------------------------------------------------------------------------------- updates
@loop
def _ascend_slice(w, g, scale, adaptive):
    for i in range(w.size):
        w[i] = adaptive_ascent(w[i], g[i], scale) if adaptive else ascent(w[i], g[i], scale)


def _climbed(w, g, scale, adaptive):
    """w ← w + ε of SAM."""
    n = w.size
    if n < LONG:
        _ascend_slice(w, g, scale, adaptive)
    else:
        for part in prange(PARTS):
            low, high = n * part // PARTS, n * (part + 1) // PARTS
            _ascend_slice(w[low:high], g[low:high], scale, adaptive)


@loop
def _plain(w, g, rate):
    for i in range(w.size):
        w[i] = plain(w[i], g[i], rate)


@loop
def _penalised(w, g, h, factor, rate):
    for i in range(w.size):
        w[i] = plain(w[i], g[i] + factor * h[i], rate)


@loop
def _sgd(w, velocity, g, h, factor, rate, momentum, decay, nesterov):
    for i in range(w.size):
        p = g[i] + factor * h[i] + decay * w[i]
        moved, velocity[i] = sgd(w[i], velocity[i], p, rate, momentum, nesterov)
        w[i] = moved


@loop
def _adam(w, mean, squares, g, h, factor, rate, beta1, beta2, eps, decay, scale):
    for i in range(w.size):
        p = g[i] + factor * h[i] + decay * w[i]
        moved, mean[i], squares[i] = adam(w[i], mean[i], squares[i], p, rate, beta1, beta2, eps, scale)
        w[i] = moved


@loop
def _inner_slice(w, mean, g, centre, rate, scope, decay, deviation, part, low, high, first):
    """An inner step of entropy-SGD for some of the parameters, the first of which has this number; ``low`` and ``high``
    are the halves of the key of the noise."""
    for i in range(w.size):
        one = scrambled(np.uint32(np.uint32(first + i) + low))
        other = scrambled(np.uint32(one ^ high))
        noise = deviation * normal(
            real(np.int32(one >> np.uint32(32 - UNIFORM_BITS))), real(np.int32(other >> np.uint32(32 - UNIFORM_BITS)))
        )
        w[i] = langevin(w[i], centre[i], g[i] + decay * w[i], noise, rate, scope)
        mean[i] = averaged(mean[i], w[i], part)


def _stepped_inside(d, settings, scope, key):
    """w and the mean after an inner step of entropy-SGD."""
    n = d[SIZE]
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    for part in prange(PARTS if n >= LONG else 1):
        begin, end = (n * part // PARTS, n * (part + 1) // PARTS) if n >= LONG else (0, n)
        _inner_slice(
            slice_of(d[W], begin, end),
            slice_of(d[MEAN_POINT], begin, end),
            slice_of(d[GRAD], begin, end),
            slice_of(d[HELD], begin, end),
            real(settings[INNER_RATE]),
            real(scope),
            real(settings[INNER_DECAY]),
            real(settings[DEVIATION]),
            real(settings[MEAN_PART]),
            low,
            high,
            begin,
        )


@loop
def _subtract(g, w, mean):
    for i in range(g.size):
        g[i] = w[i] - mean[i]


@loop
def _add_scaled(y, x, factor):
    for i in range(y.size):
        y[i] += factor * x[i]


def _increased(y, x, factor):
    """y += factor·x."""
    n = y.size
    if n < LONG:
        _add_scaled(y, x, factor)
    else:
        for part in prange(PARTS):
            low, high = n * part // PARTS, n * (part + 1) // PARTS
            _add_scaled(y[low:high], x[low:high], factor)


@helper
def slice_of(address, low, high):
    return reals(address + low * itemsize, high - low)


@helper
def update_slice(d, settings, rate, scale, factor, low, high):
    """One step of the optimizer along g + factor·h, for some of the parameters."""
    w, g, h = slice_of(d[W], low, high), slice_of(d[GRAD], low, high), slice_of(d[R2], low, high)
    if settings[ADAM] != 0:
        _adam(
            w,
            slice_of(d[VELOCITY], low, high),
            slice_of(d[SQUARES], low, high),
            g,
            h,
            real(factor),
            real(rate),
            real(settings[BETA1]),
            real(settings[BETA2]),
            real(settings[EPSILON]),
            real(settings[DECAY]),
            real(scale),
        )
    elif d[VELOCITY] != 0:
        _sgd(
            w,
            slice_of(d[VELOCITY], low, high),
            g,
            h,
            real(factor),
            real(rate),
            real(settings[MOMENTUM]),
            real(settings[DECAY]),
            settings[NESTEROV] != 0,
        )
    elif factor != 0.0:
        _penalised(w, g, h, real(factor), real(rate))
    else:
        _plain(w, g, real(rate))


def _update(d, settings, rate, factor, t):
    """One step of the optimizer; t counts steps from 1 and corrects the biases of Adam's moments."""
    scale = 1.0
    if settings[ADAM] != 0:
        rate, scale = unbiased(rate, settings[BETA1], settings[BETA2], t)
    n = d[SIZE]
    if n < LONG:
        update_slice(d, settings, rate, scale, factor, 0, n)
    else:
        for part in prange(PARTS):
            update_slice(d, settings, rate, scale, factor, n * part // PARTS, n * (part + 1) // PARTS)


# --------------------------------------------------------------------------------------------------------- eigenvector
@helper
def random_direction(v, seed, step):
    """A unit vector that depends on seed and step only, so that an interrupted run can be continued."""
    key = mixed(mixed(np.uint64(seed)) + np.uint64(step))
    total = 0.0
    for i in range(v.size):
        a = float(mixed(key + np.uint64(2 * i)) >> np.uint64(11)) * 2.0**-53
        b = float(mixed(key + np.uint64(2 * i + 1)) >> np.uint64(11)) * 2.0**-53
        normal = np.sqrt(-2.0 * np.log(1.0 - a)) * np.cos(2.0 * np.pi * b)
        v[i] = real(normal)
        total += normal * normal
    for i in range(v.size):
        v[i] = real(v[i] / np.sqrt(total))


def _pass(d, which, first):
    run(d[3 * which], d[3 * which + 1], d[3 * which + 2], d[TILES], first, d[ASKED])


def _start(d, settings, number, total):
    """Where power iteration starts: the vector to which the step before would have gone on, or a random or constant
    one."""
    v, u = reals(d[V], d[SIZE]), reals(d[HVP], d[SIZE])
    if settings[WARM] == 0:
        if settings[CONSTANT] != 0:
            v[:] = real(1.0 / np.sqrt(v.size))
        else:
            random_direction(v, d[SEED], number)
        return
    moments(u, v, total)
    if total[0] > 0 and np.isfinite(total[0]):
        scaled(v, u, real(1.0 / np.sqrt(total[0])))
    scaled(reals(d[BEFORE], d[SIZE]), v, real(1))


def _power(d, settings, tolerance, first, report, total):
    """Power iteration from the v in place; leaves v with the product u = H v that belongs to it, and returns λ. The
    next step goes on from u/‖u‖."""
    n = d[SIZE]
    u, v = reals(d[HVP], n), reals(d[V], n)
    value, rule = 0.0, int(settings[STOP])
    for iteration in range(int(settings[ITERATIONS])):
        if iteration > 0:
            scaled(v, u, real(1.0 / np.sqrt(total[0])))
        _pass(d, 1, first)
        before, residual_before = value, report[RESIDUAL]
        moments(u, v, total)
        value = total[1] / total[2]
        squared = total[0] - value * total[1]
        if not squared > 1e-12 * total[0]:  # cancelled, or not a number
            squared = _distance(u, v, value)
        report[RESIDUAL] = np.sqrt(squared / total[2])
        report[PRODUCTS] = iteration + 1
        if not np.isfinite(value) or total[0] == 0.0 or peek(d[ASKED] + 8 * CANCELLED) != 0:
            break
        if is_enough(rule, tolerance, value, report[RESIDUAL], before, residual_before, iteration + 1):
            break
    return value


# --------------------------------------------------------------------------------------------------------------- steps
def _batch_scale(d, first):
    """1 / total of a step's samples: torch's meaning of mean, batch by batch; 0 if nothing in it counts."""
    samples = integers(d[SAMPLES] + 8 * first * d[LANES], d[TILES] * d[LANES])
    shares = doubles(d[SHARES], 1 << 40)
    total = 0.0
    for i in samples:
        if i >= 0:
            total += shares[i]
    return 1.0 / total if total > 0 else 0.0


def _fetch(d, first):
    """Asks for the data of the step whose first tile is ``first``: rows in random order come slowly from memory."""
    for i in integers(d[SAMPLES] + 8 * first * d[LANES], d[TILES] * d[LANES]):
        if i >= 0:
            for line in range(d[X] + i * d[ROW_BYTES], d[X] + (i + 1) * d[ROW_BYTES], 64):
                prefetch(line)


def _correct(d, first):
    """How many samples of a step have their largest output at their label."""
    samples = integers(d[SAMPLES] + 8 * first * d[LANES], d[TILES] * d[LANES])
    labels = integers(d[LABELS], 1 << 40)
    lanes, classes = d[LANES], d[CLASSES]
    count = 0
    for tile in range(d[TILES]):
        z = reals(d[OUTPUT] + tile * d[TILE_BYTES], classes * lanes)
        for lane in range(lanes):
            i = samples[tile * lanes + lane]
            if i >= 0:
                label = labels[i]
                chosen = z[label * lanes + lane]
                best = True
                for c in range(classes):
                    best = best and (z[c * lanes + lane] < chosen or (c >= label and z[c * lanes + lane] == chosen))
                count += 1 if best else 0
    return count


def _average(d):
    """The next running averages of batchnorm: mean and unbiased variance of the batch are taken in."""
    for i in range(d[NORMALISATION_COUNT]):
        row = integers(d[NORMALISATIONS] + 8 * ROW * i, ROW)
        channels = row[1]
        part = real(doubles(d[AVERAGING], d[NORMALISATION_COUNT])[i])
        count = field(row[0], COUNT, channels)
        for which in range(2):
            new = field(row[0], MEAN if which == 0 else VARIANCE, channels)
            running, following = reals(row[2 + which], channels), reals(row[4 + which], channels)
            for c in range(channels):
                value = new[c] if which == 0 else new[c] * count[c] / (count[c] - real(1))
                following[c] = averaged(running[c], value, part)


def _take_averages(d):
    """The next running averages become those of the net, once nothing can cancel the step any more."""
    for i in range(d[NORMALISATION_COUNT]):
        row = integers(d[NORMALISATIONS] + 8 * ROW * i, ROW)
        for which in range(2):
            running, following = reals(row[2 + which], row[1]), reals(row[4 + which], row[1])
            for c in range(row[1]):
                running[c] = following[c]


def _gradient_nearby(d, settings, first, total):
    """The gradient of SAM: that of the step's batch at w + ε. w stays what it is."""
    n = d[SIZE]
    w, g, held, adaptive = reals(d[W], n), reals(d[GRAD], n), reals(d[HELD], n), settings[ADAPTIVE] != 0
    if adaptive:
        total[0] = adaptive_square(w, g)
    else:
        moments(g, g, total)
    scaled(held, w, real(1))
    climbed(w, g, real(ascent_scale(settings[RADIUS], np.sqrt(total[0]))), adaptive)
    run_pass(d, 0, first)
    scaled(w, held, real(1))


@loop
def occurs(values, one):
    """Whether a number is among others; without an early end, so that many are compared at a time."""
    count = 0
    for i in range(values.size):
        count += 1 if values[i] == one else 0
    return count > 0


def _drawn(d, first, key):
    """Puts a batch of as many samples as the step has into the spare tiles: by Floyd's algorithm none occurs twice."""
    count = d[TILES] * d[LANES]
    own = integers(d[SAMPLES] + 8 * first * d[LANES], count)
    new = integers(d[SAMPLES] + 8 * d[SPARE] * d[LANES], count)
    last = d[ROWS]
    for i in range(count):
        last -= 1 if own[i] >= 0 else 0
    for i in range(count):
        new[i] = own[i]
        if own[i] >= 0:
            one = place_of(mixed(key + np.uint64(last)), last + 1)
            new[i] = last if occurs(new[:i], one) else one
            last += 1


def _mean_of_inner_steps(d, settings, done, first):
    """The direction of entropy-SGD, w − m, in place of the gradient. w stays what it is."""
    n = d[SIZE]
    w, g, centre, mean = reals(d[W], n), reals(d[GRAD], n), reals(d[HELD], n), reals(d[MEAN_POINT], n)
    scaled(centre, w, real(1))
    scaled(mean, w, real(1))
    scope = scope_at(settings[SCOPE], settings[SCOPING], settings[INNER_RATE], done)
    of_step = joined(joined(np.uint64(0), d[SEED]), done + 1)
    for inner in range(int(settings[INNER_STEPS])):
        if inner > 0:
            drawn(d, first, joined(of_step, 2 * inner))
            doubles(d[SCALE], 1)[0] = batch_scale(d, d[SPARE]) if d[SHARES] != 0 else 1.0
            run_pass(d, 0, d[SPARE])
        stepped_inside(d, settings, scope, joined(of_step, 2 * inner + 1))
        if peek(d[ASKED] + 8 * CANCELLED) != 0:
            break
    _subtract(g, centre, mean)
    scaled(w, centre, real(1))


def _natural_direction(d, rate, factor):
    """The direction of K-FAC in place of the gradient, to which what the penalty adds comes first."""
    if factor != 0.0:
        increased(reals(d[GRAD], d[SIZE]), reals(d[R2], d[SIZE]), real(factor))
    doubles(d[NATURAL_RATE], 1)[0] = rate
    run_pass(d, NATURAL, 0)


@intrinsic
def _call_clock(typingctx, function, place):
    """clock_gettime(CLOCK_MONOTONIC, place), by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [ir.Constant(ir.IntType(32), 1), args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@helper
def lap(d, report, part, now):
    """Adds the time since the last call to a part of the profile."""
    if d[CLOCK] != 0:
        before = now[0] * 1_000_000_000 + now[1]
        _call_clock(d[CLOCK], address_of(now))
        report[part] += now[0] * 1_000_000_000 + now[1] - before


def _penalty(d, settings, step, number, first, report, now, total):
    """Dominant eigenvalue and, where it is above K, its gradient; returns the factor of the order-2 result."""
    start(d, settings, number, total)
    value = power(d, settings, step[TOLERANCE], first, report, total)
    report[RHO] = abs(value)
    lap(d, report, POWER_TIME, now)
    if not takes_part(abs(value), settings[TARGET], report[RESIDUAL], settings[SENSE]):
        return 0.0
    run_pass(d, 2, first)
    factor = 2.0 * (np.sign(value) if settings[SIGNED] != 0 else 1.0)  # 2: order 2 is a Taylor coefficient
    if settings[CLIP] > 0 or settings[LIMIT] > 0:
        r2 = reals(d[R2], d[SIZE])
        moments(r2, r2, total)
        factor *= shortening(
            settings[CLIP], settings[LIMIT], step[RATE] * step[MU], abs(value), 2.0 * np.sqrt(total[0])
        )
    report[PENALTY] = 1.0
    lap(d, report, R2_TIME, now)
    return factor * step[MU]


def _steps(descriptor, settings_at, steps_at, reports, first_step, count, number):
    """``count`` steps from ``first_step`` of the epoch; ``number`` counts all steps before them. Returns how many were
    done: fewer if a loss or an eigenvalue was not finite, which leaves w as it was."""
    d = integers(descriptor, WORDS)
    settings = doubles(settings_at, SETTINGS)
    now, total = np.zeros(2, np.int64), np.zeros(3)
    if d[CLOCK] != 0:
        _call_clock(d[CLOCK], address_of(now))
    for step in range(first_step, first_step + count):
        given = doubles(steps_at + 8 * STEP * step, STEP)
        report = doubles(reports + 8 * REPORT * step, REPORT)
        report[:] = 0.0
        first = step * d[TILES]
        if step + 1 < first_step + count:
            fetch(d, first + d[TILES])
        doubles(d[SCALE], 1)[0] = batch_scale(d, first) if d[SHARES] != 0 else 1.0
        run_pass(d, 0, first)
        for tile in range(d[TILES]):
            report[LOSS] += doubles(d[ENERGY], d[TILES])[tile]
        report[CORRECT] = correct(d, first) if d[OUTPUT] != 0 else np.nan
        lap(d, report, GRADIENT_TIME, now)
        done = number + step - first_step
        factor = penalty(d, settings, given, done, first, report, now, total) if given[MU] != 0 else 0.0
        if peek(d[ASKED] + 8 * CANCELLED) != 0 or not (np.isfinite(report[LOSS]) and np.isfinite(report[RHO])):
            return step - first_step
        average(d)
        if settings[RADIUS] > 0:
            gradient_nearby(d, settings, first, total)
        if settings[INNER_STEPS] > 0:
            mean_of_inner_steps(d, settings, done, first)
        if d[3 * NATURAL] != 0:
            natural_direction(d, given[RATE], factor)
            factor = 0.0
        if settings[RADIUS] > 0 or settings[INNER_STEPS] > 0 or d[3 * NATURAL] != 0:
            lap(d, report, GRADIENT_TIME, now)
            if peek(d[ASKED] + 8 * CANCELLED) != 0:
                return step - first_step
        update(d, settings, given[RATE], factor, done + 1)
        take_averages(d)
        lap(d, report, REST_TIME, now)
    return count


batch_scale: Any = None
run_pass: Any = None
power: Any = None
penalty: Any = None
correct: Any = None
average: Any = None
take_averages: Any = None
gradient_nearby: Any = None
adaptive_square: Any = None
climbed: Any = None
increased: Any = None
natural_direction: Any = None
drawn: Any = None
stepped_inside: Any = None
mean_of_inner_steps: Any = None
fetch: Any = None


def entry_name(dtype: Any, parallel: bool) -> str:
    """The name of the steps' entry in the cache."""
    return f"training.steps_{np.dtype(dtype).name}_{'parallel' if parallel else 'serial'}"


def _made(parallel: bool, dtype: Any) -> Any:
    """The compiled steps of one precision."""
    if parallel:
        load_threads()

    def njit(function: Any, threads: bool = False, options: dict[str, Any] = PART, **bind: Any) -> Any:
        options = {**OPTIONS, "parallel": True} if threads and parallel else options
        return numba.njit(fastmath=LOOP_MATH, **options)(specialised(function, dtype, **bind))

    one_pass = njit(_pass, run=version(parallel))
    vectors = {"moments": njit(_all_moments, threads=True), "scaled": njit(_scaled, threads=True)}
    one_penalty = njit(
        _penalty,
        run_pass=one_pass,
        moments=vectors["moments"],
        start=njit(_start, **vectors),
        power=njit(_power, _pass=one_pass, **vectors),
    )
    nearby = njit(
        _gradient_nearby,
        run_pass=one_pass,
        adaptive_square=njit(_adaptive_square, threads=True),
        climbed=njit(_climbed, threads=True),
        **vectors,
    )
    scale = njit(_batch_scale)
    inside = njit(
        _mean_of_inner_steps,
        run_pass=one_pass,
        batch_scale=scale,
        drawn=njit(_drawn),
        stepped_inside=njit(_stepped_inside, threads=True),
        scaled=vectors["scaled"],
    )
    steps = njit(
        _steps,
        options=OPTIONS,
        batch_scale=scale,
        run_pass=one_pass,
        penalty=one_penalty,
        correct=njit(_correct),
        fetch=njit(_fetch),
        average=njit(_average),
        take_averages=njit(_take_averages),
        gradient_nearby=nearby,
        mean_of_inner_steps=inside,
        natural_direction=njit(_natural_direction, run_pass=one_pass, increased=njit(_increased, threads=True)),
        update=njit(_update, threads=True),
    )
    steps._cache = KernelCache(entry_name(dtype, parallel))
    steps.compile((types.int64,) * 7)
    steps.disable_compile()
    return steps


_steps_of = {parallel: PerPrecision(partial(_made, parallel)) for parallel in (True, False)}


def steps(dtype: Any, parallel: bool) -> Any:
    """steps(descriptor, settings, steps' settings, reports, first step, count, steps before) for a precision."""
    return _steps_of[parallel].made(np.dtype(dtype).type)
