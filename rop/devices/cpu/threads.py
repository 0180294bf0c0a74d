"""Threads: whether they pay just now, and how a long call in compiled code can be cancelled.

Threads meet at many barriers in a pass; where another program occupies one of the cores they wait for each other, and
short work is many times faster on a single thread. ``Pace`` measures and chooses. Results do not depend on it, only
time does.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

FIRST = 4  # calls with threads before the other way is tried
TRIAL = 3  # calls of a trial, at least,
TRIAL_SECONDS = 5e-3  # and what they take together: in the first half threads wake, find a core and warm its cache
BETWEEN = 20  # times as long as a trial took the better way goes on before the other one is tried again,
SOON = 2  # or just so long when threads have been left: more often than not a disturbance is over soon
NEW = 0.25  # weight of a new measurement in the average, less for calls that are short beside a trial,
MOST = 2.0  # which counts as at most so many times the average: a single interruption does not decide
CLEARLY = 0.8  # threads are left only for what takes less than this part of their time: a few calls mislead
LONG = 5e-3  # seconds of a call that always uses threads: at worst they take turns, and trials are dear
PAUSE = 1e-3  # seconds without a call after which threads sleep and caches are cold: that call does not count


class Pace:
    """Chooses between running in parallel and alone by what the last calls took on average; it begins with threads.

    >>> Pace().parallel()
    True
    """

    def __init__(self) -> None:
        self._way = True  # whether threads are in use, but for trials of the other way
        self._usual: float | None = None  # average seconds of a call this way,
        self._other = float("inf")  # and of the last trial of the other
        self._calls = FIRST  # before a trial,
        self._seconds = 0.0  # and seconds of calls
        self._trial: list[float] | None = None  # seconds of its calls, while one is under way
        self._between = BETWEEN
        self._ended = float("-inf")
        self._warm = False

    def parallel(self) -> bool:
        """Whether the next call should use threads."""
        self._warm = time.perf_counter() - self._ended < PAUSE
        if not self._warm and self._trial is None and not self._way:  # what was in the way may be gone
            self._trial = []
        return self._way != (self._trial is not None)

    def measured(self, parallel: bool, seconds: float) -> None:
        """What the call took."""
        self._ended = time.perf_counter()
        if self._trial is not None:
            self._trial.append(seconds)
            if len(self._trial) >= TRIAL and sum(self._trial) >= TRIAL_SECONDS:
                self._decide(_typical(self._trial[len(self._trial) // 2 :]))
            return
        usual = seconds if self._usual is None else self._usual
        weight = min(NEW, seconds / TRIAL_SECONDS)
        seconds = min(seconds, MOST * usual)
        self._calls -= 1
        self._seconds -= seconds
        if self._warm:
            self._usual = usual + weight * (seconds - usual)
        slower = self._usual is not None and self._better(self._other)
        short = not self._way or usual < LONG
        if short and ((self._calls <= 0 and self._seconds <= 0) or slower):
            self._trial = []

    def _decide(self, seconds: float) -> None:
        """The end of a trial, which took so long a call."""
        assert self._trial is not None
        if self._usual is not None and self._better(seconds):
            self._way, self._usual, self._other = not self._way, seconds, self._usual
            self._between = BETWEEN if self._way else SOON
        else:
            self._other = seconds
            self._between = min(BETWEEN, 2 * self._between)
        self._seconds = self._between * sum(self._trial)
        self._trial = None

    def _better(self, seconds: float) -> bool:
        """Whether the other way, taking so long, is the one to choose."""
        assert self._usual is not None
        return seconds < (CLEARLY if self._way else 1.0) * self._usual


def _typical(seconds: list[float]) -> float:
    """The mean, a single interruption left out."""
    most = MOST * statistics.median(seconds)
    return statistics.fmean(min(one, most) for one in seconds)


class Cancellation:
    """Runs a long compiled call in a thread of its own, so that Ctrl-C reaches Python and can cancel the call.

    >>> Cancellation().call(lambda: None)
    True
    """

    def __init__(self) -> None:
        self._flag = np.zeros(1, np.int64)
        self.address = int(self._flag.ctypes.data)  # where the interpreter looks between stages

    def call(self, function: Callable[[], Any], stop: Callable[[], bool] = lambda: False) -> bool:
        """Calls a function; ``stop`` is asked now and then whether to cancel. Returns whether the call was completed.
        An exception that arrives meanwhile, such as KeyboardInterrupt, cancels the call as well."""
        threads = numba.get_num_threads()

        def target() -> None:
            numba.set_num_threads(threads)
            function()

        worker = threading.Thread(target=target, daemon=True)
        worker.start()
        try:
            while worker.is_alive():
                worker.join(0.1)
                if stop():
                    self._cancel(worker)
                    return False
        except BaseException:
            self._cancel(worker)
            raise
        return True

    def _cancel(self, worker: threading.Thread) -> None:
        self._flag[0] = 1
        worker.join()
        self._flag[0] = 0
