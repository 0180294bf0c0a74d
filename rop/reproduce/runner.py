"""Runs tasks in several processes.

One function is public: ``run(tasks, function, jobs)`` yields an ``Outcome`` for each task as it ends. What a task is,
and where its results go, is none of its business; nothing else in the package starts processes for tasks.

Processes are spawned, since a forked one dies at its first OpenMP kernel, and each has one thread, since tasks share
the cores. Ctrl-C reaches the parent alone, which passes it on once, so that a training run saves its checkpoint; if the
parent dies, its children end, too.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, Generic, TypeVar

from rop.errors import RopError

__all__ = ["Outcome", "run"]

Item = TypeVar("Item")
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PATIENCE = 60.0  # seconds that children are given to stop after Ctrl-C


@dataclass(frozen=True)
class Outcome(Generic[Item]):
    """What became of a task: the function's value, or the error that ended it, as text."""

    task: Item
    value: Any = None
    error: str | None = None


def run(tasks: Sequence[Item], function: Callable[[Item], Any], jobs: int = 1) -> Iterator[Outcome[Item]]:
    """Calls ``function`` on each task, in ``jobs`` processes, and yields outcomes in the order in which they come.

    With one job, everything runs in this process, with all its threads. Tasks and function are sent to the other
    processes, so they must be picklable. An error ends its own task only. Ctrl-C raises KeyboardInterrupt once all
    processes have stopped.

    >>> [outcome.value for outcome in run([1, -4], abs)]
    [1, 4]
    """
    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield _attempt(function, task)
    else:
        yield from _run_processes(tasks, function, min(jobs, len(tasks)))


def _attempt(function: Callable[[Item], Any], task: Item) -> Outcome[Item]:
    try:
        return Outcome(task, function(task))
    except Exception as error:
        text = str(error) if isinstance(error, RopError) else traceback.format_exc().strip()
        return Outcome(task, error=text or repr(error))


def _run_processes(tasks: Sequence[Item], function: Callable[[Item], Any], jobs: int) -> Iterator[Outcome[Item]]:
    waiting = list(tasks)[::-1]
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin)
    running: dict[Future[Outcome[Item] | None], Item] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:  # no more than can run: after Ctrl-C none is left in a queue
                task = waiting.pop()
                running[pool.submit(_attempt_in_child, function, task)] = task
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                yield _outcome(future, task)
    except BaseException:  # Ctrl-C, or the caller does not want any more
        _stop(pool, running)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(future: Future[Outcome[Item] | None], task: Item) -> Outcome[Item]:
    try:
        outcome = future.result()
    except BrokenProcessPool as error:
        raise RopError(
            "a process that ran a task has died, perhaps for lack of memory; finished tasks are kept, and the same "
            "command goes on; --jobs 1 needs the least memory"
        ) from error
    except Exception as error:  # it could not be sent to the process, or back
        return Outcome(task, error=f"{type(error).__name__}: {error}")
    if outcome is None:
        raise KeyboardInterrupt  # of the child alone
    return outcome


def _stop(pool: ProcessPoolExecutor, running: dict[Future[Outcome[Item] | None], Item]) -> None:
    """Interrupts the children, which save what they have, and ends those that do not stop."""
    processes = list((pool._processes or {}).values())
    for process in processes:
        _signal(process.pid, signal.SIGINT)
    wait(running, timeout=PATIENCE)
    if any(not future.done() for future in running):
        for process in processes:
            process.kill()


def _signal(pid: int | None, number: int) -> None:
    try:
        if pid is not None:
            os.kill(pid, number)
    except OSError:
        pass  # it has ended


# ---------------------------------------------------------------------------------------------------------- in a child
def _begin() -> None:
    """One thread, no Ctrl-C from the terminal, and an end with the parent's."""
    for name in THREADS:
        os.environ[name] = "1"  # read by the libraries when they are imported, which is later
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # the terminal sends Ctrl-C to the parent's group
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _attempt_in_child(function: Callable[[Item], Any], task: Item) -> Outcome[Item] | None:
    """The outcome, or None if the task was interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _attempt(function, task)
    except KeyboardInterrupt:
        return None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
