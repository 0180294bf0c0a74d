"""The two micro-kernels that carry almost all of the work, and the loops around them.

    panel      C[i, lanes] = Σ_terms Σ_segments Σ_j A[j, i] · B[j, lanes]      rows × 2 vectors of lanes in registers
    lane dot   D[j, i]     = Σ_terms Σ_pairs Σ_lanes A[i, lane] · B[j, lane]   rows × columns of sums in registers

All terms of an order (W x¹ + V x⁰, say) are added up in registers and stored once. A *segment* is a run of consecutive
rows of B that meets consecutive j: a linear layer has one, a pixel of a convolution one per row of its window, so
there is no im2col copy and padding is left out exactly. Arguments that belong together are tuples: ``terms`` is the
number of terms and the addresses of their factors, ``segments`` is the address of the first segment and their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llvmlite import ir

from rop.kernels.compile import PerPrecision, helper, itemsize, tuned
from rop.kernels.cpu.vector import BLOCK, UNIT, VECTOR, Value, VectorBuilder, const, peek, vector_function

PANEL, SPAN, DOT_COLUMNS, L1 = UNIT.panel, UNIT.span, UNIT.dot_columns, UNIT.l1
DOT_ROWS = 4
SEGMENT = 24  # bytes: first j, byte offset in B, length
TERMS = 7  # of a sum over orders: number of terms, then a0, b0, a1, b1, a2, b2, of which those beyond it are not read
# How A (row, j) lies: row after row, column after column, or in panels [j][row in the panel].
BY_ROWS, BY_COLUMNS, IN_PANELS = range(3)


def term_of(e: VectorBuilder, index: Value, addresses: Sequence[Value]) -> Value:
    """addresses[index], for an index known only at run time."""
    chosen = addresses[0]
    for i, address in enumerate(addresses[1:], start=1):
        chosen = e.b.select(e.b.icmp_signed("==", index, const(i)), address, chosen)
    return chosen


def panel_sums(e: VectorBuilder, rows: int, lanes: range, terms, segments, steps, unit: int = 1) -> list[Value]:
    """The sums of one panel, for each row its vectors at the offsets ``lanes``; A[j, i] lies at
    a + j·column_step + i·row_step. Offsets of segments in B are in units of that many bytes."""
    count, *factors = terms
    first_segment, segment_count = segments
    row_step, column_step, b_step = steps

    def term(t, sums):
        a, b = term_of(e, t, factors[::2]), term_of(e, t, factors[1::2])

        def segment(s, sums):
            where = e.at(first_segment, e.b.mul(s, const(SEGMENT)))
            first, offset, length = (e.load_int(e.at(where, 8 * i)) for i in range(3))

            def step(j, carried):
                *sums, a_j, b_j = carried
                vectors = [e.load(e.at(b_j, lane)) for lane in lanes]
                new = []
                for i in range(rows):
                    scale = e.broadcast(e.at(a_j, e.b.mul(row_step, const(i))))
                    new += [e.fma(scale, vector, sums[len(lanes) * i + v]) for v, vector in enumerate(vectors)]
                return [*new, e.at(a_j, column_step), e.at(b_j, b_step)]

            offset = e.b.mul(offset, const(unit)) if unit > 1 else offset
            start = [e.at(a, e.b.mul(first, column_step)), e.at(b, offset)]
            return e.loop(length, [*sums, *start], step)[:-2]

        return e.loop(segment_count, sums, segment)

    return e.loop(count, [e.number(0)] * (len(lanes) * rows), term)


def _panel(e: VectorBuilder, rows: int, lanes: range, c, bias, gate, terms, segments, steps) -> None:
    sums = panel_sums(e, rows, lanes, terms, segments, steps)
    (c, c_step), (relu, mask) = c, gate
    places = [e.at(e.b.mul(c_step, const(i)), lane) for i in range(rows) for lane in lanes]
    biases = [e.broadcast(e.at(bias, e.size * i)) for i in range(rows)]
    values = [e.b.fadd(total, biases[i // len(lanes)]) for i, total in enumerate(sums)]
    zero = e.number(0)
    floor = e.b.select(e.b.icmp_signed("!=", relu, const(0)), zero, e.number(float("-inf")))
    with e.b.if_else(e.b.icmp_signed("==", mask, const(0))) as (plain, masked):
        with plain:
            for value, place in zip(values, places, strict=True):
                e.store(e.b.select(e.b.fcmp_ordered("<", value, floor), floor, value), e.at(c, place))
        with masked:  # a ReLU is off at every order where it is off at order 0: relu.is_off, as vector instructions
            for value, place in zip(values, places, strict=True):
                off = e.b.fcmp_ordered("<=", e.load(e.at(mask, place)), zero)
                e.store(e.b.select(off, zero, value), e.at(c, place))


def _emit_panel(e: VectorBuilder, shape, c, bias, gate, terms, segments, steps) -> None:
    """One version per number of rows and bytes of lanes, and another for rows of A that are ``adjacent``: a constant
    stride saves address arithmetic, which matters in short sums. ``c`` is (address, step), ``gate`` (relu, mask)."""
    rows, adjacent, span = shape
    row_step, column_step, b_step = steps

    def version(m: int, constant: int, size: int):
        known = (const(e.size) if constant else row_step, column_step, b_step)
        return lambda: _panel(e, m, range(0, size, VECTOR), c, bias, gate, terms, segments, known)

    asked = e.at(rows, e.b.mul(adjacent, const(16)), span)
    e.switch(
        asked,
        {
            m + 16 * constant + size: version(m, constant, size)
            for m in range(1, PANEL + 1)
            for constant in (0, 1)
            for size in {BLOCK, SPAN}
        },
    )


panel = PerPrecision(vector_function(_emit_panel, shape=3, c=2, gate=2, terms=TERMS, segments=2, steps=3))


@helper
def share(parts, index, total):
    """The size of part ``index`` when ``total`` is divided into ``parts`` as equally as possible."""
    return total // parts + (1 if index < total % parts else 0)


@helper
def first_of(parts, index, total):
    """Where part ``index`` begins then."""
    return index * (total // parts) + min(index, total % parts)


@helper
def multiply(c, a, b, bias, gate, terms, segments):
    """C (rows, lanes) = bias + Σ_terms A B over the given segments.

    c      address, bytes from row to row
    a      rows, step, layout: the step is the bytes from a row of A to the next, or from a column to the next if it
           lies BY_COLUMNS; in panels, what a row takes
    b      bytes of lanes, bytes from row to row
    bias   address, bytes from row to row
    gate   relu, mask: with ``relu`` negative results become 0; with ``mask``, an array that lies like C or the address
           0, so do those where it is ≤ 0
    """
    (c, c_step), (rows, a_step, layout), (lane_bytes, b_step) = c, a, b
    (bias, bias_step), (relu, mask), (count, a0, b0, a1, b1, a2, b2) = bias, gate, terms
    panels = (rows + PANEL - 1) // PANEL
    k = 0
    for index in range(panels):
        m = share(panels, index, rows)
        skipped = k * (itemsize if layout == BY_COLUMNS else a_step)
        column_step = itemsize if layout == BY_ROWS else a_step if layout == BY_COLUMNS else m * itemsize
        place = k * c_step
        for t in range(0, lane_bytes, SPAN):
            panel(
                (m, 0 if layout == BY_ROWS else 1, min(SPAN, lane_bytes - t)),
                (c + place + t, c_step),
                bias + bias_step * k,
                (relu, mask + place + t if mask != 0 else 0),
                (count, a0 + skipped, b0 + t, a1 + skipped, b1 + t, a2 + skipped, b2 + t),
                segments,
                (a_step, column_step, b_step),
            )
        k += m


# ------------------------------------------------------------------------------------------------------------ lane dot
def store_sums(e: VectorBuilder, vectors: list[Value], place: Value, add: Value) -> None:
    """Stores the lane sums of a few vectors side by side, or adds them to what is there; four at once by a tree whose
    every step costs one shuffle (the other half of each sum is a blend)."""

    def store(value: Value, place: Value) -> None:
        before = e.load_as(value.type, place)
        zero = ir.Constant(value.type, None if isinstance(value.type, ir.VectorType) else 0.0)
        e.store(e.b.fadd(value, e.b.select(add, before, zero)), place)

    if len(vectors) < 4:
        for i, vector in enumerate(vectors):
            store(e.sum(vector), e.at(place, e.size * i))
        return
    n = e.lanes

    def halved(a: Value, b: Value, width: int) -> Value:
        """Groups of ``width`` lanes → their first half has what is left of a's sum, their second half of b's."""
        first = [lane % width < width // 2 for lane in range(n)]
        kept = [lane if mine else n + lane for lane, mine in enumerate(first)]
        moved = [lane + width // 2 if mine else n + lane - width // 2 for lane, mine in enumerate(first)]
        return e.b.fadd(e.shuffle(a, b, kept), e.shuffle(a, b, moved))

    a, b, c, d = vectors
    total = halved(halved(a, b, n), halved(c, d, n), n // 2)  # lanes: a… c… b… d…
    width = n // 4
    while width > 1:
        width //= 2
        total = e.b.fadd(total, e.shuffle(total, total, [lane ^ width for lane in range(n)]))
    store(e.shuffle(total, total, [0, n // 2, n // 4, 3 * n // 4]), place)


def _dots(e: VectorBuilder, rows: int, columns: int, d, terms, pairs, blocks, a, b) -> None:
    (d, d_step, add), (count, *factors), (first_pair, pair_count) = d, terms, pairs
    (a_pixel, a_row, a_block), (b_pixel, b_row, b_block) = a, b

    def term(t, sums):
        a_t, b_t = term_of(e, t, factors[::2]), term_of(e, t, factors[1::2])

        def block(i, sums):
            a_i, b_i = e.at(a_t, e.b.mul(i, a_block)), e.at(b_t, e.b.mul(i, b_block))

            def pair(p, sums):
                where = e.at(first_pair, e.b.mul(p, const(16)))
                a = e.at(a_i, e.b.mul(a_pixel, e.load_int(where)))
                b = e.at(b_i, e.b.mul(b_pixel, e.load_int(e.at(where, 8))))
                sums = list(sums)
                for lane in range(0, BLOCK, VECTOR):
                    held = [e.load(e.at(b, lane, e.b.mul(b_row, const(j)))) for j in range(columns)]
                    for i in range(rows):
                        vector = e.load(e.at(a, lane, e.b.mul(a_row, const(i))))
                        for j in range(columns):
                            sums[i * columns + j] = e.fma(vector, held[j], sums[i * columns + j])
                return sums

            return e.loop(pair_count, sums, pair)

        return e.loop(blocks, sums, block)

    sums = e.loop(count, [e.number(0)] * (rows * columns), term)
    adds = e.b.icmp_signed("!=", add, const(0))
    for j in range(columns):
        store_sums(e, sums[j::columns], e.at(d, e.b.mul(d_step, const(j))), adds)


def _emit_dots(e: VectorBuilder, shape, d, terms, pairs, blocks, a, b) -> None:
    """One version per number of rows and columns. ``d`` is (address, step, whether to add); ``a`` and ``b`` are the
    steps from pixel to pixel, row to row and block to block."""
    rows, columns = shape
    key = e.b.add(e.b.mul(rows, const(DOT_COLUMNS + 1)), columns)
    e.switch(
        key,
        {
            (DOT_COLUMNS + 1) * m + n: partial(_dots, e, m, n, d, terms, pairs, blocks, a, b)
            for m in range(1, DOT_ROWS + 1)
            for n in range(1, DOT_COLUMNS + 1)
        },
    )


dots = PerPrecision(vector_function(_emit_dots, shape=2, d=3, terms=TERMS, pairs=2, a=3, b=3))


@helper
def _steps(factor, first, count, lane_bytes):
    """Where rows ``first`` … of a factor of lane dots start, and the bytes from pixel to pixel, row to row and block of
    lanes to block of lanes; ``factor`` is (rows, pixels, grouped)."""
    rows, pixels, grouped = factor
    if grouped:
        return first * pixels * lane_bytes, (count * BLOCK, BLOCK, count * pixels * BLOCK)
    return first * lane_bytes, (rows * lane_bytes, lane_bytes, BLOCK)


@tuned
def lane_dots(d, rows, terms, groups, lane_bytes, a, b):
    """D[j, k] for all rows k of A and all groups of rows j of B. ``groups`` are their address and number; a group is
    one tap of a convolution: (first j, number of j, address of its pairs of pixels, number of pairs). DOT_ROWS k and
    DOT_COLUMNS j stay in L1 while the taps go by; if they do not fit for all terms together, terms are taken one by one
    and added up in D instead of in registers, and so are blocks of lanes if one term is still too much.
    A and B are described by (rows, pixels, grouped): they lie as (pixel, row, lane), or grouped: (block of rows, block
    of lanes, pixel, row in the block, lane in the block)."""
    (first_group, group_count), (count, a0, b0, a1, b1, a2, b2) = groups, terms
    blocks = lane_bytes // BLOCK
    size = (DOT_ROWS * a[1] + DOT_COLUMNS * b[1]) * lane_bytes
    together = count * size <= L1
    apart = blocks if a[2] and b[2] and size > L1 else 1
    columns = peek(first_group + 8)
    panels = (columns + DOT_COLUMNS - 1) // DOT_COLUMNS
    for k in range(0, rows, DOT_ROWS):
        m = min(DOT_ROWS, rows - k)
        a_at, a_steps = _steps(a, k, m, lane_bytes)
        j = 0
        for index in range(panels):
            n = share(panels, index, columns)
            b_at, b_steps = _steps(b, j, n, lane_bytes)
            for part in range(1 if together else count * apart):
                term = part // apart
                a_term = a_at + part % apart * a_steps[2] + (a0 if term == 0 else a1 if term == 1 else a2)
                b_term = b_at + part % apart * b_steps[2] + (b0 if term == 0 else b1 if term == 1 else b2)
                for group in range(first_group, first_group + 32 * group_count, 32):
                    dots(
                        (m, n),
                        (d + ((peek(group) + j) * rows + k) * itemsize, itemsize * rows, part),
                        (count if together else 1, a_term, b_term, a1 + a_at, b1 + b_at, a2 + a_at, b2 + b_at),
                        (peek(group + 16), peek(group + 24)),
                        blocks if together else blocks // apart,
                        a_steps,
                        b_steps,
                    )
            j += n
