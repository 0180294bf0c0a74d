"""Whether threads pay just now. Threads meet many times in a pass; where another program has one of the cores they wait
for each other's turn, and short work is many times faster on a single one. Results do not depend on it, only time does.
"""

from __future__ import annotations

import time

FIRST = 4               # calls with threads before the other way is tried
TRIAL = 3               # calls of a trial; the first one wakes threads that sleep, and does not count
BETWEEN = 20            # times as long as a trial took the better way goes on before the other one is tried again
NEW = 0.25              # weight of a new measurement in the average,
MOST = 2.0              # which counts as at most so many times the average: a single interruption does not decide
PAUSE = 1e-3            # seconds without a call after which threads sleep and caches are cold: that call does not count


class Pace:
    """Chooses between running in parallel and alone by what the last calls took on average.

    >>> pace = Pace()
    >>> for parallel, seconds in 4 * [(True, 3e-3)] + 3 * [(False, 1e-3)]:
    ...     assert pace.parallel() == parallel
    ...     pace.measured(parallel, seconds)
    >>> pace.parallel()
    False
    """

    def __init__(self) -> None:
        self._way = True                                # whether threads are in use, but for trials of the other way
        self._usual: float | None = None                # average seconds of a call this way,
        self._other = float("inf")                      # and of the last trial of the other
        self._calls = FIRST                             # before a trial,
        self._seconds = 0.0                             # and seconds of calls
        self._trial: list[float] | None = None          # seconds of its calls, while one is under way
        self._ended = float("-inf")
        self._warm = False

    def parallel(self) -> bool:
        """Whether the next call should use threads."""
        self._warm = time.perf_counter() - self._ended < PAUSE
        if not self._warm and self._trial is None and not self._way:        # what was in the way may be gone
            self._trial = []
        return self._way != (self._trial is not None)

    def measured(self, parallel: bool, seconds: float) -> None:
        """What the call took."""
        self._ended = time.perf_counter()
        if self._trial is not None:
            self._trial.append(seconds)
            if len(self._trial) == TRIAL:
                self._decide(sum(self._trial[1:]) / (TRIAL - 1))
            return
        usual = seconds if self._usual is None else self._usual
        seconds = min(seconds, MOST * usual)
        self._calls -= 1
        self._seconds -= seconds
        if self._warm:
            self._usual = usual + NEW * (seconds - usual)
        slower = self._usual is not None and self._usual > self._other      # than the other way was when it was tried
        if (self._calls <= 0 and self._seconds <= 0) or slower:
            self._trial = []

    def _decide(self, seconds: float) -> None:
        """The end of a trial, which took so long a call."""
        assert self._trial is not None
        self._seconds = BETWEEN * sum(self._trial)
        if self._usual is not None and seconds < self._usual:
            self._way, self._usual, self._other = not self._way, seconds, self._usual
        else:
            self._other = seconds
        self._trial = None
