"""Losses."""

from __future__ import annotations

from typing import Any

from rop.devices.cuda.code import Code, Emitter, Part, Rooms, launched
from rop.kernels.cuda import loss
from rop.layers import MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from rop.lowering.loss import LossOperation

KERNELS: dict[type[Loss], Any] = {
    CrossEntropy: loss.cross_entropy,
    NLL: loss.negative_log_likelihood,
    MSE: loss.squared_error,
    BCEWithLogits: loss.binary_cross_entropy,
}


class EmitLoss(Emitter):
    """The last node: seeds the gradient of the output and reports the energies, all orders in one launch."""

    operation: LossOperation

    def prepare(self, rooms: Rooms) -> None:
        rooms.blocks = loss.blocks(self.operation.x[0].pixels, self.plan.lanes)
        self.blocks, self.kernel = rooms.blocks, launched(KERNELS, self.operation.kind)

    def forward(self, code: Code) -> None:
        op = self.operation
        z, g = op.x[0], op.h[0]
        assert g is not None
        kernel, targets = self._kernel(code)
        energies = {f"energy{k}": Part("energy", k * self.blocks, (self.blocks,)) for k in code.orders}
        code.launch(
            kernel,
            **code.jet("g", g),
            **code.value("z", z),
            **energies,
            **targets,
            weight=Part("weight"),
            samples=Part("samples", 0, (self.plan.lanes,)),
            scale=Part("scale"),
            pixels=z.pixels,
            rows=z.channels,
        )

    def _kernel(self, code: Code) -> tuple[Any, dict[str, Part]]:
        """The loss's kernel, and what only it reads."""
        options: dict[str, Any] = {"orders": code.orders, "levels": code.levels(self.operation.x[0])}
        name = "dense" if code.dense else "labels"
        targets = {name: Part(name)}
        if self.operation.kind is CrossEntropy:
            return (
                self.kernel(self.dtype, **options, dense=code.dense),
                {**targets, "p": code.rows(self.operation.probability, 0)},
            )
        return self.kernel(self.dtype, **options), targets

    def backward(self, code: Code) -> None:
        """The seed is written by forward."""
