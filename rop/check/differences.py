"""Derivatives by central differences, extrapolated until rounding sets in, each with an estimate of its own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np

Numbers = np.ndarray | float
Curve = Callable[[float], Numbers]  # r ↦ an array or a number
Result = TypeVar("Result")


class Estimate(NamedTuple):
    """A derivative by differences, number by number, and an estimate of its error."""

    value: np.ndarray
    error: np.ndarray


def halvings(first: float, count: int) -> tuple[float, ...]:
    """Steps, each half of the one before.

    >>> halvings(0.5, 3)
    (0.5, 0.25, 0.125)
    """
    return tuple(first / 2**i for i in range(count))


def central(curve: Curve, h: float, order: int = 1) -> np.ndarray:
    """δᵐf/hᵐ = Σ_i (−1)ⁱ C(m, i) f((m/2 − i) h) / hᵐ, the derivative of order m at 0 up to a series in h².

    >>> float(central(lambda r: (1 + r) ** 2, 0.5)), float(central(lambda r: (1 + r) ** 2, 0.5, order=2))
    (2.0, 2.0)
    """
    with np.errstate(all="ignore"):  # the caller reports a pole or an overflow
        terms = [
            (-1) ** i * math.comb(order, i) * np.asarray(curve((order / 2 - i) * h), np.float64)
            for i in range(order + 1)
        ]
        return sum(terms[1:], start=terms[0]) / h**order


def extrapolated(curve: Curve, steps: Sequence[float], order: int = 1, eps: float = 2.2e-16) -> Estimate:
    """Ridders' method: Richardson's tableau over halved steps, and of all its entries the one that agrees best with its
    two neighbours, for every number on its own; ``eps`` is the rounding of the curve.

    >>> estimate = extrapolated(lambda r: np.sin(1 + r), halvings(0.5, 8))
    >>> abs(float(estimate.value) - math.cos(1)) < 1e-12
    True
    """
    row: list[np.ndarray] = []
    value = error = np.array(np.nan)
    rounding = eps * np.abs(np.asarray(curve(0.0), np.float64)) * 2**order
    for i, h in enumerate(steps):
        above, row = row, [central(curve, h, order)]
        if i == 0:
            value, error = row[0].copy(), np.full(row[0].shape, np.inf)
        for j in range(1, i + 1):
            row.append(row[j - 1] + (row[j - 1] - above[j - 1]) / (4**j - 1))
            found = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - above[j - 1]))
            found = np.maximum(found, rounding / h**order)  # entries may agree by chance to more than rounding allows
            better = found < error
            value, error = np.where(better, row[j], value), np.where(better, found, error)
    return Estimate(value, error)


def observed_order(curve: Curve, exact: np.ndarray, steps: Sequence[float], noise: float) -> float | None:
    """log₂ of how much the error of central differences falls when the step is halved: 2 if ``exact`` is right, 0 if it
    is wrong. Taken at the smallest steps whose error is well above the rounding, noise / h; None if there are none.

    >>> curve, steps = lambda r: np.sin(1 + r), halvings(0.25, 6)
    >>> right, wrong = (observed_order(curve, np.array(value), steps, 1e-15) for value in (math.cos(1), 0.6))
    >>> round(right, 2), round(wrong, 2)
    (2.0, 0.0)
    """
    errors = [float(np.linalg.norm(central(curve, h) - exact)) for h in steps]
    clear = [i for i, h in enumerate(steps[1:]) if errors[i + 1] > 10 * noise / h]
    if not clear or not all(map(math.isfinite, errors)):
        return None
    last = clear[-1]
    return math.log2(errors[last] / errors[last + 1]) if errors[last] > 0 else -math.inf


def remembered(curve: Callable[[float], Result]) -> Callable[[float], Result]:
    """The curve with a cache: it is computed once for every r."""
    return cache(curve)
