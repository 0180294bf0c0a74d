"""Convolutions on pixel lanes: strips of positions, packed tap by tap, times panels of weights.

A map is (channel, lane), with a lane for each pixel of each sample. What the positions of a strip (reads.py) read
through all taps is packed into rows (channel, tap) that stay in the cache while the panels of weights go by, so that
padding is zero there and nowhere else, and neither strides nor dilations cost anything in the micro-kernel. A chunk of
channels at a time is packed; sums over chunks are made in C.

    C (row, position) (+)= bias + Σ_terms A (row, (channel, tap)) · packed ((channel, tap), position)

The gradient of the weights is a product over the lanes: the source is *turned* into (block of channels, lane, channel),
and each tap pairs runs of positions, its *segments*, with runs of lanes of the source.

    D (row, tap, channel) = Σ_terms Σ_segments g (row, position) · turned (lane, channel)
"""

from __future__ import annotations

from rop.kernels.compile import (
    Extent,
    Pair,
    PerPrecision,
    Slice,
    Terms,
    helper,
    itemsize,
    kernel,
    loop,
    real,
)
from rop.kernels.cpu.batchnorm import PIECE
from rop.kernels.cpu.gemm import PANEL, SEGMENT, SPAN, TERMS, first_of, panel_sums, share, term_of
from rop.kernels.cpu.memory import bounds_of, clear, integers, reals, transpose_block
from rop.kernels.cpu.packing import copy_columns, turn_rows
from rop.kernels.cpu.reads import (
    C_STEP,
    READS_WORDS,
    SHIFTS,
    SOURCE,
    STRIP_TABLE,
    STRIP_WORDS,
    STRIPS,
    TAPS,
    TARGET,
    X_STEP,
    Strip,
    per_strip,
    strip_bytes,
)
from rop.kernels.cpu.vector import (
    BLOCK,
    CACHE_LINE,
    VECTOR,
    Value,
    VectorBuilder,
    const,
    peek,
    prefetch,
    vector_function,
)

# The words of a product's table, after those of what it reads.
PRODUCT_WORDS = READS_WORDS + 5
(
    ROWS,  # of a group
    CHANNELS,  # of a group of the source
    PER_CHUNK,  # channels that are packed at a time
    STRIP_PARTS,  # units are groups × parts of the strips × parts of the panels
    ROW_PARTS,
) = range(READS_WORDS, PRODUCT_WORDS)


# --------------------------------------------------------------------------------------------------------- micro-kernel
def _strip_sums(e: VectorBuilder, rows: int, size: int, terms, length) -> list[Value]:
    """The sums of one panel over ``length`` packed rows of ``size`` bytes; A lies in panels."""
    count, *factors = terms
    lanes = range(0, size, VECTOR)

    def term(t, sums):
        def step(j, carried):
            *sums, a, b = carried
            vectors = [e.load(e.at(b, lane)) for lane in lanes]
            new = []
            for i in range(rows):
                scale = e.broadcast(e.at(a, e.size * i))
                new += [e.fma(scale, vector, sums[len(lanes) * i + v]) for v, vector in enumerate(vectors)]
            return [*new, e.at(a, e.size * rows), e.at(b, size)]

        start = [term_of(e, t, factors[::2]), term_of(e, t, factors[1::2])]
        return e.loop(length, [*sums, *start], step)[:-2]

    return e.loop(count, [e.number(0)] * (len(lanes) * rows), term)


def store_panel(e: VectorBuilder, sums: list[Value], rows: int, size: int, c, bias, gate) -> None:
    """C (+)= sums + bias, then the ReLU; ``c`` is (address, step, whether to add), ``gate`` (relu, mask)."""
    (c, c_step, add), (relu, mask) = c, gate
    lanes, zero = range(0, size, VECTOR), e.number(0)
    adds = e.b.icmp_signed("!=", add, const(0))
    floor = e.b.select(e.b.icmp_signed("!=", relu, const(0)), zero, e.number(float("-inf")))
    places = [e.at(e.b.mul(c_step, const(i)), lane) for i in range(rows) for lane in lanes]
    biases = [e.broadcast(e.at(bias, e.size * i)) for i in range(rows)]
    values = []
    for i, (total, place) in enumerate(zip(sums, places, strict=True)):
        before = e.b.select(adds, e.load(e.at(c, place)), zero)
        values.append(e.b.fadd(e.b.fadd(total, before), biases[i // len(lanes)]))
    with e.b.if_else(e.b.icmp_signed("==", mask, const(0))) as (plain, masked):
        with plain:
            for value, place in zip(values, places, strict=True):
                e.store(e.b.select(e.b.fcmp_ordered("<", value, floor), floor, value), e.at(c, place))
        with masked:  # relu.is_off, as vector instructions
            for value, place in zip(values, places, strict=True):
                off = e.b.fcmp_ordered("<=", e.load(e.at(mask, place)), zero)
                e.store(e.b.select(off, zero, value), e.at(c, place))


def _emit_strip(e: VectorBuilder, shape, c, bias, gate, terms, length) -> None:
    """One version for each number of rows and bytes of lanes; ``bias`` has as many numbers as the panel rows."""
    rows, size = shape

    def version(m: int, span: int):
        return lambda: store_panel(e, _strip_sums(e, m, span, terms, length), m, span, c, bias, gate)

    e.switch(e.at(rows, size), {m + span: version(m, span) for m in range(1, PANEL + 1) for span in {BLOCK, SPAN}})


strip_panel = PerPrecision(vector_function(_emit_strip, shape=2, c=3, gate=2, terms=TERMS))


# -------------------------------------------------------------------------------------------------------------- packing
def _emit_pack(e: VectorBuilder, y, x, x_step, channels, shifts, words, taps) -> None:
    """y ((channel, tap), position): what a strip reads of some channels through all taps."""

    def emit(strip: Strip) -> None:
        def channel(c, carried):
            def tap(t, carried):
                (place,) = carried
                what, row = strip.tap(t, shifts), e.at(x, e.b.mul(c, x_step))
                for lane in strip:
                    e.store(what.read(row, lane), e.at(place, lane))
                return [e.at(place, strip.size)]

            return e.loop(taps, carried, tap)

        e.loop(channels, [y], channel)

    per_strip(e, words, emit)


pack_strip = PerPrecision(vector_function(_emit_pack))


# ------------------------------------------------------------------------------------------------------------- products
@helper
def prefetch_spans(address, step, count):
    """Asks for the next span of ``count`` rows, of which the next strip will use two cache lines each: too few for the
    machine to notice by itself."""
    for i in range(count):
        for line in range(SPAN, 2 * SPAN, CACHE_LINE):
            prefetch(address + i * step + line)


@helper
def multiply_strip(c, bias, gate, add, terms, words, strip, channels, panels, buffer):
    """Adds the share of a range of channels to the rows of C in a range of panels, at the positions of one strip. The
    bias, which is (address, step), and the ReLU come with the last channels."""
    (bias, bias_step), (relu, mask), (first, end) = bias, gate, channels
    count, a0, b0, a1, b1, a2, b2 = terms
    rows, taps, c_step, x_step = words[ROWS], words[TAPS], words[C_STEP], words[X_STEP]
    size = strip_bytes(strip)
    room = words[PER_CHUNK] * taps * SPAN
    for term in range(count):
        x = (b0 if term == 0 else b1 if term == 1 else b2) + first * x_step
        pack_strip(buffer + term * room, x, x_step, end - first, words[SHIFTS], strip, taps)
        prefetch_spans(x + peek(strip + 8 * SOURCE), x_step, end - first)
    last = end == words[CHANNELS]
    length, every = (end - first) * taps, (rows + PANEL - 1) // PANEL
    row = first_of(every, panels[0], rows)
    at = peek(strip + 8 * TARGET) + row * c_step
    for panel in range(panels[0], panels[1]):
        m = share(every, panel, rows)
        skipped = (first * taps * rows + row * length) * itemsize
        prefetch_spans(c + at, c_step, m)
        if mask != 0 and last:
            prefetch_spans(mask + at, c_step, m)
        strip_panel(
            (m, size),
            (c + at, c_step, 1 if first > 0 else add),
            bias + row * bias_step,
            (relu if last else 0, mask + at if mask != 0 and last else 0),
            (count, a0 + skipped, buffer, a1 + skipped, buffer + room, a2 + skipped, buffer + 2 * room),
            length,
        )
        row += m
        at += m * c_step


@kernel
def strip_products(c, zeros, bias, bias_step, gate: Pair, add, terms: Terms, table, buffer, unit):
    """C (group, row, position) (+)= bias + Σ_terms A packed(B), for one unit of the strips, panels and groups that
    ``table`` describes. B are maps, A panels for each group and chunk; ``zeros`` stands for a bias of zero."""
    words = integers(table, PRODUCT_WORDS)
    count, a0, b0, a1, b1, a2, b2 = terms
    relu, mask = gate
    rows, channels, strips = words[ROWS], words[CHANNELS], words[STRIPS]
    per_group = words[STRIP_PARTS] * words[ROW_PARTS]
    group, rest = unit // per_group, unit % per_group
    strip_part, row_part = rest // words[ROW_PARTS], rest % words[ROW_PARTS]
    a, b = group * rows * channels * words[TAPS] * itemsize, group * channels * words[X_STEP]
    place = group * rows * words[C_STEP]
    of_group = (count, a0 + a, b0 + b, a1 + a, b1 + b, a2 + a, b2 + b)
    every = (rows + PANEL - 1) // PANEL
    panels = (every * row_part // words[ROW_PARTS], every * (row_part + 1) // words[ROW_PARTS])
    for first in range(0, channels, words[PER_CHUNK]):
        end = min(first + words[PER_CHUNK], channels)
        for index in range(strips * strip_part // words[STRIP_PARTS], strips * (strip_part + 1) // words[STRIP_PARTS]):
            multiply_strip(
                c + place,
                (bias + group * rows * bias_step, bias_step) if end == channels else (zeros, 0),
                (relu, mask + place if mask != 0 else 0),
                add,
                of_group,
                words,
                words[STRIP_TABLE] + 8 * STRIP_WORDS * index,
                (first, end),
                panels,
                buffer,
            )


@helper
def pack_panel(y, w, steps, m, n, taps):
    """[(channel, tap)][row] of a panel of m rows and n channels; ``taps`` are those of w in the order of the panel,
    ``steps`` those in w from row to row and from channel to channel."""
    row_step, channel_step = steps
    in_order = True
    for t in range(taps.size):
        in_order = in_order and taps[t] == t
    if in_order and row_step == 1:
        copy_columns(y, w, channel_step * itemsize, m, n)
    elif in_order and channel_step == taps.size:
        turn_rows(y, w, row_step * itemsize, m, n * taps.size)
    elif in_order:
        for c in range(n):
            column = y + c * taps.size * m * itemsize
            turn_rows(column, w + c * channel_step * itemsize, row_step * itemsize, m, taps.size)
    else:
        for c in range(n):
            for t in range(taps.size):
                target = reals(y + (c * taps.size + t) * m * itemsize, m)
                source = reals(w + (c * channel_step + taps[t]) * itemsize, row_step * m)
                for i in range(m):
                    target[i] = source[i * row_step]


@kernel
def pack_weights(y, w, table, offsets, part, parts):
    """Panels [group][chunk][panel][(channel, tap)][row in the panel] of the weights; ``table`` has the numbers of
    groups, rows, channels and taps, the channels of a chunk, and the steps in w from group to group, row to row and
    channel to channel; ``offsets`` those of the taps."""
    words = integers(table, 8)
    groups, rows, channels, taps, per_chunk = words[0], words[1], words[2], words[3], words[4]
    every = (rows + PANEL - 1) // PANEL
    for index in range(groups * every * part // parts, groups * every * (part + 1) // parts):
        group, panel = index // every, index % every
        m, row = share(every, panel, rows), first_of(every, panel, rows)
        source = w + (group * words[5] + row * words[6]) * itemsize
        for first in range(0, channels, per_chunk):
            n = min(per_chunk, channels - first)
            place = y + (group * rows * channels * taps + first * taps * rows + row * n * taps) * itemsize
            at = source + first * words[7] * itemsize
            pack_panel(place, at, (words[6], words[7]), m, n, integers(offsets, taps))


# ------------------------------------------------------------------------------------------------- gradients of weights
# The words of the table of a weight gradient.
GRADIENT_WORDS = 14
(
    OUTPUTS,  # rows of g in a group
    INPUTS,  # channels of the source in a group
    G_TAPS,
    CHUNKS,  # of positions
    LANE_PARTS,  # units are groups × parts of the chunks × parts of the panels
    PANEL_PARTS,
    G_STEP,  # bytes from row to row of g
    LANES,  # of the source
    SEGMENT_TABLE,  # address: for each chunk and tap, the address of its first segment, and the end of the last
    D_STEP,  # numbers from row to row of D; taps follow each other
    D_PART,  # numbers from the sums of one part of the chunks to those of the next
    PER_LANES,  # positions of a chunk
    MAP_STEP,  # bytes from channel to channel of maps that are turned chunk by chunk, 0 if they were turned before
    COUNTING,  # address of 0, 1, 2, …
) = range(GRADIENT_WORDS)


def _emit_turned(e: VectorBuilder, shape, c, zeros, terms, segments, g_step) -> None:
    """One version for each number of rows and bytes of lanes; a segment is (position, lane of the source, length)."""
    rows, size = shape

    def version(m: int, span: int):
        def emit() -> None:
            steps = (g_step, const(e.size), const(span))
            sums = panel_sums(e, m, range(0, span, VECTOR), terms, segments, steps, span)
            store_panel(e, sums, m, span, c, zeros, (const(0), const(0)))

        return emit

    e.switch(e.at(rows, size), {m + span: version(m, span) for m in range(1, PANEL + 1) for span in {BLOCK, SPAN}})


turned_panel = PerPrecision(vector_function(_emit_turned, shape=2, c=3, terms=TERMS, segments=2))


@helper
def turned_blocks(channels):
    """How many blocks of channels a turned map has: whole spans, and what is left over."""
    return (channels * itemsize + SPAN - 1) // SPAN


@helper
def block_bytes(channels, block):
    """Bytes of a row of a block: a span, or less in the last one."""
    return SPAN if channels * itemsize - block * SPAN > BLOCK else BLOCK


@helper
def turned_channels(channels):
    """Channels of a turned map, with what fills its last block."""
    last = turned_blocks(channels) - 1
    return last * (SPAN // itemsize) + block_bytes(channels, last) // itemsize


@helper
def turn_block(y, size, x, x_step, index, channels, low, high):
    """Lanes ``low`` … ``high`` of a block (lane, channel) of ``size`` bytes a row from x (channel, lane); channels that
    are missing become zero."""
    width = VECTOR // itemsize
    for c in range(0, size // itemsize, width):
        n = min(width, channels - c)
        lane = low
        if n == width:
            while lane + width <= high:
                transpose_block(y + lane * size + c * itemsize, size, x + c * x_step + lane * itemsize, x_step, index)
                lane += width
        for l in range(lane, high):
            target = reals(y + l * size + c * itemsize, width)
            for i in range(width):
                target[i] = reals(x + (c + i) * x_step + l * itemsize, 1)[0] if i < n else real(0)


@helper
def turn_chunk(buffer, size, terms, words, group, block, chunk):
    """Turns a block of channels of the maps of all terms at the positions of a chunk; ``size`` are the bytes of a row.
    Returns where their first lanes would be if all lanes were there."""
    count, _, x0, _, x1, _, x2 = terms
    low = chunk * words[PER_LANES]
    high, channel = min(low + words[PER_LANES], words[LANES]), block * (SPAN // itemsize)
    room, skipped = words[PER_LANES] * SPAN, (group * words[INPUTS] + channel) * words[MAP_STEP]
    start = buffer - low * size
    for term in range(count):
        x = (x0 if term == 0 else x1 if term == 1 else x2) + skipped
        left = words[INPUTS] - channel
        turn_block(start + term * room, size, x, words[MAP_STEP], words[COUNTING], left, low, high)
    return start, start + room, start + 2 * room


@kernel
def strip_weight_gradient(d, zeros, terms: Terms, table, buffer, unit):
    """D (group, row, tap, channel) of one unit of the groups, chunks and panels that ``table`` describes; terms pair
    maps g with maps that are turned, before or chunk by chunk into the unit's buffer."""
    words = integers(table, GRADIENT_WORDS)
    count, g0, x0, g1, x1, g2, x2 = terms
    rows, channels, taps = words[OUTPUTS], words[INPUTS], words[G_TAPS]
    per_group = words[LANE_PARTS] * words[PANEL_PARTS]
    group, rest = unit // per_group, unit % per_group
    part, row_part = rest // words[PANEL_PARTS], rest % words[PANEL_PARTS]
    every, blocks = (rows + PANEL - 1) // PANEL, turned_blocks(channels)
    per_tap = turned_channels(channels)
    low, high = words[CHUNKS] * part // words[LANE_PARTS], words[CHUNKS] * (part + 1) // words[LANE_PARTS]
    place = d + (part * words[D_PART] + group * rows * words[D_STEP]) * itemsize
    for chunk in range(low, high):
        for block in range(blocks):
            size = block_bytes(channels, block)
            x = (group * per_tap * itemsize + block * SPAN) * words[LANES]
            sources = (x0 + x, x1 + x, x2 + x)
            if words[MAP_STEP] != 0:
                sources = turn_chunk(buffer, size, terms, words, group, block, chunk)
            for panel in range(every * row_part // words[PANEL_PARTS], every * (row_part + 1) // words[PANEL_PARTS]):
                m, row = share(every, panel, rows), first_of(every, panel, rows)
                g = (group * rows + row) * words[G_STEP]
                for tap in range(taps):
                    bounds = words[SEGMENT_TABLE] + 8 * (chunk * taps + tap)
                    first = peek(bounds)
                    at = (row * words[D_STEP] + tap * per_tap) * itemsize + block * SPAN
                    turned_panel(
                        (m, size),
                        (place + at, words[D_STEP] * itemsize, 1 if chunk > low else 0),
                        zeros,
                        (count, g0 + g, sources[0], g1 + g, sources[1], g2 + g, sources[2]),
                        (first, (peek(bounds + 8) - first) // SEGMENT),
                        words[G_STEP],
                    )


@kernel
def turn(y, x, x_step, index, groups, channels, lanes, parts: Pair, unit):
    """A map (channel, lane) turned into [group][block of channels][lane][channel], for one of the parts, which are
    numbers of slices of the lanes and of the blocks; ``index`` counts 0, 1, 2, …"""
    lane_parts, block_parts = parts
    lane_part, block_part = unit // block_parts, unit % block_parts
    low, high = lanes * lane_part // lane_parts, lanes * (lane_part + 1) // lane_parts
    blocks = turned_blocks(channels)
    every = groups * blocks
    for number in range(every * block_part // block_parts, every * (block_part + 1) // block_parts):
        group, block = number // blocks, number % blocks
        size, first = block_bytes(channels, block), block * (SPAN // itemsize)
        target = y + (group * turned_channels(channels) * itemsize + block * SPAN) * lanes
        source = x + (group * channels + first) * x_step
        turn_block(target, size, source, x_step, index, channels - first, low, high)


@kernel
def unfold(y, x, x_step, channels, taps, positions, segments, per_chunk, chunks, part, parts):
    """A map of few channels turned into (position, (channel, tap)), which makes one tap of all: for the chunks of
    ``per_chunk`` positions in slice ``part`` of ``parts``."""
    columns = channels * taps
    blocks = turned_blocks(columns)
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        low, high = chunk * per_chunk, min(positions, (chunk + 1) * per_chunk)
        for block in range(blocks):
            size = block_bytes(columns, block)
            clear(reals(y + block * SPAN * positions + low * size, (high - low) * size // itemsize))
        for tap in range(taps):
            bounds = segments + 8 * (chunk * taps + tap)
            for segment in range(peek(bounds), peek(bounds + 8), SEGMENT):
                position, lane, length = peek(segment), peek(segment + 8), peek(segment + 16)
                for c in range(channels):
                    column = c * taps + tap
                    block = column * itemsize // SPAN
                    size = block_bytes(columns, block)
                    target = y + block * SPAN * positions + position * size + column * itemsize - block * SPAN
                    source = x + c * x_step + lane * itemsize
                    for i in range(length):
                        reals(target + i * size, 1)[0] = reals(source + i * itemsize, 1)[0]


@loop
def _sum(x):
    total = real(0)
    for t in range(x.size):
        total += x[t]
    return total


@kernel
def channel_sums(d, g, extent: Extent, add, part: Slice):
    """d[channel] (+)= Σ_lanes g (channel, lane), pieces of the lanes in float64."""
    _, channels, lanes, row = extent
    target = reals(d, channels)
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        total = 0.0
        for t in range(0, lanes, PIECE):
            total += _sum(reals(g + c * row + t * itemsize, min(PIECE, lanes - t)))
        target[c] = real(total) + (target[c] if add else real(0))


@kernel
def collect_turned(out, d, rows, taps, channels, per_tap, d_part, count, add, part, parts):
    """out (row, channel, tap) (+)= Σ of ``count`` parts of D (row, tap, channel), for a slice of the rows."""
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        target = reals(out + row * channels * taps * itemsize, channels * taps)
        for tap in range(taps):
            total = reals(d + (row * taps + tap) * per_tap * itemsize, channels)
            for i in range(1, count):
                one = reals(d + (i * d_part + (row * taps + tap) * per_tap) * itemsize, channels)
                for c in range(channels):
                    total[c] += one[c]
            if add:
                for c in range(channels):
                    target[c * taps + tap] += total[c]
            else:
                for c in range(channels):
                    target[c * taps + tap] = total[c]
