"""Average pooling, addition, concatenation and flattening: every order goes through the same map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rop.graph import Node
from rop.layers import AdaptiveAvgPool2d, Add, AvgPool2d, Concat, Flatten, Identity, MaxPool2d
from rop.layers.base import Shape
from rop.lowering.geometry import Geometry, adaptive_pairs
from rop.lowering.plan import Operation, Plan
from rop.lowering.rectified import Rectifiable
from rop.lowering.registry import lowers
from rop.lowering.values import Buffer, Value


class Windows(Operation):
    """What max and average pooling share: windows on an image."""

    def __init__(self, plan: Plan, node: Node, x: Value):
        self.reads(x)
        self.y = plan.value(plan.shapes[node], x.levels, x.needs_gradient)


class AveragePool(Windows):
    """Average pooling: the same weighted sums at every order."""

    def __init__(self, plan: Plan, node: Node, layer: AvgPool2d | AdaptiveAvgPool2d, x: Value):
        super().__init__(plan, node, x)
        self.layer = layer

    def shares(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Input pixel, output pixel and what the first contributes to the second."""
        image, output = self.x[0].shape[1:], self.y.shape[1:]
        if isinstance(self.layer, AdaptiveAvgPool2d):
            pixel_in, pixel_out = adaptive_pairs(image, output)
        else:
            pixel_in, pixel_out, _ = window_geometry(self.layer, image, output).triples()
        return pixel_in, pixel_out, (1 / self._counts(pixel_out))[pixel_out]

    def _counts(self, pixel_out: np.ndarray) -> np.ndarray:
        """Pixels of each window, among them those of the padding if they count."""
        if isinstance(self.layer, AdaptiveAvgPool2d) or not self.layer.count_include_pad:
            return np.maximum(np.bincount(pixel_out, minlength=self.y.pixels), 1)
        sides = zip(
            self.x[0].shape[1:],
            self.y.shape[1:],
            self.layer.kernel_size,
            self.layer.stride,
            self.layer.padding,
            strict=True,
        )
        rows, columns = (
            np.minimum(kernel, size + 2 * padding - stride * np.arange(count))
            for size, count, kernel, stride, padding in sides
        )
        return np.outer(rows, columns).ravel()


def window_geometry(layer: AvgPool2d | MaxPool2d, image: Shape, output: Shape) -> Geometry:
    """The windows of a pooling layer."""
    return Geometry(image, output, layer.kernel_size, layer.stride, layer.padding)


class PermuteOperation(Operation):
    """Brings the rows of a flattened image into the user's order."""

    def __init__(self, plan: Plan, x: Value):
        assert x.row_order is not None
        self.order = x.row_order  # row of x for each row of y
        self.reads(x)
        self.y = plan.value((x.rows,), x.levels, x.needs_gradient)


class Sum(Rectifiable):
    """Add: its gradient is that of every input, so they share it."""

    def __init__(self, plan: Plan, inputs: list[Value]):
        self.reads(*inputs)
        self.y = plan.like(inputs[0], frozenset().union(*(x.levels for x in inputs)))
        self.y.needs_gradient = any(x.needs_gradient for x in inputs)

    def claim(self, plan: Plan, x: Value) -> Buffer | None:
        if not x.needs_gradient:
            return None
        x.flow.gradients.append((self.delta, False))
        return self.delta


class Concatenation(Operation):
    """Concat: channels side by side in each pixel."""

    def __init__(self, plan: Plan, node: Node, inputs: list[Value]):
        self.reads(*inputs)
        levels: frozenset[int] = frozenset().union(*(x.levels for x in inputs))
        self.y = plan.value(plan.shapes[node], levels, any(x.needs_gradient for x in inputs))

    def parts(self) -> list[tuple[int, Value]]:
        """First channel in y, and input."""
        sizes = [x.channels for x in self.x]
        return [(sum(sizes[:i]), x) for i, x in enumerate(self.x)]


def in_order(plan: Plan, value: Value) -> Value:
    """The value with its rows in the user's order."""
    return value if value.row_order is None else plan.add(PermuteOperation(plan, value))


@lowers(AvgPool2d, AdaptiveAvgPool2d)
def lower_average_pool(plan: Plan, node: Node, layer: AvgPool2d | AdaptiveAvgPool2d, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(AveragePool(plan, node, layer, inputs[0]))


@lowers(Identity)
def lower_identity(plan: Plan, node: Node, layer: Identity, inputs: list[Value]) -> Value:
    """No operation."""
    return inputs[0]


@lowers(Flatten)
def lower_flatten(plan: Plan, node: Node, layer: Flatten, inputs: list[Value]) -> Value:
    """The same rows seen as features; channels and pixels are in the other order than the user's."""
    (x,) = inputs
    order = x.row_order
    if x.pixels > 1 and x.channels > 1:
        order = np.arange(x.rows).reshape(x.pixels, x.channels).T.ravel()
    return replace(x, shape=(x.rows,), pixels=1, channels=x.rows, row_order=order)


@lowers(Add)
def lower_add(plan: Plan, node: Node, layer: Add, inputs: list[Value]) -> Value:
    """One operation, on rows in an order that all inputs share."""
    orders = [x.row_order for x in inputs]
    if any(order is not None for order in orders) and not all(
        order is not None and orders[0] is not None and np.array_equal(order, orders[0]) for order in orders
    ):
        inputs = [in_order(plan, x) for x in inputs]
    return plan.add(Sum(plan, inputs))


@lowers(Concat)
def lower_concat(plan: Plan, node: Node, layer: Concat, inputs: list[Value]) -> Value:
    """One operation, on rows in the user's order."""
    return plan.add(Concatenation(plan, node, [in_order(plan, x) for x in inputs]))
