"""Softmax and log-softmax."""

from __future__ import annotations

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet, softmax

PIXELS, CLASSES = 2, 11


def by_class(series: Jet) -> Jet:
    """(pixel, class, lane)."""
    return series.map(lambda c: c.reshape(PIXELS, CLASSES, LANES))


def flat(series: Jet) -> Jet:
    return series.map(lambda c: c.reshape(PIXELS * CLASSES, LANES))


@case("softmax.forward")
def softmax_case(s: Setting) -> Case:
    arrays, x = s.jet(PIXELS * CLASSES, LANES, seed=1)
    p = flat(softmax(by_class(x)))
    y = flat(softmax(by_class(x)).log()) if s.options["log"] else p
    empty, expected = s.outputs("y", y)
    kept = np.full(p.c[0].shape, np.nan, s.real) if 0 in s.orders else p.c[0].astype(s.real)
    arguments = {**empty, **named("x", {k: a for k, a in arrays.items() if k > 0 or 0 in s.orders}), "p": kept}
    if 0 in s.orders:
        expected["p"] = p.c[0]
        if not s.options["log"]:
            arguments["p"] = arguments["y0"]
    return Case({**arguments, "pixels": PIXELS, "rows": CLASSES}, expected)


@case("softmax.backward")
def softmax_back_case(s: Setting) -> Case:
    _, x = s.jet(PIXELS * CLASSES, LANES, seed=1)
    gradients, g = s.full().jet(PIXELS * CLASSES, LANES, seed=2)
    p, f = softmax(by_class(x)), by_class(g)
    y = flat(p.log() if s.options["log"] else p)
    h = f - p * f.sum(1) if s.options["log"] else p * (f - (p * f).sum(1))
    empty, expected = s.outputs("h", flat(h))
    layer = {f"y{k}": y.c[k].astype(s.real) for k in (1, 2) if k <= max(s.orders)}
    arguments = {**empty, **named("g", gradients), **layer, "p": flat(p).c[0].astype(s.real)}
    return Case({**arguments, "pixels": PIXELS, "rows": CLASSES}, expected)
