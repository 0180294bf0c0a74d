"""Batch normalisation: sums per tile, numbers per channel from the sums of all tiles, then the map.

With running statistics the numbers per channel are made before the tiles start.
"""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.memory import NOWHERE, ZEROS
from rop.kernels.compile import Kernel
from rop.kernels.cpu import batchnorm
from rop.lowering.batchnorm import BatchNormOperation, ChannelMap
from rop.lowering.values import ORDERS


class EmitChannelMap(Emitter):
    """A map with numbers for each channel, from batch statistics or (frozen) from numbers that are given."""

    operation: ChannelMap
    eps: float

    def frozen_statistics(self) -> tuple[Ref, Ref]:
        """Mean and variance of each channel, where they are given."""
        raise NotImplementedError

    def reserve(self) -> None:
        op, layout, channels = self.operation, self.layout, self.operation.channels
        self.table_at = [layout.reserve("channels", batchnorm.FIELDS * channels) for _ in ORDERS]
        self.totals_at = [layout.reserve("totals", 2 * channels) for _ in ORDERS]
        self.sums_at = layout.reserve("sums", batchnorm.SUMS * channels)
        if self.plan.gradients and op.y.needs_gradient:
            self._reserve_parameter_gradients()

    def _reserve_parameter_gradients(self) -> None:
        """For the gradients of γ and β; without them the kernel of batch statistics writes to unused memory."""
        op, layout, channels = self.operation, self.layout, self.operation.channels
        if op.gamma_at is None:
            self.gradient_at = layout.reserve("batch", 2 * channels)
            return
        beta = np.full(channels, NOWHERE) if op.beta_at is None else op.beta_at + np.arange(channels)
        index = np.concatenate([op.gamma_at + np.arange(channels), beta])
        if op.frozen:
            self.gradient_piece = layout.tile_piece(index, op.adds)
        else:
            self.gradient_at = layout.reserve("batch", 2 * channels)
            layout.batch_piece(self.gradient_at, index, op.adds)

    # Operands. --------------------------------------------------------------------------------------------------------
    def _tables(self, k: int, direction: int) -> tuple[Ref, ...]:
        """Numbers per channel, order by order."""
        at = self.table_at
        return tuple(self.layout.panel("channels", min(j, k), direction, at[min(j, k)]) for j in ORDERS)

    def _mask(self) -> Ref:
        """Which lanes count: on pixel lanes all of them."""
        return Ref("ones", 0, 0) if self.operation.y.buffer.pixels else Ref("mask")

    def _per_channel(self, code: Code, kernel: Kernel, **operands: Operand) -> None:
        """An instruction on the sums of all tiles, for every channel; where there is one tile, slices of channels go
        on by themselves."""
        if code.slices:
            self.on_rows(code, kernel, self.operation.y.buffer, True, **operands)
        else:
            code.once(kernel, part=(0, 1), **operands)

    def _gamma(self, k: int, direction: int) -> tuple[Ref, Ref]:
        at, layout = self.operation.gamma_at, self.layout
        if at is None:
            return Ref("ones", 0, 0), ZEROS
        first = layout.parameter(0, direction, at)
        return first, layout.parameter(1, direction, at) if k > 0 else first

    def _beta(self, k: int, direction: int) -> Ref:
        at = self.operation.beta_at
        return ZEROS if at is None or k == 2 else self.layout.parameter(k, direction, at)

    def _sums(self) -> Ref:
        """The sums of a tile."""
        return Ref("sums", 8 * self.sums_at)

    def _all_sums(self) -> dict[str, Operand]:
        """The sums of all tiles."""
        at = Ref("sums", 8 * self.sums_at, 0)
        return {"sums": at, "step": Ref("sums_step", 0, 0), "tiles": Ref("tile_count", 0, 0)}

    # Passes. ----------------------------------------------------------------------------------------------------------
    def prepare(self, code: Code, k: int, direction: int) -> None:
        op = self.operation
        if op.frozen:
            mean, variance = self.frozen_statistics()
            code.once(
                batchnorm.frozen,
                order=k,
                tables=self._tables(k, direction),
                channels=op.channels,
                mean=mean,
                variance=variance,
                eps=self.eps,
                gamma=self._gamma(k, direction),
            )

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        if not op.frozen:
            self._statistics(code, k, direction)
        self.on_rows(
            code,
            batchnorm.normalise,
            op.y.buffer,
            not op.frozen,
            y=layout.rows(op.y.buffer, k),
            order=k,
            x=layout.value(op.x[0], k),
            tables=self._tables(k, direction),
            beta=self._beta(k, direction),
            extent=layout.extent(op.y),
            relu=int(op.relu and k == 0),
            mask=layout.rows(op.y.buffer, 0) if op.relu and k > 0 else 0,
        )

    def _statistics(self, code: Code, k: int, direction: int) -> None:
        """Order k of the numbers per channel, from the batch."""
        op, tables = self.operation, self._tables(k, direction)
        self.on_rows(
            code,
            batchnorm.moments,
            op.y.buffer,
            sums=self._sums(),
            order=k,
            x=self.layout.value(op.x[0], k),
            tables=tables,
            mask=self._mask(),
            extent=self.layout.extent(op.y),
        )
        self._per_channel(
            code,
            batchnorm.statistics,
            order=k,
            tables=tables,
            **self._all_sums(),
            channels=op.channels,
            eps=self.eps,
            gamma=self._gamma(k, direction),
        )

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        tables = self._tables(k, direction)
        inputs: dict[str, Operand] = {
            "x": layout.value(op.x[0], k),
            "g": layout.jet(op.delta, k),
            "tables": tables,
            "mask": self._mask(),
            "extent": layout.extent(op.y),
        }
        self.on_rows(code, batchnorm.gradient_sums, op.y.buffer, sums=self._sums(), order=k, **inputs)
        if not op.frozen:
            self._gradient_statistics(code, k, direction)
        elif op.gamma_at is not None and code.wanted:
            self.on_rows(
                code,
                batchnorm.frozen_gradients,
                op.y.buffer,
                True,
                d_gamma=layout.share(self.gradient_piece, code.sums),
                d_beta=layout.share(self.gradient_piece, code.sums, op.channels),
                sums=self._sums(),
                table0=tables[0],
                channels=op.channels,
            )
        if op.h[0] is not None:
            h = layout.rows(op.h[0], k)
            add = int(op.accumulates[0])
            self.on_rows(code, batchnorm.backward, op.y.buffer, True, h=h, order=k, add=add, **inputs)

    def _gradient_statistics(self, code: Code, k: int, direction: int) -> None:
        """Order k of the gradients of γ and β, and of what goes back through the statistics."""
        layout, channels = self.layout, self.operation.channels
        self._per_channel(
            code,
            batchnorm.gradient_statistics,
            order=k,
            tables=self._tables(k, direction),
            **self._all_sums(),
            channels=channels,
            d_gamma=layout.batch("batch", self.gradient_at),
            d_beta=layout.batch("batch", self.gradient_at, channels),
            totals=tuple(layout.batch("totals", self.totals_at[min(j, k)], size=8) for j in ORDERS),
        )


@emits(BatchNormOperation)
class EmitBatchNorm(EmitChannelMap):
    """Batch normalisation, with batch statistics or with running statistics."""

    operation: BatchNormOperation

    def reserve(self) -> None:
        super().reserve()
        self.eps = float(self.operation.layer.eps)
        self.state_at = self.layout.reserve("state", 2 * self.operation.channels)  # running mean, running variance

    def frozen_statistics(self) -> tuple[Ref, Ref]:
        at, layout = self.state_at, self.layout
        return layout.batch("state", at), layout.batch("state", at, self.operation.channels)
