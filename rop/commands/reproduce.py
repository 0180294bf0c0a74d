"""`rop reproduce`: the paper's experiments, run, resumed and rendered."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rop.arguments import check_path
from rop.commands.common import FAILED, INTERRUPTED, OK, Commands, add_command, note_missing, positive
from rop.errors import ArgumentError, FileError, missing_package
from rop.reproduce.experiments import NAMES, experiment

if TYPE_CHECKING:
    from rop.reproduce.runner import Outcome
    from rop.reproduce.spec import Experiment, Task
    from rop.reproduce.study import Study

OUT = "runs/reproduce"
EXAMPLES = """examples:
  rop reproduce                                   the experiments, what each runs and costs
  rop reproduce forest --quick --data DIR         one seed of everything, small, in two minutes
  rop reproduce forest --seeds 5 --data DIR       the table; Ctrl-C at any moment, and the same command goes on
  rop reproduce forest --only '*unregularised*'   some of its tasks
  rop reproduce forest --render-only              the tables of what is finished so far
"""


def add(commands: Commands) -> None:
    """The parser of `rop reproduce`."""
    parser = add_command(commands, "reproduce", run, "run the paper's experiments and show tables and claims", EXAMPLES)
    parser.add_argument("experiment", nargs="?", choices=NAMES, help="which one; without it all are listed")
    parser.add_argument("--seeds", type=positive, metavar="N", help="seeds 0 to N − 1 (default that of the experiment)")
    parser.add_argument("--quick", action="store_true", help="small, one seed, within two minutes; not a reproduction")
    parser.add_argument("--epochs", type=positive, metavar="E", help="instead of the paper's; recorded apart")
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"folder of records and results (default {OUT})")
    parser.add_argument("--jobs", type=positive, metavar="J", help="processes (default one for each core)")
    parser.add_argument("--data", metavar="DIR", help="folder with the data sets' files (default $ROP_DATA)")
    parser.add_argument("--only", metavar="PATTERN", help="run tasks whose key matches, such as '*corrected*seed0'")
    parser.add_argument("--render-only", action="store_true", help="run nothing, show what is recorded")


def run(options: argparse.Namespace) -> int:
    """List the experiments, or run what is left of one and render all its records."""
    if options.experiment is None:
        return _list()
    from rop.reproduce.study import Study

    chosen = experiment(options.experiment)
    out = check_path("reproduce", "out", options.out, folder=True)
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"reproduce: --out must name a folder, got {str(out)!r}, a file")
    study = Study(chosen, out, options.seeds, options.quick, options.epochs, options.data)
    failed: list[Outcome[Task]] = []
    if not options.render_only:
        _check_packages(chosen)
        try:
            failed = _run(study, options)
        except KeyboardInterrupt:
            tasks = _chosen(study, options)
            done = len(tasks) - len(study.left(tasks))
            print(
                f"rop reproduce: interrupted; {done} of {len(tasks)} tasks are finished, the others go on where they "
                f"stopped: {_command(options, all_options=True)}",
                file=sys.stderr,
            )
            return INTERRUPTED
    _render(study, options)
    return _report_failures(failed, options)


def _list() -> int:
    for name in NAMES:
        found = experiment(name)
        print(f"{name:16}{found.about}\n{'':16}cost: {found.cost}; {found.seeds} seeds by default")
        print(f"{'':16}--quick: {found.quick}")
    return OK


def _check_packages(chosen: Experiment) -> None:
    for module, package in chosen.packages.items():
        if find_spec(module) is None:
            raise missing_package(
                f"reproduce {chosen.name}", package, "reproduce", ImportError(f"No module named {module!r}")
            )


def _command(options: argparse.Namespace, all_options: bool = False) -> str:
    """The command that makes the same results; with all options also where they are and which part."""
    words = ["rop", "reproduce", options.experiment]
    words += ["--quick"] * options.quick
    given: dict[str, Any] = {"--seeds": options.seeds, "--epochs": options.epochs}
    if all_options:
        given |= {"--data": options.data, "--jobs": options.jobs, "--only": options.only}
        given["--out"] = options.out if options.out != OUT else None
    words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return shlex.join(words)


# ------------------------------------------------------------------------------------------------------------- running
def _run(study: Study, options: argparse.Namespace) -> list[Outcome[Task]]:
    """Runs the tasks that are left, and returns those that failed."""
    tasks = _chosen(study, options)
    left = study.left(tasks)
    jobs = min(options.jobs or study.experiment.jobs or _cores(), max(1, len(left)))
    print(
        f"{study.experiment.title}: {len(tasks)} tasks, {len(tasks) - len(left)} finished, {len(left)} to run in "
        f"{jobs} process{'es' * (jobs > 1)}; records in {study.folder / 'records'}"
        + (f"\n--quick: {study.experiment.quick}" if study.quick else ""),
        file=sys.stderr,
    )
    failed = []
    with _shown(left, jobs) as show:
        for outcome in study.run(left, jobs):
            if outcome.error is not None:
                failed.append(outcome)
            show(outcome)
    return failed


def _chosen(study: Study, options: argparse.Namespace) -> list[Task]:
    """The tasks that --only lets through."""
    tasks = [task for task in study.tasks if fnmatch(task.key, options.only or "*")]
    if not tasks:
        keys = ", ".join(task.key for task in study.tasks[:3])
        raise ArgumentError(f"reproduce: no task matches --only {options.only!r}; keys are such as {keys}")
    return tasks


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Lines:
    """Progress as a line for each task, with the time left at the rate so far."""

    def __init__(self, tasks: Sequence[Task]):
        self.count, self.total = len(tasks), sum(task.weight for task in tasks)
        self.start, self.ended, self.done = time.monotonic(), 0, 0.0

    def __call__(self, outcome: Outcome[Task]) -> None:
        self.ended, self.done = self.ended + 1, self.done + outcome.task.weight
        self.show(outcome, f"[{self.ended}/{self.count}] {outcome.task.label}: {self._what(outcome)}{self._left()}")

    def show(self, outcome: Outcome[Task], text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    @staticmethod
    def _what(outcome: Outcome[Task]) -> str:
        return "failed" if outcome.error is not None else f"{duration(outcome.value.seconds)}"

    def _left(self) -> str:
        if self.ended == self.count:
            return ""
        seconds = (time.monotonic() - self.start) * (self.total - self.done) / self.done
        return f"; about {duration(seconds)} left"


class _Bar(_Lines):
    """The same lines above a bar."""

    def __init__(self, tasks: Sequence[Task], bar: Any):
        super().__init__(tasks)
        self.bar, self.row = bar, bar.add_task("", total=self.total)

    def show(self, outcome: Outcome[Task], text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)
        self.bar.update(self.row, completed=self.done, description=f"{self.ended}/{self.count} tasks")


@contextmanager
def _shown(tasks: Sequence[Task], jobs: int) -> Iterator[_Lines]:
    if not tasks or not sys.stderr.isatty() or not find_spec("rich"):
        yield _Lines(tasks)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(tasks, bar)


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(3.21), duration(240), duration(9000)
    ('3.2 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# ----------------------------------------------------------------------------------------------------------- rendering
def _render(study: Study, options: argparse.Namespace) -> None:
    """Shows the report, and writes it as Markdown, LaTeX and PNG."""
    from rop.reproduce import render
    from rop.training.checkpoint import write_text

    records, others = study.records()
    report = render.report_of(study.experiment, records, _command(options), quick=study.quick, others=others)
    render.show(report)
    try:
        write_text(study.out / f"{report.name}.md", render.markdown(report))
        write_text(study.out / f"{report.name}.tex", render.latex(report))
        drawn = render.draw(report, study.out)
    except FileError as error:
        raise FileError(f"{error}; --out names another folder") from error
    if drawn is None and report.plots:
        note_missing("plots", "matplotlib", "reproduce")
    print(f"written to {study.out / report.name}.md, .tex" + f" and {len(drawn or [])} plots" * bool(drawn))


def _report_failures(failed: Sequence[Outcome[Task]], options: argparse.Namespace) -> int:
    """Names what failed, tasks with the same error together."""
    by_error: dict[str, list[str]] = {}
    for outcome in failed:
        by_error.setdefault(str(outcome.error), []).append(outcome.task.label)
    for error, labels in by_error.items():
        print(f"rop reproduce: failed: {'; '.join(labels)}\n{error}", file=sys.stderr)
    if failed:
        again = _command(options, all_options=True)
        print(f"rop reproduce: {len(failed)} tasks failed; {again} tries them again", file=sys.stderr)
    return FAILED if failed else OK
