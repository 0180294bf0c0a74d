"""Conv2d of 3×3 on pixel lanes by Winograd's algorithm, where it takes less time than direct sums.

The kernels are in rop/kernels/cpu/winograd.py. Whether it is used, and how work is divided, depends on shapes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.base import SLICES
from rop.devices.cpu.emit.strips import LEAST_UNITS, PARTS, UNIT, EmitConvStrips, PackedProduct, parts_of
from rop.devices.cpu.memory import ZEROS, Layout
from rop.kernels.cpu import winograd
from rop.kernels.cpu.gemm import PANEL, SPAN
from rop.kernels.cpu.vector import BLOCK, VECTOR
from rop.lowering.bilinear import WEIGHT_ORDERS
from rop.lowering.values import Buffer

LEAST_CHANNELS = 16  # of the source and of C
CHUNK_CHANNELS = 128  # channels that are transformed at a time: their points stay in the cache, those of two terms, too
TAPS = np.arange(9)
# The estimate of the work of both algorithms counts products of vectors of so many lanes, in strips of two vectors.
LANES = 16
SPREADING = 150.0  # transforming what a run reads of one channel, …
JOINING = (
    120.0  # … and what it gives of one row, costs as much as so many products; half of it for a run of half a vector
)
PACKING = 6.0  # direct sums pack rows of strips, each of which costs this much,
PREPARING = 20.0  # and transforming a weight costs more than packing it
LEAST_GAIN = 1.15  # where the estimate gives less, measured times differ either way


@dataclass(frozen=True)
class Tiles:
    """The 2×2 tiles of an output, and what they read of an image through windows of 3×3."""

    images: int
    image: tuple[int, ...]  # height and width of the source
    output: tuple[int, ...]
    padding: tuple[int, int]  # of the source, may be negative

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image."""
        return -(-self.output[0] // 2), -(-self.output[1] // 2)

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.images * self.sides[0] * self.sides[1]

    def runs(self, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
        """The runs of all strips, as the kernels know them, and the strip of each."""
        lanes, per_strip = VECTOR // itemsize, SPAN // itemsize
        first, length = self.pieces(lanes, per_strip)
        strip, offset = np.divmod(first, per_strip)
        sample, row, column = np.unravel_index(first, (self.images, *self.sides))
        (height, width), (out_height, out_width) = self.image, self.output
        top, left = 2 * row - self.padding[0], 2 * column - self.padding[1]
        half = length <= lanes // 2
        room = np.where(self.count - strip * per_strip <= BLOCK // itemsize, BLOCK // itemsize, per_strip)
        size = np.where(half, VECTOR // 2, VECTOR)
        words = np.zeros((first.size, winograd.RUN_WORDS), np.int64)
        words[:, winograd.FIRST] = offset * itemsize
        words[:, winograd.SHAPE] = size + (offset + size // itemsize <= room)
        words[:, winograd.SOURCE] = ((sample * height + top) * width + left) * itemsize
        words[:, winograd.LINES] = _bits(-top, height - top, 4)
        words[:, winograd.COLUMNS] = _bits(-left, width - left, 2 * length + 2)
        words[:, winograd.TARGET] = ((sample * out_height + 2 * row) * out_width + 2 * column) * itemsize
        words[:, winograd.UPPER] = _bits(0 * row, out_width - 2 * column, 2 * length)
        words[:, winograd.LOWER] = np.where(2 * row + 1 < out_height, words[:, winograd.UPPER], 0)
        words[:, winograd.MINE] = _bits(0 * row, length, length)
        return words, strip

    def pieces(self, lanes: int, per_strip: int) -> tuple[np.ndarray, np.ndarray]:
        """First tile and length of each run: as many tiles of a strip and of a row of tiles as a vector has lanes."""
        every, across = np.arange(self.count), self.sides[1]
        begins = (every % per_strip == 0) | (every % across == 0)
        since = every - np.maximum.accumulate(np.where(begins, every, 0))
        first = np.flatnonzero(since % lanes == 0)
        return first, np.diff(first, append=self.count)


def _bits(low: np.ndarray, high: np.ndarray, count: np.ndarray | int) -> np.ndarray:
    """Integers whose bits low … high − 1 are set, of ``count`` bits."""
    low, high = np.clip(low, 0, count), np.clip(high, 0, count)
    one = np.int64(1)
    return np.where(low < high, (one << high) - (one << low), 0)


def divided(strips: int, rows: int) -> tuple[int, int]:
    """Into how many parts strips, and panels of so many rows, are divided."""
    strip_parts = parts_of(strips, PARTS)
    return strip_parts, parts_of(-(-rows // PANEL), -(-LEAST_UNITS // strip_parts))


def gain(tiles: Tiles, rows: int, channels: int) -> float:
    """How much more work direct sums are by the estimate, on a machine with vectors of LANES lanes.

    >>> round(gain(Tiles(4, (28, 28), (28, 28), (1, 1)), 128, 128), 1)
    1.9
    >>> round(gain(Tiles(4, (4, 4), (4, 4), (1, 1)), 64, 64), 1)
    0.5
    """
    _, lengths = tiles.pieces(LANES, 2 * LANES)
    runs = float(np.where(lengths <= LANES // 2, 0.5, 1.0).sum())
    positions = tiles.images * tiles.output[0] * tiles.output[1]
    row_parts = divided(-(-tiles.count // (2 * LANES)), rows)[1]
    direct_parts = divided(-(-positions // (2 * LANES)), rows)[1]
    products = winograd.POINTS * -(-tiles.count // LANES) + PREPARING
    mine = rows * channels * products + runs * (SPREADING * channels * row_parts + JOINING * rows)
    direct = TAPS.size * -(-positions // LANES) * channels * (rows + PACKING * direct_parts)
    return direct / mine


@dataclass
class TileProduct:
    """One product of a map with transformed weights: its tables, and where its panels are."""

    layout: Layout
    tiles: Tiles
    rows: int
    channels: int
    c: Buffer
    x: Buffer
    steps: tuple[int, int]  # in the weights: from row to row and from channel to channel
    taps: np.ndarray

    def __post_init__(self) -> None:
        layout, per_strip = self.layout, SPAN // self.layout.itemsize
        self.per_chunk = -(-self.channels // -(-self.channels // CHUNK_CHANNELS))
        self.at = layout.reserve("panels", winograd.POINTS * self.rows * self.channels)
        self.strips = -(-self.tiles.count // per_strip)
        self.strip_parts, self.row_parts = divided(self.strips, self.rows)
        self.units = self.strip_parts * self.row_parts
        point_step = self.per_chunk * SPAN + BLOCK
        sums = PANEL if self.per_chunk == self.channels else self.rows
        self.buffer_step = len(WEIGHT_ORDERS) * winograd.POINTS * point_step + sums * winograd.SUMS_STEP
        layout.need_room("strips", self.units * self.buffer_step // layout.itemsize)
        self.words = self._words()

    def _words(self) -> int:
        layout, words, tables = self.layout, np.zeros(winograd.PRODUCT_WORDS, np.int64), self.layout.tables
        words[winograd.ROWS], words[winograd.CHANNELS] = self.rows, self.channels
        words[winograd.PER_CHUNK], words[winograd.TILES] = self.per_chunk, self.tiles.count
        words[winograd.STRIPS] = self.strips
        words[winograd.STRIP_PARTS], words[winograd.ROW_PARTS] = self.strip_parts, self.row_parts
        words[winograd.C_STEP], words[winograd.X_STEP] = layout.row_size(self.c), layout.row_size(self.x)
        words[winograd.C_LINE] = self.tiles.output[1] * layout.itemsize
        words[winograd.X_LINE] = self.tiles.image[1] * layout.itemsize
        words[winograd.RUN_TABLE] = tables.bounded(*self.tiles.runs(layout.itemsize), self.strips)
        return tables.put(words)

    def weights(self, j: int, direction: int) -> Ref:
        """Order j of the transformed weights."""
        return self.layout.panel("panels", j, direction, self.at)

    def pack(self, code: Code, k: int, direction: int, weight_at: int) -> None:
        """Transforms order k of the weights."""
        tables, parts = self.layout.tables, parts_of(-(-self.rows // PANEL), SLICES)
        code.split(
            parts,
            winograd.pack_points,
            y=self.weights(k, direction),
            w=self.layout.parameter(k, direction, weight_at),
            table=tables.put([self.rows, self.channels, self.per_chunk, *self.steps]),
            offsets=tables.put(self.taps),
            part=UNIT,
            parts=parts,
        )

    def emit(self, code: Code, terms: tuple[Word, ...], **operands: Operand) -> None:
        """The instruction: operands beside the tables."""
        code.alone(
            self.units,
            winograd.winograd_products,
            zeros=ZEROS,
            terms=terms,
            table=self.words,
            buffer=Ref("strips", 0, self.buffer_step),
            unit=UNIT,
            **operands,
        )


class EmitConvWinograd(EmitConvStrips):
    """Conv2d on pixel lanes: products of 3×3 by Winograd's algorithm where it pays, all else by direct sums."""

    @property
    def possible(self) -> bool:
        """Whether the algorithm is for this layer."""
        g, op = self.operation.geometry, self.operation
        return (
            self.plan.winograd
            and (g.kernel, g.stride, g.dilation, op.groups) == ((3, 3), (1, 1), (1, 1), 1)
            and min(op.rows, op.inputs) >= LEAST_CHANNELS
        )

    def make_forward(self) -> PackedProduct:
        op, layout, g = self.operation, self.layout, self.operation.geometry
        tiles = Tiles(layout.images, g.image, g.output, g.padding)
        if not (self.possible and gain(tiles, op.rows, op.inputs) >= LEAST_GAIN):
            return super().make_forward()
        steps = (op.fan, g.taps)
        return TileProduct(layout, tiles, op.rows, op.inputs, op.y.buffer, op.source.buffer, steps, TAPS)

    def make_backward(self) -> list[PackedProduct]:
        """h = Wᵀ δ is a convolution, too: of δ, with the taps in reverse and what is left of the padding."""
        op, layout, g = self.operation, self.layout, self.operation.geometry
        tiles = Tiles(layout.images, g.output, g.image, (2 - g.padding[0], 2 - g.padding[1]))
        if not (self.possible and gain(tiles, op.inputs, op.rows) >= LEAST_GAIN):
            return super().make_backward()
        steps = (g.taps, op.fan)
        return [TileProduct(layout, tiles, op.inputs, op.rows, op.source.buffer, op.y.buffer, steps, TAPS[::-1])]
