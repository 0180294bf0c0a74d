"""Running a pass: with or without threads, cancellable if it takes long, its memory compared in guard mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from rop.devices.cpu import guard
from rop.devices.cpu.code import Bound
from rop.devices.cpu.regions import Regions
from rop.devices.cpu.threads import Cancellation
from rop.devices.lock import in_home_process
from rop.kernels.cpu.interpreter import runner
from rop.kernels.cpu.transfer import DONE, answers

CANCELLABLE_WORK = 5e10  # instructions times bytes of a call that may take a tenth of a second: Ctrl-C must reach it


class Execution:
    """Runs passes over the tiles of a workspace's regions; ``forget`` is called when a pass was cancelled midway."""

    def __init__(self, memory: Regions, dtype: Any, forget: Callable[[], None]):
        self._memory, self._forget, self._answers = memory, forget, answers(dtype)
        self._tile_count, self._tile_bytes = memory["tile_count"], memory.tiling.stride
        self._cancellation = Cancellation()
        self.asked_address = self._cancellation.address

    def run(self, bound: Bound, first: int, tiles: int, results: Sequence[np.ndarray] = ()) -> None:
        """Runs a pass over tiles; ``results`` are arrays outside the workspace that it writes to."""
        self._tile_count[0] = tiles
        around = self._guard_results(results) if guard.ACTIVE else ()
        if self.takes_long(bound, tiles):
            self.call_cancellable(lambda: runner(in_home_process())(*bound.address, tiles, first, self.asked_address))
        else:
            parallel = in_home_process() and bound.pace.parallel()
            start = perf_counter()
            runner(parallel)(*bound.address, tiles, first, self.asked_address)
            bound.pace.measured(parallel, perf_counter() - start)
        if guard.ACTIVE:
            self.check_guards([bound], first, around)

    def ask(self, bound: Bound, tiles: int, given: tuple[Any, ...]) -> int:
        """Lets one compiled call take vectors in, run a pass over all tiles and hand results out (transfer.py)."""
        self._tile_count[0] = tiles
        pace = bound.pace
        if pace.rests:
            said: int = self._answers[pace.threaded and in_home_process()](*given)
            pace.rested()
        else:
            parallel = in_home_process() and pace.parallel()
            start = perf_counter()
            said = self._answers[parallel](*given)
            pace.measured(parallel, perf_counter() - start)
        if guard.ACTIVE and said == DONE:
            self.check_guards([bound], 0)
        return said

    def takes_long(self, bound: Bound, tiles: int) -> bool:
        """Whether Ctrl-C must be able to cancel a pass over so many tiles."""
        return self.work(bound, tiles) >= CANCELLABLE_WORK

    def work(self, bound: Bound, tiles: int) -> float:
        """About how much a pass over so many tiles has to do, in instructions times bytes."""
        return float(bound.length * self._tile_bytes * tiles)

    def _guard_results(self, results: Sequence[np.ndarray]) -> list[guard.Zone]:
        """Fills the gaps around results outside the workspace with canaries."""
        zones = [zone for array in results for zone in guard.edges("a result", array)]
        for zone in zones:
            zone.fill()
        return zones

    def call_cancellable(self, function: Callable[[], Any], stop: Callable[[], bool] = lambda: False) -> bool:
        """A long compiled call that Ctrl-C and ``stop`` can cancel; returns whether it was completed."""
        completed = False
        try:
            completed = self._cancellation.call(function, stop)
        finally:
            if not completed:
                self._forget()
        return completed

    def costs(self, bound: Bound, first: int, tiles: int) -> list[float]:
        """Runs a pass instruction by instruction on one thread -> the seconds of CPU time that each has taken."""
        self._tile_count[0] = tiles
        run, seconds = runner(False), []
        for row in range(bound.length):
            stage, start = bound.alone(row), thread_time()
            run(bound.address[0], stage.ctypes.data, 1, tiles, first, self.asked_address)
            seconds.append(thread_time() - start)
        return seconds

    def check_guards(self, passes: Sequence[Bound], first: int, results: Sequence[guard.Zone] = ()) -> None:
        """In guard mode, compares the canaries after these passes and names the kernel that changed one."""
        if not guard.ACTIVE:
            return
        rows = [(bound, row) for bound in passes for row in range(len(bound.names))]
        tiles = int(self._tile_count[0])

        def run_one(i: int) -> None:
            bound, row = rows[i]
            stage = bound.alone(row)
            runner(False)(bound.address[0], stage.ctypes.data, 1, tiles, first, self.asked_address)

        self._memory.guards.check([bound.names[row] for bound, row in rows], run_one, results)
