"""Examines a stand in one precision: every direction and order against torch, differences and identities."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from rop.check.differences import Curve, Numbers, extrapolated, halvings, observed_order, remembered
from rop.check.stand import FORWARD, Answers, Stand
from rop.objective import Objective

ORDERS = (0, 1, 2)
FACTOR = -1.7  # c of the homogeneity Rᵏ(c v) = cᵏ Rᵏ(v)


@dataclass(frozen=True)
class Tolerances:
    """The allowed distance between two ways to the same number, relative to its size."""

    error: float  # against torch in float64
    difference: float  # against extrapolated differences
    identity: float


# One rounding is 1e-16 or 6e-8. A result is computed by sums of up to some hundred terms, and at order 2 by up to six
# products per layer. Differences divide the rounding by steps of about 0.1, at most a few times.
TOLERANCES = {
    "float64": Tolerances(error=1e-10, difference=1e-7, identity=1e-10),
    "float32": Tolerances(error=2e-4, difference=5e-3, identity=2e-4),
}
SLOPES = (1.5, 2.6)  # of central differences: 2, up to the next terms of the series


@dataclass(frozen=True)
class Row:
    """One direction and order in one precision; None where there is nothing to compare with."""

    subject: str
    dtype: str
    direction: str
    order: int
    error: float | None = None  # against torch
    difference: float | None = None
    slope: float | None = None
    identity: float | None = None
    wrong: tuple[str, ...] = field(default=())  # which of the above are out of tolerance

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def verdict(self) -> str:
        """An identity relates this row to others: if nothing but an identity fails, the error may be theirs."""
        itself = self.error is not None or self.difference is not None
        return "ok" if self.ok else "at odds" if self.wrong == ("identity",) and itself else "WRONG"


class Examination:
    """Compares a stand in one precision with torch, with differences and by identities."""

    def __init__(self, stand: Stand, dtype: DTypeLike, torch: bool):
        self._stand, self._torch = stand, torch
        self._dtype: np.dtype = np.dtype(dtype)
        self._x = _cast(stand.x, self._dtype)
        self._y = _cast(stand.y, self._dtype)
        self._w, self._v = stand.w.astype(self._dtype), stand.v.astype(self._dtype)
        state = stand.state or None
        self._objective = Objective(
            stand.net,
            stand.loss,
            self._x,
            self._y,
            dtype=self._dtype,
            training=stand.training,
            state=state,
            hold_fixed=False,
        )
        self._curve = remembered(lambda r: self._answers(r, self._v))
        double = self._dtype == np.float64
        self._steps = halvings(stand.first_step, (11 if stand.kinks else 8) if double else 4)

    def rows(self, subject: str, orders: tuple[int, ...] = ORDERS) -> list[Row]:
        return [self._row(subject, name, k) for name in self._stand.directions for k in orders]

    # ---------------------------------------------------------------------------------------------- both sides' answers
    def _answers(self, r: float, v: np.ndarray) -> Answers:
        """rop's answers at w + r v."""
        point = self._objective.at(self._moved(r, v))
        _, slope, curvature = point.taylor(v)
        return Answers(point.loss, slope, curvature, point.grad, point.hvp(v), point.r2(v))

    def _moved(self, r: float, v: np.ndarray) -> np.ndarray:
        return (self._w.astype(np.float64) + r * v.astype(np.float64)).astype(self._dtype)

    @cached_property
    def _ours(self) -> Answers:
        return self._curve(0.0)

    @cached_property
    def _theirs(self) -> Answers:
        """torch's answers, in float64, for exactly the same numbers."""
        import torch

        from rop.check.reference import reference

        stand, threads = self._stand, torch.get_num_threads()
        torch.set_num_threads(1)  # networks as small as these lose more to synchronisation than they gain
        try:
            given = stand.net, stand.loss, self._x, self._y, self._w, self._v
            found = reference(*given, training=stand.training, state=stand.state or None)
        finally:
            torch.set_num_threads(threads)
        v = self._v.astype(np.float64)
        return Answers(found.loss, float(found.grad @ v), float(found.hvp @ v), found.grad, found.hvp, found.r2)

    # ------------------------------------------------------------------------------------------------------------ a row
    def _row(self, subject: str, direction: str, k: int) -> Row:
        error = self._error(direction, k) if self._torch else None
        difference, slope = self._differences(direction, k)
        identity = self._identity(direction, k)
        allowed, wrong = TOLERANCES[self._dtype.name], []
        for name, value in (("error", error), ("difference", difference), ("identity", identity)):
            if value is not None and not value <= getattr(allowed, name):
                wrong.append(name)
        if slope is not None and not SLOPES[0] <= slope <= SLOPES[1]:
            wrong.append("slope")
        return Row(subject, self._dtype.name, direction, k, error, difference, slope, identity, tuple(wrong))

    def _size(self, exact: Numbers, k: int) -> float:
        """The size that errors are relative to: ‖result‖ or, where it is almost zero, 1/1000 of ‖∇f‖ ‖v‖ᵏ."""
        length = float(np.linalg.norm(self._v.astype(np.float64))) ** k
        usual = float(np.linalg.norm(self._ours.grad.astype(np.float64))) * length
        return max(float(np.linalg.norm(exact)), 1e-3 * usual, 1e-30)

    def _error(self, direction: str, k: int) -> float:
        """‖ours − torch's‖, relative."""
        ours, theirs = (self._stand.read(direction, answers)[k] for answers in (self._ours, self._theirs))
        return _distance(ours, theirs) / self._size(theirs, k)

    def _differences(self, direction: str, k: int) -> tuple[float | None, float | None]:
        """Order k against differences of order k − 1 along v; order 0 of a gradient against differences of the loss
        along its own part of v."""
        stand = self._stand
        if k == 0 and direction in (stand.energy, FORWARD):
            return None, None  # nothing below it
        if stand.kinks and self._dtype == np.float32:
            return None, None  # steps large enough for float32 cross kinks
        if k == 0:
            part = stand.only(direction, self._v)
            exact: Numbers = self._ours.grad.astype(np.float64) @ part.astype(np.float64)
            curve: Curve = remembered(lambda r: self._objective.at(self._moved(r, part)).loss)
        else:
            exact = stand.raw(direction, self._ours)[k]
            curve = remembered(lambda r: stand.raw(direction, self._curve(r))[k - 1])
        eps = float(np.finfo(self._dtype).eps)
        estimate = extrapolated(curve, self._steps, eps=eps)
        whole = float(np.linalg.norm((self._ours.loss, self._ours.grad, self._ours.hvp)[k]))
        if k == 0:  # a loss may be small because its terms cancel, and they are as large as this
            whole = max(whole, float(np.linalg.norm(self._ours.grad)) * float(np.linalg.norm(self._w)))
        noise = 8 * eps * max(float(np.linalg.norm(curve(0.0))), 0.1 * whole)
        slope = None if stand.kinks else observed_order(curve, np.float64(exact), self._steps, noise)
        return _distance(estimate.value, exact) / self._size(exact, k), slope

    # ------------------------------------------------------------------------------------------------------- identities
    def _identity(self, direction: str, k: int) -> float | None:
        if direction == self._stand.energy:
            return self._energies(k)
        return (self._first, self._second, self._third)[k](direction)

    def _energies(self, k: int) -> float | None:
        """E¹ = ⟨∇f, v⟩ and E² = vᵀHv."""
        if k == 0:
            return None
        energy, vector = ((self._ours.slope, self._ours.grad), (self._ours.curvature, self._ours.hvp))[k - 1]
        return self._unequal(energy, vector, self._v)

    def _first(self, direction: str) -> float:
        """E¹ along a part of v is that part of ⟨∇f, v⟩: forward passes on one side, the backward pass on the other."""
        part = self._stand.only(direction, self._v)
        return self._unequal(self._objective.at(self._w).taylor(part).slope, self._ours.grad, part)

    def _second(self, direction: str) -> float:
        """⟨u, Hv⟩ = ⟨v, Hu⟩, E² = uᵀHu, H(c v) = c H v, for u in this part."""
        point, u = self._objective.at(self._w), self._other(direction)
        hu, hv, scaled = (np.float64(point.hvp(vector)) for vector in (u, self._v, self._scaled(FACTOR)))
        usual = float(np.linalg.norm(hv) * np.linalg.norm(u) ** 2 / np.linalg.norm(self._v))  # of uᵀHu
        return max(
            self._unequal(_dot(self._v, hu), hv, u),
            self._unequal(point.taylor(u).curvature, hu, u, usual),
            self._inhomogeneous(direction, scaled, self._factor * hv),
        )

    def _third(self, direction: str) -> float:
        """D³f[u, v, v] = ⟨u, R²(v)⟩ = ⟨v, R²(v + u) − R²(v − u)⟩/4 and R²(c v) = c² R²(v), for u in this part."""
        point, u = self._objective.at(self._w), self._other(direction)
        plus, minus, alone, scaled = (
            np.float64(point.r2(vector)) for vector in (self._v + u, self._v - u, self._v, self._scaled(FACTOR))
        )
        terms = np.abs(self._v) @ (np.abs(plus) + np.abs(minus)) / 4 + np.abs(u) @ np.abs(alone)
        mixed = abs(_dot(self._v, plus - minus) / 4 - _dot(u, alone)) / max(float(terms), 1e-30)
        return max(mixed, self._inhomogeneous(direction, scaled, self._factor**2 * alone))

    def _other(self, direction: str) -> np.ndarray:
        """A direction u in this part alone, about as long as v there."""
        length = float(np.linalg.norm(self._v)) / np.sqrt(len(self._v))
        drawn = np.random.default_rng(11).standard_normal(len(self._v)) * length
        return self._stand.only(direction, drawn.astype(self._dtype))

    def _scaled(self, factor: float) -> np.ndarray:
        return (self._dtype.type(factor) * self._v).astype(self._dtype)

    @property
    def _factor(self) -> float:
        return float(self._dtype.type(FACTOR))

    def _unequal(self, value: float, vector: np.ndarray, other: np.ndarray, usual: float = 0.0) -> float:
        """|value − ⟨vector, other⟩|, relative to the sizes of the terms of the product or, where they are almost zero,
        to 1/1000 of the usual size or of ‖vector‖ ‖other‖."""
        a, b = np.float64(vector), np.float64(other)
        usual = max(usual, float(np.linalg.norm(a) * np.linalg.norm(b)))
        return _not_nan(abs(value - a @ b) / max(float(np.abs(a) @ np.abs(b)), 1e-3 * usual, 1e-30))

    def _inhomogeneous(self, direction: str, scaled: np.ndarray, expected: np.ndarray) -> float:
        parts = self._stand.parts[direction]
        a, b = (np.concatenate([vector[part] for part in parts]) for vector in (scaled, expected))
        return _distance(a, b) / max(float(np.linalg.norm(b)), 1e-3 * float(np.linalg.norm(expected)), 1e-30)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.float64(a) @ np.float64(b))


def _distance(a: Numbers, b: Numbers) -> float:
    return _not_nan(float(np.linalg.norm(np.float64(a) - np.float64(b))))


def _not_nan(value: float) -> float:
    """The value, or infinity where it is NaN: no tolerance allows that."""
    return float(value) if np.isfinite(value) else float("inf")


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array.astype(dtype) if array.dtype.kind == "f" else array
