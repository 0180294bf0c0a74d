"""Who touched which bytes: two threads that no barrier orders must not touch the same bytes if one of them writes.

Accesses are logged and judged when a barrier ends the epoch, all at once: a sort brings the accesses of every granule
(the smallest unit that the kernel accesses) together. In a sound kernel nearly every epoch only reads or only writes a
tile, so little is left to sort.

Between blocks there is no barrier at all: what a block touched is kept for the whole launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

READ, WRITE, ATOMIC = 0, 1, 2
VERBS = ("reads", "writes", "updates atomically")
CONFLICTS = {READ: (WRITE, ATOMIC), WRITE: (WRITE, READ, ATOMIC), ATOMIC: (WRITE, READ)}
NOBODY, SEVERAL = -1, -2
WARP = 32


@dataclass(frozen=True)
class Records:
    """Accesses, a row per thread and granule."""

    granule: Array
    thread: Array
    kind: Array
    place: Array  # number of the instruction in the program
    phase: Array  # warp barriers that the thread has passed
    value: Array  # bits written; 0 for reads

    def __len__(self) -> int:
        return len(self.granule)

    def where(self, chosen: Array) -> Records:
        return Records(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Race:
    """Two accesses to one granule, as rows of the records; or one row and the block that came before."""

    row: int
    other: int
    same_value: bool
    count: int = 1


class AccessLog:
    """The accesses of one block to one space since the last barrier."""

    def __init__(self) -> None:
        self.batches: list[tuple[Array, Array, int, int, Array, Array | None]] = []

    def add(self, kind: int, place: int, threads: Array, granules: Array, phases: Array, values: Array | None) -> None:
        """Log an instruction: `granules` and `values` have a row per thread and a column per granule."""
        self.batches.append((granules, threads, kind, place, phases, values))

    def take(self) -> Records | None:
        """Everything since the last call, as one table."""
        if not self.batches:
            return None
        batches, self.batches = self.batches, []
        columns = [granules.shape[1] for granules, *_ in batches]
        sizes = [granules.size for granules, *_ in batches]
        return Records(
            np.concatenate([granules.ravel() for granules, *_ in batches]),
            np.concatenate([np.repeat(batch[1], n) for batch, n in zip(batches, columns, strict=True)]),
            np.repeat([batch[2] for batch in batches], sizes),
            np.repeat([batch[3] for batch in batches], sizes),
            np.concatenate([np.repeat(batch[4], n) for batch, n in zip(batches, columns, strict=True)]),
            np.concatenate(
                [np.zeros(n, np.uint64) if b[5] is None else b[5].ravel() for b, n in zip(batches, sizes, strict=True)]
            ),
        )


def within_block(records: Records) -> tuple[Records, list[Race]]:
    """The races of one epoch of one block, and the records that their rows refer to.

    Accesses of one warp are also ordered by its own barriers (phases). So there are two questions: do different warps
    meet in a granule, and do different threads meet in a granule within one phase of their warp?
    """
    modifies = records.kind != READ
    if not modifies.any():
        return records, []
    records = records.where(np.isin(records.granule, np.unique(records.granule[modifies])))
    phases = int(records.phase.max()) + 1
    races = list(_meetings(records, records.granule * phases + records.phase, records.thread))
    if phases > 1:
        races += _meetings(records, records.granule, records.thread // WARP)
    return records, races


def _meetings(records: Records, key: Array, actor: Array) -> Iterator[Race]:
    """Every key at which different actors meet and one modifies; atomic updates do not disturb each other."""
    order = np.lexsort((actor, key))
    ordered, kinds = key[order], records.kind[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.concatenate([starts[1:], [len(order)]])
    several = actor[order[starts]] != actor[order[ends - 1]]
    modifies = np.logical_or.reduceat(kinds != READ, starts)
    atomic = np.logical_and.reduceat(kinds == ATOMIC, starts)
    told: set[tuple[int, int, bool]] = set()
    for group in np.flatnonzero(several & modifies & ~atomic):
        rows = order[starts[group] : ends[group]]
        row, other = _pair(rows, records.kind, actor)
        values = records.value[rows]
        same = bool((records.kind[rows] == WRITE).all() and (values == values[0]).all())
        signature = (int(records.place[row]), int(records.place[other]), same)
        if signature not in told:
            told.add(signature)
            yield Race(row, other, same)


def _pair(rows: Array, kind: Array, actor: Array) -> tuple[int, int]:
    """Two rows of a group that conflict; the first one modifies."""
    modifying = sorted((row for row in rows if kind[row] != READ), key=lambda row: kind[row] != WRITE)
    for row in modifying:
        for other in rows:
            if actor[other] != actor[row] and not kind[row] == kind[other] == ATOMIC:
                return int(row), int(other)
    raise AssertionError("a group without a conflict")


class BlockHistory:
    """For every granule of global memory, which blocks read, wrote or updated it so far."""

    def __init__(self, granules: int) -> None:
        self.block = np.full((3, granules), NOBODY, np.int32)
        self.place = np.zeros((3, granules), np.int32)
        self.value = np.zeros(granules, np.uint64)

    def absorb(self, records: Records, block: int) -> Iterator[tuple[Race, int, int]]:
        """Add what a block did, and yield each conflict with another: race, kind of the other access, its block."""
        for kind in (READ, WRITE, ATOMIC):
            rows = np.flatnonzero(records.kind == kind)
            if not rows.size:
                continue
            granules = records.granule[rows]
            for earlier in CONFLICTS[kind]:
                yield from self._conflicts(records, rows, granules, block, kind, earlier)
        for kind in (READ, WRITE, ATOMIC):
            rows = np.flatnonzero(records.kind == kind)
            granules = records.granule[rows]
            known = self.block[kind, granules]
            self.block[kind, granules] = np.where((known == NOBODY) | (known == block), block, SEVERAL)
            self.place[kind, granules] = records.place[rows]
            if kind == WRITE:
                self.value[granules] = records.value[rows]

    def _conflicts(
        self, records: Records, rows: Array, granules: Array, block: int, kind: int, earlier: int
    ) -> Iterator[tuple[Race, int, int]]:
        before = self.block[earlier, granules]
        foreign = (before != NOBODY) & (before != block)
        if not foreign.any():
            return
        equal = np.zeros(len(rows), bool)
        if kind == earlier == WRITE:
            equal = records.value[rows] == self.value[granules]
        for same in (False, True):
            found = np.flatnonzero(foreign & (equal == same))
            if found.size:
                first = found[0]
                race = Race(int(rows[first]), int(self.place[earlier, granules[first]]), same, len(found))
                yield race, earlier, int(before[first])
