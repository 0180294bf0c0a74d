"""ReLU, leaky ReLU and max pooling: order 0 chooses, the other orders and the gradients follow the choice."""

from __future__ import annotations

from rop.devices.cuda.code import Code, Jet, Part
from rop.devices.cuda.emit.base import Emitter, emits
from rop.devices.cuda.memory import padded, table
from rop.kernels.cuda import select
from rop.lowering.select import MaxPool, Rectify


@emits(Rectify)
class EmitRectify(Emitter):
    """ReLU and leaky ReLU that are not fused into another operation."""

    operation: Rectify

    def _pass(self, code: Code, orders: tuple[int, ...], **jets: Jet) -> None:
        code.launch(
            select.rectify(self.dtype, orders=orders),
            **jets,
            mask=code.rows(self.operation.x[0].buffer, 0),
            slope=float(self.operation.layer.negative_slope),
        )

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            self._pass(code, orders, y=code.value(op.y), x=code.value(op.x[0]))

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            self._pass(code, code.orders, y=code.jet(op.h[0]), x=code.jet(op.g))


@emits(MaxPool)
class EmitMaxPool(Emitter):
    """Max pooling: order 0 stores the pixel that it chooses, for all other launches."""

    operation: MaxPool

    def reserve(self) -> None:
        op = self.operation
        pixel_in, pixel_out, _ = op.geometry.triples()
        self.window = table(padded(pixel_out, pixel_in, op.y.pixels))
        self.owner = table(padded(pixel_in, pixel_out, op.x[0].pixels))
        first = self.layout.reserve("chosen", op.y.rows)
        self.chosen = Part("chosen", first * self.layout.lanes, (op.y.rows, self.layout.lanes))

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            code.launch(
                select.pool(self.dtype, orders=orders),
                y=code.value(op.y),
                x=code.value(op.x[0]),
                chosen=self.chosen,
                window=self.window,
                channels=op.y.channels,
                relu=int(op.relu),
            )

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            code.launch(
                select.pool_back(self.dtype, orders=code.orders),
                h=code.jet(op.h[0]),
                g=code.jet(op.g),
                chosen=self.chosen,
                owner=self.owner,
                channels=op.y.channels,
            )
