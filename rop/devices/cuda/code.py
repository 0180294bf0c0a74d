"""Launches of a pass on a GPU, with symbolic operands.

A *room* is a flat piece of device memory; an operand is a part of one (``Part``), a table that lives as long as the
lowered network, or a number. The workspace gives rooms their memory, tile by tile, and binds each launch once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import cuda

from rop.devices.cpu.code import ORDERS, Buffer
from rop.errors import DeviceError
from rop.lowering.plan import Plan, Value


@dataclass(frozen=True)
class Part:
    """Numbers of a room from ``start`` on, seen in a shape; the whole room as it is if there is none."""

    room: str
    start: int = 0
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Launch:
    """A kernel and its operands by name."""

    kernel: Any
    operands: dict[str, Any]


@dataclass
class Rooms:
    """How much memory beside the planes operations need: numbers per tile, or for all of them."""

    chosen: int = 0  # rows of a plane of int32
    tables: int = 0  # numbers per order
    partial: int = 0  # of whoever needs most: it is free again at once
    state: int = 0  # for the batch as a whole
    blocks: int = 0  # partial sums of the energy of each order

    def reserve(self, name: str, count: int) -> int:
        """Takes so many numbers; returns where they start."""
        start: int = getattr(self, name)
        setattr(self, name, start + count)
        return start


@dataclass
class Code:
    """The launches of one pass: all of ``orders`` at once, the parameters' gradient of those that are ``wanted``."""

    plan: Plan
    orders: tuple[int, ...]
    wanted: tuple[int, ...]
    dense: bool  # whether targets are numbers, not labels
    launches: list[Launch] = field(default_factory=list)

    def launch(self, kernel: Any, **operands: Any) -> None:
        self.launches.append(Launch(kernel, operands))

    def present(self, levels: Collection[int]) -> tuple[int, ...]:
        """The orders of this pass that a value has."""
        return tuple(k for k in self.orders if k in levels)

    def levels(self, value: Value | None = None) -> tuple[int, ...]:
        """The orders that this pass may read and, of a value, that are not zero, as kernels are specialised in them."""
        return tuple(k for k in ORDERS if k <= self.orders[-1] and (value is None or k in value.levels))

    def rows(self, buffer: Buffer, k: int) -> Part:
        """Order k of some rows (rows, lanes)."""
        return Part(f"plane{k}", buffer.start[k] * self.plan.lanes, (buffer.rows, self.plan.lanes))

    def jet(self, name: str, buffer: Buffer, levels: Iterable[int] = ORDERS) -> dict[str, Part]:
        """Operands name0, name1, name2: all orders of some rows that this pass may read or write."""
        return {f"{name}{k}": self.rows(buffer, k) for k in levels if k <= self.orders[-1]}

    def value(self, name: str, value: Value) -> dict[str, Part]:
        return self.jet(name, value.buffer, value.levels)

    def results(self, orders: Iterable[int]) -> dict[str, Part]:
        """Operands out0, out1, out2."""
        return {f"out{k}": Part(f"out{k}") for k in orders}


class Emitter:
    """What one operation contributes to a pass; made once, last operation first."""

    def __init__(self, plan: Plan, rooms: Rooms, operation: Any):
        self.plan, self.operation, self.dtype = plan, operation, plan.dtype.type
        self.prepare(rooms)

    def prepare(self, rooms: Rooms) -> None:
        """Makes tables and takes memory."""

    def forward(self, code: Code) -> None:
        raise NotImplementedError

    def backward(self, code: Code) -> None:
        raise NotImplementedError


def launched(launches: Mapping[type, Any], kind: type) -> Any:
    """What is launched for a kind of operation or loss; not everything that a CPU computes need be known here."""
    if kind not in launches:
        raise DeviceError(
            f"device 'cuda': there are no kernels for {kind.__name__} on a GPU, only for "
            f"{', '.join(known.__name__ for known in launches)}; use device='cpu'"
        )
    return launches[kind]


def table(values: Any) -> Any:
    """An index table on the device."""
    return cuda.to_device(np.ascontiguousarray(values, np.int32))
