"""Convolutions of 3×3 on pixel lanes by Winograd's algorithm F(2×2, 3×3): 16 products where direct sums need 36.

The outputs are divided into *tiles* of 2×2, each of which reads 4×4 inputs d. With the matrices

    Bᵀ = 1  0 −1  0      G = 1    0   0        Aᵀ = 1  1  1  0
         0  1  1  0          ½    ½   ½             0  1 −1 −1
         0 −1  1  0          ½   −½   ½
         0  1  0 −1          0    0   1

a tile is Aᵀ [Σ_channels (G w Gᵀ) ⊙ (Bᵀ d B)] A. For each of the 16 *points* of ⊙ the sum over the channels is a
product of matrices. A *strip* is one span of tiles, numbered over (sample, row of tiles, column of tiles). Its
transformed inputs are rows (point, channel) that stay in the cache while the panels of transformed weights go by; the
sums of a panel are transformed back at once, unless channels are taken in chunks. All terms of an order are added up
between the transforms. The gradient of the weights is in winograd_gradient.py.

A strip consists of *runs*: tiles of one row of tiles, of which one vector can hold the inputs of each column. What is
outside of the image is masked: it is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Callable

from rop.kernels.compile import Pair, PerPrecision, Terms, helper, itemsize, kernel
from rop.kernels.cpu.gemm import PANEL, SPAN, first_of, share
from rop.kernels.cpu.memory import integers
from rop.kernels.cpu.packing import panel_columns, row_masks, store_column
from rop.kernels.cpu.reads import lanes_of_bits
from rop.kernels.cpu.strips import strip_panel
from rop.kernels.cpu.vector import BLOCK, VECTOR, Value, VectorBuilder, const, peek, vector_function

POINTS, TAPS = 16, 9
SUMS_STEP = POINTS * SPAN + BLOCK  # bytes from row to row of the sums: not a power of two, which would share cache sets

# The words of a product's table, …
PRODUCT_WORDS = 12
(
    ROWS,  # of C
    CHANNELS,  # of the source
    PER_CHUNK,  # channels that are transformed at a time
    TILES,
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
RUN_WORDS = 9
(
    FIRST,  # bytes of the tiles before it in the strip
    SHAPE,  # bytes of its vectors, and 1 if all of a vector has room in the strip
    SOURCE,  # bytes of the lanes before the first input of its first tile
    LINES,  # bits: which of the four rows of inputs are in the image,
    COLUMNS,  # and which columns
    TARGET,  # bytes of the lanes before its first output
    UPPER,  # bits: which outputs of the upper rows of its tiles there are,
    LOWER,  # and of the lower rows
    MINE,  # bits: which lanes of a vector are its tiles
) = range(RUN_WORDS)


def per_shape(e: VectorBuilder, run: Value, emit: Callable[[VectorBuilder, bool], None], narrow: bool) -> None:
    """One version for vectors and one for half vectors, in which short runs take less time; if ``narrow``, each also
    for runs at the end of a strip, whose vectors must not be stored as a whole."""
    shape = e.load_int(e.at(run, 8 * SHAPE))

    def version(size: int, whole: bool) -> Callable[[], None]:
        return lambda: emit(VectorBuilder(e.b, f"f{e.size}", size), whole)

    sizes = (VECTOR, VECTOR // 2)
    if narrow:
        e.switch(shape, {size + whole: version(size, bool(whole)) for size in sizes for whole in (0, 1)})
    else:
        e.switch(e.b.and_(shape, const(~1)), {size: version(size, True) for size in sizes})


# ----------------------------------------------------------------------------------------------------------- transforms
def spread_four(e: VectorBuilder, d: list[Value]) -> list[Value]:
    """Bᵀ d."""
    return [e.b.fsub(d[0], d[2]), e.b.fadd(d[1], d[2]), e.b.fsub(d[2], d[1]), e.b.fsub(d[1], d[3])]


def _join_four(e: VectorBuilder, m: list[Value]) -> list[Value]:
    """Aᵀ m."""
    return [e.b.fadd(e.b.fadd(m[0], m[1]), m[2]), e.b.fsub(e.b.fsub(m[1], m[2]), m[3])]


def _four_columns(e: VectorBuilder, line: Value, masks: list[Value]) -> list[Value]:
    """The inputs of the four columns of all tiles of a run, from one row of the image."""
    size = e.lanes * e.size
    places = [0, size, 2 * e.size, 2 * e.size + size]
    a, b, c, d = (e.load_some(e.at(line, place), mask) for place, mask in zip(places, masks, strict=True))
    even, odd = ([2 * i + k for i in range(e.lanes)] for k in (0, 1))
    return [e.shuffle(a, b, even), e.shuffle(a, b, odd), e.shuffle(c, d, even), e.shuffle(c, d, odd)]


def _emit_spread(e: VectorBuilder, v, steps, x, x_steps, channels, run, zeros) -> None:
    """Bᵀ d B of the tiles of a run for some channels; ``steps`` are the bytes from point to point and from channel to
    channel of v, ``x_steps`` those from channel to channel and from row to row of the images. ``zeros`` is read in
    place of rows outside of the image."""
    (point_step, row_step), (x_step, x_line) = steps, x_steps

    def emit(e: VectorBuilder, whole: bool) -> None:
        first, source, lines, columns, mine = (
            e.load_int(e.at(run, 8 * word)) for word in (FIRST, SOURCE, LINES, COLUMNS, MINE)
        )
        masks = [lanes_of_bits(e, columns, lane) for lane in (0, e.lanes, 2, 2 + e.lanes)]
        stored = lanes_of_bits(e, mine, 0)
        starts, line_steps = [], []
        for line in range(4):
            inside = e.b.trunc(e.b.lshr(lines, const(line)), e.bit(True).type)
            starts.append(e.b.select(inside, e.at(x, source, e.b.mul(x_line, const(line))), zeros))
            line_steps.append(e.b.select(inside, x_step, const(0)))

        def channel(c, carried):
            *places, target = carried
            across = [spread_four(e, _four_columns(e, place, masks)) for place in places]
            down = [spread_four(e, [line[column] for line in across]) for column in range(4)]
            for point in range(POINTS):
                value, place = down[point % 4][point // 4], e.at(target, e.b.mul(point_step, const(point)))
                if whole:
                    e.store(value, place)
                else:
                    e.store_some(value, place, stored)
            moved = [e.at(place, step) for place, step in zip(places, line_steps, strict=True)]
            return [*moved, e.at(target, row_step)]

        e.loop(channels, [*starts, e.at(v, first)], channel)

    per_shape(e, run, emit, narrow=True)


spread_run = PerPrecision(vector_function(_emit_spread, steps=2, x_steps=2))


def _emit_join(e: VectorBuilder, c, c_steps, sums, bias, gate, rows, run) -> None:
    """C (+)= Aᵀ sums A + bias at the tiles of a run for some rows, then the ReLU: ``c`` is (address, whether to add),
    ``c_steps`` are the bytes from channel to channel and from row to row of the images, ``bias`` is (address, step) and
    ``gate`` (relu, mask)."""
    (c, add), (c_step, c_line), (bias, bias_step), (relu, mask) = c, c_steps, bias, gate
    adds = e.b.icmp_signed("!=", add, const(0))

    def emit(e: VectorBuilder, _: bool) -> None:
        first, target, *outputs = (e.load_int(e.at(run, 8 * word)) for word in (FIRST, TARGET, UPPER, LOWER))
        zero = e.number(0)
        floor = e.b.select(e.b.icmp_signed("!=", relu, const(0)), zero, e.number(float("-inf")))
        halves = [(line, half) for line in range(2) for half in range(2)]
        masks = [lanes_of_bits(e, outputs[line], half * e.lanes) for line, half in halves]
        before_masks = [e.b.and_(mask, e.truth(adds)) for mask in masks]

        def row(r, carried):
            place, offset, bias_at = carried
            points = [e.load(e.at(place, SPAN * point)) for point in range(POINTS)]
            down = [_join_four(e, points[column::4]) for column in range(4)]
            tile = [_join_four(e, [down[column][line] for column in range(4)]) for line in range(2)]
            shift = e.broadcast(bias_at)
            places, values = [], []
            for (line, half), before in zip(halves, before_masks, strict=True):
                left, right = tile[line]
                order = [i // 2 + i % 2 * e.lanes for i in range(half * e.lanes, (half + 1) * e.lanes)]
                total = e.shuffle(left, right, order)
                places.append(e.at(offset, e.b.mul(c_line, const(line)), half * e.lanes * e.size))
                total = e.b.fadd(total, e.load_some(e.at(c, places[-1]), before))
                values.append(e.b.fadd(total, shift))
            with e.b.if_else(e.b.icmp_signed("==", mask, const(0))) as (plain, masked):
                with plain:
                    for value, at, there in zip(values, places, masks, strict=True):
                        kept = e.b.select(e.b.fcmp_ordered("<", value, floor), floor, value)
                        e.store_some(kept, e.at(c, at), there)
                with masked:  # relu.is_off, as vector instructions
                    for value, at, there in zip(values, places, masks, strict=True):
                        off = e.b.fcmp_ordered("<=", e.load_some(e.at(mask, at), there), zero)
                        e.store_some(e.b.select(off, zero, value), e.at(c, at), there)
            return [e.at(place, SUMS_STEP), e.at(offset, c_step), e.at(bias_at, bias_step)]

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
def multiply_points(sums, zeros, terms, room, steps, length, add):
    """The sums of all points of one panel: ``terms`` are their number, the addresses of the weights and that of the
    transformed inputs, of which each term has ``room`` bytes; ``steps`` are (rows, bytes of lanes, bytes from point to
    point of the inputs)."""
    (count, a0, a1, a2, v), (m, size, point_step) = terms, steps
    for point in range(POINTS):
        a, b = point * m * length * itemsize, v + point * point_step
        strip_panel(
            (m, size),
            (sums + point * SPAN, SUMS_STEP, add),
            zeros,
            (0, 0),
            (count, a0 + a, b, a1 + a, b + room, a2 + a, b + 2 * room),
            length,
        )


@helper
def multiply_tiles(c, zeros, bias, gate, terms, words, strip, panels, buffer):
    """C at the tiles of one strip, for a range of panels; ``c`` is (address, whether to add)."""
    count, a0, b0, a1, b1, a2, b2 = terms
    rows, channels, per_chunk = words[ROWS], words[CHANNELS], words[PER_CHUNK]
    bounds = words[RUN_TABLE] + 8 * strip
    runs = (peek(bounds), peek(bounds + 8))
    size = BLOCK if (words[TILES] - strip * (SPAN // itemsize)) * itemsize <= BLOCK else SPAN
    point_step = per_chunk * SPAN + BLOCK
    room, every, (low, high) = POINTS * point_step, (rows + PANEL - 1) // PANEL, panels
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
            place = sums if per_chunk >= channels else sums + (row - begin) * SUMS_STEP
            a = POINTS * (first * rows + row * length) * itemsize
            weights = (count, a0 + a, a1 + a, a2 + a, buffer)
            multiply_points(place, zeros, weights, room, (m, size, point_step), length, 1 if first > 0 else 0)
            if first + length == channels:
                at = row * words[C_STEP]
                for run in range(runs[0], runs[1], 8 * RUN_WORDS):
                    join_run(
                        (c[0] + at, c[1]),
                        (words[C_STEP], words[C_LINE]),
                        place,
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
def _emit_pack_points(e: VectorBuilder, y, point_step, w, steps, rows, channels, backwards) -> None:
    """[point][channel][row] of G w Gᵀ, for one panel; ``steps`` are the bytes in w from row to row and from channel to
    channel. With ``backwards`` the taps come in reverse."""
    row_step, channel_step = steps
    masks, column_bytes = row_masks(e, rows), e.b.mul(rows, const(e.size))
    reverse = e.b.icmp_signed("!=", backwards, const(0))
    half = e.number(0.5)

    def spread_three(a: Value, b: Value, c: Value) -> list[Value]:
        """G (a, b, c)."""
        outer = e.b.fadd(a, c)
        return [a, e.b.fmul(half, e.b.fadd(outer, b)), e.b.fmul(half, e.b.fsub(outer, b)), c]

    def channel(c, carried):
        source, target = carried
        taps: list[list[Value]] = []
        for first in range(0, TAPS, e.lanes):
            some = panel_columns(e, e.at(source, first * e.size), row_step, rows, e.first_lanes(const(TAPS - first)))
            taps += some[: TAPS - first]
        points: list[list[Value]] = [[] for _ in range(POINTS)]
        for vectors in zip(*taps, strict=True):
            g = [e.b.select(reverse, vectors[TAPS - 1 - t], vectors[t]) for t in range(TAPS)]
            columns = [spread_three(*g[column::3]) for column in range(3)]
            for line in range(4):
                for column, value in enumerate(spread_three(*(three[line] for three in columns))):
                    points[4 * line + column].append(value)
        for point, vectors_of_point in enumerate(points):
            store_column(e, vectors_of_point, e.at(target, e.b.mul(point_step, const(point))), masks)
        return [e.at(source, channel_step), e.at(target, column_bytes)]

    e.loop(channels, [w, y], channel)


pack_panel_points = PerPrecision(vector_function(_emit_pack_points, steps=2))


@kernel
def pack_points(y, w, table, backwards, part, parts):
    """Panels [chunk][panel][point][channel][row in the panel] of G w Gᵀ; ``table`` has the numbers of rows and
    channels, the channels of a chunk, and the steps in w from row to row and from channel to channel. ``backwards`` is
    1 if the nine taps come in reverse."""
    words = integers(table, 5)
    rows, channels, per_chunk, row_step, channel_step = words[0], words[1], words[2], words[3], words[4]
    every = (rows + PANEL - 1) // PANEL
    for panel in range(every * part // parts, every * (part + 1) // parts):
        m, row = share(every, panel, rows), first_of(every, panel, rows)
        for first in range(0, channels, per_chunk):
            n = min(per_chunk, channels - first)
            pack_panel_points(
                y + POINTS * (first * rows + row * n) * itemsize,
                n * m * itemsize,
                w + (row * row_step + first * channel_step) * itemsize,
                (row_step * itemsize, channel_step * itemsize),
                m,
                n,
                backwards,
            )
