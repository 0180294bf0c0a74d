"""Launches of a pass on a GPU, with symbolic operands.

A *region* is a flat piece of device memory; an operand is a part of one (``Part``), a table that lives as long as the
lowered network, or a number. The workspace gives regions their memory, tile by tile, and binds each launch once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from rop.devices.cuda.memory import Layout
from rop.lowering.values import ORDERS, Buffer, Value


@dataclass(frozen=True)
class Part:
    """Numbers of a region from ``start`` on, seen in a shape; the whole region as it is if there is none."""

    region: str
    start: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Instruction:
    """A kernel and its operands by name: a launch once the workspace has put them in place."""

    kernel: Any
    operands: dict[str, Any]


@dataclass
class Code:
    """The launches of one pass: all of ``orders`` at once, the parameters' gradient of those that are ``wanted``."""

    layout: Layout
    orders: tuple[int, ...]
    wanted: tuple[int, ...]
    dense: bool  # whether targets are numbers, not labels
    instructions: list[Instruction] = field(default_factory=list)

    def launch(self, kernel: Any, **operands: Any) -> None:
        """Appends an instruction."""
        self.instructions.append(Instruction(kernel, operands))

    def present(self, levels: Collection[int]) -> tuple[int, ...]:
        """The orders of this pass that a value has."""
        return tuple(k for k in self.orders if k in levels)

    def levels(self, value: Value | None = None) -> tuple[int, ...]:
        """The orders that this pass may read and, of a value, that are not zero, as kernels are specialised in them."""
        return tuple(k for k in ORDERS if k <= self.orders[-1] and (value is None or k in value.levels))

    def rows(self, buffer: Buffer, k: int) -> Part:
        """Order k of some rows (rows, lanes)."""
        lanes = self.layout.lanes
        return Part(f"plane{k}", buffer.start[k] * lanes, (buffer.rows, lanes))

    def jet(self, name: str, buffer: Buffer, levels: Iterable[int] = ORDERS) -> dict[str, Part]:
        """Operands name0, name1, name2: all orders of some rows that this pass may read or write."""
        return {f"{name}{k}": self.rows(buffer, k) for k in levels if k <= self.orders[-1]}

    def value(self, name: str, value: Value) -> dict[str, Part]:
        """Operands name0, name1, name2: the orders of a value that are not zero."""
        return self.jet(name, value.buffer, value.levels)

    def results(self, orders: Iterable[int]) -> dict[str, Part]:
        """Operands out0, out1, out2."""
        return {f"out{k}": Part(f"out{k}") for k in orders}
