"""Losses."""
from __future__ import annotations

from rop.kernels.cpu import loss
from rop.layers import MSE, NLL, BCEWithLogits, CrossEntropy, Loss
from rop.lowering.plan import Operation, Plan, Value
from rop.program import Buffer, Code, Operand, Ref


class LossOperation(Operation):
    """The last node: seeds the gradient of the output and reports the energies."""

    def __init__(self, plan: Plan, layer: Loss, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = Value((), frozenset(), True, Buffer(0, {}), 0, 0)
        self.probability = plan.buffer(x.rows, (0,)) if isinstance(layer, CrossEntropy) else None

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
            "g": plan.at(g, k), "energy": Ref(f"energy{k}"), "order": k, "weight": Ref("weight", 0, 0),
            "samples": Ref("samples"), "scale": Ref("scale", 0, 0), "omega": plan.at(self.weights, 0),
            "pixels": z.pixels, "rows": z.channels, "lanes": plan.lanes}
        dense, labels = Ref("dense", 0, 0), Ref("labels", 0, 0)
        if isinstance(self.layer, CrossEntropy):
            assert self.probability is not None
            code.tile(loss.cross_entropy, **common, p=plan.at(self.probability, 0), **plan.orders("z", z, k),
                      labels=labels, dense=dense, scratch=Ref("scratch"))
        elif isinstance(self.layer, NLL):
            code.tile(loss.negative_log_likelihood, **common, z0=plan.order(z, 0), labels=labels)
        elif isinstance(self.layer, MSE):
            code.tile(loss.squared_error, **common, z=plan.order(z, k), dense=dense)
        elif isinstance(self.layer, BCEWithLogits):
            code.tile(loss.binary_cross_entropy, **common, **plan.orders("z", z, k), dense=dense)
        if k > 0:
            code.tile(loss.energy, result=Ref(f"energy{k}"), order=k, g0=plan.at(g, 0), g1=plan.at(g, min(1, k)),
                      **plan.orders("z", z, k, lowest=1), count=z.rows * plan.lanes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """The seed is written by forward."""
