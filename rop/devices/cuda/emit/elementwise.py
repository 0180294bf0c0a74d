"""Activations: one launch forward and one backward for all orders."""

from __future__ import annotations

from typing import Any

from rop.devices.cuda.code import Code
from rop.devices.cuda.emit.base import Emitter, emits
from rop.kernels.cuda import elementwise
from rop.lowering.elementwise import Activation


@emits(Activation)
class EmitActivation(Emitter):
    """y = σ(x); every launch computes the derivatives of σ from x⁰ again, because reading them would take longer."""

    operation: Activation

    def _options(self, code: Code, orders: tuple[int, ...]) -> dict[str, Any]:
        layer = self.operation.layer
        return {
            "of": layer.function,
            "count": len(layer.parameters),
            "orders": orders,
            "levels": code.levels(self.operation.x[0]),
        }

    def _parameters(self) -> dict[str, float]:
        a, b = self.operation.arguments()
        return {"a": a, "b": b}

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            code.launch(
                elementwise.forward(self.dtype, **self._options(code, orders)),
                y=code.value(op.y),
                x=code.value(op.x[0]),
                **self._parameters(),
            )

    def backward(self, code: Code) -> None:
        op = self.operation
        if op.h[0] is not None:
            code.launch(
                elementwise.backward(self.dtype, **self._options(code, code.orders)),
                h=code.jet(op.h[0]),
                x=code.value(op.x[0]),
                g=code.jet(op.g),
                **self._parameters(),
            )
