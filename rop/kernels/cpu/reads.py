"""What positions read of a map on pixel lanes through the taps of a window.

Positions are the lanes of a result C: the pixels of an output, or of an input gradient. They are taken in *strips* of
one span of lanes. Through each tap a strip reads as many lanes of the source X: those that follow its first one, moved
by the shift of the tap, or, where rows of both images differ in length, lanes that are listed. Bits say which of them
are pixels; the others are padding, of which nothing is read. With a stride X is divided into phases first (phases.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from rop.kernels.compile import helper, itemsize
from rop.kernels.cpu.gemm import SPAN
from rop.kernels.cpu.vector import BLOCK, I64, VECTOR, Value, VectorBuilder, const, peek

# The words that the tables of all kernels on strips begin with, …
READS_WORDS = 6
(
    STRIPS,
    STRIP_TABLE,  # address
    TAPS,
    SHIFTS,  # address: of each tap, in bytes
    C_STEP,  # bytes from row to row
    X_STEP,
) = range(READS_WORDS)
# … and those of each strip.
STRIP_WORDS = 5
(
    COUNT,  # positions
    TARGET,  # bytes of the lanes before the first position in C
    SOURCE,  # bytes of the lanes before what it reads of X through no shift, 0 if lanes are listed
    LISTED,  # address of those of all positions, 0 if they follow each other
    BITS,  # address: for each tap, which positions read a pixel
) = range(STRIP_WORDS)


def lanes_of_bits(e: VectorBuilder, bits: Value, first: int) -> Value:
    """A truth value for every lane of a vector: the bits of an integer from ``first`` on."""
    some = e.b.trunc(e.b.lshr(bits, const(first)), ir.IntType(e.lanes))
    return e.b.bitcast(some, ir.VectorType(ir.IntType(1), e.lanes))


@dataclass(frozen=True)
class Strip:
    """One version of the code for a strip: the lanes it has at most are known, and whether what it reads is listed."""

    e: VectorBuilder
    size: int  # bytes of its lanes
    source: Value
    listed: Value | None
    bits: Value

    def __iter__(self) -> Iterator[int]:
        """The first bytes of its vectors."""
        return iter(range(0, self.size, VECTOR))

    def tap(self, number: Value, shifts: Value) -> Tap:
        """What is read through a tap, by its number in the table."""
        e, at = self.e, self.e.b.mul(number, const(8))
        return Tap(self, e.load_int(e.at(shifts, at)), e.load_int(e.at(self.bits, at)))


@dataclass(frozen=True)
class Tap:
    """What a strip reads through a tap."""

    strip: Strip
    shift: Value
    bits: Value

    def there(self, lane: int) -> Value:
        """Which positions of the vector from byte ``lane`` on read a pixel."""
        return lanes_of_bits(self.strip.e, self.bits, lane // self.strip.e.size)

    def read(self, x: Value, lane: int) -> Value:
        """What they read of a row, zero where nothing is there."""
        e, source = self.strip.e, self.strip.e.at(x, self.strip.source, self.shift)
        if self.strip.listed is None:
            return e.load_some(e.at(source, lane), self.there(lane))
        offsets = e.load_as(ir.VectorType(I64, e.lanes), e.at(self.strip.listed, lane // e.size * 8))
        return e.gather(source, offsets, self.there(lane))


def strip_at(e: VectorBuilder, words: Value, size: int, follows: bool) -> Strip:
    """The strip whose words are at an address."""
    source, listed, bits = (e.load_int(e.at(words, 8 * word)) for word in (SOURCE, LISTED, BITS))
    return Strip(e, size, source, None if follows else listed, bits)


def follows(e: VectorBuilder, words: Value) -> Value:
    """1 if the lanes that a strip reads follow each other, as they do in all strips of a table or in none."""
    return e.b.zext(e.b.icmp_signed("==", e.load_int(e.at(words, 8 * LISTED)), const(0)), I64)


def per_strip(e: VectorBuilder, words: Value, emit: Callable[[Strip], None]) -> None:
    """Code for one strip: a version for each number of lanes, for lanes that follow each other and for lanes that are
    listed."""
    lanes = e.b.mul(e.load_int(e.at(words, 8 * COUNT)), const(e.size))
    size = e.b.select(e.b.icmp_signed("<=", lanes, const(BLOCK)), const(BLOCK), const(SPAN))

    def version(size: int, following: bool) -> Callable[[], None]:
        return lambda: emit(strip_at(e, words, size, following))

    cases = {size + following: version(size, bool(following)) for size in {BLOCK, SPAN} for following in (0, 1)}
    e.switch(e.at(size, follows(e, words)), cases)


@helper
def strip_bytes(strip):
    """Bytes of the lanes of the version for a strip."""
    return BLOCK if peek(strip + 8 * COUNT) * itemsize <= BLOCK else SPAN


@helper
def strips_of(words):
    """The addresses of the words of all strips of a table."""
    return range(words[STRIP_TABLE], words[STRIP_TABLE] + 8 * STRIP_WORDS * words[STRIPS], 8 * STRIP_WORDS)
