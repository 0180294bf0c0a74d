"""Depthwise Conv2d on pixel lanes: each channel is filtered by itself, with the weights as they lie in w."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.base import sum_of
from rop.devices.cpu.emit.strips import (
    LANES_PER_CHUNK,
    EmitConvStrips,
    GradientOfWeights,
    PackedProduct,
    Reads,
    backward_reads,
    segment_table,
    strip_table,
)
from rop.devices.cpu.memory import Layout
from rop.kernels.cpu import depthwise, strips
from rop.lowering.bilinear import ConvProducts
from rop.lowering.values import ORDERS, Buffer, cauchy_pairs


def is_depthwise(operation: ConvProducts) -> bool:
    """Whether every channel has a kernel of its own."""
    return operation.groups == operation.inputs == operation.rows and operation.groups > 1


class DepthwiseProduct:
    """A product of maps with depthwise weights, with the interface of ``Product``."""

    def __init__(self, layout: Layout, operation: ConvProducts, reads: Reads, c: Buffer, x: Buffer):
        self.layout, self.operation, self.reads, self.c = layout, operation, reads, c
        table, count = strip_table(layout, reads)
        words = np.zeros(strips.PRODUCT_WORDS, np.int64)
        words[strips.GROUPS], words[strips.CHANNELS] = operation.groups, operation.geometry.taps
        words[strips.TAPS], words[strips.STRIPS], words[strips.STRIP_TABLE] = reads.taps.size, count, table
        words[strips.C_STEP], words[strips.X_STEP] = layout.row_size(c), layout.row_size(x)
        words[strips.SHIFTS] = layout.tables.put(reads.shifts * layout.itemsize)
        self.words = layout.tables.put(words)
        self.offsets = layout.tables.put(reads.taps * layout.itemsize)

    def weights(self, j: int, direction: int) -> Ref:
        """Order j of the weights."""
        return self.layout.parameter(j, direction, self.operation.weight_at)

    def pack(self, code: Code, k: int, direction: int, weight_at: int) -> None:
        """Nothing to do."""

    def emit(self, code: Code, terms: tuple[Word, ...], **operands: Operand) -> None:
        """The instruction: operands beside the tables."""
        code.rows(
            depthwise.depthwise_products,
            self.c.rows,
            self.layout.row_size(self.c),
            terms=terms,
            table=self.words,
            offsets=self.offsets,
            **operands,
        )


class DepthwiseWeightGradient:
    """Σ_j δ_j x_{k−j} over all positions, tap by tap, straight into the parameters' gradient."""

    def __init__(self, layout: Layout, operation: ConvProducts, reads: Reads):
        self.layout, self.operation, self.reads = layout, operation, reads
        self.step = operation.geometry.stride[1]

    @cached_property
    def _segments(self) -> int:
        return segment_table(self.layout, self.reads, self.step)

    def emit(self, code: Code, k: int) -> None:
        """The instruction."""
        op, layout, x = self.operation, self.layout, self.operation.source
        terms = [(layout.rows(op.delta, j), layout.rows(x.buffer, i)) for j, i in cauchy_pairs(k, ORDERS, x.levels)]
        code.rows(
            depthwise.depthwise_weight_gradient,
            op.rows,
            layout.row_size(op.delta),
            d=code.out.plus(op.weight_at * layout.itemsize),
            terms=sum_of(terms),
            g_extent=layout.extent(op.y),
            x_step=layout.row_size(x.buffer),
            segments=self._segments,
            chunks=-(-self.reads.positions.size // LANES_PER_CHUNK),
            taps=op.geometry.taps,
            step=self.step,
            add=int(op.adds_weight),
        )


class EmitDepthwise(EmitConvStrips):
    """Depthwise Conv2d on pixel lanes."""

    def make_forward(self) -> PackedProduct:
        op = self.operation
        return DepthwiseProduct(self.layout, op, self.reads, op.y.buffer, op.source.buffer)

    def make_backward(self) -> list[PackedProduct]:
        op, layout = self.operation, self.layout
        phases = backward_reads(op.geometry, layout.images)
        return [DepthwiseProduct(layout, op, reads, op.source.buffer, op.y.buffer) for reads in phases]

    def make_weight_gradient(self) -> GradientOfWeights:
        return DepthwiseWeightGradient(self.layout, self.operation, self.reads)
