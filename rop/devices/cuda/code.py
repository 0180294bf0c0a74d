"""Launches of a pass on a GPU, with symbolic operands.

A *region* is a flat piece of device memory; an operand is a part of one (``Part``) or such a part for each order
(``Jet``), a table that lives as long as the lowered network, or a number. The workspace gives regions their memory,
tile by tile, and binds each launch once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from rop.devices.cuda.memory import Layout
from rop.kernels.cuda.compile import Specialisation
from rop.lowering.values import ORDERS, Buffer, Value


@dataclass(frozen=True)
class Part:
    """Numbers of a region from ``start`` on, seen in a shape; the whole region as it is if there is none."""

    region: str
    start: int = 0
    shape: tuple[int, ...] | None = None


Jet = tuple[Part | None, ...]  # a part for each order; None for an order that a kernel neither reads nor writes
Operand = Any  # Part, Jet, a table on the device, a number, or a tuple of numbers


def jet_of(part: Callable[[int], Part], orders: Collection[int]) -> Jet:
    """The parts of these orders."""
    return tuple(part(k) if k in orders else None for k in ORDERS)


@dataclass(frozen=True)
class Instruction:
    """A kernel and its operands by name: a launch once the workspace has put them in place."""

    kernel: Specialisation
    operands: dict[str, Operand]


@dataclass
class Code:
    """The launches of one pass: all of ``orders`` at once, the parameters' gradient of those that are ``wanted``."""

    layout: Layout
    orders: tuple[int, ...]
    wanted: tuple[int, ...]
    dense: bool  # whether targets are numbers, not labels
    instructions: list[Instruction] = field(default_factory=list)

    def launch(self, kernel: Specialisation, **operands: Operand) -> None:
        """Appends an instruction."""
        self.instructions.append(Instruction(kernel, operands))

    def present(self, levels: Collection[int]) -> tuple[int, ...]:
        """The orders of this pass that a value has."""
        return tuple(k for k in self.orders if k in levels)

    def levels(self, value: Value | None = None) -> tuple[int, ...]:
        """The orders that this pass may read and, of a value, that are not zero, as kernels are specialised in them."""
        return self.readable(ORDERS if value is None else value.levels)

    def readable(self, levels: Collection[int]) -> tuple[int, ...]:
        """Those of some orders that this pass may read: its own, and lower ones."""
        return tuple(k for k in ORDERS if k <= self.orders[-1] and k in levels)

    def rows(self, buffer: Buffer, k: int) -> Part:
        """Order k of some rows (rows, lanes)."""
        lanes = self.layout.lanes
        return Part(f"plane{k}", self.layout.start(buffer, k) * lanes, (buffer.rows, lanes))

    def jet(self, buffer: Buffer, levels: Collection[int] = ORDERS) -> Jet:
        """All orders of some rows that this pass may read or write."""
        return jet_of(lambda k: self.rows(buffer, k), self.readable(levels))

    def value(self, value: Value) -> Jet:
        """The orders of a value that are not zero."""
        return self.jet(value.buffer, value.levels)

    def results(self, orders: Collection[int]) -> Jet:
        """The parameters' gradient of these orders."""
        return jet_of(lambda k: Part(f"out{k}"), orders)
