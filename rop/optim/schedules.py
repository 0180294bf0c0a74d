"""Schedules of learning rates, weights and tolerances.

A schedule is a number, or a function of k and epoch: k (an array) numbers the steps of that epoch, counted from 1 since
the beginning of the run. It returns an array like k, or one number for the whole epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rop.arguments import as_array, check_float, check_function, check_int
from rop.errors import ArgumentError, ArgumentTypeError

Schedule = float | Callable[[np.ndarray, int], Any]


@dataclass(frozen=True)
class inverse_epoch:
    """start / epoch, the paper's learning rate for forest.

    >>> inverse_epoch(0.5)(np.arange(1, 4), epoch=5)
    0.1
    """

    start: float

    def __post_init__(self) -> None:
        check_float("inverse_epoch", "start", self.start, minimum=0)

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        return self.start / epoch


@dataclass(frozen=True)
class power_law:
    """start / (1 + (k − 1) / scale)^power at step k.

    >>> power_law(1.0, power=0.5)(np.array([1, 4, 100]), epoch=1).tolist()
    [1.0, 0.5, 0.1]
    """

    start: float
    power: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_float("power_law", "start", self.start, minimum=0)
        check_float("power_law", "power", self.power)
        check_float("power_law", "scale", self.scale, positive=True)

    def __call__(self, k: np.ndarray, epoch: int) -> np.ndarray:
        return self.start / (1 + (k - 1) / self.scale) ** self.power


@dataclass(frozen=True)
class cosine:
    """From start down to 0 after this number of epochs, along half a cosine; one value per epoch.

    >>> cosine(1.0, epochs=4)(np.arange(1, 9), epoch=3)
    0.5
    """

    start: float
    epochs: int

    def __post_init__(self) -> None:
        check_float("cosine", "start", self.start, minimum=0)
        check_int("cosine", "epochs", self.epochs)

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        return round(self.start * (1 + math.cos(math.pi * min(1.0, (epoch - 1) / self.epochs))) / 2, 15)


@dataclass(frozen=True)
class piecewise_linear:
    """Straight lines between points (epoch, value), constant before the first and after the last; one value per epoch.

    The schedule of the asymmetric valley, with weights averaged by SWA(first=161, last=200), is
    piecewise_linear(((80.5, 0.5), (144.9, 0.05), (200, 0.05), (201, 0.5))): 0.5 for half of 161 epochs, then down to
    0.05 at nine tenths of them, and 0.5 again after the average.

    >>> [piecewise_linear(((2, 1.0), (4, 0.5)))(np.arange(1, 9), epoch) for epoch in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 0.75, 0.5, 0.5]
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        owner = "piecewise_linear"
        if not isinstance(self.points, tuple) or not self.points or not all(map(_is_pair, self.points)):
            raise ArgumentTypeError(
                f"{owner}: expected points as a tuple of pairs (epoch, value), such as ((1, 0.5), (10, 0.1)), got "
                f"{self.points!r:.60}"
            )
        for epoch, value in self.points:
            check_float(owner, "epoch", epoch)
            check_float(owner, "value", value, minimum=0)
        epochs = [epoch for epoch, _ in self.points]
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            raise ArgumentError(f"{owner}: expected points with rising epochs, got epochs {epochs}")

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        epochs, numbers = zip(*self.points, strict=True)
        return float(np.interp(epoch, epochs, numbers))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def convergent(
    lr: float, tol: float, p: float = 0.75, q: float = 0.5, scale: float = 1.0
) -> tuple[power_law, power_law]:
    """Schedules α_k ~ lr·k^(−p) and ε_k ~ tol·k^(−q) of learning rate and tolerance (see power_law) under which the
    paper's theorem promises ‖∇g‖ → 0: Σ α_k = ∞, Σ α_k² < ∞ and Σ ε_k α_k < ∞, that is ½ < p ≤ 1 and p + q > 1.

    >>> rate, tolerance = convergent(0.1, 0.01)
    >>> float(rate(np.array([16]), 1)[0]), float(tolerance(np.array([16]), 1)[0])
    (0.0125, 0.0025)
    """
    if not 0.5 < check_float("convergent", "p", p) <= 1:
        raise ArgumentError(
            f"convergent: expected 1/2 < p <= 1, so that the sum of the learning rates diverges and "
            f"that of their squares does not, got p = {p}"
        )
    if not p + check_float("convergent", "q", q) > 1:
        raise ArgumentError(
            f"convergent: expected p + q > 1, so that tolerance times learning rate can be summed, got p = {p}, q = {q}"
        )
    return power_law(lr, p, scale), power_law(tol, q, scale)


def values(schedule: Schedule, k: np.ndarray, epoch: int, owner: str) -> np.ndarray:
    """A schedule at the steps k of an epoch, as float64, checked."""
    result = as_array(owner, schedule(k, epoch) if callable(schedule) else schedule, "numbers from its schedule")
    if result.dtype.kind not in "fiu":
        raise ArgumentTypeError(
            f"{owner}: expected a schedule that returns numbers, got {result[()]!r:.60} "
            f"({result.dtype}) in epoch {epoch}"
        )
    result = result.astype(np.float64)
    if result.shape not in ((), k.shape):
        raise ArgumentError(
            f"{owner}: expected a schedule that returns one number, or one for each of the {k.size} "
            f"steps it is given, got shape {result.shape}"
        )
    if not (np.isfinite(result).all() and (result >= 0).all()):
        raise ArgumentError(
            f"{owner}: expected finite numbers of at least 0 from its schedule, got "
            f"{result.min():g} to {result.max():g} in epoch {epoch}"
        )
    return np.broadcast_to(result, k.shape)


def check_schedule(owner: str, name: str, value: Any) -> None:
    """A number from 0 up, or a function of k and epoch, whose results are checked when it is called."""
    if callable(value):
        check_function(owner, name, value, "k and epoch", 2)
    else:
        check_float(owner, name, value, minimum=0)
