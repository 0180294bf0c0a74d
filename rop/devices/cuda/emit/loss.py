"""Losses: one kernel each that writes the seed and the partial sums of the energy, all orders in one launch."""

from __future__ import annotations

from typing import Any, ClassVar

from rop.devices.cuda.code import Code, Part, jet_of
from rop.devices.cuda.emit.base import Emitter, emits
from rop.kernels.cuda import loss
from rop.kernels.cuda.compile import Factory
from rop.layers import LOSSES, MSE, NLL, BCEWithLogits, CrossEntropy
from rop.layers.loss import Separable
from rop.lowering.loss import LossOperation


class EmitLoss(Emitter):
    """The launch of a loss; each loss names its kernel."""

    operation: LossOperation
    kernel: ClassVar[Factory]

    def reserve(self) -> None:
        self.blocks = loss.blocks(self.operation.x[0].pixels, self.layout.lanes)
        self.layout.reserve("energy", self.blocks)

    def own(self, code: Code) -> dict[str, Any]:
        """Operands beside those that all losses have."""
        return {"weight": Part("weight")}

    def options(self, code: Code) -> dict[str, Any]:
        """Options of the kernel's factory."""
        return {"orders": code.orders, "levels": code.levels(self.operation.x[0])}

    def forward(self, code: Code) -> None:
        op = self.operation
        z, targets = op.x[0], "dense" if code.dense else "labels"
        code.launch(
            self.kernel(self.dtype, **self.options(code)),
            g=code.jet(op.seed),
            z=code.value(z),
            energy=jet_of(lambda k: Part("energy", k * self.blocks, (self.blocks,)), code.orders),
            **{targets: Part(targets)},
            **self.own(code),
            samples=Part("samples", 0, (self.layout.lanes,)),
            scale=Part("scale"),
            pixels=z.pixels,
            rows=z.channels,
        )

    def backward(self, code: Code) -> None:
        """The seed is written by forward."""


@emits(CrossEntropy)
class EmitCrossEntropy(EmitLoss):
    """Reads labels or distributions, and keeps the softmax of the outputs."""

    kernel = loss.cross_entropy

    def own(self, code: Code) -> dict[str, Any]:
        return {**super().own(code), "p": code.rows(self.operation.probability, 0)}

    def options(self, code: Code) -> dict[str, Any]:
        return {**super().options(code), "dense": code.dense}


@emits(NLL)
class EmitNLL(EmitLoss):
    """The seed does not depend on the outputs."""

    kernel = loss.negative_log_likelihood


@emits(MSE)
class EmitMSE(EmitLoss):
    """The seed is linear in the outputs."""

    kernel = loss.squared_error


@emits(BCEWithLogits)
class EmitBCEWithLogits(EmitLoss):
    """The seed of each output depends on that output alone; the weights are part of the targets."""

    kernel = loss.binary_cross_entropy

    def own(self, code: Code) -> dict[str, Any]:
        return {}


class EmitSeparable(EmitLoss):
    """The seed of each output depends on that output alone, by the scalar function of the loss."""

    kernel = loss.separable

    def own(self, code: Code) -> dict[str, Any]:
        return {**super().own(code), "a": float((*self._layer.parameters, 0.0)[0])}

    def options(self, code: Code) -> dict[str, Any]:
        layer = self._layer
        return {"of": layer.function, "count": len(layer.parameters), **super().options(code)}

    @property
    def _layer(self) -> Separable:
        layer = self.operation.layer
        assert isinstance(layer, Separable)
        return layer


for _kind in LOSSES.values():
    if issubclass(_kind, Separable):
        emits(_kind)(EmitSeparable)
