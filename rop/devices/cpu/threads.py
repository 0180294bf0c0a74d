"""Threads: whether they pay just now, and how a long call in compiled code can be cancelled.

Threads meet at many barriers in a pass; where another program occupies one of the cores they wait for each other, and
short work is many times faster on a single thread. ``Pace`` measures and chooses. Results do not depend on it, only
time does.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rop.kernels.cpu.interpreter import ASKED_WORDS, CANCELLED, ERROR, SIGNALS

# The policy's constants. bench/results/pace.md has times with each of them halved and doubled, on a quiet machine and
# beside a busy process (python -m rop.bench.pace).
CALLS_BEFORE_FIRST_TRIAL = 4  # calls with threads before a single thread is tried
TRIAL_CALLS = 3  # a trial has at least this number of calls, …
TRIAL_SECONDS = 5e-3  # … which take at least this together: in the first half threads wake up and warm their caches
TRIAL_SPACING = 20  # the better way goes on for this multiple of a trial's time before the other is tried again, …
SPACING_WITHOUT_THREADS = 2  # … or this multiple once threads have been given up: most disturbances end soon
NEWEST_WEIGHT = 0.25  # weight of a new measurement in the running average; less for calls shorter than a trial
OUTLIER = 2.0  # a measurement counts at most as this multiple of the average, so that one interruption decides nothing
CLEAR_GAIN = 0.8  # threads are given up only for a time below this part of theirs, because a few calls mislead
# Calls that take longer always use threads, unless they have little work: at worst threads take turns, and trials are
# costly. Where little work takes so long, threads may be waiting for cores that other programs occupy, …
ALWAYS_PARALLEL_SECONDS = 5e-3
LITTLE_WORK = 2e8  # … if it is less than this, in instructions times bytes: about 3 ms of one thread, at most 30 …
LONG_TRIAL_SPACING = 100  # … and a trial comes after a larger multiple of its time, in case it is long after all
IDLE_SECONDS = 1e-3  # after this time without a call threads sleep and caches are cold: the next call does not count, …
PAUSES_IN_A_ROW = 4  # … unless so many calls before it came after such a pause, too: then pauses are what is usual
# After a pause the disturbance that took threads away may have ended: they get a new chance, but after chances in vain
# only every second pause, every fourth, … up to this number. Beside several busy processes a core is lost so often that
# each such loss looks like a pause.
PAUSES_WITHOUT_CHANCE = 63
RESTING_SECONDS = IDLE_SECONDS / 8  # of shorter calls only some are measured, because that takes a microsecond: …
RESTS = 2  # … after each that is measured, so many are not
WATCH_SECONDS = 0.1  # so often a long call lets Python handle signals


class Pace:
    """Chooses between running in parallel and alone by what the last calls took on average; it begins with threads.

    Args:
        work: of a call, in instructions times bytes.

    >>> Pace().parallel()
    True
    """

    # When the last call ended, of any pace: the passes of a network share threads and caches. In a list, because after
    # a change of a class attribute Python looks up all others of the class anew.
    _ended = [float("-inf")]

    def __init__(self, work: float = math.inf) -> None:
        self.is_short = work < LITTLE_WORK
        self.threaded = True  # the way in use, except in trials of the other way
        self._usual: float | None = None  # average seconds of a call in this way
        self._other = float("inf")  # seconds of a call in the last trial of the other way
        self._calls = CALLS_BEFORE_FIRST_TRIAL  # calls until the next trial may begin,
        self._seconds = 0.0  # and seconds of calls until then
        self._trial: list[float] | None = None  # seconds of the calls of a trial, while one is under way,
        self._spent = 0.0  # and their sum
        self._between = TRIAL_SPACING
        self._warm = False  # whether the present call counts
        self._pauses = 0  # calls in a row that came after a pause,
        self._new = True  # as does the first one
        self._passed = 0  # pauses that still pass without a new chance for threads,
        self._vain = 0  # and so many will after the next chance, if that is in vain, too
        self.rests = 0  # of the next calls so many need not be measured and go the same way,
        self._rests = 0  # and so many were not to be measured after the last measurement

    def parallel(self) -> bool:
        """Whether the next call should use threads."""
        at_once = time.perf_counter() - self._ended[0] < IDLE_SECONDS and not self._new
        self._pauses, self._new = 0 if at_once else self._pauses + 1, False
        self._warm = self._pauses == 0 or self._pauses > PAUSES_IN_A_ROW
        if not self._warm and self._trial is None and not self.threaded:
            self._give_chance()
        return self.threaded != (self._trial is not None)

    def measured(self, parallel: bool, seconds: float) -> None:
        """Takes in the time of a call."""
        self._ended[0] = time.perf_counter()
        if self._trial is not None:
            self._trial.append(seconds)
            self._spent += seconds
            if self._spent >= TRIAL_SECONDS and len(self._trial) >= TRIAL_CALLS:
                self._decide(_typical(self._trial[len(self._trial) // 2 :]))
            return
        usual = seconds if self._usual is None else self._usual
        calls = 1 + self._rests - self.rests  # for which this measurement stands
        weight = min(NEWEST_WEIGHT, calls * seconds / TRIAL_SECONDS)
        seconds = min(seconds, OUTLIER * usual)
        self._calls -= calls
        self._seconds -= calls * seconds
        if self._warm:
            self._usual = usual + weight * (seconds - usual)
        self._rests = self.rests = RESTS if usual < RESTING_SECONDS else 0
        due = self._calls <= 0 and self._seconds <= 0
        due = due or (self._usual is not None and self._better(self._other))
        if due and (not self.threaded or self.is_short or usual < ALWAYS_PARALLEL_SECONDS):
            self._begin_trial()

    def rested(self) -> None:
        """Takes in that a call has ended that was not measured."""
        self._ended[0] = time.perf_counter()
        self.rests -= 1

    def _decide(self, seconds: float) -> None:
        """Ends a trial in which a call took this time."""
        if self._usual is not None and self._better(seconds):
            self.threaded, self._usual, self._other = not self.threaded, seconds, self._usual
            self._between = TRIAL_SPACING if self.threaded else SPACING_WITHOUT_THREADS
            if self.threaded:
                self._passed = self._vain = 0
        else:
            self._other = seconds
            lasting = self.threaded and self._usual is not None and self._usual >= ALWAYS_PARALLEL_SECONDS
            self._between = LONG_TRIAL_SPACING if lasting else min(TRIAL_SPACING, 2 * self._between)
        self._seconds = self._between * self._spent
        self._trial = None

    def _give_chance(self) -> None:
        """Tries threads again after a pause, unless that was in vain too often."""
        if self._passed:
            self._passed -= 1
            return
        self._passed = self._vain = min(PAUSES_WITHOUT_CHANCE, 2 * self._vain + 1)
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._trial, self._spent, self._rests, self.rests = [], 0.0, 0, 0

    def _better(self, seconds: float) -> bool:
        """Whether to change to the other way if a call takes this time there."""
        assert self._usual is not None
        return seconds < (CLEAR_GAIN if self.threaded else 1.0) * self._usual


def _typical(seconds: list[float]) -> float:
    """The mean, in which a single interruption counts at most as an outlier."""
    most = OUTLIER * statistics.median(seconds)
    return statistics.fmean(min(one, most) for one in seconds)


class Cancellation:
    """Lets Ctrl-C reach a long compiled call, and cancel it.

    Python handles signals in its main thread and between its own instructions: a compiled call would keep them waiting.
    So another thread asks the call now and then to let Python handle them. The call itself stays in the thread that it
    comes from. OpenMP has a team for every thread that calls it, and when all teams together have more threads than the
    machine has cores, threads go to sleep at every barrier, which doubles the time of passes with many short stages.

    >>> Cancellation().call(lambda: None)
    True
    """

    def __init__(self) -> None:
        self._asked = np.zeros(ASKED_WORDS, np.int64)
        self.address = int(self._asked.ctypes.data)  # where the interpreter looks between instructions

    def call(self, function: Callable[[], Any], stop: Callable[[], bool] = lambda: False) -> bool:
        """Calls a function; ``stop``, which must not raise, is asked now and then whether to cancel. Returns whether
        the call was completed. What a handler of a signal raises, such as KeyboardInterrupt, cancels the call, too."""
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended, stop), daemon=True)
        watch.start()
        try:
            function()
        finally:
            ended.set()
            watch.join()
            cancelled, error = bool(self._asked[CANCELLED]), self._asked[ERROR:].tolist()
            self._asked[:] = 0  # for the next call, which nobody may watch
        if error[0]:
            ctypes.pythonapi.PyErr_Restore(*(ctypes.c_void_p(address) for address in error))
        return not cancelled

    def _watch(self, ended: threading.Event, stop: Callable[[], bool]) -> None:
        while not ended.wait(WATCH_SECONDS):
            self._asked[SIGNALS] = 1
            if stop():
                self._asked[CANCELLED] = 1
