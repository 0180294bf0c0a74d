"""Softmax and LogSoftmax."""

from __future__ import annotations

from rop.graph import Node
from rop.layers import LogSoftmax, Softmax
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class SoftmaxOperation(Operation):
    """Softmax and LogSoftmax over the channels of each pixel."""

    def __init__(self, plan: Plan, layer: Softmax | LogSoftmax, x: Value):
        self.reads(x)
        self.log = isinstance(layer, LogSoftmax)
        self.y = plan.like(x, frozenset(ORDERS) if x.levels & {1, 2} else frozenset({0}))
        self.probability = plan.rows_like(x, (0,)) if self.log else self.y.buffer


@lowers(Softmax, LogSoftmax)
def lower_softmax(plan: Plan, node: Node, layer: Softmax | LogSoftmax, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(SoftmaxOperation(plan, layer, inputs[0]))
