"""Softmax and LogSoftmax: one kernel forward and one backward for each order."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import softmax
from rop.lowering.softmax import SoftmaxOperation


@emits(SoftmaxOperation)
class EmitSoftmax(Emitter):
    """Softmax and LogSoftmax over the channels of each pixel."""

    operation: SoftmaxOperation

    def _sizes(self) -> dict[str, Operand]:
        pixels, channels, _, row = self.layout.extent(self.operation.y)
        return {"pixels": pixels, "rows": channels, "lanes": row // self.layout.itemsize, "scratch": Ref("scratch")}

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        common: dict[str, Operand] = {
            "y": layout.rows(op.y.buffer, k),
            "order": k,
            "x": layout.value(op.x[0], k),
            **self._sizes(),
        }
        if op.log:
            code.tile(softmax.log_softmax, **common, p=layout.rows(op.probability, 0))
        else:
            code.tile(softmax.softmax, **common, y0=layout.rows(op.y.buffer, 0))

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        common: dict[str, Operand] = {
            "h": layout.rows(op.only_h, k),
            "order": k,
            "g": layout.jet(op.g, k),
            **self._sizes(),
        }
        if op.log:
            code.tile(
                softmax.log_softmax_backward,
                **common,
                p=layout.rows(op.probability, 0),
                y=layout.value(op.y, k),
            )
        else:
            code.tile(softmax.softmax_backward, **common, p=layout.value(op.y, k))
