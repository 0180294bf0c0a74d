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
        self.on_rows(
            code,
            select.rectify,
            op.y.buffer,
            y=y,
            x=x,
            mask=layout.rows(op.x[0].buffer, 0),
            slope=float(op.layer.negative_slope),
            count=layout.count(op.y.buffer),
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
    empty = -2.0  # no window chooses this position
    repeats = True  # the largest of a window does not change

    def reserve(self) -> None:
        self.chosen = self.layout.buffer(self.operation, self.operation.y.rows, (0,), self.operation.y.buffer.pixels)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.operation.geometry.triples()

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        operands: dict[str, Operand] = {
            "y": layout.rows(op.y.buffer, k),
            "chosen": layout.rows(self.chosen, 0),
            "x": layout.rows(op.x[0].buffer, k),
        }
        if k == 0:
            operands["relu"] = int(op.relu)
        if self.on_lanes:
            kernel = select.pool_largest_lanes if k == 0 else select.pool_chosen_lanes
            operands |= {"y_extent": layout.extent(op.y), "x_extent": layout.extent(op.x[0])}
            self.on_rows(code, kernel, op.y.buffer, windows=self.windows_by_output, **operands)
        else:
            kernel = select.pool_largest if k == 0 else select.pool_chosen
            code.tile(kernel, bounds=self.by_output, pixels=op.y.pixels, size=self.pixel_bytes, **operands)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        operands: dict[str, Operand] = {
            "h": layout.rows(op.only_h, k),
            "chosen": layout.rows(self.chosen, 0),
            "g": layout.rows(op.g, k),
        }
        if self.on_lanes:
            operands |= {"h_extent": layout.extent(op.x[0]), "g_extent": layout.extent(op.y)}
            kernel = select.pool_returned_lanes
            self.on_rows(code, kernel, op.x[0].buffer, windows=self.windows_by_input, **operands)
        else:
            pixels, size = op.x[0].pixels, self.pixel_bytes
            code.tile(select.pool_returned, bounds=self.by_input, pixels=pixels, size=size, **operands)
