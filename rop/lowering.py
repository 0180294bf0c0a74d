"""From a graph to instructions: what each family of layers contributes to a pass, order by order.

A ``Plan`` walks the graph once and makes an *operation* per node (several nodes may share one: a ReLU disappears into
the product before it). ``operation.forward(code, k)`` and ``.backward(code, k)`` emit the instructions of order k. The law
of the engine is visible here: order k reads orders ≤ k and writes order k.

Structural zeros: ``value.levels`` holds the orders that are not identically zero. Data has {0}; behind a linear layer
and a ReLU order 2 is still zero; products with a zero factor are never emitted.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rop.graph import Graph, Node
from rop.kernels.cpu import batchnorm, bilinear, elementwise, linear_maps, loss, memory, select, softmax
from rop.kernels.cpu.gemm import DOT_COLUMNS, PANEL
from rop.kernels.cpu.vector import BLOCK
from rop.layers import (
    MSE,
    NLL,
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BCEWithLogits,
    Concat,
    Conv2d,
    CrossEntropy,
    Flatten,
    Identity,
    Linear,
    LogSoftmax,
    Loss,
    MaxPool2d,
    ReLU,
    Softmax,
)
from rop.layers.base import Layer, Shape
from rop.layers.batchnorm import BatchNorm
from rop.layers.elementwise import Elementwise
from rop.layers.relu import Rectifier
from rop.program import ORDERS, Buffer, Code, Operand, Ref, Tables

WIDE = 4096                 # weights of a linear layer from which its gradient is a matrix product over all tiles
REGROUP = 48                # fan-in from which copying the output gradient into blocks pays
SMALL = 6000                # numbers that are not worth dividing among threads
SLICES = 8


@dataclass(eq=False)
class Flow:
    """What goes back to a value: a gradient from each of its uses, then their total."""

    uses: int = 0
    product_uses: int = 0
    gradients: list[tuple[Buffer, bool]] = field(default_factory=list)      # and whether it may be added to
    total: Buffer | None = None
    rectified: bool = False                  # a ReLU went into the product that made the value

    @property
    def masked_by_user(self) -> bool:
        """Whether the product that alone uses a rectified value masks its gradient."""
        return self.rectified and self.uses == 1 and self.product_uses == 1


@dataclass(eq=False)
class Value:
    """What a node gives: rows (pixel, channel) in the planes. Views of the same rows share a flow."""

    shape: Shape
    levels: frozenset[int]
    needs_gradient: bool
    buffer: Buffer
    pixels: int
    channels: int
    flow: Flow = field(default_factory=Flow)
    producer: Operation | None = None
    row_order: np.ndarray | None = None      # row of each feature in the user's order, if it is not 0, 1, 2, …
    border: tuple[int, int] = (0, 0)         # pixels of zeros stored around an image (data before a convolution)

    @property
    def rows(self) -> int:
        return self.pixels * self.channels


@dataclass(frozen=True)
class Slot:
    """A piece of the parameters' gradient that is one sum for the whole batch."""

    at: int                                  # in the space "batch"
    index: np.ndarray                        # position in w of each number
    add: bool                                # a second use of tied parameters


@dataclass(frozen=True)
class Partial:
    """A piece of the parameters' gradient that each tile has a share of."""

    at: int
    add: bool


class Plan:
    """The layout of a network and its operations."""

    def __init__(self, graph: Graph, input_shape: Shape, training: bool, loss_function: Loss | None, dtype: Any):
        self.graph, self.training = graph, training
        self.itemsize = np.dtype(dtype).itemsize
        self.dtype = np.dtype(dtype)
        self.lanes = 0                       # chosen when the size of the planes is known
        self.tables = Tables()
        self.plane_rows = dict.fromkeys(ORDERS, 0)
        self.scratch_rows = 3
        self.sizes = dict.fromkeys(("batch", "packed", "panels", "sums", "channels", "totals", "state"), 0)
        self.partial_index: dict[bool, list[np.ndarray]] = {False: [], True: []}      # by Partial.add
        self.pack_index: list[np.ndarray] = []
        self.slots: list[Slot] = []
        self.normalisations: list[BatchNormOperation] = []
        self.shapes = graph.shapes(input_shape)
        self.gradients = loss_function is not None
        self._packing: tuple[int, int] | None = None
        self._seen: set[tuple[Layer, str]] = set()
        self._users: dict[Node, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for source in node.inputs:
                self._users[source].append(node)
        self.into_pool: set[Node] = set()    # ReLUs that the max pooling after them takes over
        self.values: dict[Node, Value] = {}
        self.operations: list[Operation] = []
        for node in graph.nodes:
            self.values[node] = self._lower(node)
        self.output = self.in_order(self.values[graph.output])
        if loss_function is not None:
            self.operations.append(LossOperation(self, loss_function, self.output))
            for operation in reversed(self.operations):
                operation.plan_backward(self)

    # ------------------------------------------------------------------------------------------------------- buffers
    def buffer(self, rows: int, orders: Iterable[int] = ORDERS) -> Buffer:
        """Rows in the planes of these orders."""
        start = {k: self.plane_rows[k] for k in orders}
        for k in start:
            self.plane_rows[k] += rows
        return Buffer(rows, start)

    def reserve(self, space: str, count: int) -> int:
        """Numbers in a space for the whole batch (or, for sums, per tile); returns where they start."""
        start = self.sizes[space]
        self.sizes[space] += count
        return start

    def value(self, shape: Shape, levels: frozenset[int], needs_gradient: bool,
              border: tuple[int, int] = (0, 0)) -> Value:
        sides = [n + 2 * b for n, b in zip(shape[1:], border, strict=True)] if border != (0, 0) else shape[1:]
        pixels = math.prod(sides)
        return Value(shape, levels, needs_gradient, self.buffer(pixels * shape[0], levels), pixels, shape[0],
                     border=border)

    def like(self, x: Value, levels: frozenset[int]) -> Value:
        """A value of the same shape, with its rows in the same order."""
        y = self.value(x.shape, levels, x.needs_gradient)
        y.pixels, y.channels, y.row_order = x.pixels, x.channels, x.row_order
        return y

    def partial(self, index: np.ndarray, add: bool) -> Partial:
        """A place in each tile's partial sums for numbers that belong to these positions of w."""
        start = sum(map(len, self.partial_index[add]))
        self.partial_index[add].append(index)
        return Partial(start, add)

    @property
    def zero_rows(self) -> int:
        """Rows of zeros that stand for whatever order of whatever value is zero."""
        return max(value.rows for value in self.values.values())

    @property
    def coupled(self) -> bool:
        """Whether samples influence each other: batch statistics."""
        return self.training and bool(self.normalisations)

    @property
    def has_wide(self) -> bool:
        return any(isinstance(operation, Products) and operation.is_wide for operation in self.operations)

    @property
    def partial_size(self) -> int:
        return sum(len(index) for add in (False, True) for index in self.partial_index[add])

    def first_use(self, layer: Layer, key: str) -> bool:
        """Whether this parameter is met for the first time (otherwise it is tied)."""
        new = (layer, key) not in self._seen
        self._seen.add((layer, key))
        return new

    # ------------------------------------------------------------------------------------------------ nodes to operations
    def _lower(self, node: Node) -> Value:
        layer = node.layer
        if layer is None:
            return self._input(node)
        for kind, lower in LOWERINGS.items():
            if isinstance(layer, kind):
                return lower(self, node, layer, [self.values[source] for source in node.inputs])
        raise NotImplementedError(f"{self.graph.where(node)}: no lowering for {type(layer).__name__}")

    def _input(self, node: Node) -> Value:
        first = self.only_user(node)
        shape = self.shapes[node]
        border = first.padding if isinstance(first, Conv2d) else (0, 0)
        operation = InputOperation(self.value(shape, frozenset({0}), False, border))
        self.operations.append(operation)
        return operation.y

    def add(self, operation: Operation) -> Value:
        self.operations.append(operation)
        operation.y.producer = operation
        return operation.y

    def only_user(self, node: Node) -> Layer | None:
        """The layer that alone uses a node's value."""
        users = self._users[node]
        return users[0].layer if len(users) == 1 and node is not self.graph.output else None

    def in_order(self, value: Value) -> Value:
        """The value with its rows in the user's order."""
        return value if value.row_order is None else self.add(PermuteOperation(self, value))

    # ---------------------------------------------------------------------------------------------------------- references
    @property
    def lane_bytes(self) -> int:
        return self.lanes * self.itemsize

    def at(self, buffer: Buffer, k: int, row: int = 0) -> Ref:
        return Ref(f"plane{k}", (buffer.start[k] + row) * self.lane_bytes)

    def order(self, value: Value, k: int, row: int = 0) -> Ref:
        """Order k of a value, zeros if it has none."""
        return self.at(value.buffer, k, row) if k in value.levels else Ref("zeros", 0, 0)

    def orders(self, name: str, value: Value, k: int, lowest: int = 0) -> dict[str, Operand]:
        """Operands name0, name1, name2 of a value in a pass of order k; orders above k are not read."""
        return {f"{name}{j}": self.order(value, min(j, k)) for j in ORDERS if j >= lowest}

    def gradients_of(self, name: str, buffer: Buffer, k: int) -> dict[str, Operand]:
        return {f"{name}{j}": self.at(buffer, min(j, k)) for j in ORDERS}

    def parameter(self, k: int, direction: int, offset: int) -> Ref:
        """Order 0 (w) or 1 (v) of the parameters from an offset on."""
        return Ref("w" if k == 0 else f"v{direction}", offset * self.itemsize, 0)

    def panel(self, space: str, j: int, direction: int, start: int) -> Ref:
        """Order j of the packed weights: those of w, or of a direction."""
        return Ref(f"{space}{0 if j == 0 else 1 + direction}", start * self.itemsize, 0)

    def share(self, partial: Partial, slot: int, offset: int = 0) -> Ref:
        """A tile's share of a piece of the gradient, for the result that is collected from this slot."""
        before = sum(map(len, self.partial_index[False])) if partial.add else 0
        return Ref(f"partial{slot}", (before + partial.at + offset) * self.itemsize)

    def packing(self) -> tuple[int, int]:
        """Address and length of the index that brings w into panels."""
        if self._packing is None:
            index = np.concatenate([*self.pack_index, np.zeros(0, np.int64)])
            self._packing = self.tables.put(index), index.size
        return self._packing

    def batch(self, space: str, start: int, offset: int = 0, size: int | None = None) -> Ref:
        return Ref(space, (start + offset) * (size or self.itemsize), 0)


class Operation:
    """One step of a pass. ``x`` are the values it reads, ``y`` the one it gives."""

    x: tuple[Value, ...] = ()
    y: Value

    def reads(self, *values: Value) -> None:
        self.x = values
        for value in values:
            value.flow.uses += 1

    def plan_backward(self, plan: Plan) -> None:
        """Lays out the gradients, last operation first: the total of y's uses, then one for each x."""
        if not self.y.needs_gradient:
            return
        flow = self.y.flow
        own = [buffer for buffer, mine in flow.gradients if mine]
        if len(flow.gradients) == 1:
            flow.total = flow.gradients[0][0]
        else:
            flow.total = own[0] if own else plan.buffer(self.y.rows)
        self.plan_gradients(plan)

    def plan_gradients(self, plan: Plan) -> None:
        """Decides where the gradient of each x goes; by default a buffer of its own."""
        self.h = [self.claim(plan, x) for x in self.x]

    def claim(self, plan: Plan, x: Value) -> Buffer | None:
        if not x.needs_gradient:
            return None
        buffer = plan.buffer(x.rows)
        x.flow.gradients.append((buffer, True))
        return buffer

    @property
    def g(self) -> Buffer:
        """The gradient of y."""
        assert self.y.flow.total is not None
        return self.y.flow.total

    def add_uses(self, plan: Plan, code: Code, k: int) -> None:
        """Sums the gradients that y's uses have written."""
        parts = [buffer for buffer, _ in self.y.flow.gradients]
        if self.g not in parts:
            code.tile(linear_maps.copy_rows, y=plan.at(self.g, k), x=plan.at(parts[0], k), pixels=1, y_step=0,
                      x_step=0, count=self.y.rows * plan.lanes)
            parts = [self.g, *parts[1:]]
        for part in parts:
            if part is not self.g:
                code.tile(linear_maps.add_rows, y=plan.at(self.g, k), x=plan.at(part, k),
                          count=self.y.rows * plan.lanes)

    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """Instructions before the tiles start."""

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        raise NotImplementedError

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        raise NotImplementedError

    def wide(self, plan: Plan, code: Code, k: int, direction: int, out: Ref) -> None:
        """Instructions over all tiles, after they are through."""


class InputOperation(Operation):
    """Brings the data of a tile into lanes."""

    def __init__(self, y: Value):
        self.y = y

    def feature_of_row(self) -> np.ndarray | None:
        """Which feature of the user's array each row is, −1 for the border; None: row i is feature i."""
        y = self.y
        features = np.arange(math.prod(y.shape)).reshape(y.shape)
        features = np.moveaxis(features, 0, -1)
        if y.border != (0, 0):
            features = np.pad(features, [(b, b) for b in y.border] + [(0, 0)], constant_values=-1)
        features = features.ravel()
        return None if np.array_equal(features, np.arange(features.size)) else features

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k == 0:
            order = self.feature_of_row()
            code.tile(memory.load, y=plan.at(self.y.buffer, 0), x=Ref("x", 0, 0), samples=Ref("samples"),
                      order=0 if order is None else plan.tables.put(order), rows=self.y.rows,
                      features=math.prod(self.y.shape), lanes=plan.lanes)


# ---------------------------------------------------------------------------------------------------------------- bilinear
@dataclass(frozen=True)
class Geometry:
    """A convolution as (input pixel, output pixel, tap) triples; a linear layer is one pixel and one tap."""

    image: tuple[int, int]            # of the stored input, border included
    output: tuple[int, int]
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Input pixel, output pixel and tap of every product that falls into the image."""
        r, c, a, b = np.meshgrid(*(np.arange(n) for n in (*self.output, *self.kernel)), indexing="ij")
        row = r * self.stride[0] + a * self.dilation[0] - self.padding[0]
        column = c * self.stride[1] + b * self.dilation[1] - self.padding[1]
        inside = (row >= 0) & (row < self.image[0]) & (column >= 0) & (column < self.image[1])
        return ((row * self.image[1] + column)[inside], (r * self.output[1] + c)[inside],
                (a * self.kernel[1] + b)[inside])

    def reversed_tap(self, tap: np.ndarray) -> np.ndarray:
        """Taps numbered with columns from right to left: then output pixels ascend with the tap."""
        a, b = np.divmod(tap, self.kernel[1])
        return a * self.kernel[1] + self.kernel[1] - 1 - b


def segments(first: np.ndarray, offset: np.ndarray, owner: np.ndarray, length: int,
             row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Runs of ``length`` rows (first j, byte offset), sorted by owner -> segments (first j, offset, length) and their
    owners; runs that follow each other in both are joined."""
    joined = np.zeros(first.size, bool)
    joined[1:] = ((owner[1:] == owner[:-1]) & (first[1:] == first[:-1] + length)
                  & (offset[1:] == offset[:-1] + length * row_bytes))
    starts = np.flatnonzero(~joined)
    lengths = np.diff(np.append(starts, first.size)) * length
    return np.stack([first[starts], offset[starts], lengths], axis=1), owner[starts]


def panels(rows: int) -> list[tuple[int, int]]:
    """First row and number of rows of each panel, as rop/kernels/cpu/gemm.py divides them."""
    count = -(-rows // PANEL)
    sizes = [rows // count + (i < rows % count) for i in range(count)]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def packed(index: np.ndarray) -> np.ndarray:
    """Positions (row, j) -> panels [j][row in the panel], flat."""
    return np.concatenate([index[first:first + m].T.ravel() for first, m in panels(len(index))])


class Products(Operation):
    """Linear and Conv2d."""

    def __init__(self, plan: Plan, node: Node, layer: Linear | Conv2d, x: Value):
        self.layer, self.source, shape = layer, x, plan.shapes[node]
        self.reads(x)
        x.flow.product_uses += 1
        if isinstance(layer, Conv2d):
            self.groups, self.rows, self.inputs = layer.groups, layer.out_channels, layer.in_channels
            padding = (layer.padding[0] - x.border[0], layer.padding[1] - x.border[1])
            image = (x.shape[1] + 2 * x.border[0], x.shape[2] + 2 * x.border[1])
            self.geometry = Geometry(image, (shape[1], shape[2]), layer.kernel_size, layer.stride, padding,
                                     layer.dilation)
        else:
            self.groups, self.rows, self.inputs = 1, layer.out_features, layer.in_features
            self.geometry = Geometry((1, 1), (1, 1))
        self.pixels, self.image_pixels = math.prod(self.geometry.output), math.prod(self.geometry.image)
        self.group_rows, self.group_inputs = self.rows // self.groups, self.inputs // self.groups
        self.fan = self.geometry.taps * self.group_inputs
        self.weight_at = plan.graph.offset(layer, "weight")
        self.bias_at = plan.graph.offset(layer, "bias") if layer.bias else None
        self.y = plan.value(shape, frozenset({0, 1} | ({2} if x.levels & {1, 2} else set())), True)
        self.relu = False                                # set when a ReLU disappears into this product
        self.tied = sum(other.layer is layer for other in plan.graph.nodes) > 1
        self.is_wide = isinstance(layer, Linear) and not self.tied and self.rows * self.fan >= WIDE
        self.direct = self.is_wide and x.row_order is None           # W can be used as it lies in w
        self._tables: dict[str, Any] = {}
        self._pack(plan)

    # Weights: where they lie in w, and as panels. ---------------------------------------------------------------------
    def weight_index(self) -> np.ndarray:
        """(group, row, tap, channel) -> position in w."""
        shape = (self.groups, self.group_rows, self.group_inputs, self.geometry.taps)
        index = (self.weight_at + np.arange(math.prod(shape)).reshape(shape)).transpose(0, 1, 3, 2)
        if self.source.row_order is not None:            # rows of x in another order: the columns go along
            index = index[..., np.argsort(self.source.row_order)]
        return index

    def _pack(self, plan: Plan) -> None:
        """Panels for the forward product (unless W is used as it lies) and for the input gradient."""
        index = self.weight_index()
        self.forward_at = self.backward_at = plan.sizes["packed"]
        if not self.direct:
            plan.reserve("packed", index.size)
            plan.pack_index += [packed(one.reshape(len(one), -1)) for one in index]
        if not (plan.gradients and self.source.needs_gradient):
            return
        if self.direct:
            self.backward_at = plan.reserve("panels", index.size)
            return
        self.backward_at = plan.reserve("packed", index.size)
        back = index[:, :, self.geometry.reversed_tap(np.arange(self.geometry.taps))]
        plan.pack_index += [packed(one.transpose(2, 1, 0).reshape(self.group_inputs, -1)) for one in back]

    def _forward_weights(self, plan: Plan, j: int, direction: int, group: int) -> Ref:
        """Order j of the weights as the forward product wants them: as they lie, or in panels."""
        if self.direct:
            return plan.parameter(j, direction, self.weight_at)
        return plan.panel("packed", j, direction, self.forward_at + group * self.group_rows * self.fan)

    def _backward_weights(self, plan: Plan, j: int, direction: int, group: int) -> Ref:
        """Order j of the transposed weights, in panels."""
        space = "panels" if self.direct else "packed"
        return plan.panel(space, j, direction, self.backward_at + group * self.group_rows * self.fan)

    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.direct and k < 2 and plan.gradients and self.source.needs_gradient:
            code.split(SLICES, bilinear.pack_transposed, w=plan.parameter(k, direction, self.weight_at),
                       y=self._backward_weights(plan, k, direction, 0),
                       rows=self.rows, columns=self.fan, part=Ref("number", 0, 1), parts=SLICES)

    # Layout of the gradients. -----------------------------------------------------------------------------------------
    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        flow, x = self.y.flow, self.source
        self.delta = plan.buffer(self.y.rows) if self.relu and not flow.masked_by_user else self.g
        if self.bias_at is not None:
            self.bias_share = plan.partial(self.bias_at + np.arange(self.rows), not plan.first_use(self.layer, "bias"))
            plan.scratch_rows = max(plan.scratch_rows, self.rows)
        if self.is_wide:
            self._plan_wide(plan)
            return
        self.merged = (self.groups == 1 and self.inputs < DOT_COLUMNS and self.geometry.padding == (0, 0)
                       and self.geometry.dilation[1] == 1)
        one_group = self.groups == 1
        self.output_blocks = plan.buffer(self.y.rows) if one_group and self.pixels > 1 and self.fan > REGROUP else None
        self.input_blocks = (plan.buffer(x.rows, x.levels)
                             if one_group and self.image_pixels > 1 and not self.merged else None)
        index = self.weight_index().transpose(0, 2, 3, 1).ravel()                # D[group][(tap, channel), row]
        self.weight_share = plan.partial(index, not plan.first_use(self.layer, "weight"))

    def _plan_wide(self, plan: Plan) -> None:
        """xᵀ of each tile, its rows an odd number of blocks apart, so that they do not share cache sets; and a place
        for the gradient, unless it can go straight to w's order (whole blocks of columns only)."""
        per_block = BLOCK // plan.itemsize
        self.columns = (-(-self.fan // per_block) | 1) * per_block
        self.transposed = plan.buffer(self.columns, self.source.levels)
        self.wide_at: int | None = None
        if not self.direct or self.fan % per_block:
            self.wide_at = plan.reserve("batch", self.rows * self.columns)
            index = np.full((self.rows, self.columns), plan.graph.size)          # beyond w: a place for padding
            index[:, :self.fan] = self.weight_index().reshape(self.rows, self.fan)
            plan.slots.append(Slot(self.wide_at, index.ravel(), False))

    # Tables, made once. -----------------------------------------------------------------------------------------------
    def _table(self, name: str, make: Callable[[Plan], Any], plan: Plan) -> Any:
        if name not in self._tables:
            self._tables[name] = make(plan)
        return self._tables[name]

    def _forward_bounds(self, plan: Plan) -> int:
        pixel_in, pixel_out, tap = self.geometry.triples()
        rows, owner = segments(tap * self.group_inputs, pixel_in * self.inputs * plan.lane_bytes, pixel_out,
                               self.group_inputs, plan.lane_bytes if self.groups == 1 else -1)
        return plan.tables.bounded(rows, owner, self.pixels)

    def _backward_bounds(self, plan: Plan) -> int:
        pixel_in, pixel_out, tap = self.geometry.triples()
        tap = self.geometry.reversed_tap(tap)
        order = np.lexsort((tap, pixel_in))
        pixel_in, pixel_out, tap = pixel_in[order], pixel_out[order], tap[order]
        rows, owner = segments(tap * self.group_rows, pixel_out * self.rows * plan.lane_bytes, pixel_in,
                               self.group_rows, plan.lane_bytes if self.groups == 1 else -1)
        return plan.tables.bounded(rows, owner, self.image_pixels)

    def _dot_groups(self, plan: Plan) -> tuple[int, int]:
        """Groups of lane dots: (first j, number of j, pairs of pixels, number of pairs), one per tap or row of taps."""
        pixel_in, pixel_out, tap = self.geometry.triples()
        width = self.geometry.kernel[1] if self.merged else 1
        groups = []
        for first in range(0, self.geometry.taps, width):
            mine = tap == first
            pairs = np.stack([pixel_out[mine], pixel_in[mine]], axis=1)
            if self.pixels == self.image_pixels == 1 and len(pairs):     # blocks of lanes take the place of pixels
                pairs = np.arange(plan.lane_bytes // BLOCK)[:, None].repeat(2, axis=1)
            groups.append([first * self.group_inputs, width * self.group_inputs, plan.tables.put(pairs), len(pairs)])
        return plan.tables.put(groups), len(groups)

    # Passes. ----------------------------------------------------------------------------------------------------------
    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """y_k = Σ_j W_j x_{k−j} + b_k."""
        if k not in self.y.levels:
            return
        x = self.source
        factors = [(j, k - j) for j in (0, 1) if k - j in x.levels]
        bias, bias_step = Ref("zeros", 0, 0), 0
        if self.bias_at is not None and k < 2:
            bias, bias_step = plan.parameter(k, direction, self.bias_at), plan.itemsize
        for group in range(self.groups):
            row = group * self.group_rows
            terms = [(self._forward_weights(plan, j, direction, group),
                      plan.at(x.buffer, i, group * self.group_inputs)) for j, i in factors]
            code.tile(bilinear.products, c=plan.at(self.y.buffer, k, row), c_step=self.rows * plan.lane_bytes,
                      pixels=self.pixels, rows=self.group_rows, fan=self.fan, packed=int(not self.direct),
                      lane_bytes=plan.lane_bytes, bounds=self._table("forward", self._forward_bounds, plan),
                      bias=bias.plus(row * bias_step), bias_step=bias_step, relu=int(self.relu and k == 0),
                      mask=plan.at(self.y.buffer, 0, row) if self.relu and k > 0 else 0,
                      terms=len(terms), **_factors(terms, 2))
        if plan.gradients and self.is_wide and k in x.levels:
            counting = self._table("counting", lambda plan: plan.tables.put(np.arange(self.fan)), plan)
            code.tile(bilinear.transpose, y=plan.at(self.transposed, k), y_step=self.columns * plan.itemsize,
                      x=plan.at(x.buffer, k), index=counting, rows=self.fan, lanes=plan.lanes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.delta is not self.g:
            code.tile(select.rectify, y=plan.at(self.delta, k), x=plan.at(self.g, k), mask=plan.at(self.y.buffer, 0),
                      slope=0.0, count=self.y.rows * plan.lanes)
        if self.bias_at is not None and code.wanted:
            code.tile(bilinear.bias_gradient, d=plan.share(self.bias_share, code.slot), g=plan.at(self.delta, k),
                      scratch=Ref("scratch"), rows=self.rows, pixels=self.pixels, lanes=plan.lanes)
        if not self.is_wide:
            self._weight_gradient(plan, code, k)
        if self.h[0] is not None:
            self._input_gradient(plan, code, k, direction, self.h[0])

    def _weight_gradient(self, plan: Plan, code: Code, k: int) -> None:
        """Σ_j δ_j x_{k−j} of a tile."""
        x = self.source
        if self.output_blocks is not None:
            code.tile(bilinear.regroup_outputs, y=plan.at(self.output_blocks, k), x=plan.at(self.delta, k),
                      pixels=self.pixels, rows=self.rows, lanes=plan.lanes)
        if self.input_blocks is not None and k in x.levels:
            code.tile(bilinear.regroup_inputs, y=plan.at(self.input_blocks, k), x=plan.at(x.buffer, k),
                      pixels=self.image_pixels, rows=self.inputs, lanes=plan.lanes)
        if not code.wanted:
            return
        outputs, inputs = self.output_blocks or self.delta, self.input_blocks or x.buffer
        groups, count = self._table("dots", self._dot_groups, plan)
        factors = [(j, k - j) for j in range(k + 1) if k - j in x.levels]
        for group in range(self.groups):
            terms = [(plan.at(outputs, j, group * self.group_rows), plan.at(inputs, i, group * self.group_inputs))
                     for j, i in factors]
            place = plan.share(self.weight_share, code.slot, group * self.group_rows * self.fan)
            code.tile(bilinear.weight_gradient, d=place, rows=self.group_rows, terms=len(terms), groups=groups, group_count=count,
                      lane_bytes=plan.lane_bytes, a_rows=self.rows, a_pixels=self.pixels,
                      a_grouped=int(self.output_blocks is not None), b_rows=self.inputs, b_pixels=self.image_pixels,
                      b_grouped=int(self.input_blocks is not None), **_factors(terms, 3))

    def _input_gradient(self, plan: Plan, code: Code, k: int, direction: int, h: Buffer) -> None:
        """h_k = Σ_j W_jᵀ δ_{k−j}, through the ReLU that went into x."""
        masked = self.source.flow.masked_by_user
        for group in range(self.groups):
            channel = group * self.group_inputs
            terms = [(self._backward_weights(plan, j, direction, group),
                      plan.at(self.delta, k - j, group * self.group_rows)) for j in (0, 1) if k - j >= 0]
            code.tile(bilinear.products, c=plan.at(h, k, channel), c_step=self.inputs * plan.lane_bytes,
                      pixels=self.image_pixels, rows=self.group_inputs, fan=self.geometry.taps * self.group_rows,
                      packed=1, lane_bytes=plan.lane_bytes, bounds=self._table("back", self._backward_bounds, plan),
                      bias=Ref("zeros", 0, 0), bias_step=0, relu=0,
                      mask=plan.at(self.source.buffer, 0, channel) if masked else 0,
                      terms=len(terms), **_factors(terms, 2))

    def wide(self, plan: Plan, code: Code, k: int, direction: int, out: Ref) -> None:
        """Σ_j δ_j x_{k−j} over all tiles, a block of columns per unit."""
        if not self.is_wide:
            return
        terms = [(Ref(f"plane{j}", plan.at(self.delta, j).offset, 0),
                  Ref(f"plane{k - j}", plan.at(self.transposed, k - j).offset, BLOCK))
                 for j in range(k + 1) if k - j in self.source.levels]
        if self.wide_at is None:
            place, step = Ref(out.space, out.offset + self.weight_at * plan.itemsize, BLOCK), self.fan * plan.itemsize
        else:
            place, step = Ref("batch", self.wide_at * plan.itemsize, BLOCK), self.columns * plan.itemsize
        code.split(-(-self.fan * plan.itemsize // BLOCK), bilinear.wide_weight_gradient, c=place, c_step=step,
                   rows=self.rows, lane_bytes=plan.lane_bytes, x_step=self.columns * plan.itemsize,
                   tiles=Ref("tile_segments", 0, 0), tile_count=Ref("tile_count", 0, 0), zeros=Ref("zeros", 0, 0),
                   terms=len(terms), **_factors(terms, 3))


def _factors(terms: list[tuple[Ref, Ref]], most: int) -> dict[str, Operand]:
    """Operands a0, b0, a1, b1, … for up to ``most`` products; the rest is never read."""
    full = terms + [terms[0]] * (most - len(terms))
    return {f"{name}{i}": factor for i, pair in enumerate(full) for name, factor in zip("ab", pair, strict=True)}


# ------------------------------------------------------------------------------------------------- elementwise and select
class Activation(Operation):
    """y = σ(x); order 0 keeps σ′, σ″ and σ‴."""

    def __init__(self, plan: Plan, layer: Elementwise, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, frozenset(ORDERS) if 1 in x.levels or 2 in x.levels else frozenset({0}))
        self.derivatives = [plan.buffer(x.rows, (0,)) for _ in range(3)]

    def _kept(self, plan: Plan) -> dict[str, Operand]:
        return {f"d{i + 1}": plan.at(buffer, 0) for i, buffer in enumerate(self.derivatives)}

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        x, kept, count = self.x[0], self._kept(plan), self.y.rows * plan.lanes
        if k == 0:
            a, b = (*self.layer.parameters, 0.0, 0.0)[:2]
            code.tile(elementwise.activation(self.layer.function), y=plan.at(self.y.buffer, 0), **kept,
                      x=plan.at(x.buffer, 0), count=count, a=float(a), b=float(b))
        elif k in self.y.levels:
            del kept["d3"]
            code.tile(elementwise.forward, y=plan.at(self.y.buffer, k), order=k, **kept, count=count,
                      **plan.orders("x", x, k, lowest=1))

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.h[0] is not None:
            code.tile(elementwise.backward, h=plan.at(self.h[0], k), order=k, **self._kept(plan),
                      **plan.orders("x", self.x[0], k, lowest=1), **plan.gradients_of("g", self.g, k),
                      count=self.y.rows * plan.lanes)


class Rectify(Operation):
    """ReLU and leaky ReLU that stand on their own."""

    def __init__(self, plan: Plan, layer: Rectifier, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = plan.like(x, x.levels)

    def _pass(self, plan: Plan, code: Code, y: Ref, x: Ref) -> None:
        code.tile(select.rectify, y=y, x=x, mask=plan.at(self.x[0].buffer, 0), slope=float(self.layer.negative_slope),
                  count=self.y.rows * plan.lanes)

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k in self.y.levels:
            self._pass(plan, code, plan.at(self.y.buffer, k), plan.at(self.x[0].buffer, k))

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.h[0] is not None:
            self._pass(plan, code, plan.at(self.h[0], k), plan.at(self.g, k))


class Windows(Operation):
    """What max and average pooling share: tables of windows, one entry per (output pixel, input pixel)."""

    def __init__(self, plan: Plan, node: Node, x: Value, geometry: Geometry):
        self.reads(x)
        self.geometry = geometry
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


class MaxPool(Windows):
    """Max pooling, and the ReLU before it: max(0, max x) chooses the same."""

    def __init__(self, plan: Plan, node: Node, layer: MaxPool2d, x: Value):
        super().__init__(plan, node, x, Geometry(x.shape[1:], plan.shapes[node][1:], layer.kernel_size, layer.stride,
                                                 layer.padding))
        self.relu = node.inputs[0] in plan.into_pool
        self.chosen = plan.buffer(self.y.rows, (0,))

    def entries(self, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.geometry.triples()

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        common: dict[str, Operand] = {
            "y": plan.at(self.y.buffer, k), "chosen": plan.at(self.chosen, 0), "x": plan.at(self.x[0].buffer, k),
            "bounds": self.bounds(plan)[0], "pixels": self.y.pixels, "size": self.y.channels * plan.lane_bytes}
        if k == 0:
            code.tile(select.pool_largest, **common, relu=int(self.relu))
        else:
            code.tile(select.pool_chosen, **common)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.h[0] is not None:
            code.tile(select.pool_returned, h=plan.at(self.h[0], k), chosen=plan.at(self.chosen, 0),
                      g=plan.at(self.g, k), bounds=self.bounds(plan)[1], pixels=self.x[0].pixels,
                      size=self.y.channels * plan.lane_bytes)


class AveragePool(Windows):
    """Average pooling: the same weighted sums at every order."""

    def __init__(self, plan: Plan, node: Node, layer: AvgPool2d | AdaptiveAvgPool2d, x: Value):
        output = plan.shapes[node][1:]
        if isinstance(layer, AdaptiveAvgPool2d):
            geometry = Geometry(x.shape[1:], output, x.shape[1:])
            self.count_padding = False
        else:
            geometry = Geometry(x.shape[1:], output, layer.kernel_size, layer.stride, layer.padding)
            self.count_padding = layer.count_include_pad
        super().__init__(plan, node, x, geometry)

    def entries(self, plan: Plan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pixel_in, pixel_out, _ = self.geometry.triples()
        inside = np.bincount(pixel_out, minlength=self.y.pixels)
        share = 1 / (np.full(self.y.pixels, self.geometry.taps) if self.count_padding else np.maximum(inside, 1))
        bits = share.astype(plan.dtype).view(f"i{plan.itemsize}").astype(np.int64)
        return pixel_in, pixel_out, bits[pixel_out]

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k in self.y.levels:
            code.tile(linear_maps.weighted_sum, y=plan.at(self.y.buffer, k), x=plan.at(self.x[0].buffer, k),
                      bounds=self.bounds(plan)[0], pixels=self.y.pixels, size=self.y.channels * plan.lane_bytes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.h[0] is not None:
            code.tile(linear_maps.weighted_sum, y=plan.at(self.h[0], k), x=plan.at(self.g, k),
                      bounds=self.bounds(plan)[1], pixels=self.x[0].pixels, size=self.y.channels * plan.lane_bytes)


# -------------------------------------------------------------------------------------------------------------- linear maps
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
        if self.h[0] is not None:
            self._pass(plan, code, plan.at(self.h[0], k), plan.at(self.g, k), np.argsort(order))


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
                code.tile(linear_maps.copy_rows, y=plan.at(self.y.buffer, k), x=plan.at(x.buffer, k), pixels=1,
                          y_step=0, x_step=0, count=count)
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

    def _parts(self) -> list[tuple[int, Value]]:
        """First channel in y, and input."""
        sizes = [x.channels for x in self.x]
        return [(sum(sizes[:i]), x) for i, x in enumerate(self.x)]

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        for first, x in self._parts():
            code.tile(linear_maps.copy_rows, y=plan.at(self.y.buffer, k, first), x=plan.order(x, k),
                      pixels=self.y.pixels, y_step=self.y.channels * plan.lane_bytes,
                      x_step=x.channels * plan.lane_bytes, count=x.channels * plan.lanes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        for (first, x), h in zip(self._parts(), self.h, strict=True):
            if h is not None:
                code.tile(linear_maps.copy_rows, y=plan.at(h, k), x=plan.at(self.g, k, first), pixels=self.y.pixels,
                          y_step=x.channels * plan.lane_bytes, x_step=self.y.channels * plan.lane_bytes,
                          count=x.channels * plan.lanes)


# ------------------------------------------------------------------------------------------------------------------ softmax
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
        common: dict[str, Operand] = {"y": plan.at(self.y.buffer, k), "order": k, "y0": plan.at(self.y.buffer, 0),
                                      **plan.orders("x", self.x[0], k), **self._sizes(plan)}
        if self.log:
            code.tile(softmax.log_softmax, **common, p=plan.at(self.probability, 0))
        else:
            code.tile(softmax.softmax, **common)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.h[0] is None:
            return
        common: dict[str, Operand] = {"h": plan.at(self.h[0], k), "order": k, **plan.gradients_of("g", self.g, k),
                                      **self._sizes(plan)}
        if self.log:
            code.tile(softmax.log_softmax_backward, **common, p=plan.at(self.probability, 0),
                      **plan.orders("y", self.y, k, lowest=1))
        else:
            code.tile(softmax.softmax_backward, **common, **plan.orders("p", self.y, k))


# ---------------------------------------------------------------------------------------------------------------- batchnorm
class BatchNormOperation(Operation):
    """Batch normalisation: in training mode its sums run over the whole batch, so it cuts a pass into stages."""

    def __init__(self, plan: Plan, layer: BatchNorm, x: Value):
        self.layer = layer
        self.reads(x)
        moving = x.levels & {1, 2} or layer.affine
        self.y = plan.value(x.shape, frozenset(ORDERS) if moving else frozenset({0}),
                            x.needs_gradient or layer.affine)
        self.channels = layer.num_features
        self.frozen = not plan.training
        self.gamma_at = plan.graph.offset(layer, "weight") if layer.affine else None
        self.beta_at = plan.graph.offset(layer, "bias") if layer.affine else None
        self.tables = [plan.reserve("channels", batchnorm.FIELDS * self.channels) for _ in ORDERS]
        self.totals = [plan.reserve("totals", 2 * self.channels) for _ in ORDERS]
        self.sums = plan.reserve("sums", batchnorm.SUMS * self.channels)
        self.state = plan.reserve("state", 2 * self.channels)      # running mean, running variance
        plan.normalisations.append(self)

    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        if self.gamma_at is None or self.beta_at is None:
            self.unused = plan.reserve("batch", 2 * self.channels)
            return
        index = np.concatenate([self.gamma_at + np.arange(self.channels), self.beta_at + np.arange(self.channels)])
        add = not plan.first_use(self.layer, "weight")
        if self.frozen:
            self.gradient_share = plan.partial(index, add)
        else:
            self.gradient_at = plan.reserve("batch", 2 * self.channels)
            plan.slots.append(Slot(self.gradient_at, index, add))

    # References. ------------------------------------------------------------------------------------------------------
    def _tables(self, plan: Plan, k: int) -> dict[str, Operand]:
        return {f"table{j}": plan.batch("channels", self.tables[min(j, k)]) for j in ORDERS}

    def _sizes(self, plan: Plan) -> dict[str, Operand]:
        return {"samples": Ref("samples"), "pixels": self.y.pixels, "channels": self.channels, "lanes": plan.lanes,
                "scratch": Ref("scratch")}

    def _gamma(self, plan: Plan, k: int, direction: int) -> dict[str, Operand]:
        if self.gamma_at is None:
            return {"gamma0": Ref("ones", 0, 0), "gamma1": Ref("zeros", 0, 0)}
        first = plan.parameter(0, direction, self.gamma_at)
        return {"gamma0": first, "gamma1": plan.parameter(1, direction, self.gamma_at) if k > 0 else first}

    def _beta(self, plan: Plan, k: int, direction: int) -> Ref:
        if self.beta_at is None or k == 2:
            return Ref("zeros", 0, 0)
        return plan.parameter(k, direction, self.beta_at)

    def _all_tiles(self, plan: Plan) -> dict[str, Operand]:
        return {"sums": Ref("sums", 8 * self.sums, 0), "step": Ref("sums_step", 0, 0), "tiles": Ref("tile_count", 0, 0)}

    # Passes. ----------------------------------------------------------------------------------------------------------
    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.frozen:
            code.once(batchnorm.frozen, order=k, **self._tables(plan, k), channels=self.channels,
                      mean=plan.batch("state", self.state), variance=plan.batch("state", self.state, self.channels),
                      eps=float(self.layer.eps), **self._gamma(plan, k, direction))

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        inputs, tables = plan.orders("x", self.x[0], k), self._tables(plan, k)
        if not self.frozen:
            code.tile(batchnorm.moments, sums=Ref("sums", 8 * self.sums), order=k, **inputs, table0=tables["table0"],
                      table1=tables["table1"], **self._sizes(plan))
            code.once(batchnorm.statistics, order=k, **tables, **self._all_tiles(plan), channels=self.channels,
                      eps=float(self.layer.eps), **self._gamma(plan, k, direction))
        code.tile(batchnorm.normalise, y=plan.at(self.y.buffer, k), order=k, **inputs, **tables,
                  beta=self._beta(plan, k, direction), pixels=self.y.pixels, channels=self.channels, lanes=plan.lanes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        inputs, tables = plan.orders("x", self.x[0], k), self._tables(plan, k)
        gradients = plan.gradients_of("g", self.g, k)
        code.tile(batchnorm.gradient_sums, sums=Ref("sums", 8 * self.sums), order=k, **inputs, **gradients, **tables,
                  **self._sizes(plan))
        if not self.frozen:
            at = self.unused if self.gamma_at is None else self.gradient_at
            code.once(batchnorm.gradient_statistics, order=k, **tables, **self._all_tiles(plan),
                      channels=self.channels, d_gamma=plan.batch("batch", at),
                      d_beta=plan.batch("batch", at, self.channels),
                      **{f"totals{j}": plan.batch("totals", self.totals[min(j, k)], size=8) for j in ORDERS})
        elif self.gamma_at is not None and code.wanted:
            code.tile(batchnorm.frozen_gradients, d_gamma=plan.share(self.gradient_share, code.slot),
                      d_beta=plan.share(self.gradient_share, code.slot, self.channels), sums=Ref("sums", 8 * self.sums),
                      table0=tables["table0"], channels=self.channels)
        if self.h[0] is not None:
            code.tile(batchnorm.backward, h=plan.at(self.h[0], k), order=k, **inputs, **gradients, **tables,
                      **self._sizes(plan))


# --------------------------------------------------------------------------------------------------------------------- loss
class LossOperation(Operation):
    """The last node: seeds the gradient of the output and reports the energies."""

    def __init__(self, plan: Plan, layer: Loss, x: Value):
        self.layer = layer
        self.reads(x)
        self.y = Value((), frozenset(), True, Buffer(0, {}), 0, 0)
        self.probability = plan.buffer(x.rows, (0,)) if isinstance(layer, CrossEntropy) else None

    def plan_backward(self, plan: Plan) -> None:
        if self.x[0].needs_gradient:
            self.plan_gradients(plan)
        else:
            self.h = [plan.buffer(self.x[0].rows)]

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        z, g = self.x[0], self.h[0]
        assert g is not None
        common: dict[str, Operand] = {
            "g": plan.at(g, k), "energy": Ref(f"energy{k}"), "order": k, "weight": Ref("weight", 0, 0),
            "samples": Ref("samples"), "scale": Ref("scale", 0, 0), "pixels": z.pixels, "rows": z.channels,
            "lanes": plan.lanes, "scratch": Ref("scratch")}
        dense, labels = Ref("dense", 0, 0), Ref("labels", 0, 0)
        if isinstance(self.layer, CrossEntropy):
            assert self.probability is not None
            code.tile(loss.cross_entropy, **common, p=plan.at(self.probability, 0), **plan.orders("z", z, k),
                      labels=labels, dense=dense)
        elif isinstance(self.layer, NLL):
            code.tile(loss.negative_log_likelihood, **common, z0=plan.order(z, 0), labels=labels)
        elif isinstance(self.layer, MSE):
            code.tile(loss.squared_error, **common, z=plan.order(z, k), dense=dense)
        elif isinstance(self.layer, BCEWithLogits):
            code.tile(loss.binary_cross_entropy, **common, **plan.orders("z", z, k), dense=dense)
        if k > 0:
            code.tile(loss.energy, result=Ref(f"energy{k}"), order=k, g0=plan.at(g, 0), g1=plan.at(g, min(1, k)),
                      **plan.orders("z", z, k, lowest=1), count=z.rows * plan.lanes)

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """The seed is written by forward."""


# --------------------------------------------------------------------------------------------------- layers to operations
def _rectifier(plan: Plan, node: Node, layer: Rectifier, x: Value) -> Value:
    """A ReLU disappears into the max pooling after it or the product before it, where it has no other neighbour."""
    if isinstance(layer, ReLU):
        if isinstance(plan.only_user(node), MaxPool2d):
            plan.into_pool.add(node)
            return x
        if isinstance(x.producer, Products) and plan.only_user(node.inputs[0]) is layer and not x.flow.uses:
            x.producer.relu = x.flow.rectified = True
            return x
    return plan.add(Rectify(plan, layer, x))


def _flatten(x: Value) -> Value:
    """The same rows seen as features; channels and pixels are in the other order than the user's."""
    order = x.row_order
    if x.pixels > 1 and x.channels > 1:
        order = np.arange(x.rows).reshape(x.pixels, x.channels).T.ravel()
    return replace(x, shape=(x.rows,), pixels=1, channels=x.rows, row_order=order)


def _sum(plan: Plan, inputs: list[Value]) -> Value:
    orders = [x.row_order for x in inputs]
    if any(order is not None for order in orders) and not all(
            order is not None and orders[0] is not None and np.array_equal(order, orders[0]) for order in orders):
        inputs = [plan.in_order(x) for x in inputs]
    return plan.add(Sum(plan, inputs))


Lowering = Callable[[Plan, Node, Any, list[Value]], Value]

LOWERINGS: dict[type[Layer], Lowering] = {
    Linear: lambda plan, node, layer, x: plan.add(Products(plan, node, layer, x[0])),
    Conv2d: lambda plan, node, layer, x: plan.add(Products(plan, node, layer, x[0])),
    Rectifier: lambda plan, node, layer, x: _rectifier(plan, node, layer, x[0]),
    Elementwise: lambda plan, node, layer, x: plan.add(Activation(plan, layer, x[0])),
    MaxPool2d: lambda plan, node, layer, x: plan.add(MaxPool(plan, node, layer, x[0])),
    AvgPool2d: lambda plan, node, layer, x: plan.add(AveragePool(plan, node, layer, x[0])),
    AdaptiveAvgPool2d: lambda plan, node, layer, x: plan.add(AveragePool(plan, node, layer, x[0])),
    Flatten: lambda plan, node, layer, x: _flatten(x[0]),
    Identity: lambda plan, node, layer, x: x[0],
    Add: lambda plan, node, layer, x: _sum(plan, x),
    Concat: lambda plan, node, layer, x: plan.add(Concatenation(plan, node, [plan.in_order(one) for one in x])),
    Softmax: lambda plan, node, layer, x: plan.add(SoftmaxOperation(plan, layer, x[0])),
    LogSoftmax: lambda plan, node, layer, x: plan.add(SoftmaxOperation(plan, layer, x[0])),
    BatchNorm: lambda plan, node, layer, x: plan.add(BatchNormOperation(plan, layer, plan.in_order(x[0]))),
}


# ------------------------------------------------------------------------------------------------------------------- passes
def emit_pass(plan: Plan, orders: Sequence[tuple[int, int]], results: Collection[int]) -> Code:
    """The code of one pass: ``orders`` lists (order, direction) as they run, ``results`` the positions in that list
    whose parameter gradient is wanted; result i goes to the space out{i}.

    Without batch-wide sums on the way, all orders of a tile run while it is warm in cache, and results are collected at
    the end, from a slot of partial sums each. Otherwise each is collected at once, and all use slot 0."""
    code = Code()
    for k, direction in orders:
        _emit_preparation(plan, code, k, direction)
    code.barrier()
    at_once = plan.coupled or plan.has_wide
    for i, (k, direction) in enumerate(orders):
        code.wanted, code.slot = i in results, 0 if at_once else sorted(results).index(i) if i in results else 0
        for operation in plan.operations:
            operation.forward(plan, code, k, direction)
        if plan.gradients:
            _emit_backward(plan, code, k, direction)
        if code.wanted and at_once:
            _emit_results(plan, code, k, direction, 0, Ref(f"out{i}", 0, 0))
    for slot, i in enumerate(sorted(results)):
        if not at_once:
            _emit_results(plan, code, *orders[i], slot, Ref(f"out{i}", 0, 0))
    return code


def emit_outputs(plan: Plan) -> Code:
    """The forward pass alone, its outputs written in the user's order."""
    code = emit_pass(plan, [(0, 0)], ())
    shape = plan.shapes[plan.graph.output]
    order = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), 0, -1).ravel()
    code.tile(memory.store, y=Ref("outputs"), x=plan.at(plan.output.buffer, 0), samples=Ref("samples"),
              order=plan.tables.put(order), rows=plan.output.rows, lanes=plan.lanes)
    return code


def _emit_preparation(plan: Plan, code: Code, k: int, direction: int) -> None:
    """Weights into panels (order 0: w, order 1: v)."""
    index, count = plan.packing()
    if k < 2 and count:
        parts = SLICES if count > SMALL else 1
        code.split(parts, memory.gather, y=plan.panel("packed", k, direction, 0), x=plan.parameter(k, direction, 0),
                   index=index, count=count, part=Ref("number", 0, 1), parts=parts)
    for operation in plan.operations:
        operation.prepare(plan, code, k, direction)


def _emit_backward(plan: Plan, code: Code, k: int, direction: int) -> None:
    for operation in reversed(plan.operations):
        if operation.y.needs_gradient and not isinstance(operation, LossOperation):
            operation.add_uses(plan, code, k)
            operation.backward(plan, code, k, direction)


def _emit_results(plan: Plan, code: Code, k: int, direction: int, slot: int, out: Ref) -> None:
    """The parameters' gradient of order k: wide layers, then the sums over tiles, tied parameters last."""
    for operation in plan.operations:
        operation.wide(plan, code, k, direction, out)
    code.barrier()
    for add in (False, True):
        pieces = [(Ref("batch", piece.at * plan.itemsize, 0), 0, plan.tables.put([1]), piece.index)
                  for piece in plan.slots if piece.add == add]
        if plan.partial_index[add]:
            share = plan.share(Partial(0, add), slot)
            pieces.append((Ref(share.space, share.offset, 0), Ref("partial_step", 0, 0), Ref("tile_count", 0, 0),
                           np.concatenate(plan.partial_index[add])))
        for partial, step, tiles, index in pieces:
            parts = SLICES if index.size > SMALL and not add else 1
            code.split(parts, memory.collect, out=out, partial=partial, step=step, tiles=tiles,
                       index=plan.tables.put(index), count=index.size, add=int(add), part=Ref("number", 0, 1),
                       parts=parts)
    code.barrier()
