"""Average pooling, addition, concatenation and flattening: every order goes through the same map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.graph import Node
from rop.kernels.cpu import linear_maps
from rop.layers import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from rop.layers.base import Shape
from rop.lowering.geometry import Geometry, adaptive_pairs
from rop.lowering.plan import Operation, Plan, Value


class Windows(Operation):
    """What max and average pooling share: tables of windows, one entry per (output pixel, input pixel)."""

    def __init__(self, plan: Plan, node: Node, x: Value):
        self.reads(x)
        self.y = plan.value(plan.shapes[node], x.levels, x.needs_gradient)
        self._bounds: tuple[int, int] | None = None

    def entries(self, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Input pixel, output pixel and second word of each entry."""
        raise NotImplementedError

    def bounds(self, plan: Plan) -> tuple[int, int]:
        """The table by output pixel, and the table by input pixel."""
        if self._bounds is None:
            pixel_in, pixel_out, word = self.entries(plan)
            size = self.y.channels * plan.lane_bytes
            forward = plan.tables.bounded(np.stack([pixel_in * size, word], axis=1), pixel_out, self.y.pixels)
            order = np.argsort(pixel_in, kind="stable")
            back = np.stack([pixel_out[order] * size, word[order]], axis=1)
            self._bounds = forward, plan.tables.bounded(back, pixel_in[order], self.x[0].pixels)
        return self._bounds


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

    def entries(self, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pixel_in, pixel_out, share = self.shares()
        return pixel_in, pixel_out, share.astype(plan.dtype).view(f"i{plan.itemsize}").astype(np.int64)

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

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k in self.y.levels:
            code.tile(
                linear_maps.weighted_sum,
                y=plan.at(self.y.buffer, k),
                x=plan.at(self.x[0].buffer, k),
                bounds=self.bounds(plan)[0],
                pixels=self.y.pixels,
                size=self.y.channels * plan.lane_bytes,
            )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        code.tile(
            linear_maps.weighted_sum,
            y=plan.at(self.only_h, k),
            x=plan.at(self.g, k),
            bounds=self.bounds(plan)[1],
            pixels=self.x[0].pixels,
            size=self.y.channels * plan.lane_bytes,
        )


def window_geometry(layer: AvgPool2d | MaxPool2d, image: Shape, output: Shape) -> Geometry:
    return Geometry(image, output, layer.kernel_size, layer.stride, layer.padding)


class PermuteOperation(Operation):
    """Brings the rows of a flattened image into the user's order."""

    def __init__(self, plan: Plan, x: Value):
        self.reads(x)
        self.y = plan.value((x.rows,), x.levels, x.needs_gradient)

    def _pass(self, plan: Plan, code: Code, y: Ref, x: Ref, order: np.ndarray) -> None:
        code.tile(linear_maps.permute_rows, y=y, x=x, order=plan.tables.put(order), rows=self.y.rows, lanes=plan.lanes)

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        order = self.x[0].row_order
        assert order is not None
        if k in self.y.levels:
            self._pass(plan, code, plan.at(self.y.buffer, k), plan.at(self.x[0].buffer, k), order)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        order = self.x[0].row_order
        assert order is not None
        self._pass(plan, code, plan.at(self.only_h, k), plan.at(self.g, k), np.argsort(order))


class Sum(Operation):
    """Add: its gradient is that of every input, so they share it."""

    def __init__(self, plan: Plan, inputs: list[Value]):
        self.reads(*inputs)
        self.y = plan.like(inputs[0], frozenset().union(*(x.levels for x in inputs)))
        self.y.needs_gradient = any(x.needs_gradient for x in inputs)

    def plan_gradients(self, plan: Plan) -> None:
        for x in self.x:
            if x.needs_gradient:
                x.flow.gradients.append((self.g, False))

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        present = [x for x in self.x if k in x.levels]
        count = self.y.rows * plan.lanes
        for i, x in enumerate(present):
            if i == 0:
                code.tile(
                    linear_maps.copy_rows,
                    y=plan.at(self.y.buffer, k),
                    x=plan.at(x.buffer, k),
                    pixels=1,
                    y_step=0,
                    x_step=0,
                    count=count,
                )
            else:
                code.tile(linear_maps.add_rows, y=plan.at(self.y.buffer, k), x=plan.at(x.buffer, k), count=count)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """Nothing to do: see plan_gradients."""


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

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        for first, x in self.parts():
            code.tile(
                linear_maps.copy_rows,
                y=plan.at(self.y.buffer, k, first),
                x=plan.order(x, k),
                pixels=self.y.pixels,
                y_step=self.y.channels * plan.lane_bytes,
                x_step=x.channels * plan.lane_bytes,
                count=x.channels * plan.lanes,
            )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        for (first, x), h in zip(self.parts(), self.h, strict=True):
            if h is not None:
                code.tile(
                    linear_maps.copy_rows,
                    y=plan.at(h, k),
                    x=plan.at(self.g, k, first),
                    pixels=self.y.pixels,
                    y_step=x.channels * plan.lane_bytes,
                    x_step=self.y.channels * plan.lane_bytes,
                    count=x.channels * plan.lanes,
                )


def in_order(plan: Plan, value: Value) -> Value:
    """The value with its rows in the user's order."""
    return value if value.row_order is None else plan.add(PermuteOperation(plan, value))


def flatten(x: Value) -> Value:
    """The same rows seen as features; channels and pixels are in the other order than the user's."""
    order = x.row_order
    if x.pixels > 1 and x.channels > 1:
        order = np.arange(x.rows).reshape(x.pixels, x.channels).T.ravel()
    return replace(x, shape=(x.rows,), pixels=1, channels=x.rows, row_order=order)


def add_up(plan: Plan, inputs: list[Value]) -> Value:
    orders = [x.row_order for x in inputs]
    if any(order is not None for order in orders) and not all(
        order is not None and orders[0] is not None and np.array_equal(order, orders[0]) for order in orders
    ):
        inputs = [in_order(plan, x) for x in inputs]
    return plan.add(Sum(plan, inputs))
