"""Runs the benchmark: starts the workers, compares their answers, then times them in turns.

For each problem, batch size and precision every engine gets a new process with the same number of threads. Before
anything is timed, every answer is compared with a float64 reference; a row with a wrong answer is refused. Then the
engines take turns in short bursts, so that a disturbance of the machine hits all of them, and medians and minima over
all bursts are kept. First calls, where compilers run, are reported apart.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .engines import ENGINES, RETURNS, WORKS, missing
from .flops import flops
from .problems import MAIN, Problem
from .worker import fitting

SCHEMA = 1
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}  # ‖a − b‖ / ‖b‖ against the float64 reference
REFERENCES = ("torch", "jax", "torch.func", "rop")  # the first one that is there computes the reference
PAUSE = 0.02  # seconds between bursts: by then the threads of the engine before have stopped spinning

Answer = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    problems: tuple[Problem, ...] = MAIN
    batches: tuple[int, ...] = (32, 128, 512)
    dtypes: tuple[str, ...] = ("float32", "float64")
    engines: tuple[str, ...] = tuple(ENGINES)
    works: tuple[str, ...] = tuple(WORKS)
    threads: int = 0  # 0: as many as there are cores
    rounds: int = 15
    burst: float = 0.05  # seconds of one turn
    patience: float = 30.0  # seconds for the timing of a row: on a slow machine there are fewer turns, at least 3

    def resolved(self) -> Settings:
        return replace(self, threads=self.threads or cores())


def quick(settings: Settings) -> Settings:
    """A run that ends within two minutes: two problems, one batch size, one precision, fewer rounds."""
    names = ("forest", "usps")
    return replace(
        settings,
        problems=tuple(p for p in MAIN if p.name in names) if settings.problems == MAIN else settings.problems,
        batches=(128,) if settings.batches == Settings.batches else settings.batches,
        dtypes=("float32",) if settings.dtypes == Settings.dtypes else settings.dtypes,
        rounds=8,
        patience=5.0,
    )


class WorkerError(RuntimeError):
    """A worker reported an error or died."""


class Mismatch(ValueError):
    """An engine gave another answer than the reference."""


# -------------------------------------------------------------------------------------------------------- the workers
class Client:
    """The runner's end of a worker."""

    def __init__(self, engine: str, threads: int, scratch: Path):
        self.engine = engine
        self.log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", engine, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment_for(threads),
            text=True,
            encoding="utf-8",
        )

    def send(self, do: str, **command: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() says why
            self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"{self.engine}: its process ended ({self.process.wait()}) {' '.join(last)}".rstrip())
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.engine}: {reply['error']}")
        return reply

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        self.send(do, **command)
        return self.receive()

    def hang_up(self) -> None:
        """A worker that is idle ends by this."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self, patience: float = 2.0) -> None:
        assert self.process.stdout is not None
        self.hang_up()
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


def environment_for(threads: int) -> dict[str, str]:
    """The same number of threads by every name it has; cores are limited by worker.py as well."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "XLA_FLAGS": flags.strip(),
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_THREAD_TIMEOUT": "20",  # 2^20 cycles: idle BLAS threads give the core back within a millisecond
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------------- the comparison
def compare(answer: Answer, reference: Answer, dtype: str, who: str) -> dict[str, float]:
    """Relative errors of all quantities of an answer; a Mismatch if one of them is too large."""
    errors = {}
    for name, expected in reference.items():
        got = answer.get(name)
        if got is None:
            raise Mismatch(f"{who} gave no {name}")
        if got.shape != expected.shape:
            raise Mismatch(f"{who}: {name} has {got.size} entries where the reference has {expected.size}")
        scale = float(np.linalg.norm(expected)) or 1.0
        errors[name] = float(np.linalg.norm(got - expected)) / scale
        if not errors[name] <= TOLERANCE[dtype]:  # NaN is refused too
            raise Mismatch(
                f"{who}: {name} is off by {errors[name]:.1e} from the float64 reference, "
                f"{TOLERANCE[dtype]:.0e} is allowed in {dtype}"
            )
    return errors


def load(file: Path) -> dict[str, Answer]:
    """What a worker saved: way → quantity → array."""
    ways: dict[str, Answer] = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            way, name = key.split("/")
            ways.setdefault(way, {})[name] = arrays[key]
    return ways


# ------------------------------------------------------------------------------------------------------------- the run
Say = Callable[[str], None]
RowDone = Callable[[dict[str, Any]], None]


class Run:
    """One benchmark run; `result()` is what report.py shows and saves."""

    def __init__(self, settings: Settings, say: Say = lambda text: None, row_done: RowDone = lambda row: None):
        self.settings = settings.resolved()
        self.say, self.row_done = say, row_done
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.rows: list[dict[str, Any]] = []
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
        if self.engines == [self.reference]:
            self.notes.append(f"{self.reference} is its own reference: there is no second engine to check it against")
        self.when = datetime.datetime.now(datetime.timezone.utc)
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if self.load is not None and self.load > 0.5 * cores():
            self.notes.append(f"the machine was busy at the start (load {self.load:.1f}): do not trust the times")

    def run(self) -> dict[str, Any]:
        if not self.engines:
            return self.result()
        with tempfile.TemporaryDirectory(prefix="rop-bench-") as folder:
            scratch = Path(folder)
            gemm = Client("gemm", self.settings.threads, scratch)
            referee = Client(self.reference, self.settings.threads, scratch)
            try:
                for problem in self.settings.problems:
                    for batch in self.settings.batches:
                        references = self.references(problem, batch, referee, scratch)
                        for dtype in self.settings.dtypes:
                            self.group(problem, batch, dtype, references, gemm, scratch)
            finally:
                close([gemm, referee])
        return self.result()

    def references(self, problem: Problem, batch: int, referee: Client, scratch: Path) -> dict[str, Answer]:
        """Every quantity by the reference engine, in float64."""
        self.say(f"{problem.name}, batch {batch}: the float64 reference by {self.reference}")
        referee.ask("prepare", problem=problem.name, batch=batch, dtype="float64")
        file = scratch / "reference.npz"
        referee.ask("answer", work="jet", file=str(file))
        whole = next(iter(load(file).values()))
        referee.ask("forget")
        return {work: {name: whole[name] for name in names} for work, names in RETURNS.items()}

    def group(
        self, problem: Problem, batch: int, dtype: str, references: dict[str, Answer], gemm: Client, scratch: Path
    ) -> None:
        """All works of one problem, batch size and precision, in new processes."""
        label = f"{problem.name}, batch {batch}, {dtype}"
        self.say(f"{label}: starting {', '.join(self.engines)}")
        clients = {name: Client(name, self.settings.threads, scratch) for name in self.engines}
        try:
            works: dict[str, list[str]] = {}
            for client in clients.values():
                client.send("hello")
            for name, client in clients.items():
                try:
                    hello = client.receive()
                    self.versions.update(hello["versions"])
                    baseline = client.ask("memory")["peak_bytes"]
                    prepared = client.ask("prepare", problem=problem.name, batch=batch, dtype=dtype)
                    works[name] = prepared["works"]
                    self.processes.append({
                        "problem": problem.name, "batch": batch, "dtype": dtype, "engine": name,
                        "import_s": hello["import_s"], "prepare_s": prepared["seconds"], "import_bytes": baseline,
                    })  # fmt: skip
                except WorkerError as error:
                    self.failures.append(f"{label}: {error}")
            for work in self.settings.works:
                able = {name: clients[name] for name in works if work in works[name]}
                if able:
                    row: dict[str, Any] = {
                        "problem": problem.name, "batch": batch, "dtype": dtype, "work": work,
                        "parameters": problem.size, "flops": flops(problem, batch, work),
                        "status": "ok", "engines": {},
                    }  # fmt: skip
                    try:
                        self.say(f"{label}: {WORKS[work]}, comparing answers")
                        self.check(row, able, references[work], scratch)
                        self.say(f"{label}: {WORKS[work]}, timing")
                        self.time(row, able, gemm)
                    except (Mismatch, WorkerError) as error:
                        row.update(status="refused", message=str(error), engines={})
                        self.failures.append(f"{label}, {WORKS[work]}: {error}")
                    self.rows.append(row)
                    self.row_done(row)
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
                errors[way] = compare(answer, reference, row["dtype"], who)
            row["engines"][name] = {"first_call_s": first, "error": errors}

    def time(self, row: dict[str, Any], able: dict[str, Client], gemm: Client) -> None:
        """Bursts in turns; the matrix product whose rate is the limit takes its turn too."""
        calls, seconds = {}, {}
        for name, client in able.items():
            client.ask("forget")
            chosen = client.ask("choose", work=row["work"])
            measured = row["engines"][name]
            measured["way"], measured["tried_s"] = chosen["way"], chosen["tried"]
            measured["error"] = measured["error"][chosen["way"]]
            calls[name], seconds[name] = fitting(chosen["seconds"], self.settings.burst), list[float]()
        dtype = row["dtype"]
        start = time.perf_counter()
        for turn in range(self.settings.rounds):
            if turn >= 3 and time.perf_counter() - start > self.settings.patience:
                break
            for name, client in able.items():
                time.sleep(PAUSE)
                way = row["engines"][name]["way"]
                seconds[name] += client.ask("time", work=row["work"], way=way, calls=calls[name])["seconds"]
            time.sleep(PAUSE)
            self.rates[dtype] = max(self.rates.get(dtype, 0.0), gemm.ask("gemm", dtype=dtype)["rate"])
        for name, client in able.items():
            row["engines"][name].update(
                median_s=statistics.median(seconds[name]),
                min_s=min(seconds[name]),
                calls=len(seconds[name]),
                peak_bytes=client.ask("memory")["peak_bytes"],
            )

    def result(self) -> dict[str, Any]:
        """Everything measured, with the limit beside every time."""
        for row in self.rows:
            if row["status"] == "ok":
                row["limit_s"] = row["flops"] / self.rates[row["dtype"]]
                for measured in row["engines"].values():
                    measured["of_limit"] = row["limit_s"] / measured["median_s"]
        settings = asdict(self.settings)
        settings["problems"] = [problem.name for problem in self.settings.problems]
        return {
            "schema": SCHEMA,
            "when": self.when.isoformat(timespec="seconds"),
            "environment": {**machine(), "threads": self.settings.threads, "load_at_start": self.load},
            "versions": self.versions,
            "settings": settings,
            "reference": f"{self.reference}, float64",
            "tolerance": TOLERANCE,
            "gemm_flops_per_s": self.rates,
            "rows": self.rows,
            "processes": self.processes,
            "notes": self.notes,
            "failures": self.failures,
        }


def close(clients: Iterable[Client]) -> None:
    """End all of them at once: those still at work after two seconds are stopped."""
    clients, until = list(clients), time.monotonic() + 2
    for client in clients:
        client.hang_up()
    for client in clients:
        client.close(max(0.05, until - time.monotonic()))


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu, memory = platform.processor(), None
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        pass
    return {
        "cpu": cpu, "architecture": platform.machine(), "cores": cores(), "memory_bytes": memory,
        "system": platform.system(),
    }  # fmt: skip
