"""How sensitive short calls are to the constants of rop/devices/cpu/threads.py: the measurement behind them.

    python -m rop.bench.pace --out bench/results/pace.md

A short call (the forest net's jet, a batch of 128) is repeated in three phases: on a quiet machine, beside a process
that occupies a core, and on a quiet machine again. Every constant of ``Pace`` is halved and doubled in turn; settings
are interleaved, and the table shows the median over rounds of the mean time of a call in each phase. The rows "always"
and "never" use threads for every call, or for none.

It takes about four minutes, and says so when it starts. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rop
from rop.devices.cpu import threads

CONSTANTS = tuple(name for name in vars(threads) if name.isupper())
SETTINGS = (
    "as it is",
    "always",
    "never",
    *(f"{constant} ×{factor:g}" for constant in CONSTANTS for factor in (0.5, 2)),
)
WARM_UP = 0.25  # of the seconds of a phase: calls before the first phase, while the pace makes its first choice
PHASES = ("quiet", "beside a busy process", "quiet again")
WAKE_SECONDS = 0.1  # until the busy process occupies its core
Times = dict[str, list[list[float]]]  # setting -> phase -> seconds of a call, one for each round


class Fixed(threads.Pace):
    """A pace that always makes the same choice."""

    use_threads = True

    def parallel(self) -> bool:
        return self.use_threads

    def measured(self, parallel: bool, seconds: float) -> None:
        pass


@contextmanager
def setting(name: str) -> Iterator[type[threads.Pace]]:
    """The class of paces of a setting such as "OUTLIER ×2", while its constant is changed."""
    if name in ("always", "never"):
        yield type("Fixed", (Fixed,), {"use_threads": name == "always"})
        return
    constant, _, factor = name.partition(" ×")
    if not factor:
        yield threads.Pace
        return
    before = getattr(threads, constant)
    setattr(threads, constant, type(before)(before * float(factor)))
    try:
        yield threads.Pace
    finally:
        setattr(threads, constant, before)


@contextmanager
def busy_process() -> Iterator[None]:
    """A process that occupies one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(WAKE_SECONDS)
        yield
    finally:
        process.kill()
        process.wait()


def problem() -> tuple[rop.Objective, np.ndarray, np.ndarray]:
    """The forest net on a batch of 128."""
    rng = np.random.default_rng(0)
    net = rop.Sequential(rop.Linear(54, 20), rop.ReLU(), rop.Linear(20, 20), rop.ReLU(), rop.Linear(20, 7))
    x, y = rng.standard_normal((128, 54)).astype(np.float32), rng.integers(0, 7, 128)
    return rop.Objective(net, rop.CrossEntropy(), x, y), net.init(), rng.standard_normal(net.size).astype(np.float32)


def mean_time(f: rop.Objective, w: np.ndarray, v: np.ndarray, seconds: float) -> float:
    """Mean time of a jet, in seconds, over calls that take the given number of seconds together."""
    calls, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        f.jet(w, v)
        calls += 1
    return (now - start) / calls


def duration(rounds: int, seconds: float) -> float:
    """Seconds that `measure` takes, without the first call, which may compile kernels."""
    return rounds * len(SETTINGS) * ((WARM_UP + len(PHASES)) * seconds + WAKE_SECONDS)


def measure(rounds: int, seconds: float) -> Times:
    """Mean times of every setting in every phase, interleaved over rounds."""
    times: Times = {name: [[] for _ in PHASES] for name in SETTINGS}
    f, w, v = problem()
    f.jet(w, v)
    space: Any = f._workspace
    for _ in range(rounds):
        for name, phases in times.items():
            with setting(name) as pace:
                for bound in space.passes():
                    bound.pace = pace()
                mean_time(f, w, v, WARM_UP * seconds)
                phases[0].append(mean_time(f, w, v, seconds))
                with busy_process():
                    phases[1].append(mean_time(f, w, v, seconds))
                phases[2].append(mean_time(f, w, v, seconds))
    return times


def table(times: Times) -> str:
    """The medians as Markdown, in µs."""
    lines = [f"| constant | value | {' | '.join(PHASES)} |", "|---|---|---|---|---|"]
    for name, phases in times.items():
        constant = name.partition(" ×")[0]
        value = f"{getattr(threads, constant):g}" if constant in CONSTANTS else ""
        medians = (f"{1e6 * statistics.median(phase):.0f}" for phase in phases)
        lines.append(f"| {name} | {value} | {' | '.join(medians)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints the table, and writes it to a file if one is named."""
    parser = argparse.ArgumentParser(description="Sensitivity of short calls to the constants of the thread policy.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of calls in each phase")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    minutes = duration(arguments.rounds, arguments.seconds) / 60
    print(f"{len(SETTINGS)} settings, about {minutes:.1f} minutes", file=sys.stderr)
    text = table(measure(arguments.rounds, arguments.seconds))
    print(text)
    if arguments.out:
        command = f"python -m rop.bench.pace --rounds {arguments.rounds} --seconds {arguments.seconds:g}"
        arguments.out.write_text(f"# The thread policy's constants\n\n`{command}`, µs of a call:\n\n{text}\n", "utf-8")


if __name__ == "__main__":
    main()
