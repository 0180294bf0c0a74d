"""What Linear and Conv2d share: the forward product and the input gradient, group by group."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import Emitter, sum_of
from rop.devices.cpu.emit.panels import backward_panels, backward_segments, forward_panels, forward_segments
from rop.devices.cpu.memory import ZEROS
from rop.kernels.cpu import bilinear
from rop.kernels.cpu.gemm import IN_PANELS
from rop.lowering.bilinear import WEIGHT_ORDERS, Products
from rop.lowering.values import ORDERS, Buffer, cauchy_pairs


class EmitProducts(Emitter):
    """Products with W and with Wᵀ. How the gradient of W is made differs between Linear and Conv2d (bilinear.py)."""

    operation: Products
    forward_layout = backward_layout = IN_PANELS  # how W lies for y = W x and for Wᵀ δ

    def reserve(self) -> None:
        op, layout = self.operation, self.layout
        if self.forward_layout == IN_PANELS:
            self.forward_at = layout.pack(forward_panels(op))
        if self.backward_layout == IN_PANELS and self.plan.gradients and op.source.needs_gradient:
            self.backward_at = self.pack_backward()
        if not self.plan.gradients:
            return
        if op.bias_at is not None:
            self.bias_piece = layout.tile_piece(op.bias_at + np.arange(op.rows), op.adds_bias)
        self.reserve_weight_gradient()

    def pack_backward(self) -> int:
        """Reserves the panels of Wᵀ; returns where they start."""
        return self.layout.pack(backward_panels(self.operation))

    def reserve_weight_gradient(self) -> None:
        """Takes the memory that the gradient of W needs."""
        raise NotImplementedError

    # Weights and tables. ----------------------------------------------------------------------------------------------
    def forward_weights(self, j: int, direction: int, group: int) -> Ref:
        """Order j of the weights as the forward product reads them."""
        op, layout = self.operation, self.layout
        if self.forward_layout == IN_PANELS:
            return layout.panel("packed", j, direction, self.forward_at + group * op.group_rows * op.fan)
        return layout.parameter(j, direction, op.weight_at)

    def backward_weights(self, j: int, direction: int, group: int) -> Ref:
        """Order j of the transposed weights."""
        op, layout = self.operation, self.layout
        if self.backward_layout == IN_PANELS:
            return layout.panel("packed", j, direction, self.backward_at + group * op.group_rows * op.fan)
        return layout.parameter(j, direction, op.weight_at)

    @cached_property
    def _forward_bounds(self) -> int:
        return forward_segments(self.operation, self.layout)

    @cached_property
    def _backward_bounds(self) -> int:
        return backward_segments(self.operation, self.layout)

    # Passes. ----------------------------------------------------------------------------------------------------------
    def forward(self, code: Code, k: int, direction: int) -> None:
        """y_k = Σ_j W_j x_{k−j} + b_k."""
        op, layout, x = self.operation, self.layout, self.operation.source
        if k not in op.y.levels:
            return
        bias, bias_step = ZEROS, 0
        if op.bias_at is not None and k < 2:
            bias, bias_step = layout.parameter(k, direction, op.bias_at), layout.itemsize
        for group in range(op.groups):
            row = group * op.group_rows
            terms = [
                (self.forward_weights(j, direction, group), layout.rows(x.buffer, i, group * op.group_inputs))
                for j, i in cauchy_pairs(k, WEIGHT_ORDERS, x.levels)
            ]
            code.tile(
                bilinear.products,
                c=layout.rows(op.y.buffer, k, row),
                c_step=op.rows * layout.lane_bytes,
                pixels=op.pixels,
                rows=op.group_rows,
                fan=op.fan,
                layout=self.forward_layout,
                lane_bytes=layout.lane_bytes,
                bounds=self._forward_bounds,
                bias=bias.plus(row * bias_step),
                bias_step=bias_step,
                relu=int(op.relu and k == 0),
                mask=layout.rows(op.y.buffer, 0, row) if op.relu and k > 0 else 0,
                terms=sum_of(terms),
            )

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if op.bias_at is not None and code.wanted:
            code.tile(
                bilinear.bias_gradient,
                d=layout.share(self.bias_piece, code.sums),
                g=layout.rows(op.delta, k),
                rows=op.rows,
                pixels=op.pixels,
                lane_bytes=layout.lane_bytes,
            )
        self.weight_gradient(code, k)
        if op.h[0] is not None:
            self._input_gradient(code, k, direction, op.h[0])

    def weight_gradient(self, code: Code, k: int) -> None:
        """Σ_j δ_j x_{k−j} of a tile."""
        raise NotImplementedError

    def _input_gradient(self, code: Code, k: int, direction: int, h: Buffer) -> None:
        """h_k = Σ_j W_jᵀ δ_{k−j}, through the ReLU that was fused into x."""
        op, layout = self.operation, self.layout
        masked = op.source.flow.masked_by_user
        for group in range(op.groups):
            channel = group * op.group_inputs
            terms = [
                (self.backward_weights(j, direction, group), layout.rows(op.delta, i, group * op.group_rows))
                for j, i in cauchy_pairs(k, WEIGHT_ORDERS, ORDERS)
            ]
            code.tile(
                bilinear.products,
                c=layout.rows(h, k, channel),
                c_step=op.inputs * layout.lane_bytes,
                pixels=op.image_pixels,
                rows=op.group_inputs,
                fan=op.geometry.taps * op.group_rows,
                layout=self.backward_layout,
                lane_bytes=layout.lane_bytes,
                bounds=self._backward_bounds,
                bias=ZEROS,
                bias_step=0,
                relu=0,
                mask=layout.rows(op.source.buffer, 0, channel) if masked else 0,
                terms=sum_of(terms),
            )
