"""The transforms of Winograd's algorithm, as vector code.

Outputs of a convolution of 3×3 are taken in *tiles* of m×m, each of which reads n×n inputs, n = m + 2. A tile is

    Aᵀ [(G w Gᵀ) ⊙ (Bᵀ d B)] A

which multiplies polynomials by their values at n points (Toom and Cook): 0, pairs ±a, and ∞, in this order. With
P(x) = x Π (x² − a²), row p of Bᵀ has the coefficients of P(x)/(x − p), row ∞ those of P; column p of Aᵀ is 1, p, p², …;
row p of G is (1, p, p²) over the value of P(x)/(x − p) at p; column and row ∞ have a 1 in the last place. Even and odd
parts of a pair's rows are computed once.

Tiles of 2×2 have the pair ±1. For tiles of 4×4 the usual pairs are ±1 and ±2, with rounding errors of four to six times
those of direct sums. With ±5/8 and ±3/2 they are about twice those of direct sums; all entries of A and B are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

from rop.kernels.cpu.vector import Value, VectorBuilder

Transform = Callable[[VectorBuilder, Sequence[Value]], list[Value]]


def combined(e: VectorBuilder, terms: Sequence[tuple[Fraction | int, Value]]) -> Value:
    """Σ coefficient · vector, beginning with a coefficient of one if there is any."""
    ordered = sorted(terms, key=lambda term: term[0] != 1)
    (factor, total), *rest = ordered
    if factor != 1:
        total = e.b.fmul(e.number(float(factor)), total)
    for factor, vector in rest:
        if factor == 1:
            total = e.b.fadd(total, vector)
        elif factor == -1:
            total = e.b.fsub(total, vector)
        else:
            total = e.fma(e.number(float(factor)), vector, total)
    return total


def both_ways(e: VectorBuilder, transform: Transform, grid: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """M grid Mᵀ."""
    down = [transform(e, column) for column in zip(*grid, strict=True)]
    return [transform(e, line) for line in zip(*down, strict=True)]


@dataclass(frozen=True)
class Tile:
    """The transforms for tiles of one size."""

    pairs: tuple[Fraction, ...]

    @cached_property
    def side(self) -> int:
        """Outputs in each direction."""
        return 2 * len(self.pairs)

    @cached_property
    def reach(self) -> int:
        """Inputs, and points, in each direction."""
        return self.side + 2

    @cached_property
    def points(self) -> int:
        return self.reach**2

    def _others(self, a: Fraction) -> list[Fraction]:
        return [b for b in self.pairs if b != a]

    @cached_property
    def _zero_scale(self) -> Fraction:
        """One over P(x)/x at 0."""
        return Fraction(1) / prod(-a * a for a in self.pairs)

    def _scale(self, a: Fraction) -> Fraction:
        """One over P(x)/(x − a) at a, which is the same at −a."""
        return Fraction(1) / (2 * a * a * prod(a * a - b * b for b in self._others(a)))

    def spread_inputs(self, e: VectorBuilder, d: Sequence[Value]) -> list[Value]:
        """Bᵀ d."""
        whole = _product(self.pairs)
        points = [combined(e, list(zip(whole, d[0::2], strict=True)))]
        for a in self.pairs:
            rest = _product(self._others(a))
            even, odd = (combined(e, list(zip(rest, d[first:-1:2], strict=False))) for first in (2, 1))
            points += _plus_minus(e, even, a, odd)
        return [*points, combined(e, list(zip(whole, d[1::2], strict=True)))]

    def join_outputs(self, e: VectorBuilder, m: Sequence[Value]) -> list[Value]:
        """Aᵀ m."""
        at_zero, *at_pairs, at_infinity = m
        sums = [e.b.fadd(*both) for both in zip(at_pairs[0::2], at_pairs[1::2], strict=True)]
        differences = [e.b.fsub(*both) for both in zip(at_pairs[0::2], at_pairs[1::2], strict=True)]
        outputs = []
        for power in range(self.side):
            parts = zip(self.pairs, differences if power % 2 else sums, strict=True)
            terms: list[tuple[Fraction | int, Value]] = [(a**power, part) for a, part in parts]
            first: list[tuple[Fraction | int, Value]] = [(1, at_zero)] if power == 0 else []
            last: list[tuple[Fraction | int, Value]] = [(1, at_infinity)] if power == self.side - 1 else []
            outputs.append(combined(e, [*first, *terms, *last]))
        return outputs

    def spread_outputs(self, e: VectorBuilder, g: Sequence[Value]) -> list[Value]:
        """A g."""
        points = [g[0]]
        for a in self.pairs:
            even, odd = (combined(e, [(a ** (2 * i), one) for i, one in enumerate(g[k::2])]) for k in (0, 1))
            points += _plus_minus(e, even, a, odd)
        return [*points, g[-1]]

    def spread_taps(self, e: VectorBuilder, w: Sequence[Value]) -> list[Value]:
        """G w."""
        points = [combined(e, [(self._zero_scale, w[0])])]
        for a in self.pairs:
            scale = e.number(float(self._scale(a)))
            both = _plus_minus(e, combined(e, [(1, w[0]), (a * a, w[2])]), a, w[1])
            points += [e.b.fmul(scale, one) for one in both]
        return [*points, w[2]]

    def join_taps(self, e: VectorBuilder, u: Sequence[Value]) -> list[Value]:
        """Gᵀ u."""
        at_zero, *at_pairs, at_infinity = u
        first, second, third = [(self._zero_scale, at_zero)], [], [(Fraction(1), at_infinity)]
        for a, plus, minus in zip(self.pairs, at_pairs[0::2], at_pairs[1::2], strict=True):
            scale, total = self._scale(a), e.b.fadd(plus, minus)
            first.append((scale, total))
            second.append((scale * a, e.b.fsub(plus, minus)))
            third.append((scale * a * a, total))
        return [combined(e, terms) for terms in (first, second, third)]


def _product(pairs: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of Π (q − a²), from q⁰ on."""
    coefficients = [Fraction(1)]
    for a in pairs:
        lower, upper = [*coefficients, Fraction(0)], [Fraction(0), *coefficients]
        coefficients = [high - a * a * low for low, high in zip(lower, upper, strict=True)]
    return coefficients


def _plus_minus(e: VectorBuilder, even: Value, a: Fraction, odd: Value) -> list[Value]:
    """even + a·odd and even − a·odd."""
    return [combined(e, [(1, even), (a, odd)]), combined(e, [(1, even), (-a, odd)])]


TILES = {tile.side: tile for tile in (Tile((Fraction(1),)), Tile((Fraction(5, 8), Fraction(3, 2))))}


# -------------------------------------------------------------------------------------------------------- rows of tiles
def columns_of(e: VectorBuilder, vectors: Sequence[Value]) -> list[Value]:
    """Lanes of several vectors, a power of two of them, in turn: column j of every tile from rows of pixels."""
    if len(vectors) == 1:
        return list(vectors)
    halves = []
    for k in (0, 1):
        order = [2 * i + k for i in range(e.lanes)]
        halves.append(columns_of(e, [e.shuffle(*two, order) for two in zip(vectors[0::2], vectors[1::2], strict=True)]))
    return [column for two in zip(*halves, strict=True) for column in two]


def pixels_of(e: VectorBuilder, columns: Sequence[Value]) -> list[Value]:
    """The way back: rows of pixels from the columns of tiles."""
    if len(columns) == 1:
        return list(columns)
    vectors = []
    for two in zip(pixels_of(e, columns[0::2]), pixels_of(e, columns[1::2]), strict=True):
        for first in (0, e.lanes // 2):
            order = [first + i // 2 + i % 2 * e.lanes for i in range(e.lanes)]
            vectors.append(e.shuffle(*two, order))
    return vectors


def with_neighbours(e: VectorBuilder, columns: list[Value], beyond: Value) -> list[Value]:
    """The columns of tiles, and the first two of the next tile; ``beyond`` begins with those of the tile after the
    last."""
    after = [e.shuffle(columns[k], beyond, [*range(1, e.lanes), e.lanes + k]) for k in (0, 1)]
    return [*columns, *after]
