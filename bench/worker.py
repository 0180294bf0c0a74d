"""One process per engine: reads commands as JSON lines from standard input, answers each with one JSON line.

    {"do": "hello"}                                          → versions, seconds that importing took
    {"do": "prepare", "problem", "batch", "dtype", "steps"}  → seconds; the steps are those of an epoch
    {"do": "answer", "work", "file", "all_ways"}             → saves the answer of every way, or of the first one;
                                                               seconds of each first call
    {"do": "try_out", "work"}                                → about how many seconds a call of each way takes
    {"do": "time", "work", "way", "calls", "warm"}           → seconds of each call; warm: after some that do not count
    {"do": "forget"} {"do": "memory"}                        → drop what is kept; peak memory since then
    {"do": "gemm", "dtype"}                                  → rate of matrix products, flop/s (engine "gemm" only)

An error is an answer too: {"error": …}. The process ends with its standard input.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engines import Engine

# Steps of an epoch when answers are compared: over more of them, rounding drives the two precisions too far apart.
CHECKED_STEPS = {"epoch": 100, "penalised": 10}
WARM_UP = 3, 0.005  # calls before the first recorded one, and the seconds after which no further one is made
TRIAL = 0.05  # seconds for which a way is tried out, if a call is not longer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner receives it too, and ends this process
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")  # output of libraries must not mix with the answers
    os.dup2(2, 1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[: options.threads])
    start = time.perf_counter()
    worker = Worker(options.engine, options.threads, options.device)
    worker.import_seconds = time.perf_counter() - start
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply = getattr(worker, command.pop("do"))(**command)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()
    return 0


class Worker:
    """The commands; each returns its answer."""

    engine: Engine  # "gemm" has none: it only multiplies matrices
    import_seconds = 0.0
    steps = 0

    def __init__(self, engine: str, threads: int, device: str = "cpu"):
        import numpy

        self.numpy, self.device = numpy, device
        if engine != "gemm":
            from . import engines

            self.engine = engines.make(engine, threads, device)

    def hello(self) -> dict[str, Any]:
        versions = {"numpy": self.numpy.__version__, **self.engine.versions()}
        return {"versions": versions, "import_s": self.import_seconds}

    def prepare(self, problem: str, batch: int, dtype: str, steps: int = 0) -> dict[str, Any]:
        from . import problems

        (found,) = problems.find(problem)
        data = found.data(batch, dtype)
        self.steps = steps
        self.engine.rows = found.rows if steps == found.rows // batch else steps * batch
        start = time.perf_counter()
        self.engine.prepare(found, batch, dtype, data)
        return {"seconds": time.perf_counter() - start, "works": list(self.engine.ways)}

    def steps_of(self, work: str) -> int:
        from .engines import EPOCHS

        return min(self.steps, EPOCHS.get(work, 0) or self.steps)

    def answer(self, work: str, file: str, all_ways: bool = True) -> dict[str, Any]:
        first: dict[str, float] = {}
        arrays: dict[str, Any] = {}  # of numbers; Any, because savez has a keyword that is a bool
        ways = self.engine.ways[work]
        self.engine.steps = min(self.steps_of(work), CHECKED_STEPS.get(work, 1))
        self.engine.tune(work)
        for way in ways if all_ways else ways[:1]:
            start = time.perf_counter()
            result = self.engine.run(way, 0)
            first[way] = time.perf_counter() - start
            for name, quantity in self.engine.quantities(work, result).items():
                arrays[f"{way}/{name}"] = quantity
        self.numpy.savez(file, **arrays)
        return {"first_s": first}

    def try_out(self, work: str) -> dict[str, Any]:
        """Every way for a short while."""
        self.engine.steps = self.steps_of(work)
        seconds = {}
        for way in self.engine.ways[work]:
            run = functools.partial(self.engine.run, way)
            (once,) = timed(run, 1)
            seconds[way] = min(once, *timed(run, fitting(once, TRIAL))) if once < TRIAL else once
        return {"seconds": seconds}

    def time(self, work: str, way: str, calls: int, warm: bool = True) -> dict[str, Any]:
        return {"seconds": timed(functools.partial(self.engine.run, way), calls, warm)}

    def forget(self) -> dict[str, Any]:
        self.engine.forget()
        gc.collect()
        release_memory()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        except OSError:
            return {"reset": False}
        return {"reset": True}

    def memory(self) -> dict[str, Any]:
        return {"peak_bytes": peak_memory()}

    def gemm(self, dtype: str) -> dict[str, Any]:
        """The best rate over a few sizes: a product large enough to be limited by arithmetic alone."""
        if self.device == "cuda":
            from .engines.cuda_engines import product_rate

            return {"rate": product_rate(dtype)}
        rates = []
        for n in (384, 512, 768, 1024):
            a, b, c = (self.numpy.ones((n, n), dtype) for _ in range(3))
            rates.append(2 * n**3 / min(timed(lambda _: self.numpy.dot(a, b, c), 2)))  # noqa: B023
        return {"rate": max(rates)}


def timed(call: Callable[[int], Any], calls: int, warm: bool = True) -> list[float]:
    """Seconds of each call, after some that are not recorded; without the garbage collector, as timeit does it."""
    clock, seconds = time.perf_counter, []
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = clock()
        for k in range(WARM_UP[0] if warm else 0):
            call(k)
            if clock() - started > WARM_UP[1]:
                break
        for k in range(calls):
            start = clock()
            call(k)
            seconds.append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return seconds


def fitting(seconds_per_call: float, budget: float) -> int:
    """The number of calls that fit the budget: at least 1, at most 2000."""
    return max(1, min(2000, round(budget / max(seconds_per_call, 1e-9))))


def release_memory() -> None:
    """Returns freed memory to the system, so that a peak does not include memory of an earlier work."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def peak_memory() -> int:
    """The largest resident size so far, in bytes; 0 where it cannot be known."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    except ImportError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
