"""The base class of the emitters of a GPU, and their registry."""

from __future__ import annotations

from rop.devices.cuda.code import Code
from rop.devices.cuda.memory import Layout
from rop.devices.emission import BaseEmitter, Registry
from rop.lowering.plan import Operation

REGISTRY = Registry("rop.devices.cuda.emit")
emits = REGISTRY.emits


class Emitter(BaseEmitter[Layout]):
    """The launches of one operation, all orders of a pass at once."""

    def __init__(self, layout: Layout, operation: Operation):
        self.dtype = layout.dtype.type
        super().__init__(layout, operation)

    def forward(self, code: Code) -> None:
        """Launches kernels for the orders of y that this pass computes."""
        raise NotImplementedError

    def backward(self, code: Code) -> None:
        """Launches kernels for the gradients of the inputs and parameters."""
        raise NotImplementedError
