"""Batch normalisation."""

from __future__ import annotations

from rop.graph import Node
from rop.layers.batchnorm import BatchNorm
from rop.lowering.linear_maps import in_order
from rop.lowering.plan import Plan
from rop.lowering.rectified import Rectifiable
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class BatchNormOperation(Rectifiable):
    """Batch normalisation: in training mode its sums run over the whole batch, so it cuts a pass into stages."""

    def __init__(self, plan: Plan, layer: BatchNorm, x: Value):
        self.layer = layer
        self.can_add = plan.pixel_lanes
        self.reads(x)
        moving = x.levels & {1, 2} or layer.affine
        self.y = plan.value(x.shape, frozenset(ORDERS) if moving else frozenset({0}), x.needs_gradient or layer.affine)
        self.channels = layer.num_features
        self.frozen = not plan.training
        self.gamma_at = plan.graph.offset(layer, "weight") if layer.affine else None
        self.beta_at = plan.graph.offset(layer, "bias") if layer.affine else None
        self.adds = False  # whether the parameters' gradient is added to that of another use
        plan.normalisations.append(self)

    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        self.adds = self.layer.affine and not plan.first_use(self.layer, "weight")


@lowers(BatchNorm)
def lower_batchnorm(plan: Plan, node: Node, layer: BatchNorm, inputs: list[Value]) -> Value:
    """One operation, on rows in the user's order."""
    return plan.add(BatchNormOperation(plan, layer, in_order(plan, inputs[0])))
