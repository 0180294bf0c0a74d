"""Threads are used while they pay."""

from __future__ import annotations

from rop.pace import REMEMBERED, TRY_EVERY, Pace


def run(pace: Pace, calls: int, together: float, alone: float) -> list[bool]:
    """So many calls on a machine where they take so long."""
    ways = []
    for _ in range(calls):
        ways.append(pace.parallel())
        pace.measured(ways[-1], together if ways[-1] else alone)
    return ways


def test_the_faster_way_is_taken_and_the_other_one_tried_now_and_then() -> None:
    for together, alone in ((1.0, 2.0), (2.0, 1.0)):
        ways = run(Pace(), 4 + 10 * TRY_EVERY, together, alone)[4:]
        assert ways.count(together > alone) == 10


def test_a_slow_first_call_does_not_decide() -> None:
    pace = Pace()
    run(pace, 1, 100.0, 100.0)
    assert run(pace, 20, 1.0, 2.0)[REMEMBERED:] == [True] * (20 - REMEMBERED)


def test_it_follows_the_machine_there_and_back() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    busy = run(pace, 20, 30.0, 2.5)
    assert busy[: REMEMBERED + 1].count(False) <= 1 and not any(busy[REMEMBERED + 1 :])
    later = run(pace, 3 * TRY_EVERY, 1.0, 2.0)[2 * TRY_EVERY :]
    assert later.count(True) >= TRY_EVERY - 1
