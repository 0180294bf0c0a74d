"""The rules of a training step, each written once: compiled for the CPU, compiled for the GPU, and called from Python.

Every function below takes and returns scalars. The update rules also accept NumPy arrays, which is how the Python path
uses them. As in kernel files the name ``real`` stands for the precision; ``in_python`` binds it for calls from Python.
The file is here and not in rop/training because the cache of compiled kernels is keyed by the sources in this folder.

The three enumerations at the top say what stands where in the float64 vectors that a compiled step reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

real: Any = np.float64  # the precision; bound for each precision before a rule is compiled


# ------------------------------------------------------------------------------------------------------ vector layouts
class Setting(IntEnum):
    """What stays the same over a run, in the order of the vector that a compiled step reads."""

    MOMENTUM = 0
    NESTEROV = 1
    DECAY = 2
    BETA1 = 3
    BETA2 = 4
    EPSILON = 5
    ADAM = 6  # 1: Adam, 0: SGD
    TARGET = 7  # K
    ITERATIONS = 8  # most products of power iteration in one step
    SENSE = 9  # the largest ‖Hv − λv‖ / |λ| with which ∇ρ is used; 0: any
    STOP = 10  # which stop rule of power iteration, see STOP_RULES
    WARM = 11  # 1: start from the eigenvector of the step before
    CLIP = 12  # longest ∇ρ; 0: any
    LIMIT = 13  # part of ρ that a step may take away; 0: any
    SIGNED = 14  # 1: ∇ρ is that of |λ|, 0: that of λ
    CONSTANT = 15  # 1: a search without warm start begins with 1/√n in every component, 0: with a random vector
    RADIUS = 16  # how far SAM ascends; 0: it does not
    ADAPTIVE = 17  # 1: SAM ascends relative to the size of each parameter
    INNER_STEPS = 18  # of entropy-SGD; 0: none
    INNER_RATE = 19
    INNER_DECAY = 20
    DEVIATION = 21  # of the noise of an inner step
    PART = 22  # of an inner step's point that the mean takes in
    SCOPE = 23  # γ in the first step,
    SCOPING = 24  # and how fast it grows


class Given(IntEnum):
    """What the schedules say about one step, in the order of the row that a compiled step reads."""

    RATE = 0
    MU = 1
    TOLERANCE = 2


class Report(IntEnum):
    """What one step reports, in the order of the row that every kind of steps writes."""

    LOSS = 0
    CORRECT = 1  # samples whose largest output is at their label; NaN: not counted
    RHO = 2  # the spectral radius, or the value of another penalty
    RESIDUAL = 3  # ‖Hv − λv‖
    HVPS = 4  # products Hv of this step
    PENALTY = 5  # 1: the gradient of the penalty took part
    GRADIENT_NS = 6  # where the time went, in nanoseconds, if it was measured
    POWER_NS = 7
    R2_NS = 8
    REST_NS = 9


# ------------------------------------------------------------------------------------------------------ power iteration
SENSE = 1.0  # the largest ‖Hv − λv‖ / |λ| with which solver "track" uses ∇ρ: the tangent of an angle


STOP_RULES = ("relative", "paper", "published")  # a rule is its place here
RELATIVE, PAPER, PUBLISHED = range(3)
STALLED = 1e-3  # the relative change of the residual below which the published code stops


def is_enough(rule, tolerance, value, residual, value_before, residual_before, products):
    """The stop rule: whether power iteration may end with this eigenvalue λ and residual r = ‖Hv − λv‖.

    relative   r ≤ tolerance·|λ|
    paper      r ≤ tolerance, or λ changed by no more than tolerance·|λ| in the last product
    published  as "paper", or r changed by less than a thousandth of it, as the authors' code has it

    >>> is_enough(RELATIVE, 0.1, 2.0, 0.2, 0.0, 0.0, 1), is_enough(PAPER, 0.1, 2.0, 5.0, 1.9, 9.0, 2)
    (True, True)
    >>> is_enough(PAPER, 0.1, 2.0, 5.0, 1.0, 5.001, 2), is_enough(PUBLISHED, 0.1, 2.0, 5.0, 1.0, 5.001, 2)
    (False, True)
    """
    if rule == RELATIVE:
        return residual <= tolerance * abs(value)
    if residual <= tolerance:
        return True
    if products < 2:
        return False
    if rule == PUBLISHED and abs(residual - residual_before) < STALLED * residual_before:
        return True
    return abs(value - value_before) <= tolerance * abs(value)


def takes_part(rho, target, residual, sense):
    """Whether the gradient of the penalty takes part in a step: ρ is finite and above K, and the eigenvector is good
    enough. A ``sense`` of 0 accepts any eigenvector.

    >>> takes_part(2.0, 1.0, 9.0, 0.0), takes_part(2.0, 1.0, 9.0, SENSE), takes_part(1.0, 1.0, 0.0, SENSE)
    (True, False, False)
    """
    return target < rho and rho < math.inf and (sense == 0 or residual <= sense * rho)


def shortening(clip, limit, pace, rho, length):
    """The factor by which a ∇ρ of this length is shortened. It may be as long as ``clip``; and a step of pace = α μ
    along ∇ρ, which would lower ρ by α μ ‖∇ρ‖² if ρ were linear, may not take away more than the part ``limit`` of ρ.
    0 stands for no clip and for no limit.

    >>> shortening(1.0, 0.0, 0.1, 5.0, 4.0), shortening(0.0, 0.5, 0.1, 3.2, 8.0), shortening(0.0, 0.0, 0.1, 1.0, 9.0)
    (0.25, 0.25, 1.0)
    """
    longest = clip if clip > 0 else length
    if limit > 0 and pace * length * length > limit * rho:
        longest = min(longest, limit * rho / (pace * length))
    return longest / length if length > longest else 1.0


# -------------------------------------------------------------------------------------------------------------- updates
# The direction of a step is p = g + factor·h + decay·w: g = ∇f, factor·h what the penalty adds. Callers make that sum
# themselves, and compiled loops store memory before w: LLVM orders the terms of a sum by what it sees around them, and
# with them the last bit.
def plain(w, p, rate):
    """w after a step of gradient descent without memory."""
    return w - rate * p


def sgd(w, velocity, p, rate, momentum, nesterov):
    """w and its velocity after a step of SGD, with torch's meaning of the settings."""
    velocity = momentum * velocity + p
    return w - rate * (p + momentum * velocity if nesterov else velocity), velocity


def adam(w, mean, squares, p, rate, beta1, beta2, eps, scale):
    """w and the running moments after a step of Adam; ``rate`` and ``scale`` come from ``unbiased``."""
    mean = beta1 * mean + (real(1) - beta1) * p
    squares = beta2 * squares + (real(1) - beta2) * p * p
    return w - rate * mean / (math.sqrt(squares) * scale + eps), mean, squares


def unbiased(rate, beta1, beta2, t):
    """The rate and the factor of √squares that correct the biases of Adam's moments in step t = 1, 2, …

    >>> unbiased(0.1, 0.5, 0.75, 1)
    (0.2, 2.0)
    """
    return rate / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)


def ascent_scale(radius, length):
    """The factor of SAM's direction of this length that makes ε as long as the radius; 0 where there is no direction.

    >>> ascent_scale(0.5, 2.0), ascent_scale(0.5, 0.0)
    (0.25, 0.0)
    """
    return radius / length if length > 0 else 0.0


def ascent(w, g, scale):
    """w + ε of SAM; ``scale`` comes from ``ascent_scale`` with the length of g."""
    return w + scale * g


def adaptive_ascent(w, g, scale):
    """w + ε of adaptive SAM; ``scale`` comes from ``ascent_scale`` with the length of |w|∘g."""
    return w + scale * (w * w * g)


def scope_at(scope, scoping, rate, t):
    """γ of entropy-SGD after t steps: it grows up to 1/η′, η′ the rate of inner steps.

    >>> scope_at(0.5, 1.0, 0.1, 0), scope_at(0.5, 1.0, 0.1, 10**9), scope_at(0.0, 1.0, 0.1, 10**9)
    (0.5, 10.0, 0.0)
    """
    if scope == 0:
        return 0.0
    grown = math.log(scope * rate) + t * math.log1p(scoping)
    return scope * math.exp(t * math.log1p(scoping)) if grown < 0 else 1 / rate


def langevin(inner, w, p, noise, rate, scope):
    """The point of entropy-SGD's inner steps around w after one of them; p is the gradient there."""
    return inner - rate * (p - scope * (w - inner)) + noise


def natural_scale(clip, rate, product):
    """ν of K-FAC: the factor of a direction u with uᵀ∇f = ``product`` with which rate² uᵀ∇f is at most ``clip``. 0
    stands for no clip.

    >>> natural_scale(0.01, 0.5, 0.16), natural_scale(0.01, 0.5, 0.01), natural_scale(0.0, 0.5, 9.0)
    (0.5, 1.0, 1.0)
    """
    change = rate * rate * product
    return math.sqrt(clip / change) if 0 < clip < change else 1.0


def averaged(running, new, part):
    """A running average, of batchnorm or of parameters, after it took in this part of a new value."""
    return running + part * (new - running)


@cache
def in_python(rule: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
    """A rule for arrays of one precision: ``real`` is that precision and ``math`` is NumPy.

    >>> in_python(plain, np.float32)(*np.ones((2, 2), "f4"), np.float32(0.25)).tolist()
    [0.75, 0.75]
    """
    from rop.kernels.compile import specialised

    return specialised(rule, np.dtype(dtype).type, math=np)
