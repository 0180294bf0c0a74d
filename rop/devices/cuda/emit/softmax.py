"""Softmax and LogSoftmax: one launch forward and one backward for all orders."""

from __future__ import annotations

from rop.devices.cuda.code import Code
from rop.devices.cuda.emit.base import Emitter, emits
from rop.kernels.cuda import softmax
from rop.lowering.softmax import SoftmaxOperation


@emits(SoftmaxOperation)
class EmitSoftmax(Emitter):
    """Softmax and LogSoftmax over the channels of each pixel."""

    operation: SoftmaxOperation

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            code.launch(
                softmax.forward(self.dtype, orders=orders, levels=code.levels(op.x[0]), log=op.log),
                y=code.value(op.y),
                x=code.value(op.x[0]),
                p=code.rows(op.probability, 0),
                pixels=op.y.pixels,
                rows=op.y.channels,
            )

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            code.launch(
                softmax.backward(self.dtype, orders=code.orders, log=op.log),
                h=code.jet(op.h[0]),
                g=code.jet(op.g),
                p=code.rows(op.probability, 0),
                y=code.jet(op.y.buffer, op.y.levels - {0}),
                pixels=op.y.pixels,
                rows=op.y.channels,
            )
