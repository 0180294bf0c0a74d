"""The memory of a workspace on the CPU: named regions with addresses, which the guard mode watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.devices.cpu import guard
from rop.devices.cpu.code import Region
from rop.devices.cpu.memory import SCRATCH_ROWS, Layout
from rop.devices.cpu.vectors import CACHE_LINE, aligned
from rop.lowering import ORDERS

# What a pass writes before it reads, by the start of the name.
WRITTEN_FIRST = (
    "plane", "partial", "packed", "panels", "channels", "out", "energy", "sums", "batch", "totals", "scratch", "mask",
    "strips", "phases", "turned", "gradient",
)  # fmt: skip
FROM_THE_BATCH = ("x", "samples", "labels", "dense", "weight", "outputs")  # arrays whose addresses change


@dataclass(frozen=True)
class Tiling:
    """How a batch is divided: ``chunk`` of its ``tiles`` are computed together, and ``kept`` orders stay resident."""

    tiles: int
    chunk: int
    kept: int
    stride: int  # bytes of one order of a tile


class Regions:
    """Allocates the regions of a layout; ``table`` has their addresses for instructions."""

    def __init__(self, layout: Layout, tiling: Tiling):
        self.layout, self.tiling = layout, tiling
        self.table: dict[str, Region] = {"number": Region(0)}
        self._arrays: dict[str, np.ndarray] = {}
        self.guards = guard.Guards()
        self._add_planes()
        self._add_sums()
        self._add_constants()
        for name in FROM_THE_BATCH:
            step = {"samples": 8 * layout.lanes, "outputs": layout.plan.output.rows * layout.lane_bytes}.get(name, 0)
            self.table[name] = Region(0, step, True)
        self.add_parameters("w", 0)

    def _add_planes(self) -> None:
        tiling, layout = self.tiling, self.layout
        in_chunks = tiling.tiles > tiling.chunk
        for k in ORDERS:
            whole = k < tiling.kept and in_chunks
            count = (tiling.tiles if whole else tiling.chunk) * tiling.stride // layout.itemsize
            self._add(f"plane{k}", count, layout.dtype, tiling.stride, whole)
            self._add(f"energy{k}", tiling.tiles, np.float64, 8, in_chunks)

    def _add_sums(self) -> None:
        layout, chunk = self.layout, self.tiling.chunk
        self._partial_step = -(-layout.partial_size * layout.itemsize // CACHE_LINE) * CACHE_LINE + CACHE_LINE
        sums_step = 8 * (layout.sizes["sums"] + 8)
        self.table["partial_step"] = Region(self._partial_step)
        self.table["sums_step"] = Region(sums_step)
        self._add("sums", chunk * sums_step // 8, np.float64, sums_step)
        self._add(
            "scratch",
            chunk * SCRATCH_ROWS * layout.longest_row,
            layout.dtype,
            SCRATCH_ROWS * layout.longest_row * layout.itemsize,
        )
        self._add("mask", chunk * layout.lanes, layout.dtype, layout.lane_bytes)
        by_order = [f"{name}{k}" for name in ("phases", "turned") for k in ORDERS]
        for name in ("batch", "state", "strips", *by_order, "gradient"):
            self._add(name, layout.sizes[name], layout.dtype)
        self._add("totals", layout.sizes["totals"], np.float64)

    def _add_constants(self) -> None:
        layout, stride = self.layout, self.tiling.stride
        self._add("zeros", layout.zero_bytes // layout.itemsize, layout.dtype)
        most = max((n.channels for n in layout.plan.channel_maps), default=1)
        self._add("ones", max(most, layout.longest_row), layout.dtype)[:] = 1
        self._add("tile_count", 1, np.int64)
        self._add("scale", 1, np.float64)
        tile = np.arange(self.tiling.chunk, dtype=np.int64)
        segments = [tile * stride // layout.itemsize, tile * stride, np.full_like(tile, layout.lanes)]
        self._add("tile_segments", 3 * self.tiling.chunk, np.int64)[:] = np.stack(segments, axis=1).ravel()

    def add_parameters(self, name: str, version: int) -> None:
        """Adds a vector of parameters, w or a direction, its packed weights, and batchnorm's tables of it."""
        if name in self._arrays:
            return
        layout = self.layout
        self._add(name, layout.plan.graph.size, layout.dtype)
        for derived in ("packed", "panels", "channels"):
            self._add(f"{derived}{version}", layout.sizes[derived], layout.dtype)

    def add_slots(self, count: int) -> None:
        """Makes sure that there are this many slots of partial sums, one for each result that is collected at the end
        of a pass."""
        for slot in range(count):
            if f"partial{slot}" not in self._arrays:
                size = self.tiling.chunk * self._partial_step // self.layout.itemsize
                self._add(f"partial{slot}", size, self.layout.dtype, self._partial_step)

    def add_result(self, name: str) -> None:
        """Makes sure that there is a region for a gradient of the parameters."""
        if name not in self._arrays:
            self._add(name, self.layout.plan.graph.size, self.layout.dtype)

    def _add(self, name: str, count: int, dtype: Any, step: int = 0, whole: bool = False) -> np.ndarray:
        array = aligned(count, dtype)
        self._arrays[name] = array
        self.table[name] = Region(int(array.ctypes.data), step, whole)
        if guard.ACTIVE:
            self._guard(name, array, step)
        return array

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def address(self, name: str) -> int:
        """Where a region starts."""
        return self.table[name].address

    # ---- guard mode ----------------------------------------------------------------------------------------------
    def _guard(self, name: str, array: np.ndarray, step: int) -> None:
        """Watches the guard zones around a region and between its pieces, those of each tile if it has a step."""
        self.watch(name, array)
        layout, kind = self.layout, name.rstrip("0123456789")
        if name == "zeros":
            self.guards.constant(name, array)
        gaps = layout.gaps.get(name if kind == "plane" else kind, [])
        used = {"plane": max(layout.plane_sizes.values()) // layout.itemsize, "sums": layout.sizes["sums"]}.get(kind)
        if kind == "partial":
            gaps, used = layout.partial_gaps(), layout.partial_size
        tiles = array.reshape(-1, step // array.itemsize) if step and used is not None else array[None]
        if used is not None:
            gaps = [*gaps, (used, tiles.shape[1] - used)]
        for start, length in gaps:
            self.guards.gap(f"in {name} after {start}", tiles[:, start : start + length])

    def watch(self, name: str, array: np.ndarray) -> None:
        """Lets the guard mode watch the gaps around an array of ``aligned``."""
        if guard.ACTIVE:
            self.guards.watch(guard.edges(name, array))

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN, for tests."""
        for name, array in self._arrays.items():
            if name.startswith(WRITTEN_FIRST):
                array[:] = np.nan
        self.guards.arm()
