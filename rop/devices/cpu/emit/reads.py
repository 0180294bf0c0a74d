"""What positions read of a map on pixel lanes: the tables of rop/kernels/cpu/reads.py, and maps divided into phases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.memory import Layout
from rop.kernels.cpu import phases, reads
from rop.kernels.cpu.gemm import SPAN
from rop.lowering.geometry import Geometry
from rop.lowering.values import Buffer, Value

LANES_PER_CHUNK = 256  # positions of a weight gradient that are summed in registers


@dataclass(frozen=True)
class Reads:
    """What positions read of a map through taps: the lane through no shift (positions,), the shift of each tap in lanes
    (taps,), and whether a pixel is there (positions, taps). ``taps`` are their numbers in the kernel."""

    first: int  # lane of C of the first position; the others follow it
    lanes: np.ndarray
    taps: np.ndarray
    shifts: np.ndarray
    valid: np.ndarray

    @property
    def positions(self) -> int:
        """Their number."""
        return int(self.lanes.size)


@dataclass(frozen=True)
class Phases:
    """The phases of the images of a map by the stride of windows: each is an image with as many rows and columns as the
    first one, whose last may be empty. A stride of one has one phase, which is the map itself."""

    geometry: Geometry
    images: int
    itemsize: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a phase of an image."""
        (height, width), (down, across) = self.geometry.image, self.geometry.stride
        return -(-height // down), -(-width // across)

    @property
    def count(self) -> int:
        """Phases."""
        return self.geometry.stride[0] * self.geometry.stride[1]

    @property
    def lanes(self) -> int:
        """Lanes of a phase of all images: whole spans if there are several, since kernels write whole spans."""
        lanes, span = self.images * self.shape[0] * self.shape[1], SPAN // self.itemsize
        return lanes if self.count == 1 else -(-lanes // span) * span

    def pixels(self, image: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Sample, row and column of every lane of maps of this size."""
        return tuple(axis.ravel() for axis in np.indices((self.images, *image)))

    def forward(self) -> Reads:
        """What each output pixel reads of the phases."""
        geometry, (height, width) = self.geometry, self.geometry.image
        sample, row, column = self.pixels(geometry.output)
        a, b = np.divmod(np.arange(geometry.taps), geometry.kernel[1])
        down = a * geometry.dilation[0] - geometry.padding[0]
        right = b * geometry.dilation[1] - geometry.padding[1]
        inside = _inside(row[:, None] * geometry.stride[0] + down, height)
        inside &= _inside(column[:, None] * geometry.stride[1] + right, width)
        (rows, columns), (stride_down, stride_right) = self.shape, geometry.stride
        phase = down % stride_down * stride_right + right % stride_right
        shifts = phase * self.lanes + down // stride_down * columns + right // stride_right
        return Reads(0, (sample * rows + row) * columns + column, np.arange(geometry.taps), shifts, inside)

    def backward(self) -> list[Reads]:
        """What the pixels of each phase read of the output gradient: they share their taps."""
        geometry, (height, width) = self.geometry, self.geometry.output
        sample, row, column = self.pixels(self.shape)
        lanes = (sample * height + row) * width + column
        a, b = np.divmod(np.arange(geometry.taps), geometry.kernel[1])
        result = []
        for number, phase in enumerate(np.ndindex(geometry.stride)):
            down = phase[0] + geometry.padding[0] - a * geometry.dilation[0]
            right = phase[1] + geometry.padding[1] - b * geometry.dilation[1]
            taps = np.flatnonzero((down % geometry.stride[0] == 0) & (right % geometry.stride[1] == 0))
            down, right = down[taps] // geometry.stride[0], right[taps] // geometry.stride[1]
            inside = _inside(row[:, None] + down, height) & _inside(column[:, None] + right, width)
            if phase[0] < geometry.image[0] and phase[1] < geometry.image[1]:
                result.append(Reads(number * self.lanes, lanes, taps, down * width + right, inside))
        return result


def _inside(index: np.ndarray, size: int) -> np.ndarray:
    return (index >= 0) & (index < size)


class PhasedMap:
    """A map as windows with a stride read it, or write its gradient: divided into phases, unless the stride is one."""

    def __init__(self, layout: Layout, value: Value, geometry: Geometry):
        self.layout, self.value = layout, value
        self.phases = Phases(geometry, layout.images, layout.itemsize)
        self.is_divided = self.phases.count > 1
        if self.is_divided:
            for k in value.levels:
                layout.need_room(f"phases{k}", value.channels * self.row_size // layout.itemsize)

    @property
    def row_size(self) -> int:
        """Bytes of a channel."""
        if not self.is_divided:
            return self.layout.row_size(self.value.buffer)
        return self.phases.count * self.phases.lanes * self.layout.itemsize

    @property
    def lanes(self) -> int:
        """Lanes of a channel."""
        return self.phases.count * self.phases.lanes

    @cached_property
    def _table(self) -> int:
        words, geometry = np.zeros(phases.PHASE_WORDS, np.int64), self.phases.geometry
        words[phases.CHANNELS], words[phases.IMAGES] = self.value.channels, self.layout.images
        words[phases.HEIGHT], words[phases.WIDTH] = geometry.image
        words[phases.DOWN], words[phases.ACROSS] = geometry.stride
        words[phases.PHASE_HEIGHT], words[phases.PHASE_WIDTH] = self.phases.shape
        words[phases.PHASE_STEP] = self.phases.lanes * self.layout.itemsize
        words[phases.X_STEP], words[phases.Y_STEP] = self.layout.row_size(self.value.buffer), self.row_size
        return self.layout.tables.put(words)

    def order(self, code: Code, k: int) -> Ref:
        """Where order k is to be read, until another map is divided."""
        x = self.layout.rows(self.value.buffer, k)
        if not self.is_divided:
            return x
        y = Ref(f"phases{k}", 0, 0)
        code.rows(phases.divide, self.value.channels, self.row_size, y=y, x=x, table=self._table)
        return y

    def gradient(self, h: Buffer, k: int) -> Ref:
        """Where order k of the gradient is to be written."""
        return Ref("phases0", 0, 0) if self.is_divided else self.layout.rows(h, k)

    def join(self, code: Code, h: Buffer, k: int, add: bool, mask: int | Ref) -> None:
        """Brings the phases of the gradient together."""
        x, y = self.layout.rows(h, k), self.gradient(h, k)
        gate = int(add), mask
        code.rows(phases.join, self.value.channels, self.row_size, x=x, y=y, gate=gate, table=self._table)


def reads_words(layout: Layout, what: Reads, c_step: int, x_step: int, size: int = reads.READS_WORDS) -> np.ndarray:
    """The words with which a kernel's table of ``size`` words begins."""
    words = np.zeros(size, np.int64)
    words[reads.STRIPS], words[reads.STRIP_TABLE] = -(-what.positions * layout.itemsize // SPAN), strips(layout, what)
    words[reads.TAPS], words[reads.SHIFTS] = what.taps.size, layout.tables.put(what.shifts * layout.itemsize)
    words[reads.C_STEP], words[reads.X_STEP] = c_step, x_step
    return words


def strips(layout: Layout, what: Reads) -> int:
    """The address of the table of strips."""
    width, count, taps = SPAN // layout.itemsize, what.positions, what.taps.size
    number = -(-count // width)
    first = np.arange(number) * width
    valid = np.zeros((number * width, taps), bool)
    valid[:count] = what.valid
    powers = np.left_shift(np.int64(1), np.arange(width, dtype=np.int64))
    bits = layout.tables.put(np.einsum("swt,w->st", valid.reshape(number, width, taps), powers))
    records = np.zeros((number, reads.STRIP_WORDS), np.int64)
    records[:, reads.COUNT] = np.minimum(width, count - first)
    records[:, reads.TARGET] = (what.first + first) * layout.itemsize
    records[:, reads.BITS] = bits + 8 * taps * np.arange(number)
    if bool((np.diff(what.lanes) == 1).all()):
        records[:, reads.SOURCE] = what.lanes[first] * layout.itemsize
    else:
        listed = np.zeros(number * width, np.int64)
        listed[:count] = what.lanes * layout.itemsize
        records[:, reads.LISTED] = layout.tables.put(listed) + 8 * first
    return layout.tables.put(records)


def segment_table(layout: Layout, what: Reads) -> int:
    """The address of a table by chunk of positions and tap: runs (position, lane of the source, length)."""
    taps = what.taps.size
    runs, owners = [], []
    for tap in range(taps):
        positions = np.flatnonzero(what.valid[:, tap])
        lanes = what.lanes[positions] + what.shifts[tap]
        starts = np.ones(positions.size, bool)
        starts[1:] = (np.diff(positions) != 1) | (np.diff(lanes) != 1) | (positions[1:] % LANES_PER_CHUNK == 0)
        first = np.flatnonzero(starts)
        lengths = np.diff(first, append=positions.size)
        runs.append(np.stack([positions[first], lanes[first], lengths], axis=1))
        owners.append(positions[first] // LANES_PER_CHUNK * taps + tap)
    rows, owner = np.concatenate(runs), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return layout.tables.bounded(rows[order], owner[order], -(-what.positions // LANES_PER_CHUNK) * taps)
