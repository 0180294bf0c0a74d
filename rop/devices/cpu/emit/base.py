"""What every emitter of the CPU has in common."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.memory import Layout
from rop.devices.emission import BaseEmitter, Registry

REGISTRY = Registry("rop.devices.cpu.emit")
emits = REGISTRY.emits
SLICES = 8  # units of an instruction that is divided among threads


class Emitter(BaseEmitter[Layout]):
    """The instructions of one operation, order by order: k is the order, ``direction`` the number of the direction."""

    is_wide = False  # whether it has instructions over all tiles after they are through

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
