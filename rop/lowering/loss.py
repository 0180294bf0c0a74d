"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rop.devices.cpu.code import Buffer, Code, Operand, Ref
from rop.kernels.cpu import loss
from rop.layers import MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from rop.layers.kinds import kind_of
from rop.lowering.plan import Operation, Plan, Value

DENSE, LABELS = Ref("dense", 0, 0), Ref("labels", 0, 0)
Own = Callable[["LossOperation", Plan, int], dict[str, Operand]]

# Kernel of each loss, and what it reads beside what all of them read.
KERNELS: dict[type[Loss], tuple[Any, Own]] = {
    CrossEntropy: (
        loss.cross_entropy,
        lambda op, plan, k: {
            "p": plan.at(op.probability, 0),
            **plan.orders("z", op.x[0], k),
            "labels": LABELS,
            "dense": DENSE,
            "scratch": Ref("scratch"),
        },
    ),
    NLL: (loss.negative_log_likelihood, lambda op, plan, k: {"z0": plan.order(op.x[0], 0), "labels": LABELS}),
    MSE: (loss.squared_error, lambda op, plan, k: {"z": plan.order(op.x[0], k), "dense": DENSE}),
    BCEWithLogits: (loss.binary_cross_entropy, lambda op, plan, k: {**plan.orders("z", op.x[0], k), "dense": DENSE}),
}


class LossOperation(Operation):
    """The last node: seeds the gradient of the output and reports the energies."""

    probability: Buffer  # softmax of the outputs, which only cross-entropy keeps

    def __init__(self, plan: Plan, layer: Loss, x: Value):
        self.layer, self.kind = layer, kind_of(layer, KERNELS, "loss")
        self.reads(x)
        self.y = Value((), frozenset(), True, Buffer(0, {}), 0, 0)
        self.probability = plan.buffer(x.rows if self.kind is CrossEntropy else 0, (0,))

    def plan_rooms(self, plan: Plan) -> None:
        self.weights = plan.buffer(self.x[0].pixels, (0,))

    def plan_backward(self, plan: Plan) -> None:
        if self.x[0].needs_gradient:
            self.plan_gradients(plan)
        else:
            self.h = [plan.buffer(self.x[0].rows)]

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        z, g = self.x[0], self.h[0]
        assert g is not None
        common: dict[str, Operand] = {
            "g": plan.at(g, k),
            "energy": Ref(f"energy{k}"),
            "order": k,
            "weight": Ref("weight", 0, 0),
            "samples": Ref("samples"),
            "scale": Ref("scale", 0, 0),
            "omega": plan.at(self.weights, 0),
            "pixels": z.pixels,
            "rows": z.channels,
            "lanes": plan.lanes,
        }
        kernel, own = KERNELS[self.kind]
        code.tile(kernel, **common, **own(self, plan, k))
        if k > 0:
            code.tile(
                loss.energy,
                result=Ref(f"energy{k}"),
                order=k,
                g0=plan.at(g, 0),
                g1=plan.at(g, min(1, k)),
                **plan.orders("z", z, k, lowest=1),
                count=z.rows * plan.lanes,
            )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """The seed is written by forward."""
