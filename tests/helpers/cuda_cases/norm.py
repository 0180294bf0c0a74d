"""Normalisation of each sample by statistics of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Array, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet

PIXELS, SETS, ROWS, EPS = 3, 2, 5, 0.125
CHANNELS = SETS * ROWS
(MEAN, ROOT, CUBE, VARIANCE, TOTAL, PRODUCT), FIELDS = range(6), 6
SIZES = {"sets": SETS, "rows": ROWS, "blocks": PIXELS, "step": CHANNELS}


@dataclass
class Standardised:
    """Groups of channels written out in series: x, g (pixel, set, row, lane), and a number per set and lane."""

    s: Setting

    def __post_init__(self) -> None:
        s = self.s
        self.arrays, x = s.jet(PIXELS * CHANNELS, LANES, seed=1)
        self.gradients, g = s.full().jet(PIXELS * CHANNELS, LANES, seed=2)
        self.x, self.g = (one.map(lambda c: c.reshape(PIXELS, SETS, ROWS, LANES)) for one in (x, g))
        share = 1 / (PIXELS * ROWS)
        centres = float(s.options["centres"])
        self.mean = self.total(self.x) * share * centres
        self.c = self.x - self.mean
        self.variance = self.total(self.c * self.c) * share
        self.r = (self.variance + EPS).power(-0.5)
        self.t = self.r * self.r * self.r
        self.G, self.D = self.total(self.g), self.total(self.g * self.c)
        self.h = self.r * self.g - self.r * self.G * share * centres - self.t * self.D * share * self.c

    def total(self, x: Jet) -> Jet:
        """Sums over the pixels and rows of a set."""
        return x.map(lambda c: c.sum(axis=(0, 2), keepdims=True))

    def tables(self, orders: Iterable[int], *fields: int) -> dict[str, Array]:
        """The numbers of the sets with these fields, NaN elsewhere."""
        of = {
            MEAN: self.mean,
            ROOT: self.r,
            CUBE: self.t,
            VARIANCE: self.variance,
            TOTAL: self.G,
            PRODUCT: self.D,
        }
        made = {}
        for k in orders:
            table = np.full((SETS, FIELDS, LANES), np.nan, self.s.real)
            for which in fields:
                table[:, which] = of[which].c[k].reshape(SETS, LANES)
            made[f"table{k}"] = table.reshape(SETS * FIELDS, LANES)
        return made

    def flat(self, y: Jet) -> Jet:
        return y.map(lambda c: c.reshape(PIXELS * CHANNELS, LANES))

    @property
    def lower(self) -> list[int]:
        return [k for k in range(max(self.s.orders)) if k not in self.s.orders]


FORWARD = (MEAN, ROOT, CUBE, VARIANCE)


@case("norm.standardise")
def standardise_case(s: Setting) -> Case:
    n = Standardised(s)
    empty, expected = s.outputs("y", n.flat(n.r * n.c))
    expected.update(n.tables(s.orders, *FORWARD))
    tables = {**n.tables(n.lower, *FORWARD), **n.tables(s.orders)}
    return Case({**empty, **named("x", n.arrays), **tables, **SIZES, "eps": EPS}, expected)


@case("norm.standardise_backward")
def standardise_back_case(s: Setting) -> Case:
    n = Standardised(s)
    empty, expected = s.outputs("h", n.flat(n.h))
    given = n.tables(s.orders, *FORWARD)
    for k in s.orders:
        expected.update(n.tables([k], *FORWARD, *((TOTAL, PRODUCT) if k < 2 else ())))  # order 2's are needed by nobody
    known = n.tables(n.lower, *FORWARD, TOTAL, PRODUCT)
    arguments = {**empty, **named("x", n.arrays), **named("g", n.gradients), **known, **given}
    return Case({**arguments, **SIZES}, expected, frozenset(given))
