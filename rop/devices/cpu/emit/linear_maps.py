"""Average pooling, addition, concatenation and permutation: every order goes through the same linear map."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.devices.cpu.emit.rectified import rectify
from rop.devices.cpu.memory import Layout
from rop.kernels.compile import Kernel
from rop.kernels.cpu import linear_maps, memory
from rop.lowering.linear_maps import AveragePool, Concatenation, PermuteOperation, Sum, ToMaps, ToSamples, Windows
from rop.lowering.plan import Operation
from rop.lowering.values import Buffer, Value


def copy_or_add(layout: Layout, code: Code, k: int, y: Buffer, x: Buffer, add: bool, follows: bool = False) -> None:
    """Order k of y = x or y += x, for buffers that lie alike."""
    rows, size, count = y.rows, layout.row_size(y), layout.count(y)
    operands: dict[str, Operand] = {"y": layout.rows(y, k), "x": layout.rows(x, k), "count": count}
    if add:
        code.rows(linear_maps.add_rows, rows, size, follows, **operands)
    else:
        code.rows(linear_maps.copy_rows, rows, size, follows, pixels=1, y_step=0, x_step=0, **operands)


def add_uses(layout: Layout, code: Code, operation: Operation, k: int) -> None:
    """Sums the gradients that y's uses have written."""
    for i, (part, add) in enumerate(operation.parts_of_gradient()):
        copy_or_add(layout, code, k, operation.g, part, add, follows=i > 0)


class EmitWindows(Emitter):
    """What max and average pooling share: tables of windows, one entry per (output pixel, input pixel)."""

    operation: Windows

    @property
    def on_lanes(self) -> bool:
        """Whether pixels are lanes of a row, not rows."""
        return self.plan.pixel_lanes

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

    def _windows(
        self, owner: np.ndarray, member: np.ndarray, share: np.ndarray, of: Value, to: Value
    ) -> tuple[int, ...]:
        """The operand of windows on pixel lanes: those of one image by owner, repeated for all images. A window with
        fewer entries than others has shares of zero."""
        pixels, others = of.buffer.pixels, to.buffer.pixels
        order = np.argsort(owner, kind="stable")
        owner, member, share = owner[order], member[order], share[order]
        counts = np.bincount(owner, minlength=pixels)
        entry = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = int(counts.max(initial=1))
        lanes, shares = np.zeros((entries, pixels), np.int64), np.zeros((entries, pixels), self.layout.dtype)
        first = entry == 0
        lanes[:, owner[first]] = member[first]
        lanes[entry, owner], shares[entry, owner] = member, share
        images = np.arange(self.layout.images)[:, None]
        everywhere = (lanes[:, None] + images * others).reshape(entries, -1)
        tables = self.layout.tables
        return entries, tables.put(everywhere), tables.put_reals(np.tile(shares, self.layout.images))

    @cached_property
    def windows_by_output(self) -> tuple[int, ...]:
        """The windows of output pixels, on pixel lanes."""
        pixel_in, pixel_out, share = self.operation.shares()
        return self._windows(pixel_out, pixel_in, share, self.operation.y, self.operation.x[0])

    @cached_property
    def windows_by_input(self) -> tuple[int, ...]:
        """The windows of input pixels, on pixel lanes."""
        pixel_in, pixel_out, share = self.operation.shares()
        return self._windows(pixel_in, pixel_out, share, self.operation.x[0], self.operation.y)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pixel_in, pixel_out, share = self.operation.shares()
        words = share.astype(self.layout.dtype).view(f"i{self.layout.itemsize}")
        return pixel_in, pixel_out, words.astype(np.int64)

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k not in op.y.levels:
            return
        y, x = layout.rows(op.y.buffer, k), layout.rows(op.x[0].buffer, k)
        if self.on_lanes:
            self._pass_lanes(code, y, x, self.windows_by_output, op.y, op.x[0])
        else:
            self._pass(code, y, x, self.by_output, op.y.pixels)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        h, g = layout.rows(op.only_h, k), layout.rows(op.g, k)
        if self.on_lanes:
            self._pass_lanes(code, h, g, self.windows_by_input, op.x[0], op.y)
        else:
            self._pass(code, h, g, self.by_input, op.x[0].pixels)

    def _pass(self, code: Code, y: Ref, x: Ref, bounds: int, pixels: int) -> None:
        code.tile(linear_maps.weighted_sum, y=y, x=x, bounds=bounds, pixels=pixels, size=self.pixel_bytes)

    def _pass_lanes(self, code: Code, y: Ref, x: Ref, windows: tuple[int, ...], to: Value, source: Value) -> None:
        extents: dict[str, Operand] = {
            "y_extent": self.layout.extent(to),
            "x_extent": self.layout.extent(source),
        }
        self.on_rows(code, linear_maps.weighted_lanes, to.buffer, y=y, x=x, windows=windows, **extents)


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


class EmitMove(Emitter):
    """Between pixel lanes and lanes of samples."""

    operation: ToSamples | ToMaps

    def _move(self, code: Code, kernel: Kernel, image: Value, map_rows: Ref, sample_rows: Ref) -> None:
        layout = self.layout
        self.on_rows(
            code,
            kernel,
            image.buffer,
            y=sample_rows,
            x=map_rows,
            extent=layout.extent(image),
            pixels=image.buffer.pixels,
            row_steps=self.operation.row_steps,
            lane_bytes=layout.lane_bytes,
        )


@emits(ToSamples)
class EmitToSamples(EmitMove):
    """From pixel lanes to lanes of samples."""

    operation: ToSamples

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, rows = self.operation, self.layout.rows
        if k in op.y.levels:
            self._move(code, memory.maps_to_samples, op.x[0], rows(op.x[0].buffer, k), rows(op.y.buffer, k))

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, rows = self.operation, self.layout.rows
        self._move(code, memory.samples_to_maps, op.x[0], rows(op.only_h, k), rows(op.g, k))


@emits(ToMaps)
class EmitToMaps(EmitMove):
    """From lanes of samples to pixel lanes."""

    operation: ToMaps

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, rows = self.operation, self.layout.rows
        if k in op.y.levels:
            self._move(code, memory.samples_to_maps, op.y, rows(op.y.buffer, k), rows(op.x[0].buffer, k))

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, rows = self.operation, self.layout.rows
        self._move(code, memory.maps_to_samples, op.y, rows(op.g, k), rows(op.only_h, k))


@emits(Sum)
class EmitSum(Emitter):
    """Add: the first input is copied, the others are added."""

    operation: Sum

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        present = [x for x in op.x if k in x.levels]
        for i, x in enumerate(present):
            copy_or_add(layout, code, k, op.y.buffer, x.buffer, add=i > 0, follows=i > 0)
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
        layout, buffer, channels = self.layout, self.operation.y.buffer, min(y_channels, x_channels)
        size = layout.row_size(buffer)
        code.rows(
            linear_maps.copy_rows,
            channels,
            size,
            y=y,
            x=x,
            pixels=self.operation.y.pixels,
            y_step=y_channels * size,
            x_step=x_channels * size,
            count=channels * size // layout.itemsize,
        )

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            for first, x in (part for part, inside in zip(op.parts(), op.inside, strict=True) if not inside):
                self._copy(code, layout.rows(op.y.buffer, k, first), layout.order(x, k), op.y.channels, x.channels)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        for (first, x), h in zip(op.parts(), op.h, strict=True):
            if h is not None:
                self._copy(code, layout.rows(h, k), layout.rows(op.g, k, first), x.channels, op.y.channels)
