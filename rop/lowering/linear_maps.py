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


class LinearMap(Operation):
    """Every order goes through the same map, alone: nothing is read again later."""

    keeps_inputs = keeps_output = keeps_gradient = False


class Windows(LinearMap):
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


class PermuteOperation(LinearMap):
    """Brings the rows of a flattened image into the user's order."""

    def __init__(self, plan: Plan, x: Value):
        assert x.row_order is not None
        self.order = x.row_order  # row of x for each row of y
        self.reads(x)
        self.y = plan.value((x.rows,), x.levels, x.needs_gradient)


class Sum(Rectifiable):
    """Add: its gradient is that of every input, so they share it."""

    keeps_inputs = keeps_gradient = False

    def __init__(self, plan: Plan, inputs: list[Value]):
        self.reads(*inputs)
        self.y = plan.like(inputs[0], frozenset().union(*(x.levels for x in inputs)))
        self.y.needs_gradient = any(x.needs_gradient for x in inputs)

    def claim(self, plan: Plan, x: Value) -> Buffer | None:
        if not x.needs_gradient:
            return None
        x.flow.gradients.append((self.delta, False))
        return self.delta


class Concatenation(LinearMap):
    """Concat: channels side by side in each pixel. On pixel lanes they are rows one after the other, so that inputs can
    be rows of y from the start, and their gradients rows of y's."""

    def __init__(self, plan: Plan, node: Node, inputs: list[Value]):
        self.reads(*inputs)
        levels: frozenset[int] = frozenset().union(*(x.levels for x in inputs))
        self.y = plan.value(plan.shapes[node], levels, any(x.needs_gradient for x in inputs))
        self.inside = [False] * len(inputs)  # which inputs are rows of y
        if plan.pixel_lanes:
            self._place_inputs()

    def _place_inputs(self) -> None:
        """Makes whole buffers that consist of one or more inputs, in their order, rows of y."""
        buffers = [x.buffer for x in self.x]
        i = 0
        while i < len(buffers):
            whole, _ = buffers[i].whole()
            end, rows = i, 0
            while end < len(buffers) and rows < whole.rows and buffers[end].whole() == (whole, rows):
                rows += buffers[end].rows
                end += 1
            fits = whole.pixels == self.y.buffer.pixels and whole.orders == self.y.buffer.orders
            if rows == whole.rows and fits and whole is not self.y.buffer:
                whole.inside = (self.y.buffer, sum(buffer.rows for buffer in buffers[:i]))
                self.inside[i:end] = [True] * (end - i)
            i = max(end, i + 1)

    def plan_gradients(self, plan: Plan) -> None:
        gradients: list[Buffer | None] = []
        for (first, x), inside in zip(self.parts(), self.inside, strict=True):
            if inside and x.needs_gradient:
                x.flow.gradients.append((self.g.part(first, x.rows), not self.y.flow.is_shared))
            gradients.append(None if inside else self.claim(plan, x))
        self.h = gradients

    def parts(self) -> list[tuple[int, Value]]:
        """First channel in y, and input."""
        sizes = [x.channels for x in self.x]
        return [(sum(sizes[:i]), x) for i, x in enumerate(self.x)]


class ToSamples(LinearMap):
    """Brings a map from pixel lanes to rows with a lane for each sample: (pixel, channel), or the user's order of
    features."""

    def __init__(self, plan: Plan, x: Value, flat: bool):
        self.reads(x)
        pixels = x.buffer.pixels
        buffer = plan.buffer(x.rows * pixels, x.levels)
        if flat:
            self.y = Value((x.rows * pixels,), x.levels, x.needs_gradient, buffer, 1, x.rows * pixels)
        else:
            self.y = Value(x.shape, x.levels, x.needs_gradient, buffer, pixels, x.channels)
        self.row_steps = (pixels, 1) if flat else (1, x.channels)  # rows of y from channel to channel, pixel to pixel


class ToMaps(LinearMap):
    """Brings an image back to pixel lanes, from rows (pixel, channel) with a lane for each sample."""

    def __init__(self, plan: Plan, x: Value):
        self.reads(x)
        self.y = plan.value(x.shape, x.levels, x.needs_gradient)
        self.row_steps = (1, x.channels)  # rows of x from channel to channel, pixel to pixel


def in_order(plan: Plan, value: Value) -> Value:
    """The value with its rows in the user's order."""
    return value if value.row_order is None else plan.add(PermuteOperation(plan, value))


def in_one_order(plan: Plan, values: list[Value]) -> list[Value]:
    """The values with their rows in one order: as they are if they share one, else in the user's."""
    orders = [x.row_order for x in values]
    if any(order is not None for order in orders) and not all(
        order is not None and orders[0] is not None and np.array_equal(order, orders[0]) for order in orders
    ):
        return [in_order(plan, x) for x in values]
    return values


def with_sample_lanes(plan: Plan, value: Value) -> Value:
    """The value with a lane for each sample, as losses read it."""
    return plan.add(ToSamples(plan, value, flat=False)) if value.buffer.pixels else in_order(plan, value)


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
    if x.buffer.pixels:
        return plan.add(ToSamples(plan, x, flat=True))
    order = x.row_order
    if x.pixels > 1 and x.channels > 1:
        order = np.arange(x.rows).reshape(x.pixels, x.channels).T.ravel()
    return replace(x, shape=(x.rows,), pixels=1, channels=x.rows, row_order=order)


@lowers(Add)
def lower_add(plan: Plan, node: Node, layer: Add, inputs: list[Value]) -> Value:
    """One operation, on rows in an order that all inputs share."""
    return plan.add(Sum(plan, in_one_order(plan, inputs)))


@lowers(Concat)
def lower_concat(plan: Plan, node: Node, layer: Concat, inputs: list[Value]) -> Value:
    """One operation, on rows in the user's order."""
    return plan.add(Concatenation(plan, node, [in_order(plan, x) for x in inputs]))
