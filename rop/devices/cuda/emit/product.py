"""Products of two values: one launch for the product, and one for the gradient of each factor."""

from __future__ import annotations

from rop.devices.cuda.code import Code, Jet
from rop.devices.cuda.emit.base import Emitter, emits
from rop.kernels.cuda import product
from rop.lowering.product import Multiplication
from rop.lowering.values import Value


@emits(Multiplication)
class EmitMultiplication(Emitter):
    """y = a ⊙ b, and likewise the gradients of a and b."""

    operation: Multiplication

    def forward(self, code: Code) -> None:
        op, orders = self.operation, code.present(self.operation.y.levels)
        if orders:
            a, b = sorted(op.x, key=lambda x: -len(x.levels))  # so that fewer kernels are compiled
            kernel = product.products(self.dtype, orders=orders, levels=code.levels(a), others=code.levels(b))
            code.launch(kernel, y=code.value(op.y), a=code.value(a), b=code.value(b), rows=self._rows(op.y, a, b))

    def backward(self, code: Code) -> None:
        op = self.operation
        for x, other, h in zip(op.x, op.x[::-1], op.h, strict=True):
            if h is not None:
                self._gradient(code, code.jet(h), x, other)

    def _gradient(self, code: Code, h: Jet, x: Value, other: Value) -> None:
        op, levels = self.operation, {"levels": code.levels(), "others": code.levels(other)}
        kernel = product.products(self.dtype, orders=code.orders, **levels)
        code.launch(kernel, y=h, a=code.jet(op.g), b=code.value(other), rows=self._rows(x, op.y, other))

    def _rows(self, to: Value, a: Value, b: Value) -> product.Rows:
        """How rows of the factors belong to those of the result, of which each is a sum over what is repeated."""
        y = self.operation.y
        steps = [step for x in (a, b) for step in (x.channels if x.pixels > 1 else 0, 1 if x.channels > 1 else 0)]
        return product.Rows(to.channels, y.pixels // to.pixels, y.channels // to.channels, *steps)
