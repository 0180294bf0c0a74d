"""Products, and the gradients of their parameters."""

from __future__ import annotations

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet
from tests.helpers.cuda_requests import EVERY


@case("bilinear.products")
def products_case(s: Setting) -> Case:
    large = s.options["tile"] == "large"
    groups, pixels, rows, fan, lanes = (1, 1, 67, 18, 96) if large else (2, 2, 19, 21, 32)
    taps, c_rows, b_rows = 3, groups * rows + 2, 40
    adjoint = s.options["adjoint"]
    rng = np.random.default_rng(1)
    source = rng.integers(-1, b_rows // groups, size=(pixels, fan)).astype(np.int32)
    target = rng.permutation(c_rows)[: groups * rows].astype(np.int32)
    i_step, inner, outer_step = (taps, taps, rows * taps) if adjoint else (fan, fan, 0)
    base, group_base = 5, rows * fan
    i, j = np.arange(rows)[:, None], np.arange(fan)
    place = i * i_step + (j // inner * outer_step + j % inner if adjoint else j)
    bias_at = base + groups * group_base
    arrays, b = s.jet(b_rows, lanes, seed=2)
    w, v = s.numbers(bias_at + groups * rows, seed=3), s.numbers(bias_at + groups * rows, seed=4)
    weights = Jet((w.astype(np.float64), v.astype(np.float64), np.zeros(w.size)))
    gate = {False: 1, True: 2}[adjoint]  # the forward product has a ReLU, the adjoint a mask
    mask = s.numbers(pixels * c_rows, lanes, seed=6)
    series = [np.full((pixels * c_rows, lanes), np.nan) for _ in EVERY]
    for q in range(groups):
        a = weights.map(lambda c, q=q: c[base + q * group_base + place])  # type: ignore[misc]
        bias = weights.map(lambda c, q=q: c[bias_at + q * rows + np.arange(rows)][:, None])  # type: ignore[misc]
        for p in range(pixels):
            there = source[p] + q * (b_rows // groups)
            x = b.map(lambda c, p=p, there=there: np.where(source[p][:, None] >= 0, c[there], 0))  # type: ignore[misc]
            y = (Jet(tuple(c[:, :, None] for c in a.c)) * Jet(tuple(c[None] for c in x.c))).map(
                lambda c: c.sum(axis=1)
            ) + bias
            to = p * c_rows + target[q * rows : (q + 1) * rows]
            passes = (mask[to] if adjoint else y.c[0]) > 0
            for k in EVERY:
                series[k][to] = np.where(passes, y.c[k], 0)
    empty, expected = s.outputs("c", Jet((series[0], series[1], series[2])))
    given = {"c0": series[0].astype(s.real)} if 0 not in s.orders else {}
    numbers = {
        "gate": gate,
        "group_rows": rows,
        "groups": groups,
        "group_step": b_rows // groups,
        "c_rows": c_rows,
        "base": base,
        "group_base": group_base,
        "i_step": i_step,
        "inner": inner,
        "outer_step": outer_step,
        "bias_at": bias_at,
    }
    tables = {"source": source, "target": target, "mask": mask}
    return Case({**empty, **given, **named("b", arrays), "w": w, "v": v, **tables, **numbers}, expected)


@case("bilinear.weight_gradient")
def weight_gradient_case(s: Setting) -> Case:
    large = s.options["tile"] == "large"
    groups, pixels, rows, fan, lanes, slices = (1, 3, 66, 70, 32, 2) if large else (2, 2, 18, 35, 32, 2)
    d_rows, x_rows = groups * rows + 1, 40
    source = np.random.default_rng(1).integers(-1, x_rows // groups, size=(pixels, fan)).astype(np.int32)
    deltas, d = s.full().jet(pixels * d_rows, lanes, seed=2)
    inputs, x = s.jet(x_rows, lanes, seed=3)
    depth = 64 // np.dtype(s.real).itemsize  # lanes of a step
    total = [np.zeros((slices, groups * rows, fan)) for _ in EVERY]
    steps = [(p, lane) for p in range(pixels) for lane in range(0, lanes, depth)]
    for piece in range(slices):
        for p, lane in steps[len(steps) * piece // slices : len(steps) * (piece + 1) // slices]:
            for q in range(groups):
                one = d.map(lambda c, p=p, q=q, lane=lane: c[p * d_rows + q * rows :][:rows, None, lane : lane + depth])  # type: ignore[misc]
                there = source[p] + q * (x_rows // groups)
                other = x.map(
                    lambda c, p=p, there=there, lane=lane: np.where(source[p][:, None] >= 0, c[there], 0)[  # type: ignore[misc]
                        None, :, lane : lane + depth
                    ]
                )
                product = (one * other).map(lambda c: c.sum(axis=2))
                for k in EVERY:
                    total[k][piece, q * rows : (q + 1) * rows] += product.c[k]
    flat = [t.reshape(slices, -1) for t in total]
    empty, expected = s.outputs("partial", Jet((flat[0], flat[1], flat[2])))
    numbers = {"group_rows": rows, "groups": groups, "group_step": x_rows // groups, "d_rows": d_rows}
    return Case({**empty, **named("d", deltas), **named("x", inputs), "source": source, **numbers}, expected)


@case("bilinear.bias_gradient")
def bias_gradient_case(s: Setting) -> Case:
    rows, pixels, base, size = 3, 7, 2, 6
    arrays, d = s.jet(pixels * rows, LANES, seed=1)
    before = s.numbers(size)
    sums = d.map(lambda c: c.reshape(pixels, rows, LANES).sum(axis=(0, 2)))
    wanted = {f"out{k}": before.astype(np.float64) for k in s.orders}
    for k in s.orders:
        wanted[f"out{k}"][base : base + rows] += sums.c[k]
    out = {f"out{k}": before.copy() for k in s.orders}
    arguments = {**out, **named("d", {k: arrays[k] for k in s.orders}), "base": base, "rows": rows}
    return Case({**arguments, "pixels": pixels, "add": 1}, wanted, frozenset(out))
