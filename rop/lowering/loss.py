"""Losses."""

from __future__ import annotations

from rop.layers import LOSSES, CrossEntropy, Loss
from rop.layers.kinds import kind_of
from rop.lowering.plan import Operation, Plan
from rop.lowering.values import Buffer, Value


def loss_kind(loss: Loss) -> type[Loss]:
    """The class as which a loss is computed; refuses one that the engine has no formulas for."""
    kind: type[Loss] = kind_of(loss, LOSSES.values(), "loss")
    return kind


class LossOperation(Operation):
    """The last operation: seeds the gradient of the output and reports the energies.

    All losses have this operation; each has an emitter of its own on every device, registered under its class.
    """

    probability: Buffer  # softmax of the outputs, which only cross-entropy keeps

    def __init__(self, plan: Plan, layer: Loss, x: Value):
        self.layer, self._kind = layer, loss_kind(layer)
        self.where = f"loss {type(layer).__name__}"
        self.reads(x)
        self.y = Value((), frozenset(), True, Buffer(0, ()), 0, 0)
        self.probability = plan.buffer(x.rows if self._kind is CrossEntropy else 0, (0,))

    @property
    def kind(self) -> type[Loss]:
        return self._kind

    @property
    def seed(self) -> Buffer:
        """The gradient of the outputs, which ``forward`` of the emitters writes."""
        (h,) = self.h
        assert h is not None
        return h

    def plan_backward(self, plan: Plan) -> None:
        if self.x[0].needs_gradient:
            self.plan_gradients(plan)
        else:
            self.h = [plan.rows_like(self.x[0])]
