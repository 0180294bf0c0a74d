"""Addresses as arrays, and kernels that move rows: data in, outputs out, partial sums into the gradient."""

from __future__ import annotations

import numpy as np
from numba import carray

from rop.kernels.compile import Extent, Pair, PerPrecision, Slice, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.vector import VECTOR, VectorBuilder, as_pointer, const, vector_function


@helper
def reals(address, count):
    """The array (count,) of the engine's precision at an address."""
    return carray(as_pointer(address), count, real)


@helper
def of_pixel(address, place):
    """The rows of one pixel, as an array (rows, lanes); ``place`` is (pixel, rows, lanes). Loops over two indices are
    vector code; over a flat array they are not, because a sum of two might be negative and count from the end."""
    pixel, rows, lanes = place
    return carray(as_pointer(address + pixel * rows * lanes * itemsize), (rows, lanes), real)


@helper
def integers(address, count):
    """The array (count,) of int64 at an address."""
    return carray(as_pointer(address), count, np.int64)


@helper
def doubles(address, count):
    """The array (count,) of float64 at an address."""
    return carray(as_pointer(address), count, np.float64)


@helper
def bounds_of(count, part):
    """Begin and end of a slice of so many things; ``part`` is a Slice."""
    return count * part[0] // part[1], count * (part[0] + 1) // part[1]


@helper
def window_entry(windows, entry, lanes):
    """The lanes (lane,) and the words (lane,) of one entry of all windows. Lanes have no sign: numbers that might be
    negative count from the end, which keeps loops from reading several at once."""
    _, first, words = windows
    lane = carray(as_pointer(first + 8 * entry * lanes), lanes, np.uint64)
    return lane, reals(words + itemsize * entry * lanes, lanes)


@helper
def jet_of_reals(jet, count):
    """The arrays (count,) of the engine's precision of all orders."""
    return reals(jet[0], count), reals(jet[1], count), reals(jet[2], count)


@helper
def jet_of_pixel(jet, place):
    """The rows of one pixel at all orders, as arrays (rows, lanes); ``place`` is (pixel, rows, lanes)."""
    return of_pixel(jet[0], place), of_pixel(jet[1], place), of_pixel(jet[2], place)


@loop
def clear(y):
    """y = 0."""
    for i in range(y.size):
        y[i] = real(0)


def _emit_transpose(e: VectorBuilder, y, y_step, x, x_step, index) -> None:
    """A square block of one vector's width: y[i, l] = x[index[l], i]; rows are y_step and x_step bytes apart."""
    rows = []
    for i in range(e.lanes):
        sample = e.load_int(e.at(index, 8 * i))
        sample = e.b.select(e.b.icmp_signed("<", sample, const(0)), e.b.xor(sample, const(-1)), sample)
        rows.append(e.load(e.at(x, e.b.mul(sample, x_step))))
    for i, row in enumerate(e.transposed(rows)):
        e.store(row, e.at(y, e.b.mul(y_step, const(i))))


transpose_block = PerPrecision(vector_function(_emit_transpose))


@helper
def transpose_rows(y, y_step, x, x_step, index, rows, lanes):
    """y (rows, lanes) from x (lanes, rows), whose rows are chosen by index (lanes,). The last blocks overlap the ones
    before them."""
    width = VECTOR // itemsize
    for t in range(0, lanes, width):
        lane = min(t, lanes - width)
        for row in range(0, rows, width):
            start = min(row, rows - width)
            transpose_block(
                y + start * y_step + lane * itemsize, y_step, x + start * itemsize, x_step, index + 8 * lane
            )


@kernel
def lane_mask(mask, samples, lanes):
    """mask (lane,) = 1, or 0 for padding."""
    sample, valid = integers(samples, lanes), reals(mask, lanes)
    for t in range(lanes):
        valid[t] = real(1) if sample[t] >= 0 else real(0)


@kernel
def load_maps(y, x, samples, extent: Extent, pixels, part: Slice):
    """The images of a tile on pixel lanes: y (channel, (sample, pixel)) from x (sample, channel, pixel)."""
    _, channels, lanes, row = extent
    images = lanes // pixels
    sample = integers(samples, images)
    low, high = bounds_of(images, part)
    for n in range(low, high):
        i = sample[n] if sample[n] >= 0 else ~sample[n]
        for c in range(channels):
            source = reals(x + (i * channels + c) * pixels * itemsize, pixels)
            target = reals(y + c * row + n * pixels * itemsize, pixels)
            for p in range(pixels):
                target[p] = source[p]


@kernel
def maps_to_samples(y, x, extent: Extent, pixels, row_steps: Pair, lane_bytes, part: Slice):
    """y (row, sample) from a map x (channel, (sample, pixel)); ``row_steps`` are the rows of y from channel to channel
    and from pixel to pixel. Lanes of y that have no sample become zero."""
    _, channels, lanes, row = extent
    images = lanes // pixels
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        source = reals(x + c * row, lanes)
        for p in range(pixels):
            target = reals(y + (c * row_steps[0] + p * row_steps[1]) * lane_bytes, lane_bytes // itemsize)
            for n in range(images):
                target[n] = source[n * pixels + p]
            for n in range(images, target.size):
                target[n] = real(0)


@kernel
def samples_to_maps(x, y, extent: Extent, pixels, row_steps: Pair, lane_bytes, part: Slice):
    """The reverse of ``maps_to_samples``."""
    _, channels, lanes, row = extent
    images = lanes // pixels
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target = reals(x + c * row, lanes)
        for p in range(pixels):
            source = reals(y + (c * row_steps[0] + p * row_steps[1]) * lane_bytes, images)
            for n in range(images):
                target[n * pixels + p] = source[n]


@kernel
def load(y, x, samples, order, rows, features, lanes):
    """The data of a tile: y (row, lane) = x[sample of the lane, order[row]], with x (sample, feature), samples (lane,)
    and order (row,). A negative sample ~i is a copy of sample i that the loss does not count. order[row] = −1 gives a
    row of zeros (padding); the address 0 for ``order`` means that row i is feature i."""
    if order == 0 and rows >= VECTOR // itemsize:
        transpose_rows(y, lanes * itemsize, x, features * itemsize, samples, rows, lanes)
        return
    sample = integers(samples, lanes)
    target = reals(y, rows * lanes)
    row_order = integers(order, rows)
    for lane in range(lanes):
        i = sample[lane]
        source = reals(x + (i if i >= 0 else ~i) * features * itemsize, features)
        for row in range(rows):
            feature = row if order == 0 else row_order[row]
            target[row * lanes + lane] = source[feature] if feature >= 0 else real(0)


@kernel
def store(y, x, samples, order, rows, lanes):
    """The outputs of a tile in the user's layout: y[lane, order[row]] = x (row, lane); padding is left out."""
    target = reals(y, rows * lanes)
    source = reals(x, rows * lanes)
    row_order = integers(order, rows)
    sample = integers(samples, lanes)
    for lane in range(lanes):
        if sample[lane] >= 0:
            for row in range(rows):
                target[lane * rows + row_order[row]] = source[row * lanes + lane]


@kernel
def gather(y, x, index, count, part, parts):
    """y[i] = x[index[i]], for slice ``part`` of ``parts``."""
    target = reals(y, count)
    chosen = integers(index, count)
    source = reals(x, 1 << 40)
    for i in range(count * part // parts, count * (part + 1) // parts):
        target[i] = source[chosen[i]]


@kernel
def collect(out, partial, step, tiles, index, count, add, part, parts):
    """out[index[i]] (+)= Σ_tiles partial[tile][i], in the order of the tiles, for slice ``part`` of ``parts``; numbers
    with a negative index are dropped. ``tiles`` is the address of their number, ``step`` the bytes from one tile's
    partial sums to the next."""
    low = count * part // parts
    n = count * (part + 1) // parts - low
    total = reals(partial + low * itemsize, n)
    for tile in range(1, integers(tiles, 1)[0]):
        one = reals(partial + tile * step + low * itemsize, n)
        for i in range(n):
            total[i] += one[i]
    place = integers(index + 8 * low, n)
    target = reals(out, 1 << 40)
    for i in range(n):
        if place[i] >= 0:
            target[place[i]] = target[place[i]] + total[i] if add else total[i]


def _emit_total(e: VectorBuilder, out, x, step, tiles, count, add) -> None:
    """out[i] (+)= Σ_tiles x[tile][i] for i < count; tiles are ``step`` bytes apart."""

    def block(i, _):
        here = e.b.mul(i, const(VECTOR))
        lanes = e.first_lanes(e.b.sub(count, e.b.mul(i, const(e.lanes))))
        place = e.at(out, here)
        before = e.b.select(e.b.icmp_signed("!=", add, const(0)), e.load_some(place, lanes), e.number(0))

        def tile(t, total):
            return [e.b.fadd(total[0], e.load_some(e.at(x, here, e.b.mul(t, step)), lanes))]

        e.store_some(e.loop(tiles, [before], tile)[0], place, lanes)
        return []

    e.loop(e.b.sdiv(e.at(count, e.lanes - 1), const(e.lanes)), [], block)


total_of_tiles = PerPrecision(vector_function(_emit_total))


@kernel
def collect_runs(out, partial, step, tiles, runs, count, add, part, parts):
    """The same as ``collect`` for partial sums whose runs are contiguous in ``out`` as well. ``runs`` (count, 3) int64
    holds the start of each run in the partial sums, its start in out, and its length."""
    tile_count = integers(tiles, 1)[0]
    table = integers(runs, 3 * count)
    for run in range(count * part // parts, count * (part + 1) // parts):
        total_of_tiles(
            out + table[3 * run + 1] * itemsize,
            partial + table[3 * run] * itemsize,
            step,
            tile_count,
            table[3 * run + 2],
            add,
        )
