"""Select layers (ReLU, leaky ReLU, max pooling): order 0 picks a linear map, every order goes through it.

A window's choice is stored as the chosen input pixel, −1 for none. The backward pass asks every window that contains a
pixel whether it chose that pixel, so that each gradient is written once, even where windows overlap. All matrices of
numbers are (pixel · channel, lane).
"""

from __future__ import annotations

from rop.kernels.cuda.compile import (
    ROW_BLOCK,
    Count,
    Jet,
    Matrix,
    Number,
    Table,
    by_order,
    formula,
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
from rop.layers import relu as layer

is_off, rectified = formula(layer.is_off), formula(layer.rectified)


@kernel(per_row("y"), ROW_BLOCK, by_order)
def rectify(y: Jet, x: Jet, mask: Matrix, slope: Number):
    """The jet of y = φ x with the slope φ picked by mask, which is order 0 of the layer's input; y may be x."""
    row, lane = position()
    if row < y[0].shape[0]:
        at = mask[row, lane]
        if wants_0:
            y[0][row, lane] = rectified(x[0][row, lane], at, slope)
        if wants_1:
            y[1][row, lane] = rectified(x[1][row, lane], at, slope)
        if wants_2:
            y[2][row, lane] = rectified(x[2][row, lane], at, slope)


# ---------------------------------------------------------------------------------------------------------- max pooling
@helper
def largest(x, window, pixel, channel, channels, lane):
    """The largest number of a window and its input pixel: the first of equal numbers, or a NaN if there is one."""
    best = real(0)
    winner = -1
    for tap in range(window.shape[1]):
        there = window[pixel, tap]
        if there >= 0:
            value = x[there * channels + channel, lane]
            if winner < 0 or value > best or value != value:
                best = value
                winner = there
    return best, winner


@kernel(per_row("y"), ROW_BLOCK, by_order)
def pool(y: Jet, x: Jet, chosen: Table, window: Table, channels: Count, relu: Count):
    """The jet of y = x at the pixel that order 0 chooses in window (output pixel, tap); with ``relu``, y = 0 and no
    choice where the ReLU is off. Order 0 writes its choice to ``chosen`` (pixel · channel, lane), later orders read
    it."""
    row, lane = position()
    if row < y[0].shape[0]:
        pixel = row // channels
        channel = row - pixel * channels
        if wants_0:
            value, winner = largest(x[0], window, pixel, channel, channels, lane)
            if relu != 0 and is_off(value):
                value = real(0)
                winner = -1
            y[0][row, lane] = value
            chosen[row, lane] = winner
        else:
            winner = chosen[row, lane]
        there = winner * channels + channel
        if wants_1:
            y[1][row, lane] = x[1][there, lane] if winner >= 0 else real(0)
        if wants_2:
            y[2][row, lane] = x[2][there, lane] if winner >= 0 else real(0)


@kernel(per_row("h"), ROW_BLOCK, by_order)
def pool_back(h: Jet, g: Jet, chosen: Table, owner: Table, channels: Count):
    """The jet of h = Σ g over the windows that chose this pixel; owner (input pixel, number) lists the windows that
    contain it."""
    row, lane = position()
    if row < h[0].shape[0]:
        pixel = row // channels
        channel = row - pixel * channels
        sum0 = sum1 = sum2 = real(0)
        for number in range(owner.shape[1]):
            window = owner[pixel, number]
            if window >= 0:
                there = window * channels + channel
                if chosen[there, lane] == pixel:
                    if wants_0:
                        sum0 += g[0][there, lane]
                    if wants_1:
                        sum1 += g[1][there, lane]
                    if wants_2:
                        sum2 += g[2][there, lane]
        put(h, row, lane, (sum0, sum1, sum2))
