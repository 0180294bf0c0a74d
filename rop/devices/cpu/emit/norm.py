"""Normalisation of each sample: a kernel forward and one backward for each order, then a map of channels."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.emit.batchnorm import EmitChannelMap
from rop.devices.cpu.memory import ZEROS
from rop.kernels.cpu import norm
from rop.lowering.norm import Scale, Standardise


@emits(Standardise)
class EmitStandardise(Emitter):
    """Sets of numbers of each sample, lane by lane."""

    operation: Standardise

    def reserve(self) -> None:
        op = self.operation
        self.numbers = self.layout.buffer(op, norm.FIELDS * op.sets, pixels=op.x[0].buffer.pixels)

    def _common(self, k: int) -> dict[str, Operand]:
        op, layout = self.operation, self.layout
        return {
            "order": k,
            "x": layout.value(op.x[0], k),
            "tables": layout.jet(self.numbers, k),
            "sets": (op.sets, op.rows, op.blocks, op.x[0].channels),
            "centres": int(op.layer.centres),
            "extent": layout.extent(op.y),
        }

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            given: dict[str, Operand] = {"y": layout.rows(op.y.buffer, k), "eps": float(op.layer.eps)}
            self.on_rows(code, norm.standardise, op.y.buffer, **given, **self._common(k), scratch=Ref("scratch"))

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        given: dict[str, Operand] = {"h": layout.rows(op.only_h, k), "g": layout.jet(op.g, k)}
        self.on_rows(code, norm.standardise_backward, op.y.buffer, **given, **self._common(k))


@emits(Scale)
class EmitScale(EmitChannelMap):
    """γ n + β: what the map of batch normalisation is for a mean of 0 and a variance of 1."""

    operation: Scale
    eps = 0.0

    def frozen_statistics(self) -> tuple[Ref, Ref]:
        return ZEROS, Ref("ones", 0, 0)
