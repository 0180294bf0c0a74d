"""Elementwise layers: two kernels per activation, with the same formulas of the jet for all of them.

σ and its derivatives at x⁰ are computed again in every pass: on a GPU that costs less than the bandwidth for three more
arrays. All matrices are (row, lane).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rop.kernels.compile import PerPrecision
from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    Matrix,
    Number,
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


def activation(of: Callable[..., Any], count: int) -> PerPrecision:
    """A layer's scalar function, which returns (σ, σ′, σ″, σ‴) for x and ``count`` parameters, as a device function of
    x and two parameters."""
    scalar = PerPrecision(lambda dtype: in_kernels(compilable(of, dtype, in_kernels)))
    return device_function(CALLS[count], function=scalar)


def of_activation(
    of: Callable[..., Any], count: int = 0, orders: tuple[int, ...] = ORDERS, levels: tuple[int, ...] = ORDERS
) -> dict[str, Any]:
    """Bound names of the kernels of one activation."""
    return {**by_order(orders, levels), "scalar": activation(of, count)}


@kernel(per_row("y0"), ROW_BLOCK, of_activation)
def forward(y0: Matrix, y1: Matrix, y2: Matrix, x0: Matrix, x1: Matrix, x2: Matrix, a: Number, b: Number):
    """The jet of y = σ(x); a and b are the layer's parameters."""
    row, lane = position()
    if row < y0.shape[0]:
        y, d1, d2, _ = scalar(x0[row, lane], a, b)
        u1 = x1[row, lane] if has_1 else real(0)
        u2 = x2[row, lane] if has_2 else real(0)
        if wants_0:
            y0[row, lane] = y
        if wants_1:
            y1[row, lane] = output_1(d1, u1)
        if wants_2:
            y2[row, lane] = output_2(d1, d2, u1, u2)


@kernel(per_row("h0"), ROW_BLOCK, of_activation)
def backward(
    h0: Matrix,
    h1: Matrix,
    h2: Matrix,
    x0: Matrix,
    x1: Matrix,
    x2: Matrix,
    g0: Matrix,
    g1: Matrix,
    g2: Matrix,
    a: Number,
    b: Number,
):
    """The jet of h = σ′(x)·g."""
    row, lane = position()
    if row < h0.shape[0]:
        _, d1, d2, d3 = scalar(x0[row, lane], a, b)
        f0 = g0[row, lane]
        if wants_0:
            h0[row, lane] = d1 * f0
        if wants_1 or wants_2:
            u1 = x1[row, lane] if has_1 else real(0)
            s1 = slope_1(d2, u1)
            f1 = g1[row, lane]
            if wants_1:
                h1[row, lane] = product_1(d1, s1, f0, f1)
            if wants_2:
                u2 = x2[row, lane] if has_2 else real(0)
                h2[row, lane] = product_2(d1, s1, slope_2(d2, d3, u1, u2), f0, f1, g2[row, lane])
