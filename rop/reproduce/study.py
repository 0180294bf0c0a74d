"""An experiment on its way: which tasks are left, running them, and what stands in the folder of results.

DIR/NAME/records/KEY.json    the record of a finished task
DIR/NAME/work/KEY/           the checkpoint of one that is not finished; removed with the record
DIR/models/                  trained nets that experiments share
DIR/NAME.md, .tex, -*.png    what is rendered from the records
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rop import datasets
from rop.reproduce.experiments import experiment as experiment_named
from rop.reproduce.records import Record, Records, read_records, unfinished, write_record
from rop.reproduce.runner import Outcome, run
from rop.reproduce.spec import Context, Experiment, Task

__all__ = ["Study", "perform"]


@dataclass(frozen=True)
class Study:
    """An experiment with the options of a run; ``load`` is that of ``Context``."""

    experiment: Experiment
    out: Path
    seeds: int | None = None
    quick: bool = False
    epochs: int | None = None
    data: str | None = None
    load: Callable[..., Any] = datasets.load

    @property
    def folder(self) -> Path:
        return self.out / self.experiment.name

    @property
    def tasks(self) -> list[Task]:
        return self.experiment.checked_tasks(self.seeds, self.quick, self.epochs)

    def left(self, tasks: Sequence[Task] | None = None) -> list[Task]:
        """The tasks without a record."""
        return unfinished(self.folder, self.tasks if tasks is None else tasks)

    def run(self, tasks: Sequence[Task], jobs: int) -> Iterator[Outcome[Task]]:
        """Runs tasks; each writes its record when it is done."""
        function = partial(perform, name=self.experiment.name, out=self.out, data=self.data, load=self.load)
        return run(tasks, function, jobs)

    def records(self) -> tuple[Records, int]:
        """The records of these settings, with any seed, and the number of records of other settings."""
        return read_records(self.folder, self.tasks)


def perform(task: Task, *, name: str, out: Path, data: str | None, load: Callable[..., Any]) -> Record:
    """Runs one task and writes its record: what happens in a process of the runner."""
    folder = out / name
    work = folder / "work" / task.key
    start = time.perf_counter()
    figures = experiment_named(name).run(task, Context(out, work, data, load))
    record = write_record(folder, task, figures, time.perf_counter() - start)
    shutil.rmtree(work, ignore_errors=True)
    return record
