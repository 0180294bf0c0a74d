"""Activations: order 0 keeps σ′, σ″ and σ‴ for the other orders and the backward pass."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import elementwise
from rop.lowering.elementwise import Activation


@emits(Activation)
class EmitActivation(Emitter):
    """y = σ(x)."""

    operation: Activation

    def reserve(self) -> None:
        y = self.operation.y
        self.derivatives = [self.layout.buffer(self.operation, y.rows, (0,), y.buffer.pixels) for _ in range(3)]

    def _derivatives(self) -> tuple[Ref, ...]:
        return tuple(self.layout.rows(buffer, 0) for buffer in self.derivatives)

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        d, count = self._derivatives(), op.y.rows * layout.lanes
        if k == 0:
            kernel = elementwise.activation(op.layer.function, len(op.layer.parameters))
            a, b = op.arguments()
            y, x = layout.rows(op.y.buffer, 0), layout.rows(op.x[0].buffer, 0)
            code.tile(kernel, y=y, d=d, x=x, count=count, a=a, b=b)
        elif k in op.y.levels:
            orders = layout.value(op.x[0], k)
            code.tile(elementwise.forward, y=layout.rows(op.y.buffer, k), order=k, d=d, x=orders, count=count)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        code.tile(
            elementwise.backward,
            h=layout.rows(op.only_h, k),
            order=k,
            d=self._derivatives(),
            x=layout.value(op.x[0], k),
            g=layout.jet(op.g, k),
            count=op.y.rows * layout.lanes,
        )
