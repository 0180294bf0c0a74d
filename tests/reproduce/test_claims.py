"""Verdicts on records made for the purpose."""

from __future__ import annotations

import pytest

import rop
from rop.reproduce import claims
from rop.reproduce.claims import DOES_NOT_HOLD, HOLDS, NOISE, NOT_RUN
from rop.reproduce.experiments import NAMES, experiment
from rop.reproduce.records import Records
from tests.helpers.made_up import record, records

LOW, HIGH, MIXED = [1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4], [0.5, 3.0, 1.25, 2.6, 0.9]


@pytest.mark.parametrize(
    "a, b, verdict",
    [(HIGH, LOW, HOLDS), (LOW, HIGH, DOES_NOT_HOLD), (MIXED, LOW, NOISE), (HIGH[:2], LOW, NOISE), ([], LOW, NOT_RUN)],
)
def test_one_model_is_higher(a: list[float], b: list[float], verdict: str) -> None:
    found = records(a=a, b=b)
    assert claims.higher("score", "a", "b")(found).verdict == verdict
    assert claims.lower("score", "b", "a")(found).verdict == verdict


def test_numbers_behind_a_verdict() -> None:
    numbers = claims.higher("score", "a", "b")(records(a=HIGH, b=LOW)).numbers
    assert numbers == "a > b: P = 1.00 [1.00, 1.00], medians 2.2 and 1.2, 5 seeds"
    assert "1 seed (too few)" in claims.higher("score", "a", "b")(records(a=[2.0], b=LOW)).numbers


def test_not_higher() -> None:
    test = claims.not_higher("score", "a", "b")
    assert [test(records(a=a, b=LOW)).verdict for a in (HIGH, MIXED, LOW, [1.0], [])] == [
        DOES_NOT_HOLD,
        HOLDS,
        HOLDS,
        NOISE,
        NOT_RUN,
    ]


def test_within() -> None:
    test = claims.within("score", "a", 1.0, 1.5)
    assert [test(records(a=a)).verdict for a in (LOW, HIGH, MIXED, [])] == [HOLDS, DOES_NOT_HOLD, NOISE, NOT_RUN]


def test_several_together() -> None:
    found = records(a=LOW, b=HIGH, c=MIXED)
    yes, no, noise = (claims.higher("score", "b", other) for other in ("a", "d", "c"))
    no = claims.higher("score", "a", "b")
    missing = claims.higher("score", "b", "d")
    assert claims.all_of([yes, yes])(found).verdict == HOLDS
    assert claims.all_of([yes, noise])(found).verdict == NOISE
    assert claims.all_of([yes, noise, no])(found).verdict == DOES_NOT_HOLD
    assert claims.all_of([yes, missing])(found).verdict == NOT_RUN
    assert claims.any_of([no, yes])(found).verdict == HOLDS
    assert claims.any_of([no, no])(found).verdict == DOES_NOT_HOLD
    both = claims.all_of([yes, no])(found)
    assert both.brief == "holds: 1, does not hold: 1 of 2 comparisons"
    assert both.numbers.startswith(f"{both.brief}; b > a: P = 1.00")


def test_a_series_that_falls() -> None:
    made = Records(record("a", s, rho={"32": 4 + 0.1 * s, "64": 2 + 0.1 * s, "128": 2.05 + 0.1 * s}) for s in range(5))
    assert claims.falling("a", ["rho.32", "rho.64"])(made).verdict == HOLDS
    assert claims.falling("a", ["rho.64", "rho.32"])(made).verdict == DOES_NOT_HOLD
    assert claims.falling("a", ["rho.32", "rho.64", "rho.128"])(made).verdict == NOISE
    assert claims.falling("a", ["rho.32", "rho.256"])(made).verdict == NOT_RUN


def test_a_correlation_over_models_and_seeds() -> None:
    made = Records(record(f"m{k}", s, rho=float(k), gap=-k - 0.3 * s) for k in range(6) for s in range(3))
    assert claims.correlated("rho", "gap", -1)(made).verdict == HOLDS
    assert claims.correlated("rho", "gap", 1)(made).verdict == DOES_NOT_HOLD
    assert claims.correlated("rho", "missing", 1)(made).verdict == NOT_RUN


@pytest.mark.parametrize("name", NAMES)
def test_without_records_every_claim_of_every_experiment_is_not_run(name: str) -> None:
    found = experiment(name)
    assert found.claims
    for claim in found.claims:
        assert claim.decide(Records([])).verdict == NOT_RUN
        assert claim.text.endswith(".") and claim.where and claim.test


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(rop.ArgumentError, match="verdict"):
        claims.Verdict("maybe")
