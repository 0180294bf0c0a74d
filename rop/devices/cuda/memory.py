"""Where the numbers of a network lie in a GPU's memory.

Beside the planes of values there are a few regions, of which every emitter reserves its part; ``regions.py`` allocates
them, for one tile or for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import cuda

from rop.devices.emission import BaseLayout
from rop.lowering.plan import Plan
from rop.lowering.values import Buffer

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

REGIONS = (
    "chosen",  # rows of a plane of int32: which pixel max pooling has chosen
    "tables",  # numbers per order: channel tables of batch normalisation
    "partial",  # numbers per order: partial sums of a weight gradient
    "state",  # numbers for the batch as a whole: running statistics
    "energy",  # numbers per order: partial sums of the energy
)


class Layout(BaseLayout):
    """The memory of a network on tiles of a known number of lanes."""

    def __init__(self, plan: Plan, lanes: int):
        super().__init__(plan, lanes, REGIONS)

    def place(self) -> None:
        """One buffer after another, in rows: all orders of a pass run at once, so that all are needed till its end."""
        for buffer in self.plan.buffers:
            for k in buffer.orders if buffer.inside is None else ():
                self.starts[buffer, k] = self.plane_sizes[k]
                self.plane_sizes[k] += buffer.rows

    def row_size(self, buffer: Buffer) -> int:
        return 1

    def read(self, words: np.ndarray, buffer: Buffer) -> np.ndarray:
        start = self.start(buffer, 0) * self.lanes
        return words[:, start : start + buffer.rows * self.lanes].reshape(-1, buffer.rows, self.lanes)


def table(values: np.ndarray) -> DeviceNDArray:
    """An index table on the device."""
    return cuda.to_device(np.ascontiguousarray(values, np.int32))


def padded(owner: np.ndarray, members: np.ndarray, owners: int, fill: float = -1) -> np.ndarray:
    """Members listed by owner (owners, most), in their order, filled up at the end.

    >>> padded(np.array([0, 0, 2]), np.array([5, 6, 7]), 3)
    array([[ 5,  6],
           [-1, -1],
           [ 7, -1]])
    """
    order = np.argsort(owner, kind="stable")
    owner, members = owner[order], members[order]
    counts = np.bincount(owner, minlength=owners)
    result = np.full((owners, max(1, counts.max(initial=0))), fill, members.dtype)
    result[owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)] = members
    return result
