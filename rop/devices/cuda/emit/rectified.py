"""ReLUs that are fused into the operation before them: what is masked by a launch of its own."""

from __future__ import annotations

from rop.devices.cuda.code import Code, Jet
from rop.kernels.cuda import select
from rop.lowering.plan import Operation
from rop.lowering.rectified import Rectifiable


def rectify(code: Code, operation: Rectifiable, orders: tuple[int, ...], y: Jet, x: Jet) -> None:
    """Orders of y are those of x, and 0 where the ReLU that is fused into the operation is off; y may be x."""
    code.launch(
        select.rectify(code.layout.dtype.type, orders=orders),
        y=y,
        x=x,
        mask=code.rows(operation.y.buffer, 0),
        slope=0.0,
    )


def rectify_gradient(code: Code, operation: Operation) -> None:
    """Takes the gradient of y back through the ReLU that is fused into the operation, unless y's user has done it."""
    if isinstance(operation, Rectifiable) and operation.masks_gradient:
        rectify(code, operation, code.orders, y=code.jet(operation.delta), x=code.jet(operation.g))
