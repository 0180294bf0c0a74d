"""Runs the benchmark: starts the workers, compares their answers, then times them in turns.

For each problem, batch size and precision every engine gets a new process with the same number of threads. Before
anything is timed, every answer is compared with a float64 reference; a row with a wrong answer is refused. Then the
engines take turns in short bursts, so that a disturbance of the machine hits all of them, and medians and minima over
all bursts are kept. First calls, where compilers run, are reported apart.
"""

from __future__ import annotations

import datetime
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import growth
from .comparison import LOOSER, TOLERANCE, Answer, Mismatch, compare, load
from .engines import EPOCHS, RETURNS, SAME, WORKS, missing
from .flops import ALGORITHM, flops
from .machine import cores, machine
from .problems import Problem
from .processes import Client, WorkerError, close
from .settings import Settings
from .timing import time_in_turns
from .worker import CHECKED_STEPS

SCHEMA = 2
REFERENCES = ("torch", "jax", "torch.func", "rop")  # the first one that is there computes the reference

Say = Callable[[str], None]
RowDone = Callable[[dict[str, Any]], None]


class Run:
    """One benchmark run; `result()` is what report.py shows and saves."""

    def __init__(self, settings: Settings, say: Say = lambda text: None, row_done: RowDone = lambda row: None):
        self.settings = settings.resolved()
        self.say, self.row_done = say, row_done
        self.place = ""  # how far the run is
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.growth_rows: list[dict[str, Any]] = []
        self.processes: list[dict[str, Any]] = []
        self.rates: dict[str, float] = {}
        self.versions: dict[str, str] = {"python": platform.python_version()}
        self.engines = []
        for name in self.settings.engines:
            lacking = missing(name)
            if lacking:
                self.notes.append(f"{name} was left out: {lacking} is not installed (pip install 'rop[bench]')")
            else:
                self.engines.append(name)
        self.reference = next(name for name in REFERENCES if not missing(name))
        if "torch" in self.engines and "torch.func" not in self.settings.engines:
            self.notes.append("torch.func is not in this run; --engines names the engines")
        self.notes += left_out(self.engines, self.settings.problems)
        fixed = [problem.name for problem in self.settings.problems if problem.batch]
        if fixed and self.settings.batches != Settings.batches:
            self.notes.append(f"--batch is not that of {', '.join(fixed)}: these have a batch size of their own")
        if self.engines == [self.reference]:
            self.notes.append(f"{self.reference} is its own reference: there is no second engine to check it against")
        self.when = datetime.datetime.now(datetime.timezone.utc)
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if self.load is not None and self.load > 0.5 * cores():
            self.notes.append(f"the machine was busy at the start (load {self.load:.1f}): do not trust the times")

    def client(self, name: str, scratch: Path) -> Client:
        """A worker on the device that is measured."""
        return Client(name, self.settings.threads, scratch, self.settings.device)

    def run(self) -> dict[str, Any]:
        if not self.engines:
            return self.result()
        with tempfile.TemporaryDirectory(prefix="rop-bench-") as folder:
            scratch = Path(folder)
            self.gemm = self.client("gemm", scratch)
            try:
                self.problems(scratch)
                if self.settings.growth:
                    self.growth(scratch)
            finally:
                close([self.gemm])
        return self.result()

    def tell(self, text: str) -> None:
        self.say(self.place + text)

    def problems(self, scratch: Path) -> None:
        """Every problem at every batch size, in every precision."""
        plan = [(problem, batch) for problem in self.settings.problems for batch in self.settings.batches_of(problem)]
        for done, (problem, batch) in enumerate(plan, 1):
            self.place = f"[{done}/{len(plan)}] "
            works = {dtype: self.settings.works_at(problem, batch, dtype) for dtype in self.settings.dtypes}
            wanted = tuple(dict.fromkeys(work for some in works.values() for work in some))
            if wanted:
                label = f"{problem.name}, batch {batch}"
                references = self.references(label, problem, batch, wanted, scratch)
                for dtype, some in works.items():
                    if some:
                        self.group(f"{label}, {dtype}", problem, batch, dtype, some, references, scratch)

    def references(
        self, label: str, problem: Problem, batch: int, works: tuple[str, ...], scratch: Path
    ) -> dict[str, Answer]:
        """Every quantity of the works by the reference engine, in float64; one jet serves all that it contains.

        The reference has a process of its own, which ends before the engines start: for a large net it needs more
        memory than any of them, and it would count in the peak of the engine that computes it. For the same reason it
        runs one way of a work only, and keeps nothing from one work to the next.
        """
        self.tell(f"{label}: the float64 reference by {self.reference}")
        steps = self.settings.steps(problem, batch)
        referee = Client(self.reference, self.settings.threads, scratch)  # on the CPU, whatever is measured
        whole: dict[str, Answer] = {}
        result = {}
        try:
            referee.ask("prepare", problem=problem.name, batch=batch, dtype="float64", steps=steps)
            for work in works:
                source = "jet" if set(RETURNS[work]) <= set(RETURNS["jet"]) else SAME.get(work, work)
                if source not in whole:
                    file = scratch / "reference.npz"
                    referee.ask("forget")
                    referee.ask("answer", work=source, file=str(file), all_ways=False)
                    whole[source] = next(iter(load(file).values()))
                result[work] = {name: whole[source][name] for name in RETURNS[work]}
        finally:
            close([referee])
        return result

    def group(
        self,
        label: str,
        problem: Problem,
        batch: int,
        dtype: str,
        chosen: tuple[str, ...],
        references: dict[str, Answer],
        scratch: Path,
    ) -> None:
        """The chosen works of one problem, batch size and precision, in new processes."""
        able_engines = [name for name in self.engines if not problem.left_out(name)]
        self.tell(f"{label}: starting {', '.join(able_engines)}")
        clients = {name: self.client(name, scratch) for name in able_engines}
        steps = self.settings.steps(problem, batch)
        try:
            works: dict[str, list[str]] = {}
            for client in clients.values():
                client.send("hello")
            for name, client in clients.items():
                try:
                    hello = client.receive()
                    self.versions.update(hello["versions"])
                    baseline = client.ask("memory")["peak_bytes"]
                    prepared = client.ask("prepare", problem=problem.name, batch=batch, dtype=dtype, steps=steps)
                    works[name] = prepared["works"]
                    self.processes.append(
                        {
                            "problem": problem.name,
                            "batch": batch,
                            "dtype": dtype,
                            "engine": name,
                            "import_s": hello["import_s"],
                            "prepare_s": prepared["seconds"],
                            "import_bytes": baseline,
                        }
                    )
                except WorkerError as error:
                    self.failures.append(f"{label}: {error}")
            for work in chosen:
                able = {name: clients[name] for name in works if work in works[name]}
                if able:
                    row = self.row(problem, batch, dtype, work)
                    self.measure(label, row, able, references[work], scratch)
                    self.rows.append(row)
                    self.row_done(row)
        finally:
            close(clients.values())

    def row(self, problem: Problem, batch: int, dtype: str, work: str) -> dict[str, Any]:
        """A row of the result, with nothing measured yet."""
        steps = self.settings.steps(problem, batch, work) if work in EPOCHS else 1
        checked = min(steps, CHECKED_STEPS.get(work, 1))
        epoch = {"steps": steps, "all_steps": problem.rows // batch, "checked_steps": checked}
        return {
            "problem": problem.name,
            "batch": batch,
            "dtype": dtype,
            "work": work,
            "parameters": problem.size,
            "own_batch": bool(problem.batch),
            "training": problem.training,
            "looser": problem.looser * LOOSER.get(work, 1.0),
            **(epoch if work in EPOCHS else {}),
            "flops": flops(problem, batch, work, steps),
            "alone": problem.alone,
            "status": "ok",
            "engines": {},
        }

    def measure(
        self, label: str, row: dict[str, Any], able: dict[str, Client], reference: Answer, scratch: Path
    ) -> None:
        """Compare, then time; a row with a wrong answer is refused."""
        about = WORKS[row["work"]]
        try:
            self.tell(f"{label}: {about}, comparing answers")
            self.check(row, able, reference, scratch)
            self.tell(f"{label}: {about}, timing")
            time_in_turns(row, able, self.gemm, self.rates, self.settings)
        except (Mismatch, WorkerError) as error:
            row.update(status="refused", message=str(error), engines={})
            self.failures.append(f"{label}, {about}: {error}")

    def growth(self, scratch: Path) -> None:
        """Growth with width, depth and batch: all points of an engine in one process."""
        work, dtype = growth.WORK, growth.DTYPE
        clients = {name: self.client(name, scratch) for name in self.engines if name != "torch.func"}
        try:
            for client in clients.values():
                self.versions.update(client.ask("hello")["versions"])
            for axis in growth.AXES:
                for done, (value, _, _) in enumerate(axis.points, 1):
                    self.place = f"[{axis.name} {done}/{len(axis.points)}] "
                    problem, batch = axis.problem(value)
                    label = f"{problem.about}, batch {batch}"
                    references = self.references(label, problem, batch, (work,), scratch)
                    able = {name: c for name, c in clients.items() if name == "rop" or value in axis.rivals}
                    row = {"axis": axis.name, "value": value, **self.row(problem, batch, dtype, work)}
                    for client in able.values():
                        client.ask("prepare", problem=problem.name, batch=batch, dtype=dtype)
                    if able:
                        self.measure(label, row, able, references[work], scratch)
                        self.growth_rows.append(row)
                        self.row_done(row)
        except WorkerError as error:
            self.failures.append(f"growth: {error}")
        finally:
            close(clients.values())

    def check(self, row: dict[str, Any], able: dict[str, Client], reference: Answer, scratch: Path) -> None:
        """Compare every way of every engine with the reference, before anything is timed."""
        for name, client in able.items():
            file = scratch / "answer.npz"
            first = client.ask("answer", work=row["work"], file=str(file))["first_s"]
            errors = {}
            for way, answer in load(file).items():
                who = name if len(first) == 1 else f"{name} ({way})"
                errors[way] = compare(answer, reference, row["dtype"], who, row["looser"])
            row["engines"][name] = {"first_call_s": first, "error": errors}

    def result(self) -> dict[str, Any]:
        """Everything measured, with the limit beside every time."""
        for row in self.rows + self.growth_rows:
            if row["status"] == "ok":
                row["limit_s"] = row["flops"] / self.rates[row["dtype"]]
                for measured in row["engines"].values():
                    measured["of_limit"] = row["limit_s"] / measured["median_s"]
        settings = asdict(self.settings)
        settings["problems"] = [problem.name for problem in self.settings.problems]
        return {
            "schema": SCHEMA,
            "when": self.when.isoformat(timespec="seconds"),
            "environment": {
                **machine(self.settings.device),
                "threads": self.settings.threads,
                "load_at_start": self.load,
            },
            "versions": self.versions,
            "settings": settings,
            "reference": f"{self.reference}, float64",
            "tolerance": TOLERANCE,
            "gemm_flops_per_s": self.rates,
            "limit_counts": ALGORITHM,
            "rows": self.rows,
            "growth": self.growth_rows,
            "slopes": growth.slopes(self.growth_rows),
            "processes": self.processes,
            "notes": self.notes,
            "failures": self.failures,
        }


def left_out(engines: list[str], problems: tuple[Problem, ...]) -> list[str]:
    """A note for each engine and reason: which problems it does not run, and why."""
    notes: dict[tuple[str, str], list[str]] = {}
    for name in engines:
        for problem in problems:
            if reason := problem.left_out(name):
                notes.setdefault((name, reason), []).append(problem.name)
    return [f"{name} was left out of {', '.join(names)}: {reason}" for (name, reason), names in notes.items()]
