"""Depthwise convolutions on pixel lanes: every channel has a kernel of its own, so that there is no matrix product.

    y (channel, position) (+)= bias + Σ_terms Σ_taps w (channel, tap) · x (channel, lane of the position and tap)

The strips of positions and their tables are those of strips.py, and so are the segments of the gradient of the weights.
"""

from __future__ import annotations

from rop.kernels.compile import Extent, Pair, PerPrecision, Slice, Terms, helper, itemsize, kernel, loop, real
from rop.kernels.cpu.gemm import SEGMENT, SPAN, TERMS, _term
from rop.kernels.cpu.memory import bounds_of, integers, reals
from rop.kernels.cpu.strips import (
    BITS,
    C_STEP,
    CHANNELS,
    COUNT,
    GROUPS,
    PRODUCT_WORDS,
    SHIFTS,
    SOURCE,
    SOURCES,
    STRIP_TABLE,
    STRIP_WORDS,
    STRIPS,
    TAPS,
    TARGET,
    TARGETS,
    X_STEP,
    lanes_of_bits,
    rectified,
    store_panel,
)
from rop.kernels.cpu.vector import BLOCK, VECTOR, VectorBuilder, const, peek, vector_function


def _emit_filter(e: VectorBuilder, size, c, bias, gate, terms, offsets, shifts, bits, taps) -> None:
    """One row of C at the positions of a strip that follow each other in the source. Weights are at the ``offsets`` of
    the taps, in bytes."""
    count, *factors = terms

    def version(span: int):
        lanes = range(0, span, VECTOR)

        def term(t, sums):
            w, x = _term(e, t, factors[::2]), _term(e, t, factors[1::2])

            def tap(i, sums):
                at = e.b.mul(i, const(8))
                scale = e.broadcast(e.at(w, e.load_int(e.at(offsets, at))))
                source, valid = e.at(x, e.load_int(e.at(shifts, at))), e.load_int(e.at(bits, at))
                return [
                    e.fma(scale, e.load_some(e.at(source, lane), lanes_of_bits(e, valid, lane // e.size)), total)
                    for lane, total in zip(lanes, sums, strict=True)
                ]

            return e.loop(taps, sums, tap)

        return lambda: store_panel(e, e.loop(count, [e.number(0)] * len(lanes), term), 1, span, c, bias, gate)

    e.switch(size, {span: version(span) for span in {BLOCK, SPAN}})


filter_strip = PerPrecision(vector_function(_emit_filter, c=3, gate=2, terms=TERMS))


@helper
def filter_listed(c, bias, gate, add, terms, offsets, words, strip):
    """The same where the positions, or what they read, are listed."""
    count, w0, x0, w1, x1, w2, x2 = terms
    relu, mask = gate
    taps = words[TAPS]
    offset, shift, valid = integers(offsets, taps), integers(words[SHIFTS], taps), integers(strip[BITS], taps)
    for i in range(strip[COUNT]):
        total = reals(bias, 1)[0]
        lane = strip[SOURCE] + i if strip[SOURCES] == 0 else integers(strip[SOURCES], strip[COUNT])[i]
        for term in range(count):
            w = w0 if term == 0 else w1 if term == 1 else w2
            x = (x0 if term == 0 else x1 if term == 1 else x2) + lane * itemsize
            for t in range(taps):
                if (valid[t] >> i) & 1:
                    total += reals(w + offset[t], 1)[0] * reals(x + shift[t], 1)[0]
        at = (strip[TARGET] + i if strip[TARGETS] == 0 else integers(strip[TARGETS], strip[COUNT])[i]) * itemsize
        if add:
            total += reals(c + at, 1)[0]
        if relu != 0:
            total = rectified(total, total, real(0))
        elif mask != 0:
            total = rectified(total, reals(mask + at, 1)[0], real(0))
        reals(c + at, 1)[0] = total


@kernel
def depthwise_products(c, bias, bias_step, gate: Pair, add, terms: Terms, table, offsets, part: Slice):
    """C (channel, position) of a slice of the channels; ``table`` is that of a product on strips with as many groups as
    channels, A are the weights as they lie in w."""
    words = integers(table, PRODUCT_WORDS)
    count, w0, x0, w1, x1, w2, x2 = terms
    relu, mask = gate
    per_channel = words[CHANNELS] * itemsize  # here the steps from kernel to kernel in w
    low, high = bounds_of(words[GROUPS], part)
    for channel in range(low, high):
        w, x, place = channel * per_channel, channel * words[X_STEP], channel * words[C_STEP]
        for index in range(words[STRIPS]):
            strip = integers(words[STRIP_TABLE] + 8 * STRIP_WORDS * index, STRIP_WORDS)
            gates = (relu, mask + place if mask != 0 else 0)
            shift = bias + channel * bias_step
            if strip[SOURCES] == 0 and strip[TARGETS] == 0:
                o, at = x + strip[SOURCE] * itemsize, place + strip[TARGET] * itemsize
                filter_strip(
                    BLOCK if strip[COUNT] * itemsize <= BLOCK else SPAN,
                    (c + at, 0, add),
                    shift,
                    (relu, mask + at if mask != 0 else 0),
                    (count, w0 + w, x0 + o, w1 + w, x1 + o, w2 + w, x2 + o),
                    offsets,
                    words[SHIFTS],
                    strip[BITS],
                    words[TAPS],
                )
            else:
                of_channel = (count, w0 + w, x0 + x, w1 + w, x1 + x, w2 + w, x2 + x)
                filter_listed(c + place, shift, gates, add, of_channel, offsets, words, strip)


@loop
def _dot(g, x, step):
    total = real(0)
    for i in range(g.size):
        total += g[i] * x[i * step]
    return total


@loop
def _dot_following(g, x):
    total = real(0)
    for i in range(g.size):
        total += g[i] * x[i]
    return total


@kernel
def depthwise_weight_gradient(
    d, terms: Terms, g_extent: Extent, x_step, segments, chunks, taps, step, add, part: Slice
):
    """d (channel, tap) (+)= Σ_terms Σ_segments g x, of a slice of the channels; sums over segments are in float64."""
    _, channels, _, g_step = g_extent
    count, g0, x0, g1, x1, g2, x2 = terms
    low, high = bounds_of(channels, part)
    for c in range(low, high):
        target = reals(d + c * taps * itemsize, taps)
        for tap in range(taps):
            total = 0.0
            for term in range(count):
                g = (g0 if term == 0 else g1 if term == 1 else g2) + c * g_step
                x = (x0 if term == 0 else x1 if term == 1 else x2) + c * x_step
                for chunk in range(chunks):
                    bounds = segments + 8 * (chunk * taps + tap)
                    for segment in range(peek(bounds), peek(bounds + 8), SEGMENT):
                        n = peek(segment + 16)
                        a = reals(g + peek(segment) * itemsize, n)
                        b = reals(x + peek(segment + 8) * itemsize, n * step)
                        total += _dot_following(a, b) if step == 1 else _dot(a, b, step)
            target[tap] = real(total) + (target[tap] if add else real(0))
