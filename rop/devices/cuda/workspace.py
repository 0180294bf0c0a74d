"""The workspace of one network on batches of one size in a GPU's memory.

A batch of B samples is one tile of lanes, padded to whole warps, or a few tiles if it is large. Tiles depend on the
network and on B only and are added up in their order, sums within a tile have a fixed shape: results do not depend on
the memory limit, nor on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rop.devices.batch import Data, orders_kept
from rop.devices.cuda.code import Instruction, Part
from rop.devices.cuda.emit import Lowered
from rop.devices.cuda.execution import Execution
from rop.devices.cuda.regions import Regions
from rop.devices.cuda.vectors import Vectors
from rop.devices.workspace import Orders, Vector, Workspace
from rop.graph import Graph
from rop.kernels.cuda import batchnorm, loss
from rop.kernels.cuda.compile import WARP
from rop.layers.base import Shape
from rop.layers.loss import Loss
from rop.lowering import ORDERS, Plan, outline

TILE_BYTES = 1 << 30  # the planes of a tile should not exceed this, unless the batch is coupled


def choose_tiles(plan: Plan, batch: int) -> tuple[int, int]:
    """Number of tiles, and lanes of each."""
    warps = -(-batch // WARP)
    if plan.coupled:
        return 1, warps * WARP
    rows = sum(buffer.rows * len(buffer.orders) for buffer in plan.buffers)
    per_warp = rows * plan.itemsize * WARP
    tiles = -(-warps // max(1, TILE_BYTES // max(1, per_warp)))
    return tiles, -(-warps // tiles) * WARP


class CudaWorkspace(Workspace):
    """The workspace in a GPU's memory. ``samples`` is the number of samples in the data from which batches are
    chosen, by default the size of a batch."""

    vectors: Vectors
    lowered: Lowered

    def __init__(self, plan: Plan, batch: int, memory_limit: int | None, samples: int | None = None):
        self.plan, self.batch, self.dtype = plan, batch, plan.dtype
        self.tiles, self.lanes = choose_tiles(plan, batch)
        self.chunk = 1
        self.lowered = Lowered(plan, self.lanes)
        widest = max(self.lowered.layout.plane_sizes.values()) * self.lanes * plan.itemsize
        self.kept = orders_kept(plan, widest, self.tiles, 1, batch, memory_limit)
        self.vectors = Vectors(plan.graph.size, self.dtype)
        self.memory = Regions(self.lowered.layout, self.tiles, self.kept)
        self.execution = Execution(self.lowered, self.memory)
        self._samples = batch if samples is None else samples
        self._data: Data | None = None

    @classmethod
    def of(
        cls,
        net: Graph,
        shape: Shape,
        training: bool | None,
        loss: Loss,
        dtype: Any,
        batch: int,
        memory_limit: int | None,
        samples: int | None = None,
    ) -> CudaWorkspace:
        """The workspace of a network."""
        return cls(outline(net, shape, training, loss, dtype), batch, memory_limit, samples)

    def array(self, name: str) -> Vector:
        """A region, whole, on the device."""
        return self.memory[name]

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN (for tests)."""
        self.memory.poison()
        self.forget()

    # --------------------------------------------------------------------------------------------- batch and parameters
    def bind(self, data: Data) -> None:
        """Makes this batch the one that passes read: copies it to the device."""
        if data is self._data:
            return
        targets = data.targets
        assert targets is not None
        self.memory.put("x", data.x)
        self.memory.put("weight", targets.weight)
        if targets.labels is not None:
            self.memory.put("labels", targets.labels.astype(np.int32))
        if targets.dense is not None:
            self.memory.put("dense", targets.dense.reshape(self._samples, -1))
        self._data, self._dense = data, targets.dense is not None
        self.select(data.samples, data.scale)

    def select(self, samples: np.ndarray, scale: float) -> None:
        """Which samples of the data the lanes hold, and the factor of the loss of each."""
        self.memory.put("samples", samples.astype(np.int32))
        self.memory.put("scale", np.array([scale], self.dtype))
        self.forget()

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Running statistics for evaluation mode, in one copy to the device."""
        values = np.zeros(self.memory["state"].size, self.dtype)
        for start, statistics in self.running_statistics(state):
            values[start : start + statistics.size] = statistics
        if values.size:
            self.memory.put("state", values)

    def borrow(self, name: str, vector: Vector, check: bool = True) -> bool:
        """Copies a vector to its region; tests whether all of it is finite only if that is asked for."""
        region = self.memory[name]
        if not region.size:
            return True
        self._copy(region, vector)
        return not check or self.vectors.finite(region)

    def settle(self, name: str, copy: Vector | None = None) -> None:
        """A vector that was borrowed has been copied already."""

    def release(self, *names: str) -> None:
        """Nothing is held: a vector that was borrowed has been copied."""

    def _copy(self, region: Vector, vector: Vector) -> None:
        if isinstance(vector, np.ndarray):
            region.copy_to_device(vector)
        else:
            self.vectors.scale(region, vector, 1.0)

    def holds(self, name: str, vector: Vector) -> bool:
        region = self.memory[name]
        if not region.size:
            return True
        self._copy(self.memory["spare"], vector)
        return self.vectors.equal(region, self.memory["spare"])

    # ---------------------------------------------------------------------------------------------------------- passes
    @property
    def together(self) -> int:
        """Order 0 is resident as a rule, so directions go one by one."""
        return 1

    def run(self, orders: Orders, results: tuple[int, ...], into: list[Vector] | None = None) -> list[Vector]:
        """Runs orders over all tiles, those of a tile together; the parameter gradients of the positions ``results``
        are left in regions of this workspace, or written ``into`` places of ``new_block``."""
        levels = tuple(k for k, _ in orders)
        wanted = tuple(levels[i] for i in results)
        for tile in self.execution.run(levels, wanted, self._dense):
            if self.tiles > 1:
                for k in wanted:
                    self._collect(k, first=tile == 0)
        found = [self.result(k) for k in wanted]
        for place, result in zip(into or (), found, strict=False):
            self.vectors.deliver(place, result)
        return found

    def _collect(self, k: int, first: bool) -> None:
        """Adds a tile's share of a result to the total."""
        total, share = self.memory[f"total{k}"], self.memory[f"out{k}"]
        if first:
            self.vectors.scale(total, share, 1.0)
        else:
            self.vectors.add(total, share)

    def result(self, k: int) -> Vector:
        """Where ``run`` leaves a result of order k."""
        return self.memory[f"total{k}" if self.tiles > 1 else f"out{k}"]

    def correct(self) -> float:
        """How many samples have their largest output at their label; NaN where targets are not labels of samples."""
        z = self.plan.output
        if self._dense or z.pixels > 1:
            return math.nan
        count = Instruction(
            loss.correct(self.dtype.type),
            {
                "hits": Part("hits", 0, (self.lanes // WARP,)),
                "z": Part("plane0", self.lowered.layout.start(z.buffer, 0) * self.lanes, (z.rows, self.lanes)),
                "labels": Part("labels"),
                "samples": Part("samples", 0, (self.lanes,)),
            },
        )
        for tile in range(self.tiles):
            self.execution.bind(count, tile)()
        return float(self.memory["hits"].copy_to_host().sum())

    def energy(self, k: int) -> float:
        partial = self.memory["energy"].copy_to_host().reshape(self.tiles, len(ORDERS), -1)
        return math.fsum(partial[:, k].ravel().tolist())

    def statistics(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Mean, variance and number of values per channel of every batchnorm layer."""
        for emitter in self.lowered.normalisations:
            table = self.memory.view(emitter.table(0), 0).copy_to_host()
            yield table[batchnorm.MEAN], table[batchnorm.VARIANCE], table[batchnorm.COUNT]

    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Order 0, copied to the host: at once if it is kept, else computed again tile by tile."""
        plane = self.memory["plane0"]
        if self.kept:
            yield 0, plane.copy_to_host().reshape(self.tiles, -1)
            return
        for tile in self.execution.run((0,), (0,), self._dense):
            yield tile, plane.copy_to_host().reshape(1, -1)
