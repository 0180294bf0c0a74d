"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.cuda_cases.common import BATCH, LANES, Array, Case, Setting, case, named, samples
from tests.helpers.cuda_cases.series import Jet, softmax
from tests.helpers.cuda_cases.softmax import CLASSES, PIXELS, by_class, flat


def _targets(s: Setting) -> dict[str, Any]:
    """Arguments of every loss besides its targets; a weight of 0 is among the weights."""
    weight = np.abs(s.numbers(BATCH, PIXELS, seed=7))
    weight[3, 0] = 0
    return {"weight": weight, "samples": samples(), "scale": s.vector([0.125]), "pixels": PIXELS, "rows": CLASSES}


def _omega(common: dict[str, Any]) -> Array:
    """κ ω of (pixel, 1, lane), 0 for padding."""
    lanes = common["samples"]
    omega = common["scale"][0] * common["weight"].astype(np.float64)[np.maximum(lanes, ~lanes)] * (lanes >= 0)[:, None]
    return np.asarray(omega.T[:, None])


def _by_lane(targets: Array) -> Array:
    """Targets (sample, class · pixel) as (pixel, class, lane)."""
    lanes = samples()
    dense = targets.astype(np.float64).reshape(BATCH, CLASSES, PIXELS)
    return np.moveaxis(dense[np.maximum(lanes, ~lanes)], 0, 2).swapaxes(0, 1)


def _loss(s: Setting, common: dict[str, Any], arrays: dict[int, Array], g: Jet, e0: Array, z: Jet) -> Case:
    """The case of a loss with seed g and energy e0, both (pixel, class, lane)."""
    empty, expected = s.outputs("g", flat(g))
    known = {f"g{k}": flat(g).c[k].astype(s.real) for k in range(max(s.orders)) if k not in s.orders}
    along = [e0, g.c[0] * z.c[1], g.c[1] * z.c[1] / 2 + g.c[0] * z.c[2]]
    blocks = [e.reshape(PIXELS, CLASSES, LANES // 32, 32).sum(axis=(1, 3)).ravel() for e in along]
    energies, wanted = s.outputs("energy", Jet((blocks[0], blocks[1], blocks[2])))
    return Case({**empty, **known, **energies, **named("z", arrays), **common}, {**expected, **wanted})


@case("loss.cross_entropy")
def cross_entropy_case(s: Setting) -> Case:
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common = _targets(s)
    omega, p = _omega(common), softmax(by_class(z))
    lanes = common["samples"]
    if s.options["dense"]:
        dense = np.abs(s.numbers(BATCH, CLASSES * PIXELS, seed=8))
        dense[5] = 0
        q = _by_lane(dense) * (lanes >= 0) * common["scale"][0]
        targets = {"dense": dense, "labels": np.zeros((1, 1), np.int32)}
    else:
        labels = np.random.default_rng(2).integers(0, CLASSES, size=(BATCH, PIXELS)).astype(np.int32)
        mine = labels[np.maximum(lanes, ~lanes)].T  # (pixel, lane)
        q = omega * (np.arange(CLASSES)[None, :, None] == mine[:, None])
        targets = {"labels": labels}
    kept = np.full((PIXELS * CLASSES, LANES), np.nan, s.real) if 0 in s.orders else flat(p).c[0].astype(s.real)
    made = _loss(s, {**common, **targets, "p": kept}, arrays, p * omega - q, -q * np.log(p.c[0]), by_class(z))
    if 0 in s.orders:
        made.expected["p"] = flat(p).c[0]
    if max(s.orders) > 0 and 0 not in s.orders:
        del made.arguments["z0"]
    return made


@case("loss.negative_log_likelihood")
def nll_case(s: Setting) -> Case:
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common = _targets(s)
    lanes, omega = common["samples"], _omega(common)
    labels = np.random.default_rng(2).integers(0, CLASSES, size=(BATCH, PIXELS)).astype(np.int32)
    mine = labels[np.maximum(lanes, ~lanes)].T
    g = Jet.of(-omega * (np.arange(CLASSES)[None, :, None] == mine[:, None]))
    g = Jet((g.c[0], 0 * g.c[0], 0 * g.c[0]))
    return _loss(s, {**common, "labels": labels}, arrays, g, g.c[0] * by_class(z).c[0], by_class(z))


@case("loss.squared_error")
def squared_error_case(s: Setting) -> Case:
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common = _targets(s)
    dense = s.numbers(BATCH, CLASSES * PIXELS, seed=8)
    apart = by_class(z) - _by_lane(dense)
    omega = _omega(common)
    return _loss(s, {**common, "dense": dense}, arrays, apart * (2 * omega), omega * apart.c[0] ** 2, by_class(z))


@case("loss.separable")
def separable_case(s: Setting) -> Case:
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common, of = _targets(s), s.options["of"]
    dense = np.abs(s.numbers(BATCH, CLASSES * PIXELS, seed=8))
    a = (0.75,) * s.options["count"]
    e, d1, d2, d3 = np.vectorize(of, otypes=[float] * 4)(by_class(z).c[0], _by_lane(dense), *a)
    omega, g = _omega(common), by_class(z).through(d1, d2, d3)
    numbers = {**common, "dense": dense, "a": (*a, 0.0)[0]}
    return _loss(s, numbers, arrays, g * omega, omega * e, by_class(z))


@case("loss.binary_cross_entropy")
def bce_case(s: Setting) -> Case:
    """Numbers that count for a one and for a zero, b and c; some count for nothing."""
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common = {name: value for name, value in _targets(s).items() if name != "weight"}
    dense = np.random.default_rng(8).random((BATCH, 2, CLASSES * PIXELS)).astype(np.float32).astype(s.real)
    dense[:, :, 1] = 0
    factor = common["scale"][0] * (common["samples"] >= 0)  # κ of each lane, 0 for padding
    b, c, x = _by_lane(dense[:, 0]) * factor, _by_lane(dense[:, 1]) * factor, by_class(z)
    sigmoid = (Jet.of(np.ones_like(x.c[0])) + (-x).exp()).power(-1)
    energy = b * np.logaddexp(0, -x.c[0]) + c * np.logaddexp(0, x.c[0])
    return _loss(s, {**common, "dense": dense.reshape(BATCH, -1)}, arrays, sigmoid * (b + c) - b, energy, x)


@case("loss.correct")
def correct_case(s: Setting) -> Case:
    z = np.round(s.numbers(5, LANES, seed=1))  # with ties
    labels = np.random.default_rng(2).integers(0, 5, size=(BATCH, 1)).astype(np.int32)
    lanes = samples()
    right = (z.argmax(axis=0) == labels[np.maximum(lanes, ~lanes), 0]) & (lanes >= 0)
    hits = np.full(LANES // 32, -1, np.int32)
    arguments = {"hits": hits, "z": z, "labels": labels, "samples": lanes}
    return Case(arguments, {"hits": right.reshape(-1, 32).sum(axis=1)}, exact=True)
