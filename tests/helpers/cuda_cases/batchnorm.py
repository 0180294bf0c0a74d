"""Batch normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tests.helpers.cuda_cases.common import BATCH, LANES, Array, Case, Setting, case, named, samples
from tests.helpers.cuda_cases.series import Jet

CHANNELS, IMAGE, EPS, GAMMA_AT, BETA_AT = 3, 5, 0.125, 1, 4
(MEAN, ROOT, SCALE, CUBE, SHIFT, SLOPE, VARIANCE, COUNT, TOTAL, PRODUCT), FIELDS = range(10), 10


@dataclass
class Normalisation:
    """Batch normalisation written out in series: x, g (pixel, channel, lane) and one number per channel."""

    s: Setting

    def __post_init__(self) -> None:
        s = self.s
        self.arrays, x = s.jet(IMAGE * CHANNELS, LANES, seed=1)
        self.gradients, g = s.full().jet(IMAGE * CHANNELS, LANES, seed=2)
        self.w, self.v = s.numbers(8, seed=3), s.numbers(8, seed=4)
        self.counts = samples() >= 0
        image = (IMAGE, CHANNELS, LANES)
        self.x, self.g = x.map(lambda c: c.reshape(image)), g.map(lambda c: c.reshape(image))
        parameters = Jet((self.w.astype(np.float64), self.v.astype(np.float64), np.zeros(8)))
        self.gamma = parameters.map(lambda c: c[GAMMA_AT : GAMMA_AT + CHANNELS, None])
        self.beta = parameters.map(lambda c: c[BETA_AT : BETA_AT + CHANNELS, None])
        self.n = IMAGE * BATCH
        self.mean = self.total(self.x) * (1 / self.n)
        self.c = self.x - self.mean
        self.variance = self.total(self.c * self.c) * (1 / self.n)
        self.r = (self.variance + EPS).power(-0.5)
        self.q = self.gamma * self.r
        self.t = self.q * self.r * self.r
        self.G, self.D = self.total(self.g), self.total(self.g * self.c)
        self.a, self.b = self.q * self.G * (1 / self.n), self.t * self.D * (1 / self.n)

    def total(self, x: Jet) -> Jet:
        """Sums over pixels and lanes that count, (channel, 1)."""
        return x.map(lambda c: (c * self.counts).sum(axis=(0, 2))[:, None])

    def tables(self, orders: Iterable[int], *fields: int) -> dict[str, Array]:
        """Channel tables with these fields, NaN elsewhere."""
        of = {
            MEAN: self.mean,
            ROOT: self.r,
            SCALE: self.q,
            CUBE: self.t,
            SHIFT: self.a,
            SLOPE: self.b,
            VARIANCE: self.variance,
            TOTAL: self.G,
            PRODUCT: self.D,
        }
        made = {f"table{k}": np.full((FIELDS, CHANNELS), np.nan, self.s.real) for k in orders}
        for k in orders:
            for which in fields:
                made[f"table{k}"][which] = of[which].c[k][:, 0] if which != COUNT else self.n
        return made

    def flat(self, y: Jet) -> Jet:
        return y.map(lambda c: c.reshape(IMAGE * CHANNELS, LANES))

    @property
    def lower(self) -> list[int]:
        return [k for k in range(max(self.s.orders)) if k not in self.s.orders]


STATISTICS = (MEAN, ROOT, SCALE, CUBE, VARIANCE)


@case("batchnorm.statistics")
def statistics_case(s: Setting) -> Case:
    n = Normalisation(s)
    known, empty = n.tables(n.lower, *STATISTICS), n.tables(s.orders)
    expected = {}
    for k in s.orders:
        fields = [field for field in STATISTICS if k < 2 or field != VARIANCE]
        expected.update(n.tables([k], *fields, *([COUNT] if k == 0 else [])))
    arguments = {**known, **empty, **named("x", n.arrays), "w": n.w, "v": n.v, "samples": samples()}
    numbers = {"gamma_at": GAMMA_AT, "eps": EPS, "pixels": IMAGE, "channels": CHANNELS}
    return Case({**arguments, **numbers}, expected)


@case("batchnorm.frozen")
def frozen_case(s: Setting) -> Case:
    mean, variance = s.numbers(CHANNELS, seed=5), np.abs(s.numbers(CHANNELS, seed=6))
    w, v = s.numbers(8, seed=3), s.numbers(8, seed=4)
    r = (variance.astype(np.float64) + EPS) ** -0.5
    gamma = [*(one[GAMMA_AT : GAMMA_AT + CHANNELS].astype(np.float64) for one in (w, v)), np.zeros(CHANNELS)]
    tables = {f"table{k}": np.full((FIELDS, CHANNELS), np.nan, s.real) for k in s.orders}
    expected = {}
    for k in s.orders:
        table = expected[f"table{k}"] = np.zeros((FIELDS, CHANNELS))
        table[SCALE], table[CUBE] = gamma[k] * r, gamma[k] * r**3
        if k == 0:
            table[MEAN], table[ROOT] = mean, r
    lower = {f"table{k}": np.zeros((FIELDS, CHANNELS), s.real) for k in range(max(s.orders)) if k not in s.orders}
    for k in range(max(s.orders)):
        if k not in s.orders:
            lower[f"table{k}"][SCALE] = gamma[k] * r
            lower[f"table{k}"][ROOT] = r if k == 0 else 0
    arguments = {**tables, **lower, "mean": mean, "variance": variance, "w": w, "v": v}
    return Case({**arguments, "gamma_at": GAMMA_AT, "eps": EPS}, expected, frozenset(tables))


@case("batchnorm.normalise")
def normalise_case(s: Setting) -> Case:
    n = Normalisation(s)
    empty, expected = s.outputs("y", n.flat(n.q * n.c + n.beta))
    tables = n.tables(range(max(s.orders) + 1), MEAN, SCALE)
    arguments = {**empty, **named("x", n.arrays), **tables, "w": n.w, "v": n.v}
    return Case({**arguments, "beta_at": BETA_AT, "channels": CHANNELS}, expected)


@case("batchnorm.gradient_statistics")
def gradient_statistics_case(s: Setting) -> Case:
    n = Normalisation(s)
    known = n.tables(n.lower, *STATISTICS, COUNT, TOTAL, PRODUCT)
    given = n.tables(s.orders, *STATISTICS, COUNT)
    expected = {}
    for k in s.orders:
        sums = (TOTAL, PRODUCT) if k < 2 else ()  # order 2's are needed by nobody
        expected.update(n.tables([k], *STATISTICS, COUNT, SHIFT, SLOPE, *sums))
    before = s.numbers(8, seed=9)
    out = {f"out{k}": before.copy() for k in s.orders}
    gamma = n.r * n.D
    for k in s.orders:
        expected[f"out{k}"] = before.astype(np.float64)
        expected[f"out{k}"][GAMMA_AT : GAMMA_AT + CHANNELS] += gamma.c[k][:, 0]
        expected[f"out{k}"][BETA_AT : BETA_AT + CHANNELS] += n.G.c[k][:, 0]
    numbers = {"gamma_at": GAMMA_AT, "beta_at": BETA_AT, "add": 1, "pixels": IMAGE, "channels": CHANNELS}
    arguments = {**known, **given, **named("x", n.arrays), **named("g", n.gradients), **out, "samples": samples()}
    return Case({**arguments, **numbers}, expected, frozenset({*given, *out}))


@case("batchnorm.backward")
def normalise_back_case(s: Setting) -> Case:
    n = Normalisation(s)
    h = n.flat((n.q * n.g - n.a - n.b * n.c) * n.counts.astype(np.float64))
    empty, expected = s.outputs("h", h)
    tables = n.tables(range(max(s.orders) + 1), MEAN, SCALE, SHIFT, SLOPE)
    arguments = {**empty, **named("x", n.arrays), **named("g", n.gradients), **tables, "samples": samples()}
    return Case({**arguments, "channels": CHANNELS}, expected)
