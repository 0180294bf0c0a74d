"""Statistics over seeds against SciPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import rop
from rop.reproduce import statistics


def test_median_range_and_interval_as_scipy_computes_them() -> None:
    values = np.random.default_rng(0).normal(70, 1, 12)
    found = statistics.summary(values)
    assert found is not None and (found.median, found.low, found.high) == (
        np.median(values),
        values.min(),
        values.max(),
    )
    known = stats.bootstrap((values,), np.median, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    assert found.interval == pytest.approx((known.low, known.high), abs=0.08)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(0, 1, 400)
    low, high = statistics.interval(values, np.mean)
    half = 1.96 * values.std() / math.sqrt(values.size)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


def test_few_values_have_no_interval() -> None:
    found = statistics.summary([1.0, 2.0])
    assert found is not None and found.median == 1.5 and np.isnan(found.interval).all()
    assert statistics.summary([]) is None


def test_the_probability_that_one_beats_the_other_is_the_mann_whitney_statistic() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 7).astype(float)  # with ties
    found = statistics.beats(a, b)
    assert found.value == pytest.approx(stats.mannwhitneyu(a, b).statistic / (a.size * b.size))
    assert statistics.beats(b, a).value == pytest.approx(1 - found.value)
    known = stats.bootstrap(
        (a, b),
        lambda x, y, axis: np.mean(np.sign(x[..., :, None] - y[..., None, :]) / 2 + 0.5, axis=(-2, -1)),
        n_resamples=9999,
        method="percentile",
        rng=3,
        vectorized=True,
    ).confidence_interval
    assert found.interval == pytest.approx((known.low, known.high), abs=0.03)


def test_the_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 8, 40).astype(float)
    y = x + rng.normal(0, 3, 40)
    found = statistics.rank_correlation(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    known = stats.bootstrap(
        (x, y),
        lambda a, b: stats.spearmanr(a, b).statistic,
        paired=True,
        n_resamples=2000,
        method="percentile",
        rng=5,
        vectorized=False,
    ).confidence_interval
    assert found.interval == pytest.approx((known.low, known.high), abs=0.05)
    assert math.isnan(statistics.rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]).value)


def test_the_same_values_give_the_same_interval() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    assert statistics.summary(values) == statistics.summary(values)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(rop.ArgumentError, match="expected finite numbers"):
        statistics.summary([1.0, math.nan])
    with pytest.raises(rop.ArgumentError, match="values of both models, got 0 and 1"):
        statistics.beats([], [1.0])
    with pytest.raises(rop.ArgumentError, match="expected pairs"):
        statistics.rank_correlation([1.0], [1.0, 2.0])
