"""Sums over vectors of parameters, their transfer, and the updates of training."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.cuda_cases.common import Array, Case, Setting, case

N = 1234
PARTIAL = 2


def _sums(terms: Array) -> Array:
    """Sums over the numbers of each of PARTIAL blocks of 256 threads that take turns."""
    block = np.arange(N) // 256 % PARTIAL
    return np.array([terms[block == b].sum(axis=0) for b in range(PARTIAL)])


@case("sums.moments")
def moments_case(s: Setting) -> Case:
    u, v = s.numbers(N, seed=1), s.numbers(N, seed=2)
    a, b = u.astype(np.float64), v.astype(np.float64)
    expected = _sums(np.stack([a * a, a * b, b * b], axis=1))
    return Case({"u": u, "v": v, "partial": np.full((PARTIAL, 3), np.nan, s.real)}, {"partial": expected})


def _partial(s: Setting, terms: Array, exact: bool = False, **arguments: Any) -> Case:
    return Case({**arguments, "partial": np.full(PARTIAL, np.nan, s.real)}, {"partial": _sums(terms)}, exact=exact)


@case("sums.distance")
def distance_case(s: Setting) -> Case:
    u, v = s.numbers(N, seed=1), s.numbers(N, seed=2)
    return _partial(s, (u.astype(np.float64) - 0.5 * v) ** 2, u=u, v=v, factor=0.5)


@case("sums.differences")
def differences_case(s: Setting) -> Case:
    u = s.numbers(N, seed=1)
    v = u.copy()
    v[[3, 300, 700, 1233]] += 1
    return _partial(s, (u != v).astype(np.float64), exact=True, u=u, v=v)


@case("sums.finite")
def finite_case(s: Setting) -> Case:
    x = s.numbers(N, seed=1)
    x[300] = np.inf
    with np.errstate(invalid="ignore"):
        return _partial(s, x.astype(np.float64) * 0, exact=True, x=x)


@case("transfer.scale")
def scale_case(s: Setting) -> Case:
    x = s.numbers(300, seed=1)
    return Case({"y": np.full(300, np.nan, s.real), "x": x, "factor": 0.75}, {"y": 0.75 * x.astype(np.float64)})


@case("transfer.axpy")
def axpy_case(s: Setting) -> Case:
    y, x = s.numbers(300, seed=1), s.numbers(300, seed=2)
    expected = y.astype(np.float64) + 0.75 * x
    return Case({"y": y, "x": x, "factor": 0.75}, {"y": expected}, frozenset({"y"}))


@case("training.plain")
def plain_case(s: Setting) -> Case:
    w, g, h = (s.numbers(300, seed=seed) for seed in range(3))
    expected = w.astype(np.float64) - 0.5 * (g.astype(np.float64) + 0.25 * h)
    return Case({"w": w, "g": g, "h": h, "factor": 0.25, "rate": 0.5}, {"w": expected}, frozenset({"w"}))


@case("training.sgd")
def sgd_case(s: Setting) -> Case:
    w, velocity, g, h = (s.numbers(300, seed=seed) for seed in range(4))
    p = g.astype(np.float64) + 0.25 * h + 0.125 * w
    moved = 0.5 * velocity + p
    arguments = {"w": w, "velocity": velocity, "g": g, "h": h, "factor": 0.25, "rate": 0.5, "momentum": 0.5}
    expected = {"velocity": moved, "w": w - 0.5 * (p + 0.5 * moved)}
    return Case({**arguments, "decay": 0.125, "nesterov": 1}, expected, frozenset(expected))


@case("training.adam")
def adam_case(s: Setting) -> Case:
    w, mean, g, h = (s.numbers(300, seed=seed) for seed in range(4))
    squares = np.abs(s.numbers(300, seed=5))
    p = g.astype(np.float64) + 0.25 * h + 0.125 * w
    first, second = 0.75 * mean + 0.25 * p, 0.875 * squares + 0.125 * p * p
    arguments = {"w": w, "mean": mean, "squares": squares, "g": g, "h": h, "factor": 0.25, "rate": 0.5}
    numbers = {"beta1": 0.75, "beta2": 0.875, "eps": 0.0625, "decay": 0.125, "unbiased": 1.5}
    expected = {"mean": first, "squares": second, "w": w - 0.5 * first / (np.sqrt(second) * 1.5 + 0.0625)}
    return Case({**arguments, **numbers}, expected, frozenset(expected))
