"""A batch as workspaces read it, and how much of what is computed for it is kept."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from rop.errors import ArgumentError, say
from rop.layers.loss import Targets
from rop.lowering import Plan

LEAST_MEMORY = 1 << 30  # bytes of activations that are kept between passes on the smallest machine
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")  # what a container may use, on Linux


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Bytes of memory that the machine, or the container, has; 0 if the system does not tell."""
    total = 0
    with suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(ValueError, OSError):  # "max" is no number: no limit
        total = min(total, int(CONTROL_GROUP.read_text()))
    return total


def default_memory() -> int:
    """Bytes of activations that are kept between passes unless the user says how many: half of the machine's memory.
    Results do not depend on it.

    >>> default_memory() >= LEAST_MEMORY
    True
    """
    return max(LEAST_MEMORY, machine_memory() // 2)


@dataclass(eq=False)
class Data:
    """One batch, in the form in which kernels read it."""

    x: np.ndarray  # (batch, features)
    targets: Targets | None
    scale: float
    samples: np.ndarray  # (tiles · lanes,) sample of each lane; ~i is a copy of i that does not count

    def addresses(self, outputs: np.ndarray | None = None) -> dict[str, int]:
        """Addresses of the arrays of a batch in the host's memory, 0 for those that it does not have."""
        labels, dense, weight = (
            (self.targets.labels, self.targets.dense, self.targets.weight) if self.targets else (None, None, None)
        )
        arrays = {"x": self.x, "samples": self.samples, "outputs": outputs}
        arrays |= {"labels": labels, "dense": dense, "weight": weight}
        return {name: 0 if array is None else int(array.ctypes.data) for name, array in arrays.items()}


def lane_samples(batch: int, lanes: int) -> np.ndarray:
    """Samples 0, 1, …, padded to whole tiles with copies of the last one, (tiles · lanes,)."""
    samples = np.full(-(-batch // lanes) * lanes, ~(batch - 1), np.int64)
    samples[:batch] = np.arange(batch)
    return samples


def orders_kept(plan: Plan, tile_bytes: int, tiles: int, chunk: int, batch: int, limit: int | None) -> int:
    """How many orders of the whole batch stay resident between passes: 3, 1 (order 0 only) or 0 (all are computed
    again). ``tile_bytes`` is the size of one order of a tile, ``chunk`` the number of tiles computed together. Without
    a limit it is that of ``default_memory``, but batch statistics may take all of the machine's memory."""
    usual = default_memory() if limit is None else limit
    if tiles > chunk:
        return next((orders for orders in (3, 1) if orders * tile_bytes * tiles <= usual), 0)
    needed = 3 * tile_bytes * tiles
    if plan.coupled and needed > usual:
        layer = plan.normalisations[0].layer
        what = (
            f"layer {plan.graph.name_of(layer)} ({layer.describe()}): batch statistics need all activations at once, "
            f"{needed:,} bytes for {batch:,} samples"
        )
        if limit is None and needed <= machine_memory():
            say(f"{what}, more than half of the machine's memory; smaller batches or training=False need less")
        else:
            most = f"a memory_limit of {usual:,}" if limit is not None else f"a machine with {machine_memory():,}"
            remedy = "a larger memory_limit, " if limit is not None else ""
            raise ArgumentError(f"{what}, got {most}; use smaller batches, {remedy}or training=False")
    return 3
