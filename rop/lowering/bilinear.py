"""Linear and Conv2d: products with weights."""

from __future__ import annotations

import math

import numpy as np

from rop.graph import Node
from rop.layers import Conv2d, Linear
from rop.layers.base import Shape
from rop.lowering.geometry import Geometry
from rop.lowering.plan import Plan
from rop.lowering.rectified import Rectifiable
from rop.lowering.registry import lowers
from rop.lowering.values import Value

WEIGHT_ORDERS = (0, 1)  # w(t) = w + t v: the parameters have no order 2


class Products(Rectifiable):
    """What Linear and Conv2d have in common: y = W x + b at every pixel."""

    layer: Linear | Conv2d
    rows: int  # outputs and inputs (of a pixel); set by Linear and Conv2d
    inputs: int
    groups = 1

    def __init__(self, plan: Plan, layer: Linear | Conv2d, x: Value, shape: Shape, geometry: Geometry):
        self.layer, self.source, self.geometry = layer, x, geometry
        self.reads(x)
        x.flow.product_uses += 1
        self.pixels, self.image_pixels = math.prod(geometry.output), math.prod(geometry.image)
        self.group_rows, self.group_inputs = self.rows // self.groups, self.inputs // self.groups
        self.fan = geometry.taps * self.group_inputs
        self.weight_at = plan.graph.offset(layer, "weight")
        self.bias_at = plan.graph.offset(layer, "bias") if layer.bias else None
        self.y = plan.value(shape, frozenset({0, 1} | ({2} if x.levels & {1, 2} else set())), True)
        self.tied = sum(other.layer is layer for other in plan.graph.nodes) > 1
        self.adds_weight = self.adds_bias = False  # whether a gradient is added to that of another use

    def weight_index(self) -> np.ndarray:
        """(group, row, tap, channel) -> position in w."""
        shape = (self.groups, self.group_rows, self.group_inputs, self.geometry.taps)
        index = (self.weight_at + np.arange(math.prod(shape)).reshape(shape)).transpose(0, 1, 3, 2)
        if self.source.row_order is not None:  # rows of x in another order: the columns go along
            index = index[..., np.argsort(self.source.row_order)]
        return index

    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        self.adds_weight = not plan.first_use(self.layer, "weight")
        self.adds_bias = not plan.first_use(self.layer, "bias")


class LinearProducts(Products):
    """Linear: one pixel and one tap."""

    layer: Linear

    def __init__(self, plan: Plan, node: Node, layer: Linear, x: Value):
        self.rows, self.inputs = layer.out_features, layer.in_features
        super().__init__(plan, layer, x, plan.shapes[node], Geometry((1, 1), (1, 1)))


class ConvProducts(Products):
    """Conv2d. Where the border of x is stored, it takes the place of padding."""

    layer: Conv2d

    def __init__(self, plan: Plan, node: Node, layer: Conv2d, x: Value):
        self.can_add = plan.pixel_lanes
        self.rows, self.inputs, self.groups = layer.out_channels, layer.in_channels, layer.groups
        shape = plan.shapes[node]
        padding = (layer.padding[0] - x.border[0], layer.padding[1] - x.border[1])
        image = (x.shape[1] + 2 * x.border[0], x.shape[2] + 2 * x.border[1])
        super().__init__(
            plan,
            layer,
            x,
            shape,
            Geometry(image, (shape[1], shape[2]), layer.kernel_size, layer.stride, padding, layer.dilation),
        )


@lowers(Linear)
def lower_linear(plan: Plan, node: Node, layer: Linear, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(LinearProducts(plan, node, layer, inputs[0]))


@lowers(Conv2d)
def lower_conv(plan: Plan, node: Node, layer: Conv2d, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(ConvProducts(plan, node, layer, inputs[0]))
