"""Products of two values: one kernel for all orders, for the product and for the gradients of its factors.

Each is a sum over orders, Σ_j a_j b_{k−j}, number by number; a thread makes one number at all orders, and adds up what
belongs to it. All matrices are (pixel · channel, lane).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rop.kernels.cuda.compile import (
    ORDERS,
    ROW_BLOCK,
    BoundNames,
    Jet,
    Orders,
    by_order,
    formula,
    has_1,
    has_2,
    helper,
    kernel,
    per_row,
    position,
    put,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.layers import jet

product_1, product_2 = formula(jet.product_1), formula(jet.product_2)

other_has_1: Any = True  # whether the second factor has an order; bound by ``of_factors``
other_has_2: Any = True


class Rows(NamedTuple):
    """Which rows belong together: number (pixel, channel) of y is the sum of a · b at (pixel + i, channel + j) for
    i < sum_pixels and j < sum_channels. The other fields are the rows from pixel to pixel and from channel to channel
    of a and b, 0 where they have one for all."""

    channels: int  # of y
    sum_pixels: int
    sum_channels: int
    a_pixel: int
    a_channel: int
    b_pixel: int
    b_channel: int


def of_factors(orders: Orders = ORDERS, levels: Orders = ORDERS, others: Orders = ORDERS) -> BoundNames:
    """Bound names for a first factor that has the orders ``levels`` and a second one that has the orders ``others``."""
    return {**by_order(orders, levels), "other_has_1": 1 in others, "other_has_2": 2 in others}


@helper
def factors(a, b, at, there, lane):
    """Orders 0, 1 and 2 of a number of a and of one of b; those that are zero or not needed are 0."""
    a1 = a2 = b1 = b2 = real(0)
    if wants_1 or wants_2:
        a1 = a[1][at, lane] if has_1 else real(0)
        b1 = b[1][there, lane] if other_has_1 else real(0)
    if wants_2:
        a2 = a[2][at, lane] if has_2 else real(0)
        b2 = b[2][there, lane] if other_has_2 else real(0)
    return a[0][at, lane], a1, a2, b[0][there, lane], b1, b2


@kernel(per_row("y"), ROW_BLOCK, of_factors)
def products(y: Jet, a: Jet, b: Jet, rows: Rows):
    """The jet of y = a ⊙ b, or of sums of such products."""
    channels, sum_pixels, sum_channels, a_pixel, a_channel, b_pixel, b_channel = rows
    row, lane = position()
    if row < y[0].shape[0]:
        pixel = row // channels
        channel = row - pixel * channels
        sum0 = sum1 = sum2 = real(0)
        for p in range(pixel, pixel + sum_pixels):
            for c in range(channel, channel + sum_channels):
                at, there = p * a_pixel + c * a_channel, p * b_pixel + c * b_channel
                a0, a1, a2, b0, b1, b2 = factors(a, b, at, there, lane)
                if wants_0:
                    sum0 += a0 * b0
                if wants_1:
                    sum1 += product_1(a0, a1, b0, b1)
                if wants_2:
                    sum2 += product_2(a0, a1, a2, b0, b1, b2)
        put(y, row, lane, (sum0, sum1, sum2))
