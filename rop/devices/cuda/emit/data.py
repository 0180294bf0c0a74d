"""The net's input: the samples of a tile are order 0, and the other orders are zero."""

from __future__ import annotations

import numpy as np

from rop.devices.cuda.code import Code, Part
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.memory import table
from rop.kernels.cuda import memory
from rop.lowering.data import InputOperation


@emits(InputOperation)
class EmitInput(Emitter):
    """Copies the samples of a tile to its lanes."""

    operation: InputOperation

    def reserve(self) -> None:
        features = self.operation.feature_of_row()
        self.features = table(np.arange(self.operation.y.rows) if features is None else features)

    def forward(self, code: Code) -> None:
        if 0 in code.orders:
            code.launch(
                memory.load(self.dtype),
                y=code.rows(self.operation.y.buffer, 0),
                x=Part("x"),
                samples=Part("samples", 0, (self.layout.lanes,)),
                feature=self.features,
            )

    def backward(self, code: Code) -> None:
        """Data has no gradient."""
