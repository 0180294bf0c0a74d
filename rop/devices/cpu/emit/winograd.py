"""Conv2d of 3×3 on pixel lanes by Winograd's algorithm, where it takes less time than direct sums.

The kernels are in rop/kernels/cpu/winograd.py. Whether it is used, and how work is divided, depends on shapes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.base import SLICES
from rop.devices.cpu.emit.reads import PhasedMap, Reads
from rop.devices.cpu.emit.strips import (
    LEAST_UNITS,
    PARTS,
    UNIT,
    EmitConvStrips,
    GradientOfWeights,
    PackedProduct,
    WeightGradient,
    parts_of,
)
from rop.devices.cpu.memory import ZEROS, Layout
from rop.kernels.cpu import winograd, winograd_gradient
from rop.kernels.cpu.gemm import PANEL, SPAN
from rop.kernels.cpu.tiles import TILES
from rop.kernels.cpu.vector import BLOCK, VECTOR
from rop.lowering.bilinear import WEIGHT_ORDERS, ConvProducts
from rop.lowering.values import Buffer

SIDES = tuple(TILES)  # of the tiles that may be used
LEAST_CHANNELS = 16  # of the source and of C
CHUNK_CHANNELS = 128  # channels that are transformed at a time: their points stay in the cache, those of two terms, too
TILES_PER_CHUNK = 64  # of a weight gradient: its factors stay in the cache together with the sums, …
PART_ROWS, PART_CHANNELS = 128, 64  # … of which a unit has at most about so many rows and channels
LEAST_TILES_PER_PART = 512  # tiles of which a weight gradient has sums of its own
LEAST_GRADIENT_PIXELS = 512  # with fewer, bringing the sums to their places takes longer than is saved, …
MOST_GRADIENT_WEIGHTS = 1 << 16  # … and with more weights the sums do not stay in the cache; …
WEIGHTS_PER_TILE = 1200  # … adding to the sums of so many weights costs as much as the products of one more tile
# The estimate of the work of both algorithms counts products of vectors of so many lanes, in strips of two vectors and
# panels of so many rows, whichever the machine has.
LANES, PANEL_ROWS = 16, 12
PACKING = 6.0  # direct sums pack rows of strips, each of which costs as much as so many products


@dataclass(frozen=True)
class Costs:
    """What tiles of one size cost, next to a product of direct sums."""

    product: float
    preparing: float  # transforming a weight
    spreading: float  # transforming what a run reads of one channel, …
    joining: float  # … and what it gives of one row; half of it for a run of half a vector


COSTS = {2: Costs(1.13, 1.0, 190.0, 35.0), 4: Costs(1.4, 8.0, 410.0, 240.0)}  # by the side of the tiles
LEAST_GAIN = 1.15  # where the estimate gives less, measured times differ either way


@dataclass(frozen=True)
class Tiles:
    """The tiles of an output, and what they read of an image through windows of 3×3."""

    side: int  # outputs of a tile in each direction
    images: int
    image: tuple[int, ...]  # height and width of the source
    output: tuple[int, ...]
    padding: tuple[int, int]  # of the source, may be negative

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image."""
        return -(-self.output[0] // self.side), -(-self.output[1] // self.side)

    @property
    def points(self) -> int:
        """Products of a tile."""
        return TILES[self.side].points

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
        top, left = self.side * row - self.padding[0], self.side * column - self.padding[1]
        half = length <= lanes // 2
        room = np.where(self.count - strip * per_strip <= BLOCK // itemsize, BLOCK // itemsize, per_strip)
        size = np.where(half, VECTOR // 2, VECTOR)
        words = np.zeros((first.size, winograd.RUN_WORDS), np.int64)
        words[:, winograd.FIRST] = offset * itemsize
        words[:, winograd.SHAPE] = size + self.side + (offset + size // itemsize <= room)
        words[:, winograd.LENGTH] = length
        words[:, winograd.SOURCE] = ((sample * height + top) * width + left) * itemsize
        words[:, winograd.LINES] = _bits(-top, height - top, self.side + 2)
        words[:, winograd.LEFT] = np.maximum(0, -left)
        words[:, winograd.RIGHT] = np.minimum(self.side * length + 2, width - left)
        above, before = self.side * row, self.side * column
        words[:, winograd.TARGET] = ((sample * out_height + above) * out_width + before) * itemsize
        words[:, winograd.DOWN] = np.minimum(self.side, out_height - above)
        words[:, winograd.ACROSS] = np.minimum(self.side * length, out_width - before)
        return words, strip

    def inputs(self) -> np.ndarray:
        """For each tile the lane of its first input, which may be outside of the image, and which of its inputs are
        inside, as bits."""
        sample, row, column = np.unravel_index(np.arange(self.count), (self.images, *self.sides))
        (height, width), several = self.image, np.arange(self.side + 2)
        top, left = self.side * row - self.padding[0], self.side * column - self.padding[1]
        down, right = top[:, None] + several, left[:, None] + several
        inside = ((down >= 0) & (down < height))[:, :, None] & ((right >= 0) & (right < width))[:, None, :]
        bits = inside.reshape(-1, self.points) @ (np.int64(1) << np.arange(self.points))
        return np.stack([(sample * height + top) * width + left, bits], axis=1)

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


def divided(strips: int, panels: int) -> tuple[int, int]:
    """Into how many parts strips, and panels of rows, are divided."""
    strip_parts = parts_of(strips, PARTS)
    return strip_parts, parts_of(panels, -(-LEAST_UNITS // strip_parts))


def gain(tiles: Tiles, rows: int, channels: int) -> float:
    """How much more work direct sums are by the estimate.

    >>> [round(gain(Tiles(side, 4, (28, 28), (28, 28), (1, 1)), 128, 128), 1) for side in (2, 4)]
    [1.9, 2.3]
    >>> [round(gain(Tiles(side, 4, (4, 4), (4, 4), (1, 1)), 64, 64), 1) for side in (2, 4)]
    [0.5, 0.3]
    """
    costs, (_, lengths) = COSTS[tiles.side], tiles.pieces(LANES, 2 * LANES)
    runs = float(np.where(lengths <= LANES // 2, 0.5, 1.0).sum())
    positions = tiles.images * tiles.output[0] * tiles.output[1]
    panels = -(-rows // PANEL_ROWS)
    row_parts = divided(-(-tiles.count // (2 * LANES)), panels)[1]
    direct_parts = divided(-(-positions // (2 * LANES)), panels)[1]
    products = costs.product * tiles.points * -(-tiles.count // LANES) + costs.preparing
    mine = rows * channels * products + runs * (costs.spreading * channels * row_parts + costs.joining * rows)
    direct = winograd.TAPS * -(-positions // LANES) * channels * (rows + PACKING * direct_parts)
    return direct / mine


def gradient_work(tiles: Tiles, weights: int) -> float:
    """Products of a weight gradient for each pair of channels, and what its sums cost."""
    return tiles.points * (tiles.count + weights / WEIGHTS_PER_TILE)


def tiles_of(
    images: int, image: tuple[int, ...], output: tuple[int, ...], padding: tuple[int, int]
) -> dict[int, Tiles]:
    """The tiles that there are, by their sides: none that are larger than the output, but for the smallest."""
    least = min(TILES)
    return {side: Tiles(side, images, image, output, padding) for side in SIDES if side <= max(least, min(output))}


def best_for_product(tiles: dict[int, Tiles], rows: int, channels: int) -> Tiles | None:
    """The tiles of a product, None where direct sums take less time."""
    gains = {side: gain(one, rows, channels) for side, one in tiles.items()}
    best = max(gains, key=gains.__getitem__, default=None)
    return None if best is None or gains[best] < LEAST_GAIN else tiles[best]


def best_for_gradient(tiles: dict[int, Tiles], weights: int) -> Tiles | None:
    """The tiles of the gradient of so many pairs of channels, None where direct sums take less time."""
    work = {side: gradient_work(one, weights) for side, one in tiles.items()}
    least = min(work, key=work.__getitem__, default=None)
    return None if least is None or weights > MOST_GRADIENT_WEIGHTS else tiles[least]


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
    backwards: bool  # whether taps come in reverse

    def __post_init__(self) -> None:
        layout, per_strip = self.layout, SPAN // self.layout.itemsize
        self.per_chunk = -(-self.channels // -(-self.channels // CHUNK_CHANNELS))
        self.at = layout.reserve("panels", self.tiles.points * self.rows * self.channels)
        self.strips = -(-self.tiles.count // per_strip)
        self.strip_parts, self.row_parts = divided(self.strips, -(-self.rows // PANEL))
        self.units = self.strip_parts * self.row_parts
        point_step = self.per_chunk * SPAN + BLOCK
        sums = PANEL if self.per_chunk == self.channels else self.rows
        points = self.tiles.points
        self.buffer_step = len(WEIGHT_ORDERS) * points * point_step + sums * (points * SPAN + BLOCK)
        layout.need_room("strips", self.units * self.buffer_step // layout.itemsize)
        self.words = self._words()

    def _words(self) -> int:
        layout, words, tables = self.layout, np.zeros(winograd.PRODUCT_WORDS, np.int64), self.layout.tables
        words[winograd.SIDE] = self.tiles.side
        words[winograd.ROWS], words[winograd.CHANNELS] = self.rows, self.channels
        words[winograd.PER_CHUNK], words[winograd.TILE_COUNT] = self.per_chunk, self.tiles.count
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
            table=tables.put([self.tiles.side, self.rows, self.channels, self.per_chunk, *self.steps]),
            backwards=int(self.backwards),
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


class TileGradient(WeightGradient):
    """Σ_j δ_j x_{k−j} over all tiles, from turned maps."""

    def __init__(self, layout: Layout, operation: ConvProducts, source: PhasedMap, reads: Reads, tiles: Tiles):
        super().__init__(layout, operation, source, reads)
        op, size, self.tiles = operation, layout.itemsize, tiles
        spans, rest = divmod(self.per_tap * size, SPAN)
        self.blocks, self.last_block = spans + (rest > 0), rest or SPAN
        self.per_chunk = TILES_PER_CHUNK * size // SPAN * SPAN // size
        panels = -(-op.rows // PANEL)
        self.panel_parts = parts_of(panels, -(-op.rows // PART_ROWS))
        self.block_parts = parts_of(self.blocks, -(-op.inputs // PART_CHANNELS))
        most = -(-LEAST_UNITS // (self.panel_parts * self.block_parts))
        self.tile_parts = parts_of(tiles.count // max(LEAST_TILES_PER_PART, self.per_chunk), most)
        rows = -(-panels // self.panel_parts) * -(-op.rows // panels)
        self.v_start = tiles.points * (rows * self.per_chunk * size + BLOCK)
        blocks = -(-self.blocks // self.block_parts)
        self.buffer_step = self.v_start + blocks * tiles.points * (self.per_chunk * SPAN + BLOCK)
        self.units = self.tile_parts * self.panel_parts * self.block_parts
        layout.need_room("strips", self.units * self.buffer_step // size)
        layout.need_room("gradient", self.tile_parts * tiles.points * op.rows * self.per_tap)
        self.table = self._table()

    def _table(self) -> int:
        layout, op, tables, kernels = self.layout, self.operation, self.layout.tables, winograd_gradient
        words, count = np.zeros(kernels.GRADIENT_WORDS, np.int64), self.tiles.count
        words[kernels.SIDE] = self.tiles.side
        words[kernels.OUTPUTS], words[kernels.D_STEP] = op.rows, self.per_tap
        words[kernels.BLOCKS], words[kernels.LAST_BLOCK] = self.blocks, self.last_block
        words[kernels.G_TILES], words[kernels.TILES_PER_CHUNK] = count, self.per_chunk
        words[kernels.TILE_PARTS], words[kernels.PANEL_PARTS] = self.tile_parts, self.panel_parts
        words[kernels.BLOCK_PARTS] = self.block_parts
        words[kernels.G_STEP] = layout.row_size(op.delta)
        words[kernels.G_LINE] = self.tiles.output[1] * layout.itemsize
        words[kernels.SOURCE_LANES], words[kernels.SOURCE_LINE] = self.lanes, self.tiles.image[1]
        strips = -(-count * layout.itemsize // SPAN)
        words[kernels.G_RUN_TABLE] = tables.bounded(*self.tiles.runs(layout.itemsize), strips)
        words[kernels.TILE_TABLE] = tables.put(self.tiles.inputs())
        last = count - (-(-count // self.per_chunk) - 1) * self.per_chunk
        words[kernels.SEGMENTS] = tables.put([[0, 0, self.per_chunk], [0, 0, last]])
        words[kernels.V_START] = self.v_start
        return tables.put(words)

    def emit(self, code: Code, k: int) -> None:
        """Turns the maps, multiplies, and brings the sums to their places in w."""
        op, layout = self.operation, self.layout
        code.alone(
            self.units,
            winograd_gradient.gradient_points,
            d=Ref("gradient", 0, 0),
            zeros=ZEROS,
            terms=self.terms(code, k),
            table=self.table,
            buffer=Ref("strips", 0, self.buffer_step),
            unit=UNIT,
        )
        parts = parts_of(op.rows, SLICES)
        code.alone(
            parts,
            winograd_gradient.collect_points,
            out=code.out.plus(op.weight_at * layout.itemsize),
            d=Ref("gradient", 0, 0),
            side=self.tiles.side,
            rows=op.rows,
            channels=op.inputs,
            d_step=self.per_tap,
            count=self.tile_parts,
            add=int(op.adds_weight),
            part=UNIT,
            parts=parts,
        )


class EmitConvWinograd(EmitConvStrips):
    """Conv2d on pixel lanes: products of 3×3 by Winograd's algorithm where it pays, all else by direct sums."""

    def _tiles(self, image: tuple[int, ...], output: tuple[int, ...], padding: tuple[int, int]) -> dict[int, Tiles]:
        """The tiles of an output, none if the algorithm is not for this layer."""
        g, op = self.operation.geometry, self.operation
        possible = (
            self.plan.winograd
            and (g.kernel, g.stride, g.dilation, op.groups) == ((3, 3), (1, 1), (1, 1), 1)
            and min(op.rows, op.inputs) >= LEAST_CHANNELS
        )
        return tiles_of(self.layout.images, image, output, padding) if possible else {}

    def make_forward(self) -> PackedProduct:
        op, g = self.operation, self.operation.geometry
        tiles = best_for_product(self._tiles(g.image, g.output, g.padding), op.rows, op.inputs)
        if tiles is None:
            return super().make_forward()
        steps = (op.fan, g.taps)
        return TileProduct(self.layout, tiles, op.rows, op.inputs, op.y.buffer, op.source.buffer, steps, False)

    def make_backward(self) -> list[PackedProduct]:
        """h = Wᵀ δ is a convolution, too: of δ, with the taps in reverse and what is left of the padding."""
        op, g = self.operation, self.operation.geometry
        left = (2 - g.padding[0], 2 - g.padding[1])
        tiles = best_for_product(self._tiles(g.output, g.image, left), op.inputs, op.rows)
        if tiles is None:
            return super().make_backward()
        steps = (g.taps, op.fan)
        return [TileProduct(self.layout, tiles, op.inputs, op.rows, op.source.buffer, op.y.buffer, steps, True)]

    def make_weight_gradient(self) -> GradientOfWeights:
        op, g = self.operation, self.operation.geometry
        tiles = best_for_gradient(self._tiles(g.image, g.output, g.padding), op.rows * op.inputs)
        if tiles is None or self.layout.images * g.output[0] * g.output[1] < LEAST_GRADIENT_PIXELS:
            return super().make_weight_gradient()
        return TileGradient(self.layout, op, self.source, self.reads, tiles)
