"""Where the numbers of a network lie in the CPU's memory.

Beside the planes of values there are regions for the whole batch, and for every tile its partial sums: pieces of the
parameters' gradient that are added up over tiles at the end of a pass. Weights are *packed*: brought together, in the
order in which kernels read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rop.devices.cpu import guard
from rop.devices.cpu.code import Ref
from rop.devices.cpu.lifetimes import Lifetimes, packed_places
from rop.devices.emission import BaseLayout
from rop.kernels.cpu.vector import BLOCK
from rop.lowering.plan import Operation, Plan
from rop.lowering.values import ORDERS, Buffer, Value

REGIONS = (
    "batch",  # pieces of the parameters' gradient that are sums over the whole batch
    "packed",  # weights of w, and of each direction, in the order in which kernels read them
    "panels",  # weights of wide layers, likewise, which are transposed and not gathered
    "channels",  # numbers per channel of batch normalisation, for w and for each direction
    "sums",  # sums per channel of a tile
    "totals",  # sums per channel of the batch
    "state",  # running statistics
    "strips",  # what the units of a product on pixel lanes have packed
    "phases0",  # orders 0, 1 and 2 of a map on pixel lanes, divided into the phases of a stride
    "phases1",
    "phases2",
    "turned0",  # orders 0, 1 and 2 of a map on pixel lanes, turned for the gradient of weights
    "turned1",
    "turned2",
    "gradient",  # sums of a weight gradient before they come to their places
)
SCRATCH_ROWS = 3  # rows of a tile that a kernel may use while it runs
RUN_LENGTH_WORTH_MOVING = 8  # mean length from which it pays to move runs of w instead of single numbers
NOWHERE = -(1 << 40)  # the position in w of partial sums that are padding; it continues no run of positions
ZEROS = Ref("zeros", 0, 0)  # stands for every order of every value that is zero


class Tables:
    """Index tables that instructions refer to by address; they live as long as this object."""

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []

    def put(self, values: Any) -> int:
        """Keeps a table of integers; returns its address."""
        array = np.ascontiguousarray(values, dtype=np.int64)
        self._kept.append(array)
        return int(array.ctypes.data)

    def put_reals(self, values: np.ndarray) -> int:
        """Keeps a table of numbers; returns its address."""
        array = np.ascontiguousarray(values)
        self._kept.append(array)
        return int(array.ctypes.data)

    def bounded(self, rows: np.ndarray, owner: np.ndarray, owners: int) -> int:
        """A table of rows sorted by owner -> the address of ``owners + 1`` addresses, of the first row of each."""
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        start = self.put(rows)
        first = np.searchsorted(owner, np.arange(owners + 1))
        return self.put(start + first * rows.shape[1] * 8)


class PieceKind(NamedTuple):
    """How a piece of the parameters' gradient gets to its place: added to it, as a second use of tied parameters, or
    not; in long runs of w, or number by number. Pieces of one kind are collected together."""

    add: bool
    in_runs: bool


PIECE_KINDS = tuple(PieceKind(add, in_runs) for add in (False, True) for in_runs in (False, True))


@dataclass(frozen=True)
class BatchPiece:
    """A piece of the parameters' gradient that is one sum for the whole batch."""

    at: int  # in the region "batch"
    index: np.ndarray  # position in w of each number
    kind: PieceKind


@dataclass(frozen=True)
class TilePiece:
    """A piece of the parameters' gradient of which each tile has a share: where it starts among those of its kind."""

    at: int
    kind: PieceKind


class Layout(BaseLayout):
    """The memory of a network on tiles of a known number of lanes, and references to it.

    ``images`` is the number of samples in a tile that have pixel lanes: there is no padding among them.
    """

    def __init__(self, plan: Plan, lanes: int, images: int):
        super().__init__(plan, lanes, REGIONS)
        self.images = images
        self.tables = Tables()
        self.lifetimes = Lifetimes(plan)
        self.buffers: list[Buffer] = []  # of emitters, beside those of the plan
        self.batch_pieces: list[BatchPiece] = []
        self.tile_index: dict[PieceKind, list[np.ndarray]] = {kind: [] for kind in PIECE_KINDS}  # positions in w
        self.pack_index: list[np.ndarray] = []  # likewise, of the packed weights
        self.gaps: dict[str, list[tuple[int, int]]] = defaultdict(list)  # of guard zones, by region: start, length

    # ------------------------------------------------------------------------------------------- memory for emitters
    def buffer(
        self, operation: Operation, rows: int, orders: Iterable[int] = ORDERS, pixels: int = 0, after: bool = False
    ) -> Buffer:
        """Rows in the planes of these orders, beside those of the plan; ``pixels`` are those of a map. The emitter
        of the operation alone reads them, if ``after`` also when all operations are through."""
        made = Buffer(rows, tuple(sorted(orders)), pixels)
        self.buffers.append(made)
        self.lifetimes.note_emitter(made, operation, after)
        return made

    def place(self) -> None:
        """Gives every buffer its place: those that are never needed at the same time may share it. In guard mode none
        do, and after each of them there is a gap."""
        for k in ORDERS:
            buffers = [*self.plan.buffers, *self.buffers]
            owners = [buffer for buffer in buffers if buffer.inside is None and k in buffer.orders]
            sizes = [buffer.rows * self.row_size(buffer) + guard.BYTES for buffer in owners]
            spans = [self.lifetimes.span(buffer, k) for buffer in owners]
            places, self.plane_sizes[k] = packed_places(sizes, None if guard.ACTIVE else spans)
            self.starts.update({(buffer, k): place for buffer, place in zip(owners, places, strict=True)})
            if guard.ACTIVE:  # guard mode
                ends = [place + size for place, size in zip(places, sizes, strict=True)]
                self.gaps[f"plane{k}"] = [((end - guard.BYTES) // self.itemsize, guard.NUMBERS) for end in ends]

    def row_lanes(self, buffer: Buffer) -> int:
        """Lanes of a row of a buffer."""
        return self.images * buffer.pixels or self.lanes

    def row_size(self, buffer: Buffer) -> int:
        """Bytes of a row of a buffer. Rows of pixel lanes take an odd number of blocks, so that they do not share cache
        sets."""
        if not buffer.pixels:
            return self.lane_bytes
        return (-(-self.row_lanes(buffer) * self.itemsize // BLOCK) | 1) * BLOCK

    def read(self, words: np.ndarray, buffer: Buffer) -> np.ndarray:
        start, row = self.start(buffer, 0) // self.itemsize, self.row_size(buffer) // self.itemsize
        rows = words[:, start : start + buffer.rows * row].reshape(-1, buffer.rows, row)
        return rows[:, :, : self.row_lanes(buffer)]

    def reserve(self, region: str, count: int) -> int:
        """Takes numbers in a region; returns where they start."""
        start = super().reserve(region, count)
        if guard.NUMBERS:  # guard mode
            self.gaps[region].append((super().reserve(region, guard.NUMBERS), guard.NUMBERS))
        return start

    def pack(self, index: list[np.ndarray]) -> int:
        """Reserves the numbers of w at these positions, which are packed together with those of all other layers;
        returns where they start."""
        start = self.sizes["packed"]
        self.pack_index += index
        self.sizes["packed"] += sum(part.size for part in index)
        return start

    def tile_piece(self, index: np.ndarray, add: bool) -> TilePiece:
        """A place in each tile's partial sums for numbers that belong to these positions of w, or NOWHERE."""
        kind = self._kind(index, add)
        start = self._tile_count(kind)
        self.tile_index[kind] += [index, np.full(guard.NUMBERS, NOWHERE)]
        return TilePiece(start, kind)

    def batch_piece(self, at: int, index: np.ndarray, add: bool) -> None:
        """Says that numbers in the region "batch" belong to these positions of w."""
        self.batch_pieces.append(BatchPiece(at, index, self._kind(index, add)))

    def _kind(self, index: np.ndarray, add: bool) -> PieceKind:
        runs = self.runs(index)
        return PieceKind(add, len(runs) == 1 or bool(runs[:, 2].sum() >= RUN_LENGTH_WORTH_MOVING * len(runs)))

    def runs(self, index: np.ndarray) -> np.ndarray:
        """Runs of consecutive positions of w: where each starts in the index, where in w, and its length. Padding is
        left out."""
        starts = np.flatnonzero(np.diff(index, prepend=-2) != 1)
        lengths = np.diff(starts, append=index.size)
        return np.stack([starts, index[starts], lengths], axis=1)[index[starts] != NOWHERE]

    # --------------------------------------------------------------------------------------------------------- sizes
    def _tile_count(self, *kinds: PieceKind) -> int:
        return sum(len(index) for kind in kinds for index in self.tile_index[kind])

    @property
    def partial_size(self) -> int:
        """Numbers in a tile's partial sums."""
        return self._tile_count(*PIECE_KINDS)

    def partial_gaps(self) -> list[tuple[int, int]]:
        """Guard zones in a tile's partial sums, one after each piece: start and length."""
        sizes = [part.size for kind in PIECE_KINDS for part in self.tile_index[kind]]
        return [(int(end) - guard.NUMBERS, guard.NUMBERS) for end in np.cumsum(sizes, dtype=int)[1::2]]

    @property
    def longest_row(self) -> int:
        """Numbers of the longest row."""
        return max(self.row_size(buffer) for buffer in self.plan.buffers) // self.itemsize

    @property
    def zero_bytes(self) -> int:
        """Bytes of the zeros that stand for any order of any value."""
        return max(buffer.rows * self.row_size(buffer) for buffer in self.plan.buffers)

    # ---------------------------------------------------------------------------------------------------- references
    def rows(self, buffer: Buffer, k: int, row: int = 0) -> Ref:
        """Order k of some rows."""
        return Ref(f"plane{k}", self.start(buffer, k) + row * self.row_size(buffer))

    def extent(self, value: Value) -> tuple[int, int, int, int]:
        """How a value lies as kernels know it: pixels that have rows of their own, channels, lanes of a row and bytes
        from row to row."""
        return value.pixels, value.channels, self.row_lanes(value.buffer), self.row_size(value.buffer)

    def count(self, buffer: Buffer) -> int:
        """Numbers that a buffer takes, for maps from number to number; what is after the lanes of a row counts."""
        return buffer.rows * self.row_size(buffer) // self.itemsize

    def order(self, value: Value, k: int, row: int = 0) -> Ref:
        """Order k of a value, zeros if it has none."""
        return self.rows(value.buffer, k, row) if k in value.levels else ZEROS

    def value(self, value: Value, k: int) -> tuple[Ref, ...]:
        """All orders of a value in a pass of order k, zeros for those it does not have; orders above k are not read."""
        return tuple(self.order(value, min(j, k)) for j in ORDERS)

    def jet(self, buffer: Buffer, k: int) -> tuple[Ref, ...]:
        """All orders of some rows in a pass of order k; orders above k are not read."""
        return tuple(self.rows(buffer, min(j, k)) for j in ORDERS)

    def parameter(self, k: int, direction: int, offset: int) -> Ref:
        """Order 0 (w) or 1 (v) of the parameters from an offset on."""
        return Ref("w" if k == 0 else f"v{direction}", offset * self.itemsize, 0)

    def panel(self, region: str, j: int, direction: int, start: int) -> Ref:
        """Order j of the packed weights: those of w, or of a direction."""
        return Ref(f"{region}{0 if j == 0 else 1 + direction}", start * self.itemsize, 0)

    def share(self, piece: TilePiece, sums: int, offset: int = 0) -> Ref:
        """A tile's share of a piece of the gradient, in the set of partial sums of this number."""
        before = self._tile_count(*PIECE_KINDS[: PIECE_KINDS.index(piece.kind)])
        return Ref(f"partial{sums}", (before + piece.at + offset) * self.itemsize)

    def batch(self, region: str, start: int, offset: int = 0, size: int | None = None) -> Ref:
        """Numbers of a region for the whole batch; ``size`` is how many bytes each has."""
        return Ref(region, (start + offset) * (size or self.itemsize), 0)

    @cached_property
    def packing(self) -> tuple[int, int]:
        """Address and length of the index that packs w."""
        index = np.concatenate([*self.pack_index, np.zeros(0, np.int64)])
        return self.tables.put(index), index.size
