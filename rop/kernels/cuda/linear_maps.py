"""Layers that are one fixed linear map (average pooling, concatenation, addition, flattening), the same at all orders.

All matrices of numbers are (pixel · channel, lane).
"""

from __future__ import annotations

from rop.kernels.cuda.compile import (
    ROW_BLOCK,
    STRIPES,
    WARP,
    Arguments,
    BoundNames,
    Count,
    Indices,
    Jet,
    Matrix,
    Table,
    blocks_of,
    by_order,
    has_0,
    has_1,
    has_2,
    kernel,
    per_row,
    position,
    put,
    real,
    wants_0,
    wants_1,
    wants_2,
)


@kernel(per_row("y"), ROW_BLOCK, by_order)
def weighted_sum(y: Jet, x: Jet, entry: Table, weight: Matrix, channels: Count):
    """Average pooling and its gradient: pixel p of y is Σ_e weight[p, e] · pixel entry[p, e] of x, where an entry −1 is
    skipped."""
    row, lane = position()
    if row < y[0].shape[0]:
        pixel = row // channels
        channel = row - pixel * channels
        sum0 = sum1 = sum2 = real(0)
        for number in range(entry.shape[1]):
            there = entry[pixel, number]
            if there >= 0:
                factor = weight[pixel, number]
                there = there * channels + channel
                if wants_0:
                    sum0 += factor * x[0][there, lane]
                if wants_1:
                    sum1 += factor * x[1][there, lane]
                if wants_2:
                    sum2 += factor * x[2][there, lane]
        put(y, row, lane, (sum0, sum1, sum2))


def _copied_rows(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    return blocks_of(given["pixels"] * given["count"], STRIPES), blocks_of(given["y"][0].shape[1], WARP)


@kernel(_copied_rows, ROW_BLOCK, by_order)
def copy_rows(
    y: Jet, x: Jet, pixels: Count, count: Count, y_step: Count, y_first: Count, x_step: Count, x_first: Count
):
    """Copies ``count`` rows per pixel, for concatenation and its reverse; pixels are y_step and x_step rows apart. An
    order that x does not have is zero."""
    number, lane = position()
    if number < pixels * count:
        pixel = number // count
        row = number - pixel * count
        to = pixel * y_step + y_first + row
        there = pixel * x_step + x_first + row
        if wants_0:
            y[0][to, lane] = x[0][there, lane] if has_0 else real(0)
        if wants_1:
            y[1][to, lane] = x[1][there, lane] if has_1 else real(0)
        if wants_2:
            y[2][to, lane] = x[2][there, lane] if has_2 else real(0)


@kernel(per_row("y"), ROW_BLOCK, by_order)
def add_rows(y: Jet, x: Jet):
    """y += x."""
    row, lane = position()
    if row < y[0].shape[0]:
        if wants_0:
            y[0][row, lane] += x[0][row, lane]
        if wants_1:
            y[1][row, lane] += x[1][row, lane]
        if wants_2:
            y[2][row, lane] += x[2][row, lane]


@kernel(per_row("y"), ROW_BLOCK, by_order)
def permute_rows(y: Jet, x: Jet, order: Indices):
    """Row i of y is row order[i] of x."""
    row, lane = position()
    if row < y[0].shape[0]:
        there = order[row]
        if wants_0:
            y[0][row, lane] = x[0][there, lane]
        if wants_1:
            y[1][row, lane] = x[1][there, lane]
        if wants_2:
            y[2][row, lane] = x[2][there, lane]
