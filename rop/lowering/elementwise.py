"""Activations."""

from __future__ import annotations

from rop.devices.cpu.code import ORDERS, Code, Operand
from rop.kernels.cpu import elementwise
from rop.layers.elementwise import Elementwise
from rop.lowering.plan import Operation, Plan, Value


class Activation(Operation):
    """y = σ(x); on the CPU order 0 keeps σ′, σ″ and σ‴."""

    def __init__(self, plan: Plan, layer: Elementwise, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, frozenset(ORDERS) if 1 in x.levels or 2 in x.levels else frozenset({0}))

    def plan_rooms(self, plan: Plan) -> None:
        self.derivatives = [plan.buffer(self.y.rows, (0,)) for _ in range(3)]

    def _kept(self, plan: Plan) -> dict[str, Operand]:
        return {f"d{i + 1}": plan.at(buffer, 0) for i, buffer in enumerate(self.derivatives)}

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        x, kept, count = self.x[0], self._kept(plan), self.y.rows * plan.lanes
        if k == 0:
            a, b = (*self.layer.parameters, 0.0, 0.0)[:2]
            kernel = elementwise.activation(self.layer.function, len(self.layer.parameters))
            code.tile(
                kernel, y=plan.at(self.y.buffer, 0), **kept, x=plan.at(x.buffer, 0), count=count, a=float(a), b=float(b)
            )
        elif k in self.y.levels:
            del kept["d3"]
            code.tile(
                elementwise.forward,
                y=plan.at(self.y.buffer, k),
                order=k,
                **kept,
                count=count,
                **plan.orders("x", x, k, lowest=1),
            )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        code.tile(
            elementwise.backward,
            h=plan.at(self.only_h, k),
            order=k,
            **self._kept(plan),
            **plan.orders("x", self.x[0], k, lowest=1),
            **plan.gradients_of("g", self.g, k),
            count=self.y.rows * plan.lanes,
        )
