"""Linear and Conv2d: products with packed weights (products.py), and the gradient of the weights, each in its own way.

The gradient of a linear layer's W is a matrix product, too, with xᵀ as its second factor; that of a convolution is a
sum of products of pixels, lane by lane.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import SLICES, Emitter, emits, sum_of
from rop.devices.cpu.emit.depthwise import EmitDepthwise, is_depthwise
from rop.devices.cpu.emit.products import EmitProducts
from rop.devices.cpu.emit.winograd import EmitConvWinograd
from rop.devices.cpu.memory import NOWHERE, ZEROS, Layout
from rop.kernels.cpu import bilinear
from rop.kernels.cpu.gemm import BY_COLUMNS, BY_ROWS, DOT_COLUMNS, IN_PANELS, SPAN
from rop.kernels.cpu.vector import BLOCK
from rop.lowering.bilinear import ConvProducts, LinearProducts
from rop.lowering.plan import Operation
from rop.lowering.values import ORDERS, cauchy_pairs

WIDE = 16384  # weights of a linear layer from which its gradient is a matrix product over all tiles
REGROUP = 48  # fan-in from which copying the output gradient into blocks pays


@emits(LinearProducts)
class EmitLinear(EmitProducts):
    """Linear. The gradient of W is a matrix product for each tile, or, of wide layers, over all tiles at once."""

    operation: LinearProducts

    def reserve(self) -> None:
        op = self.operation
        is_large = op.rows * op.fan >= WIDE
        self.is_wide = is_large and not op.tied
        if op.source.row_order is None:
            self.forward_layout = BY_ROWS
            self.backward_layout = IN_PANELS if is_large else BY_COLUMNS
        super().reserve()

    @property
    def _transposes(self) -> bool:
        """Whether panels for the input gradient are made by transposing W as it lies, which is faster for long rows."""
        return self.is_wide and self.forward_layout == BY_ROWS

    def pack_backward(self) -> int:
        if self._transposes:
            return self.layout.reserve("panels", self.operation.rows * self.operation.fan)
        return super().pack_backward()

    def backward_weights(self, j: int, direction: int, group: int) -> Ref:
        if self._transposes:
            return self.layout.panel("panels", j, direction, self.backward_at)
        return super().backward_weights(j, direction, group)

    def reserve_weight_gradient(self) -> None:
        """Reserves xᵀ of each tile; long rows take an odd number of blocks, so that they do not share cache sets.
        Reserves the gradient, too, unless it can go straight to w's order (whole blocks of columns only)."""
        op, layout = self.operation, self.layout
        per_block = BLOCK // layout.itemsize
        blocks = -(-op.fan // per_block)
        self.columns = (blocks | 1 if self.is_wide else blocks) * per_block
        self.transposed = layout.buffer(op, self.columns, op.source.levels, after=self.is_wide)
        if self.is_wide:
            layout.lifetimes.note(op.delta, layout.lifetimes.end)
        self.wide_at: int | None = None
        if not self.is_wide:
            self.weight_piece = layout.tile_piece(self._padded_index(), op.adds_weight)
        elif op.source.row_order is not None or op.fan % per_block:
            self.wide_at = layout.reserve("batch", op.rows * self.columns)
            layout.batch_piece(self.wide_at, self._padded_index(), False)

    def _padded_index(self) -> np.ndarray:
        """Position in w of (row, column), flat."""
        op = self.operation
        index = np.full((op.rows, self.columns), NOWHERE)
        index[:, : op.fan] = op.weight_index().reshape(op.rows, op.fan)
        return index.ravel()

    # Tables. ----------------------------------------------------------------------------------------------------------
    @cached_property
    def _every_row(self) -> int:
        return self.layout.tables.put(np.arange(self.operation.fan))

    @cached_property
    def _whole_tile(self) -> int:
        """One segment: all lanes of the tile."""
        return self.layout.tables.put([0, 0, self.layout.lanes])

    @cached_property
    def _one(self) -> int:
        return self.layout.tables.put([1])

    # Passes. ----------------------------------------------------------------------------------------------------------
    def prepare(self, code: Code, k: int, direction: int) -> None:
        """Transposes W (order 0) or V (order 1) into panels."""
        op = self.operation
        if self._transposes and k < 2 and self.plan.gradients and op.source.needs_gradient:
            code.split(
                SLICES,
                bilinear.pack_transposed,
                w=self.layout.parameter(k, direction, op.weight_at),
                y=self.backward_weights(k, direction, 0),
                rows=op.rows,
                columns=op.fan,
                part=Ref("number", 0, 1),
                parts=SLICES,
            )

    def forward(self, code: Code, k: int, direction: int) -> None:
        super().forward(code, k, direction)
        op, layout = self.operation, self.layout
        if self.plan.gradients and k in op.source.levels:
            code.tile(
                bilinear.transpose,
                y=layout.rows(self.transposed, k),
                y_step=self.columns * layout.itemsize,
                x=layout.rows(op.source.buffer, k),
                index=self._every_row,
                rows=op.fan,
                lanes=layout.lanes,
            )

    def weight_gradient(self, code: Code, k: int) -> None:
        if code.wanted and not self.is_wide:
            row_bytes = self.columns * self.layout.itemsize
            code.tile(
                bilinear.linear_weight_gradient,
                c=self.layout.share(self.weight_piece, code.sums),
                c_step=row_bytes,
                done=0,
                most=row_bytes,
                segments=self._whole_tile,
                count=self._one,
                **self._gradient_factors(k, None, None),
            )

    def wide(self, code: Code, k: int, direction: int, out: Ref) -> None:
        """Σ_j δ_j x_{k−j} over all tiles, a span of columns per unit."""
        if not self.is_wide:
            return
        op, size = self.operation, self.layout.itemsize
        if self.wide_at is None:
            place, step = Ref(out.region, out.offset + op.weight_at * size, SPAN), op.fan * size
        else:
            place, step = Ref("batch", self.wide_at * size, SPAN), self.columns * size
        operands = self._gradient_factors(k, 0, SPAN)
        code.split(
            -(-int(operands["columns"]) // SPAN),
            bilinear.linear_weight_gradient,
            c=place,
            c_step=step,
            done=Ref("number", 0, SPAN),
            most=SPAN,
            segments=Ref("tile_segments", 0, 0),
            count=Ref("tile_count", 0, 0),
            **operands,
        )

    def _gradient_factors(self, k: int, delta_step: int | None, x_step: int | None) -> dict[str, Any]:
        """Operands that the gradient of a tile and that of all tiles have in common; steps are bytes from a unit to
        the next."""
        op, layout = self.operation, self.layout
        terms = [
            (
                Ref(f"plane{j}", layout.rows(op.delta, j).offset, delta_step),
                Ref(f"plane{i}", layout.rows(self.transposed, i).offset, x_step),
            )
            for j, i in cauchy_pairs(k, ORDERS, op.source.levels)
        ]
        return {
            "rows": op.rows,
            "lane_bytes": layout.lane_bytes,
            "x_step": self.columns * layout.itemsize,
            "columns": -(-op.fan * layout.itemsize // BLOCK) * BLOCK,
            "zeros": ZEROS,
            "terms": sum_of(terms),
        }


@emits(ConvProducts)
class EmitConv(EmitProducts):
    """Conv2d. The gradient of W is a sum of products of pixels, lane by lane."""

    operation: ConvProducts

    @classmethod
    def version(cls, operation: Operation, layout: Layout) -> type[Emitter]:
        """On pixel lanes a convolution takes strips of pixels at a time, and of all channels or of one."""
        if not layout.plan.pixel_lanes:
            return cls
        assert isinstance(operation, ConvProducts)
        return EmitDepthwise if is_depthwise(operation) else EmitConvWinograd

    def reserve_weight_gradient(self) -> None:
        op, layout, x = self.operation, self.layout, self.operation.source
        one_group = op.groups == 1
        self.merged = (
            one_group and op.inputs < DOT_COLUMNS and op.geometry.padding == (0, 0) and op.geometry.dilation[1] == 1
        )
        self.output_blocks = layout.buffer(op, op.y.rows) if one_group and op.pixels > 1 and op.fan > REGROUP else None
        self.input_blocks = (
            layout.buffer(op, x.rows, x.levels) if one_group and op.image_pixels > 1 and not self.merged else None
        )
        index = op.weight_index().transpose(0, 2, 3, 1).ravel()  # D[group][(tap, channel), row]
        self.weight_piece = layout.tile_piece(index, op.adds_weight)

    @cached_property
    def _dot_groups(self) -> tuple[int, int]:
        """Address and number of the groups of lane dots: (first j, number of j, pairs of pixels, number of pairs), one
        per tap or row of taps."""
        op, tables = self.operation, self.layout.tables
        pixel_in, pixel_out, tap = op.geometry.triples()
        width = op.geometry.kernel[1] if self.merged else 1
        groups = []
        for first in range(0, op.geometry.taps, width):
            mine = tap == first
            pairs = np.stack([pixel_out[mine], pixel_in[mine]], axis=1)
            groups.append([first * op.group_inputs, width * op.group_inputs, tables.put(pairs), len(pairs)])
        return tables.put(groups), len(groups)

    def weight_gradient(self, code: Code, k: int) -> None:
        self._regroup(code, k)
        if not code.wanted:
            return
        op, layout, x = self.operation, self.layout, self.operation.source
        outputs, inputs = self.output_blocks or op.delta, self.input_blocks or x.buffer
        groups, count = self._dot_groups
        for group in range(op.groups):
            terms = [
                (layout.rows(outputs, j, group * op.group_rows), layout.rows(inputs, i, group * op.group_inputs))
                for j, i in cauchy_pairs(k, ORDERS, x.levels)
            ]
            code.tile(
                bilinear.conv_weight_gradient,
                d=layout.share(self.weight_piece, code.sums, group * op.group_rows * op.fan),
                rows=op.group_rows,
                terms=sum_of(terms),
                groups=groups,
                count=count,
                lane_bytes=layout.lane_bytes,
                a=(op.rows, op.pixels, int(self.output_blocks is not None)),
                b=(op.inputs, op.image_pixels, int(self.input_blocks is not None)),
            )

    def _regroup(self, code: Code, k: int) -> None:
        """Copies order k of δ and x into blocks, where that pays."""
        op, layout, x = self.operation, self.layout, self.operation.source
        for kernel, blocks, buffer, pixels, rows in (
            (bilinear.regroup_outputs, self.output_blocks, op.delta, op.pixels, op.rows),
            (bilinear.regroup_inputs, self.input_blocks, x.buffer, op.image_pixels, op.inputs),
        ):
            if blocks is not None and k in blocks.orders:
                y, x_k = layout.rows(blocks, k), layout.rows(buffer, k)
                code.tile(kernel, y=y, x=x_k, pixels=pixels, rows=rows, lane_bytes=layout.lane_bytes)
