"""The net's input: order 0 of a tile's samples; the other orders are zero."""

from __future__ import annotations

import math

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import memory
from rop.lowering.data import InputOperation


@emits(InputOperation)
class EmitInput(Emitter):
    """Brings the samples of a tile into lanes."""

    operation: InputOperation

    def forward(self, code: Code, k: int, direction: int) -> None:
        if k == 0 and self.operation.y.buffer.pixels:
            y, layout = self.operation.y, self.layout
            code.rows(
                memory.load_maps,
                layout.images,
                layout.row_size(y.buffer),
                y=layout.rows(y.buffer, 0),
                x=Ref("x", 0, 0),
                samples=Ref("samples"),
                extent=layout.extent(y),
                pixels=y.buffer.pixels,
            )
        elif k == 0:
            y, layout, order = self.operation.y, self.layout, self.operation.feature_of_row()
            code.tile(
                memory.load,
                y=layout.rows(y.buffer, 0),
                x=Ref("x", 0, 0),
                samples=Ref("samples"),
                order=0 if order is None else layout.tables.put(order),
                rows=y.rows,
                features=math.prod(y.shape),
                lanes=layout.lanes,
            )

    def backward(self, code: Code, k: int, direction: int) -> None:
        """Data has no gradient."""
