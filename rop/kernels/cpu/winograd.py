"""Convolutions of 3×3 on pixel lanes by Winograd's algorithm: (m + 2)² products for m×m outputs, where direct sums need
9 m². With tiles of 2×2 that is 16 for 36, with tiles of 4×4 36 for 144.

The transforms are in tiles.py. For each of the *points* of ⊙ the sum over the channels is a product of matrices. A
*strip* is one span of tiles, numbered over (sample, row of tiles, column of tiles). Its transformed inputs are rows
(point, channel) that stay in the cache while the panels of transformed weights go by; the sums of a panel are
transformed back at once, unless channels are taken in chunks. All terms of an order are added up between the
transforms. The gradient of the weights is in winograd_gradient.py.

A strip consists of *runs*: tiles of one row of tiles, of which one vector can hold the inputs of each column. What is
outside of the image is masked: it is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rop.kernels.compile import Pair, PerPrecision, Terms, helper, itemsize, kernel
from rop.kernels.cpu.gemm import PANEL, SPAN, first_of, share
from rop.kernels.cpu.memory import integers
from rop.kernels.cpu.packing import panel_columns, row_masks
from rop.kernels.cpu.strips import strip_panel
from rop.kernels.cpu.tiles import TILES, Tile, both_ways, columns_of, pixels_of, with_neighbours
from rop.kernels.cpu.vector import BLOCK, VECTOR, Value, VectorBuilder, const, peek, vector_function

TAPS = 9
# Long sums round more, which larger tiles cannot afford: there at most so many channels, and at most half of those that
# are transformed at a time, have sums of their own.
SUMMED = 32
LEAST_POINTS = min(tile.points for tile in TILES.values())

# The words of a product's table, …
PRODUCT_WORDS = 13
(
    SIDE,  # outputs of a tile in each direction
    ROWS,  # of C
    CHANNELS,  # of the source
    PER_CHUNK,  # channels that are transformed at a time
    TILE_COUNT,
    STRIPS,
    STRIP_PARTS,  # units are parts of the strips × parts of the panels
    ROW_PARTS,
    C_STEP,  # bytes from channel to channel
    X_STEP,
    C_LINE,  # bytes from one row of an image to the next
    X_LINE,
    RUN_TABLE,  # address: for each strip, the address of its first run, and the end of the last
) = range(PRODUCT_WORDS)
# … and of each run.
RUN_WORDS = 10
(
    FIRST,  # bytes of the tiles before it in the strip
    SHAPE,  # bytes of its vectors + side of its tiles, and 1 if all of a vector has room in the strip
    LENGTH,  # tiles
    SOURCE,  # bytes of the lanes before the first input of its first tile
    LINES,  # bits: which of the rows of inputs are in the image
    LEFT,  # columns of inputs before the first that is in the image,
    RIGHT,  # and before the first after those
    TARGET,  # bytes of the lanes before its first output
    DOWN,  # rows of outputs,
    ACROSS,  # and columns
) = range(RUN_WORDS)


def per_shape(e: VectorBuilder, run: Value, emit: Callable[[VectorBuilder, Tile, bool], None], narrow: bool) -> None:
    """For each size of tiles one version for vectors and one for half vectors, in which short runs take less time; if
    ``narrow``, each also for runs at the end of a strip, whose vectors must not be stored as a whole."""
    shape = e.load_int(e.at(run, 8 * SHAPE))

    def version(size: int, side: int, whole: bool) -> Callable[[], None]:
        return lambda: emit(VectorBuilder(e.b, f"f{e.size}", size), TILES[side], whole)

    cases = [(size, side) for size in (VECTOR, VECTOR // 2) for side in TILES]
    if narrow:
        e.switch(shape, {size + side + k: version(size, side, bool(k)) for size, side in cases for k in (0, 1)})
    else:
        e.switch(e.b.and_(shape, const(~1)), {size + side: version(size, side, True) for size, side in cases})


def lanes_between(e: VectorBuilder, low: Value, high: Value, first: int) -> Value:
    """A truth value for every lane of a vector: whether its number, counted from ``first``, is from low to high − 1."""
    below, above = (e.first_lanes(e.b.sub(count, const(first))) for count in (low, high))
    return e.b.and_(above, e.b.not_(below))


def store_points(e: VectorBuilder, values: Sequence[Value], place: Value, step: Value, stored: Value | None) -> None:
    """Stores a value of each point, of all lanes or of those that are ``stored``."""
    for point, value in enumerate(values):
        at = e.at(place, e.b.mul(step, const(point)))
        if stored is None:
            e.store(value, at)
        else:
            e.store_some(value, at, stored)


# ----------------------------------------------------------------------------------------------------------- transforms
def _emit_spread(e: VectorBuilder, v, steps, x, x_steps, channels, run, zeros) -> None:
    """Bᵀ d B of the tiles of a run for some channels; ``steps`` are the bytes from point to point and from channel to
    channel of v, ``x_steps`` those from channel to channel and from row to row of the images. ``zeros`` is read in
    place of rows outside of the image."""
    (point_step, row_step), (x_step, x_line) = steps, x_steps

    def emit(e: VectorBuilder, tile: Tile, whole: bool) -> None:
        first, length, source, lines, left, right = (
            e.load_int(e.at(run, 8 * word)) for word in (FIRST, LENGTH, SOURCE, LINES, LEFT, RIGHT)
        )
        masks = [lanes_between(e, left, right, k * e.lanes) for k in range(tile.side + 1)]
        stored = None if whole else e.first_lanes(length)
        starts, line_steps = [], []
        for line in range(tile.reach):
            inside = e.b.trunc(e.b.lshr(lines, const(line)), e.bit(True).type)
            starts.append(e.b.select(inside, e.at(x, source, e.b.mul(x_line, const(line))), zeros))
            line_steps.append(e.b.select(inside, x_step, const(0)))

        def channel(c, carried):
            *places, target = carried
            down = []
            for k, mask in enumerate(masks):
                down.append(tile.spread_inputs(e, [e.load_some(e.at(at, k * e.lanes * e.size), mask) for at in places]))
            for line, (*pixels, beyond) in enumerate(zip(*down, strict=True)):
                across = tile.spread_inputs(e, with_neighbours(e, columns_of(e, pixels), beyond))
                begin = e.at(target, e.b.mul(point_step, const(line * tile.reach)))
                store_points(e, across, begin, point_step, stored)
            moved = [e.at(place, step) for place, step in zip(places, line_steps, strict=True)]
            return [*moved, e.at(target, row_step)]

        e.loop(channels, [*starts, e.at(v, first)], channel)

    per_shape(e, run, emit, narrow=True)


spread_run = PerPrecision(vector_function(_emit_spread, steps=2, x_steps=2))


def _emit_join(e: VectorBuilder, c, c_steps, sums, sums_step, bias, gate, rows, run) -> None:
    """C (+)= Aᵀ sums A + bias at the tiles of a run for some rows, then the ReLU: ``c`` is (address, whether to add),
    ``c_steps`` are the bytes from channel to channel and from row to row of the images, ``bias`` is (address, step) and
    ``gate`` (relu, mask)."""
    (c, add), (c_step, c_line), (bias, bias_step), (relu, mask) = c, c_steps, bias, gate
    adds, gated, relus = (e.b.icmp_signed("!=", word, const(0)) for word in (add, mask, relu))

    def emit(e: VectorBuilder, tile: Tile, _: bool) -> None:
        first, target, lines, columns = (e.load_int(e.at(run, 8 * word)) for word in (FIRST, TARGET, DOWN, ACROSS))
        zero = e.number(0)
        floor = e.b.select(relus, zero, e.number(float("-inf")))
        masks = [e.first_lanes(e.b.sub(columns, const(k * e.lanes))) for k in range(tile.side)]
        before_masks = [e.b.and_(mask, e.truth(adds)) for mask in masks]

        def finish(pixels: list[Value], begin: Value, shift: Value) -> None:
            """Adds what was there and the bias to a row of pixels, and stores it through the ReLU."""
            places = [e.at(begin, k * e.lanes * e.size) for k in range(tile.side)]
            values = []
            for value, place, before in zip(pixels, places, before_masks, strict=True):
                values.append(e.b.fadd(e.b.fadd(value, e.load_some(e.at(c, place), before)), shift))
            with e.b.if_else(gated) as (masked, plain):
                with plain:
                    for value, place, there in zip(values, places, masks, strict=True):
                        kept = e.b.select(e.b.fcmp_ordered("<", value, floor), floor, value)
                        e.store_some(kept, e.at(c, place), there)
                with masked:  # relu.is_off, as vector instructions
                    for value, place, there in zip(values, places, masks, strict=True):
                        off = e.b.fcmp_ordered("<=", e.load_some(e.at(mask, place), there), zero)
                        e.store_some(e.b.select(off, zero, value), e.at(c, place), there)

        def row(r, carried):
            place, offset, bias_at = carried
            points = [e.load(e.at(place, SPAN * point)) for point in range(tile.points)]
            down = [tile.join_outputs(e, points[column :: tile.reach]) for column in range(tile.reach)]
            shift = e.broadcast(bias_at)
            for line, values in enumerate(zip(*down, strict=True)):
                with e.b.if_then(e.b.icmp_signed("<", const(line), lines)):
                    pixels = pixels_of(e, tile.join_outputs(e, values))
                    finish(pixels, e.at(offset, e.b.mul(c_line, const(line))), shift)
            return [e.at(place, sums_step), e.at(offset, c_step), e.at(bias_at, bias_step)]

        e.loop(rows, [e.at(sums, first), target, bias], row)

    per_shape(e, run, emit, narrow=False)


join_run = PerPrecision(vector_function(_emit_join, c=2, c_steps=2, bias=2, gate=2))


# ------------------------------------------------------------------------------------------------------------- products
@helper
def spread_strip(v, steps, x, words, runs, channels, zeros):
    """Bᵀ d B of the tiles of a strip for some channels; ``runs`` are the addresses of its first run and of the end."""
    for run in range(runs[0], runs[1], 8 * RUN_WORDS):
        spread_run(v, steps, x, (words[X_STEP], words[X_LINE]), channels, run, zeros)


@helper
def sums_step(points):
    """Bytes from row to row of the sums: not a power of two, which would share cache sets."""
    return points * SPAN + BLOCK


@helper
def multiply_points(sums, zeros, terms, points, steps, length, add):
    """The sums of all points of one panel: ``terms`` are their number, the addresses of the weights and that of the
    transformed inputs, and the bytes that a term has of these; ``steps`` are (rows, bytes of lanes, bytes from point to
    point of the inputs)."""
    (count, a0, a1, a2, v, room), (m, size, point_step) = terms, steps
    pieces = 1 if points == LEAST_POINTS else max(2, (length + SUMMED - 1) // SUMMED)
    piece = (length + pieces - 1) // pieces
    for point in range(points):
        for first in range(0, length, piece):
            a, b = (point * length + first) * m * itemsize, v + point * point_step + first * size
            strip_panel(
                (m, size),
                (sums + point * SPAN, sums_step(points), 1 if first > 0 else add),
                zeros,
                (0, 0),
                (count, a0 + a, b, a1 + a, b + room, a2 + a, b + 2 * room),
                min(piece, length - first),
            )


@helper
def multiply_tiles(c, zeros, bias, gate, terms, words, strip, panels, buffer):
    """C at the tiles of one strip, for a range of panels; ``c`` is (address, whether to add)."""
    count, a0, b0, a1, b1, a2, b2 = terms
    rows, channels, per_chunk = words[ROWS], words[CHANNELS], words[PER_CHUNK]
    points, bounds = (words[SIDE] + 2) * (words[SIDE] + 2), words[RUN_TABLE] + 8 * strip
    runs = (peek(bounds), peek(bounds + 8))
    size = BLOCK if (words[TILE_COUNT] - strip * (SPAN // itemsize)) * itemsize <= BLOCK else SPAN
    point_step = per_chunk * SPAN + BLOCK
    room, every, (low, high) = points * point_step, (rows + PANEL - 1) // PANEL, panels
    sums = buffer + 2 * room
    for first in range(0, channels, per_chunk):
        length = min(per_chunk, channels - first)
        for term in range(count):
            x = (b0 if term == 0 else b1 if term == 1 else b2) + first * words[X_STEP]
            spread_strip(buffer + term * room, (point_step, size), x, words, runs, length, zeros)
        begin = first_of(every, low, rows)
        row = begin
        for index in range(low, high):
            m = share(every, index, rows)
            place = sums if per_chunk >= channels else sums + (row - begin) * sums_step(points)
            a = points * (first * rows + row * length) * itemsize
            factors = (count, a0 + a, a1 + a, a2 + a, buffer, room)
            multiply_points(place, zeros, factors, points, (m, size, point_step), length, 1 if first > 0 else 0)
            if first + length == channels:
                at = row * words[C_STEP]
                for run in range(runs[0], runs[1], 8 * RUN_WORDS):
                    join_run(
                        (c[0] + at, c[1]),
                        (words[C_STEP], words[C_LINE]),
                        place,
                        sums_step(points),
                        (bias[0] + row * bias[1], bias[1]),
                        (gate[0], gate[1] + at if gate[1] != 0 else 0),
                        m,
                        run,
                    )
            row += m


@kernel
def winograd_products(c, zeros, bias, bias_step, gate: Pair, add, terms: Terms, table, buffer, unit):
    """C (row, position) (+)= bias + Σ_terms W * B, for one unit of the strips and panels that ``table`` describes. B
    are maps, W the panels of ``pack_points``; ``zeros`` stands for a bias of zero and for rows outside of an image."""
    words = integers(table, PRODUCT_WORDS)
    part, row_part = unit // words[ROW_PARTS], unit % words[ROW_PARTS]
    every = (words[ROWS] + PANEL - 1) // PANEL
    panels = (every * row_part // words[ROW_PARTS], every * (row_part + 1) // words[ROW_PARTS])
    for strip in range(words[STRIPS] * part // words[STRIP_PARTS], words[STRIPS] * (part + 1) // words[STRIP_PARTS]):
        multiply_tiles((c, add), zeros, (bias, bias_step), gate, terms, words, strip, panels, buffer)


# ------------------------------------------------------------------------------------------------------------- weights
def _emit_pack_points(e: VectorBuilder, y, point_step, w, steps, rows, channels, backwards, side) -> None:
    """[point][channel][row] of G w Gᵀ, for one panel; ``steps`` are the bytes in w from row to row and from channel to
    channel. With ``backwards`` the taps come in reverse."""
    row_step, channel_step = steps
    masks, column_bytes = row_masks(e, rows), e.b.mul(rows, const(e.size))
    reverse = e.b.icmp_signed("!=", backwards, const(0))

    def emit(tile: Tile) -> None:
        def channel(c, carried):
            source, target = carried
            taps: list[list[Value]] = []
            for first in range(0, TAPS, e.lanes):
                there = e.first_lanes(const(TAPS - first))
                taps += panel_columns(e, e.at(source, first * e.size), row_step, rows, there)[: TAPS - first]
            for i, vectors in enumerate(zip(*taps, strict=True)):
                g = [e.b.select(reverse, vectors[TAPS - 1 - t], vectors[t]) for t in range(TAPS)]
                lines = both_ways(e, tile.spread_taps, [g[line : line + 3] for line in range(0, TAPS, 3)])
                values = [value for line in lines for value in line]
                store_points(e, values, e.at(target, VECTOR * i), point_step, masks[i])
            return [e.at(source, channel_step), e.at(target, column_bytes)]

        e.loop(channels, [w, y], channel)

    e.switch(side, {tile.side: partial(emit, tile) for tile in TILES.values()})


pack_panel_points = PerPrecision(vector_function(_emit_pack_points, steps=2))


@kernel
def pack_points(y, w, table, backwards, part, parts):
    """Panels [chunk][panel][point][channel][row in the panel] of G w Gᵀ; ``table`` has the side of the tiles, the
    numbers of rows and channels, the channels of a chunk, and the steps in w from row to row and from channel to
    channel. ``backwards`` is 1 if the nine taps come in reverse."""
    words = integers(table, 6)
    side, rows, channels, per_chunk, row_step, channel_step = words[0], words[1], words[2], words[3], words[4], words[5]
    points, every = (side + 2) * (side + 2), (rows + PANEL - 1) // PANEL
    for panel in range(every * part // parts, every * (part + 1) // parts):
        m, row = share(every, panel, rows), first_of(every, panel, rows)
        for first in range(0, channels, per_chunk):
            n = min(per_chunk, channels - first)
            pack_panel_points(
                y + points * (first * rows + row * n) * itemsize,
                n * m * itemsize,
                w + (row * row_step + first * channel_step) * itemsize,
                (row_step * itemsize, channel_step * itemsize),
                m,
                n,
                backwards,
                side,
            )
