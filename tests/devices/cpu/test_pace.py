"""Threads are used while they pay."""

from __future__ import annotations

from itertools import cycle

import pytest

from rop.devices.cpu import threads as module
from rop.devices.cpu.threads import (
    CALLS_BEFORE_FIRST_TRIAL,
    IDLE_SECONDS,
    PAUSES_IN_A_ROW,
    SPACING_WITHOUT_THREADS,
    TRIAL_CALLS,
    TRIAL_SECONDS,
    TRIAL_SPACING,
    Pace,
)


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def nothing_is_long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that calls of whole seconds are compared."""
    if "long" not in request.node.name:
        monkeypatch.setattr(module, "ALWAYS_PARALLEL_SECONDS", float("inf"))


@pytest.fixture(autouse=True)  # in all tests, because a busy machine makes pauses of its own
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
        pause = TRIAL_SPACING * TRIAL_CALLS * 2  # calls of a second for a trial of two seconds each
        pace = Pace()
        run(pace, 5 * pause, together, alone)
        ways = run(pace, 10 * (pause + TRIAL_CALLS), together, alone)
        assert abs(ways.count(together > alone) - 10 * TRIAL_CALLS) <= TRIAL_CALLS


def test_after_a_disturbance_threads_are_tried_again_soon() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    assert not run(pace, 12, 5.0, 2.0)[-1]
    assert all(run(pace, 50, 1.0, 2.0)[40:])


def test_a_few_slow_calls_do_not_decide_either() -> None:
    short = TRIAL_SECONDS / 100
    pace = Pace()
    run(pace, 500, short, 1.5 * short)
    assert all(run(pace, 100, 10 * [4 * short] + 90 * [short], 1.5 * short))


def test_a_slow_first_call_does_not_decide() -> None:
    pace = Pace()
    run(pace, 1, 100.0, 100.0)
    assert run(pace, 30, 1.0, 2.0).count(False) == TRIAL_CALLS


def test_a_call_after_a_pause_does_not_count(clock: Clock) -> None:
    """Nor does the first call of a trial, which wakes the threads."""
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    for _ in range(5):
        clock.now += 2 * IDLE_SECONDS
        run(pace, 1, 50.0, 50.0)
        assert all(run(pace, 5, 1.0, 2.0))
    pace = Pace()
    run(pace, CALLS_BEFORE_FIRST_TRIAL + TRIAL_CALLS, 3.0, 2.0)
    assert not any(run(pace, SPACING_WITHOUT_THREADS * TRIAL_CALLS, 3.0, 2.0))
    assert run(pace, TRIAL_CALLS, [50.0, 1.0, 1.0], 2.0) == TRIAL_CALLS * [True]
    assert all(run(pace, 30, 1.0, 2.0))


def test_short_runs_between_pauses_are_not_spent_on_trials(clock: Clock) -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    ways = []
    for _ in range(30):
        clock.now += 2 * IDLE_SECONDS
        ways += run(pace, 7, 1.0, 2.0)
    assert ways.count(False) <= 2 * TRIAL_CALLS


def test_after_a_pause_threads_get_another_chance(clock: Clock) -> None:
    pace = Pace()
    run(pace, 300, 30.0, 2.0)
    assert not any(run(pace, 10, 1.0, 2.0))
    clock.now += 2 * IDLE_SECONDS
    assert all(run(pace, TRIAL_CALLS + 20, 1.0, 2.0))


def test_pauses_that_are_losses_of_a_core_do_not_bring_threads_back_each_time(clock: Clock) -> None:
    """Beside several busy processes a thread that runs alone is interrupted every few milliseconds."""
    pace = Pace()
    run(pace, 300, 140.0, 1.0)
    ways = []
    for _ in range(200):
        clock.now += 4 * IDLE_SECONDS
        ways += run(pace, 5, 140.0, 1.0)
    assert ways.count(True) < 0.05 * len(ways)
    clock.now += 4 * IDLE_SECONDS
    assert run(pace, 20_000, 0.5, 1.0)[-1000:].count(True) > 800  # and they come back when they pay


def test_passes_that_take_turns_do_not_pause(clock: Clock) -> None:
    """Beside a busy process three slow passes take longer than the pause after which a call does not count."""
    paces, slow, alone = [Pace() for _ in range(3)], IDLE_SECONDS / 2, IDLE_SECONDS / 10
    for _ in range(300):
        for pace in paces:
            ways = [pace.parallel()]
            clock.now += slow if ways[0] else alone
            pace.measured(ways[0], slow if ways[0] else alone)
    for pace in paces:
        assert run(pace, 100, slow, alone).count(True) < 30


def test_calls_that_all_come_after_a_pause_are_compared(clock: Clock) -> None:
    """Beside a busy process threads are given up, and taken again when it has ended."""
    pace = Pace()

    def spaced(calls: int, together: float, alone: float) -> list[bool]:
        ways = []
        for _ in range(calls):
            clock.now += 2 * IDLE_SECONDS
            ways += run(pace, 1, together, alone)
        return ways

    assert all(spaced(PAUSES_IN_A_ROW, 3.0, 1.0))
    busy = spaced(200, 3.0, 1.0)
    assert busy.index(False) <= 2 * CALLS_BEFORE_FIRST_TRIAL and busy[20:].count(True) < 0.2 * len(busy)
    assert spaced(200, 0.7, 1.0)[100:].count(True) > 80


def test_it_follows_the_machine_there_and_back() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    busy = run(pace, 20, 30.0, 2.5)
    assert busy.index(False) <= 6 and busy[6:].count(True) <= 2 * TRIAL_CALLS
    assert run(pace, 600, 1.0, 2.0)[300:].count(False) <= 2 * TRIAL_CALLS + TRIAL_CALLS


def test_one_interruption_does_not_decide() -> None:
    pace = Pace()
    run(pace, 20, 1.0, 2.0)
    assert all(run(pace, 20, [1.0] * 10 + [500.0] + [1.0] * 9, 2.0))


def test_what_counts_is_the_average() -> None:
    """Beside another program threads are fast now and slow then."""
    ways = run(Pace(), 2000, [0.8, 0.8, 9.0], 0.9)
    assert ways.count(True) < 0.2 * len(ways)


def test_threads_are_not_left_for_a_small_gain() -> None:
    """Nor taken again for a loss."""
    assert run(Pace(), 100, 1.0, 0.9).count(False) <= 2 * TRIAL_CALLS
    pace = Pace()
    run(pace, 200, 3.0, 1.0)
    assert run(pace, 100, 1.05, 1.0).count(True) <= 2 * TRIAL_CALLS


def test_long_calls_always_use_threads() -> None:
    pace = Pace()
    assert all(run(pace, 100, 2 * module.ALWAYS_PARALLEL_SECONDS, module.ALWAYS_PARALLEL_SECONDS))
    pace = Pace()
    run(pace, 200, module.ALWAYS_PARALLEL_SECONDS / 2, module.ALWAYS_PARALLEL_SECONDS / 9)
    assert run(pace, 200, 3 * module.ALWAYS_PARALLEL_SECONDS, 4 * module.ALWAYS_PARALLEL_SECONDS)[
        -1
    ]  # a pass may become longer


def test_short_calls_that_have_become_long_beside_busy_processes_lose_their_threads() -> None:
    """Where every barrier waits for a core, a call of a tenth of a millisecond takes fourteen."""
    short = module.ALWAYS_PARALLEL_SECONDS / 50
    ways = run(Pace(work=module.LITTLE_WORK / 2), 2000, [140 * short, 200 * short, 160 * short], short)
    assert ways.count(True) < 0.1 * len(ways)
    assert all(run(Pace(work=module.LITTLE_WORK), 2000, 140 * short, short))


def test_calls_of_little_work_that_are_long_after_all_are_hardly_ever_tried_alone() -> None:
    long = 2 * module.ALWAYS_PARALLEL_SECONDS
    ways = run(Pace(work=module.LITTLE_WORK / 2), 5000, long, 2 * long)
    assert 0 < ways.count(False) < 0.02 * len(ways)


def test_trials_of_short_calls_last_as_long() -> None:
    """A thread that wakes has to find a core first, and its data have to come over."""
    short, calls = TRIAL_SECONDS / 100, 100
    slow_at_first = cycle(calls // 2 * [3 * short] + 10_000 * [short])
    pace = Pace()
    run(pace, CALLS_BEFORE_FIRST_TRIAL + calls, 3 * short, 1.5 * short)
    ways = run(pace, 1000, [next(slow_at_first) for _ in range(5000)], 1.5 * short)
    assert not ways[0] and all(ways[-500:])


def test_short_calls_are_measured_now_and_then() -> None:
    """A call that is not measured goes the usual way, and counts as one that was."""
    short, measured, ways = module.RESTING_SECONDS / 2, 0, []
    pace = Pace()
    for i in range(2000):
        if pace.rests:
            ways.append(pace.threaded)
            pace.rested()
            continue
        measured += 1
        ways += run(pace, 1, 5 * short if i > 1000 else short, 1.5 * short)
    assert 2000 / (1 + module.RESTS) <= measured < 0.5 * 2000
    assert ways[:1000].count(True) > 800 and ways[1200:].count(False) > 600
    run(pace, 500, 100 * short, 100 * short)
    assert pace.rests == 0


def test_a_long_call_that_is_not_measured_is_no_pause(clock: Clock) -> None:
    """Otherwise each interruption by another process would make threads be tried again."""
    short, pace = module.RESTING_SECONDS / 2, Pace()
    for _ in range(1000):
        clock.now += 5 * short if pace.rests else 0.0
        pace.rested() if pace.rests else run(pace, 1, 5 * short, short)
    assert not pace.threaded
    pauses = 0
    for _ in range(300):
        if pace.rests:
            clock.now += 2 * IDLE_SECONDS
            pace.rested()
        else:
            run(pace, 1, 5 * short, short)
            pauses += pace._pauses > 0
    assert pauses == 0
