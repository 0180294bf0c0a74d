"""Data in, partial sums into the gradient."""

from __future__ import annotations

import numpy as np

from tests.helpers.cuda_cases.common import BATCH, LANES, Case, Setting, case, named, samples


@case("memory.load")
def load_case(s: Setting) -> Case:
    x = s.numbers(BATCH, 45, seed=1)
    feature = np.random.default_rng(1).permutation(np.append(np.arange(45), [-1, -1])).astype(np.int32)
    lanes = samples()
    rows = np.where(feature[:, None] >= 0, x[np.maximum(lanes, ~lanes)].T[feature], 0)
    empty = np.full((47, LANES), np.nan, s.real)
    return Case({"y": empty, "x": x, "samples": lanes, "feature": feature}, {"y": rows}, exact=True)


@case("memory.collect")
def collect_case(s: Setting) -> Case:
    arrays, partial = s.jet(6, 300, seed=1)
    before = s.numbers(310, seed=2)
    out = {f"out{k}": before.copy() for k in s.orders}
    expected = {}
    for k in s.orders:
        expected[f"out{k}"] = before.astype(np.float64)
        expected[f"out{k}"][7:307] += partial.c[k].sum(axis=0)
    given = named("partial", {k: arrays[k] for k in s.orders})
    return Case({**out, **given, "base": 7, "add": 1}, expected, frozenset(out))
