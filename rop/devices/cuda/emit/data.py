"""Data in."""

from __future__ import annotations

import numpy as np

from rop.devices.cuda.code import Code, Emitter, Part, Rooms, table
from rop.kernels.cuda import memory
from rop.lowering.data import InputOperation


class EmitInput(Emitter):
    """Brings the samples of a tile into lanes."""

    operation: InputOperation

    def prepare(self, rooms: Rooms) -> None:
        features = self.operation.feature_of_row()
        self.features = table(np.arange(self.operation.y.rows) if features is None else features)

    def forward(self, code: Code) -> None:
        if 0 in code.orders:
            code.launch(
                memory.load(self.dtype),
                y=code.rows(self.operation.y.buffer, 0),
                x=Part("x"),
                samples=Part("samples", 0, (self.plan.lanes,)),
                feature=self.features,
            )

    def backward(self, code: Code) -> None:
        """Data has no gradient."""
