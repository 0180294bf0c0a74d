"""The parts that the cases of all families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.helpers.cuda_cases.series import Array, Jet
from tests.helpers.cuda_requests import EVERY, Orders

LANES = 64  # of a batch of BATCH samples: the last lanes are copies of the last sample that do not count
BATCH = 41


@dataclass
class Case:
    """Arguments of a launch, and what its outputs must be; outputs hold NaN before."""

    arguments: dict[str, Any]
    expected: dict[str, Array] = field(default_factory=dict)
    grown: frozenset[str] = frozenset()  # outputs that are added to: their content may be read
    exact: bool = False  # no rounding at all


@dataclass(frozen=True)
class Setting:
    """The precision and the options of the kernel that a case is made for."""

    real: Any
    orders: Orders
    levels: Orders
    options: dict[str, Any]

    def numbers(self, *shape: int, seed: int = 0) -> Array:
        """Random numbers that are the same in float32 and float64."""
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(self.real)

    def jet(self, *shape: int, seed: int = 0) -> tuple[dict[int, Array], Jet]:
        """The arrays of an input at the orders that it has, and its series."""
        arrays = {k: self.numbers(*shape, seed=10 * seed + k) for k in self.levels}
        c = [arrays[k].astype(np.float64) if k in arrays else np.zeros(shape) for k in EVERY]
        return {k: array for k, array in arrays.items() if k <= max(self.orders)}, Jet((c[0], c[1], c[2]))

    def full(self) -> Setting:
        """The same for an input that has every order: a gradient."""
        return Setting(self.real, self.orders, EVERY, self.options)

    def outputs(self, name: str, series: Jet | None = None, shape: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays for the orders of an output, and what they must be."""
        shape = np.shape(series.c[0]) if series is not None else shape
        empty = {f"{name}{k}": np.full(shape, np.nan, self.real) for k in self.orders}
        wanted = series.c if series is not None else (0, 0, 0)
        return empty, {f"{name}{k}": np.broadcast_to(wanted[k], shape) for k in self.orders}

    def vector(self, values: Iterable[float]) -> Array:
        return np.array(list(values), self.real)


def named(name: str, arrays: dict[int, Array]) -> dict[str, Array]:
    return {f"{name}{k}": array for k, array in arrays.items()}


CASES: dict[str, Callable[[Setting], Case]] = {}


def case(name: str) -> Callable[[Callable[[Setting], Case]], Callable[[Setting], Case]]:
    def declare(make: Callable[[Setting], Case]) -> Callable[[Setting], Case]:
        CASES[name] = make
        return make

    return declare


def samples() -> Array:
    """Samples in some order, and copies of the last one that do not count."""
    order = np.random.default_rng(5).permutation(BATCH)
    return np.concatenate([order, np.full(LANES - BATCH, ~order[-1])]).astype(np.int32)
