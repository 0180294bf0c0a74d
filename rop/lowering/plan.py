"""The plan of a network, the same for every device: its operations, its values and the rows that they take.

What a device adds to it (where a row lies, packed weights, partial sums) is in rop/devices/<device>/memory.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rop.graph import Graph, Node
from rop.layers import Flatten, Identity
from rop.layers.base import Layer, Shape
from rop.lowering.values import ORDERS, Buffer, Value

if TYPE_CHECKING:
    from rop.lowering.batchnorm import BatchNormOperation, ChannelMap


class Plan:
    """Operations, values and gradients of a network on inputs of one shape, whichever device runs it.

    With ``pixel_lanes`` maps have a row for each channel and a lane for each pixel of each sample. ``winograd`` says
    whether convolutions may be computed by Winograd's algorithm, ``training`` the mode of batchnorm layers; None: that
    of each layer's origin.
    """

    def __init__(
        self,
        graph: Graph,
        input_shape: Shape,
        training: bool | None,
        gradients: bool,
        dtype: Any,
        pixel_lanes: bool = False,
        winograd: bool = True,
    ):
        self.graph, self.training = graph, training
        self.dtype = np.dtype(dtype)
        self.gradients = gradients  # whether there is a backward pass
        self.shapes = graph.shapes(input_shape)
        self.pixel_lanes, self.winograd = pixel_lanes, winograd
        self.buffers: list[Buffer] = []
        self.values: dict[Node, Value] = {}
        self.operations: list[Operation] = []
        self.channel_maps: list[ChannelMap] = []  # all operations with numbers for each channel,
        self.normalisations: list[BatchNormOperation] = []  # and those among them with statistics
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
        return not all(one.frozen for one in self.normalisations)

    # ------------------------------------------------------------------------------------------------ rows and values
    def buffer(self, rows: int, orders: Iterable[int] = ORDERS, pixels: int = 0) -> Buffer:
        """Rows in the planes of these orders; ``pixels`` are those of a map on pixel lanes."""
        made = Buffer(rows, tuple(sorted(orders)), pixels)
        self.buffers.append(made)
        return made

    def rows_like(self, x: Value, orders: Iterable[int] = ORDERS) -> Buffer:
        """As many rows as a value has, which lie as those do."""
        return self.buffer(x.rows, orders, x.buffer.pixels)

    def value(
        self, shape: Shape, levels: frozenset[int], needs_gradient: bool, border: tuple[int, int] = (0, 0)
    ) -> Value:
        """A value of this shape with a buffer of its own."""
        if self.pixel_lanes and len(shape) == 3:
            buffer = self.buffer(shape[0], levels, math.prod(shape[1:]))
            return Value(shape, levels, needs_gradient, buffer, 1, shape[0])
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


class Operation:
    """One step of a pass. ``x`` are the values it reads, ``y`` the one it gives.

    The emitter of an operation is found in the file rop/devices/<device>/emit/ that is named as the operation's own.
    """

    x: tuple[Value, ...] = ()
    y: Value
    h: Sequence[Buffer | None] = ()  # the gradient of each x, None where it needs none
    where = "the network"  # the layer as messages name it, e.g. "layer 3 (Conv2d 8→16)"
    # What is read after the forward pass of its order, in the backward pass or at higher orders: x, y and the gradient
    # of y. The memory of all else can be used again at once.
    keeps_inputs = keeps_output = keeps_gradient = True
    can_add = False  # whether it can add the gradient of an x to what another use of x has written
    accumulates: Sequence[bool] = ()  # whether it does, for each x

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
            flow.total = own[0] if own else plan.rows_like(self.y)
        self.plan_gradients(plan)

    def plan_gradients(self, plan: Plan) -> None:
        """Decides where the gradient of each x goes; by default a buffer of its own."""
        self.h, self.accumulates = [], []
        for x in self.x:
            self.accumulates.append(self.can_add and any(mine for _, mine in x.flow.gradients))
            self.h.append(self.claim(plan, x))

    def claim(self, plan: Plan, x: Value) -> Buffer | None:
        """A buffer for the gradient of x by this use, if it needs one: one that may be added to, if there is one and
        the operation can add."""
        if not x.needs_gradient:
            return None
        written = [buffer for buffer, mine in x.flow.gradients if mine]
        if self.can_add and written:
            return written[0]
        buffer = plan.rows_like(x)
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

    def gradients_read(self) -> list[Buffer]:
        """The gradients of y from which those of the inputs are made."""
        return [self.g]

    def gradients_touched(self) -> list[Buffer]:
        """All gradients that the backward pass of the operation reads or writes."""
        parts = [part for part, _ in self.parts_of_gradient()]
        return [*self.gradients_read(), *parts, *(h for h in self.h if h is not None)]

    def parts_of_gradient(self) -> list[tuple[Buffer, bool]]:
        """The gradients that y's uses have written beside g, and whether each is added to g or, if nothing is there
        yet, copied to it."""
        parts = [buffer for buffer, _ in self.y.flow.gradients]
        started = self.g in parts
        return [(part, started or i > 0) for i, part in enumerate(parts) if part is not self.g]
