"""The gradient of the weights of 3×3 convolutions by Winograd's algorithm, with the matrices of tiles.py.

    dw = Gᵀ [Σ_tiles (A g Aᵀ) ⊙ (Bᵀ d B)] G

For each point the sum over the tiles is a product of matrices (row, tile) · (tile, channel). The source is
turned into (block of channels, lane, channel) before, as for direct sums: its transform then takes whole vectors of
channels at any tile. Tiles are taken in chunks, whose factors stay in the cache while all sums go by.
"""

from __future__ import annotations

from rop.kernels.compile import PerPrecision, Terms, helper, itemsize, kernel
from rop.kernels.cpu.gemm import PANEL, SEGMENT, SPAN, first_of, share
from rop.kernels.cpu.memory import integers, reals
from rop.kernels.cpu.strips import turned_panel
from rop.kernels.cpu.tiles import TILES, Tile, both_ways, columns_of
from rop.kernels.cpu.vector import BLOCK, VECTOR, VectorBuilder, const, peek, vector_function
from rop.kernels.cpu.winograd import (
    ACROSS,
    DOWN,
    FIRST,
    LENGTH,
    RUN_WORDS,
    TAPS,
    TARGET,
    per_shape,
    store_points,
)

# The words of the table of a weight gradient.
GRADIENT_WORDS = 18
(
    SIDE,  # outputs of a tile in each direction
    OUTPUTS,  # rows of g
    BLOCKS,  # blocks of channels of the turned source
    LAST_BLOCK,  # bytes of a row of the last of them; the others have a span
    G_TILES,
    TILES_PER_CHUNK,  # whole strips
    TILE_PARTS,  # units are parts of the chunks × parts of the panels × parts of the blocks
    PANEL_PARTS,
    BLOCK_PARTS,
    G_STEP,  # bytes from row to row of g
    G_LINE,  # bytes from one row of an image of g to the next
    SOURCE_LANES,
    SOURCE_LINE,  # lanes from one row of an image of the source to the next
    G_RUN_TABLE,  # address, as for products
    TILE_TABLE,  # address: for each tile the lane of its first input, and which of its inputs are in the image
    SEGMENTS,  # address: one segment of a whole chunk, and one of the last
    V_START,  # bytes of a unit's buffer before the transformed inputs
    D_STEP,  # numbers from row to row of D
) = range(GRADIENT_WORDS)
TILE_WORDS = 2


def _emit_spread_outputs(e: VectorBuilder, v, steps, g, g_steps, rows, run) -> None:
    """A g Aᵀ of the tiles of a run for some rows; ``steps`` are the bytes from point to point and from row to row of v,
    ``g_steps`` those from row to row of g and of its images."""
    (point_step, row_step), (g_step, g_line) = steps, g_steps

    def emit(e: VectorBuilder, tile: Tile, whole: bool) -> None:
        first, length, target, lines, columns = (
            e.load_int(e.at(run, 8 * word)) for word in (FIRST, LENGTH, TARGET, DOWN, ACROSS)
        )
        stored = None if whole else e.first_lanes(length)
        lanes = [e.first_lanes(e.b.sub(columns, const(k * e.lanes))) for k in range(tile.side)]
        there = [e.truth(e.b.icmp_signed("<", const(line), lines)) for line in range(tile.side)]

        def row(r, carried):
            source, place = carried
            down = []
            for k, mask in enumerate(lanes):
                pixels = []
                for line, inside in enumerate(there):
                    at = e.at(source, e.b.mul(g_line, const(line)), k * e.lanes * e.size)
                    pixels.append(e.load_some(at, e.b.and_(mask, inside)))
                down.append(tile.spread_outputs(e, pixels))
            for line, vectors in enumerate(zip(*down, strict=True)):
                across = tile.spread_outputs(e, columns_of(e, vectors))
                store_points(e, across, e.at(place, e.b.mul(point_step, const(line * tile.reach))), point_step, stored)
            return [e.at(source, g_step), e.at(place, row_step)]

        e.loop(rows, [e.at(g, target), e.at(v, first)], row)

    per_shape(e, run, emit, narrow=True)


spread_outputs = PerPrecision(vector_function(_emit_spread_outputs, steps=2, g_steps=2))


def _emit_spread_turned(e: VectorBuilder, v, point_step, x, line, size, tiles, zeros, side) -> None:
    """Bᵀ d B of some tiles from a block (lane, channel) of ``size`` bytes a row; ``tiles`` are the address of their
    table and their number, ``line`` is the bytes from one row of an image to the next."""
    table, count = tiles

    def version(span: int, tile: Tile):
        n = tile.reach

        def one(t, carried):
            here, target = carried
            first, inside = e.load_int(here), e.load_int(e.at(here, 8))
            source = e.at(x, e.b.mul(first, const(span)))
            places = []
            for point in range(tile.points):
                there = e.b.trunc(e.b.lshr(inside, const(point)), e.bit(True).type)
                place = e.at(source, e.b.mul(line, const(point // n)), point % n * span)
                places.append(e.b.select(there, place, zeros))
            for lane in range(0, span, VECTOR):
                d = [e.load(e.at(place, lane)) for place in places]
                lines = both_ways(e, tile.spread_inputs, [d[first : first + n] for first in range(0, tile.points, n)])
                store_points(e, [value for line in lines for value in line], e.at(target, lane), point_step, None)
            return [e.at(here, 8 * TILE_WORDS), e.at(target, span)]

        return lambda: e.loop(count, [table, v], one)

    cases = [(span, tile) for span in {BLOCK, SPAN} for tile in TILES.values()]
    e.switch(e.at(size, side), {span + tile.side: version(span, tile) for span, tile in cases})


spread_turned = PerPrecision(vector_function(_emit_spread_turned, tiles=2))


@helper
def points_of(words):
    return (words[SIDE] + 2) * (words[SIDE] + 2)


@helper
def spread_chunk(g, x, buffer, words, chunk, count, rows, blocks, zeros):
    """Both factors of a weight gradient at the tiles of a chunk: g (point, row, tile) of a range of rows, then the
    source (block, point, tile, channel) of a range of blocks."""
    row_bytes = words[TILES_PER_CHUNK] * itemsize
    per_strip = SPAN // itemsize
    steps = ((rows[1] - rows[0]) * row_bytes + BLOCK, row_bytes)
    first = chunk * words[TILES_PER_CHUNK]
    for strip in range((count + per_strip - 1) // per_strip):
        bounds = words[G_RUN_TABLE] + 8 * (first // per_strip + strip)
        for run in range(peek(bounds), peek(bounds + 8), 8 * RUN_WORDS):
            spread_outputs(
                buffer + strip * SPAN,
                steps,
                g + rows[0] * words[G_STEP],
                (words[G_STEP], words[G_LINE]),
                rows[1] - rows[0],
                run,
            )
    point_step, points = words[TILES_PER_CHUNK] * SPAN + BLOCK, points_of(words)
    for block in range(blocks[0], blocks[1]):
        size = words[LAST_BLOCK] if block == words[BLOCKS] - 1 else SPAN
        spread_turned(
            buffer + words[V_START] + (block - blocks[0]) * points * point_step,
            point_step,
            x + block * SPAN * words[SOURCE_LANES],
            words[SOURCE_LINE] * size,
            size,
            (words[TILE_TABLE] + 8 * TILE_WORDS * first, count),
            zeros,
            words[SIDE],
        )


@helper
def multiply_chunk(d, zeros, buffer, words, segment, panels, rows, blocks, add):
    """D (+)= Σ_tiles g · source over the tiles of a chunk, for a range of panels and of blocks."""
    row_bytes = words[TILES_PER_CHUNK] * itemsize
    g_point, x_point = (rows[1] - rows[0]) * row_bytes + BLOCK, words[TILES_PER_CHUNK] * SPAN + BLOCK
    every, step = (words[OUTPUTS] + PANEL - 1) // PANEL, words[D_STEP] * itemsize
    for point in range(points_of(words)):
        for block in range(blocks[0], blocks[1]):
            size = words[LAST_BLOCK] if block == words[BLOCKS] - 1 else SPAN
            x = buffer + words[V_START] + ((block - blocks[0]) * points_of(words) + point) * x_point
            row = rows[0]
            for panel in range(panels[0], panels[1]):
                m = share(every, panel, words[OUTPUTS])
                g = buffer + point * g_point + (row - rows[0]) * row_bytes
                turned_panel(
                    (m, size),
                    (d + (point * words[OUTPUTS] + row) * step + block * SPAN, step, add),
                    zeros,
                    (1, g, x, g, x, g, x),
                    (segment, 1),
                    row_bytes,
                )
                row += m


@kernel
def gradient_points(d, zeros, terms: Terms, table, buffer, unit):
    """D (part, point, row, channel) = Σ_terms Σ_tiles (A g Aᵀ) · (Bᵀ x B) of one unit of the chunks, panels and blocks
    that ``table`` describes; terms pair maps g with turned maps x."""
    words = integers(table, GRADIENT_WORDS)
    count, g0, x0, g1, x1, g2, x2 = terms
    per_part = words[PANEL_PARTS] * words[BLOCK_PARTS]
    part, rest = unit // per_part, unit % per_part
    row_part, block_part = rest // words[BLOCK_PARTS], rest % words[BLOCK_PARTS]
    outputs = words[OUTPUTS]
    every = (outputs + PANEL - 1) // PANEL
    low, high = every * row_part // words[PANEL_PARTS], every * (row_part + 1) // words[PANEL_PARTS]
    rows = (first_of(every, low, outputs), first_of(every, high, outputs))
    blocks = (
        words[BLOCKS] * block_part // words[BLOCK_PARTS],
        words[BLOCKS] * (block_part + 1) // words[BLOCK_PARTS],
    )
    chunks = (words[G_TILES] + words[TILES_PER_CHUNK] - 1) // words[TILES_PER_CHUNK]
    begin, end = chunks * part // words[TILE_PARTS], chunks * (part + 1) // words[TILE_PARTS]
    place = d + part * points_of(words) * outputs * words[D_STEP] * itemsize
    for chunk in range(begin, end):
        tiles = min(words[TILES_PER_CHUNK], words[G_TILES] - chunk * words[TILES_PER_CHUNK])
        segment = words[SEGMENTS] + (SEGMENT if chunk == chunks - 1 else 0)
        for term in range(count):
            g = g0 if term == 0 else g1 if term == 1 else g2
            x = x0 if term == 0 else x1 if term == 1 else x2
            spread_chunk(g, x, buffer, words, chunk, tiles, rows, blocks, zeros)
            add = 1 if chunk > begin or term > 0 else 0
            multiply_chunk(place, zeros, buffer, words, segment, (low, high), rows, blocks, add)


def _emit_join_points(e: VectorBuilder, d, steps, parts, vectors, side) -> None:
    """Gᵀ D G of the sums of all parts of D, in place: the nine taps of a row take the place of the first nine points.
    ``steps`` are the bytes from point to point and from part to part."""
    point_step, part_step = steps

    def version(tile: Tile):
        def vector(i, carried):
            (here,) = carried
            places = [e.at(here, e.b.mul(point_step, const(point))) for point in range(tile.points)]

            def part(p, sums):
                skipped = e.b.mul(e.at(p, 1), part_step)
                return [e.b.fadd(total, e.load(e.at(at, skipped))) for total, at in zip(sums, places, strict=True)]

            u = e.loop(e.b.sub(parts, const(1)), [e.load(place) for place in places], part)
            n = tile.reach
            lines = both_ways(e, tile.join_taps, [u[first : first + n] for first in range(0, tile.points, n)])
            store_points(e, [value for line in lines for value in line], here, point_step, None)
            return [e.at(here, VECTOR)]

        return lambda: e.loop(vectors, [d], vector)

    e.switch(side, {tile.side: version(tile) for tile in TILES.values()})


join_points = PerPrecision(vector_function(_emit_join_points, steps=2))


@kernel
def collect_points(out, d, side, rows, channels, d_step, count, add, part, parts):
    """out (row, channel, tap) (+)= Gᵀ [Σ of ``count`` parts of D (point, row, channel)] G, for a slice of the rows."""
    point_step, points = rows * d_step * itemsize, (side + 2) * (side + 2)
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        here = d + row * d_step * itemsize
        join_points(here, (point_step, points * point_step), count, d_step * itemsize // VECTOR, side)
        target = reals(out + row * channels * TAPS * itemsize, channels * TAPS)
        for tap in range(TAPS):
            values = reals(here + tap * point_step, channels)
            for c in range(channels):
                target[c * TAPS + tap] = target[c * TAPS + tap] + values[c] if add else values[c]
