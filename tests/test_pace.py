"""Threads are used while they pay."""

from __future__ import annotations

from itertools import cycle

import pytest

from rop import pace as module
from rop.pace import BETWEEN, FIRST, PAUSE, TRIAL, Pace


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def run(pace: Pace, calls: int, together: float | list[float], alone: float) -> list[bool]:
    """So many calls on a machine where they take so long; returns which of them used threads."""
    ways, durations = [], cycle(together if isinstance(together, list) else [together])
    for _ in range(calls):
        ways.append(pace.parallel())
        pace.measured(ways[-1], next(durations) if ways[-1] else alone)
    return ways


def test_the_faster_way_is_taken_and_the_other_one_tried_now_and_then() -> None:
    for together, alone in ((1.0, 2.0), (2.0, 1.0)):
        pause = BETWEEN * TRIAL * 2                                 # calls of a second for a trial of two seconds each
        ways = run(Pace(), FIRST + TRIAL + 10 * (pause + TRIAL), together, alone)[FIRST + TRIAL:]
        assert abs(ways.count(together > alone) - 10 * TRIAL) <= TRIAL


def test_a_slow_first_call_does_not_decide() -> None:
    pace = Pace()
    run(pace, 1, 100.0, 100.0)
    assert run(pace, 30, 1.0, 2.0).count(False) == TRIAL


def test_a_call_after_a_pause_does_not_count(clock: Clock) -> None:
    """Nor does the first call of a trial, which wakes the threads."""
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    for _ in range(5):
        clock.now += 2 * PAUSE
        run(pace, 1, 50.0, 50.0)
        assert all(run(pace, 5, 1.0, 2.0))
    pace = Pace()
    run(pace, FIRST + TRIAL, 3.0, 2.0)
    assert not any(run(pace, BETWEEN * TRIAL, 3.0, 2.0))
    assert run(pace, TRIAL, [50.0, 1.0, 1.0], 2.0) == TRIAL * [True]
    assert all(run(pace, 30, 1.0, 2.0))


def test_short_runs_between_pauses_are_not_spent_on_trials(clock: Clock) -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    ways = []
    for _ in range(30):
        clock.now += 2 * PAUSE
        ways += run(pace, 7, 1.0, 2.0)
    assert ways.count(False) <= 2 * TRIAL


def test_after_a_pause_threads_get_another_chance(clock: Clock) -> None:
    pace = Pace()
    run(pace, 20, 30.0, 2.0)
    assert not any(run(pace, 30, 1.0, 2.0))
    clock.now += 2 * PAUSE
    assert all(run(pace, TRIAL + 20, 1.0, 2.0))


def test_it_follows_the_machine_there_and_back() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    busy = run(pace, 20, 30.0, 2.5)
    assert busy.index(False) <= 4 and not any(busy[10:])
    assert run(pace, 600, 1.0, 2.0)[300:].count(False) <= 2 * TRIAL + TRIAL


def test_one_interruption_does_not_decide() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    assert all(run(pace, 20, [1.0] * 10 + [500.0] + [1.0] * 9, 2.0))


def test_what_counts_is_the_average() -> None:
    """Beside another program threads are fast now and slow then."""
    ways = run(Pace(), 2000, [0.8, 0.8, 9.0], 1.2)
    assert ways.count(True) < 0.2 * len(ways)
