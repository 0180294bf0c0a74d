"""Batch normalisation."""

from __future__ import annotations

from rop.graph import Node
from rop.layers.batchnorm import BatchNorm
from rop.layers.norm import SampleNorm
from rop.lowering.linear_maps import in_order
from rop.lowering.plan import Plan
from rop.lowering.rectified import Rectifiable
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class ChannelMap(Rectifiable):
    """y = q c + β with numbers for each channel. Without batch statistics they are known before a pass starts."""

    frozen = True  # whether there are no sums over the batch

    def __init__(self, plan: Plan, layer: BatchNorm | SampleNorm, x: Value):
        self.layer = layer
        self.can_add = plan.pixel_lanes
        self.reads(x)
        shapes = layer.parameter_shapes()
        moving = x.levels & {1, 2} or shapes
        self.y = plan.value(x.shape, frozenset(ORDERS) if moving else frozenset({0}), x.needs_gradient or bool(shapes))
        self.channels = x.channels
        self.gamma_at = plan.graph.offset(layer, "weight") if "weight" in shapes else None
        self.beta_at = plan.graph.offset(layer, "bias") if "bias" in shapes else None
        self.adds = False  # whether the parameters' gradient is added to that of another use
        plan.channel_maps.append(self)

    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        self.adds = self.gamma_at is not None and not plan.first_use(self.layer, "weight")


class BatchNormOperation(ChannelMap):
    """Batch normalisation: in training mode its sums run over the whole batch, so it cuts a pass into stages."""

    layer: BatchNorm

    def __init__(self, plan: Plan, layer: BatchNorm, x: Value):
        super().__init__(plan, layer, x)
        self.frozen = not layer.uses_batch(plan.training)
        plan.normalisations.append(self)


@lowers(BatchNorm)
def lower_batchnorm(plan: Plan, node: Node, layer: BatchNorm, inputs: list[Value]) -> Value:
    """One operation, on rows in the user's order."""
    return plan.add(BatchNormOperation(plan, layer, in_order(plan, inputs[0])))
