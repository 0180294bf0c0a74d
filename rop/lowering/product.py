"""Products of two values."""

from __future__ import annotations

from rop.graph import Node
from rop.layers import Mul
from rop.lowering.linear_maps import in_one_order, in_order
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value, cauchy_pairs


class Multiplication(Operation):
    """y = a ⊙ b; each input has all channels and pixels of y, or one for all of them."""

    keeps_output = False

    def __init__(self, plan: Plan, node: Node, a: Value, b: Value):
        self.can_add = plan.pixel_lanes
        self.reads(a, b)
        levels = frozenset(k for k in ORDERS if cauchy_pairs(k, a.levels, b.levels))
        self.y = plan.value(plan.shapes[node], levels, a.needs_gradient or b.needs_gradient)
        self.y.row_order = next(x.row_order for x in self.x if x.channels == self.y.channels)


@lowers(Mul)
def lower_mul(plan: Plan, node: Node, layer: Mul, inputs: list[Value]) -> Value:
    """One operation. Vectors may have their rows in any order that they share; those of a map have one of their own."""
    a, b = inputs
    if len(plan.shapes[node]) > 1:
        a, b = in_order(plan, a), in_order(plan, b)
    elif a.rows == b.rows:
        a, b = in_one_order(plan, [a, b])
    return plan.add(Multiplication(plan, node, a, b))
