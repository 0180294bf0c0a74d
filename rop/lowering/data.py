"""Data in."""

from __future__ import annotations

import math

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.graph import Node
from rop.kernels.cpu import memory
from rop.layers import Conv2d
from rop.lowering.plan import Operation, Plan, Value


class InputOperation(Operation):
    """Brings the data of a tile into lanes."""

    def __init__(self, y: Value):
        self.y = y

    def feature_of_row(self) -> np.ndarray | None:
        """Which feature of the user's array each row is, −1 for the border; None: row i is feature i."""
        y = self.y
        features: np.ndarray = np.moveaxis(np.arange(math.prod(y.shape)).reshape(y.shape), 0, -1)
        if y.border != (0, 0):
            features = np.pad(features, [(b, b) for b in y.border] + [(0, 0)], constant_values=-1)
        features = features.ravel()
        return None if np.array_equal(features, np.arange(features.size)) else features

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k == 0:
            order = self.feature_of_row()
            code.tile(
                memory.load,
                y=plan.at(self.y.buffer, 0),
                x=Ref("x", 0, 0),
                samples=Ref("samples"),
                order=0 if order is None else plan.tables.put(order),
                rows=self.y.rows,
                features=math.prod(self.y.shape),
                lanes=plan.lanes,
            )


def data(plan: Plan, node: Node) -> Value:
    """The net's input; before a convolution it is stored with its border of zeros."""
    first = plan.only_user(node)
    border = first.padding if isinstance(first, Conv2d) else (0, 0)
    return plan.add(InputOperation(plan.value(plan.shapes[node], frozenset({0}), False, border)))
