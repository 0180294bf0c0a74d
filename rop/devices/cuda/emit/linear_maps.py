"""Average pooling, addition, concatenation and permutation: every order goes through the same linear map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import cuda

from rop.devices.cuda.code import Code, Jet
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.emit.rectified import rectify
from rop.devices.cuda.memory import padded, table
from rop.kernels.cuda import linear_maps
from rop.lowering.linear_maps import AveragePool, Concatenation, PermuteOperation, Sum
from rop.lowering.plan import Operation
from rop.lowering.values import Buffer

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

SAME_ROWS = {"pixels": 1, "y_step": 0, "y_first": 0, "x_step": 0, "x_first": 0}


def add_uses(code: Code, operation: Operation) -> None:
    """Sums the gradients that y's uses have written."""
    dtype = code.layout.dtype.type
    for part, add in operation.parts_of_gradient():
        jets = {"y": code.jet(operation.g), "x": code.jet(part)}
        if add:
            code.launch(linear_maps.add_rows(dtype, orders=code.orders), **jets)
        else:
            kernel = linear_maps.copy_rows(dtype, orders=code.orders, levels=code.levels())
            code.launch(kernel, **jets, count=part.rows, **SAME_ROWS)


@emits(AveragePool)
class EmitAveragePool(Emitter):
    """Average pooling: the same weighted sums at every order."""

    operation: AveragePool

    def reserve(self) -> None:
        op = self.operation
        pixel_in, pixel_out, share = op.shares()
        self.out = self._windows(pixel_out, pixel_in, share, op.y.pixels)
        self.back = self._windows(pixel_in, pixel_out, share, op.x[0].pixels)

    def _windows(
        self, owner: np.ndarray, member: np.ndarray, share: np.ndarray, owners: int
    ) -> dict[str, DeviceNDArray]:
        weights = padded(owner, share, owners, 0.0).astype(self.dtype)
        return {"entry": table(padded(owner, member, owners)), "weight": cuda.to_device(weights)}

    def _pass(self, code: Code, orders: tuple[int, ...], windows: dict[str, DeviceNDArray], **jets: Jet) -> None:
        code.launch(
            linear_maps.weighted_sum(self.dtype, orders=orders), **jets, **windows, channels=self.operation.y.channels
        )

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            self._pass(code, orders, self.out, y=code.value(op.y), x=code.value(op.x[0]))

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            self._pass(code, code.orders, self.back, y=code.jet(op.h[0]), x=code.jet(op.g))


@emits(PermuteOperation)
class EmitPermutation(Emitter):
    """Rows of a flattened image in the user's order."""

    operation: PermuteOperation

    def reserve(self) -> None:
        order = self.operation.order
        self.order, self.inverse = table(order), table(np.argsort(order))

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            code.launch(
                linear_maps.permute_rows(self.dtype, orders=orders),
                y=code.value(op.y),
                x=code.value(op.x[0]),
                order=self.order,
            )

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            code.launch(
                linear_maps.permute_rows(self.dtype, orders=code.orders),
                y=code.jet(op.h[0]),
                x=code.jet(op.g),
                order=self.inverse,
            )


@emits(Sum)
class EmitSum(Emitter):
    """Add: the first input is copied, the others are added."""

    operation: Sum

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        first, *others = op.x
        if orders:
            code.launch(
                linear_maps.copy_rows(self.dtype, orders=orders, levels=code.levels(first)),
                y=code.value(op.y),
                x=code.value(first),
                count=op.y.rows,
                **SAME_ROWS,
            )
        for x in others:
            if code.present(x.levels):
                code.launch(
                    linear_maps.add_rows(self.dtype, orders=code.present(x.levels)),
                    y=code.value(op.y),
                    x=code.value(x),
                )
        if op.relu and orders:
            rectify(code, op, orders, y=code.value(op.y), x=code.value(op.y))

    def backward(self, code: Code) -> None:
        """Nothing to do: inputs share the gradient of y."""


@emits(Concatenation)
class EmitConcatenation(Emitter):
    """Concat: channels side by side in each pixel."""

    operation: Concatenation

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if not orders:
            return
        for first, x in op.parts():
            kernel = linear_maps.copy_rows(self.dtype, orders=orders, levels=code.levels(x))
            code.launch(
                kernel,
                y=code.value(op.y),
                x=code.value(x),
                pixels=op.y.pixels,
                count=x.channels,
                y_step=op.y.channels,
                y_first=first,
                x_step=x.channels,
                x_first=0,
            )

    def backward(self, code: Code) -> None:
        op = self.operation
        for (first, x), h in zip(op.parts(), op.h, strict=True):
            if h is not None:
                self._take(code, h, first, x.channels)

    def _take(self, code: Code, h: Buffer, first: int, channels: int) -> None:
        op = self.operation
        kernel = linear_maps.copy_rows(self.dtype, orders=code.orders, levels=code.levels())
        code.launch(
            kernel,
            y=code.jet(h),
            x=code.jet(op.g),
            pixels=op.y.pixels,
            count=channels,
            y_step=channels,
            y_first=0,
            x_step=op.y.channels,
            x_first=first,
        )
