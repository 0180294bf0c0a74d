"""Losses: one kernel each that writes order k of the seed, and order k of the energy from the seeds."""

from __future__ import annotations

from typing import Any

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import loss
from rop.layers import LOSSES, MSE, NLL, BCEWithLogits, CrossEntropy
from rop.layers.loss import Separable
from rop.lowering.loss import LossOperation

DENSE, LABELS, WEIGHT = Ref("dense", 0, 0), Ref("labels", 0, 0), Ref("weight", 0, 0)


class EmitLoss(Emitter):
    """What all losses have in common: each names its kernel, and the operands that only this kernel reads."""

    operation: LossOperation
    kernel: Any

    def own(self, k: int) -> dict[str, Operand]:
        """Operands beside those that all losses have."""
        raise NotImplementedError

    def reserve(self) -> None:
        self.weights = self.layout.buffer(self.operation, self.operation.x[0].pixels, (0,))

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        z = op.x[0]
        common: dict[str, Operand] = {
            "g": layout.rows(op.seed, k),
            "energy": Ref(f"energy{k}"),
            "order": k,
            "samples": Ref("samples"),
            "scale": Ref("scale", 0, 0),
            "omega": layout.rows(self.weights, 0),
            "pixels": z.pixels,
            "rows": z.channels,
            "lanes": layout.lanes,
        }
        code.tile(self.kernel, **common, **self.own(k))
        if k > 0:
            code.tile(
                loss.energy,
                result=Ref(f"energy{k}"),
                order=k,
                g=layout.jet(op.seed, k),
                z=layout.value(z, k),
                count=z.rows * layout.lanes,
            )

    def backward(self, code: Code, k: int, direction: int) -> None:
        """The seed is written by forward."""


@emits(CrossEntropy)
class EmitCrossEntropy(EmitLoss):
    """Reads labels or distributions, and keeps the softmax of the outputs."""

    kernel = loss.cross_entropy

    def own(self, k: int) -> dict[str, Operand]:
        op, layout = self.operation, self.layout
        return {
            "p": layout.rows(op.probability, 0),
            "z": layout.value(op.x[0], k),
            "labels": LABELS,
            "dense": DENSE,
            "weight": WEIGHT,
            "scratch": Ref("scratch"),
        }


@emits(NLL)
class EmitNLL(EmitLoss):
    """Linear in the outputs."""

    kernel = loss.negative_log_likelihood

    def own(self, k: int) -> dict[str, Operand]:
        return {"z": self.layout.order(self.operation.x[0], 0), "labels": LABELS, "weight": WEIGHT}


@emits(MSE)
class EmitMSE(EmitLoss):
    """Its gradient is linear in the outputs: order k of the seed reads order k only."""

    kernel = loss.squared_error

    def own(self, k: int) -> dict[str, Operand]:
        return {"z": self.layout.order(self.operation.x[0], k), "dense": DENSE, "weight": WEIGHT}


@emits(BCEWithLogits)
class EmitBCEWithLogits(EmitLoss):
    """Output by output, each with a weight of its own."""

    kernel = loss.binary_cross_entropy

    def reserve(self) -> None:
        self.weights = self.layout.buffer(self.operation, self.operation.x[0].rows, (0,))

    def own(self, k: int) -> dict[str, Operand]:
        return {"z": self.layout.value(self.operation.x[0], k), "dense": DENSE}


class EmitSeparable(EmitLoss):
    """Output by output, by the scalar function of the loss."""

    def reserve(self) -> None:
        super().reserve()
        layer = self.operation.layer
        assert isinstance(layer, Separable)
        self.kernel = loss.separable(layer.function, len(layer.parameters))
        self.parameter = float((*layer.parameters, 0.0)[0])

    def own(self, k: int) -> dict[str, Operand]:
        z = self.layout.value(self.operation.x[0], k)
        return {"z": z, "dense": DENSE, "weight": WEIGHT, "a": self.parameter}


for _kind in LOSSES.values():
    if issubclass(_kind, Separable):
        emits(_kind)(EmitSeparable)
