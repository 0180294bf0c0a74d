"""Elementwise layers: two kernels per activation, with the same formulas of the jet for all of them.

σ and its derivatives at x⁰ are computed again in every pass: on a GPU that costs less than the bandwidth for three more
arrays. All matrices are (row, lane).
"""

from __future__ import annotations

from typing import Any

from rop.kernels.compile import PerPrecision
from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    BoundNames,
    Function,
    Jet,
    Number,
    Orders,
    by_order,
    device_function,
    formula,
    has_1,
    has_2,
    in_kernels,
    kernel,
    per_row,
    position,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.scalar import CALLS, compilable
from rop.layers import elementwise as layer
from rop.layers import jet

output_1, output_2 = formula(layer.output_1), formula(layer.output_2)
slope_1, slope_2 = formula(layer.slope_1), formula(layer.slope_2)
product_1, product_2 = formula(jet.product_1), formula(jet.product_2)

scalar: Any = None  # the activation: bound by ``of_activation``


def activation(of: Function, count: int) -> PerPrecision:
    """A layer's scalar function, which returns (σ, σ′, σ″, σ‴) for x and ``count`` parameters, as a device function of
    x and two parameters."""
    scalar = PerPrecision(lambda dtype: in_kernels(compilable(of, dtype, in_kernels)))
    return device_function(CALLS[count], function=scalar)


def of_activation(of: Function, count: int = 0, orders: Orders = ORDERS, levels: Orders = ORDERS) -> BoundNames:
    """Bound names of the kernels of one activation."""
    return {**by_order(orders, levels), "scalar": activation(of, count)}


@kernel(per_row("y"), ROW_BLOCK, of_activation)
def forward(y: Jet, x: Jet, a: Number, b: Number):
    """The jet of y = σ(x); a and b are the layer's parameters."""
    row, lane = position()
    if row < y[0].shape[0]:
        value, d1, d2, _ = scalar(x[0][row, lane], a, b)
        u1 = x[1][row, lane] if has_1 else real(0)
        u2 = x[2][row, lane] if has_2 else real(0)
        if wants_0:
            y[0][row, lane] = value
        if wants_1:
            y[1][row, lane] = output_1(d1, u1)
        if wants_2:
            y[2][row, lane] = output_2(d1, d2, u1, u2)


@kernel(per_row("h"), ROW_BLOCK, of_activation)
def backward(h: Jet, x: Jet, g: Jet, a: Number, b: Number):
    """The jet of h = σ′(x)·g."""
    row, lane = position()
    if row < h[0].shape[0]:
        _, d1, d2, d3 = scalar(x[0][row, lane], a, b)
        f0 = g[0][row, lane]
        if wants_0:
            h[0][row, lane] = d1 * f0
        if wants_1 or wants_2:
            u1 = x[1][row, lane] if has_1 else real(0)
            s1 = slope_1(d2, u1)
            f1 = g[1][row, lane]
            if wants_1:
                h[1][row, lane] = product_1(d1, s1, f0, f1)
            if wants_2:
                u2 = x[2][row, lane] if has_2 else real(0)
                h[2][row, lane] = product_2(d1, s1, slope_2(d2, d3, u1, u2), f0, f1, g[2][row, lane])
