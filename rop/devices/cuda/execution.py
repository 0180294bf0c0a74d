"""Running a pass: its launches are bound to the memory of each tile once, then run tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rop.devices.cuda.code import Instruction, Operand, Part
from rop.devices.cuda.emit import Lowered
from rop.devices.cuda.regions import Regions
from rop.kernels.cuda.compile import Launch

PassKey = tuple[tuple[int, ...], tuple[int, ...], bool]  # arguments of ``Lowered.emit_pass``


class Execution:
    """Runs passes over the tiles of a workspace's regions."""

    def __init__(self, lowered: Lowered, memory: Regions):
        self._lowered, self._memory = lowered, memory
        self._passes: dict[PassKey, list[list[Launch]]] = {}  # launches by tile

    def run(self, orders: tuple[int, ...], wanted: tuple[int, ...], dense: bool) -> Iterator[int]:
        """Runs a pass; yields the number of each tile when its launches are through."""
        for tile, launches in enumerate(self._bound((orders, wanted, dense))):
            for launch in launches:
                launch()
            yield tile

    def _bound(self, key: PassKey) -> list[list[Launch]]:
        if key not in self._passes:
            instructions = self._lowered.emit_pass(*key).instructions
            tiles = range(self._memory.tiles)
            self._passes[key] = [[self.bind(one, tile) for one in instructions] for tile in tiles]
        return self._passes[key]

    def bind(self, instruction: Instruction, tile: int) -> Launch:
        """The launch of an instruction on the memory of a tile."""
        operands = {name: self._placed(operand, tile) for name, operand in instruction.operands.items()}
        return instruction.kernel.bind(**operands)

    def _placed(self, operand: Operand, tile: int) -> Any:
        """An operand with the memory of a tile in place of symbolic parts."""
        if isinstance(operand, Part):
            return self._memory.view(operand, tile)
        if isinstance(operand, tuple):
            return tuple(self._placed(part, tile) for part in operand)
        return operand
