"""Every CUDA kernel: small ragged arguments for each of its specialisations, and what must come out.

What must come out is computed in float64 with ``Jet``, truncated power series in the direction's parameter, on which
the layers are written as plain mathematics: no rule of an order 1 or 2 is repeated here. Which specialisations there
are is known to ``cuda_requests``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rop.layers import elementwise
from tests.helpers.cases import bell
from tests.helpers.cuda_requests import EVERY, Options, Orders, steep

Array = np.ndarray[Any, np.dtype[Any]]
LANES = 64  # of a batch of BATCH samples: the last lanes are copies of the last sample that do not count
BATCH = 41


# ------------------------------------------------------------------------------------------------------------------
# power series
# ------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Jet:
    """a(r) = c[0] + c[1] r + c[2] r² + O(r³), elementwise on arrays of float64."""

    c: tuple[Any, Any, Any]

    @classmethod
    def of(cls, value: Any) -> Jet:
        return value if isinstance(value, Jet) else cls((np.asarray(value, np.float64), 0.0, 0.0))

    def map(self, linear: Callable[[Any], Any]) -> Jet:
        """A linear map of the arrays, for each coefficient."""
        return Jet(tuple(linear(np.broadcast_to(c, np.shape(self.c[0]))) for c in self.c))

    def __add__(self, other: Any) -> Jet:
        return Jet(tuple(a + b for a, b in zip(self.c, Jet.of(other).c, strict=True)))

    def __neg__(self) -> Jet:
        return Jet((-self.c[0], -self.c[1], -self.c[2]))

    def __sub__(self, other: Any) -> Jet:
        return self + -Jet.of(other)

    def __mul__(self, other: Any) -> Jet:
        a, b = self.c, Jet.of(other).c
        return Jet((a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + a[1] * b[1] + a[2] * b[0]))

    __rmul__ = __mul__

    def through(self, f: Any, f1: Any, f2: Any) -> Jet:
        """A function of this series, given itself and its two derivatives at c[0]."""
        return Jet((f, f1 * self.c[1], f1 * self.c[2] + f2 * self.c[1] * self.c[1] / 2))

    def exp(self) -> Jet:
        e = np.exp(self.c[0])
        return self.through(e, e, e)

    def log(self) -> Jet:
        return self.through(np.log(self.c[0]), 1 / self.c[0], -1 / self.c[0] ** 2)

    def power(self, a: float) -> Jet:
        x = self.c[0]
        return self.through(x**a, a * x ** (a - 1), a * (a - 1) * x ** (a - 2))

    def sum(self, axis: Any = None) -> Jet:
        return self.map(lambda c: np.sum(c, axis, keepdims=True))


def softmax(z: Jet) -> Jet:
    e = (z - z.c[0].max(axis=1, keepdims=True)).exp()
    return e * e.sum(1).power(-1)


def scalars(of: Callable[..., Any], x: Array, *parameters: float) -> list[Array]:
    """σ, σ′, σ″, σ‴ in float64."""
    rows = [of(float(value), *parameters) for value in x.ravel()]
    return [np.reshape(column, x.shape) for column in zip(*rows, strict=True)]


# ------------------------------------------------------------------------------------------------------------------
# cases
# ------------------------------------------------------------------------------------------------------------------
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


# ---- bilinear ----------------------------------------------------------------------------------------------------
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


CASES["bilinear.products"] = products_case


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


# ---- elementwise and select --------------------------------------------------------------------------------------
PARAMETERS: dict[Any, tuple[float, ...]] = {elementwise.softplus: (1.5, 2.0), steep: (0.75,), bell: (2.0, 3.0)}


def _activation(s: Setting) -> tuple[dict[str, Any], dict[int, Array], Jet, Jet, Jet]:
    of = s.options["of"]
    parameters = PARAMETERS.get(of, ())
    arrays, x = s.jet(11, LANES, seed=1)
    y, d1, d2, d3 = scalars(of, x.c[0], *parameters)
    a, b = (*parameters, 0.0, 0.0)[:2]
    return {"a": a, "b": b}, arrays, x, x.through(y, d1, d2), x.through(d1, d2, d3)


@case("elementwise.forward")
def activation_case(s: Setting) -> Case:
    numbers, arrays, _, y, _ = _activation(s)
    empty, expected = s.outputs("y", y)
    return Case({**empty, **named("x", arrays), **numbers}, expected)


@case("elementwise.backward")
def activation_back_case(s: Setting) -> Case:
    numbers, arrays, x, _, slope = _activation(s)
    gradients, g = s.full().jet(*x.c[0].shape, seed=2)
    empty, expected = s.outputs("h", slope * g)
    return Case({**empty, **named("x", arrays), **named("g", gradients), **numbers}, expected)


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


def _windows() -> tuple[Array, Array]:
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
    window, _ = _windows()
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
    _, owner = _windows()
    arrays, g = s.jet(len(window) * 3, LANES, seed=2)

    def back(c: Array) -> Array:
        h = np.zeros((12, 3, LANES))
        for p, channel, lane in np.argwhere(chosen >= 0):
            h[chosen[p, channel, lane], channel, lane] += c.reshape(len(window), 3, LANES)[p, channel, lane]
        return h.reshape(-1, LANES)

    empty, expected = s.outputs("h", g.map(back))
    given = named("g", {k: arrays[k] for k in s.orders})
    return Case({**empty, **given, "chosen": chosen.reshape(-1, LANES).copy(), "owner": owner, "channels": 3}, expected)


# ---- linear maps -------------------------------------------------------------------------------------------------
@case("linear_maps.weighted_sum")
def weighted_sum_case(s: Setting) -> Case:
    window, _ = _windows()
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


# ---- softmax and losses ------------------------------------------------------------------------------------------
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


@case("loss.binary_cross_entropy")
def bce_case(s: Setting) -> Case:
    arrays, z = s.jet(PIXELS * CLASSES, LANES, seed=1)
    common = _targets(s)
    dense = np.random.default_rng(8).random((BATCH, CLASSES * PIXELS)).astype(np.float32).astype(s.real)
    t, x, omega = _by_lane(dense), by_class(z), _omega(common)
    sigmoid = (Jet.of(np.ones_like(x.c[0])) + (-x).exp()).power(-1)
    energy = omega * (np.logaddexp(0, x.c[0]) - t * x.c[0])
    return _loss(s, {**common, "dense": dense}, arrays, (sigmoid - t) * omega, energy, x)


@case("loss.correct")
def correct_case(s: Setting) -> Case:
    z = np.round(s.numbers(5, LANES, seed=1))  # with ties
    labels = np.random.default_rng(2).integers(0, 5, size=(BATCH, 1)).astype(np.int32)
    lanes = samples()
    right = (z.argmax(axis=0) == labels[np.maximum(lanes, ~lanes), 0]) & (lanes >= 0)
    hits = np.full(LANES // 32, -1, np.int32)
    arguments = {"hits": hits, "z": z, "labels": labels, "samples": lanes}
    return Case(arguments, {"hits": right.reshape(-1, 32).sum(axis=1)}, exact=True)


# ---- batch normalisation -----------------------------------------------------------------------------------------
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


# ---- memory ------------------------------------------------------------------------------------------------------
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


# ---- vectors -----------------------------------------------------------------------------------------------------
N = 1234
PARTIAL = 2


def _sums(terms: Array) -> Array:
    """Sums over the numbers of each of PARTIAL blocks of 256 threads that take turns."""
    block = np.arange(N) // 256 % PARTIAL
    return np.array([terms[block == b].sum(axis=0) for b in range(PARTIAL)])


@case("sums.moments")
def moments_case(s: Setting) -> Case:
    u, v = s.numbers(N, seed=1), s.numbers(N, seed=2)
    a, b = u.astype(np.float64), v.astype(np.float64)
    expected = _sums(np.stack([a * a, a * b, b * b], axis=1))
    return Case({"u": u, "v": v, "partial": np.full((PARTIAL, 3), np.nan, s.real)}, {"partial": expected})


def _partial(s: Setting, terms: Array, exact: bool = False, **arguments: Any) -> Case:
    return Case({**arguments, "partial": np.full(PARTIAL, np.nan, s.real)}, {"partial": _sums(terms)}, exact=exact)


@case("sums.distance")
def distance_case(s: Setting) -> Case:
    u, v = s.numbers(N, seed=1), s.numbers(N, seed=2)
    return _partial(s, (u.astype(np.float64) - 0.5 * v) ** 2, u=u, v=v, factor=0.5)


@case("sums.differences")
def differences_case(s: Setting) -> Case:
    u = s.numbers(N, seed=1)
    v = u.copy()
    v[[3, 300, 700, 1233]] += 1
    return _partial(s, (u != v).astype(np.float64), exact=True, u=u, v=v)


@case("sums.finite")
def finite_case(s: Setting) -> Case:
    x = s.numbers(N, seed=1)
    x[300] = np.inf
    with np.errstate(invalid="ignore"):
        return _partial(s, x.astype(np.float64) * 0, exact=True, x=x)


@case("transfer.scale")
def scale_case(s: Setting) -> Case:
    x = s.numbers(300, seed=1)
    return Case({"y": np.full(300, np.nan, s.real), "x": x, "factor": 0.75}, {"y": 0.75 * x.astype(np.float64)})


@case("transfer.axpy")
def axpy_case(s: Setting) -> Case:
    y, x = s.numbers(300, seed=1), s.numbers(300, seed=2)
    expected = y.astype(np.float64) + 0.75 * x
    return Case({"y": y, "x": x, "factor": 0.75}, {"y": expected}, frozenset({"y"}))


@case("training.plain")
def plain_case(s: Setting) -> Case:
    w, g, h = (s.numbers(300, seed=seed) for seed in range(3))
    expected = w.astype(np.float64) - 0.5 * (g.astype(np.float64) + 0.25 * h)
    return Case({"w": w, "g": g, "h": h, "factor": 0.25, "rate": 0.5}, {"w": expected}, frozenset({"w"}))


@case("training.sgd")
def sgd_case(s: Setting) -> Case:
    w, velocity, g, h = (s.numbers(300, seed=seed) for seed in range(4))
    p = g.astype(np.float64) + 0.25 * h + 0.125 * w
    moved = 0.5 * velocity + p
    arguments = {"w": w, "velocity": velocity, "g": g, "h": h, "factor": 0.25, "rate": 0.5, "momentum": 0.5}
    expected = {"velocity": moved, "w": w - 0.5 * (p + 0.5 * moved)}
    return Case({**arguments, "decay": 0.125, "nesterov": 1}, expected, frozenset(expected))


@case("training.adam")
def adam_case(s: Setting) -> Case:
    w, mean, g, h = (s.numbers(300, seed=seed) for seed in range(4))
    squares = np.abs(s.numbers(300, seed=5))
    p = g.astype(np.float64) + 0.25 * h + 0.125 * w
    first, second = 0.75 * mean + 0.25 * p, 0.875 * squares + 0.125 * p * p
    arguments = {"w": w, "mean": mean, "squares": squares, "g": g, "h": h, "factor": 0.25, "rate": 0.5}
    numbers = {"beta1": 0.75, "beta2": 0.875, "eps": 0.0625, "decay": 0.125, "unbiased": 1.5}
    expected = {"mean": first, "squares": second, "w": w - 0.5 * first / (np.sqrt(second) * 1.5 + 0.0625)}
    return Case({**arguments, **numbers}, expected, frozenset(expected))


def case_of(name: str, dtype: Any, options: Options) -> Case:
    """The case of one specialisation."""
    orders, levels = options.get("orders", EVERY), options.get("levels", EVERY)
    return CASES[name](Setting(np.dtype(dtype).type, orders, levels, options))
