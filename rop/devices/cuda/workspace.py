"""The memory of one network on batches of one size in a GPU's memory, and the passes bound to it.

A batch of B samples is one tile of lanes, padded to whole warps, or a few tiles if it is large. Tiles depend on the
network and on B only and are added up in their order, sums within a tile have a fixed shape: results do not depend on
the memory limit, nor on the GPU. Everything is allocated once; a pass is a list of launches with all operands in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numba import cuda

from rop.devices.batch import Data, orders_kept
from rop.devices.cuda.code import Instruction, Part
from rop.devices.cuda.emit import Lowered
from rop.devices.cuda.vectors import Vectors, device_array
from rop.devices.workspace import Orders, Vector, Workspace
from rop.graph import Graph
from rop.kernels.cuda import batchnorm, loss
from rop.kernels.cuda.compile import WARP
from rop.layers.base import Shape
from rop.layers.loss import Loss
from rop.lowering import ORDERS, Plan, outline

TILE_BYTES = 1 << 30  # what the planes of a tile should not exceed, unless the batch is coupled


def choose_tiles(plan: Plan, batch: int) -> tuple[int, int]:
    """Number of tiles, and lanes of each."""
    warps = -(-batch // WARP)
    if plan.coupled:
        return 1, warps * WARP
    per_warp = sum(plan.plane_rows.values()) * plan.itemsize * WARP
    tiles = -(-warps // max(1, TILE_BYTES // max(1, per_warp)))
    return tiles, -(-warps // tiles) * WARP


class CudaWorkspace(Workspace):
    """The workspace in a GPU's memory. ``samples`` is the number of samples in the data from which batches are
    chosen, by default the size of a batch."""

    vectors: Vectors

    @property
    def together(self) -> int:
        """Order 0 is resident as a rule, so directions go one by one."""
        return 1

    def __init__(self, plan: Plan, batch: int, memory_limit: int, samples: int | None = None):
        self.plan, self.batch, self.dtype = plan, batch, plan.dtype
        self.tiles, self.lanes = choose_tiles(plan, batch)
        widest = max(plan.plane_rows.values()) * self.lanes * plan.itemsize
        self.kept = orders_kept(plan, widest, self.tiles, 1, batch, memory_limit)
        self.vectors = Vectors(plan.graph.size, self.dtype)
        self._lowered = Lowered(plan, self.lanes)
        self._samples = batch if samples is None else samples
        self._data: Data | None = None
        self._passes: dict[Any, list[list[Any]]] = {}
        self._allocate()

    @classmethod
    def of(
        cls,
        net: Graph,
        shape: Shape,
        training: bool,
        loss: Loss,
        dtype: Any,
        batch: int,
        memory_limit: int,
        samples: int | None = None,
    ) -> CudaWorkspace:
        """The workspace of a network."""
        return cls(outline(net, shape, training, loss, dtype), batch, memory_limit, samples)

    def _allocate(self) -> None:
        plan, sizes, n, dtype = self.plan, self._lowered.layout.sizes, self.plan.graph.size, self.dtype
        self._rooms: dict[str, Any] = {}
        self._steps: dict[str, int] = {}  # numbers from one tile to the next
        for k in ORDERS:
            tiles = self.tiles if k < self.kept else 1
            self._room(f"plane{k}", plan.plane_rows[k] * self.lanes, dtype, tiles)
            self._room(f"table{k}", sizes["tables"], dtype, tiles)
            self._room(f"partial{k}", sizes["partial"], dtype)
            self._room(f"out{k}", n, dtype)
        self._room("chosen", sizes["chosen"] * self.lanes, np.int32, self.tiles if self.kept else 1)
        self._room("energy", len(ORDERS) * sizes["energy"], dtype, self.tiles)
        self._room("state", sizes["state"], dtype)
        self._room("samples", self.lanes, np.int32, self.tiles)
        self._room("hits", self.lanes // WARP, np.int32, self.tiles)
        self._room("scale", 1, dtype)
        for name in ("w", "v", "spare"):
            self._room(name, n, dtype)
        self._totals = [device_array(n, dtype) for _ in ORDERS] if self.tiles > 1 else []

    def _room(self, name: str, count: int, dtype: Any, tiles: int = 1) -> None:
        self._rooms[name] = device_array(count * tiles, dtype)
        self._steps[name] = count if tiles > 1 else 0

    def array(self, name: str) -> Any:
        """A room, whole, on the device."""
        return self._rooms[name]

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN (for tests)."""
        for name, room in self._rooms.items():
            if name.startswith(("plane", "table", "partial", "out", "energy")) and room.size:
                room.copy_to_device(np.full(room.size, np.nan, self.dtype))
        self.forget()

    # ------------------------------------------------------------------------------------------------- what is computed
    def bind(self, data: Data) -> None:
        """Makes this batch the one that passes read: copies it to the device."""
        if data is self._data:
            return
        targets, count = data.targets, self._samples
        assert targets is not None
        self._put("x", data.x)
        self._put("weight", targets.weight)
        if targets.labels is not None:
            self._put("labels", targets.labels.astype(np.int32))
        if targets.dense is not None:
            self._put("dense", targets.dense.reshape(count, -1))
        self._data, self._dense = data, targets.dense is not None
        self.select(data.samples, data.scale)

    def _put(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        if name in self._rooms:
            self._rooms[name].copy_to_device(values)
        else:
            self._rooms[name] = cuda.to_device(values)

    def select(self, samples: np.ndarray, scale: float) -> None:
        """Which samples of the data the lanes hold, and what the loss of each is multiplied by."""
        self._rooms["samples"].copy_to_device(samples.astype(np.int32))
        self._rooms["scale"].copy_to_device(np.array([scale], self.dtype))
        self.forget()

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Running statistics for evaluation mode."""
        values = np.zeros(self._lowered.layout.sizes["state"], self.dtype)
        for emitter in self._lowered.normalisations:
            name, channels = self.plan.graph.name_of(emitter.operation.layer), emitter.operation.channels
            values[emitter.state_at :][:channels] = state[f"{name}.running_mean"]
            values[emitter.state_at + channels :][:channels] = state[f"{name}.running_var"]
        if values.size:
            self._rooms["state"].copy_to_device(values)

    def ensure_direction(self, index: int) -> None:
        assert index == 0, "one direction at a time"

    def borrow(self, name: str, vector: Vector, check: bool = True) -> bool:
        """Copies a vector to its room; looks whether all of it is finite if that is asked for."""
        room = self._rooms[name.rstrip("0")]
        if not room.size:
            return True
        self._copy(room, vector)
        return not check or self.vectors.finite(room)

    def settle(self, name: str, copy: Vector | None = None) -> None:
        """A vector that was borrowed has been copied already."""

    def release(self, name: str) -> None:
        """There is nothing to let go of: a vector that was borrowed has been copied."""

    def _copy(self, room: Vector, vector: Vector) -> None:
        if isinstance(vector, np.ndarray):
            room.copy_to_device(vector)
        else:
            self.vectors.scale(room, vector, 1.0)

    def holds(self, name: str, vector: Vector) -> bool:
        room = self._rooms[name.rstrip("0")]
        if not room.size:
            return True
        self._copy(self._rooms["spare"], vector)
        return self.vectors.equal(room, self._rooms["spare"])

    # ---------------------------------------------------------------------------------------------------------- passes
    def run(self, orders: Orders, results: tuple[int, ...], into: list[Vector] | None = None) -> list[Vector]:
        """Runs orders over all tiles, those of a tile together; the parameter gradients of the positions ``results``
        are left in rooms of this workspace, or written ``into`` places of ``new_block``."""
        levels = tuple(k for k, _ in orders)
        wanted = tuple(levels[i] for i in results)
        for tile, launches in enumerate(self._bound(levels, wanted)):
            for launch in launches:
                launch()
            if self.tiles > 1:
                for k in wanted:
                    self._collect(k, first=tile == 0)
        found = [self.result(k) for k in wanted]
        for place, result in zip(into or (), found, strict=False):
            self.vectors.deliver(place, result)
        return found

    def _collect(self, k: int, first: bool) -> None:
        """Adds a tile's share of a result to the total."""
        total, share = self._totals[k], self._rooms[f"out{k}"]
        if first:
            self.vectors.scale(total, share, 1.0)
        else:
            self.vectors.add(total, share)

    def _bound(self, orders: tuple[int, ...], wanted: tuple[int, ...]) -> list[list[Any]]:
        """The launches of a pass for each tile, operands in place."""
        key = orders, wanted, self._dense
        if key not in self._passes:
            launches = self._lowered.emit_pass(*key).instructions
            self._passes[key] = [[self._placed(launch, tile) for launch in launches] for tile in range(self.tiles)]
        return self._passes[key]

    def _placed(self, launch: Instruction, tile: int) -> Any:
        return launch.kernel.bind(
            **{
                name: self._view(operand, tile) if isinstance(operand, Part) else operand
                for name, operand in launch.operands.items()
            }
        )

    def _view(self, part: Part, tile: int) -> Any:
        room = self._rooms[part.region]
        if part.shape is None:
            return room
        start = part.start + tile * self._steps[part.region]
        return room[start : start + math.prod(part.shape)].reshape(part.shape)

    def result(self, k: int) -> Vector:
        """Where ``run`` leaves a result of order k."""
        return self._totals[k] if self.tiles > 1 else self._rooms[f"out{k}"]

    def correct(self) -> float:
        """How many samples have their largest output at their label; NaN where targets are no labels of samples."""
        z = self.plan.output
        if self._dense or z.pixels > 1:
            return math.nan
        outputs = Part("plane0", z.buffer.start[0] * self.lanes, (z.rows, self.lanes))
        hits, samples = Part("hits", 0, (self.lanes // WARP,)), Part("samples", 0, (self.lanes,))
        for tile in range(self.tiles):
            self._placed(
                Instruction(
                    loss.correct(self.dtype.type),
                    {"hits": hits, "z": outputs, "labels": Part("labels"), "samples": samples},
                ),
                tile,
            )()
        return float(self._rooms["hits"].copy_to_host().sum())

    def energy(self, k: int) -> float:
        partial = self._rooms["energy"].copy_to_host().reshape(self.tiles, len(ORDERS), -1)
        return math.fsum(partial[:, k].ravel().tolist())

    def statistics(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Name, mean, variance and number of values per channel of every batchnorm layer."""
        for emitter in self._lowered.normalisations:
            table = self._view(emitter.table(0), 0).copy_to_host()
            yield (
                self.plan.graph.name_of(emitter.operation.layer),
                table[batchnorm.MEAN],
                table[batchnorm.VARIANCE],
                table[batchnorm.COUNT],
            )

    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Order 0, copied to the host: at once if it is kept, else computed again tile by tile."""
        if self.kept:
            yield 0, self._rooms["plane0"].copy_to_host().reshape(self.tiles, -1)
            return
        for tile, launches in enumerate(self._bound((0,), (0,))):
            for launch in launches:
                launch()
            yield tile, self._rooms["plane0"].copy_to_host().reshape(1, -1)
