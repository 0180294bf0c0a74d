"""K-FAC beside compiled steps: its direction is a pass among theirs, its factors are taken in between two calls."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.preconditioner import Place, Preconditioner
from rop.devices.cpu.workspace import CpuWorkspace
from rop.graph import Graph
from rop.objective import Point
from rop.optim import KFAC, Memory
from rop.optim.kfac import places


class NaturalDirection:
    """The direction of K-FAC for the steps of a workspace.

    Args:
        method: the optimizer.
        net: its net.
        space: the workspace of the steps.
        memory: that of the optimizer; the factors and their eigenvectors are in it.
    """

    def __init__(self, method: KFAC, net: Graph, space: CpuWorkspace, memory: Memory):
        self._method, self._memory = method, memory
        self._groups = [len(index) for index in places(net).values()]
        blocks = [_place(index) for of_layer in places(net).values() for index in of_layer]
        self._pass = Preconditioner(space.memory, space.dtype, blocks, method.kl_clip or 0.0)
        self._before: Memory = {}  # what ``prepare`` has changed
        self.bound = self._pass.bound
        self.rate_address = int(self._pass.rate.ctypes.data)
        self.load()

    def load(self) -> None:
        """Hands the eigenvectors in memory over to the pass."""
        matrices = (self._method.inverse(self._memory, i) for i in range(len(self._groups)))
        for i, of_group in enumerate(group for of_layer in matrices for group in zip(*of_layer, strict=True)):
            self._pass.put(i, *of_group)

    def is_due(self, done: int) -> bool:
        """Whether there is something to prepare before the step that comes after so many."""
        return self._method.is_due(done + 1, self._memory)

    def prepare(self, point: Point, done: int, seed: int) -> None:
        """Takes in factors and decomposes them, whichever it is time for; ``undo`` takes it back."""
        self._before = {name: array.copy() for name, array in self._memory.items()}
        with np.errstate(over="ignore", invalid="ignore"):  # the trainer checks that the parameters are finite
            if self._method.prepare(point, done + 1, seed, self._memory):
                self.load()

    def undo(self) -> None:
        """Takes back what was prepared last: its step was not made."""
        for name, array in self._before.items():
            self._memory[name][...] = array
        self.load()

    def steps(self, done: int, most: int) -> int:
        """How many steps can be made after so many before something is due again, this one included."""
        method = self._method
        return min(most, *(every - done % every for every in (method.covariance_every, method.inverse_every)))


def _place(index: np.ndarray) -> Place:
    """Where a block stands, from the positions of its [W b] (outputs, inputs + bias). A bias right behind the only row
    of W is as good as one more column."""
    outputs, columns = index.shape
    has_bias = bool(index[0, -1] != index[0, 0] + columns - 1)
    return Place(outputs, columns - has_bias, int(index[0, 0]), int(index[0, -1]) if has_bias else None)
