"""Conv2d on pixel lanes: strips of positions, and segments of lanes for the gradient of the weights.

The kernels are in rop/kernels/cpu/strips.py. How work is divided depends on the shapes only, never on threads, so that
sums are always made in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.base import SLICES, Emitter, sum_of
from rop.devices.cpu.memory import ZEROS, Layout
from rop.kernels.cpu import strips
from rop.kernels.cpu.gemm import PANEL, SPAN
from rop.kernels.cpu.vector import BLOCK
from rop.lowering.bilinear import WEIGHT_ORDERS, ConvProducts
from rop.lowering.geometry import Geometry
from rop.lowering.values import ORDERS, Buffer, cauchy_pairs

CHUNK_ROWS = 288  # packed rows at a time: with the panels of weights that meet them they stay in the cache
PARTS = 16  # into so many parts strips are divided, …
LEAST_UNITS = 8  # … and panels of rows if there are fewer strips than this
LANES_PER_CHUNK = 256  # positions of a weight gradient that are summed in registers
LANES_PER_PART = 1024  # positions of which a weight gradient has sums of its own, …
FEW_WEIGHTS = 1 << 18  # … if it has at most this many weights
FEW_CHANNELS = 8  # fewer than these are unfolded, because a block of channels would be mostly empty
UNIT = Ref("number", 0, 1)


@dataclass(frozen=True)
class Reads:
    """What positions read of a map through taps: the lane through no shift (positions,), the shift of each tap in lanes
    (taps,), and whether a pixel is there (positions, taps). ``taps`` are their numbers in the kernel."""

    positions: np.ndarray  # (positions,) lanes of C
    lanes: np.ndarray
    taps: np.ndarray
    shifts: np.ndarray
    valid: np.ndarray


def _pixels(image: tuple[int, ...], images: int) -> tuple[np.ndarray, ...]:
    """Sample, row and column of every lane of a map."""
    return tuple(axis.ravel() for axis in np.indices((images, *image)))


def forward_reads(geometry: Geometry, images: int) -> Reads:
    """What each output pixel reads of the input."""
    sample, row, column = _pixels(geometry.output, images)
    height, width = geometry.image
    a, b = np.divmod(np.arange(geometry.taps), geometry.kernel[1])
    down = a * geometry.dilation[0] - geometry.padding[0]
    right = b * geometry.dilation[1] - geometry.padding[1]
    row, column = row * geometry.stride[0], column * geometry.stride[1]
    inside = _inside(row[:, None] + down, height) & _inside(column[:, None] + right, width)
    lanes = (sample * height + row) * width + column
    return Reads(np.arange(sample.size), lanes, np.arange(geometry.taps), down * width + right, inside)


def backward_reads(geometry: Geometry, images: int) -> list[Reads]:
    """What the input pixels read of the output gradient, for each phase of the stride: its pixels share their taps."""
    (height, width), strides = geometry.output, geometry.stride
    sample, row, column = _pixels(geometry.image, images)
    a, b = np.divmod(np.arange(geometry.taps), geometry.kernel[1])
    result = []
    for phase in np.ndindex(strides):
        mine = (row % strides[0] == phase[0]) & (column % strides[1] == phase[1])
        down = phase[0] + geometry.padding[0] - a * geometry.dilation[0]
        right = phase[1] + geometry.padding[1] - b * geometry.dilation[1]
        taps = np.flatnonzero((down % strides[0] == 0) & (right % strides[1] == 0))
        down, right = down[taps] // strides[0], right[taps] // strides[1]
        r, c = row[mine] // strides[0], column[mine] // strides[1]
        inside = _inside(r[:, None] + down, height) & _inside(c[:, None] + right, width)
        lanes = (sample[mine] * height + r) * width + c
        if lanes.size:
            result.append(Reads(np.flatnonzero(mine), lanes, taps, down * width + right, inside))
    return result


def _inside(index: np.ndarray, size: int) -> np.ndarray:
    return (index >= 0) & (index < size)


def strip_table(layout: Layout, reads: Reads) -> tuple[int, int]:
    """Address and number of the strips of some positions."""
    width, count = SPAN // layout.itemsize, reads.positions.size
    following = bool((np.diff(reads.positions) == 1).all())
    weights = np.left_shift(np.int64(1), np.arange(width, dtype=np.int64))
    records = []
    for first in range(0, count, width):
        part = slice(first, min(first + width, count))
        lanes, positions = reads.lanes[part], reads.positions[part]
        bits = (reads.valid[part] * weights[: lanes.size, None]).sum(0, dtype=np.int64)
        in_a_row = bool((np.diff(lanes) == 1).all())
        records.append(
            [
                lanes.size,
                positions[0] if following else 0,
                0 if following else layout.tables.put(positions),
                lanes[0] if in_a_row else 0,
                0 if in_a_row else layout.tables.put(lanes),
                layout.tables.put(bits),
            ]
        )
    return layout.tables.put(records), len(records)


def segment_table(layout: Layout, reads: Reads, step: int) -> int:
    """The address of a table by chunk of positions and tap: runs (position, lane of the source, length)."""
    count, taps = reads.positions.size, reads.taps.size
    runs, owners = [], []
    for tap in range(taps):
        positions = np.flatnonzero(reads.valid[:, tap])
        lanes = reads.lanes[positions] + reads.shifts[tap]
        starts = np.ones(positions.size, bool)
        starts[1:] = (np.diff(positions) != 1) | (np.diff(lanes) != step) | (positions[1:] % LANES_PER_CHUNK == 0)
        first = np.flatnonzero(starts)
        lengths = np.diff(first, append=positions.size)
        runs.append(np.stack([positions[first], lanes[first], lengths], axis=1))
        owners.append(positions[first] // LANES_PER_CHUNK * taps + tap)
    rows, owner = np.concatenate(runs), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return layout.tables.bounded(rows[order], owner[order], -(-count // LANES_PER_CHUNK) * taps)


def parts_of(pieces: int, most: int) -> int:
    """Into how many parts so many pieces are divided."""
    return max(1, min(pieces, most))


def per_tap(channels: int, itemsize: int) -> int:
    """Numbers that the channels of a tap take in a turned map: whole spans, and a block at the end if it suffices."""
    spans, rest = divmod(channels * itemsize, SPAN)
    return (spans * SPAN + (0 if rest == 0 else BLOCK if rest <= BLOCK else SPAN)) // itemsize


class PackedProduct(Protocol):
    """A product of maps with weights that are packed before."""

    def weights(self, j: int, direction: int) -> Ref:
        """Order j of the packed weights."""

    def pack(self, code: Code, k: int, direction: int, weight_at: int) -> None:
        """Packs order k of the weights."""

    def emit(self, code: Code, terms: tuple[Word, ...], **operands: Operand) -> None:
        """The instruction."""


class GradientOfWeights(Protocol):
    """Makes the gradient of the weights."""

    def emit(self, code: Code, k: int) -> None:
        """The instructions of order k."""


@dataclass
class Product:
    """One product of maps with packed weights: its tables, and where its panels are."""

    layout: Layout
    reads: Reads
    groups: int
    rows: int  # of a group, of C and of the source
    channels: int
    c: Buffer
    x: Buffer
    steps: tuple[int, int, int]  # in the weights: from group to group, row to row and channel to channel

    def __post_init__(self) -> None:
        layout, taps = self.layout, self.reads.taps.size
        chunks = -(-self.channels // max(1, CHUNK_ROWS // max(taps, 1)))
        self.per_chunk = -(-self.channels // chunks)
        self.at = layout.reserve("panels", self.groups * self.rows * self.channels * taps)
        self.table, self.count = strip_table(layout, self.reads)
        self.strip_parts = parts_of(self.count, PARTS)
        panels = -(-self.rows // PANEL)
        self.row_parts = parts_of(panels, -(-LEAST_UNITS // (self.strip_parts * self.groups)))
        self.units = self.groups * self.strip_parts * self.row_parts
        self.buffer_step = (len(ORDERS) * self.per_chunk * taps + self.rows) * SPAN
        layout.need_room("strips", self.units * self.buffer_step // layout.itemsize)
        self.words = self._words()

    def _words(self) -> int:
        layout, words = self.layout, np.zeros(strips.PRODUCT_WORDS, np.int64)
        words[strips.ROWS], words[strips.CHANNELS] = self.rows, self.channels
        words[strips.TAPS], words[strips.PER_CHUNK] = self.reads.taps.size, self.per_chunk
        words[strips.STRIPS], words[strips.STRIP_TABLE] = self.count, self.table
        words[strips.STRIP_PARTS], words[strips.ROW_PARTS] = self.strip_parts, self.row_parts
        words[strips.GROUPS] = self.groups
        words[strips.C_STEP], words[strips.X_STEP] = layout.row_size(self.c), layout.row_size(self.x)
        words[strips.SHIFTS] = layout.tables.put(self.reads.shifts * layout.itemsize)
        words[strips.BUFFER_STEP] = self.buffer_step
        return layout.tables.put(words)

    def weights(self, j: int, direction: int) -> Ref:
        """Order j of the packed weights."""
        return self.layout.panel("panels", j, direction, self.at)

    def pack(self, code: Code, k: int, direction: int, weight_at: int) -> None:
        """Packs order k of the weights."""
        tables, taps = self.layout.tables, self.reads.taps
        panels = -(-self.rows // PANEL) * self.groups
        if taps.size:
            code.split(
                parts_of(panels, SLICES),
                strips.pack_weights,
                y=self.weights(k, direction),
                w=self.layout.parameter(k, direction, weight_at),
                table=tables.put([self.groups, self.rows, self.channels, taps.size, self.per_chunk, *self.steps]),
                offsets=tables.put(taps),
                part=UNIT,
                parts=parts_of(panels, SLICES),
            )

    def emit(self, code: Code, terms: tuple[Word, ...], **operands: Operand) -> None:
        """The instruction: operands beside the tables."""
        code.alone(
            self.units,
            strips.strip_products,
            zeros=ZEROS,
            terms=terms,
            table=self.words,
            buffer=Ref("strips", 0, self.buffer_step),
            unit=UNIT,
            **operands,
        )


class EmitConvStrips(Emitter):
    """Conv2d on pixel lanes."""

    operation: ConvProducts

    def reserve(self) -> None:
        self.reads = forward_reads(self.operation.geometry, self.layout.images)
        self.forward_product = self.make_forward()
        self.backward_products: list[PackedProduct] = []
        if not self.plan.gradients:
            return
        if self.operation.source.needs_gradient:
            self.backward_products = self.make_backward()
        self.weights = self.make_weight_gradient()

    def make_forward(self) -> PackedProduct:
        """y = W x."""
        op, taps = self.operation, self.operation.geometry.taps
        return Product(
            self.layout,
            self.reads,
            op.groups,
            op.group_rows,
            op.group_inputs,
            op.y.buffer,
            op.source.buffer,
            (op.group_rows * op.fan, op.fan, taps),
        )

    def make_backward(self) -> list[PackedProduct]:
        """h = Wᵀ δ, in several products if there is a stride."""
        op, taps = self.operation, self.operation.geometry.taps
        return [
            Product(
                self.layout,
                reads,
                op.groups,
                op.group_inputs,
                op.group_rows,
                op.source.buffer,
                op.y.buffer,
                (op.group_rows * op.fan, taps, op.fan),
            )
            for reads in backward_reads(op.geometry, self.layout.images)
        ]

    def make_weight_gradient(self) -> GradientOfWeights:
        """dW = δ xᵀ."""
        return WeightGradient(self.layout, self.operation, self.reads)

    def prepare(self, code: Code, k: int, direction: int) -> None:
        if k in WEIGHT_ORDERS:
            for product in (self.forward_product, *self.backward_products):
                product.pack(code, k, direction, self.operation.weight_at)

    def forward(self, code: Code, k: int, direction: int) -> None:
        """y_k = Σ_j W_j x_{k−j} + b_k."""
        op, layout, x = self.operation, self.layout, self.operation.source
        if k not in op.y.levels:
            return
        has_bias = op.bias_at is not None and k in WEIGHT_ORDERS
        terms = [
            (self.forward_product.weights(j, direction), layout.rows(x.buffer, i))
            for j, i in cauchy_pairs(k, WEIGHT_ORDERS, x.levels)
        ]
        self.forward_product.emit(
            code,
            sum_of(terms),
            c=layout.rows(op.y.buffer, k),
            bias=layout.parameter(k, direction, op.bias_at or 0) if has_bias else ZEROS,
            bias_step=layout.itemsize if has_bias else 0,
            gate=(int(op.relu and k == 0), layout.rows(op.y.buffer, 0) if op.relu and k > 0 else 0),
            add=0,
        )

    def backward(self, code: Code, k: int, direction: int) -> None:
        op = self.operation
        if code.wanted:
            if op.bias_at is not None:
                self._bias_gradient(code, k, op.bias_at)
            self.weights.emit(code, k)
        if op.h[0] is not None:
            self._input_gradient(code, k, direction, op.h[0])

    def _bias_gradient(self, code: Code, k: int, at: int) -> None:
        op, layout = self.operation, self.layout
        self.on_rows(
            code,
            strips.channel_sums,
            op.delta,
            d=code.out.plus(at * layout.itemsize),
            g=layout.rows(op.delta, k),
            extent=layout.extent(op.y),
            add=int(op.adds_bias),
        )

    def _input_gradient(self, code: Code, k: int, direction: int, h: Buffer) -> None:
        """h_k = Σ_j W_jᵀ δ_{k−j}, through the ReLU that was fused into x."""
        op, layout = self.operation, self.layout
        masked = op.source.flow.masked_by_user
        for product in self.backward_products:
            terms = [
                (product.weights(j, direction), layout.rows(op.delta, i))
                for j, i in cauchy_pairs(k, WEIGHT_ORDERS, ORDERS)
            ]
            product.emit(
                code,
                sum_of(terms),
                c=layout.rows(h, k),
                bias=ZEROS,
                bias_step=0,
                gate=(0, layout.rows(op.source.buffer, 0) if masked else 0),
                add=int(op.accumulates[0]),
            )


class WeightGradient:
    """Σ_j δ_j x_{k−j} over all positions, from turned or, of few channels, unfolded maps."""

    def __init__(self, layout: Layout, operation: ConvProducts, reads: Reads):
        self.layout, self.operation, self.reads = layout, operation, reads
        op, size = operation, layout.itemsize
        self.positions = reads.positions.size
        self.source_lanes = layout.row_lanes(op.source.buffer)
        self.step = op.geometry.stride[1]
        self.unfolds = op.groups == 1 and op.group_inputs < FEW_CHANNELS and op.geometry.taps > 1
        self.taps, self.channels = op.geometry.taps, op.group_inputs
        self.lanes = self.source_lanes
        if self.unfolds:
            self.taps, self.channels, self.lanes = 1, op.fan, self.positions
        self.per_tap = per_tap(self.channels, size)
        self.chunks = -(-self.positions // LANES_PER_CHUNK)
        weights = op.rows * op.fan
        few = weights <= FEW_WEIGHTS
        self.lane_parts = parts_of(min(self.chunks, self.positions // LANES_PER_PART), LEAST_UNITS) if few else 1
        panels = -(-op.group_rows // PANEL)
        self.panel_parts = parts_of(panels, -(-LEAST_UNITS // (self.lane_parts * op.groups)))
        self.size = op.rows * self.taps * self.per_tap
        self.direct = self.lane_parts == 1 and self.taps == 1 and self.per_tap == self.channels and not op.adds_weight
        for j in op.source.levels:
            layout.need_room(f"turned{j}", self.lanes * op.groups * self.per_tap)
        if not self.direct:
            layout.need_room("gradient", self.lane_parts * self.size)

    @cached_property
    def _segments(self) -> int:
        return segment_table(self.layout, self.reads, self.step)

    @cached_property
    def _words(self) -> int:
        layout, op, words = self.layout, self.operation, np.zeros(strips.GRADIENT_WORDS, np.int64)
        every = np.arange(self.positions)
        straight = Reads(every, every, np.zeros(1, int), np.zeros(1, int), np.ones((self.positions, 1), bool))
        words[strips.OUTPUTS], words[strips.INPUTS] = op.group_rows, self.channels
        words[strips.G_TAPS], words[strips.G_GROUPS] = self.taps, op.groups
        words[strips.CHUNKS], words[strips.LANES] = self.chunks, self.lanes
        words[strips.LANE_PARTS], words[strips.PANEL_PARTS] = self.lane_parts, self.panel_parts
        words[strips.G_STEP] = layout.row_size(op.delta)
        words[strips.SEGMENT_TABLE] = segment_table(layout, straight, 1) if self.unfolds else self._segments
        words[strips.COLUMN_STEP] = 1 if self.unfolds else self.step
        words[strips.D_STEP], words[strips.D_PART] = self.taps * self.per_tap, self.size
        return layout.tables.put(words)

    def emit(self, code: Code, k: int) -> None:
        """Turns the maps, multiplies, and brings the sums to their places in w."""
        op, layout = self.operation, self.layout
        pairs = cauchy_pairs(k, ORDERS, op.source.levels)
        for i in sorted({i for _, i in pairs}):
            self.turn(code, i)
        terms = [(layout.rows(op.delta, j), Ref(f"turned{i}", 0, 0)) for j, i in pairs]
        out = code.out.plus(op.weight_at * layout.itemsize)
        code.alone(
            op.groups * self.lane_parts * self.panel_parts,
            strips.strip_weight_gradient,
            d=out if self.direct else Ref("gradient", 0, 0),
            zeros=ZEROS,
            terms=sum_of(terms),
            table=self._words,
            unit=UNIT,
        )
        if not self.direct:
            self._collect(code, out)

    def turn(self, code: Code, i: int) -> None:
        """Turns or unfolds order i of x. Later orders do it again: the memory is shared by all layers."""
        op, layout, x = self.operation, self.layout, self.operation.source
        common: dict[str, Operand] = {
            "y": Ref(f"turned{i}", 0, 0),
            "x": layout.rows(x.buffer, i),
            "x_step": layout.row_size(x.buffer),
            "part": UNIT,
        }
        if self.unfolds:
            parts = parts_of(self.chunks, SLICES)
            code.split(
                parts,
                strips.unfold,
                channels=op.group_inputs,
                taps=op.geometry.taps,
                positions=self.positions,
                table=LANES_PER_CHUNK,
                segments=self._segments,
                chunks=self.chunks,
                step=self.step,
                parts=parts,
                **common,
            )
        else:
            parts = parts_of(self.lanes // LANES_PER_CHUNK, SLICES)
            index = layout.tables.put(np.arange(BLOCK))
            code.split(
                parts,
                strips.turn,
                index=index,
                groups=op.groups,
                channels=op.group_inputs,
                lanes=self.lanes,
                parts=parts,
                **common,
            )

    def _collect(self, code: Code, out: Ref) -> None:
        op, parts = self.operation, parts_of(self.operation.rows, SLICES)
        code.alone(
            parts,
            strips.collect_turned,
            out=out,
            d=Ref("gradient", 0, 0),
            rows=op.rows,
            taps=self.taps,
            channels=self.channels,
            per_tap=self.per_tap,
            d_part=self.size,
            count=self.lane_parts,
            add=int(op.adds_weight),
            part=UNIT,
            parts=parts,
        )
