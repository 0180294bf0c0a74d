"""Activations: order 0 keeps σ′, σ″ and σ‴ for the other orders and the backward pass."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Operand
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import elementwise
from rop.lowering.elementwise import Activation


@emits(Activation)
class EmitActivation(Emitter):
    """y = σ(x)."""

    operation: Activation

    def reserve(self) -> None:
        self.derivatives = [self.layout.buffer(self.operation.y.rows, (0,)) for _ in range(3)]

    def _kept(self) -> dict[str, Operand]:
        return {f"d{i + 1}": self.layout.rows(buffer, 0) for i, buffer in enumerate(self.derivatives)}

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        kept, count = self._kept(), op.y.rows * layout.lanes
        if k == 0:
            kernel = elementwise.activation(op.layer.function, len(op.layer.parameters))
            a, b = op.arguments()
            y, x = layout.rows(op.y.buffer, 0), layout.rows(op.x[0].buffer, 0)
            code.tile(kernel, y=y, **kept, x=x, count=count, a=a, b=b)
        elif k in op.y.levels:
            del kept["d3"]
            code.tile(
                elementwise.forward,
                y=layout.rows(op.y.buffer, k),
                order=k,
                **kept,
                count=count,
                **layout.value("x", op.x[0], k, lowest=1),
            )

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        code.tile(
            elementwise.backward,
            h=layout.rows(op.only_h, k),
            order=k,
            **self._kept(),
            **layout.value("x", op.x[0], k, lowest=1),
            **layout.jet("g", op.g, k),
            count=op.y.rows * layout.lanes,
        )
