"""The plan of a network, the same for every device: its operations, its values and where their rows lie.

What a device adds to it (how a row lies in memory, packed weights, partial sums) is in rop/devices/<device>/memory.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from rop.graph import Graph, Node
from rop.layers import Flatten, Identity
from rop.layers.base import Layer, Shape
from rop.lowering.values import ORDERS, Buffer, Value

if TYPE_CHECKING:
    from rop.lowering.batchnorm import BatchNormOperation


class Plan:
    """Operations, values and gradients of a network on inputs of one shape, whichever device runs it.

    ``gap_rows`` rows are left free after each buffer: a debug mode of a device may want to watch them.
    """

    def __init__(
        self, graph: Graph, input_shape: Shape, training: bool, gradients: bool, dtype: Any, gap_rows: int = 0
    ):
        self.graph, self.training = graph, training
        self.dtype = np.dtype(dtype)
        self.gradients = gradients  # whether there is a backward pass
        self.shapes = graph.shapes(input_shape)
        self.gap_rows = gap_rows
        self.plane_rows = dict.fromkeys(ORDERS, 0)
        self.buffers: list[Buffer] = []
        self.values: dict[Node, Value] = {}
        self.operations: list[Operation] = []
        self.normalisations: list[BatchNormOperation] = []
        self.output: Value  # the net's, in the user's order
        self.into_pool: set[Node] = set()  # ReLUs that are fused into the max pooling after them
        self._seen: set[tuple[Layer, str]] = set()
        self._users: dict[Node, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for source in node.inputs:
                self._users[source].append(node)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def coupled(self) -> bool:
        """Whether samples influence each other: batch statistics."""
        return self.training and bool(self.normalisations)

    # ------------------------------------------------------------------------------------------------ rows and values
    def buffer(self, rows: int, orders: Iterable[int] = ORDERS) -> Buffer:
        """Rows in the planes of these orders."""
        made = place_buffer(self.plane_rows, rows, orders, self.gap_rows)
        self.buffers.append(made)
        return made

    def value(
        self, shape: Shape, levels: frozenset[int], needs_gradient: bool, border: tuple[int, int] = (0, 0)
    ) -> Value:
        """A value of this shape with a buffer of its own."""
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

    # ------------------------------------------------------------------------------------------------------ operations
    def add(self, operation: Operation) -> Value:
        """Appends an operation; returns the value it gives."""
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

    def first_use(self, layer: Layer, key: str) -> bool:
        """Whether this parameter is met for the first time; if not, it is tied, and its gradient is added."""
        new = (layer, key) not in self._seen
        self._seen.add((layer, key))
        return new


def place_buffer(plane_rows: dict[int, int], rows: int, orders: Iterable[int], gap_rows: int) -> Buffer:
    """Takes rows at the end of some planes, whose numbers of rows grow by it and by the gap after the buffer."""
    start = {k: plane_rows[k] for k in orders}
    for k in start:
        plane_rows[k] += rows + gap_rows
    return Buffer(rows, start)


class Operation:
    """One step of a pass. ``x`` are the values it reads, ``y`` the one it gives.

    The emitter of an operation is found in the file rop/devices/<device>/emit/ that is named as the operation's own.
    """

    x: tuple[Value, ...] = ()
    y: Value
    h: list[Buffer | None]  # the gradient of each x, None where it needs none
    where = "the network"  # the layer as messages name it, e.g. "layer 3 (Conv2d 8→16)"

    @property
    def kind(self) -> type:
        """The class under which emitters are registered."""
        return type(self)

    def reads(self, *values: Value) -> None:
        """Makes these values the inputs."""
        self.x = values
        for value in values:
            value.flow.uses += 1

    def plan_backward(self, plan: Plan) -> None:
        """Places the gradients, last operation first: the total of y's uses, then one for each x."""
        if not self.y.needs_gradient:
            return
        flow = self.y.flow
        own = [buffer for buffer, mine in flow.gradients if mine]
        if len(flow.gradients) == 1:
            flow.total, flow.is_shared = flow.gradients[0][0], not own
        else:
            flow.total = own[0] if own else plan.buffer(self.y.rows)
        self.plan_gradients(plan)

    def plan_gradients(self, plan: Plan) -> None:
        """Decides where the gradient of each x goes; by default a buffer of its own."""
        self.h = [self.claim(plan, x) for x in self.x]

    def claim(self, plan: Plan, x: Value) -> Buffer | None:
        """A buffer for the gradient of x by this use, if it needs one."""
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
        """The gradients that y's uses have written beside g, and whether each is added to g or, if nothing is there
        yet, copied to it."""
        parts = [buffer for buffer, _ in self.y.flow.gradients]
        started = self.g in parts
        return [(part, started or i > 0) for i, part in enumerate(parts) if part is not self.g]
