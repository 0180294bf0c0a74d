"""The registers of a block: operands become NumPy arrays over its threads, once, before anything runs.

Every register is a row of one buffer, and an operand is a view of that row in the type that the instruction wants. The
views stay valid, so executing an instruction is one NumPy call on arrays that are at hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.ptx.arithmetic import DTYPES, is_float, literal
from tests.helpers.ptx.parse import SIZES, Immediate, Instruction, Operand, Register, Special, Symbol, Variable
from tests.helpers.ptx.races import WARP
from tests.helpers.ptx.report import Index3

Array = np.ndarray[Any, np.dtype[Any]]


class Registers:
    """All registers, the special ones, the carry flags, and the addresses of variables."""

    def __init__(self, kinds: list[str], grid: Index3, block: Index3, addresses: dict[Variable, int]) -> None:
        threads = block[0] * block[1] * block[2]
        self.kinds, self.grid, self.addresses = kinds, grid, addresses
        self.buffer = np.zeros((len(kinds), threads), np.uint64)
        self.carry = np.zeros(threads, np.bool_)
        self.special = self._special(threads, block)

    def _special(self, threads: int, block: Index3) -> dict[str, Array]:
        number = np.arange(threads, dtype=np.uint32)
        x, y = block[0], block[1]
        special: dict[str, Array] = {"%tid.x": number % x, "%tid.y": number // x % y, "%tid.z": number // (x * y)}
        special |= {f"%ntid.{axis}": np.full(threads, size) for axis, size in zip("xyz", block, strict=True)}
        special |= {f"%nctaid.{axis}": np.full(threads, size) for axis, size in zip("xyz", self.grid, strict=True)}
        special |= {f"%ctaid.{axis}": np.zeros(threads) for axis in "xyz"}
        special |= {"%laneid": number % WARP, "%warpid": number // WARP}
        return {name: values.astype(np.uint32) for name, values in special.items()}

    def begin_block(self, index: Index3) -> None:
        """Registers start at zero. (In hardware they start undefined, and the compiler never reads them so.)"""
        self.buffer[:] = 0
        self.carry[:] = False
        for axis, position in zip("xyz", index, strict=True):
            self.special[f"%ctaid.{axis}"][:] = position

    def _row(self, register: Register) -> Array:
        """The register in its declared type; 32-bit registers fill the first half of their row."""
        dtype = DTYPES[register.type]
        return self.buffer[register.slot].view(dtype)[: self.buffer.shape[1]]

    def source(self, operand: Operand | None, kind: str, instruction: Instruction) -> Any:
        """An operand to read, in the given type: a live array, or a scalar for constants."""
        dtype = DTYPES[kind]
        if isinstance(operand, Register):
            row = self._row(operand)
            if dtype.itemsize <= row.dtype.itemsize and (kind == "pred") == (operand.type == "pred"):
                return row.view(dtype)[:: row.dtype.itemsize // dtype.itemsize]  # the low part of a wider register
        elif isinstance(operand, Special) and dtype.itemsize == 4:
            return self.special[operand.name].view(dtype)
        elif isinstance(operand, Immediate):
            return literal(operand.text, kind)
        elif isinstance(operand, Symbol) and operand.variable in self.addresses:
            return literal(str(self.addresses[operand.variable]), kind)
        raise instruction.error(f"cannot read {operand} as .{kind}")

    def pointer(self, operand: Operand, instruction: Instruction) -> Any:
        """The base of an address as int64 (a live array or a scalar)."""
        if isinstance(operand, Register) and SIZES[operand.type] == 4:
            return self.source(operand, "u32", instruction)
        return self.source(operand, "s64", instruction)

    def target(self, operand: Operand | None, kind: str, instruction: Instruction) -> Array | None:
        """A register to write a value of the given type to; None for the sink.

        A register wider than the value takes it sign-extended if the type is signed, zero-extended otherwise.
        """
        if operand is None:
            return None
        if not isinstance(operand, Register) or (kind == "pred") != (operand.type == "pred"):
            raise instruction.error(f"cannot write .{kind} to {operand}")
        row = self._row(operand)
        size = row.dtype.itemsize
        if size == SIZES[kind]:
            return row.view(DTYPES[kind])
        if size < SIZES[kind] or is_float(kind):
            raise instruction.error(f"the register of type .{operand.type} cannot hold .{kind}")
        return row.view(f"i{size}" if kind[0] == "s" else f"u{size}")
