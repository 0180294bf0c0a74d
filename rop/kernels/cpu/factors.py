"""Σ ā āᵀ over samples and places, which K-FAC wants of the inputs of layers and of the gradients of their outputs.

Rows that a layer reads, one for each channel and tap, are packed side by side, as many places and samples at a time as
stay in the cache, and multiplied with each other by lane dots. What is packed is a *unit*: the lanes of one place that
lie next to each other in the plane, one sample of a map or all samples of a tile.
"""

from __future__ import annotations

from rop.kernels.compile import helper, itemsize, kernel, loop, real
from rop.kernels.cpu.gemm import lane_dots
from rop.kernels.cpu.memory import doubles, integers, reals

# The words of a job, int64. Sums, packed rows and products are offsets in bytes from the memory of all jobs.
(
    SUMS,  # float64 (rows, rows)
    PACKED,  # (rows, lane)
    PRODUCTS,  # (rows, rows)
    ROWS,  # channels times taps, and one more with ones
    ONES,  # 1: the last row is all ones
    LANE_BYTES,  # of a packed row, in whole blocks
    CAPACITY,  # units that a packed row takes
    START,  # bytes from the plane of a tile to the first channel
    CHANNELS,
    CHANNEL_AT,  # address of the bytes from there to each channel
    TAPS,
    PLACES,
    PIXEL_AT,  # address of the bytes to what a tap reads at a place, (taps, places); negative: padding
    UNITS,  # of a place in a tile,
    UNIT_STEP,  # the bytes from one to the next,
    LANES,  # and the lanes of each
    FACTORS,  # which factors of lanes: 0, 1, …
    GROUPS,  # address of the one group of rows of the lane dots
) = range(18)
JOB = 18


@loop
def _scaled_copy(y, x, factor):
    for i in range(y.size):
        y[i] = factor[i] * x[i]


@loop
def _fill(y):
    for i in range(y.size):
        y[i] = real(0)


@loop
def _add_to(sums, x):
    for i in range(sums.size):
        sums[i] += x[i]


@helper
def pack_unit(job, packed, column, source, place, factor):
    """Packs what all channels and taps read in one unit."""
    lanes, row_bytes, taps = job[LANES], job[LANE_BYTES], job[TAPS]
    channel_at, pixel_at = integers(job[CHANNEL_AT], job[CHANNELS]), integers(job[PIXEL_AT], taps * job[PLACES])
    target = packed + column * lanes * itemsize
    for channel in range(job[CHANNELS]):
        for tap in range(taps):
            pixel = pixel_at[tap * job[PLACES] + place]
            if pixel >= 0:
                _scaled_copy(reals(target, lanes), reals(source + channel_at[channel] + pixel, lanes), factor)
            else:
                _fill(reals(target, lanes))
            target += row_bytes
    if job[ONES] != 0:
        ones = reals(target, lanes)
        for lane in range(lanes):
            ones[lane] = factor[lane]


@helper
def add_products(job, base, columns):
    """Adds the products of the rows that are packed, of which so many units are filled, to the sums."""
    rows, row_bytes = job[ROWS], job[LANE_BYTES]
    packed, products = base + job[PACKED], base + job[PRODUCTS]
    filled = columns * job[LANES] * itemsize
    for row in range(rows):
        _fill(reals(packed + row * row_bytes + filled, (row_bytes - filled) // itemsize))
    whole = (rows, 1, False)
    terms = (1, packed, packed, packed, packed, packed, packed)
    lane_dots(products, rows, terms, (job[GROUPS], 1), row_bytes, whole, whole)
    _add_to(doubles(base + job[SUMS], rows * rows), reals(products, rows * rows))


@kernel
def gram(job, base, plane, stride, tiles, factors, factors_step, lanes):
    """sums += Σ ā āᵀ over all units of so many tiles (the address of their number), whose planes are ``stride`` bytes
    apart. Each lane of ā is multiplied by its factor; ``factors`` holds ``lanes`` for each tile, and sets of them are
    factors_step apart."""
    of_job = integers(job, JOB)
    column, packed = 0, base + of_job[PACKED]
    first_factor = factors + of_job[FACTORS] * factors_step
    for tile in range(integers(tiles, 1)[0]):
        for unit in range(of_job[UNITS]):
            factor = reals(first_factor + (tile * lanes + unit * of_job[LANES]) * itemsize, of_job[LANES])
            source = plane + tile * stride + of_job[START] + unit * of_job[UNIT_STEP]
            for place in range(of_job[PLACES]):
                pack_unit(of_job, packed, column, source, place, factor)
                column += 1
                if column == of_job[CAPACITY]:
                    add_products(of_job, base, column)
                    column = 0
    if column > 0:
        add_products(of_job, base, column)
