"""From the operations of a network to launches on a GPU.

The operations, their values, orders and gradients are those of rop/lowering; an *emitter* for each of them launches
kernels of rop/kernels/cuda, all orders of a pass at once. Files are named as there, and as in rop/devices/cpu/emit.
The batch is one tile, or a few if it is large: rows are (pixel, channel) as on the CPU, samples are side by side.
"""

from __future__ import annotations

from functools import cached_property

from rop.devices.cuda.code import Code
from rop.devices.cuda.emit.base import REGISTRY, Emitter
from rop.devices.cuda.emit.batchnorm import EmitBatchNorm
from rop.devices.cuda.emit.linear_maps import add_uses
from rop.devices.cuda.emit.rectified import rectify_gradient
from rop.devices.cuda.memory import Layout
from rop.devices.emission import BaseLowered
from rop.errors import DeviceError
from rop.lowering.plan import Operation, Plan

__all__ = ["Lowered"]


class Lowered(BaseLowered[Layout, Emitter]):
    """A network on tiles of a known number of lanes: its emitters, the memory they need, and its passes."""

    def __init__(self, plan: Plan, lanes: int):
        super().__init__(Layout(plan, lanes), REGISTRY)

    def missing(self, operation: Operation) -> Exception:
        """Not every layer of the CPU need have kernels on a GPU."""
        return DeviceError(
            f"{operation.where}: there are no kernels for {operation.kind.__name__} on a GPU (no emitter for it in "
            f"{REGISTRY.package}); use device='cpu'"
        )

    @cached_property
    def normalisations(self) -> list[EmitBatchNorm]:
        """The emitters of batch normalisation."""
        return [emitter for emitter in self.emitters if isinstance(emitter, EmitBatchNorm)]

    def emit_pass(self, orders: tuple[int, ...], wanted: tuple[int, ...], dense: bool) -> Code:
        """One pass: ``orders`` forward and backward at once, the parameters' gradient of those that are ``wanted``."""
        code = Code(self.layout, orders, wanted, dense)
        for emitter in self.emitters:
            emitter.forward(code)
        for emitter in self.backwards():
            add_uses(code, emitter.operation)
            rectify_gradient(code, emitter.operation)
            emitter.backward(code)
        return code
