"""ReLU, leaky ReLU and max pooling: order 0 chooses, the other orders and the gradients follow the choice."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.emit.linear_maps import EmitWindows
from rop.kernels.cpu import select
from rop.lowering.select import MaxPool, Rectify


@emits(Rectify)
class EmitRectify(Emitter):
    """ReLU and leaky ReLU that stand on their own."""

    operation: Rectify

    def _pass(self, code: Code, y: Ref, x: Ref) -> None:
        op, layout = self.operation, self.layout
        code.tile(
            select.rectify,
            y=y,
            x=x,
            mask=layout.rows(op.x[0].buffer, 0),
            slope=float(op.layer.negative_slope),
            count=op.y.rows * layout.lanes,
        )

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            self._pass(code, layout.rows(op.y.buffer, k), layout.rows(op.x[0].buffer, k))

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        self._pass(code, layout.rows(op.only_h, k), layout.rows(op.g, k))


@emits(MaxPool)
class EmitMaxPool(EmitWindows):
    """Max pooling: order 0 keeps which pixel was chosen."""

    operation: MaxPool

    def reserve(self) -> None:
        self.chosen = self.layout.buffer(self.operation, self.operation.y.rows, (0,), self.operation.y.buffer.pixels)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.operation.geometry.triples()

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        common: dict[str, Operand] = {
            "y": layout.rows(op.y.buffer, k),
            "chosen": layout.rows(self.chosen, 0),
            "x": layout.rows(op.x[0].buffer, k),
            "bounds": self.by_output,
            "pixels": op.y.pixels,
            "size": self.pixel_bytes,
        }
        if k == 0:
            code.tile(select.pool_largest, **common, relu=int(op.relu))
        else:
            code.tile(select.pool_chosen, **common)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        code.tile(
            select.pool_returned,
            h=layout.rows(op.only_h, k),
            chosen=layout.rows(self.chosen, 0),
            g=layout.rows(op.g, k),
            bounds=self.by_input,
            pixels=op.x[0].pixels,
            size=self.pixel_bytes,
        )
