"""When the rows of a buffer are needed, and how buffers that are never needed at the same time share memory.

A pass of one order goes through the operations forward, then backward: with n operations, operation i has the moments i
and 2n − 1 − i. What a later order reads as well (``keeps_inputs``, ``keeps_output`` and ``keeps_gradient`` of an
operation) must survive the pass; order 2 is the last one, so it survives nothing.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from rop.lowering.loss import LossOperation
from rop.lowering.plan import Operation, Plan
from rop.lowering.values import Buffer

Span = tuple[int, int]  # first and last moment in which rows are needed


class Lifetimes:
    """The spans of all buffers of a plan; emitters add what they read at other moments."""

    def __init__(self, plan: Plan):
        self.end = 2 * len(plan.operations)  # the moment after all operations
        self._moments: dict[Buffer, list[int]] = defaultdict(list)
        self._kept: set[Buffer] = set()
        self._order = {operation: i for i, operation in enumerate(plan.operations)}
        for i, operation in enumerate(plan.operations):
            self._note_forward(operation, i)
            if plan.gradients and operation.y.needs_gradient:
                self._note_backward(operation, i, self.end - 1 - i)
        self.keep(plan.output.buffer)

    def _note_forward(self, operation: Operation, moment: int) -> None:
        self.note(operation.y.buffer, moment)
        for x in operation.x:
            self.note(x.buffer, moment)

    def _note_backward(self, operation: Operation, forward: int, backward: int) -> None:
        if operation.keeps_inputs:
            for x in operation.x:
                self.note(x.buffer, backward)
                self.keep(x.buffer)
        if operation.keeps_output:
            self.note(operation.y.buffer, backward)
            self.keep(operation.y.buffer)
        if isinstance(operation, LossOperation):  # its forward writes the seed, whose lower orders the energy reads
            self.note(operation.seed, forward)
            self.keep(operation.seed)
            return
        for buffer in operation.gradients_touched():
            self.note(buffer, backward)
        if operation.keeps_gradient:
            for buffer in operation.gradients_read():
                self.keep(buffer)

    def note_emitter(self, buffer: Buffer, operation: Operation, after: bool = False) -> None:
        """Says that the emitter of an operation writes and reads a buffer in both passes and at later orders, and, if
        ``after``, after all operations."""
        i = self._order[operation]
        for moment in (i, self.end if after else self.end - 1 - i):
            self.note(buffer, moment)
        self.keep(buffer)

    def note(self, buffer: Buffer, moment: int) -> None:
        """Says that a buffer is read or written at this moment."""
        self._moments[buffer.whole()[0]].append(moment)

    def keep(self, buffer: Buffer) -> None:
        """Says that later orders read a buffer."""
        self._kept.add(buffer.whole()[0])

    def span(self, buffer: Buffer, k: int) -> Span:
        """When the rows of order k are needed. Buffers that nothing is known of are needed all the time."""
        moments = self._moments.get(buffer)
        if not moments or (buffer in self._kept and k < 2):
            return 0, self.end
        return min(moments), max(moments)


def packed_places(sizes: list[int], spans: list[Span] | None) -> tuple[list[int], int]:
    """Where blocks of these sizes start, and what they take together: blocks whose spans do not overlap may share
    memory; without spans none do. The largest blocks come first, each to the lowest place that is free.

    >>> packed_places([64, 128, 64], [(0, 1), (0, 3), (2, 3)])
    ([128, 0, 128], 192)
    >>> packed_places([], [])
    ([], 0)
    """
    places, low = [0] * len(sizes), 0
    longest = (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None
    for i, size in enumerate(sizes):  # what meets everything comes first, one after the other
        if spans is None or spans[i] == longest:
            places[i], low = low, low + size
    if spans is None:
        return places, low
    placed: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], spans[i])):
        first, last = spans[i]
        if spans[i] == longest:
            continue
        meeting = [(places[j], sizes[j]) for j in placed if spans[j][0] <= last and first <= spans[j][1]]
        heapq.heapify(meeting)
        place = low
        while meeting:
            start, size = heapq.heappop(meeting)
            if place + sizes[i] <= start:
                break
            place = max(place, start + size)
        places[i] = place
        placed.append(i)
    return places, max((place + size for place, size in zip(places, sizes, strict=True)), default=0)
