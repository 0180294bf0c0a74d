"""From the operations of a network to launches on a GPU.

The operations, their values, orders and gradients are those of rop/lowering; an *emitter* for each of them launches
kernels of rop/kernels/cuda, all orders of a pass at once. Files are named as there. The batch is one tile, or a few if
it is large: rows are (pixel, channel) as on the CPU, samples are side by side.
"""

from __future__ import annotations

from rop.devices.cuda.code import Code, Emitter, Launch, Part, Rooms, launched
from rop.devices.cuda.emit.batchnorm import EmitBatchNorm
from rop.devices.cuda.emit.bilinear import EmitProducts
from rop.devices.cuda.emit.data import EmitInput
from rop.devices.cuda.emit.elementwise import EmitActivation
from rop.devices.cuda.emit.linear_maps import EmitAveragePool, EmitConcatenation, EmitPermutation, EmitSum, add_uses
from rop.devices.cuda.emit.loss import EmitLoss
from rop.devices.cuda.emit.select import EmitMaxPool, EmitRectify
from rop.devices.cuda.emit.softmax import EmitSoftmax
from rop.lowering.batchnorm import BatchNormOperation
from rop.lowering.bilinear import ConvProducts, LinearProducts
from rop.lowering.data import InputOperation
from rop.lowering.elementwise import Activation
from rop.lowering.linear_maps import AveragePool, Concatenation, PermuteOperation, Sum
from rop.lowering.loss import LossOperation
from rop.lowering.plan import Operation, Plan
from rop.lowering.select import MaxPool, Rectify
from rop.lowering.softmax import SoftmaxOperation

__all__ = ["EMITTERS", "Launch", "Lowered", "Part", "Rooms"]

EMITTERS: dict[type[Operation], type[Emitter]] = {
    InputOperation: EmitInput,
    LinearProducts: EmitProducts,
    ConvProducts: EmitProducts,
    Activation: EmitActivation,
    Rectify: EmitRectify,
    MaxPool: EmitMaxPool,
    AveragePool: EmitAveragePool,
    PermuteOperation: EmitPermutation,
    Sum: EmitSum,
    Concatenation: EmitConcatenation,
    SoftmaxOperation: EmitSoftmax,
    BatchNormOperation: EmitBatchNorm,
    LossOperation: EmitLoss,
}


class Lowered:
    """A network on tiles of a known number of lanes: its emitters, and the memory they need."""

    def __init__(self, plan: Plan):
        self.plan, self.rooms = plan, Rooms()
        backwards = [
            launched(EMITTERS, type(operation))(plan, self.rooms, operation) for operation in reversed(plan.operations)
        ]
        self.emitters = backwards[::-1]

    @property
    def normalisations(self) -> list[EmitBatchNorm]:
        return [emitter for emitter in self.emitters if isinstance(emitter, EmitBatchNorm)]

    def launches(self, orders: tuple[int, ...], wanted: tuple[int, ...], dense: bool) -> list[Launch]:
        """One pass: ``orders`` forward and backward at once, the parameters' gradient of those that are ``wanted``."""
        code = Code(self.plan, orders, wanted, dense)
        for emitter in self.emitters:
            emitter.forward(code)
        for emitter in reversed(self.emitters):
            operation = emitter.operation
            if operation.y.needs_gradient and not isinstance(operation, LossOperation):
                add_uses(code, operation)
                emitter.backward(code)
        return code.launches
