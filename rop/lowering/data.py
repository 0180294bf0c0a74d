"""The net's input."""

from __future__ import annotations

import math

import numpy as np

from rop.graph import Node
from rop.layers import Conv2d
from rop.lowering.plan import Operation, Plan
from rop.lowering.values import Value


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


def data(plan: Plan, node: Node) -> Value:
    """The net's input; before a convolution it is stored with its border of zeros."""
    first = plan.only_user(node)
    border = first.padding if isinstance(first, Conv2d) and not plan.pixel_lanes else (0, 0)
    return plan.add(InputOperation(plan.value(plan.shapes[node], frozenset({0}), False, border)))
