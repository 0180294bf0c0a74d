"""The two micro-kernels that carry almost all of the work, and the loops around them.

    panel      C[i, lanes] = Σ_terms Σ_segments Σ_j A[j, i] · B[j, lanes]      6 rows × 1 block of lanes in registers
    lane dot   D[j, i]     = Σ_terms Σ_pairs Σ_lanes A[i, lane] · B[j, lane]   4 × 3 sums in registers

All terms of an order (W x¹ + V x⁰, say) are added up in registers and stored once. A *segment* is a run of consecutive
rows of B that meets consecutive j: a linear layer has one, a pixel of a convolution one per row of its window, so
there is no im2col copy and padding is left out exactly.
"""
from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir

from rop.kernels.compile import PerPrecision, helper, itemsize
from rop.kernels.cpu.vector import BLOCK, VECTOR, Emitter, const, peek, vector_function

PANEL = 6                   # rows of a panel: 6 × 2 accumulators + 2 of B + 1 of A = 15 of 16 registers
DOT_ROWS, DOT_COLUMNS = 4, 3     # 12 accumulators + 3 held + 1 streamed = 16 registers
L1 = 32768                  # bytes of cache that the blocks of a lane dot may fill
SEGMENT = 24                # bytes: first j, byte offset in B, length
BOTH = (0, VECTOR)          # the two vectors of a block


def _term(e: Emitter, index: Any, addresses: tuple[Any, ...]) -> Any:
    """addresses[index], for an index known only at run time."""
    chosen = addresses[0]
    for i, address in enumerate(addresses[1:], start=1):
        chosen = e.b.select(e.b.icmp_signed("==", index, const(i)), address, chosen)
    return chosen


def _panel_sums(e: Emitter, rows, terms, a, b, segments, segment_count, row_step, column_step, b_step) -> list[Any]:
    """The 2·rows vectors of sums of one panel; A[j, i] lies at a + j·column_step + i·row_step."""
    def term(t, sums):
        a_t, b_t = _term(e, t, a), _term(e, t, b)

        def segment(s, sums):
            where = e.at(segments, e.b.mul(s, const(SEGMENT)))
            first, offset, length = (e.load_int(e.at(where, 8 * i)) for i in range(3))

            def step(j, carried):
                *sums, a_j, b_j = carried
                vectors = [e.load(e.at(b_j, half)) for half in BOTH]
                new = []
                for i in range(rows):
                    scale = e.broadcast(e.at(a_j, e.b.mul(row_step, const(i))))
                    new += [e.fma(scale, vector, sums[2 * i + v]) for v, vector in enumerate(vectors)]
                return [*new, e.at(a_j, column_step), e.at(b_j, b_step)]

            start = [e.at(a_t, e.b.mul(first, column_step)), e.at(b_t, offset)]
            return e.loop(length, [*sums, *start], step)[:-2]
        return e.loop(segment_count, sums, segment)
    return e.loop(terms, [e.number(0)] * (2 * rows), term)


def _panel(e: Emitter, rows, c, c_step, bias, relu, mask, terms, a0, b0, a1, b1, a2, b2, segments, segment_count,
           row_step, column_step, b_step) -> None:
    sums = _panel_sums(e, rows, terms, (a0, a1, a2), (b0, b1, b2), segments, segment_count, row_step, column_step,
                       b_step)
    places = [e.at(e.b.mul(c_step, const(i)), half) for i in range(rows) for half in BOTH]
    biases = [e.broadcast(e.at(bias, e.size * i)) for i in range(rows)]
    values = [e.b.fadd(total, biases[i // 2]) for i, total in enumerate(sums)]
    zero = e.number(0)
    floor = e.b.select(e.b.icmp_signed("!=", relu, const(0)), zero, e.number(float("-inf")))
    with e.b.if_else(e.b.icmp_signed("==", mask, const(0))) as (plain, masked):
        with plain:
            for value, place in zip(values, places, strict=True):
                e.store(e.b.select(e.b.fcmp_ordered("<", value, floor), floor, value), e.at(c, place))
        with masked:                            # R{ReLU}: what was cut off at order 0 is cut off at every order
            for value, place in zip(values, places, strict=True):
                off = e.b.fcmp_ordered("<=", e.load(e.at(mask, place)), zero)
                e.store(e.b.select(off, zero, value), e.at(c, place))


def _emit_panel(e: Emitter, rows, packed, *rest) -> None:
    """One version per number of rows; in a packed panel the strides of A are constants, which short sums notice."""
    c, c_step, bias, relu, mask, terms, a0, b0, a1, b1, a2, b2, segments, count, row_step, column_step, b_step = rest
    head = (c, c_step, bias, relu, mask, terms, a0, b0, a1, b1, a2, b2, segments, count)

    def version(m: int, constant: bool):
        strides = (const(e.size), const(e.size * m)) if constant else (row_step, column_step)
        return lambda: _panel(e, m, *head, *strides, b_step)

    key = e.b.add(e.b.mul(packed, const(8)), rows)
    e.switch(key, {m + 8 * constant: version(m, bool(constant)) for m in range(1, PANEL + 1) for constant in (0, 1)})


panel = PerPrecision(vector_function(19, _emit_panel))


@helper
def share(parts, index, total):
    """How much of ``total`` part ``index`` of ``parts`` has: as equal as possible."""
    return total // parts + (1 if index < total % parts else 0)


@helper
def multiply(c, c_step, rows, a_step, packed, lane_bytes, b_step, bias, bias_step, relu, mask, terms,
             a0, b0, a1, b1, a2, b2, segments, count):
    """C (rows, lanes) = bias + Σ_terms A B over the given segments. A is packed in panels [j][row] of a_step·rows
    bytes, or row-major with rows a_step bytes apart."""
    panels = (rows + PANEL - 1) // PANEL
    k = 0
    for index in range(panels):
        m = share(panels, index, rows)
        a = k * a_step
        place = k * c_step
        for t in range(0, lane_bytes, BLOCK):
            panel(m, packed, c + place + t, c_step, bias + bias_step * k, relu, mask + place + t if mask != 0 else 0,
                  terms, a0 + a, b0 + t, a1 + a, b1 + t, a2 + a, b2 + t, segments, count,
                  a_step, itemsize, b_step)
        k += m


# ------------------------------------------------------------------------------------------------------------ lane dot
def _store_dots(e: Emitter, sums: list[Any], place: Any, add: Any) -> None:
    """Stores the lane sums of a column's vectors side by side, or adds them to what is there; four at once by a tree
    of shuffles."""
    def store(value: Any, place: Any) -> None:
        before = e.load_as(value.type, place)
        zero = ir.Constant(value.type, None if isinstance(value.type, ir.VectorType) else 0.0)
        e.store(e.b.fadd(value, e.b.select(add, before, zero)), place)

    if len(sums) < 4:
        for i, vector in enumerate(sums):
            store(e.sum(vector), e.at(place, e.size * i))
        return
    n = e.lanes

    def interleave(a: Any, b: Any, width: int) -> Any:
        """a + b pairwise: lanes in groups of 2·width, of each the two halves of a and of b."""
        low = [i + j for i in range(0, n, 2 * width) for part in (0, n) for j in range(part, part + width)]
        return e.b.fadd(e.shuffle(a, b, low), e.shuffle(a, b, [i + width for i in low]))

    if n == 8:
        pairs = [interleave(sums[i], sums[i + 1], 4) for i in (0, 2)]          # lanes: 4 of a, 4 of b
        left, right = (e.shuffle(p, p, [0, 1, 4, 5, 2, 3, 6, 7]) for p in pairs)             # 2 of a, 2 of b, again
        quads = interleave(left, right, 4)                                                   # a a b b c c d d
        store(e.b.fadd(e.shuffle(quads, quads, [0, 2, 4, 6]), e.shuffle(quads, quads, [1, 3, 5, 7])), place)
    else:
        pairs = [interleave(sums[i], sums[i + 1], 2) for i in (0, 2)]          # a a b b
        low = e.shuffle(pairs[0], pairs[1], [0, 2, 4, 6])
        high = e.shuffle(pairs[0], pairs[1], [1, 3, 5, 7])
        store(e.b.fadd(low, high), place)


def _dots(e: Emitter, rows: int, columns: int, d, d_step, add, terms, a0, b0, a1, b1, a2, b2, pairs, pair_count, blocks,
          a_pixel, b_pixel, row_bytes) -> None:
    def term(t, sums):
        a_t, b_t = _term(e, t, (a0, a1, a2)), _term(e, t, (b0, b1, b2))

        def block(i, sums):
            lanes = e.b.mul(i, const(BLOCK))

            def pair(p, sums):
                where = e.at(pairs, e.b.mul(p, const(16)))
                a = e.at(a_t, lanes, e.b.mul(a_pixel, e.load_int(where)))
                b = e.at(b_t, lanes, e.b.mul(b_pixel, e.load_int(e.at(where, 8))))
                sums = list(sums)
                for half in BOTH:
                    held = [e.load(e.at(b, half, e.b.mul(row_bytes, const(j)))) for j in range(columns)]
                    for i in range(rows):
                        vector = e.load(e.at(a, half, e.b.mul(row_bytes, const(i))))
                        for j in range(columns):
                            sums[i * columns + j] = e.fma(vector, held[j], sums[i * columns + j])
                return sums
            return e.loop(pair_count, sums, pair)
        return e.loop(blocks, sums, block)

    sums = e.loop(terms, [e.number(0)] * (rows * columns), term)
    adds = e.b.icmp_signed("!=", add, const(0))
    for j in range(columns):
        _store_dots(e, sums[j::columns], e.at(d, e.b.mul(d_step, const(j))), adds)


def _emit_dots(e: Emitter, rows, columns, *rest) -> None:
    key = e.b.add(e.b.mul(rows, const(DOT_COLUMNS + 1)), columns)
    e.switch(key, {(DOT_COLUMNS + 1) * m + n: partial(_dots, e, m, n, *rest)
                   for m in range(1, DOT_ROWS + 1) for n in range(1, DOT_COLUMNS + 1)})


dots = PerPrecision(vector_function(18, _emit_dots))


@helper
def lane_dots(d, rows, terms, a0, b0, a1, b1, a2, b2, groups, group_count, lane_bytes,
              a_rows, a_pixels, a_grouped, b_rows, b_pixels, b_grouped):
    """D[j, k] for all rows k of A and all groups of rows j of B. A group is one tap of a convolution: (first j, number
    of j, address of its pairs of pixels, number of pairs). Four k and three j stay in L1 while the taps go by; if they
    do not fit for all terms together, terms are taken one by one and added up in D instead of in registers.
    A and B lie as (pixel, row, lane), or grouped: (block of rows, pixel, row in the block, lane). Of one pixel (linear
    layers) the blocks of lanes take the place of pixels."""
    linear = a_pixels == 1 and b_pixels == 1 and group_count == 1
    together = linear or terms * (DOT_ROWS * a_pixels + DOT_COLUMNS * b_pixels) * lane_bytes <= L1
    columns = peek(groups + 8)
    panels = (columns + DOT_COLUMNS - 1) // DOT_COLUMNS
    for k in range(0, rows, DOT_ROWS):
        m = min(DOT_ROWS, rows - k)
        a = k * (a_pixels if a_grouped else 1) * lane_bytes
        a_pixel = BLOCK if linear else (m if a_grouped else a_rows) * lane_bytes
        j = 0
        for index in range(panels):
            n = share(panels, index, columns)
            b = j * (b_pixels if b_grouped else 1) * lane_bytes
            b_pixel = BLOCK if linear else (n if b_grouped else b_rows) * lane_bytes
            for term in range(1 if together else terms):
                a_term = a + (a0 if term == 0 else a1 if term == 1 else a2)
                b_term = b + (b0 if term == 0 else b1 if term == 1 else b2)
                for group in range(groups, groups + 32 * group_count, 32):
                    place = d + ((peek(group) + j) * rows + k) * itemsize
                    dots(m, n, place, itemsize * rows, term, terms if together else 1, a_term, b_term, a1 + a, b1 + b,
                         a2 + a, b2 + b, peek(group + 16), peek(group + 24), 1 if linear else lane_bytes // BLOCK,
                         a_pixel, b_pixel, lane_bytes)
            j += n
