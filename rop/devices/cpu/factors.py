"""The sums of K-FAC as a pass of the interpreter: a job for each factor of each use of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rop.devices.cpu.code import Bound, Code, Ref, Region
from rop.devices.cpu.memory import Tables
from rop.devices.cpu.threads import Pace
from rop.devices.cpu.vectors import aligned
from rop.devices.workspace import Gram
from rop.kernels import warm
from rop.kernels.cpu import factors as kernels
from rop.kernels.cpu.vector import BLOCK
from rop.lowering.bilinear import Products
from rop.lowering.values import Buffer, Value

if TYPE_CHECKING:
    from rop.devices.cpu.workspace import CpuWorkspace

PACKED_ROW = 4096  # bytes of a row of what is packed at a time, …
PACKED_BYTES = 1 << 19  # … all rows of which should not take more than this
KEPT_BYTES = 1 << 25  # memory of all jobs that is kept from one call to the next
INPUTS, OUTPUTS = 0, 1  # which set of factors the lanes of inputs and of output gradients have


class Rows(NamedTuple):
    """The rows of a factor: channels of a buffer, each read through taps at places."""

    buffer: Buffer
    value: Value  # whose rows lie as those of the buffer
    channels: np.ndarray  # in the user's order
    reads: np.ndarray  # (taps, places): the stored pixel, or −1
    ones: bool  # whether one more row is all ones
    factors: int

    @property
    def number(self) -> int:
        """How many rows there are."""
        return len(self.channels) * len(self.reads) + self.ones


class FactorSums:
    """Σ ā āᵀ and Σ δ δᵀ of every use of a Linear or Conv2d layer, from order 0 of a workspace."""

    def __init__(self, space: CpuWorkspace):
        self._space = space
        self._uses = [operation for operation in space.plan.operations if isinstance(operation, Products)]
        self._rows = [rows for use in self._uses for rows in (*_inputs(use), *_outputs(use))]
        self._tables = Tables()
        sizes = [rows.number**2 for rows in self._rows]
        self._starts = np.cumsum([0, *sizes])  # of the sums of each job, which come first
        self._bytes = 8 * int(self._starts[-1])
        self._factors = aligned(2 * space.tiles * space.lanes, space.dtype).reshape(2, -1)
        jobs = self._tables.put([self._job(i) for i in range(len(self._rows))])
        self._memory = self._allocated() if self._bytes <= KEPT_BYTES else None
        self._kept: list[Gram] = []  # views of the memory that is kept
        self._bound = self._made(jobs, float(sum(sizes) * space.batch))

    def _allocated(self) -> np.ndarray:
        return aligned(-(-self._bytes // 8), np.float64)

    def _made(self, jobs: int, work: float) -> Bound:
        space, table = self._space, self._space.memory.table
        lanes = space.lanes * space.dtype.itemsize
        base = 0 if self._memory is None else int(self._memory.ctypes.data)
        regions = {name: table[name] for name in ("number", "plane0", "tile_count")}
        regions |= {"jobs": Region(jobs), "base": Region(base)}
        regions["factors"] = Region(int(self._factors.ctypes.data), lanes, True)
        code = Code()
        code.alone(
            len(self._rows),
            kernels.gram,
            job=Ref("jobs", 0, 8 * kernels.JOB),
            base=Ref("base", 0, 0),
            plane=Ref("plane0", 0, 0),
            stride=space.stride,
            tiles=Ref("tile_count", 0, 0),
            factors=Ref("factors", 0, 0),
            factors_step=lanes * space.tiles,
            lanes=space.lanes,
        )
        warm.ensure(space.dtype, code.functions(space.dtype))
        bound = Bound(code, regions, space.dtype)
        bound.pace = Pace(work)
        return bound

    # ---- jobs ----------------------------------------------------------------------------------------------------
    def _reserve(self, count: int) -> int:
        """Takes bytes in the memory of all jobs, in whole blocks; returns where they start."""
        start = -(-self._bytes // BLOCK) * BLOCK
        self._bytes = start + -(-count // BLOCK) * BLOCK
        return start

    def _job(self, i: int) -> list[int]:
        rows, layout, size = self._rows[i], self._space.layout, self._space.dtype.itemsize
        row_bytes = layout.row_size(rows.buffer)
        pixels = rows.buffer.pixels
        lanes, units = (1, self._space.images) if pixels else (self._space.lanes, 1)
        pixel_step = size if pixels else row_bytes * rows.value.channels
        reads = np.where(rows.reads < 0, -1, rows.reads * pixel_step)
        most = min(PACKED_ROW, PACKED_BYTES // rows.number) // (lanes * size)
        capacity = max(1, min(most, self._space.tiles * units * reads.shape[1]))
        packed_row = (-(-capacity * lanes * size // BLOCK) | 1) * BLOCK  # odd: rows do not share cache sets
        words = {
            kernels.SUMS: 8 * int(self._starts[i]),
            kernels.PACKED: self._reserve(rows.number * packed_row),
            kernels.PRODUCTS: self._reserve(rows.number**2 * size),
            kernels.ROWS: rows.number,
            kernels.ONES: int(rows.ones),
            kernels.LANE_BYTES: packed_row,
            kernels.CAPACITY: capacity,
            kernels.START: layout.start(rows.buffer, 0),
            kernels.CHANNELS: len(rows.channels),
            kernels.CHANNEL_AT: self._tables.put(rows.channels * row_bytes),
            kernels.TAPS: len(reads),
            kernels.PLACES: reads.shape[1],
            kernels.PIXEL_AT: self._tables.put(reads),
            kernels.UNITS: units,
            kernels.UNIT_STEP: pixels * size,
            kernels.LANES: lanes,
            kernels.FACTORS: rows.factors,
            kernels.GROUPS: self._group(rows.number),
        }
        return [words[i] for i in range(kernels.JOB)]

    def _group(self, rows: int) -> int:
        """The group of lane dots that is all rows, of a single pixel."""
        return self._tables.put([0, rows, self._tables.put([0, 0]), 1])

    # ---- sums ----------------------------------------------------------------------------------------------------
    def set_factors(self, samples: np.ndarray, root: np.ndarray) -> None:
        """Says which lanes count, and by which factor the gradients of each sample are multiplied."""
        self._factors[INPUTS] = counted = samples >= 0
        self._factors[OUTPUTS] = root[samples] * counted

    def begin(self) -> np.ndarray:
        """Memory with sums of zero."""
        memory = self._memory
        if memory is None:
            memory = self._allocated()
            self._bound.move({"base": int(memory.ctypes.data)})
        memory[: self._starts[-1]] = 0
        return memory

    def add(self, first: int, tiles: int) -> None:
        """Adds what is in the planes of these tiles."""
        self._space.execution.run(self._bound, first, tiles)

    def found(self, memory: np.ndarray) -> list[Gram]:
        """The sums of each use, as views of the memory."""
        if memory is self._memory and self._kept:
            return self._kept
        sums, job = [], 0
        for use in self._uses:
            for _ in (INPUTS, OUTPUTS):
                start, end, size = self._starts[job], self._starts[job + use.groups], self._rows[job].number
                sums.append(memory[start:end].reshape(use.groups, size, size))
                job += use.groups
        pairs = zip(self._uses, sums[::2], sums[1::2], strict=True)
        found = [Gram(use.layer, use.pixels, inputs, outputs) for use, inputs, outputs in pairs]
        if memory is self._memory:
            self._kept = found
        return found


def _inputs(use: Products) -> list[Rows]:
    """The rows that the weights of each group of channels meet, and ones for the bias."""
    x, geometry = use.source, use.geometry
    order = np.arange(use.inputs) if x.row_order is None else x.row_order
    pixel_in, pixel_out, tap = geometry.triples()
    reads = np.full((geometry.taps, use.pixels), -1)
    reads[tap, pixel_out] = pixel_in
    return [Rows(x.buffer, x, part, reads, bool(use.layer.bias), INPUTS) for part in np.split(order, use.groups)]


def _outputs(use: Products) -> list[Rows]:
    """The gradients of the outputs of each group."""
    order = np.arange(use.rows) if use.y.row_order is None else use.y.row_order
    reads = np.arange(use.pixels)[None]
    return [Rows(use.delta, use.y, part, reads, False, OUTPUTS) for part in np.split(order, use.groups)]
