"""Where everything of a network lies, and what an operation is.

Structural zeros: ``value.levels`` holds the orders that are not identically zero. Data has {0}; behind a linear layer
and a ReLU order 2 is still zero; products with a zero factor are never emitted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rop.devices.cpu import guard
from rop.devices.cpu.code import ORDERS, Buffer, Code, Operand, Ref, Tables
from rop.graph import Graph, Node
from rop.kernels.cpu import linear_maps
from rop.layers import Flatten, Identity
from rop.layers.base import Layer, Shape


@dataclass(eq=False)
class Flow:
    """What goes back to a value: a gradient from each of its uses, then their total."""

    uses: int = 0
    product_uses: int = 0
    gradients: list[tuple[Buffer, bool]] = field(default_factory=list)  # and whether it may be added to
    total: Buffer | None = None
    rectified: bool = False  # a ReLU went into the product that made the value

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
    row_order: np.ndarray | None = None  # row of each feature in the user's order, if it is not 0, 1, 2, …
    border: tuple[int, int] = (0, 0)  # pixels of zeros stored around an image (data before a convolution)

    @property
    def rows(self) -> int:
        return self.pixels * self.channels


class Family(NamedTuple):
    """Partial sums that are collected together: a second use of tied parameters or not, in long runs of w or not."""

    add: bool
    in_runs: bool


FAMILIES = tuple(Family(add, in_runs) for add in (False, True) for in_runs in (False, True))
LONG_RUN = 8  # numbers on average from which it pays to move runs of w instead of single numbers
NOWHERE = -(1 << 40)  # the position in w of partial sums that are padding; it continues no run of positions


@dataclass(frozen=True)
class Slot:
    """A piece of the parameters' gradient that is one sum for the whole batch."""

    at: int  # in the space "batch"
    index: np.ndarray  # position in w of each number
    family: Family


@dataclass(frozen=True)
class Partial:
    """A piece of the parameters' gradient that each tile has a share of: where it starts in its family."""

    at: int
    family: Family


class Plan:
    """The layout of a network and its operations."""

    def __init__(self, graph: Graph, input_shape: Shape, training: bool, gradients: bool, dtype: Any):
        self.graph, self.training = graph, training
        self.itemsize = np.dtype(dtype).itemsize
        self.dtype = np.dtype(dtype)
        self.lanes = 0  # chosen when the size of the planes is known
        self.tables = Tables()
        self.plane_rows = dict.fromkeys(ORDERS, 0)
        self.scratch_rows = 3
        self.sizes = dict.fromkeys(("batch", "packed", "panels", "sums", "channels", "totals", "state"), 0)
        self.partial_index: dict[Family, list[np.ndarray]] = {family: [] for family in FAMILIES}
        self.pack_index: list[np.ndarray] = []
        self.gaps: dict[str, list[tuple[int, int]]] = defaultdict(list)  # of guard zones, by space: start, length
        self.slots: list[Slot] = []
        self.normalisations: list[Any] = []  # the batchnorm operations
        self.shapes = graph.shapes(input_shape)
        self.gradients = gradients  # whether there is a backward pass
        self._packing: tuple[int, int] | None = None
        self._seen: set[tuple[Layer, str]] = set()
        self._users: dict[Node, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for source in node.inputs:
                self._users[source].append(node)
        self.into_pool: set[Node] = set()  # ReLUs that the max pooling after them takes over
        self.values: dict[Node, Value] = {}
        self.operations: list[Operation] = []
        self.output: Value  # the net's, in the user's order

    # ------------------------------------------------------------------------------------------------------- buffers
    def buffer(self, rows: int, orders: Iterable[int] = ORDERS) -> Buffer:
        """Rows in the planes of these orders."""
        start = {k: self.plane_rows[k] for k in orders}
        for k in start:
            self.plane_rows[k] += rows
            self.plane_rows[k] += self._gap(f"plane{k}", self.plane_rows[k], guard.ROWS)
        return Buffer(rows, start)

    def _gap(self, space: str, start: int, length: int) -> int:
        """Leaves room for a guard zone after a piece of memory, in guard mode; returns its length."""
        if length:  # guard mode
            self.gaps[space].append((start, length))
        return length

    def reserve(self, space: str, count: int) -> int:
        """Numbers in a space for the whole batch (or, for sums, per tile); returns where they start."""
        start = self.sizes[space]
        self.sizes[space] += count
        self.sizes[space] += self._gap(space, self.sizes[space], guard.NUMBERS)
        return start

    def pack(self, index: list[np.ndarray]) -> int:
        """Room for numbers of w in an order of their own, which are brought there together with those of all other
        layers; returns where they start."""
        start = self.sizes["packed"]
        self.pack_index += index
        self.sizes["packed"] += sum(part.size for part in index)
        return start

    def value(
        self, shape: Shape, levels: frozenset[int], needs_gradient: bool, border: tuple[int, int] = (0, 0)
    ) -> Value:
        sides = [n + 2 * b for n, b in zip(shape[1:], border, strict=True)] if border != (0, 0) else shape[1:]
        pixels = math.prod(sides)
        return Value(
            shape, levels, needs_gradient, self.buffer(pixels * shape[0], levels), pixels, shape[0], border=border
        )

    def like(self, x: Value, levels: frozenset[int]) -> Value:
        """A value of the same shape, with its rows in the same order."""
        y = self.value(x.shape, levels, x.needs_gradient)
        y.pixels, y.channels, y.row_order = x.pixels, x.channels, x.row_order
        return y

    def partial(self, index: np.ndarray, add: bool) -> Partial:
        """A place in each tile's partial sums for numbers that belong to these positions of w, or NOWHERE."""
        family = self._family(index, add)
        start = self._partial_count(family)
        self.partial_index[family] += [index, np.full(guard.NUMBERS, NOWHERE)]
        return Partial(start, family)

    def slot(self, at: int, index: np.ndarray, add: bool) -> None:
        """Numbers in the space "batch" that belong to these positions of w."""
        self.slots.append(Slot(at, index, self._family(index, add)))

    def _partial_count(self, *families: Family) -> int:
        return sum(len(index) for family in families for index in self.partial_index[family])

    def runs(self, index: np.ndarray) -> np.ndarray:
        """Runs of consecutive positions of w: where each starts in the index, where in w, and its length. Padding is
        left out."""
        starts = np.flatnonzero(np.diff(index, prepend=-2) != 1)
        lengths = np.diff(starts, append=index.size)
        return np.stack([starts, index[starts], lengths], axis=1)[index[starts] != NOWHERE]

    def _family(self, index: np.ndarray, add: bool) -> Family:
        runs = self.runs(index)
        return Family(add, len(runs) == 1 or bool(runs[:, 2].sum() >= LONG_RUN * len(runs)))

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
        return any(operation.is_wide for operation in self.operations)

    @property
    def partial_size(self) -> int:
        return self._partial_count(*FAMILIES)

    def partial_gaps(self) -> list[tuple[int, int]]:
        """Guard zones in a tile's partial sums, one after each piece: start and length."""
        sizes = [part.size for family in FAMILIES for part in self.partial_index[family]]
        return [(int(end) - guard.NUMBERS, guard.NUMBERS) for end in np.cumsum(sizes, dtype=int)[1::2]]

    def first_use(self, layer: Layer, key: str) -> bool:
        """Whether this parameter is met for the first time (otherwise it is tied)."""
        new = (layer, key) not in self._seen
        self._seen.add((layer, key))
        return new

    # ------------------------------------------------------------------------------------------------------- operations
    def add(self, operation: Operation) -> Value:
        self.operations.append(operation)
        operation.y.producer = operation
        return operation.y

    def only_user(self, node: Node) -> Layer | None:
        """The layer that alone uses a node's value."""
        users = self._users[node]
        return users[0].layer if len(users) == 1 and node is not self.graph.output else None

    def used_once(self, node: Node) -> bool:
        """Whether a node's rows go to one place only, also under the names that Identity and Flatten give them."""
        while self.only_user(node) is not None:
            if not isinstance(node.layer, (Identity, Flatten)):
                return True
            node = node.inputs[0]
        return False

    # ------------------------------------------------------------------------------------------------------- references
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
        before = self._partial_count(*FAMILIES[: FAMILIES.index(partial.family)])
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
    is_wide = False  # whether it has instructions over all tiles after they are through

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

    def plan_rooms(self, plan: Plan) -> None:
        """Lays out what the CPU's kernels need beside values and gradients; last operation first."""

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

    @property
    def only_h(self) -> Buffer:
        """The gradient of the only x of an operation without parameters, which has one because y has one."""
        (h,) = self.h
        assert h is not None
        return h

    def parts_of_gradient(self) -> list[tuple[Buffer, bool]]:
        """What y's uses have written, and whether it is added to g or, if nothing is there yet, copied to it."""
        parts = [buffer for buffer, _ in self.y.flow.gradients]
        started = self.g in parts
        return [(part, started or i > 0) for i, part in enumerate(parts) if part is not self.g]

    def add_uses(self, plan: Plan, code: Code, k: int) -> None:
        """Sums the gradients that y's uses have written."""
        count = self.y.rows * plan.lanes
        for part, add in self.parts_of_gradient():
            y, x = plan.at(self.g, k), plan.at(part, k)
            if add:
                code.tile(linear_maps.add_rows, y=y, x=x, count=count)
            else:
                code.tile(linear_maps.copy_rows, y=y, x=x, pixels=1, y_step=0, x_step=0, count=count)

    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """Instructions before the tiles start."""

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        raise NotImplementedError

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        raise NotImplementedError

    def wide(self, plan: Plan, code: Code, k: int, direction: int, out: Ref) -> None:
        """Instructions over all tiles, after they are through."""
