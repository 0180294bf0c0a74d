"""Normalisation of each sample: one launch forward and one backward for all orders, then a map of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from rop.devices.cuda.code import Code, Operand
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.emit.batchnorm import EmitChannelMap
from rop.kernels.cuda import norm
from rop.lowering.norm import Scale, Standardise


@emits(Standardise)
class EmitStandardise(Emitter):
    """Sets of numbers of each sample."""

    operation: Standardise

    def reserve(self) -> None:
        self.numbers = self.plan.buffer(norm.FIELDS * self.operation.sets)

    def _common(self, code: Code) -> dict[str, Any]:
        op = self.operation
        sets = {"sets": op.sets, "rows": op.rows, "blocks": op.blocks, "step": op.x[0].channels}
        return {"x": code.value(op.x[0]), "table": code.jet(self.numbers), **sets}

    def _options(self, code: Code, orders: tuple[int, ...]) -> dict[str, Any]:
        op = self.operation
        return {"orders": orders, "levels": code.levels(op.x[0]), "centres": op.layer.centres}

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            kernel = norm.standardise(self.dtype, **self._options(code, orders))
            code.launch(kernel, y=code.value(op.y), eps=float(op.layer.eps), **self._common(code))

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            kernel = norm.standardise_backward(self.dtype, **self._options(code, code.orders))
            code.launch(kernel, h=code.jet(op.h[0]), g=code.jet(op.g), **self._common(code))


@emits(Scale)
class EmitScale(EmitChannelMap):
    """γ n + β: what the map of batch normalisation is for a mean of 0 and a variance of 1."""

    operation: Scale
    eps = 0.0

    def reserve(self) -> None:
        super().reserve()
        channels = self.operation.channels
        self.mean, self.variance = (cuda.to_device(value(channels, self.dtype)) for value in (np.zeros, np.ones))

    def frozen_statistics(self) -> tuple[Operand, Operand]:
        return self.mean, self.variance
