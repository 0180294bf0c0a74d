"""Convolutions on pixel lanes: strips of positions, packed tap by tap, times panels of weights.

A map is (channel, lane), with a lane for each pixel of each sample. The positions of C, the pixels of an output or of
an input gradient, are taken in *strips* of one span of lanes. What the positions of a strip read through all taps is
packed into rows (channel, tap) that stay in the cache while the panels of weights go by, so that padding is zero there
and nowhere else, and neither strides nor dilations cost anything in the micro-kernel. A chunk of channels at a time is
packed; sums over chunks are made in C.

    C (row, position) (+)= bias + Σ_terms A (row, (channel, tap)) · packed ((channel, tap), position)

The gradient of the weights is a product over the lanes: the source is *turned* into (block of channels, lane, channel),
and each tap pairs runs of positions, its *segments*, with runs of lanes of the source.

    D (row, tap, channel) = Σ_terms Σ_segments g (row, position) · turned (lane, channel)
"""

from __future__ import annotations

from llvmlite import ir

from rop.kernels.compile import (
    Extent,
    Pair,
    PerPrecision,
    Slice,
    Terms,
    algebra,
    helper,
    itemsize,
    kernel,
    loop,
    real,
)
from rop.kernels.cpu.batchnorm import PIECE
from rop.kernels.cpu.gemm import PANEL, SEGMENT, SPAN, TERMS, _term, panel_sums, share
from rop.kernels.cpu.memory import bounds_of, clear, integers, reals, transpose_block
from rop.kernels.cpu.vector import BLOCK, VECTOR, Value, VectorBuilder, const, peek, vector_function
from rop.layers import relu as layer

rectified = algebra(layer.rectified)

# The words of a product's table, …
PRODUCT_WORDS = 13
(
    ROWS,  # of a group
    CHANNELS,  # of a group of the source
    TAPS,
    PER_CHUNK,  # channels that are packed at a time
    STRIPS,
    STRIP_PARTS,  # units are groups × parts of the strips × parts of the panels
    ROW_PARTS,
    GROUPS,
    C_STEP,  # bytes from row to row
    X_STEP,
    SHIFTS,  # address: lanes from what a position reads through no shift to what it reads through each tap, in bytes
    STRIP_TABLE,  # address
    BUFFER_STEP,  # bytes of a unit's buffer
) = range(PRODUCT_WORDS)
# … and of each strip in its strip table.
STRIP_WORDS = 6
(
    COUNT,  # positions
    TARGET,  # lane of the first position in C, if the others follow it,
    TARGETS,  # else the address of the lanes of all
    SOURCE,  # lane of the source that the first position reads through no shift, if those of the others follow it,
    SOURCES,  # else the address of the lanes of all
    BITS,  # address: for each tap, which positions read a pixel, not padding
) = range(STRIP_WORDS)


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

        start = [_term(e, t, factors[::2]), _term(e, t, factors[1::2])]
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
def lanes_of_bits(e: VectorBuilder, bits: Value, first: int) -> Value:
    """A truth value for every lane of a vector: the bits of an integer from ``first`` on."""
    some = e.b.trunc(e.b.lshr(bits, const(first)), ir.IntType(e.lanes))
    return e.b.bitcast(some, ir.VectorType(ir.IntType(1), e.lanes))


def _emit_pack(e: VectorBuilder, y, x, x_step, channels, shifts, bits, taps, size) -> None:
    """y ((channel, tap), position) from positions that follow each other in the source."""

    def version(span: int):
        def channel(c, carried):
            def tap(t, carried):
                (place,) = carried
                at, valid = e.b.mul(t, const(8)), e.load_int(e.at(bits, e.b.mul(t, const(8))))
                source = e.at(x, e.b.mul(c, x_step), e.load_int(e.at(shifts, at)))
                for lane in range(0, span, VECTOR):
                    mask = lanes_of_bits(e, valid, lane // e.size)
                    e.store(e.load_some(e.at(source, lane), mask), e.at(place, lane))
                return [e.at(place, span)]

            return e.loop(taps, carried, tap)

        return lambda: e.loop(channels, [y], channel)

    e.switch(size, {span: version(span) for span in {BLOCK, SPAN}})


pack_following = PerPrecision(vector_function(_emit_pack))


@helper
def pack_listed(y, x, x_step, channels, shifts, bits, taps, size, sources, count):
    """The same from positions whose lanes in the source are listed."""
    lanes, shift, valid = integers(sources, count), integers(shifts, taps), integers(bits, taps)
    for c in range(channels):
        for t in range(taps):
            row = reals(y + (c * taps + t) * size, count)
            first = x + c * x_step + shift[t]
            for i in range(count):
                if (valid[t] >> i) & 1:
                    row[i] = reals(first + lanes[i] * itemsize, 1)[0]
                else:
                    row[i] = real(0)


@helper
def pack_strip(y, x, words, strip, channels, size):
    """What a strip reads of some channels through all taps."""
    if strip[SOURCES] == 0:
        x += strip[SOURCE] * itemsize
        pack_following(y, x, words[X_STEP], channels, words[SHIFTS], strip[BITS], words[TAPS], size)
    else:
        pack_listed(
            y, x, words[X_STEP], channels, words[SHIFTS], strip[BITS], words[TAPS], size, strip[SOURCES], strip[COUNT]
        )


# ------------------------------------------------------------------------------------------------------------- products
@helper
def multiply_strip(c, c_step, bias, bias_step, gate, add, terms, words, strip, first, panels, buffer):
    """Adds the share of the channels from ``first`` on to the rows of C in a range of panels, at the positions of one
    strip. The bias and the ReLU come with the last channels."""
    count, a0, b0, a1, b1, a2, b2 = terms
    rows, taps = words[ROWS], words[TAPS]
    channels = min(words[PER_CHUNK], words[CHANNELS] - first)
    size = BLOCK if strip[COUNT] * itemsize <= BLOCK else SPAN
    room = words[PER_CHUNK] * taps * SPAN
    for term in range(count):
        x = b0 if term == 0 else b1 if term == 1 else b2
        pack_strip(buffer + term * room, x + first * words[X_STEP], words, strip, channels, size)
    last = first + channels == words[CHANNELS]
    relu, mask = gate
    length, every = channels * taps, (rows + PANEL - 1) // PANEL
    low, high = panels
    row = low * (rows // every) + min(low, rows % every)
    for index in range(low, high):
        m = share(every, index, rows)
        skipped = (first * taps * rows + row * length) * itemsize
        strip_panel(
            (m, size),
            (c + row * c_step, c_step, 1 if first > 0 else add),
            bias + row * bias_step if last else bias,
            (relu if last else 0, mask + row * c_step if mask != 0 and last else 0),
            (count, a0 + skipped, buffer, a1 + skipped, buffer + room, a2 + skipped, buffer + 2 * room),
            length,
        )
        row += m


@helper
def scatter_strip(c, c_step, tile, words, strip, mask, add, low, high):
    """Rows ``low`` … ``high`` of C at listed positions from a tile (row, position)."""
    lanes = integers(strip[TARGETS], strip[COUNT])
    for row in range(low, high):
        values = reals(tile + row * SPAN, strip[COUNT])
        for i in range(strip[COUNT]):
            at = row * c_step + lanes[i] * itemsize
            place, value = reals(c + at, 1), values[i]
            if mask != 0:
                value = rectified(value, reals(mask + at, 1)[0], real(0))
            place[0] = place[0] + value if add else value


@kernel
def strip_products(c, zeros, bias, bias_step, gate: Pair, add, terms: Terms, table, buffer, unit):
    """C (group, row, position) (+)= bias + Σ_terms A packed(B), for one unit of the strips, panels and groups that
    ``table`` describes. B are maps, A panels for each group and chunk; ``zeros`` stands for a bias of zero."""
    words = integers(table, PRODUCT_WORDS)
    count, a0, b0, a1, b1, a2, b2 = terms
    relu, mask = gate
    rows, channels, c_step = words[ROWS], words[CHANNELS], words[C_STEP]
    per_group = words[STRIP_PARTS] * words[ROW_PARTS]
    group, rest = unit // per_group, unit % per_group
    strip_part, row_part = rest // words[ROW_PARTS], rest % words[ROW_PARTS]
    a, b, place = (
        group * rows * channels * words[TAPS] * itemsize,
        group * channels * words[X_STEP],
        group * rows * c_step,
    )
    of_group = (count, a0 + a, b0 + b, a1 + a, b1 + b, a2 + a, b2 + b)
    every = (rows + PANEL - 1) // PANEL
    panels = (every * row_part // words[ROW_PARTS], every * (row_part + 1) // words[ROW_PARTS])
    low, high = words[STRIPS] * strip_part // words[STRIP_PARTS], words[STRIPS] * (strip_part + 1) // words[STRIP_PARTS]
    if low == high:
        return
    shift = bias + group * rows * bias_step
    if integers(words[STRIP_TABLE], STRIP_WORDS)[TARGETS] == 0:
        for first in range(0, channels, words[PER_CHUNK]):
            is_last = first + words[PER_CHUNK] >= channels
            for index in range(low, high):
                strip = integers(words[STRIP_TABLE] + 8 * STRIP_WORDS * index, STRIP_WORDS)
                at = place + strip[TARGET] * itemsize
                multiply_strip(
                    c + at,
                    c_step,
                    shift if is_last else zeros,
                    bias_step if is_last else 0,
                    (relu, mask + at if mask != 0 else 0),
                    add,
                    of_group,
                    words,
                    strip,
                    first,
                    panels,
                    buffer,
                )
        return
    tile = buffer + 3 * words[PER_CHUNK] * words[TAPS] * SPAN
    for index in range(low, high):
        strip = integers(words[STRIP_TABLE] + 8 * STRIP_WORDS * index, STRIP_WORDS)
        for first in range(0, channels, words[PER_CHUNK]):
            multiply_strip(tile, SPAN, zeros, 0, (0, 0), 0, of_group, words, strip, first, panels, buffer)
        begin = panels[0] * (rows // every) + min(panels[0], rows % every)
        end = panels[1] * (rows // every) + min(panels[1], rows % every)
        scatter_strip(c + place, c_step, tile, words, strip, mask + place if mask != 0 else 0, add, begin, end)


@kernel
def pack_weights(y, w, table, offsets, part, parts):
    """Panels [group][chunk][panel][(channel, tap)][row in the panel] of the weights; ``table`` has the numbers of
    groups, rows, channels and taps, the channels of a chunk, and the steps in w from group to group, row to row and
    channel to channel; ``offsets`` those of the taps."""
    words = integers(table, 8)
    groups, rows, channels, taps, per_chunk = words[0], words[1], words[2], words[3], words[4]
    every = (rows + PANEL - 1) // PANEL
    tap = integers(offsets, taps)
    for index in range(groups * every * part // parts, groups * every * (part + 1) // parts):
        group, panel = index // every, index % every
        m, row = share(every, panel, rows), panel * (rows // every) + min(panel, rows % every)
        source = w + (group * words[5] + row * words[6]) * itemsize
        for first in range(0, channels, per_chunk):
            n = min(per_chunk, channels - first)
            place = y + (group * rows * channels * taps + first * taps * rows + row * n * taps) * itemsize
            for c in range(n):
                for t in range(taps):
                    target = reals(place + (c * taps + t) * m * itemsize, m)
                    from_w = reals(source + ((first + c) * words[7] + tap[t]) * itemsize, words[6] * m)
                    for i in range(m):
                        target[i] = from_w[i * words[6]]


# ------------------------------------------------------------------------------------------------- gradients of weights
# The words of the table of a weight gradient.
GRADIENT_WORDS = 13
(
    OUTPUTS,  # rows of g in a group
    INPUTS,  # channels of the source in a group
    G_TAPS,
    G_GROUPS,
    CHUNKS,  # of positions
    LANE_PARTS,  # units are groups × parts of the chunks × parts of the panels
    PANEL_PARTS,
    G_STEP,  # bytes from row to row of g
    LANES,  # of the source
    SEGMENT_TABLE,  # address: for each chunk and tap, the address of its first segment, and the end of the last
    COLUMN_STEP,  # lanes of the source from one position of a segment to the next
    D_STEP,  # numbers from row to row of D; taps follow each other
    D_PART,  # numbers from the sums of one part of the chunks to those of the next
) = range(GRADIENT_WORDS)


def _emit_turned(e: VectorBuilder, shape, c, zeros, terms, segments, steps) -> None:
    """One version for each number of rows and bytes of lanes; a segment is (position, lane of the source, length)."""
    rows, size = shape
    g_step, step = steps

    def version(m: int, span: int):
        def emit() -> None:
            known = (g_step, const(e.size), e.b.mul(step, const(span)))
            sums = panel_sums(e, m, range(0, span, VECTOR), terms, segments, known, span)
            store_panel(e, sums, m, span, c, zeros, (const(0), const(0)))

        return emit

    e.switch(e.at(rows, size), {m + span: version(m, span) for m in range(1, PANEL + 1) for span in {BLOCK, SPAN}})


turned_panel = PerPrecision(vector_function(_emit_turned, shape=2, c=3, terms=TERMS, segments=2, steps=2))


@helper
def turned_blocks(channels):
    """How many blocks of channels a turned map has: whole spans, and what is left over."""
    return (channels * itemsize + SPAN - 1) // SPAN


@helper
def block_bytes(channels, block):
    """Bytes of a row of a block: a span, or less in the last one."""
    return SPAN if channels * itemsize - block * SPAN > BLOCK else BLOCK


@kernel
def strip_weight_gradient(d, zeros, terms: Terms, table, unit):
    """D (group, row, tap, channel) of one unit of the groups, chunks and panels that ``table`` describes; terms pair
    maps g with turned maps."""
    words = integers(table, GRADIENT_WORDS)
    count, g0, x0, g1, x1, g2, x2 = terms
    rows, channels, taps = words[OUTPUTS], words[INPUTS], words[G_TAPS]
    per_group = words[LANE_PARTS] * words[PANEL_PARTS]
    group, rest = unit // per_group, unit % per_group
    part, row_part = rest // words[PANEL_PARTS], rest % words[PANEL_PARTS]
    every, blocks = (rows + PANEL - 1) // PANEL, turned_blocks(channels)
    per_tap = (blocks - 1) * (SPAN // itemsize) + block_bytes(channels, blocks - 1) // itemsize
    low, high = words[CHUNKS] * part // words[LANE_PARTS], words[CHUNKS] * (part + 1) // words[LANE_PARTS]
    place = d + (part * words[D_PART] + group * rows * words[D_STEP]) * itemsize
    for chunk in range(low, high):
        for panel in range(every * row_part // words[PANEL_PARTS], every * (row_part + 1) // words[PANEL_PARTS]):
            m, row = share(every, panel, rows), panel * (rows // every) + min(panel, rows % every)
            g = (group * rows + row) * words[G_STEP]
            for block in range(blocks):
                size = block_bytes(channels, block)
                x = (group * per_tap * itemsize + block * SPAN) * words[LANES]
                for tap in range(taps):
                    bounds = words[SEGMENT_TABLE] + 8 * (chunk * taps + tap)
                    first = peek(bounds)
                    at = (row * words[D_STEP] + tap * per_tap) * itemsize + block * SPAN
                    turned_panel(
                        (m, size),
                        (place + at, words[D_STEP] * itemsize, 1 if chunk > low else 0),
                        zeros,
                        (count, g0 + g, x0 + x, g1 + g, x1 + x, g2 + g, x2 + x),
                        (first, (peek(bounds + 8) - first) // SEGMENT),
                        (words[G_STEP], words[COLUMN_STEP]),
                    )


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


@kernel
def turn(y, x, x_step, index, groups, channels, lanes, part, parts):
    """A map (channel, lane) turned into [group][block of channels][lane][channel], for slice ``part`` of ``parts`` of
    the lanes; ``index`` counts 0, 1, 2, …"""
    low, high = lanes * part // parts, lanes * (part + 1) // parts
    for _ in range(groups):
        for block in range(turned_blocks(channels)):
            size = block_bytes(channels, block)
            first = block * (SPAN // itemsize)
            turn_block(y, size, x + first * x_step, x_step, index, channels - first, low, high)
            y += lanes * size
        x += channels * x_step


@kernel
def unfold(y, x, x_step, channels, taps, positions, table, segments, chunks, step, part, parts):
    """A map of few channels turned into (position, (channel, tap)), which makes one tap of all: for the chunks of
    positions in slice ``part`` of ``parts``. ``table`` has the lanes of a chunk."""
    columns = channels * taps
    blocks = turned_blocks(columns)
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        low, high = chunk * table, min(positions, (chunk + 1) * table)
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
                        reals(target + i * size, 1)[0] = reals(source + i * step * itemsize, 1)[0]


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
