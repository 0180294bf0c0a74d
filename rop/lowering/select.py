"""ReLU, leaky ReLU and max pooling."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.graph import Node
from rop.kernels.cpu import select
from rop.layers import MaxPool2d, ReLU
from rop.layers.relu import Rectifier
from rop.lowering.bilinear import Products
from rop.lowering.linear_maps import Windows, window_geometry
from rop.lowering.plan import Operation, Plan, Value


class Rectify(Operation):
    """ReLU and leaky ReLU that stand on their own."""

    def __init__(self, plan: Plan, layer: Rectifier, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, x.levels)

    def _pass(self, plan: Plan, code: Code, y: Ref, x: Ref) -> None:
        code.tile(
            select.rectify,
            y=y,
            x=x,
            mask=plan.at(self.x[0].buffer, 0),
            slope=float(self.layer.negative_slope),
            count=self.y.rows * plan.lanes,
        )

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k in self.y.levels:
            self._pass(plan, code, plan.at(self.y.buffer, k), plan.at(self.x[0].buffer, k))

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        self._pass(plan, code, plan.at(self.only_h, k), plan.at(self.g, k))


class MaxPool(Windows):
    """Max pooling, and the ReLU before it: max(0, max x) chooses the same."""

    def __init__(self, plan: Plan, node: Node, layer: MaxPool2d, x: Value):
        super().__init__(plan, node, x)
        self.geometry = window_geometry(layer, x.shape[1:], self.y.shape[1:])
        self.relu = node.inputs[0] in plan.into_pool

    def plan_rooms(self, plan: Plan) -> None:
        self.chosen = plan.buffer(self.y.rows, (0,))

    def entries(self, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.geometry.triples()

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        common: dict[str, Operand] = {
            "y": plan.at(self.y.buffer, k),
            "chosen": plan.at(self.chosen, 0),
            "x": plan.at(self.x[0].buffer, k),
            "bounds": self.bounds(plan)[0],
            "pixels": self.y.pixels,
            "size": self.y.channels * plan.lane_bytes,
        }
        if k == 0:
            code.tile(select.pool_largest, **common, relu=int(self.relu))
        else:
            code.tile(select.pool_chosen, **common)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        code.tile(
            select.pool_returned,
            h=plan.at(self.only_h, k),
            chosen=plan.at(self.chosen, 0),
            g=plan.at(self.g, k),
            bounds=self.bounds(plan)[1],
            pixels=self.x[0].pixels,
            size=self.y.channels * plan.lane_bytes,
        )


def rectifier(plan: Plan, node: Node, layer: Rectifier, x: Value) -> Value:
    """A ReLU disappears into the max pooling after it or the product before it, where it has no other neighbour."""
    if isinstance(layer, ReLU):
        if isinstance(plan.only_user(node), MaxPool2d):
            plan.into_pool.add(node)
            return x
        if isinstance(x.producer, Products) and plan.used_once(node.inputs[0]):
            x.producer.relu = x.flow.rectified = True
            return x
    return plan.add(Rectify(plan, layer, x))
