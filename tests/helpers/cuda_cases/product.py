"""Products of two values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Array, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet

PIXELS, CHANNELS, SUM_PIXELS, SUM_CHANNELS = 3, 5, 2, 3


@case("product.products")
def products_case(s: Setting) -> Case:
    """Sums over windows of pixels and channels: the engine has those over all and over one. b has one pixel."""
    pixels, channels = PIXELS + SUM_PIXELS - 1, CHANNELS + SUM_CHANNELS - 1
    arrays, a = s.jet(pixels * channels, LANES, seed=1)
    others, b = replace(s, levels=s.options["others"]).jet(channels, LANES, seed=2)

    def summed(c: Array) -> Array:
        parts = [c[i : i + PIXELS, j : j + CHANNELS] for i in range(SUM_PIXELS) for j in range(SUM_CHANNELS)]
        return np.asarray(np.sum(parts, axis=0).reshape(-1, LANES))

    repeated = b.map(lambda c: np.broadcast_to(c, (pixels, channels, LANES)))
    y: Jet = a.map(lambda c: c.reshape(pixels, channels, LANES)) * repeated
    empty, expected = s.outputs("y", y.map(summed))
    sums = {"channels": CHANNELS, "sum_pixels": SUM_PIXELS, "sum_channels": SUM_CHANNELS}
    steps = {"a_pixel": channels, "a_channel": 1, "b_pixel": 0, "b_channel": 1}
    return Case({**empty, **named("a", arrays), **named("b", others), **sums, **steps}, expected)
