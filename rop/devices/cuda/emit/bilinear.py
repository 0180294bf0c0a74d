"""Linear and Conv2d: products with W, which is read from w as it is, and both adjoints, with all orders in a launch."""

from __future__ import annotations

import numpy as np

from rop.devices.cuda.code import Code, Part, jet_of
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.memory import table
from rop.kernels.cuda import bilinear, memory
from rop.lowering.bilinear import ConvProducts, LinearProducts, Products
from rop.lowering.values import Buffer


def forward_sources(op: Products) -> np.ndarray:
    """Row of x for (output pixel, (channel, tap)) in the order of W's columns, −1 for padding; of the first group."""
    pixel_in, pixel_out, tap = op.geometry.triples()
    rows = np.full((op.pixels, op.group_inputs, op.geometry.taps), -1)
    rows[pixel_out, :, tap] = pixel_in[:, None] * op.inputs + np.arange(op.group_inputs)
    flat = rows.reshape(op.pixels, op.fan)
    return flat if op.source.row_order is None else op.source.row_order[flat]


def backward_sources(op: Products) -> np.ndarray:
    """Row of δ for (input pixel, (output row, tap)), −1 where no output uses the pixel through that tap."""
    pixel_in, pixel_out, tap = op.geometry.triples()
    rows = np.full((op.image_pixels, op.group_rows, op.geometry.taps), -1)
    rows[pixel_in, :, tap] = pixel_out[:, None] * op.rows + np.arange(op.group_rows)
    return rows.reshape(op.image_pixels, -1)


@emits(LinearProducts, ConvProducts)
class EmitProducts(Emitter):
    """Products and both adjoints. With A_0 = W and A_1 = V, order k is Σ_j A_j B_{k−j}."""

    operation: Products

    def reserve(self) -> None:
        op, lanes = self.operation, self.layout.lanes
        self.sources, self.targets = table(forward_sources(op)), table(np.arange(op.rows))
        self.weights = {
            "w": Part("w"),
            "v": Part("v0"),
            "groups": op.groups,
        }
        if not self.plan.gradients:
            return
        self.slices = bilinear.slices(op.pixels, lanes, op.group_rows, op.fan)
        self.layout.need_room("partial", self.slices * op.rows * op.fan)
        if op.h[0] is not None:
            self.back_sources = table(backward_sources(op))
            order = op.source.row_order
            self.back_targets = table(np.arange(op.inputs) if order is None else order)

    def _strides(self, **steps: int) -> bilinear.Strides:
        op = self.operation
        return bilinear.Strides(base=op.weight_at, group_base=op.group_rows * op.fan, **steps)

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if not orders:
            return
        kernel = bilinear.products_for(
            self.dtype,
            orders=orders,
            levels=code.levels(op.source),
            adjoint=False,
            rows=op.group_rows,
            lanes=self.layout.lanes,
        )
        code.launch(
            kernel,
            c=code.value(op.y),
            b=code.value(op.source),
            **self.weights,
            source=self.sources,
            target=self.targets,
            mask=None,
            gate=bilinear.RELU if op.relu else bilinear.OPEN,
            group_rows=op.group_rows,
            group_step=op.group_inputs,
            c_rows=op.rows,
            strides=self._strides(i_step=op.fan, inner=op.fan, outer_step=0),
            bias_at=-1 if op.bias_at is None else op.bias_at,
        )

    def backward(self, code: Code) -> None:
        op = self.operation
        if code.wanted:
            self._parameter_gradients(code)
        if op.h[0] is not None:
            self._input_gradient(code, op.h[0])

    def _parameter_gradients(self, code: Code) -> None:
        op, orders = self.operation, code.wanted
        if op.bias_at is not None:
            code.launch(
                bilinear.bias_gradient(self.dtype, orders=orders),
                out=code.results(orders),
                d=code.jet(op.delta),
                base=op.bias_at,
                rows=op.rows,
                pixels=op.pixels,
                add=op.adds_bias,
            )
        shape = self.slices, op.rows * op.fan
        partial = jet_of(lambda k: Part(f"partial{k}", 0, shape), orders)
        kernel = bilinear.weight_gradient_for(
            self.dtype, orders=orders, levels=code.levels(op.source), rows=op.group_rows, fan=op.fan
        )
        code.launch(
            kernel,
            partial=partial,
            d=code.jet(op.delta),
            x=code.value(op.source),
            source=self.sources,
            group_step=op.group_inputs,
            group_rows=op.group_rows,
            groups=op.groups,
            d_rows=op.rows,
        )
        code.launch(
            memory.collect(self.dtype, orders=orders),
            out=code.results(orders),
            partial=partial,
            base=op.weight_at,
            add=op.adds_weight,
        )

    def _input_gradient(self, code: Code, h: Buffer) -> None:
        """h_k = Σ_j A_jᵀ δ_{k−j}, through the ReLU that was fused into x."""
        op = self.operation
        masked = op.source.flow.masked_by_user
        kernel = bilinear.products_for(
            self.dtype,
            orders=code.orders,
            levels=code.levels(),
            adjoint=True,
            rows=op.group_inputs,
            lanes=self.layout.lanes,
        )
        code.launch(
            kernel,
            c=code.jet(h),
            b=code.jet(op.delta),
            **self.weights,
            source=self.back_sources,
            target=self.back_targets,
            mask=code.rows(op.source.buffer, 0) if masked else None,
            gate=bilinear.MASK if masked else bilinear.OPEN,
            group_rows=op.group_inputs,
            group_step=op.group_rows,
            c_rows=op.inputs,
            strides=self._strides(i_step=op.geometry.taps, inner=op.geometry.taps, outer_step=op.fan),
            bias_at=-1,
        )
