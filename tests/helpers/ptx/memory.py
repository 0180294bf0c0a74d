"""The state spaces of a launch, and the checks of every access to them.

All spaces lie in one range of addresses, each in a window of its own. So a generic address needs no translation (cvta
does nothing), and an address that strays from its space cannot hit another one by accident. Every array, whether an
argument or shared, is an allocation between guard zones that nobody may touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.helpers.ptx.parse import SIZES, Instruction
from tests.helpers.ptx.races import ATOMIC, READ, SEVERAL, VERBS, WRITE, AccessLog, BlockHistory, Records, within_block
from tests.helpers.ptx.report import Index3, Kind, Recorder

Array = np.ndarray[Any, np.dtype[Any]]

BASES = {  # shared and local addresses fit into 32 bits, for code that uses such pointers
    "shared": 0x0100_0000,
    "local": 0x0200_0000,
    "global": 0x7F00_0000_0000,
}
GUARD = 512  # bytes around every allocation
PAGE = 256  # to which allocations are aligned, as those of the driver are


@dataclass(frozen=True)
class Allocation:
    """A named piece of a space."""

    name: str
    offset: int
    bytes: int
    read_only: bool = False


class Space:
    """A state space: bytes, which of them may be used, and which were written.

    Bookkeeping is done per granule, the size of the smallest access in the program.
    """

    def __init__(self, name: str, granule: int) -> None:
        self.name, self.base, self.granule = name, BASES[name], granule
        self.allocations: list[Allocation] = []
        self.size = 0

    def allocate(self, name: str, length: int, align: int, read_only: bool = False) -> int:
        """Reserve bytes and return their address."""
        start = -(-(self.size + GUARD) // align) * align
        self.allocations.append(Allocation(name, start, length, read_only))
        self.size = start + length
        return self.base + start

    def create(self, copies: int = 1, initialised: bool = False) -> None:
        """Make the bytes, once everything is allocated.

        `copies` is the number of threads for local memory, where the same address means something else in each.
        """
        self.stride = -(-(self.size + GUARD) // 16) * 16
        self.copies = copies
        self.data = np.zeros(self.stride * copies, np.uint8)
        self.usable = np.zeros(self.stride // self.granule, bool)
        for item in self.allocations:
            self.usable[item.offset // self.granule : -(-(item.offset + item.bytes) // self.granule)] = True
        self.read_only = np.zeros(self.stride // self.granule, bool)
        for item in self.allocations:
            if item.read_only:
                self.read_only[item.offset // self.granule : (item.offset + item.bytes) // self.granule] = True
        self.written = np.full((self.stride // self.granule) * copies, initialised)

    def clear(self) -> None:
        """Forget everything, as at the start of a block."""
        self.data[:] = 0
        self.written[:] = False

    def describe(self, address: int) -> str:
        """Where an address lies relative to the nearest allocation."""
        offset = address - self.base
        if not self.allocations:
            return f"address {address:#x}, and the kernel has no {self.name} memory"
        nearest = min(
            self.allocations, key=lambda item: max(item.offset - offset, offset - (item.offset + item.bytes) + 1, 0)
        )
        inside = offset - nearest.offset
        if inside < 0:
            return f"{-inside} bytes before {nearest.name} ({nearest.bytes} bytes)"
        if inside >= nearest.bytes:
            return f"{inside - nearest.bytes} bytes past the end of {nearest.name} ({nearest.bytes} bytes)"
        return f"byte {inside} of {nearest.name} ({nearest.bytes} bytes)"


class Memory:
    """Loads, stores and atomic updates of the threads of a block, with all checks."""

    def __init__(
        self,
        spaces: dict[str, Space],
        program: Sequence[Instruction],
        recorder: Recorder,
        thread_index: Callable[[int], Index3],
        block_index: Callable[[int], Index3],
    ) -> None:
        self.spaces, self.program, self.recorder = spaces, program, recorder
        self.thread_index, self.block_index = thread_index, block_index
        self.logs = {name: AccessLog() for name in ("global", "shared")}
        self.history = BlockHistory(len(spaces["global"].usable))
        self.block = 0
        self.phase: Array = np.zeros(0, np.int64)  # warp barriers passed, per thread

    def begin_block(self, block: int, threads: int) -> None:
        """Fresh shared and local memory."""
        self.block, self.phase = block, np.zeros(threads, np.int64)
        self.spaces["shared"].clear()
        self.spaces["local"].clear()

    # -- accesses -------------------------------------------------------------------------------------------------

    def load(
        self, place: int, space: str | None, threads: Array, addresses: Array, dtype: np.dtype[Any], width: int
    ) -> Array:
        """The values at the addresses, a row per thread; 0 where the access is not allowed."""
        values = np.zeros((len(threads), width), dtype)
        for part, target in self._spaces(space, addresses):
            rows, offsets = self._checked(place, target, threads, addresses, part, dtype.itemsize * width, READ)
            if not rows.size:
                continue
            granules = self._granules(target, offsets, dtype.itemsize * width)
            self._expect_written(place, target, threads[rows], addresses[rows], granules)
            elements = self._element(target, threads[rows], offsets, dtype.itemsize)
            values[rows] = target.data.view(dtype)[elements[:, None] + np.arange(width)]
            self._log(target, READ, place, threads[rows], granules, None)
        return values

    def store(self, place: int, space: str | None, threads: Array, addresses: Array, values: Array) -> None:
        """Write a row of values per thread; of threads that write the same bytes, the last one wins."""
        width, size = values.shape[1], values.dtype.itemsize
        for part, target in self._spaces(space, addresses):
            rows, offsets = self._checked(place, target, threads, addresses, part, size * width, WRITE)
            if not rows.size:
                continue
            granules = self._granules(target, offsets, size * width)
            chosen = np.ascontiguousarray(values[rows])
            elements = self._element(target, threads[rows], offsets, size)
            target.data.view(values.dtype)[elements[:, None] + np.arange(width)] = chosen
            self._mark_written(target, threads[rows], granules)
            written = chosen.view(f"u{target.granule}").astype(np.uint64)
            self._log(target, WRITE, place, threads[rows], granules, written)

    def update(
        self,
        place: int,
        space: str | None,
        threads: Array,
        addresses: Array,
        dtype: np.dtype[Any],
        change: Callable[[Any, int], Any],
    ) -> Array:
        """Atomic updates, thread by thread in their order; `change(old, row)` gives the new value.

        The order of atomic updates is free on a GPU; a result that depends on it will show when blocks run in another
        order.
        """
        before = np.zeros(len(threads), dtype)
        for part, target in self._spaces(space, addresses):
            rows, offsets = self._checked(place, target, threads, addresses, part, dtype.itemsize, ATOMIC)
            if not rows.size:
                continue
            granules = self._granules(target, offsets, dtype.itemsize)
            self._expect_written(place, target, threads[rows], addresses[rows], granules)
            cells = target.data.view(dtype)
            for row, element in zip(rows, self._element(target, threads[rows], offsets, dtype.itemsize), strict=True):
                before[row] = cells[element]
                cells[element] = change(before[row], int(row))
            self._log(target, ATOMIC, place, threads[rows], granules, None)
        return before

    def _spaces(self, space: str | None, addresses: Array) -> list[tuple[Array, Space]]:
        """The rows that go to each space; a generic address is sorted by its window."""
        if space is not None:
            return [(np.arange(len(addresses)), self.spaces["global" if space == "const" else space])]
        shared = (addresses >= BASES["shared"]) & (addresses < BASES["local"])
        local = (addresses >= BASES["local"]) & (addresses < BASES["local"] + (1 << 30))
        windows = {"shared": shared, "local": local, "global": ~(shared | local)}  # what is nowhere, global refuses
        return [(np.flatnonzero(rows), self.spaces[name]) for name, rows in windows.items() if rows.any()]

    def _checked(
        self, place: int, space: Space, threads: Array, addresses: Array, rows: Array, size: int, kind: int
    ) -> tuple[Array, Array]:
        """The rows whose access is allowed, with their offsets in the space; the others are reported."""
        offsets = addresses[rows] - space.base
        outside = (offsets < 0) | (offsets > space.stride - size)
        crooked = (addresses[rows] & (size - 1)) != 0
        granules = self._granules(space, np.where(outside, 0, offsets & -size), size)
        outside |= ~space.usable[granules].all(axis=1)
        locked = space.read_only[granules].any(axis=1) if kind != READ else np.zeros(len(rows), bool)
        crooked &= ~outside
        locked &= ~(outside | crooked)
        bad = outside | crooked | locked
        if not bad.any():
            return rows, offsets
        verb = f"{VERBS[kind]} {size} bytes of {space.name} memory"
        for problem, which in (
            (Kind.OUT_OF_BOUNDS, outside),
            (Kind.MISALIGNED, crooked),
            (Kind.READ_ONLY, locked),
        ):
            self._tell(problem, verb, place, space, threads[rows], addresses[rows], which)
        return rows[~bad], offsets[~bad]

    def _granules(self, space: Space, offsets: Array, size: int) -> Array:
        """The granules of each access, a row per thread."""
        first = offsets // space.granule
        count = max(1, size // space.granule)
        return first[:, None] if count == 1 else first[:, None] + np.arange(count)

    def _element(self, space: Space, threads: Array, offsets: Array, size: int) -> Array:
        """Indices into the bytes seen as elements of `size`; in local memory every thread has its own copy."""
        return (offsets + threads * space.stride if space.copies > 1 else offsets) // size

    def _expect_written(self, place: int, space: Space, threads: Array, addresses: Array, granules: Array) -> None:
        if space.copies > 1:
            granules = granules + (threads * (space.stride // space.granule))[:, None]
        missing: Array = np.asarray(~space.written[granules].all(axis=1))
        if missing.any():
            self._tell(Kind.UNWRITTEN, f"{space.name} memory", place, space, threads, addresses, missing)

    def _mark_written(self, space: Space, threads: Array, granules: Array) -> None:
        if space.copies > 1:
            granules = granules + (threads * (space.stride // space.granule))[:, None]
        space.written[granules] = True

    def _tell(
        self, kind: Kind, what: str, place: int, space: Space, threads: Array, addresses: Array, which: Array
    ) -> None:
        rows = np.flatnonzero(which)
        if rows.size:
            first = rows[0]
            self.recorder.add(
                kind,
                f"{what}: {space.describe(int(addresses[first]))}",
                self.program[place],
                self.block_index(self.block),
                self.thread_index(int(threads[first])),
                len(rows),
            )

    # -- races ----------------------------------------------------------------------------------------------------

    def _log(self, space: Space, kind: int, place: int, threads: Array, granules: Array, values: Array | None) -> None:
        log = self.logs.get(space.name)
        if log is not None:
            log.add(kind, place, threads, granules, self.phase[threads], values)

    def end_epoch(self) -> None:
        """At a barrier and at the end of the block: judge what its threads did since the last one."""
        for name, log in self.logs.items():
            records = log.take()
            if records is None:
                continue
            kept, races = within_block(records)
            for race in races:
                self._tell_race(self.spaces[name], kept, race.row, race.other, race.same_value)
            if name == "global":
                self._compare_blocks(records)

    def _tell_race(self, space: Space, records: Records, row: int, other: int, same_value: bool) -> None:
        place, second = int(records.place[row]), self.program[int(records.place[other])]
        where = space.describe(space.base + int(records.granule[row]) * space.granule)
        detail = (
            f"in {space.name} memory, {where}: this thread {VERBS[records.kind[row]]} what thread "
            f"{self.thread_index(int(records.thread[other]))} {VERBS[records.kind[other]]} at PTX line {second.line} "
            f"({second.source or second.text}) without a barrier between them"
        )
        self.recorder.add(
            Kind.SAME_VALUE if same_value else Kind.RACE,
            detail,
            self.program[place],
            self.block_index(self.block),
            self.thread_index(int(records.thread[row])),
        )

    def _compare_blocks(self, records: Records) -> None:
        space = self.spaces["global"]
        for race, earlier, block in self.history.absorb(records, self.block):
            instruction, second = self.program[int(records.place[race.row])], self.program[race.other]
            who = "several blocks" if block == SEVERAL else f"block {self.block_index(block)}"
            where = space.describe(space.base + int(records.granule[race.row]) * space.granule)
            detail = (
                f"between blocks, {where}: this block {VERBS[records.kind[race.row]]} what {who} "
                f"{VERBS[earlier]} at PTX line {second.line} ({second.source or second.text})"
            )
            self.recorder.add(
                Kind.SAME_VALUE if race.same_value else Kind.RACE,
                detail,
                instruction,
                self.block_index(self.block),
                self.thread_index(int(records.thread[race.row])),
                race.count,
            )


def granule_of(space: str, program: Sequence[Instruction]) -> int:
    """The smallest size in which a program accesses a space; accesses are aligned, so nothing finer is needed."""
    sizes = [
        SIZES[instruction.type]
        for instruction in program
        if instruction.opcode in ("ld", "st", "atom", "red") and instruction.space in (space, None, "const")
    ]
    return min([*sizes, 8])
