"""Where the numbers of a network lie in a GPU's memory.

Beside the planes of values there are a few regions, of which every emitter reserves its part. The workspace gives them
memory, for one tile or for all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from rop.devices import emission
from rop.lowering.plan import Plan

REGIONS = (
    "chosen",  # rows of a plane of int32: which pixel max pooling has chosen
    "tables",  # numbers per order: those per channel of batch normalisation
    "partial",  # numbers per order: partial sums of a weight gradient
    "state",  # numbers for the batch as a whole: running statistics
    "energy",  # numbers per order: partial sums of the energy
)


class Layout(emission.Layout):
    """The memory of a network on tiles of a known number of lanes."""

    def __init__(self, plan: Plan, lanes: int):
        super().__init__(plan, lanes, REGIONS)

    def reserve_for_a_while(self, region: str, count: int) -> None:
        """Makes a region large enough for numbers that the operation alone uses, until its launches are through."""
        self.sizes[region] = max(self.sizes[region], count)


def table(values: Any) -> Any:
    """An index table on the device."""
    return cuda.to_device(np.ascontiguousarray(values, np.int32))
