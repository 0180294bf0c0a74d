"""Conv2d on pixel lanes: strips of positions, and segments of lanes for the gradient of the weights.

The kernels are in rop/kernels/cpu/strips.py. How work is divided depends on the shapes only, never on threads, so that
sums are always made in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.base import SLICES, Emitter, sum_of
from rop.devices.cpu.emit.reads import LANES_PER_CHUNK, PhasedMap, Reads, reads_words, segment_table
from rop.devices.cpu.memory import ZEROS, Layout
from rop.kernels.cpu import reads, strips
from rop.kernels.cpu.gemm import PANEL, SPAN
from rop.kernels.cpu.vector import BLOCK
from rop.lowering.bilinear import WEIGHT_ORDERS, ConvProducts
from rop.lowering.values import ORDERS, Buffer, cauchy_pairs

CHUNK_ROWS = 288  # packed rows at a time: with the panels of weights that meet them they stay in the cache
PARTS = 16  # into so many parts strips are divided, …
LEAST_UNITS = 8  # … and panels of rows if there are fewer strips than this
LANES_PER_PART = 512  # positions of which a weight gradient has sums of its own, …
FEW_WEIGHTS = 1 << 18  # … if it has at most this many weights
FEW_CHANNELS = 8  # fewer than these are unfolded, because a block of channels would be mostly empty
MOST_TURNS = 2  # of the same chunk of a map by different units
UNIT = Ref("number", 0, 1)


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


def gradient_terms(
    layout: Layout, operation: ConvProducts, code: Code, k: int, of_order: Callable[[Code, int], Ref]
) -> tuple[Word, ...]:
    """The terms δ_j x_{k−j} of a weight gradient; ``of_order`` prepares an order of x and says where it lies."""
    pairs = cauchy_pairs(k, ORDERS, operation.source.levels)
    where = {i: of_order(code, i) for i in sorted({i for _, i in pairs})}
    return sum_of([(layout.rows(operation.delta, j), where[i]) for j, i in pairs])


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
    c_step: int  # bytes from row to row of C and of the source
    x_step: int
    steps: tuple[int, int, int]  # in the weights: from group to group, row to row and channel to channel

    def __post_init__(self) -> None:
        layout, taps = self.layout, self.reads.taps.size
        chunks = -(-self.channels // max(1, CHUNK_ROWS // max(taps, 1)))
        self.per_chunk = -(-self.channels // chunks)
        self.at = layout.reserve("panels", self.groups * self.rows * self.channels * taps)
        self.table = reads_words(layout, self.reads, self.c_step, self.x_step, strips.PRODUCT_WORDS)
        self.strip_parts = parts_of(int(self.table[reads.STRIPS]), PARTS)
        panels = -(-self.rows // PANEL)
        self.row_parts = parts_of(panels, -(-LEAST_UNITS // (self.strip_parts * self.groups)))
        self.units = self.groups * self.strip_parts * self.row_parts
        self.buffer_step = max(1, len(WEIGHT_ORDERS) * self.per_chunk * taps) * SPAN
        layout.need_room("strips", self.units * self.buffer_step // layout.itemsize)
        self.words = self._words()

    def _words(self) -> int:
        words = self.table
        words[strips.ROWS], words[strips.CHANNELS], words[strips.PER_CHUNK] = self.rows, self.channels, self.per_chunk
        words[strips.STRIP_PARTS], words[strips.ROW_PARTS] = self.strip_parts, self.row_parts
        return self.layout.tables.put(words)

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
        op = self.operation
        self.source = PhasedMap(self.layout, op.source, op.geometry)
        self.reads = self.source.phases.forward()
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
            self.layout.row_size(op.y.buffer),
            self.source.row_size,
            (op.group_rows * op.fan, op.fan, taps),
        )

    def make_backward(self) -> list[PackedProduct]:
        """h = Wᵀ δ, in several products if there is a stride."""
        op, taps = self.operation, self.operation.geometry.taps
        return [
            Product(
                self.layout,
                phase,
                op.groups,
                op.group_inputs,
                op.group_rows,
                self.source.row_size,
                self.layout.row_size(op.y.buffer),
                (op.group_rows * op.fan, taps, op.fan),
            )
            for phase in self.source.phases.backward()
        ]

    def make_weight_gradient(self) -> GradientOfWeights:
        """dW = δ xᵀ."""
        return WeightGradient(self.layout, self.operation, self.source, self.reads)

    def prepare(self, code: Code, k: int, direction: int) -> None:
        if k in WEIGHT_ORDERS:
            for product in (self.forward_product, *self.backward_products):
                product.pack(code, k, direction, self.operation.weight_at)

    def forward(self, code: Code, k: int, direction: int) -> None:
        """y_k = Σ_j W_j x_{k−j} + b_k."""
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        has_bias = op.bias_at is not None and k in WEIGHT_ORDERS
        terms = [
            (self.forward_product.weights(j, direction), self.source.order(code, i))
            for j, i in cauchy_pairs(k, WEIGHT_ORDERS, op.source.levels)
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
        op, layout, source = self.operation, self.layout, self.source
        add, mask = op.accumulates[0], layout.rows(op.source.buffer, 0) if op.source.flow.masked_by_user else 0
        for product in self.backward_products:
            terms = [
                (product.weights(j, direction), layout.rows(op.delta, i))
                for j, i in cauchy_pairs(k, WEIGHT_ORDERS, ORDERS)
            ]
            product.emit(
                code,
                sum_of(terms),
                c=source.gradient(h, k),
                bias=ZEROS,
                bias_step=0,
                gate=(0, 0 if source.is_divided else mask),
                add=int(add and not source.is_divided),
            )
        if source.is_divided:
            source.join(code, h, k, add, mask)


class WeightGradient:
    """Σ_j δ_j x_{k−j} over all positions, from turned or, of few channels, unfolded maps."""

    def __init__(self, layout: Layout, operation: ConvProducts, source: PhasedMap, reads: Reads):
        self.layout, self.operation, self.source, self.reads = layout, operation, source, reads
        op, size = operation, layout.itemsize
        self.positions = reads.positions
        self.unfolds = op.groups == 1 and op.group_inputs < FEW_CHANNELS and op.geometry.taps > 1
        self.taps, self.channels = op.geometry.taps, op.group_inputs
        self.lanes = source.lanes
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
        self.units = op.groups * self.lane_parts * self.panel_parts
        if not self.direct:
            layout.need_room("gradient", self.lane_parts * self.size)
        # A product that reads nothing but the map itself turns it chunk by chunk, if few units turn the same chunk.
        same = self.taps == 1 and self.lanes == self.positions and bool(reads.valid.all())
        self.turns_chunks = same and not self.unfolds and self.panel_parts <= MOST_TURNS
        self.buffer_step = len(ORDERS) * LANES_PER_CHUNK * SPAN if self.turns_chunks else 0
        layout.need_room("strips", self.units * self.buffer_step // size)
        for j in () if self.turns_chunks else op.source.levels:
            layout.need_room(f"turned{j}", self.lanes * op.groups * self.per_tap)

    @cached_property
    def _segments(self) -> int:
        return segment_table(self.layout, self.reads)

    @cached_property
    def _words(self) -> int:
        layout, op, words = self.layout, self.operation, np.zeros(strips.GRADIENT_WORDS, np.int64)
        every = np.arange(self.positions)
        straight = Reads(0, every, np.zeros(1, int), np.zeros(1, int), np.ones((self.positions, 1), bool))
        words[strips.OUTPUTS], words[strips.INPUTS] = op.group_rows, self.channels
        words[strips.G_TAPS], words[strips.CHUNKS], words[strips.LANES] = self.taps, self.chunks, self.lanes
        words[strips.LANE_PARTS], words[strips.PANEL_PARTS] = self.lane_parts, self.panel_parts
        words[strips.G_STEP] = layout.row_size(op.delta)
        words[strips.SEGMENT_TABLE] = segment_table(layout, straight) if self.unfolds else self._segments
        words[strips.D_STEP], words[strips.D_PART] = self.taps * self.per_tap, self.size
        words[strips.PER_LANES] = LANES_PER_CHUNK
        words[strips.MAP_STEP] = self.source.row_size if self.turns_chunks else 0
        words[strips.COUNTING] = self._counting
        return layout.tables.put(words)

    @cached_property
    def _counting(self) -> int:
        return self.layout.tables.put(np.arange(BLOCK))

    def emit(self, code: Code, k: int) -> None:
        """Turns the maps, multiplies, and brings the sums to their places in w."""
        op, layout = self.operation, self.layout
        out = code.out.plus(op.weight_at * layout.itemsize)
        code.alone(
            self.units,
            strips.strip_weight_gradient,
            d=out if self.direct else Ref("gradient", 0, 0),
            zeros=ZEROS,
            terms=self.terms(code, k),
            table=self._words,
            buffer=Ref("strips", 0, self.buffer_step),
            unit=UNIT,
        )
        if not self.direct:
            self._collect(code, out)

    def terms(self, code: Code, k: int) -> tuple[Word, ...]:
        """The terms of order k: maps δ, and maps x which are turned before, unless the product turns them."""
        of_order = self.source.order if self.turns_chunks else self.turned
        return gradient_terms(self.layout, self.operation, code, k, of_order)

    def turned(self, code: Code, i: int) -> Ref:
        """Turns or unfolds order i of x. Later orders do it again: the memory is shared by all layers."""
        op, source = self.operation, self.source
        y, x = Ref(f"turned{i}", 0, 0), source.order(code, i)
        if self.unfolds:
            parts = parts_of(self.chunks, SLICES)
            code.split(
                parts,
                strips.unfold,
                y=y,
                x=x,
                x_step=source.row_size,
                channels=op.group_inputs,
                taps=op.geometry.taps,
                positions=self.positions,
                segments=self._segments,
                per_chunk=LANES_PER_CHUNK,
                chunks=self.chunks,
                part=UNIT,
                parts=parts,
            )
            return y
        lane_parts = parts_of(self.lanes // LANES_PER_CHUNK, SLICES)
        blocks = op.groups * -(-op.group_inputs * self.layout.itemsize // SPAN)
        block_parts = parts_of(blocks, -(-SLICES // lane_parts))
        code.alone(
            lane_parts * block_parts,
            strips.turn,
            y=y,
            x=x,
            x_step=source.row_size,
            index=self._counting,
            groups=op.groups,
            channels=op.group_inputs,
            lanes=self.lanes,
            parts=(lane_parts, block_parts),
            unit=UNIT,
        )
        return y

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
