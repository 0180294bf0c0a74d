"""Activations."""

from __future__ import annotations

from rop.graph import Node
from rop.layers.elementwise import Elementwise
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class Activation(Operation):
    """y = σ(x)."""

    keeps_output = False

    def __init__(self, plan: Plan, layer: Elementwise, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, frozenset(ORDERS) if 1 in x.levels or 2 in x.levels else frozenset({0}))

    def arguments(self) -> tuple[float, float]:
        """The parameters of σ as kernels take them: two numbers, of which a function without parameters reads none."""
        a, b = (*self.layer.parameters, 0.0, 0.0)[:2]
        return float(a), float(b)


@lowers(Elementwise)
def lower_activation(plan: Plan, node: Node, layer: Elementwise, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(Activation(plan, layer, inputs[0]))
