"""How results are compared: norm-wise, order by order, with a floor for results that are zero or nearly so.

A result of order k passes if ‖actual − expected‖ ≤ relative·‖expected‖ + floor·(1 + ‖∇f‖)·max(1, ‖v‖)ᵏ. The floor is
what rounding leaves of terms that cancel: with ReLU and MSE, say, R² of a one-layer network is zero exactly, while the
terms that make it up have the size of the gradient times ‖v‖².

Some drawn problems are ill-conditioned: batchnorm divides by a standard deviation that may happen to be tiny. A result
beyond the tolerance is therefore measured once more, against how far the oracle itself moves when w and x are moved by
one rounding of the precision under test; no algorithm can do better than a small multiple of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import rop
from rop.check.reference import Reference, State, reference
from tests.helpers.zoo import direction, point

ORDERS = {"loss": 0, "grad": 0, "hvp": 1, "r2": 2}


@dataclass(frozen=True)
class Tolerance:
    """The relative error allowed, and the floor for what should be zero."""

    relative: float
    floor: float


# float64: the contract's 1e-9.
# float32: one rounding is 6e-8. The longest chains here are some hundred dependent sums of up to a few hundred terms
# per layer; errors add like a random walk, √(5 layers · 300 terms) ≈ 40 roundings ≈ 2.3e-6 at order 0. Orders 1 and 2
# multiply that by the number of terms of the Leibniz rule (up to 6 per layer) and by cancellation between them, for
# which a factor of ten is left: 2e-4 in all.
TOLERANCES = {
    np.dtype(np.float64): Tolerance(1e-9, 1e-13),
    np.dtype(np.float32): Tolerance(2e-4, 2e-6),
}


ROUNDINGS = 30  # errors that a computation may make for every rounding of its input


def error_of(actual: Any, expected: Any) -> float:
    """‖actual − expected‖ in float64; infinite if any entry is not finite or the shapes differ."""
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.all(np.isfinite(a)):
        return float("inf")
    return float(np.linalg.norm((a - b).ravel()))


def discrepancies(
    actual: Any, expected: Reference, v: Any, tolerance: Tolerance, nearby: Reference | None = None
) -> list[str]:
    """Every order at which `actual` (loss, grad, hvp, r2) differs from the oracle by more than allowed, in words.

    `nearby` is the oracle's answer to the problem moved by one rounding.
    """
    scale, length = 1 + float(np.linalg.norm(expected.grad)), max(1.0, float(np.linalg.norm(v)))
    found = []
    for name, order in ORDERS.items():
        wanted = getattr(expected, name)
        error, size = error_of(getattr(actual, name), wanted), float(np.linalg.norm(wanted))
        allowed = tolerance.relative * size + tolerance.floor * scale * length**order
        if nearby is not None:
            allowed += ROUNDINGS * error_of(getattr(nearby, name), wanted)
        if not error <= allowed:
            found.append(f"{name}: error {error:.2e} in a result of norm {size:.2e}, allowed {allowed:.2e}")
    return found


def check(
    net: Any,
    loss: Any,
    x: np.ndarray,
    y: np.ndarray,
    dtype: Any = np.float64,
    *,
    training: bool = True,
    state: State | None = None,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    layout: str | None = None,
) -> Reference:
    """Compare loss, gradient, Hv and R² of rop with the oracle at a drawn point and direction; returns the oracle's."""
    x, y = cast(x, dtype), cast(y, dtype)
    w, v = point(net, seed, dtype), direction(net, seed, dtype)
    objective = rop.Objective(net, loss, x, y, dtype=dtype, training=training, state=state, layout=layout)
    actual = objective.jet(w, v)
    expected = reference(net, loss, x, y, w, v, training=training, state=state)
    tolerance = tolerance or TOLERANCES[np.dtype(dtype)]
    found = discrepancies(actual, expected, v, tolerance)
    if found:
        moved = rounded_once(x, dtype), y, rounded_once(w, dtype), v
        nearby = reference(net, loss, *moved, training=training, state=state)
        found = discrepancies(actual, expected, v, tolerance, nearby)
    assert not found, "\n".join(found)
    return expected


def rounded_once(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Every number moved up or down by half a unit in the last place, in float64."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], array.shape)
    return array.astype(np.float64) * (1 + signs * np.finfo(dtype).eps / 2)


def cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Floats in the precision under test (the oracle then sees exactly the same numbers); labels as they are."""
    return array.astype(dtype) if array.dtype.kind == "f" else array
