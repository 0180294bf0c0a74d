"""What every emitter of the CPU has in common."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Operand, Ref, Word
from rop.devices.cpu.memory import Layout
from rop.devices.emission import BaseEmitter, Registry
from rop.kernels.compile import Kernel
from rop.lowering.values import ORDERS, Buffer

REGISTRY = Registry("rop.devices.cpu.emit")
emits = REGISTRY.emits
SLICES = 8  # units of an instruction that is divided among threads


class Emitter(BaseEmitter[Layout]):
    """The instructions of one operation, order by order: k is the order, ``direction`` the number of the direction."""

    is_wide = False  # whether it has instructions over all tiles after they are through

    def on_rows(
        self, code: Code, kernel: Kernel, buffer: Buffer, follows: bool = False, /, **operands: Operand
    ) -> None:
        """An instruction on the rows of a buffer; see Code.rows."""
        code.rows(kernel, buffer.rows, self.layout.row_size(buffer), follows, **operands)

    def prepare(self, code: Code, k: int, direction: int) -> None:
        """Instructions before the tiles start."""

    def forward(self, code: Code, k: int, direction: int) -> None:
        """Order k of y, from orders ≤ k of the inputs."""
        raise NotImplementedError

    def backward(self, code: Code, k: int, direction: int) -> None:
        """Order k of the gradients of the inputs and parameters, from orders ≤ k of that of y."""
        raise NotImplementedError

    def wide(self, code: Code, k: int, direction: int, out: Ref) -> None:
        """Instructions over all tiles, after they are through; ``out`` is the parameters' gradient."""


def sum_of(terms: list[tuple[Ref, Ref]]) -> tuple[Word, ...]:
    """The operand ``terms`` of a sum over orders: their number and their factors; the kernel reads no others."""
    full = terms + [terms[0]] * (len(ORDERS) - len(terms))
    return len(terms), *(factor for pair in full for factor in pair)
