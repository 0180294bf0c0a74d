"""Bilinear layers (linear, conv): products with the weights, and both adjoints.

Order k of y = W x, of its input gradient Wᵀg and of its weight gradient g xᵀ is a Cauchy sum of products. The program
lists its *terms*, the pairs of orders that are not structural zeros (at most three); the kernels add them up.
"""

from __future__ import annotations

from llvmlite import ir

from rop.kernels.compile import Factor, PerPrecision, Terms, helper, itemsize, kernel
from rop.kernels.cpu.gemm import (
    BY_COLUMNS,
    BY_ROWS,
    DOT_COLUMNS,
    DOT_ROWS,
    PANEL,
    SEGMENT,
    lane_dots,
    multiply,
    share,
    store_sums,
)
from rop.kernels.cpu.memory import reals, transpose_rows
from rop.kernels.cpu.vector import BLOCK, VECTOR, VectorBuilder, const, peek, vector_function

PACK_ROWS = 8


@kernel
def products(c, c_step, pixels, rows, fan, layout, lane_bytes, bounds, bias, bias_step, relu, mask, terms: Terms):
    """C (pixel, row, lane) = bias + Σ_terms A (row, fan) B (fan, lane), A in one of the layouts of gemm.py. bounds[p]
    is the address of the segments of pixel p; pixels of C are c_step bytes apart. With ``relu`` negative results become
    0; with ``mask``, an array that lies like C, so do those where it is ≤ 0."""
    a_step = (rows if layout == BY_COLUMNS else fan) * itemsize
    for p in range(pixels):
        first = peek(bounds + 8 * p)
        count = (peek(bounds + 8 * p + 8) - first) // SEGMENT
        multiply(
            (c + p * c_step, lane_bytes),
            (rows, a_step, layout),
            (lane_bytes, lane_bytes),
            (bias, bias_step),
            (relu, mask + p * c_step if mask != 0 else 0),
            terms,
            (first, count),
        )


@kernel
def linear_weight_gradient(
    c, c_step, rows, lane_bytes, done, columns, most, x_step, segments, count, zeros, terms: Terms
):
    """C (row, fan) = Σ_terms Σ_lanes g (row, lane) xᵀ (lane, fan), a matrix product over the lanes of a tile or, with a
    segment for each, of ``count`` tiles (the address of their number): then the sums over tiles stay in registers.
    ``columns`` are the bytes of a row of C in whole blocks; this unit has at most ``most`` of those after ``done``."""
    multiply(
        (c, c_step),
        (rows, lane_bytes, BY_ROWS),
        (min(most, columns - done), x_step),
        (zeros, 0),
        (0, 0),
        terms,
        (segments, peek(count)),
    )


@kernel
def conv_weight_gradient(d, rows, terms: Terms, groups, count, lane_bytes, a: Factor, b: Factor):
    """D (fan, row) = Σ_terms Σ_pixels Σ_lanes g x, of one tile."""
    lane_dots(d, rows, terms, (groups, count), lane_bytes, a, b)


def _emit_row_sums(e: VectorBuilder, d, g, rows, pixels, pixel_bytes, row_bytes) -> None:
    """d[i] = Σ_pixels Σ_lanes g (pixel, i, lane) for 1 to DOT_ROWS rows."""

    def version(m: int):
        def pixel(p, sums):
            at = e.at(g, e.b.mul(p, pixel_bytes))

            def lanes(t, sums):
                here = e.at(at, e.b.mul(t, const(VECTOR)))
                return [
                    e.b.fadd(total, e.load(e.at(here, e.b.mul(row_bytes, const(i))))) for i, total in enumerate(sums)
                ]

            return e.loop(e.b.sdiv(row_bytes, const(VECTOR)), sums, lanes)

        return lambda: store_sums(e, e.loop(pixels, [e.number(0)] * m, pixel), d, e.bit(False))

    e.switch(rows, {m: version(m) for m in range(1, DOT_ROWS + 1)})


row_sums = PerPrecision(vector_function(_emit_row_sums))


@kernel
def bias_gradient(d, g, rows, pixels, lane_bytes):
    """d[row] = Σ_pixels Σ_lanes g (pixel, row, lane)."""
    for k in range(0, rows, DOT_ROWS):
        row_sums(d + k * itemsize, g + k * lane_bytes, min(DOT_ROWS, rows - k), pixels, rows * lane_bytes, lane_bytes)


def _emit_copy(e: VectorBuilder, y, x) -> None:
    for lane in range(0, BLOCK, VECTOR):
        e.store(e.load(e.at(x, lane)), e.at(y, lane))


copy_block = PerPrecision(vector_function(_emit_copy))


@helper
def regroup(y, x, pixels, rows, first, m, lane_bytes):
    """m rows of x (pixel, row, lane) in the layout of lane dots: y (block of lanes, pixel, row, lane in the block).
    They are contiguous then, so that they do not evict each other from L1."""
    for block in range(lane_bytes // BLOCK):
        for p in range(pixels):
            source = x + (p * rows + first) * lane_bytes + block * BLOCK
            for i in range(m):
                copy_block(y + i * BLOCK, source + i * lane_bytes)
            y += m * BLOCK


@kernel
def regroup_outputs(y, x, pixels, rows, lane_bytes):
    """The first factor of lane dots, x (pixel, row, lane), regrouped by blocks of DOT_ROWS rows."""
    for k in range(0, rows, DOT_ROWS):
        regroup(y + k * pixels * lane_bytes, x, pixels, rows, k, min(DOT_ROWS, rows - k), lane_bytes)


@kernel
def regroup_inputs(y, x, pixels, rows, lane_bytes):
    """The second factor of lane dots, x (pixel, row, lane), regrouped by blocks of at most DOT_COLUMNS rows."""
    blocks = (rows + DOT_COLUMNS - 1) // DOT_COLUMNS
    k = 0
    for block in range(blocks):
        m = share(blocks, block, rows)
        regroup(y + k * pixels * lane_bytes, x, pixels, rows, k, m, lane_bytes)
        k += m


@kernel
def transpose(y, y_step, x, index, rows, lanes):
    """y (lane, row) from x (row, lane), for weight gradients of linear layers; index counts 0, 1, 2, …"""
    if rows >= VECTOR // itemsize:
        transpose_rows(y, y_step, x, lanes * itemsize, index, lanes, rows)
        return
    source = reals(x, rows * lanes)
    for row in range(rows):
        for lane in range(lanes):
            reals(y + lane * y_step + row * itemsize, 1)[0] = source[row * lanes + lane]


def _emit_copy_columns(e: VectorBuilder, y, x, x_step, rows, columns) -> None:
    """y (rows, columns), contiguous, from rows of x that are x_step bytes apart; columns ≤ PANEL. One version per
    number of columns, so that a row is moved by a few instructions that touch these columns and nothing else."""

    def version(m: int):
        row = ir.VectorType(e.scalar, m)

        def move(i, _):
            e.store(e.load_as(row, e.at(x, e.b.mul(i, x_step))), e.at(y, e.b.mul(i, const(m * e.size))))
            return []

        return lambda: e.loop(rows, [], move)

    e.switch(columns, {m: version(m) for m in range(1, PANEL + 1)})


copy_columns = PerPrecision(vector_function(_emit_copy_columns))


@kernel
def pack_transposed(y, w, rows, columns, part, parts):
    """W (rows, columns) → panels [block of columns][row][column in the block], for input gradients of wide layers. A
    few rows at a time, so that their cache lines serve several panels."""
    panels = (columns + PANEL - 1) // PANEL
    blocks = (rows + PACK_ROWS - 1) // PACK_ROWS
    for block in range(blocks * part // parts, blocks * (part + 1) // parts):
        row = PACK_ROWS * block
        count = min(PACK_ROWS, rows - row)
        column = 0
        for panel in range(panels):
            m = share(panels, panel, columns)
            copy_columns(
                y + (column * rows + row * m) * itemsize,
                w + (row * columns + column) * itemsize,
                columns * itemsize,
                count,
                m,
            )
            column += m
