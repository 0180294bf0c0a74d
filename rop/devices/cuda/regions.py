"""The memory of a workspace on a GPU: named regions, with a piece for each tile or with one for all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from rop.devices.cuda.code import Part
from rop.devices.cuda.memory import Layout
from rop.devices.cuda.vectors import device_array
from rop.kernels.cuda.compile import WARP
from rop.lowering import ORDERS

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

# Regions that a pass writes before it reads them, by the start of the name.
WRITTEN_FIRST = ("plane", "table", "partial", "out", "total", "energy")


class Regions:
    """Allocates the regions of a layout for a batch of ``tiles``, of which ``kept`` orders stay resident."""

    def __init__(self, layout: Layout, tiles: int, kept: int):
        self.layout, self.tiles = layout, tiles
        self._arrays: dict[str, DeviceNDArray] = {}
        self._steps: dict[str, int] = {}  # numbers from one tile to the next
        self._add_planes(kept)
        self._add_batch()
        self._add_parameters()

    def _add_planes(self, kept: int) -> None:
        layout, sizes = self.layout, self.layout.sizes
        for k in ORDERS:
            tiles = self.tiles if k < kept else 1
            self._add(f"plane{k}", layout.plane_sizes[k] * layout.lanes, layout.dtype, tiles)
            self._add(f"table{k}", sizes["tables"], layout.dtype, tiles)
        self._add("chosen", sizes["chosen"] * layout.lanes, np.int32, self.tiles if kept else 1)
        self._add("energy", len(ORDERS) * sizes["energy"], layout.dtype, self.tiles)

    def _add_batch(self) -> None:
        layout = self.layout
        self._add("samples", layout.lanes, np.int32, self.tiles)
        self._add("hits", layout.lanes // WARP, np.int32, self.tiles)
        self._add("scale", 1, layout.dtype)
        self._add("state", layout.sizes["state"], layout.dtype)

    def _add_parameters(self) -> None:
        n, layout = self.layout.plan.graph.size, self.layout
        for k in ORDERS:
            self._add(f"partial{k}", layout.sizes["partial"], layout.dtype)
            self._add(f"out{k}", n, layout.dtype)
            if self.tiles > 1:
                self._add(f"total{k}", n, layout.dtype)
        for name in ("w", "v0", "spare"):
            self._add(name, n, layout.dtype)

    def _add(self, name: str, count: int, dtype: Any, tiles: int = 1) -> None:
        self._arrays[name] = device_array(count * tiles, dtype)
        self._steps[name] = count if tiles > 1 else 0

    def __getitem__(self, name: str) -> DeviceNDArray:
        return self._arrays[name]

    def put(self, name: str, values: np.ndarray) -> None:
        """Copies an array of a batch to the device; the region keeps the shape of the first one."""
        values = np.ascontiguousarray(values)
        if name in self._arrays:
            self._arrays[name].copy_to_device(values)
        else:
            self._arrays[name] = cuda.to_device(values)

    def view(self, part: Part, tile: int) -> DeviceNDArray:
        """A part of a region as the launches of a tile read it."""
        array = self._arrays[part.region]
        if part.shape is None:
            return array
        start = part.start + tile * self._steps[part.region]
        return array[start : start + math.prod(part.shape)].reshape(part.shape)

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN, for tests."""
        for name, array in self._arrays.items():
            if name.startswith(WRITTEN_FIRST) and array.size:
                array.copy_to_device(np.full(array.size, np.nan, self.layout.dtype))
