"""A network as a program: instructions over flat memory, divided into stages.

``Code`` collects the instructions of a pass, with symbolic operands (``Ref``: a region of memory and an offset).
``Bound`` gives the regions their addresses and makes the table that the interpreter runs. Emitters in
rop/devices/cpu/emit/ add the instructions of each layer; memory.py decides where everything lies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from rop.devices.cpu.threads import Pace
from rop.devices.emission import BaseEmitter
from rop.kernels.compile import Kernel
from rop.kernels.cpu.interpreter import OPERANDS, ROW, STAGE, TILES

LEAST_SLICES, MOST_SLICES = 8, 64  # of the rows of an instruction; between them, as many as give slices of …
SLICE_BYTES = 1 << 17  # … this size: the instructions of a stage find in the cache what the one before has read
EVERYWHERE = "all layers"  # for which an instruction is that no single layer asks for

Emitting = TypeVar("Emitting", bound=BaseEmitter[Any])


@dataclass(frozen=True)
class Ref:
    """An address that is known later: ``offset`` bytes into a region, moving by ``step`` bytes per unit."""

    region: str
    offset: int = 0
    step: int | None = None  # None: the region's own step per tile

    def plus(self, offset: int) -> Ref:
        return Ref(self.region, self.offset + offset, self.step)


Word = int | float | Ref
Operand = Word | tuple[Word, ...]


@dataclass
class Instruction:
    """A kernel, the words of its operands, in the order in which the kernel takes them, and the layer it works for."""

    kernel: Kernel
    words: tuple[Word, ...]
    where: str


@dataclass
class Stage:
    """Instructions that every unit runs, units in parallel; ``units`` TILES means as many as the chunk has tiles."""

    units: int
    kind: str = ""  # the method of Code that made it: only its own kind may join
    instructions: list[Instruction] = field(default_factory=list)


class Code:
    """The instructions of one pass, in order. Neighbouring instructions for the same units share a stage.

    ``slices`` says that there is one tile, whose instructions are divided into slices of the rows for threads to share.
    """

    out: Ref  # where the parameters' gradient of the current order goes, if it is wanted

    def __init__(self, slices: bool = False) -> None:
        self.slices = slices
        self.stages: list[Stage] = []
        self.wanted = False  # whether the parameters' gradient of the current order is wanted,
        self.sums = 0  # and from which set of partial sums it will be collected
        self._where = EVERYWHERE

    def for_each(self, emitters: Iterable[Emitting]) -> Iterator[Emitting]:
        """The emitters in turn; the instructions that each adds are known by the name of its layer."""
        for emitter in emitters:
            self._where = emitter.operation.where
            yield emitter
        self._where = EVERYWHERE

    def _add(self, kind: str, units: int, kernel: Kernel, operands: dict[str, Operand], join: bool) -> None:
        missing = set(kernel.operands) ^ set(operands)
        assert not missing, f"{kernel.name}: operands {sorted(missing)} do not match"
        if not (join and self.stages and (self.stages[-1].kind, self.stages[-1].units) == (kind, units)):
            self.stages.append(Stage(units, kind))
        words: list[Word] = []
        for name, count in kernel.operands.items():
            operand = operands[name]
            given = operand if isinstance(operand, tuple) else (operand,)
            assert len(given) == count, f"{kernel.name}: {name} takes {count} words, not {len(given)}"
            words += given
        self.stages[-1].instructions.append(Instruction(kernel, tuple(words), self._where))

    def tile(self, kernel: Kernel, **operands: Operand) -> None:
        """An instruction for every tile."""
        self._add("tile", TILES, kernel, operands, join=True)

    def once(self, kernel: Kernel, **operands: Operand) -> None:
        """An instruction for the batch as a whole, after all tiles have come so far."""
        self._add("once", 1, kernel, operands, join=True)

    def rows(self, kernel: Kernel, rows: int, size: int, follows: bool = False, /, **operands: Operand) -> None:
        """An instruction on some rows, of ``size`` bytes each: for every tile, or for slices of the rows. With
        ``follows`` every slice reads only what the same slice of the instruction before it has written."""
        if not self.slices:
            self.tile(kernel, part=(0, 1), **operands)
            return
        parts = min(rows, MOST_SLICES, max(LEAST_SLICES, rows * size // SLICE_BYTES))
        self._add("rows", parts, kernel, {"part": (Ref("number", 0, 1), parts), **operands}, join=follows)

    def alone(self, units: int, kernel: Kernel, **operands: Operand) -> None:
        """An instruction with units and a stage of its own."""
        self._add("alone", units, kernel, operands, join=False)

    def split(self, units: int, kernel: Kernel, **operands: Operand) -> None:
        """An instruction divided into units of its own."""
        self._add("split", units, kernel, operands, join=units > 1)

    def barrier(self) -> None:
        """What follows starts a stage of its own."""
        self.stages.append(Stage(TILES))

    def functions(self, dtype: Any) -> set[str]:
        """The cache's names of the kernels that can be compiled ahead of use."""
        kernels = {instruction.kernel for stage in self.stages for instruction in stage.instructions}
        return {kernel.entry_name(dtype) for kernel in kernels if kernel.ahead}


@dataclass(frozen=True)
class Region:
    """Memory with an address: ``step`` bytes per tile; ``whole`` says that it holds every tile of the batch, not only
    those of one chunk."""

    address: int
    step: int = 0
    whole: bool = False


def _table_row(values: Iterable[Word], regions: dict[str, Region], slices: bool) -> np.ndarray:
    """Base, step per unit and step per chunk of each word. Units that are slices are in the same tile."""
    words = np.zeros((3, OPERANDS), np.int64)
    for i, value in enumerate(values):
        if isinstance(value, Ref):
            region = regions[value.region]
            own = 0 if slices else region.step
            step = own if value.step is None else value.step
            words[:, i] = region.address + value.offset, step, region.step if region.whole else 0
        elif isinstance(value, float):
            words[0, i] = struct.unpack("<q", struct.pack("<d", value))[0]
        else:
            words[0, i] = value
    return words


class Bound:
    """A pass with all addresses filled in: what the interpreter runs."""

    def __init__(self, code: Code, regions: dict[str, Region], dtype: Any):
        stages = [stage for stage in code.stages if stage.instructions]
        self.table = np.zeros((sum(len(stage.instructions) for stage in stages), ROW), np.int64)
        self.stages = np.zeros((len(stages), STAGE), np.int64)
        self.names = [instruction.kernel.name for stage in stages for instruction in stage.instructions]
        self.places = [instruction.where for stage in stages for instruction in stage.instructions]
        self._moving: dict[str, list[tuple[int, int, int]]] = {}  # region -> row, word, offset in it
        row = 0
        for s, stage in enumerate(stages):
            self.stages[s] = row, row + len(stage.instructions), stage.units
            for instruction in stage.instructions:
                self.table[row, 0] = instruction.kernel.address(dtype)
                self.table[row, 1:] = _table_row(instruction.words, regions, code.slices).ravel()
                for i, word in enumerate(instruction.words):
                    if isinstance(word, Ref):
                        self._moving.setdefault(word.region, []).append((row, i, word.offset))
                row += 1
        self.pace = Pace()
        # as plain integers: asking an array for its address costs a microsecond
        self.length = len(self.table)
        self.address = int(self.table.ctypes.data), int(self.stages.ctypes.data), len(stages)

    def alone(self, row: int) -> np.ndarray:
        """The stages of a pass that has this one instruction only."""
        (units,) = (units for first, end, units in self.stages.tolist() if first <= row < end)
        return np.array([[row, row + 1, units]], np.int64)

    def move(self, addresses: dict[str, int]) -> None:
        """Puts other arrays of the same layout in place: new addresses for movable regions."""
        for region, address in addresses.items():
            for row, i, offset in self._moving.get(region, ()):
                self.table[row, 1 + i] = address + offset
