"""Whether the answers of two engines agree: before anything is timed, and against a float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TOLERANCE = {"float64": 1e-8, "float32": 1e-3}  # ‖a − b‖ / ‖b‖ against the float64 reference
LOOSER = {"epoch": 10.0, "penalised": 100.0}  # factors of the tolerance, because rounding adds up over the steps

Answer = dict[str, np.ndarray]


class Mismatch(ValueError):
    """An engine gave another answer than the reference."""


def compare(answer: Answer, reference: Answer, dtype: str, who: str, looser: float = 1.0) -> dict[str, float]:
    """Relative errors of all quantities of an answer; a Mismatch if one of them is too large."""
    errors, tolerance = {}, TOLERANCE[dtype] * looser
    for name, expected in reference.items():
        got = answer.get(name)
        if got is None:
            raise Mismatch(f"{who} gave no {name}")
        if got.shape != expected.shape:
            raise Mismatch(f"{who}: {name} has {got.size} entries where the reference has {expected.size}")
        scale = float(np.linalg.norm(expected)) or 1.0
        errors[name] = float(np.linalg.norm(got - expected)) / scale
        if not errors[name] <= tolerance:  # NaN is refused too
            raise Mismatch(
                f"{who}: {name} is off by {errors[name]:.1e} from the float64 reference, "
                f"{tolerance:.0e} is allowed in {dtype}"
            )
    return errors


def load(file: Path) -> dict[str, Answer]:
    """The answers that a worker saved: way → quantity → array."""
    ways: dict[str, Answer] = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            way, name = key.split("/")
            ways.setdefault(way, {})[name] = arrays[key]
    return ways
