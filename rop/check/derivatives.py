"""Is each derivative that a scalar function returns the derivative of the one before it?

Every derivative is compared with differences of the highest one below it that is right itself, so that one error is
reported once: with f′ wrong, f″ is compared with second differences of f.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.check.differences import Curve, extrapolated, halvings, remembered
from rop.layers.elementwise import Derivatives, Scalar

NAMES = ("f", "f′", "f″", "f‴")
RELATIVE = 1e-6  # allowed error; differences themselves reach 1e-9 and better, and estimate their own error
STEPS = {1: halvings(0.5, 13), 2: halvings(0.5, 11), 3: halvings(0.5, 7)}  # by order of the difference


@dataclass(frozen=True)
class Derivative:
    """What was found about one derivative, at the x where its error is largest."""

    function: str
    name: str  # f′
    compared_with: str  # differences of f
    x: float
    given: float
    expected: float
    uncertainty: float  # of expected
    wrong: int  # number of points at which it is wrong
    points: int  # number of points that could be decided
    hint: str = ""

    @property
    def error(self) -> float:
        """How far the given value is from the expected one."""
        return abs(self.given - self.expected)

    @property
    def ok(self) -> bool:
        return self.wrong == 0 and self.points > 0


def points_in(low: float, high: float, count: int) -> np.ndarray:
    """Points between low and high, moved off the round numbers, where functions made of pieces have their seams."""
    x = np.linspace(low, high, count)
    return x + (high - low) / count * 0.1 * np.sin(1 + np.arange(count))


def check_derivatives(function: Scalar, parameters: tuple[float, ...], x: np.ndarray) -> list[Derivative]:
    """f′, f″ and f‴ at the points x against differences."""

    def all_four(r: float) -> np.ndarray:
        return np.array([_numbers(function, number + r, parameters) for number in x.tolist()]).T

    curve = remembered(all_four)

    def derivative(k: int) -> Curve:
        return lambda r: curve(r)[k]

    given = curve(0.0)
    found, base = [], 0
    for k in (1, 2, 3):
        result = _compare(function.__name__, x, given, derivative(base), k, base)
        found.append(result)
        base = k if result.ok else base
    return found


def jumps(function: Scalar, parameters: tuple[float, ...] = ()) -> bool:
    """Whether one of the four jumps somewhere in −6 … 6, as the derivatives of functions made of pieces do: between
    points eight times as close, a continuous function changes an eighth as much, while a jump keeps its height.

    >>> jumps(lambda x: (x * x, 2 * x, 2.0, 0.0)), jumps(lambda x: (abs(x), 1.0 if x > 0 else -1.0, 0.0, 0.0))
    (False, True)
    """
    fine = np.array([_numbers(function, x, parameters) for x in np.linspace(-6, 6, 8001).tolist()])
    fine = fine[np.isfinite(fine).all(axis=1)]
    near, far = (np.abs(np.diff(fine[::every], axis=0)).max(axis=0, initial=0.0) for every in (1, 8))
    return bool(np.any((near > 0.5 * far) & (near > 1e-6 * (1 + np.abs(fine).max(axis=0, initial=0.0)))))


def _numbers(function: Scalar, x: float, parameters: tuple[float, ...]) -> Derivatives:
    """(f, f′, f″, f‴) at x in plain Python; NaN at poles and overflows, where Python raises errors."""
    try:
        a, b, c, d = function(x, *parameters)
        return float(a), float(b), float(c), float(d)
    except (ArithmeticError, ValueError):
        return np.nan, np.nan, np.nan, np.nan


def _compare(owner: str, x: np.ndarray, given: np.ndarray, lower: Curve, k: int, base: int) -> Derivative:
    """Derivative number k against differences of number ``base``, the curve ``lower``."""
    expected, uncertainty = extrapolated(lower, STEPS[k - base], k - base)
    finite = np.isfinite(expected)
    size = np.abs(expected)
    usual, below = (float(np.median(s[finite])) if finite.any() else 0.0 for s in (size, np.abs(lower(0.0))))
    scale = size + usual + 1e-6 * below + 1e-30  # a derivative may be 0 throughout
    decided = finite & (uncertainty <= 1e-3 * scale)  # not at a kink, nor where f oscillates too fast
    error = np.abs(given[k] - expected)
    error = np.where(np.isfinite(given[k]), error, np.inf)
    wrong = decided & ~(error <= 10 * uncertainty + RELATIVE * scale)
    worst = int(np.argmax(np.where(wrong if wrong.any() else decided, error, -1.0)))
    kind = "differences of " if k - base == 1 else f"{('second', 'third')[k - base - 2]} differences of "
    hint = _hint(given[k], expected, wrong, decided, scale)
    return Derivative(
        owner,
        NAMES[k],
        kind + NAMES[base],
        float(x[worst]),
        float(given[k][worst]),
        float(expected[worst]),
        float(uncertainty[worst]),
        int(wrong.sum()),
        int(decided.sum()),
        hint,
    )


def _hint(given: np.ndarray, expected: np.ndarray, wrong: np.ndarray, decided: np.ndarray, scale: np.ndarray) -> str:
    """The pattern of the usual mistakes: a constant factor (a sign, a binomial coefficient) or a constant offset."""
    if not wrong.any():
        return "" if decided.any() else "nothing could be decided: differences do not converge"
    if not np.isfinite(given[wrong]).all():
        return "not a finite number"
    large = decided & (np.abs(expected) > 0.05 * np.abs(expected[decided]).max())
    factor, offset = given[large] / expected[large], (given - expected)[decided]
    usual = float(np.median(scale))
    for what, pattern, unit in (("times what it should be", factor, 1.0), ("too much everywhere", offset, usual)):
        middle = float(np.median(pattern))
        if len(pattern) > 2 and np.ptp(pattern) <= 1e-5 * (abs(middle) + 1e-3 * unit):
            return f"{middle:.6g} {what}"
    side = [
        name for name, part in (("x < 0", wrong[: len(wrong) // 2]), ("x > 0", wrong[len(wrong) // 2 :])) if part.any()
    ]
    return f"only for {side[0]}" if len(side) == 1 and len(wrong) > 10 else ""
