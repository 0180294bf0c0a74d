"""Derivatives of scalar functions: planted errors are found, named and located, and no others are reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rop
from rop.check.derivatives import STEPS, check_derivatives, jumps, points_in
from rop.check.differences import extrapolated
from rop.layers.elementwise import Derivatives


def swish(x: float) -> Derivatives:
    """x s(x), with the sigmoid s."""
    s = 1 / (1 + math.exp(-x))
    s1 = s * (1 - s)
    s2 = s1 * (1 - 2 * s)
    s3 = s2 * (1 - 2 * s) - 2 * s1 * s1
    return x * s, s + x * s1, 2 * s1 + x * s2, 3 * s2 + x * s3


def planted(k: int, error: Callable[[float, float], float]) -> Any:
    """swish with derivative number k replaced by error(x, right value)."""

    def wrong(x: float) -> Any:
        y, d1, d2, d3 = swish(x)
        if k == 0:
            return error(x, y), d1, d2, d3
        if k == 1:
            return y, error(x, d1), d2, d3
        return (y, d1, error(x, d2), d3) if k == 2 else (y, d1, d2, error(x, d3))

    return wrong


def test_right_derivatives_pass() -> None:
    found = rop.check.layer(swish, engine=False)
    assert found.ok and [d.name for d in found.derivatives] == ["f′", "f″", "f‴"]
    assert all(d.points == 201 and d.error < 1e-8 for d in found.derivatives)


ERRORS = {
    "sign": (lambda x, right: -right, "-1 times"),
    "factor": (lambda x, right: 2 * right, "2 times"),
    "offset": (lambda x, right: right + 0.5, "0.5 too much"),
    "side": (lambda x, right: right if x > 0 else right + x * x, "only for x < 0"),
    "slight": (lambda x, right: right * (1 + 1e-4 * math.sin(x)), ""),
    "not a number": (lambda x, right: math.nan if abs(x - 1) < 0.1 else right, "finite"),
    "zero": (lambda x, right: 0.0, "0 times"),
}


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_wrong_derivative_is_named_and_no_other(k: int, what: str) -> None:
    error, hint = ERRORS[what]
    found = rop.check.layer(planted(k, error), engine=False)
    (wrong,) = found.wrong
    assert wrong.name == ("f", "f′", "f″", "f‴")[k]  # type: ignore[union-attr]
    assert hint in wrong.hint  # type: ignore[union-attr]
    assert found.verdict().startswith(f"wrong: {wrong.name} is wrong: at x = ")  # type: ignore[union-attr]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_report_says_where_and_by_how_much(k: int) -> None:
    """An error of height 0.3 at x = 2 with a width of 0.2."""
    found = rop.check.layer(planted(k, lambda x, right: right + 0.3 * math.exp(-(((x - 2) / 0.2) ** 2))), engine=False)
    (wrong,) = (d for d in found.derivatives if not d.ok)
    assert abs(wrong.x - 2) < 0.05 and wrong.error == pytest.approx(0.3, abs=0.02)
    assert wrong.given == pytest.approx(swish(wrong.x)[k] + wrong.error, rel=1e-6)
    assert wrong.expected == pytest.approx(swish(wrong.x)[k], rel=1e-6)
    assert 0 < wrong.wrong < 40


def test_an_error_in_the_function_itself_shows_in_the_first_derivative() -> None:
    """f is the definition: if it is wrong, f′ disagrees with it, and the rest with f′."""
    found = rop.check.layer(planted(0, lambda x, right: right + math.sin(x)), engine=False)
    assert {d.name for d in found.derivatives if not d.ok} == {"f′", "f″", "f‴"}


def test_all_derivatives_wrong_at_once() -> None:
    found = rop.check.layer(lambda x: (math.sin(x), 2 * math.cos(x), 3.0, math.sin(x)), engine=False)
    assert [d.ok for d in found.derivatives] == [False, False, False]
    assert [d.compared_with for d in found.derivatives] == [
        "differences of f",
        "second differences of f",
        "third differences of f",
    ]


def test_kinks_and_seams_are_no_errors() -> None:
    """Functions made of pieces are right on each of them."""

    def pieces(x: float) -> Derivatives:
        if x < 0:
            return 0.0, 0.0, 0.0, 0.0
        return (x, 1.0, 0.0, 0.0) if x > 1 else (x * x / 2, x, 1.0, 0.0)

    found = rop.check.layer(pieces)
    found.raise_if_wrong()
    assert {row.dtype for row in found.rows if row.difference is not None} == {"float64"}, "with small steps"
    assert jumps(pieces) and not jumps(swish)


def test_steep_and_flat_functions() -> None:
    for scale in (1e-6, 1e-2, 1.0, 30.0, 1e6):
        found = rop.check.layer(lambda x, a=scale: (a * x**3, 3 * a * x * x, 6 * a * x, 6 * a), engine=False)
        assert found.ok, str(found)
    for beta in (0.01, 20.0):
        layer = rop.Elementwise(
            lambda x, b: (math.sin(b * x), b * math.cos(b * x), -b * b * math.sin(b * x), -(b**3) * math.cos(b * x)),
            beta,
        )
        assert rop.check.layer(layer, engine=False).ok


@pytest.mark.parametrize("layer", [kind() for kind in rop.layers.ACTIVATIONS.values()] + [rop.GELU("tanh")], ids=repr)
def test_the_packages_own_activations_pass(layer: Any) -> None:
    rop.check.layer(layer, engine=False).raise_if_wrong()


def test_points_of_ones_own() -> None:
    def logarithm(x: float) -> Derivatives:
        return math.log(x), 1 / x, -1 / x**2, 2 / x**3

    assert rop.check.layer(logarithm, x=np.linspace(0.7, 5, 30), engine=False).ok
    found = rop.check.layer(logarithm, engine=False)  # half of the points are no numbers: they are left out
    assert found.ok and found.derivatives[0].points < 120
    with pytest.raises(rop.ArgumentError, match="finite"):
        rop.check.layer(swish, x=[np.inf])


def test_nothing_that_can_be_decided_is_not_right() -> None:
    (first, *_) = check_derivatives(lambda x: (math.nan,) * 4, (), points_in(-1, 1, 11))
    assert not first.ok and "could" in first.hint


@pytest.mark.parametrize("order", [1, 2, 3])
def test_differences_know_their_own_error(order: int) -> None:
    x = np.linspace(-2, 2, 41)
    value, error = extrapolated(lambda r: np.exp(np.sin(x + r)), STEPS[order], order)
    s, c = np.sin(x), np.cos(x)
    exact = np.exp(s) * (c, c * c - s, c**3 - 3 * s * c - c)[order - 1]
    assert np.all(np.abs(value - exact) <= 20 * error + 1e-9) and np.all(error < 1e-6)
