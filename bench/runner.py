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

from . import growth
from .engines import ENGINES, EPOCHS, ON_CUDA, RETURNS, SAME, UNITS, WORKS, missing
from .flops import flops
from .problems import MAIN, Problem
from .worker import CHECKED_STEPS, fitting

SCHEMA = 2
TOLERANCE = {"float64": 1e-8, "float32": 1e-3}  # ‖a − b‖ / ‖b‖ against the float64 reference
LOOSER = {"epoch": 10.0, "penalised": 100.0}  # the tolerance of a work, in tolerances: rounding adds up over the steps
EVERYWHERE = ("grad", "hvp", "jet")  # in a thin run the other works are measured at batch 128 in float32 only
REFERENCES = ("torch", "jax", "torch.func", "rop")  # the first one that is there computes the reference
HOPELESS = 1.5  # a way that is slower than the engine's best one by so much when it is tried out is not timed
PAUSE = 0.02  # seconds between bursts: by then the threads of the engine before have stopped spinning

Answer = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What is measured: all combinations; or a `thin` selection of them, float64 and the longer works at one batch."""

    problems: tuple[Problem, ...] = MAIN
    batches: tuple[int, ...] = (32, 128, 512)
    dtypes: tuple[str, ...] = ("float32", "float64")
    engines: tuple[str, ...] = tuple(ENGINES)
    works: tuple[str, ...] = tuple(WORKS)
    threads: int = 0  # 0: as many as there are cores
    device: str = "cpu"  # or "cuda": rop and torch on a GPU
    rounds: int = 9
    burst: float = 0.03  # seconds of one turn
    patience: float = 6.0  # seconds for the timing of a row: of long calls there are fewer turns, at least 3
    epoch_steps: int = 0  # at most so many steps of an epoch; 0: all of them
    thin: bool = False
    growth: bool = False  # also growth with width, depth and batch

    def resolved(self) -> Settings:
        return replace(self, threads=self.threads or cores())

    def steps(self, problem: Problem, batch: int, work: str = "epoch") -> int:
        """Of an epoch; the last partial batch is left out."""
        return min(problem.rows // batch, self.epoch_steps or problem.rows, EPOCHS[work] or problem.rows)

    def works_at(self, problem: Problem, batch: int, dtype: str) -> tuple[str, ...]:
        works = [work for work in self.works if work not in EPOCHS or self.steps(problem, batch)]
        if self.thin:
            main_batch, main_dtype = batch == middle(self.batches), dtype == self.dtypes[0]
            if not main_batch and not main_dtype:
                return ()
            if not main_batch or not main_dtype:
                works = [work for work in works if work in EVERYWHERE]
        return tuple(works)


def middle(batches: Iterable[int]) -> int:
    """The batch size that stands for all of them."""
    known = sorted(set(batches))
    return 128 if 128 in known else known[len(known) // 2]


QUICK_WORKS = ("grad", "hvp", "jet", "step", "epoch", "penalised")


def quick(settings: Settings) -> Settings:
    """A run that ends within two minutes: three problems, one batch size, one precision, fewer works and rounds.

    torch.func is left out: it is nearly always slower than torch, and so the slowest to measure.
    """
    names = ("forest", "usps", "wide")
    engines = tuple(name for name in ENGINES if name != "torch.func")
    return replace(
        settings,
        engines=engines if settings.engines == Settings.engines else settings.engines,
        problems=tuple(p for p in MAIN if p.name in names) if settings.problems == MAIN else settings.problems,
        batches=(128,) if settings.batches == Settings.batches else settings.batches,
        dtypes=("float32",) if settings.dtypes == Settings.dtypes else settings.dtypes,
        works=QUICK_WORKS if settings.works == Settings.works else settings.works,
        rounds=5,
        patience=1.5,
        epoch_steps=100,
    )


def on_cuda(settings: Settings) -> Settings:
    """The same on a GPU, as far as engines and works can use one."""
    from .engines.cuda_engines import WORKS as ABLE

    return replace(
        settings,
        device="cuda",
        engines=tuple(name for name in settings.engines if name in ON_CUDA),
        works=tuple(work for work in settings.works if work in ABLE),
    )


class WorkerError(RuntimeError):
    """A worker reported an error or died."""


class Mismatch(ValueError):
    """An engine gave another answer than the reference."""


# -------------------------------------------------------------------------------------------------------- the workers
class Client:
    """The runner's end of a worker."""

    def __init__(self, engine: str, threads: int, scratch: Path, device: str = "cpu"):
        self.engine = engine
        self.log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", engine, "--threads", str(threads), "--device", device],
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


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_PROC_BIND", "OMP_DYNAMIC")


def environment_for(threads: int) -> dict[str, str]:
    """The same number of threads by every name it has; cores are limited by worker.py as well.

    How threads wait is left to each engine: OMP_WAIT_POLICY=passive makes torch several times slower on small nets.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {
        **{name: value for name, value in os.environ.items() if name not in WAITING},
        **dict.fromkeys(names, str(threads)),
        "XLA_FLAGS": flags.strip(),
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_THREAD_TIMEOUT": "20",  # 2^20 cycles: idle BLAS threads give the core back within a millisecond
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------------- the comparison
def compare(answer: Answer, reference: Answer, dtype: str, who: str, looser: float = 1.0) -> dict[str, float]:
    """Relative errors of all quantities of an answer; a Mismatch if one of them is too large."""
    errors, tolerance = {}, TOLERANCE[dtype] * looser
    for name, expected in reference.items():
        got = answer.get(name)
        if got is None:
            raise Mismatch(f"{who} gave no {name}")
        if got.shape != expected.shape:
            raise Mismatch(f"{who}: {name} has {got.size} entries where the reference has {expected.size}")
        scale = float(np.linalg.norm(expected)) or 1.0
        errors[name] = float(np.linalg.norm(got - expected)) / scale
        if not errors[name] <= tolerance:  # NaN is refused too
            raise Mismatch(
                f"{who}: {name} is off by {errors[name]:.1e} from the float64 reference, "
                f"{tolerance:.0e} is allowed in {dtype}"
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
        for name in self.engines:
            if not all(problem.runs_on(name) for problem in self.settings.problems):
                self.notes.append(f"{name} was left out where a problem is a torch module")
        if self.engines == [self.reference]:
            self.notes.append(f"{self.reference} is its own reference: there is no second engine to check it against")
        self.when = datetime.datetime.now(datetime.timezone.utc)
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if self.load is not None and self.load > 0.5 * cores():
            self.notes.append(f"the machine was busy at the start (load {self.load:.1f}): do not trust the times")

    def client(self, name: str, scratch: Path) -> Client:
        """A worker on the device that is measured; the reference is computed on the CPU in any case."""
        return Client(name, self.settings.threads, scratch, self.settings.device)

    def run(self) -> dict[str, Any]:
        if not self.engines:
            return self.result()
        with tempfile.TemporaryDirectory(prefix="rop-bench-") as folder:
            scratch = Path(folder)
            self.gemm = self.client("gemm", scratch)
            self.referee = Client(self.reference, self.settings.threads, scratch)
            try:
                self.problems(scratch)
                if self.settings.growth:
                    self.growth(scratch)
            finally:
                close([self.gemm, self.referee])
        return self.result()

    def tell(self, text: str) -> None:
        self.say(self.place + text)

    def problems(self, scratch: Path) -> None:
        """Every problem at every batch size, in every precision."""
        plan = [(problem, batch) for problem in self.settings.problems for batch in self.settings.batches]
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
        """Every quantity of the works by the reference engine, in float64; one jet serves all that it contains."""
        self.tell(f"{label}: the float64 reference by {self.reference}")
        steps = self.settings.steps(problem, batch)
        self.referee.ask("prepare", problem=problem.name, batch=batch, dtype="float64", steps=steps)
        whole: dict[str, Answer] = {}
        result = {}
        for work in works:
            source = "jet" if set(RETURNS[work]) <= set(RETURNS["jet"]) else SAME.get(work, work)
            if source not in whole:
                file = scratch / "reference.npz"
                self.referee.ask("answer", work=source, file=str(file))
                whole[source] = next(iter(load(file).values()))
            result[work] = {name: whole[source][name] for name in RETURNS[work]}
        self.referee.ask("forget")
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
        able_engines = [name for name in self.engines if problem.runs_on(name)]
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
            self.time(row, able)
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
                errors[way] = compare(answer, reference, row["dtype"], who, LOOSER.get(row["work"], 1.0))
            row["engines"][name] = {"first_call_s": first, "error": errors}

    def time(self, row: dict[str, Any], able: dict[str, Client]) -> None:
        """Bursts in turns; the matrix product whose rate is the limit takes its first turns too.

        Ways of an engine that are about equally fast at first all take part, and the one with the best median counts.
        """
        tried, seconds = {}, {}
        work, dtype, unit = row["work"], row["dtype"], UNITS.get(row["work"], 1)
        for name, client in able.items():
            client.ask("forget")
            tried[name] = client.ask("try_out", work=work)["seconds"]
            fast = HOPELESS * min(tried[name].values())
            seconds[name] = {way: list[float]() for way, once in tried[name].items() if once <= fast}
        start = time.perf_counter()
        for turn in range(self.settings.rounds):
            if turn >= 3 and time.perf_counter() - start > self.settings.patience:
                break
            for name, client in able.items():
                time.sleep(PAUSE)
                for way, so_far in seconds[name].items():
                    so_far += self.burst(client, work, way, tried[name][way])
            if turn < 3:
                time.sleep(PAUSE)
                self.rates[dtype] = max(self.rates.get(dtype, 0.0), self.gemm.ask("gemm", dtype=dtype)["rate"])
        for name, client in able.items():
            medians = {way: statistics.median(times) / unit for way, times in seconds[name].items()}
            way = min(medians, key=lambda way: medians[way])
            measured = row["engines"][name]
            measured.update(
                way=way,
                median_s=medians[way],
                min_s=min(seconds[name][way]) / unit,
                calls=len(seconds[name][way]),
                error=measured["error"][way],
                tried_s={way: medians.get(way, once / unit) for way, once in tried[name].items()},
                peak_bytes=client.ask("memory")["peak_bytes"],
            )

    def burst(self, client: Client, work: str, way: str, seconds: float) -> list[float]:
        """One turn of a way whose calls take about so long; of a long call nothing stays cold for long."""
        calls, warm = fitting(seconds, self.settings.burst), seconds < self.settings.burst
        return client.ask("time", work=work, way=way, calls=calls, warm=warm)["seconds"]

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
            "rows": self.rows,
            "growth": self.growth_rows,
            "slopes": growth.slopes(self.growth_rows),
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


def machine(device: str = "cpu") -> dict[str, Any]:
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
        "cpu": cpu,
        "architecture": platform.machine(),
        "cores": cores(),
        "memory_bytes": memory,
        "system": platform.system(),
        **({"gpu": gpu()} if device == "cuda" else {}),
    }


def gpu() -> str:
    """The name of the GPU."""
    from numba import cuda

    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)
