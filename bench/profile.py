"""Where the time of a gradient or a jet goes, by layer and by kernel.

    python -m rop.bench.profile vgg11-32 --work jet

Every instruction of the pass runs alone on one thread, and its CPU time is taken, the median over rounds. So the sum is
what one thread needs; what threads add to it, waiting for each other and for memory, is not seen. Beside each layer are
its direct products (see flops.py), per second: a convolution by Winograd's algorithm can exceed the rate of a matrix
product, which stands below the tables. Results are made by ``rop.Objective`` as everywhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .problems import Problem

ORDERS = {"grad": (0,), "jet": (0, 1, 2)}
BATCH = 128  # of problems that do not say
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Profile(NamedTuple):
    """Seconds of one thread."""

    problem: str
    batch: int
    work: str
    seconds: Mapping[tuple[str, str], float]  # by layer and kernel
    flops: Mapping[str, int]  # by layer, of direct products
    rate: float  # flop/s of a matrix product on one thread


def measure(problem: Problem, batch: int, work: str, dtype: str, rounds: int) -> Profile:
    """Profiles a work of a problem."""
    import numpy as np

    import rop

    from . import flops, worker

    net, data, orders = problem.network(), problem.data(batch, dtype), ORDERS[work]
    f = rop.Objective(
        net, problem.rop_loss(), data.x, data.y, dtype=np.dtype(dtype), training=problem.training, state=problem.state()
    )
    w, v = data.points[0], data.directions[0] if work == "jet" else None
    space: Any = f._workspace
    space.evaluate(f._position(w), orders, v, keep=False)  # compiles what is missing, and touches the memory
    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * rounds)
    for turn in range(rounds):
        for cost in space.costs(f._position(w), orders, v):
            times[cost.where, cost.kernel][turn] += cost.seconds
    counted = {
        net.where(node): 2 * batch * count.multiplications * sum(count.products[: len(orders)])
        for node, count in flops.count_of(net, problem).items()
    }
    rate = worker.Worker("gemm", 1).gemm(dtype)["rate"]
    medians = {key: statistics.median(one) for key, one in times.items()}
    return Profile(problem.name, batch, work, medians, counted, rate)


def tables(profile: Profile, most: int = 12) -> str:
    """By kernel, and by layer the ``most`` expensive ones, as Markdown."""
    total = sum(profile.seconds.values())
    layers, kernels = _sums(profile, 0), _sums(profile, 1)
    lines = ["| kernel | ms | share |", "|---|---:|---:|"]
    lines += [f"| {name} | {1e3 * s:.1f} | {s / total:.0%} |" for name, s in kernels if s >= 0.005 * total]
    lines += ["", "| layer | ms | share | Gflop/s of direct products | its kernels, ms |", "|---|---:|---:|---:|---|"]
    for name, s in layers[:most]:
        count = profile.flops.get(name, 0)
        own = sorted(((t, k) for (where, k), t in profile.seconds.items() if where == name), reverse=True)
        parts = ", ".join(f"{kernel} {1e3 * t:.1f}" for t, kernel in own[:4])
        rate = f"{count / s / 1e9:.0f}" if count else ""
        lines.append(f"| {name} | {1e3 * s:.1f} | {s / total:.0%} | {rate} | {parts} |")
    all_flops = sum(profile.flops.values())
    lines += [
        "",
        f"In all {1e3 * total:.1f} ms of one thread for {all_flops / 1e9:.1f} Gflop of direct products, "
        f"{all_flops / total / 1e9:.0f} Gflop/s; a matrix product has {profile.rate / 1e9:.0f} Gflop/s on one thread.",
    ]
    return "\n".join(lines)


def _sums(profile: Profile, part: int) -> Sequence[tuple[str, float]]:
    """Seconds by layer (0) or kernel (1), the largest first."""
    sums: dict[str, float] = defaultdict(float)
    for key, seconds in profile.seconds.items():
        sums[key[part]] += seconds
    return sorted(sums.items(), key=lambda item: -item[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the tables, and writes them to a file if one is named."""
    parser = argparse.ArgumentParser(
        prog="python -m rop.bench.profile",
        description="Time of a gradient or a jet on one thread, by layer and kernel.",
    )
    parser.add_argument("problems", nargs="+", metavar="PROBLEM", help="see rop bench --list")
    parser.add_argument("--work", choices=ORDERS, default="jet")
    parser.add_argument("--batch", type=int, default=BATCH, help="of problems without a batch size of their own")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE.md")
    options = parser.parse_args(arguments)
    if min(options.batch, options.rounds) < 1:
        parser.error("--batch and --rounds take whole numbers from 1 on")
    os.environ.update(dict.fromkeys(THREADS, "1"))  # read by the libraries when they are imported, which is later
    from . import machine, problems

    try:
        found = [problem for name in options.problems for problem in problems.find(name)]
    except ValueError as error:
        parser.error(str(error))
    command = f"python -m rop.bench.profile {' '.join(options.problems)} --work {options.work}"
    parts = [f"`{command} --rounds {options.rounds}`, {options.dtype}, {machine.machine()['cpu']}, one thread."]
    for problem in found:
        batch = problem.batch or options.batch
        profile = measure(problem, batch, options.work, options.dtype, options.rounds)
        parts.append(f"## {problem.name}, batch {batch}, {options.work}\n\n{tables(profile)}")
        print(parts[-1], end="\n\n", flush=True)
    if options.out:
        options.out.write_text("# Where the time goes\n\n" + "\n\n".join(parts) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
