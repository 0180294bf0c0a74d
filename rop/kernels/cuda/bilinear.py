"""Bilinear layers (linear, conv): products with the weights, and both adjoints, all orders in one launch.

Every order of y = W x, of its input gradient Wᵀδ and of its weight gradient δ xᵀ is a Cauchy sum of matrix products,
which gemm.py makes tile by tile. Here the tiles of the factors (W and V, or the orders of δ; and the orders of x) are
loaded into shared memory, and those of the result are stored.

    b_k, x_k   (pixel · row, lane)      c_k, d_k, mask   (pixel · row, lane)      w, v, out_k   (parameters,)
    source     (pixel, fan)             target           (row,)                   partial_k     (slice, weights)
"""

from __future__ import annotations

from typing import NamedTuple

from numba import cuda

from rop.kernels.cuda.compile import (
    ORDERS,
    THREADS,
    WARP,
    Arguments,
    BoundNames,
    Count,
    Indices,
    Jet,
    Matrix,
    Orders,
    Real,
    Specialisation,
    Table,
    Vector,
    VectorJet,
    add_to,
    blocks_of,
    by_order,
    formula,
    helper,
    kernel,
    put,
    real,
    wants_0,
    wants_1,
    wants_2,
)
from rop.kernels.cuda.gemm import (
    ALIGNED,
    COLUMNS,
    DEPTH,
    EACH,
    LONG_COLUMNS,
    LONG_ROWS,
    ROWS,
    TILE_THREADS,
    TILES,
    multiply,
    my_place,
    no_sums,
    put_factor,
    tile_block,
    tile_for,
)
from rop.kernels.cuda.sums import added, block_sum
from rop.layers import relu

OPEN, RELU, MASK = 0, 1, 2  # gates of a product: none, its own ReLU, or the ReLU whose order 0 is in ``mask``

rectified = formula(relu.rectified)


# ------------------------------------------------------------------------------------------------------------- products
def product_names(
    orders: Orders = ORDERS, levels: Orders = ORDERS, adjoint: bool = False, tile: str = "large"
) -> BoundNames:
    """Bound names of ``products``; ``levels`` are the orders of B, and ``adjoint`` says that neighbouring rows, not
    neighbouring j, are close in w."""
    return {**by_order(orders, levels), **TILES[tile].names(), "adjoint": adjoint, "left_2": False}


adjoint = False


def _product_grid(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    pixels, lanes = given["source"].shape[0], given["c"][0].shape[1]
    return (
        pixels * blocks_of(lanes, names["COLUMNS"]),
        given["groups"] * blocks_of(given["group_rows"], names["ROWS"]),
    )


class Strides(NamedTuple):
    """Where A_0 lies in w, and A_1 in v: A[i, j] of a group is w[base + group · group_base + i · i_step + j], for the
    adjoint w[base + group · group_base + i · i_step + (j // inner) · outer_step + j % inner]."""

    base: int
    group_base: int
    i_step: int
    inner: int
    outer_step: int


@helper
def load_weights(tiles, w, v, strides, group, row_0, j_0, group_rows, fan, thread):
    """Loads tiles (j, row) of W and V."""
    base, group_base, i_step, inner, outer_step = strides
    first = base + group * group_base
    for e in range(thread, ROWS * DEPTH, TILE_THREADS):
        i = e % ROWS if adjoint else e // DEPTH
        step = e // ROWS if adjoint else e % DEPTH
        j = j_0 + step
        inside = row_0 + i < group_rows and j < fan
        at = first + (row_0 + i) * i_step
        at += j // inner * outer_step + j % inner if adjoint else j
        tiles[0][step, i] = w[at] if inside else real(0)
        if wants_1 or wants_2:
            tiles[1][step, i] = v[at] if inside else real(0)


@helper
def load_factors(tiles, b, source, pixel, shift, j_0, lane_0, lanes, thread):
    """Loads tiles (j, lane) of the orders of B."""
    for e in range(thread, DEPTH * COLUMNS, TILE_THREADS):
        step = e // COLUMNS
        column = e % COLUMNS
        lane = lane_0 + column
        row = source[pixel, j_0 + step] if j_0 + step < source.shape[1] and lane < lanes else -1
        put_factor(tiles, b, step, column, row + shift, lane, row >= 0)


@helper
def store_products(c, sums, m, row, lane, bias, mask, gate):
    """Writes one row of a thread's outputs; the gate is a ReLU at any order."""
    off = real(0)
    for n in range(EACH):
        value = sums[0][m, n] + bias[0]
        at = real(1)
        if gate == RELU:
            at = value if wants_0 else c[0][row, lane + n]
        elif gate == MASK:
            at = mask[row, lane + n]
        if wants_0:
            c[0][row, lane + n] = rectified(value, at, off)
        if wants_1:
            c[1][row, lane + n] = rectified(sums[1][m, n] + bias[1], at, off)
        if wants_2:
            c[2][row, lane + n] = rectified(sums[2][m, n], at, off)


@kernel(_product_grid, tile_block, product_names)
def products(
    c: Jet,
    b: Jet,
    w: Vector,
    v: Vector,
    source: Table,
    target: Indices,
    mask: Matrix,
    gate: Count,
    group_rows: Count,
    groups: Count,
    group_step: Count,
    c_rows: Count,
    strides: Strides,
    bias_at: Count,
):
    """C_k (pixel, row, lane) = bias_k + Σ_j (A_0 (row, j) B_k (j, lane) + A_1 B_{k−1}), with A_0 from w and A_1 from v
    (see ``Strides``).

    Row j of B at pixel p is source[p, j], zeros if that is −1; row i of C is target[i] of its pixel's c_rows. From one
    group to the next, rows of B move by group_step."""
    w_tile = cuda.shared.array((DEPTH, LONG_ROWS), real, ALIGNED)
    v_tile = cuda.shared.array((DEPTH, LONG_ROWS), real, ALIGNED)
    b0_tile = cuda.shared.array((DEPTH, COLUMNS), real, ALIGNED)
    b1_tile = cuda.shared.array((DEPTH, COLUMNS), real, ALIGNED)
    b2_tile = cuda.shared.array((DEPTH, COLUMNS), real, ALIGNED)
    a_tiles, b_tiles, sums = (w_tile, v_tile, v_tile), (b0_tile, b1_tile, b2_tile), no_sums()
    fan, lanes = source.shape[1], c[0].shape[1]
    lane_blocks = (lanes + COLUMNS - 1) // COLUMNS
    pixel = cuda.blockIdx.x // lane_blocks
    lane_0 = (cuda.blockIdx.x - pixel * lane_blocks) * COLUMNS
    row_blocks = (group_rows + ROWS - 1) // ROWS
    group = cuda.blockIdx.y // row_blocks
    row_0 = (cuda.blockIdx.y - group * row_blocks) * ROWS
    thread, my_row, my_column = my_place()
    for j_0 in range(0, fan, DEPTH):
        load_weights(a_tiles, w, v, strides, group, row_0, j_0, group_rows, fan, thread)
        load_factors(b_tiles, b, source, pixel, group * group_step, j_0, lane_0, lanes, thread)
        cuda.syncthreads()
        multiply(sums, a_tiles, b_tiles, my_row, my_column)
        cuda.syncthreads()
    if lane_0 + my_column < lanes:  # lanes are a multiple of EACH
        for m in range(EACH):
            i = row_0 + my_row + m
            if i < group_rows:
                i += group * group_rows
                bias0 = w[bias_at + i] if bias_at >= 0 else real(0)
                bias1 = v[bias_at + i] if bias_at >= 0 and (wants_1 or wants_2) else real(0)
                row, lane = pixel * c_rows + target[i], lane_0 + my_column
                store_products(c, sums, m, row, lane, (bias0, bias1), mask, gate)


def products_for(dtype: Real, orders: Orders, levels: Orders, adjoint: bool, rows: int, lanes: int) -> Specialisation:
    """The kernel for products of this size: ``rows`` of a group, ``lanes`` of the batch."""
    return products(dtype, orders=orders, levels=levels, adjoint=adjoint, tile=tile_for(rows, lanes))


# ------------------------------------------------------------------------------------------------------ weight gradient
BLOCKS = 512  # blocks that a weight gradient is divided into, if its sum is long enough
LONGEST = 64  # the largest number of slices of a sum


def slices(pixels: int, lanes: int, rows: int, fan: int) -> int:
    """The number of slices of the sum over pixels and lanes: it depends on shapes only, never on the device, so that
    results are the same on all of them."""
    tile = TILES[tile_for(rows, fan)]
    tiles = blocks_of(rows, tile.rows) * blocks_of(fan, tile.columns)
    return max(1, min(LONGEST, BLOCKS // tiles, pixels * lanes // WARP))


def gradient_names(orders: Orders = ORDERS, levels: Orders = ORDERS, tile: str = "large") -> BoundNames:
    """Bound names of ``weight_gradient``; ``levels`` are the orders of x."""
    return {**by_order(orders, levels), **TILES[tile].names(), "left_2": True}


def _gradient_grid(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    return (
        blocks_of(given["source"].shape[1], names["COLUMNS"]),
        given["groups"] * blocks_of(given["group_rows"], names["ROWS"]),
        given["partial"][0].shape[0],
    )


@helper
def load_deltas(tiles, d, row_0, lane_0, rows_left, thread):
    """Loads tiles (lane, row) of the orders of δ, up to the highest that is wanted."""
    for e in range(thread, ROWS * DEPTH, TILE_THREADS):
        i = e // DEPTH
        step = e % DEPTH
        inside = i < rows_left
        tiles[0][step, i] = d[0][row_0 + i, lane_0 + step] if inside else real(0)
        if wants_1 or wants_2:
            tiles[1][step, i] = d[1][row_0 + i, lane_0 + step] if inside else real(0)
        if wants_2:
            tiles[2][step, i] = d[2][row_0 + i, lane_0 + step] if inside else real(0)


@helper
def load_inputs(tiles, x, source, pixel, shift, j_0, lane_0, thread):
    """Loads tiles (lane, j) of the orders of x."""
    for e in range(thread, COLUMNS * DEPTH, TILE_THREADS):
        j = e // DEPTH
        step = e % DEPTH
        row = source[pixel, j_0 + j] if j_0 + j < source.shape[1] else -1
        put_factor(tiles, x, step, j, row + shift, lane_0 + step, row >= 0)


@kernel(_gradient_grid, tile_block, gradient_names)
def weight_gradient(
    partial: Jet, d: Jet, x: Jet, source: Table, group_rows: Count, groups: Count, group_step: Count, d_rows: Count
):
    """Slices of D_k (group, row, j) = Σ_pixels Σ_lanes Σ_a δ_a (pixel, row) x_{k−a} (source[pixel, j]), in the layout
    of the weights; ``collect`` adds the slices up."""
    d0_tile = cuda.shared.array((DEPTH, LONG_ROWS), real, ALIGNED)
    d1_tile = cuda.shared.array((DEPTH, LONG_ROWS), real, ALIGNED)
    d2_tile = cuda.shared.array((DEPTH, LONG_ROWS), real, ALIGNED)
    x0_tile = cuda.shared.array((DEPTH, LONG_COLUMNS), real, ALIGNED)
    x1_tile = cuda.shared.array((DEPTH, LONG_COLUMNS), real, ALIGNED)
    x2_tile = cuda.shared.array((DEPTH, LONG_COLUMNS), real, ALIGNED)
    d_tiles, x_tiles, sums = (d0_tile, d1_tile, d2_tile), (x0_tile, x1_tile, x2_tile), no_sums()
    pixels, fan = source.shape
    steps = d[0].shape[1] // DEPTH  # lanes are a multiple of the depth
    j_0 = cuda.blockIdx.x * COLUMNS
    row_blocks = (group_rows + ROWS - 1) // ROWS
    group = cuda.blockIdx.y // row_blocks
    row_0 = (cuda.blockIdx.y - group * row_blocks) * ROWS
    piece, pieces = cuda.blockIdx.z, cuda.gridDim.z
    thread, my_row, my_column = my_place()
    for number in range(pixels * steps * piece // pieces, pixels * steps * (piece + 1) // pieces):
        pixel = number // steps
        lane_0 = (number - pixel * steps) * DEPTH
        load_deltas(d_tiles, d, pixel * d_rows + group * group_rows + row_0, lane_0, group_rows - row_0, thread)
        load_inputs(x_tiles, x, source, pixel, group * group_step, j_0, lane_0, thread)
        cuda.syncthreads()
        multiply(sums, d_tiles, x_tiles, my_row, my_column)
        cuda.syncthreads()
    for m in range(EACH):
        i = row_0 + my_row + m
        for n in range(EACH):
            j = j_0 + my_column + n
            if i < group_rows and j < fan:
                place = (group * group_rows + i) * fan + j
                put(partial, piece, place, (sums[0][m, n], sums[1][m, n], sums[2][m, n]))


def weight_gradient_for(dtype: Real, orders: Orders, levels: Orders, rows: int, fan: int) -> Specialisation:
    """The kernel for weight gradients of this size: ``rows`` of a group."""
    return weight_gradient(dtype, orders=orders, levels=levels, tile=tile_for(rows, fan))


@kernel(lambda names, given: (given["rows"],), names=by_order)
def bias_gradient(out: VectorJet, d: Jet, base: Count, rows: Count, pixels: Count, add: Count):
    """out[base + row] (+)= Σ_pixels Σ_lanes δ (pixel, row, lane); a block for every row."""
    buffer = cuda.shared.array(THREADS, real)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    lanes = d[0].shape[1]
    sum0 = sum1 = sum2 = real(0)
    lost0 = lost1 = lost2 = real(0)
    for i in range(thread, pixels * lanes, THREADS):
        pixel = i // lanes
        lane = i - pixel * lanes
        there = pixel * rows + row
        if wants_0:
            sum0, lost0 = added(sum0, lost0, d[0][there, lane])
        if wants_1:
            sum1, lost1 = added(sum1, lost1, d[1][there, lane])
        if wants_2:
            sum2, lost2 = added(sum2, lost2, d[2][there, lane])
    if wants_0:
        sum0 = block_sum(buffer, thread, sum0)
        if thread == 0:
            add_to(out[0], base + row, sum0, add)
    if wants_1:
        sum1 = block_sum(buffer, thread, sum1)
        if thread == 0:
            add_to(out[1], base + row, sum1, add)
    if wants_2:
        sum2 = block_sum(buffer, thread, sum2)
        if thread == 0:
            add_to(out[2], base + row, sum2, add)
