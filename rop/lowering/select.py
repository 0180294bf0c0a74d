"""ReLU, leaky ReLU and max pooling."""

from __future__ import annotations

from rop.graph import Node
from rop.layers import MaxPool2d, ReLU
from rop.layers.relu import Rectifier
from rop.lowering.linear_maps import Windows, window_geometry
from rop.lowering.plan import Operation, Plan
from rop.lowering.rectified import Rectifiable
from rop.lowering.registry import lowers
from rop.lowering.values import Value


class Rectify(Operation):
    """ReLU and leaky ReLU that stand on their own."""

    keeps_output = keeps_gradient = False

    def __init__(self, plan: Plan, layer: Rectifier, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, x.levels)


class MaxPool(Windows):
    """Max pooling, and the ReLU before it: max(0, max x) chooses the same."""

    def __init__(self, plan: Plan, node: Node, layer: MaxPool2d, x: Value):
        super().__init__(plan, node, x)
        self.geometry = window_geometry(layer, x.shape[1:], self.y.shape[1:])
        self.relu = node.inputs[0] in plan.into_pool


@lowers(MaxPool2d)
def lower_max_pool(plan: Plan, node: Node, layer: MaxPool2d, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(MaxPool(plan, node, layer, inputs[0]))


@lowers(Rectifier)
def lower_rectifier(plan: Plan, node: Node, layer: Rectifier, inputs: list[Value]) -> Value:
    """A ReLU is fused into the max pooling after it or the operation before it, where it has no other neighbour."""
    (x,) = inputs
    if isinstance(layer, ReLU):
        if isinstance(plan.only_user(node), MaxPool2d):
            plan.into_pool.add(node)
            return x
        if isinstance(x.producer, Rectifiable) and plan.used_once(node.inputs[0]):
            x.producer.rectify()
            return x
    return plan.add(Rectify(plan, layer, x))
