"""Claims of the paper, and the tests that decide them.

A claim says what the paper says, in our words, where it says it, and has a test: a function of records of one variant
that returns a ``Verdict``. Comparisons of two models go by the probability that one beats the other over seeds
(``statistics.beats``), with its bootstrap interval: a claim holds if the whole interval is on its side, does not hold
if the whole interval is on the other side, and is else within the noise of seeds. Fewer than three seeds decide
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rop.arguments import check_choice
from rop.reproduce.records import Records, figure_of
from rop.reproduce.statistics import FEWEST, Estimate, beats, rank_correlation, summary

__all__ = [
    "DOES_NOT_HOLD",
    "HOLDS",
    "NOISE",
    "NOT_RUN",
    "Claim",
    "Test",
    "Verdict",
    "all_of",
    "any_of",
    "correlated",
    "falling",
    "higher",
    "lower",
    "not_higher",
    "within",
]

HOLDS, DOES_NOT_HOLD, NOISE, NOT_RUN = "holds", "does not hold", "within the noise of seeds", "not run"
VERDICTS = (HOLDS, DOES_NOT_HOLD, NOISE, NOT_RUN)


@dataclass(frozen=True)
class Verdict:
    """A verdict and the numbers behind it, as text; ``brief`` is a shorter form of many numbers."""

    verdict: str
    numbers: str = ""
    brief: str = ""

    def __post_init__(self) -> None:
        check_choice("Verdict", "verdict", self.verdict, VERDICTS)


Test = Callable[[Records], Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        text: in our own words.
        where: its place in the paper.
        decide: the test, which is given the records of one variant.
        test: what the test compares, in words.
    """

    text: str
    where: str
    decide: Test
    test: str


# --------------------------------------------------------------------------------------------------------------- tests
def higher(figure: str, model: str, other: str) -> Test:
    """The figure of ``model`` is higher than that of ``other``.

    >>> higher("accuracy", "a", "b")(Records([])).verdict
    'not run'
    """

    def decide(records: Records) -> Verdict:
        a, b = (list(records.where(model=name).values(figure).values()) for name in (model, other))
        if not a or not b:
            return Verdict(NOT_RUN, f"{model} or {other}: no records")
        chance, count = beats(a, b), min(len(a), len(b))
        medians = f"{_median(a)} and {_median(b)}"
        numbers = f"{model} > {other}: P = {_shown(chance)}, medians {medians}, {_seeds(count)}"
        return Verdict(by_interval(chance, 0.5), numbers)

    return decide


def lower(figure: str, model: str, other: str) -> Test:
    """The figure of ``model`` is lower than that of ``other``."""
    return higher(figure, other, model)


def not_higher(figure: str, model: str, other: str) -> Test:
    """The figure of ``model`` is not clearly higher than that of ``other``: the whole interval above one half refutes
    it, and anything else, with at least three seeds, supports it."""
    test = higher(figure, model, other)

    def decide(records: Records) -> Verdict:
        found, seeds = test(records), [len(records.where(model=name).values(figure)) for name in (model, other)]
        if found.verdict == NOT_RUN or min(seeds) < FEWEST:
            return found
        return Verdict(DOES_NOT_HOLD if found.verdict == HOLDS else HOLDS, found.numbers)

    return decide


def within(figure: str, model: str, low: float, high: float) -> Test:
    """The figure of ``model`` is between two numbers: whole interval inside, whole interval outside, or neither."""

    def decide(records: Records) -> Verdict:
        found = summary(records.where(model=model).values(figure).values())
        if found is None:
            return Verdict(NOT_RUN, f"{model}: no records")
        numbers = f"{model} {found.median:.4g} [{found.low:.4g}, {found.high:.4g}], {_seeds(found.count)}"
        start, end = found.interval
        if math.isnan(start) or (start < low <= end) or (start <= high < end):
            return Verdict(NOISE, numbers)
        return Verdict(HOLDS if low <= start and end <= high else DOES_NOT_HOLD, numbers)

    return decide


def falling(model: str, figures: Sequence[str]) -> Test:
    """Of one model, each figure of a series is larger than the next: P(earlier > later) for each pair of neighbours."""

    def decide(records: Records) -> Verdict:
        found = [list(records.where(model=model).values(figure).values()) for figure in figures]
        if not all(found):
            return Verdict(NOT_RUN, f"{model}: no records")
        chances = [beats(a, b) for a, b in pairwise(found)]
        kinds = {by_interval(chance, 0.5) for chance in chances}
        verdict = HOLDS if kinds == {HOLDS} else DOES_NOT_HOLD if DOES_NOT_HOLD in kinds else NOISE
        medians = ", ".join(_median(values) for values in found)
        shown = ", ".join(map(_shown, chances))
        return Verdict(verdict, f"{model}: medians {medians}; P = {shown}; {_seeds(min(map(len, found)))}")

    return decide


def correlated(x: str, y: str, sign: int) -> Test:
    """Over all models and seeds, figure y rises (sign 1) or falls (sign −1) with figure x: Spearman's correlation."""

    def decide(records: Records) -> Verdict:
        found = [(figure_of(one.figures, x), figure_of(one.figures, y)) for one in records]
        pairs = [(float(a), float(b)) for a, b in found if a is not None and b is not None]
        if not pairs:
            return Verdict(NOT_RUN, "no records")
        rank = rank_correlation(*zip(*pairs, strict=True))
        low, high = rank.interval if sign > 0 else (-rank.interval[1], -rank.interval[0])
        verdict = by_interval(Estimate(sign * rank.value, (low, high)), 0.0)
        return Verdict(verdict, f"rank correlation {_shown(rank)} over {len(pairs)} models")

    return decide


def all_of(tests: Sequence[Test]) -> Test:
    """Every one of several tests: it does not hold if one of them does not."""

    def decide(records: Records) -> Verdict:
        found = [test(records) for test in tests]
        kinds = [verdict.verdict for verdict in found]
        order = (NOT_RUN, DOES_NOT_HOLD, NOISE)
        worst = next((kind for kind in order if kind in kinds), HOLDS)
        return Verdict(worst, *_together(found))

    return decide


def any_of(tests: Sequence[Test]) -> Test:
    """At least one of several tests: it holds if one of them does."""

    def decide(records: Records) -> Verdict:
        found = [test(records) for test in tests]
        kinds = [verdict.verdict for verdict in found]
        best = next((kind for kind in (HOLDS, NOT_RUN, NOISE) if kind in kinds), DOES_NOT_HOLD)
        return Verdict(best, *_together(found))

    return decide


def by_interval(found: Estimate, bound: float) -> str:
    """The verdict on "above the bound" of an estimate with an interval.

    >>> by_interval(Estimate(0.9, (0.7, 1.0)), 0.5), by_interval(Estimate(1.0, (math.nan, math.nan)), 0.5)
    ('holds', 'within the noise of seeds')
    """
    low, high = found.interval
    return HOLDS if low > bound else DOES_NOT_HOLD if high < bound else NOISE  # NaN: neither


def _together(found: Sequence[Verdict]) -> tuple[str, str]:
    """The numbers of several verdicts: how many of each kind, then all of them; and the counts alone."""
    counts = [f"{kind}: {n}" for kind in VERDICTS if (n := sum(one.verdict == kind for one in found))]
    brief = f"{', '.join(counts)} of {len(found)} comparisons"
    return f"{brief}; " + "; ".join(one.numbers for one in found), brief


def _median(values: Sequence[float]) -> str:
    found = summary(values)
    return "–" if found is None else f"{found.median:.4g}"


def _shown(found: Estimate) -> str:
    low, high = found.interval
    return f"{found.value:.2f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}" + " (too few)" * (count < FEWEST)
