"""Depthwise convolutions on pixel lanes: every channel has a kernel of its own, so that there is no matrix product.

y (channel, position) (+)= bias + Σ_terms Σ_taps w (channel, tap) · x (channel, lane of the position and tap)
d (channel, tap)      (+)= Σ_terms Σ_positions g (channel, position) · x (channel, lane of the position and tap)
"""

from __future__ import annotations

from functools import reduce

from llvmlite import ir

from rop.kernels.compile import Pair, PerPrecision, Slice, Terms, itemsize, kernel, real
from rop.kernels.cpu.gemm import SPAN, TERMS, term_of
from rop.kernels.cpu.memory import bounds_of, doubles, integers, reals
from rop.kernels.cpu.reads import (
    C_STEP,
    READS_WORDS,
    SHIFTS,
    STRIP_TABLE,
    STRIP_WORDS,
    STRIPS,
    TAPS,
    TARGET,
    X_STEP,
    Strip,
    follows,
    per_strip,
    strip_at,
    strips_of,
)
from rop.kernels.cpu.strips import store_panel
from rop.kernels.cpu.vector import VECTOR, VectorBuilder, const, peek, vector_function

STRIPS_PER_SUM = 16  # of a weight gradient: so many are summed in the engine's precision, all else in float64


def _emit_filter(e: VectorBuilder, c, bias, gate, terms, offsets, shifts, words, taps) -> None:
    """One row of C at the positions of a strip. Weights are at the ``offsets`` of the taps, in bytes."""
    count, *factors = terms

    def emit(strip: Strip) -> None:
        def term(t, sums):
            w, x = term_of(e, t, factors[::2]), term_of(e, t, factors[1::2])

            def tap(i, sums):
                scale = e.broadcast(e.at(w, e.load_int(e.at(offsets, e.b.mul(i, const(8))))))
                what = strip.tap(i, shifts)
                return [e.fma(scale, what.read(x, lane), sum) for lane, sum in zip(strip, sums, strict=True)]

            return e.loop(taps, sums, tap)

        sums = e.loop(count, [e.number(0) for _ in strip], term)
        store_panel(e, sums, 1, strip.size, c, bias, gate)

    per_strip(e, words, emit)


filter_strip = PerPrecision(vector_function(_emit_filter, c=3, gate=2, terms=TERMS))


@kernel
def depthwise_products(
    c, bias, bias_step, gate: Pair, add, terms: Terms, table, offsets, weight_step, channels, part: Slice
):
    """C (channel, position) of a slice of the channels; ``table`` says what positions read, A are the weights as they
    lie in w, ``weight_step`` bytes from channel to channel, with taps at the ``offsets``."""
    words = integers(table, READS_WORDS)
    count, w0, x0, w1, x1, w2, x2 = terms
    relu, mask = gate
    low, high = bounds_of(channels, part)
    for channel in range(low, high):
        w, x = channel * weight_step, channel * words[X_STEP]
        for strip in strips_of(words):
            at = channel * words[C_STEP] + peek(strip + 8 * TARGET)
            filter_strip(
                (c + at, 0, add),
                bias + channel * bias_step,
                (relu, mask + at if mask != 0 else 0),
                (count, w0 + w, x0 + x, w1 + w, x1 + x, w2 + w, x2 + x),
                offsets,
                words[SHIFTS],
                strip,
                words[TAPS],
            )


def _emit_correlate(e: VectorBuilder, total, g, x, table, number) -> None:
    """total += Σ_positions g · x through one tap, for one channel; ``total`` is the address of a float64, ``table`` has
    the address of the first strip, the number of strips and the address of the shifts."""
    strips, count, shifts = table
    double = ir.DoubleType()

    def version(following: bool):
        def strip_sum(s, sums):
            words = e.at(strips, e.b.mul(s, const(8 * STRIP_WORDS)))
            strip, here = strip_at(e, words, SPAN, following), e.at(g, e.load_int(e.at(words, 8 * TARGET)))
            tap, new = strip.tap(number, shifts), []
            for lane, sum in zip(strip, sums, strict=True):
                new.append(e.fma(e.load_some(e.at(here, lane), tap.there(lane)), tap.read(x, lane), sum))
            return new

        def piece(i, carried):
            first = e.b.mul(i, const(STRIPS_PER_SUM))
            left = e.b.sub(count, first)
            some = e.b.select(e.b.icmp_signed("<", left, const(STRIPS_PER_SUM)), left, const(STRIPS_PER_SUM))
            vectors = [e.number(0)] * (SPAN // VECTOR)
            sums = e.loop(some, vectors, lambda s, sums: strip_sum(e.b.add(first, s), sums))
            result = e.sum(reduce(e.b.fadd, sums))
            return [e.b.fadd(carried[0], result if e.size == 8 else e.b.fpext(result, double))]

        def emit() -> None:
            place = e.b.inttoptr(total, double.as_pointer())
            pieces = e.b.sdiv(e.at(count, STRIPS_PER_SUM - 1), const(STRIPS_PER_SUM))
            e.b.store(e.loop(pieces, [e.b.load(place)], piece)[0], place)

        return emit

    e.switch(follows(e, strips), {following: version(bool(following)) for following in (0, 1)})


correlate = PerPrecision(vector_function(_emit_correlate, table=3))


@kernel
def depthwise_weight_gradient(d, terms: Terms, table, totals, channels, add, part: Slice):
    """d (channel, tap) (+)= Σ_terms Σ_positions g x, of a slice of the channels; the table is that of y. ``totals`` has
    a float64 for each channel and tap."""
    words = integers(table, READS_WORDS)
    count, g0, x0, g1, x1, g2, x2 = terms
    taps = words[TAPS]
    low, high = bounds_of(channels, part)
    strips = (words[STRIP_TABLE], words[STRIPS], words[SHIFTS])
    for channel in range(low, high):
        target = reals(d + channel * taps * itemsize, taps)
        sums = doubles(totals + 8 * channel * taps, taps)
        for tap in range(taps):
            sums[tap] = 0.0
            for term in range(count):
                g = (g0 if term == 0 else g1 if term == 1 else g2) + channel * words[C_STEP]
                x = (x0 if term == 0 else x1 if term == 1 else x2) + channel * words[X_STEP]
                correlate(totals + 8 * (channel * taps + tap), g, x, strips, tap)
            target[tap] = real(sums[tap]) + (target[tap] if add else real(0))
