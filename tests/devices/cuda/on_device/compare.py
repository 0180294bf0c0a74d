"""Comparing the GPU with the CPU engine."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from hypothesis import assume

import rop
from tests.helpers.checker import Tolerance, cast, discrepancies, rounded_once
from tests.helpers.zoo import direction, point

# The contract of device="cuda": relative 1e-10 in float64, 1e-5 in float32. The floor is for results that cancel.
TOLERANCES = {np.dtype(np.float64): Tolerance(1e-10, 1e-13), np.dtype(np.float32): Tolerance(1e-5, 1e-6)}
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
MOST_BLOCKS = 30  # of 16×16 weights and 32 lanes, over all products of a network: a second or two of simulation


def affordable(net: Any, shape: tuple[int, ...], batch: int) -> None:
    """Leave out what would take the simulator too long."""
    shapes = net.shapes(shape)
    blocks = 0
    for node in net.nodes:
        if isinstance(node.layer, (rop.Linear, rop.Conv2d)):
            rows, fan = (
                node.layer.parameter_shapes()["weight"][0],
                math.prod(node.layer.parameter_shapes()["weight"][1:]),
            )
            blocks += math.prod(shapes[node][1:]) * -(-rows // 16) * -(-fan // 16) * -(-batch // 32)
    values = sum(math.prod(s) for s in shapes.values()) * -(-batch // 32)
    assume(not SIMULATED or (blocks <= MOST_BLOCKS and values <= 400))


def by_passes(f: rop.Objective, w: Any, v: Any) -> rop.Jet:
    """Loss and gradient, then order 1, then order 2, each in a pass of its own."""
    p = f.at(w)
    return rop.Jet(p.loss, p.grad, p.hvp(v), p.r2(v))


def check_device(
    net: Any,
    loss: Any,
    x: np.ndarray,
    y: np.ndarray,
    dtype: Any,
    way: Any = rop.Objective.jet,
    seed: int = 0,
    **options: Any,
) -> None:
    """Compare loss, gradient, Hv and R² of the device with the CPU engine's."""
    x, y = cast(x, dtype), cast(y, dtype)
    w, v = point(net, seed, dtype), direction(net, seed, dtype)
    tolerance = TOLERANCES[np.dtype(dtype)]
    actual = way(rop.Objective(net, loss, x, y, dtype=dtype, device="cuda", **options), w, v)
    expected: Any = rop.Objective(net, loss, x, y, dtype=dtype, **options).jet(w, v)
    found = discrepancies(actual, expected, v, tolerance)
    if found:  # ill-conditioned? then the CPU engine itself moves when its inputs are moved by one rounding
        moved = rop.Objective(net, loss, rounded_once(x, dtype).astype(dtype), y, dtype=dtype, **options)
        nearby: Any = moved.jet(rounded_once(w, dtype).astype(dtype), v)
        found = discrepancies(actual, expected, v, tolerance, nearby)
    assert not found, "\n".join(found)
