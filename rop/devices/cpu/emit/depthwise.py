"""Depthwise Conv2d on pixel lanes: each channel is filtered by itself, with the weights as they lie in w."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.emit.reads import PhasedMap, Reads, reads_words
from rop.devices.cpu.emit.strips import EmitConvStrips, GradientOfWeights, PackedProduct, gradient_terms
from rop.devices.cpu.memory import Layout
from rop.kernels.cpu import depthwise
from rop.lowering.bilinear import ConvProducts


def is_depthwise(operation: ConvProducts) -> bool:
    """Whether every channel has a kernel of its own."""
    return operation.groups == operation.inputs == operation.rows and operation.groups > 1


@dataclass
class DepthwiseProduct:
    """A product of maps with depthwise weights, with the interface of ``Product``."""

    layout: Layout
    operation: ConvProducts
    reads: Reads
    c_step: int  # bytes from channel to channel of C and of the source
    x_step: int

    def __post_init__(self) -> None:
        self.table = self.layout.tables.put(reads_words(self.layout, self.reads, self.c_step, self.x_step))
        self.offsets = self.layout.tables.put(self.reads.taps * self.layout.itemsize)

    def weights(self, j: int, direction: int) -> Ref:
        """Order j of the weights."""
        return self.layout.parameter(j, direction, self.operation.weight_at)

    def pack(self, code: Code, k: int, direction: int, weight_at: int) -> None:
        """Nothing to do."""

    def emit(self, code: Code, terms: tuple[Word, ...], **operands: Operand) -> None:
        """The instruction: operands beside the tables."""
        code.rows(
            depthwise.depthwise_products,
            self.operation.rows,
            self.c_step,
            terms=terms,
            table=self.table,
            offsets=self.offsets,
            weight_step=self.operation.geometry.taps * self.layout.itemsize,
            channels=self.operation.rows,
            **operands,
        )


class DepthwiseWeightGradient:
    """Σ_j δ_j x_{k−j} over all positions, tap by tap, straight into the parameters' gradient."""

    def __init__(self, layout: Layout, operation: ConvProducts, source: PhasedMap, reads: Reads):
        self.layout, self.operation, self.source = layout, operation, source
        self.table = layout.tables.put(reads_words(layout, reads, layout.row_size(operation.delta), source.row_size))
        totals = operation.rows * operation.geometry.taps * np.dtype(np.float64).itemsize
        layout.need_room("strips", totals // layout.itemsize)

    def emit(self, code: Code, k: int) -> None:
        """The instruction."""
        op, layout = self.operation, self.layout
        code.rows(
            depthwise.depthwise_weight_gradient,
            op.rows,
            layout.row_size(op.delta),
            d=code.out.plus(op.weight_at * layout.itemsize),
            terms=gradient_terms(layout, op, code, k, self.source.order),
            table=self.table,
            totals=Ref("strips", 0, 0),
            channels=op.rows,
            add=int(op.adds_weight),
        )


class EmitDepthwise(EmitConvStrips):
    """Depthwise Conv2d on pixel lanes."""

    def _product(self, reads: Reads, c_step: int, x_step: int) -> PackedProduct:
        return DepthwiseProduct(self.layout, self.operation, reads, c_step, x_step)

    def make_forward(self) -> PackedProduct:
        return self._product(self.reads, self.layout.row_size(self.operation.y.buffer), self.source.row_size)

    def make_backward(self) -> list[PackedProduct]:
        steps = self.source.row_size, self.layout.row_size(self.operation.y.buffer)
        return [self._product(phase, *steps) for phase in self.source.phases.backward()]

    def make_weight_gradient(self) -> GradientOfWeights:
        return DepthwiseWeightGradient(self.layout, self.operation, self.source, self.reads)
