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
        d, count = self._derivatives(), layout.count(op.y.buffer)
        if k == 0:
            kernel = elementwise.activation(op.layer.function, len(op.layer.parameters))
            a, b = op.arguments()
            y, x = layout.rows(op.y.buffer, 0), layout.rows(op.x[0].buffer, 0)
            self.on_rows(code, kernel, op.y.buffer, y=y, d=d, x=x, count=count, a=a, b=b)
        elif k in op.y.levels:
            y, x_jet = layout.rows(op.y.buffer, k), layout.value(op.x[0], k)
            self.on_rows(code, elementwise.forward, op.y.buffer, y=y, order=k, d=d, x=x_jet, count=count)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        self.on_rows(
            code,
            elementwise.backward,
            op.y.buffer,
            h=layout.rows(op.only_h, k),
            order=k,
            d=self._derivatives(),
            x=layout.value(op.x[0], k),
            g=layout.jet(op.g, k),
            count=layout.count(op.y.buffer),
        )
