"""The product of two jets of matrices, C_k = Σ_j A_j B_{k−j}, tile by tile: the loop that does almost all of the work.

A block computes a tile of C for all orders. It brings a tile of each factor into shared memory once, and every thread
accumulates several outputs per order in registers. With three orders and 4 × 4 outputs a thread makes 80 multiply-adds
of the five vectors that it loads. Which matrices the factors are, and how their tiles are loaded, is in bilinear.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import cuda

from rop.kernels.compile import PerPrecision
from rop.kernels.cuda.compile import (
    SIMULATED,
    BoundNames,
    Real,
    has_0,
    has_1,
    has_2,
    helper,
    real,
    wants_0,
    wants_1,
    wants_2,
)


@dataclass(frozen=True)
class Tile:
    """The tile that a block computes: rows × columns of the result. Its sums take ``depth`` bytes of terms at a time,
    so that shared memory suffices in both precisions, and each thread has ``each`` × ``each`` outputs of every order.
    All are powers of 2. The numbers that a thread reads are contiguous in shared memory; rows of a tile that is written
    down its columns are ``apart`` numbers longer, which reduces bank conflicts."""

    rows: int
    columns: int
    each: int
    depth: int = 64
    apart: int = 4

    @property
    def block(self) -> tuple[int, int]:
        """The threads of a block: across the columns and down the rows."""
        return self.columns // self.each, self.rows // self.each

    def terms(self, dtype: Real) -> int:
        """The number of terms of the sum that a tile of the factors holds."""
        return self.depth // np.dtype(dtype).itemsize

    def names(self) -> BoundNames:
        """The bound names of kernels with this tile."""
        across, down = self.block
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "DEPTH": PerPrecision(self.terms),
            "EACH": self.each,
            "LONG_ROWS": self.rows + self.apart,
            "LONG_COLUMNS": self.columns + self.apart,
            "ACROSS": across,
            "DOWN": down,
            "TILE_THREADS": across * down,
        }


TILES = {"large": Tile(64, 64, 4), "small": Tile(16, 32, 2)}
ROWS = COLUMNS = DEPTH = EACH = LONG_ROWS = LONG_COLUMNS = ACROSS = DOWN = TILE_THREADS = 1  # bound per tile
left_2 = False  # whether the left factor has an order 2, as δ has, but weights have not

ALIGNED = None if SIMULATED else 16  # bytes: then vectors of four (two in float64) are loaded at once


def tile_for(rows: int, columns: int) -> str:
    """The name of the tile for results of this size: small where a large one would be mostly empty."""
    return "large" if rows > 32 and columns >= 64 else "small"


def tile_block(names: BoundNames) -> tuple[int, int]:
    """The block of a kernel in which the names of a tile are bound."""
    return names["ACROSS"], names["DOWN"]


@helper
def my_place():
    """The number of this thread, and the first row and column of its outputs in the tile. The bit masks do not change
    the values: they show the compiler that no index is negative, which in Python would count from the end."""
    across = cuda.threadIdx.x & (ACROSS - 1)
    down = cuda.threadIdx.y & (DOWN - 1)
    return down * ACROSS + across, down * EACH, across * EACH


@helper
def put_factor(tiles, b, step, column, row, lane, inside):
    """Writes one number of the right factor to its tiles, at the orders that it has; 0 if it is not inside."""
    if has_0:
        tiles[0][step, column] = b[0][row, lane] if inside else real(0)
    if has_1:
        tiles[1][step, column] = b[1][row, lane] if inside else real(0)
    if has_2:
        tiles[2][step, column] = b[2][row, lane] if inside else real(0)


@helper
def no_sums():
    """Zeros (EACH, EACH) for each order of a thread's outputs. The compiler keeps them in registers, because all their
    indices are constants."""
    sums = (
        cuda.local.array((EACH, EACH), real),
        cuda.local.array((EACH, EACH), real),
        cuda.local.array((EACH, EACH), real),
    )
    for m in range(EACH):
        for n in range(EACH):
            sums[0][m, n] = sums[1][m, n] = sums[2][m, n] = real(0)
    return sums


@helper
def read_side_by_side(target, tile, step, first):
    """target (EACH,) = EACH contiguous numbers of a row of the tile."""
    for n in range(EACH):
        target[n] = tile[step, first + n]


@helper
def multiply(sums, a, b, my_row, my_column):
    """Adds the products of the tiles of two factors, C_k += Σ_j A_j B_{k−j}."""
    y = cuda.local.array(EACH, real), cuda.local.array(EACH, real), cuda.local.array(EACH, real)  # B at one step
    for number in range(DEPTH):
        step = number & (DEPTH - 1)
        if has_0:
            read_side_by_side(y[0], b[0], step, my_column)
        if has_1:
            read_side_by_side(y[1], b[1], step, my_column)
        if has_2:
            read_side_by_side(y[2], b[2], step, my_column)
        for m in range(EACH):
            factor = a[0][step, my_row + m]
            for n in range(EACH):
                if wants_0 and has_0:
                    sums[0][m, n] += factor * y[0][n]
                if wants_1 and has_1:
                    sums[1][m, n] += factor * y[1][n]
                if wants_2 and has_2:
                    sums[2][m, n] += factor * y[2][n]
            if wants_1 or wants_2:
                factor = a[1][step, my_row + m]
                for n in range(EACH):
                    if wants_1 and has_0:
                        sums[1][m, n] += factor * y[0][n]
                    if wants_2 and has_1:
                        sums[2][m, n] += factor * y[1][n]
            if left_2 and wants_2 and has_0:
                factor = a[2][step, my_row + m]
                for n in range(EACH):
                    sums[2][m, n] += factor * y[0][n]
