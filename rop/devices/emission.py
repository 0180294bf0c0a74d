"""What the devices have in common when they make instructions of the operations of a network.

An *emitter* makes the instructions of one operation on one device. It is made once, last operation first, and takes the
memory it needs from the device's *layout*; then ``forward`` and ``backward`` emit its part of each pass. A family of
emitters says what it is for where it is defined:

    @emits(SoftmaxOperation)
    class EmitSoftmax(Emitter): ...

Emitters of the operations in rop/lowering/<family>.py are in rop/devices/<device>/emit/<family>.py, a file that is
imported when the first operation of the family is met.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from rop.lowering.loss import LossOperation
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import import_families
from rop.lowering.values import ORDERS, Buffer

Kind = TypeVar("Kind", bound=type)


class BaseLayout:
    """Where the numbers of a network lie in the memory of a device, for tiles of a known number of lanes.

    ``sizes`` counts the numbers that emitters have reserved in each region beside the planes of values; ``starts`` has
    where each buffer that has rows of its own starts in the plane of each order, in a unit that the device chooses.
    """

    def __init__(self, plan: Plan, lanes: int, regions: tuple[str, ...]):
        self.plan, self.lanes = plan, lanes
        self.dtype, self.itemsize = plan.dtype, plan.itemsize
        self.sizes = dict.fromkeys(regions, 0)
        self.starts: dict[tuple[Buffer, int], int] = {}
        self.plane_sizes = dict.fromkeys(ORDERS, 0)  # in the same unit

    @property
    def lane_bytes(self) -> int:
        """Bytes of a row of a tile."""
        return self.lanes * self.itemsize

    def reserve(self, region: str, count: int) -> int:
        """Takes numbers in a region; returns where they start."""
        start = self.sizes[region]
        self.sizes[region] += count
        return start

    def need_room(self, region: str, count: int) -> None:
        """Makes a region large enough for numbers that one operation needs for a while; all use the same memory."""
        self.sizes[region] = max(self.sizes[region], count)

    def place(self) -> None:
        """Gives every buffer its place in the planes, after emitters have reserved what they need."""
        raise NotImplementedError

    def start(self, buffer: Buffer, k: int) -> int:
        """Where a buffer starts in the plane of order k."""
        whole, first = buffer.whole()
        return self.starts[whole, k] + first * self.row_size(whole)

    def row_size(self, buffer: Buffer) -> int:
        """What a row of a buffer takes, in the unit of ``starts``."""
        raise NotImplementedError

    def read(self, words: np.ndarray, buffer: Buffer) -> np.ndarray:
        """Order 0 of some rows (tiles, rows, lanes), from the plane (tiles, words) of tiles in the host's memory."""
        raise NotImplementedError


LayoutOf = TypeVar("LayoutOf", bound=BaseLayout)


class BaseEmitter(Generic[LayoutOf]):
    """The part of one operation in all passes on one device."""

    operation: Any  # each emitter says of which class

    def __init__(self, layout: LayoutOf, operation: Operation):
        self.plan, self.layout, self.operation = layout.plan, layout, operation
        self.reserve()

    @classmethod
    def version(cls, operation: Operation, layout: LayoutOf) -> type[BaseEmitter[LayoutOf]]:
        """The class that suits an operation in a layout."""
        return cls

    def reserve(self) -> None:
        """Takes memory of the layout and makes tables; last operation first."""


EmitterOf = TypeVar("EmitterOf", bound=BaseEmitter[Any])


class Registry:
    """The emitters of one device, by the class of the operation, or of the loss, that they are for."""

    def __init__(self, package: str):
        self.package = package  # where the families are
        self.emitters: dict[type, Any] = {}

    def emits(self, *kinds: type) -> Callable[[Kind], Kind]:
        """Registers a class as the emitter of these kinds of operations or losses."""

        def register(emitter: Kind) -> Kind:
            self.emitters.update(dict.fromkeys(kinds, emitter))
            return emitter

        return register

    def find(self, operation: Operation) -> Any:
        """The emitter class of an operation, or None if the device has none."""
        if operation.kind not in self.emitters:
            self._import_family(type(operation).__module__.rpartition(".")[2])
        return self.emitters.get(operation.kind)

    def _import_family(self, family: str) -> None:
        """Imports the file of a family, if there is one."""
        name = f"{self.package}.{family}"
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise

    def all(self) -> dict[type, Any]:
        """Every emitter that there is, those of files that have not been imported yet among them."""
        import_families(self.package)
        return self.emitters


class BaseLowered(Generic[LayoutOf, EmitterOf]):
    """A network on tiles of a known number of lanes: its emitters, and the memory they need."""

    def __init__(self, layout: LayoutOf, registry: Registry):
        self.plan, self.layout, self._registry = layout.plan, layout, registry
        backwards = [self._emitter(operation) for operation in reversed(self.plan.operations)]
        self.emitters: list[EmitterOf] = backwards[::-1]
        layout.place()

    def _emitter(self, operation: Operation) -> EmitterOf:
        kind = self._registry.find(operation)
        if kind is None:
            raise self.missing(operation)
        emitter: EmitterOf = kind.version(operation, self.layout)(self.layout, operation)
        return emitter

    def missing(self, operation: Operation) -> Exception:
        """The error for an operation that has no emitter on this device: by default it is one of ours."""
        return NotImplementedError(
            f"{operation.where}: there is no emitter for {operation.kind.__name__} in {self._registry.package}"
        )

    def backwards(self) -> Iterator[EmitterOf]:
        """Emitters in the order of the backward pass, those that have a gradient to pass on."""
        for emitter in reversed(self.emitters):
            operation = emitter.operation
            if operation.y.needs_gradient and not isinstance(operation, LossOperation):
                yield emitter
