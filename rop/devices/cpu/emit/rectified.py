"""ReLUs that are fused into the operation before them: what is masked by an instruction of its own."""

from __future__ import annotations

from rop.devices.cpu.code import Code
from rop.devices.cpu.memory import Layout
from rop.kernels.cpu import select
from rop.lowering.plan import Operation
from rop.lowering.rectified import Rectifiable
from rop.lowering.values import Buffer


def rectify(layout: Layout, code: Code, operation: Rectifiable, y: Buffer, x: Buffer, k: int) -> None:
    """Order k of y is that of x, and 0 where the ReLU that is fused into the operation is off; y may be x."""
    code.rows(
        select.rectify,
        y.rows,
        layout.row_size(y),
        y=layout.rows(y, k),
        x=layout.rows(x, k),
        mask=layout.rows(operation.y.buffer, 0),
        slope=0.0,
        count=layout.count(y),
    )


def rectify_gradient(layout: Layout, code: Code, operation: Operation, k: int) -> None:
    """Takes the gradient of y back through the ReLU that is fused into the operation, unless y's user has done it."""
    if isinstance(operation, Rectifiable) and operation.masks_gradient:
        rectify(layout, code, operation, operation.delta, operation.g, k)
