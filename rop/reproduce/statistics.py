"""Statistics over seeds: median and range, bootstrap intervals, the probability that A beats B, rank correlation.

Intervals are percentile bootstrap intervals of 95 %: seeds are drawn with replacement, the statistic is computed for
each of 10,000 draws, and its 2.5 % and 97.5 % quantiles are the interval. Draws come from a fixed seed, so that the
same records give the same text. With fewer than three values there is no interval: (NaN, NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from rop.errors import ArgumentError

__all__ = ["Estimate", "Summary", "beats", "interval", "rank_correlation", "summary", "trend"]

DRAWS = 10_000
LEVEL = 0.95
FEWEST = 3  # values, below which an interval says nothing

Interval = tuple[float, float]
NONE: Interval = (math.nan, math.nan)


@dataclass(frozen=True)
class Summary:
    """A figure over seeds: its median, range, and the bootstrap interval of the median."""

    median: float
    low: float
    high: float
    interval: Interval
    count: int


@dataclass(frozen=True)
class Estimate:
    """A statistic and its bootstrap interval."""

    value: float
    interval: Interval


def summary(values: Iterable[float]) -> Summary | None:
    """Median, range and interval; None without values.

    >>> found = summary([3.0, 1.0, 2.0])
    >>> found.median, found.low, found.high, found.interval
    (2.0, 1.0, 3.0, (1.0, 3.0))
    """
    given = _finite(values)
    if not given.size:
        return None
    return Summary(
        float(np.median(given)), float(given.min()), float(given.max()), interval(given, np.median), given.size
    )


def interval(values: Iterable[float], statistic: Callable[..., np.ndarray]) -> Interval:
    """The percentile bootstrap interval of a statistic that takes ``axis``, such as np.median.

    >>> interval([1.0, 1.0, 1.0], np.mean), interval([1.0, 2.0], np.mean)
    ((1.0, 1.0), (nan, nan))
    """
    given = _finite(values)
    if given.size < FEWEST:
        return NONE
    return _percentiles(statistic(given[_draws(given.size)], axis=1))


def beats(a: Iterable[float], b: Iterable[float]) -> Estimate:
    """P(X > Y) + ½ P(X = Y) for X drawn from a and Y from b, as rliable's probability of improvement; in a draw of the
    bootstrap both are drawn anew, independently.

    >>> beats([3.0, 4.0, 5.0], [1.0, 2.0, 2.5])
    Estimate(value=1.0, interval=(1.0, 1.0))
    >>> beats([1.0, 2.0], [1.0, 2.0]).value
    0.5
    """
    x, y = _finite(a), _finite(b)
    if not x.size or not y.size:
        raise ArgumentError(f"beats: expected values of both models, got {x.size} and {y.size}")
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)  # (count of a, count of b)
    if min(x.size, y.size) < FEWEST:
        return Estimate(float(wins.mean()), NONE)
    rows, columns = _draws(x.size), _draws(y.size, stream=1)  # (DRAWS, count)
    means = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    return Estimate(float(wins.mean()), _percentiles(means))


def rank_correlation(x: Iterable[float], y: Iterable[float]) -> Estimate:
    """Spearman's rank correlation, the pairs being drawn anew for the interval.

    >>> rank_correlation([1, 2, 3, 4], [1, 8, 27, 64])
    Estimate(value=1.0, interval=(1.0, 1.0))
    """
    a, b = np.asarray(list(x), float), np.asarray(list(y), float)
    if a.shape != b.shape:
        raise ArgumentError(f"rank_correlation: expected pairs, got {a.size} and {b.size} values")
    value = float(_spearman(a[None], b[None])[0]) if a.size > 1 else math.nan
    if a.size < FEWEST:
        return Estimate(value, NONE)
    rows = _draws(a.size)
    found = _spearman(a[rows], b[rows])
    return Estimate(value, _percentiles(found[np.isfinite(found)]))  # draws of one pair alone have none


def trend(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line.

    >>> slope, start = trend([0, 1, 2], [1, 3, 5])
    >>> round(slope, 12), round(start, 12)
    (2.0, 1.0)
    """
    slope, start = np.polyfit(np.asarray(list(x), float), np.asarray(list(y), float), 1)
    return float(slope), float(start)


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row: the correlation of ranks, ties having their mean rank. NaN where all values are equal."""
    from scipy.stats import rankdata

    ranks = [rankdata(part, axis=1) for part in (a, b)]
    p, q = (part - part.mean(axis=1, keepdims=True) for part in ranks)
    scale = np.sqrt((p * p).sum(axis=1) * (q * q).sum(axis=1))
    found = np.full(len(a), np.nan)
    np.divide((p * q).sum(axis=1), scale, out=found, where=scale > 0)
    return np.clip(found, -1, 1)


def _finite(values: Iterable[float]) -> np.ndarray:
    given = np.asarray(list(values), float)
    if not np.isfinite(given).all():
        raise ArgumentError(f"statistics: expected finite numbers, got {given.tolist()}")
    return given


def _draws(count: int, stream: int = 0) -> np.ndarray:
    """Indices drawn with replacement, (DRAWS, count)."""
    return np.random.default_rng([1226, stream]).integers(count, size=(DRAWS, count))


def _percentiles(values: np.ndarray) -> Interval:
    if not values.size:
        return NONE
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
