"""Threads are used while they pay."""

from __future__ import annotations

from itertools import cycle

from rop.pace import FIRST, TRY_EVERY, Pace


def run(pace: Pace, calls: int, together: float | list[float], alone: float) -> list[bool]:
    """So many calls on a machine where they take so long; returns which of them used threads."""
    ways, durations = [], cycle(together if isinstance(together, list) else [together])
    for _ in range(calls):
        ways.append(pace.parallel())
        pace.measured(ways[-1], next(durations) if ways[-1] else alone)
    return ways


def test_the_faster_way_is_taken_and_the_other_one_tried_now_and_then() -> None:
    for together, alone in ((1.0, 2.0), (2.0, 1.0)):
        ways = run(Pace(), 10 * TRY_EVERY, together, alone)[FIRST + 1 :]
        assert ways.count(together > alone) == 10


def test_a_slow_first_call_does_not_decide() -> None:
    pace = Pace()
    run(pace, 1, 100.0, 100.0)
    assert run(pace, 30, 1.0, 2.0)[FIRST:] == [True] * (30 - FIRST)


def test_it_follows_the_machine_there_and_back() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    busy = run(pace, 20, 30.0, 2.5)
    assert busy[0] and not any(busy[2:])
    assert run(pace, 3 * TRY_EVERY, 1.0, 2.0)[TRY_EVERY:].count(False) <= 2


def test_what_counts_is_the_average() -> None:
    """Beside another program threads are fast now and slow then."""
    ways = run(Pace(), 10 * TRY_EVERY, [0.8, 0.8, 9.0], 1.2)
    assert ways.count(True) < 0.2 * len(ways)
