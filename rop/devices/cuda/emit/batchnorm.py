"""Batch normalisation: a launch for the channel tables, then one for the map, with all orders in each."""

from __future__ import annotations

from typing import Any

from rop.devices.cuda.code import Code, Jet, Operand, Part, jet_of
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.emit.rectified import rectify
from rop.kernels.cuda import batchnorm
from rop.lowering.batchnorm import BatchNormOperation, ChannelMap


class EmitChannelMap(Emitter):
    """Fills the channel tables, from the batch or from numbers that are given, then applies the map."""

    operation: ChannelMap
    eps: float

    def frozen_statistics(self) -> tuple[Operand, Operand]:
        """Mean and variance of each channel, where they are given."""
        raise NotImplementedError

    def reserve(self) -> None:
        op, channels = self.operation, self.operation.channels
        self.table_at = self.layout.reserve("tables", batchnorm.FIELDS * channels)
        self.pixels = {"pixels": op.y.pixels}
        self.channels = {"channels": channels}
        self.parameters = {"w": Part("w"), "v": Part("v0")}
        self.gamma = {"gamma_at": -1 if op.gamma_at is None else op.gamma_at}
        self.beta = {"beta_at": -1 if op.beta_at is None else op.beta_at}
        self.samples = {"samples": Part("samples", 0, (self.layout.lanes,))}

    def table(self, k: int) -> Part:
        """The channel table of order k."""
        return Part(f"table{k}", self.table_at, (batchnorm.FIELDS, self.operation.channels))

    def _tables(self, code: Code) -> Jet:
        return jet_of(self.table, code.levels())

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if not orders:
            return
        options: dict[str, Any] = {"orders": orders, "levels": code.levels(op.x[0])}
        x, tables = code.value(op.x[0]), self._tables(code)
        if op.frozen:
            mean, variance = self.frozen_statistics()
            code.launch(
                batchnorm.frozen(self.dtype, orders=orders),
                table=tables,
                **self.parameters,
                **self.gamma,
                mean=mean,
                variance=variance,
                eps=self.eps,
            )
        else:
            code.launch(
                batchnorm.statistics(self.dtype, **options),
                table=tables,
                x=x,
                **self.parameters,
                **self.gamma,
                **self.samples,
                **self.pixels,
                **self.channels,
                eps=self.eps,
            )
        code.launch(
            batchnorm.normalise(self.dtype, **options),
            y=code.value(op.y),
            x=x,
            table=tables,
            **self.parameters,
            **self.beta,
            **self.channels,
        )
        if op.relu:
            rectify(code, op, orders, y=code.value(op.y), x=code.value(op.y))

    def backward(self, code: Code) -> None:
        op = self.operation
        options: dict[str, Any] = {"orders": code.orders, "levels": code.levels(op.x[0])}
        inputs: dict[str, Any] = {
            "x": code.value(op.x[0]),
            "g": code.jet(op.delta),
            "table": self._tables(code),
            **self.samples,
            **self.channels,
        }
        code.launch(
            batchnorm.gradient_statistics(self.dtype, **options),
            **inputs,
            **self.gamma,
            **self.beta,
            **self.pixels,
            out=code.results(code.orders),
            add=op.adds,
        )
        if op.h[0] is not None:
            code.launch(batchnorm.backward(self.dtype, **options), h=code.jet(op.h[0]), **inputs)


@emits(BatchNormOperation)
class EmitBatchNorm(EmitChannelMap):
    """Batch normalisation, with batch statistics or with running statistics."""

    operation: BatchNormOperation

    def reserve(self) -> None:
        super().reserve()
        self.eps = float(self.operation.layer.eps)
        self.state_at = self.layout.reserve("state", 2 * self.operation.channels)

    def frozen_statistics(self) -> tuple[Operand, Operand]:
        channels, at = self.operation.channels, self.state_at
        return Part("state", at, (channels,)), Part("state", at + channels, (channels,))
