"""ReLU and max pooling."""

from __future__ import annotations

import numpy as np

from tests.helpers.cuda_cases.common import LANES, Array, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet


def special(x: Array) -> Array:
    """With zeros of both signs, infinities and NaN in it."""
    x.ravel()[:7] = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0]
    return x


@case("select.rectify")
def rectify_case(s: Setting) -> Case:
    arrays, x = s.jet(11, LANES, seed=1)
    mask = special(s.numbers(11, LANES, seed=2))
    slope = 0.25
    empty, expected = s.outputs("y", x * np.where(mask <= 0, slope, 1.0))
    return Case(
        {**empty, **named("x", {k: arrays[k] for k in s.orders}), "mask": mask, "slope": slope}, expected, exact=True
    )


def windows() -> tuple[Array, Array]:
    """Overlapping windows 3 × 2 with padding on an image 4 × 3: input pixels of each, and windows that hold each."""
    window = np.full((4 * 4, 6), -1, np.int32)
    for p, (r, c) in enumerate(np.ndindex(4, 4)):
        for tap, (a, b) in enumerate(np.ndindex(3, 2)):
            row, column = r + a - 1, c + b - 1
            if 0 <= row < 4 and 0 <= column < 3:
                window[p, tap] = row * 3 + column
    owners = [np.flatnonzero((window == pixel).any(axis=1)) for pixel in range(12)]
    owner = np.full((12, max(map(len, owners))), -1, np.int32)
    for pixel, those in enumerate(owners):
        owner[pixel, : len(those)] = those
    return window, owner


def _pooled(s: Setting, relu: bool) -> tuple[dict[int, Array], Jet, Array, Array]:
    """Input arrays, their series (pixel, channel, lane), windows, and what each window chooses."""
    channels = 3
    window, _ = windows()
    arrays, x = s.jet(12 * channels, LANES, seed=1)
    levels = np.round(2 * s.numbers(12 * channels, LANES, seed=1)) / 2  # many equal numbers
    if 0 in arrays:
        levels[5, :3], levels[9, 1] = np.nan, -np.inf
        arrays[0][...] = levels
    shape = (12, channels, LANES)
    series = Jet(tuple(np.reshape(np.broadcast_to(c, (12 * channels, LANES)), shape) for c in x.c))  # type: ignore[arg-type]
    picked = levels.astype(np.float64).reshape(shape)
    chosen = np.full((len(window), channels, LANES), -1, np.int32)
    for p, taps in enumerate(window):
        for channel, lane in np.ndindex(channels, LANES):
            inside = taps[taps >= 0]
            values = picked[inside, channel, lane]
            best = np.flatnonzero(np.isnan(values))[-1] if np.isnan(values).any() else int(np.argmax(values))
            if not (relu and values[best] <= 0):
                chosen[p, channel, lane] = inside[best]
    return arrays, Jet((picked, series.c[1], series.c[2])), window, chosen


@case("select.pool")
def pool_case(s: Setting) -> Case:
    arrays, x, window, chosen = _pooled(s, relu=True)
    where = np.maximum(chosen, 0)
    y = x.map(lambda c: np.where(chosen >= 0, np.take_along_axis(c, where, 0), 0).reshape(-1, LANES))
    empty, expected = s.outputs("y", y)
    flat = chosen.reshape(-1, LANES)
    if 0 in s.orders:
        expected["chosen"], keep = flat, np.full_like(flat, -7)
    else:
        keep = flat.copy()
    given = named("x", {k: arrays[k] for k in s.orders})
    return Case({**empty, **given, "chosen": keep, "window": window, "channels": 3, "relu": 1}, expected, exact=True)


@case("select.pool_back")
def pool_back_case(s: Setting) -> Case:
    _, _, window, chosen = _pooled(s, relu=True)
    _, owner = windows()
    arrays, g = s.jet(len(window) * 3, LANES, seed=2)

    def back(c: Array) -> Array:
        h = np.zeros((12, 3, LANES))
        for p, channel, lane in np.argwhere(chosen >= 0):
            h[chosen[p, channel, lane], channel, lane] += c.reshape(len(window), 3, LANES)[p, channel, lane]
        return h.reshape(-1, LANES)

    empty, expected = s.outputs("h", g.map(back))
    given = named("g", {k: arrays[k] for k in s.orders})
    return Case({**empty, **given, "chosen": chosen.reshape(-1, LANES).copy(), "owner": owner, "channels": 3}, expected)
