"""Average pooling, concatenation, addition and permutation."""

from __future__ import annotations

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Array, Case, Setting, case, named
from tests.helpers.cuda_cases.select import windows


@case("linear_maps.weighted_sum")
def weighted_sum_case(s: Setting) -> Case:
    window, _ = windows()
    channels = 3
    weight = s.numbers(*window.shape, seed=3)
    arrays, x = s.jet(12 * channels, LANES, seed=1)
    matrix = np.zeros((len(window), 12))
    for p, tap in np.argwhere(window >= 0):
        matrix[p, window[p, tap]] += weight[p, tap]
    y = x.map(lambda c: np.einsum("pq,qcl->pcl", matrix, c.reshape(12, channels, LANES)).reshape(-1, LANES))
    empty, expected = s.outputs("y", y)
    given = named("x", {k: arrays[k] for k in s.orders})
    return Case({**empty, **given, "entry": window, "weight": weight, "channels": channels}, expected)


@case("linear_maps.copy_rows")
def copy_rows_case(s: Setting) -> Case:
    pixels, count, y_step, y_first, x_step, x_first = 5, 3, 7, 2, 4, 1
    arrays, x = s.jet(pixels * x_step, LANES, seed=1)

    def copied(c: Array) -> Array:
        y = np.full((pixels, y_step, LANES), np.nan)
        y[:, y_first : y_first + count] = c.reshape(pixels, x_step, LANES)[:, x_first : x_first + count]
        return y.reshape(-1, LANES)

    empty, expected = s.outputs("y", x.map(copied))
    steps = {"y_step": y_step, "y_first": y_first, "x_step": x_step, "x_first": x_first}
    given = named("x", {k: a for k, a in arrays.items() if k in s.orders})
    return Case({**empty, **given, "pixels": pixels, "count": count, **steps}, expected, exact=True)


@case("linear_maps.add_rows")
def add_rows_case(s: Setting) -> Case:
    arrays, x = s.jet(11, LANES, seed=1)
    before = s.numbers(11, LANES)
    out = {f"y{k}": before.copy() for k in s.orders}
    expected = {f"y{k}": before.astype(np.float64) + x.c[k] for k in s.orders}
    return Case({**out, **named("x", {k: arrays[k] for k in s.orders})}, expected, frozenset(out))


@case("linear_maps.permute_rows")
def permute_rows_case(s: Setting) -> Case:
    arrays, x = s.jet(13, LANES, seed=1)
    order = np.random.default_rng(1).permutation(13).astype(np.int32)
    empty, expected = s.outputs("y", x.map(lambda c: c[order]))
    return Case({**empty, **named("x", {k: arrays[k] for k in s.orders}), "order": order}, expected, exact=True)
