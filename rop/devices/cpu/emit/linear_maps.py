"""Average pooling, addition, concatenation and permutation: every order goes through the same linear map."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.emit.rectified import rectify
from rop.devices.cpu.memory import Layout
from rop.kernels.cpu import linear_maps
from rop.lowering.linear_maps import AveragePool, Concatenation, PermuteOperation, Sum, Windows
from rop.lowering.plan import Operation


def copy_or_add(code: Code, y: Ref, x: Ref, count: int, add: bool) -> None:
    """y = x or y += x, for rows that lie side by side."""
    if add:
        code.tile(linear_maps.add_rows, y=y, x=x, count=count)
    else:
        code.tile(linear_maps.copy_rows, y=y, x=x, pixels=1, y_step=0, x_step=0, count=count)


def add_uses(layout: Layout, code: Code, operation: Operation, k: int) -> None:
    """Sums the gradients that y's uses have written."""
    for part, add in operation.parts_of_gradient():
        y, x = layout.rows(operation.g, k), layout.rows(part, k)
        copy_or_add(code, y, x, operation.y.rows * layout.lanes, add)


class EmitWindows(Emitter):
    """What max and average pooling share: tables of windows, one entry per (output pixel, input pixel)."""

    operation: Windows

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel with all its channels."""
        return self.operation.y.channels * self.layout.lane_bytes

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Input pixel, output pixel and second word of each entry."""
        raise NotImplementedError

    @cached_property
    def by_output(self) -> int:
        """The table of windows by output pixel."""
        pixel_in, pixel_out, word = self.entries()
        rows = np.stack([pixel_in * self.pixel_bytes, word], axis=1)
        return self.layout.tables.bounded(rows, pixel_out, self.operation.y.pixels)

    @cached_property
    def by_input(self) -> int:
        """The table of windows by input pixel."""
        pixel_in, pixel_out, word = self.entries()
        order = np.argsort(pixel_in, kind="stable")
        rows = np.stack([pixel_out[order] * self.pixel_bytes, word[order]], axis=1)
        return self.layout.tables.bounded(rows, pixel_in[order], self.operation.x[0].pixels)


@emits(AveragePool)
class EmitAveragePool(EmitWindows):
    """Average pooling: the same weighted sums at every order. The second word of an entry has the bits of a weight."""

    operation: AveragePool

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pixel_in, pixel_out, share = self.operation.shares()
        words = share.astype(self.layout.dtype).view(f"i{self.layout.itemsize}")
        return pixel_in, pixel_out, words.astype(np.int64)

    def _pass(self, code: Code, y: Ref, x: Ref, bounds: int, pixels: int) -> None:
        code.tile(linear_maps.weighted_sum, y=y, x=x, bounds=bounds, pixels=pixels, size=self.pixel_bytes)

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            self._pass(code, layout.rows(op.y.buffer, k), layout.rows(op.x[0].buffer, k), self.by_output, op.y.pixels)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        self._pass(code, layout.rows(op.only_h, k), layout.rows(op.g, k), self.by_input, op.x[0].pixels)


@emits(PermuteOperation)
class EmitPermutation(Emitter):
    """Rows of a flattened image in the user's order."""

    operation: PermuteOperation

    def _pass(self, code: Code, y: Ref, x: Ref, order: np.ndarray) -> None:
        layout, rows = self.layout, self.operation.y.rows
        code.tile(linear_maps.permute_rows, y=y, x=x, order=layout.tables.put(order), rows=rows, lanes=layout.lanes)

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            self._pass(code, layout.rows(op.y.buffer, k), layout.rows(op.x[0].buffer, k), op.order)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        self._pass(code, layout.rows(op.only_h, k), layout.rows(op.g, k), np.argsort(op.order))


@emits(Sum)
class EmitSum(Emitter):
    """Add: the first input is copied, the others are added."""

    operation: Sum

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        present = [x for x in op.x if k in x.levels]
        for i, x in enumerate(present):
            y, count = layout.rows(op.y.buffer, k), op.y.rows * layout.lanes
            copy_or_add(code, y, layout.rows(x.buffer, k), count, add=i > 0)
        if op.relu and present:
            rectify(layout, code, op, op.y.buffer, op.y.buffer, k)

    def backward(self, code: Code, k: int, direction: int) -> None:
        """Nothing to do: inputs share the gradient of y."""


@emits(Concatenation)
class EmitConcatenation(Emitter):
    """Concat: channels side by side in each pixel."""

    operation: Concatenation

    def _copy(self, code: Code, y: Ref, x: Ref, y_channels: int, x_channels: int) -> None:
        """The channels of one input from or to their place in each pixel."""
        layout = self.layout
        code.tile(
            linear_maps.copy_rows,
            y=y,
            x=x,
            pixels=self.operation.y.pixels,
            y_step=y_channels * layout.lane_bytes,
            x_step=x_channels * layout.lane_bytes,
            count=min(y_channels, x_channels) * layout.lanes,
        )

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            for first, x in op.parts():
                self._copy(code, layout.rows(op.y.buffer, k, first), layout.order(x, k), op.y.channels, x.channels)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        for (first, x), h in zip(op.parts(), op.h, strict=True):
            if h is not None:
                self._copy(code, layout.rows(h, k), layout.rows(op.g, k, first), x.channels, op.y.channels)
