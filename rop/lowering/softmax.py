"""Softmax and LogSoftmax."""

from __future__ import annotations

from rop.devices.cpu.code import ORDERS, Code, Operand, Ref
from rop.kernels.cpu import softmax
from rop.layers import LogSoftmax, Softmax
from rop.lowering.plan import Operation, Plan, Value


class SoftmaxOperation(Operation):
    """Softmax and LogSoftmax over the channels of each pixel."""

    def __init__(self, plan: Plan, layer: Softmax | LogSoftmax, x: Value):
        self.reads(x)
        self.log = isinstance(layer, LogSoftmax)
        self.y = plan.like(x, frozenset(ORDERS) if x.levels & {1, 2} else frozenset({0}))
        self.probability = plan.buffer(x.rows, (0,)) if self.log else self.y.buffer

    def _sizes(self, plan: Plan) -> dict[str, Operand]:
        return {"pixels": self.y.pixels, "rows": self.y.channels, "lanes": plan.lanes, "scratch": Ref("scratch")}

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        common: dict[str, Operand] = {
            "y": plan.at(self.y.buffer, k),
            "order": k,
            "y0": plan.at(self.y.buffer, 0),
            **plan.orders("x", self.x[0], k),
            **self._sizes(plan),
        }
        if self.log:
            code.tile(softmax.log_softmax, **common, p=plan.at(self.probability, 0))
        else:
            code.tile(softmax.softmax, **common)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        common: dict[str, Operand] = {
            "h": plan.at(self.only_h, k),
            "order": k,
            **plan.gradients_of("g", self.g, k),
            **self._sizes(plan),
        }
        if self.log:
            code.tile(
                softmax.log_softmax_backward,
                **common,
                p=plan.at(self.probability, 0),
                **plan.orders("y", self.y, k, lowest=1),
            )
        else:
            code.tile(softmax.softmax_backward, **common, **plan.orders("p", self.y, k))
