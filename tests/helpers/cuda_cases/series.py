"""Truncated power series in the direction's parameter, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Jet:
    """a(r) = c[0] + c[1] r + c[2] r² + O(r³), elementwise on arrays of float64."""

    c: tuple[Any, Any, Any]

    @classmethod
    def of(cls, value: Any) -> Jet:
        return value if isinstance(value, Jet) else cls((np.asarray(value, np.float64), 0.0, 0.0))

    def map(self, linear: Callable[[Any], Any]) -> Jet:
        """A linear map of the arrays, for each coefficient."""
        return Jet(tuple(linear(np.broadcast_to(c, np.shape(self.c[0]))) for c in self.c))

    def __add__(self, other: Any) -> Jet:
        return Jet(tuple(a + b for a, b in zip(self.c, Jet.of(other).c, strict=True)))

    def __neg__(self) -> Jet:
        return Jet((-self.c[0], -self.c[1], -self.c[2]))

    def __sub__(self, other: Any) -> Jet:
        return self + -Jet.of(other)

    def __mul__(self, other: Any) -> Jet:
        a, b = self.c, Jet.of(other).c
        return Jet((a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + a[1] * b[1] + a[2] * b[0]))

    __rmul__ = __mul__

    def through(self, f: Any, f1: Any, f2: Any) -> Jet:
        """A function of this series, given itself and its two derivatives at c[0]."""
        return Jet((f, f1 * self.c[1], f1 * self.c[2] + f2 * self.c[1] * self.c[1] / 2))

    def exp(self) -> Jet:
        e = np.exp(self.c[0])
        return self.through(e, e, e)

    def log(self) -> Jet:
        return self.through(np.log(self.c[0]), 1 / self.c[0], -1 / self.c[0] ** 2)

    def power(self, a: float) -> Jet:
        x = self.c[0]
        return self.through(x**a, a * x ** (a - 1), a * (a - 1) * x ** (a - 2))

    def sum(self, axis: Any = None) -> Jet:
        return self.map(lambda c: np.sum(c, axis, keepdims=True))


def softmax(z: Jet) -> Jet:
    e = (z - z.c[0].max(axis=1, keepdims=True)).exp()
    return e * e.sum(1).power(-1)


def scalars(of: Callable[..., Any], x: Array, *parameters: float) -> list[Array]:
    """σ, σ′, σ″, σ‴ in float64."""
    rows = [of(float(value), *parameters) for value in x.ravel()]
    return [np.reshape(column, x.shape) for column in zip(*rows, strict=True)]
