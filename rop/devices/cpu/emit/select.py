"""ReLU, leaky ReLU and max pooling: order 0 chooses, the other orders and the gradients follow the choice."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.emit.linear_maps import EmitWindows
from rop.devices.cpu.emit.reads import PhasedMap, Reads, reads_words
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

    def reserve(self) -> None:
        op = self.operation
        self.chosen = self.layout.buffer(op, op.y.rows, (0,), op.y.buffer.pixels)
        if self.on_lanes:
            self.source = PhasedMap(self.layout, op.x[0], op.geometry)
            steps = self.layout.row_size(op.y.buffer), self.source.row_size
            self.forward_tables = self._tables(self.source.phases.forward(), *steps)
            self.backward_tables = [self._tables(phase, *steps[::-1]) for phase in self.source.phases.backward()]

    def _tables(self, reads: Reads, c_step: int, x_step: int) -> dict[str, Operand]:
        """Operands that say what is read."""
        tables = self.layout.tables
        table = tables.put(reads_words(self.layout, reads, c_step, x_step))
        return {"table": table, "positions": tables.put(reads.taps), "channels": self.operation.y.channels}

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.operation.geometry.triples()

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        operands: dict[str, Operand] = {"y": layout.rows(op.y.buffer, k), "chosen": layout.rows(self.chosen, 0)}
        if k == 0:
            operands["relu"] = int(op.relu)
        if self.on_lanes:
            kernel, x = select.pool_largest_strips if k == 0 else select.pool_chosen_strips, self.source.order(code, k)
            self.on_rows(code, kernel, op.y.buffer, x=x, **self.forward_tables, **operands)
        else:
            kernel, x = select.pool_largest if k == 0 else select.pool_chosen, layout.rows(op.x[0].buffer, k)
            code.tile(kernel, x=x, bounds=self.by_output, pixels=op.y.pixels, size=self.pixel_bytes, **operands)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout, h = self.operation, self.layout, self.operation.only_h
        operands: dict[str, Operand] = {"chosen": layout.rows(self.chosen, 0), "g": layout.rows(op.g, k)}
        if self.on_lanes:
            for tables in self.backward_tables:
                place = self.source.gradient(h, k)
                self.on_rows(code, select.pool_returned_strips, op.y.buffer, h=place, **tables, **operands)
            if self.source.is_divided:
                self.source.join(code, h, k, add=False, mask=0)
        else:
            pixels, size = op.x[0].pixels, self.pixel_bytes
            bounds, place = self.by_input, layout.rows(h, k)
            code.tile(select.pool_returned, h=place, bounds=bounds, pixels=pixels, size=size, **operands)
