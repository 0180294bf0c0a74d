"""The command `rop`. A command is a function that takes the parsed options and returns the exit code."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import rop

OK, FAILED, USAGE = 0, 1, 2
EXIT_CODES = """exit codes:
  0  done, and all checks passed
  1  a check failed, or the work could not be done
  2  wrong usage
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and turn the package's own errors into a line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ∇ is no reason to fail
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except rop.RopError as error:
        print(f"rop {options.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"rop {options.command}: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # `rop ... | head`
        sys.stderr.close()
        return FAILED


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="rop",
        description="Exact gradients, Hessian-vector products and third-order products of neural networks.",
        epilog=EXIT_CODES,
        formatter_class=plain,
    )
    top.add_argument("--version", action="version", version=f"rop {rop.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    add = commands.add_parser(
        "demo",
        help="gradient, Hv and R² of a small network, checked by finite differences",
        epilog=EXIT_CODES,
        formatter_class=plain,
    )
    add.add_argument("--batch", type=positive, default=256, help="number of samples (default 256)")
    add.add_argument("--seed", type=int, default=0, help="of the weights and the direction (default 0)")
    add.set_defaults(run=demo)

    add = commands.add_parser(
        "bench",
        help="time rop beside PyTorch and JAX, answers checked first",
        description="Times rop, PyTorch, torch.func and JAX, each in a process of its own, in turns, after comparing "
        "their answers.\nEngines that are not installed are left out: pip install 'rop[bench]' brings them all.\n"
        "Without --batch, --dtype and --works, float64 and all works but grad, hvp and jet are run at batch 128 only.",
        epilog=EXIT_CODES,
        formatter_class=plain,
    )
    add.add_argument("--quick", action="store_true", help="three problems, batch 128, float32, no torch.func")
    add.add_argument("--growth", action="store_true", help="growth with width, depth and batch, instead of problems")
    add.add_argument("--full", action="store_true", help="problems and growth: what bench/results holds, 15 minutes")
    add.add_argument("--problems", nargs="+", metavar="NAME", help="problems or groups (default main; see --list)")
    add.add_argument("--engines", nargs="+", metavar="NAME", help="of rop, torch, torch.func, jax (default all)")
    add.add_argument("--works", nargs="+", metavar="NAME", help="what is computed (default all; see --list)")
    add.add_argument("--batch", nargs="+", type=positive, metavar="N", help="batch sizes (default 32 128 512)")
    add.add_argument("--dtype", nargs="+", choices=("float32", "float64"), help="precisions (default both)")
    add.add_argument("--threads", type=positive, metavar="N", help="of every engine (default: all cores)")
    add.add_argument("--rounds", type=positive, metavar="N", help="turns of every engine (default 9, quick 5)")
    add.add_argument("--json", type=Path, metavar="FILE", help="save the results with the environment")
    add.add_argument("--out", type=Path, metavar="DIR", help="save results.json and the plots there")
    add.add_argument("--name", metavar="NAME", help="with --out: save NAME.json and NAME-*.png instead")
    add.add_argument("--list", action="store_true", help="list problems and works, and stop")
    add.set_defaults(run=bench)
    return top


def positive(text: str) -> int:
    """
    >>> positive("12")
    12
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")
    return number


# --------------------------------------------------------------------------------------------------------------- demo
TOLERANCE = 1e-6  # of the finite differences below: their own error is about 1e-8


def demo(options: argparse.Namespace) -> int:
    """Loss, ∇f, Hv and vᵀ∇Hv of a small convolutional network in float64, beside central differences."""
    x, y, source = digits(options.batch)
    net = rop.Sequential(
        rop.Conv2d(1, 8, 3, padding=1), rop.SiLU(), rop.AvgPool2d(2),
        rop.Conv2d(8, 16, 3, padding=1), rop.SiLU(), rop.AvgPool2d(2),
        rop.Flatten(), rop.Linear(64, 10),
    )  # fmt: skip
    w = net.init(seed=options.seed, dtype=np.float64)
    v = np.random.default_rng(options.seed).standard_normal(w.size)
    v /= np.linalg.norm(v)
    f = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64)
    jet, point = f.jet(w, v), f.at(w)
    directions = itertools.cycle((v, np.roll(v, 1)))  # so that no time is that of an answer kept from the last call

    h = 1e-4
    ahead, behind = f.jet(w + h * v, v), f.jet(w - h * v, v)
    rows = (  # name, the result, what it says along v, the central difference of the order below, a call to time
        ("∇f", jet.grad, jet.grad @ v, ahead.loss - behind.loss, lambda: f.at(w), "loss and ∇f at a new w"),
        ("H v", jet.hvp, jet.hvp, ahead.grad - behind.grad, lambda: point.hvp(next(directions)),
         "one Hessian-vector product at the same w"),
        ("vᵀ∇H v", jet.r2, jet.r2, ahead.hvp - behind.hvp, lambda: f.jet(w, next(directions)),
         "loss, ∇f, H v and vᵀ∇H v at a new w"),
    )  # fmt: skip
    print(f"{source}: {len(x)} images of 8×8; a convolutional network with {w.size} parameters, float64")
    print(f"loss {jet.loss:.6f}\n")
    print(f"{'':10}{'norm':>12}{'error':>12}{'time':>12}")
    errors = []
    for name, result, exact, difference, call, note in rows:
        norm = float(np.linalg.norm(result))
        errors.append(float(np.linalg.norm(difference / (2 * h) - exact)) / norm)
        print(f"{name:10}{norm:12.6f}{errors[-1]:12.1e}{1e3 * best_time(call):9.2f} ms   {note}")
    passed = max(errors) <= TOLERANCE
    print(f"\nerror: relative to the norm, against central differences with step {h:g}; {TOLERANCE:g} is allowed")
    print("all three agree" if passed else "NOT all of them agree")
    return OK if passed else FAILED


def digits(count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """scikit-learn's handwritten digits if it is installed, else blurred random images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        rng = np.random.default_rng(0)
        y = rng.integers(10, size=count)
        shapes = rng.standard_normal((10, 1, 8, 8))
        return shapes[y] + 0.5 * rng.standard_normal((count, 1, 8, 8)), y, "made-up digits (no scikit-learn here)"
    data = load_digits()
    x = (data.images[:count, None] / 8.0 - 1.0).astype(np.float64)
    return x, data.target[:count], "scikit-learn's digits"


def best_time(call: Any, budget: float = 0.2) -> float:
    """Seconds of the fastest call within the budget."""
    best, until = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


# -------------------------------------------------------------------------------------------------------------- bench
def bench(options: argparse.Namespace) -> int:
    """Check the options, run the benchmark, show and save the result."""
    try:
        runner, report, problems = (import_module(f"rop.bench.{name}") for name in ("runner", "report", "problems"))
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("rop.bench"):
            print("rop bench: the benchmark is not installed with this copy of rop; in a clone of the repository run\n"
                  "    pip install -e '.[bench]'", file=sys.stderr)  # fmt: skip
            return FAILED
        raise
    if options.list:
        for problem in problems.GROUPS["all"]:
            print(f"{problem.name:22}{problem.size:>8} parameters   {problem.about}")
        for work, about in import_module("rop.bench.engines").WORKS.items():
            print(f"work {work:17}{about}")
        return OK
    try:
        settings = bench_settings(options, runner, problems)
    except ValueError as error:
        print(f"rop bench: {error}", file=sys.stderr)
        return USAGE
    if (options.json or options.out) and not writable(options):
        return USAGE

    say = Progress()
    run = runner.Run(settings, say, lambda row: say.keep(report.line(row)))
    for note in run.notes:
        say.keep(f"note: {note}")
    if not run.engines:
        print("rop bench: none of the engines is installed; pip install 'rop[bench]'", file=sys.stderr)
        return FAILED
    try:
        result = run.run()
    except runner.WorkerError as error:
        say.done()
        print(f"rop bench: {error}", file=sys.stderr)
        return FAILED
    say.done()
    report.show(result)
    for path in filter(None, (options.json, options.out and options.out / f"{options.name or 'results'}.json")):
        report.save_json(result, path)
        print(f"saved {path}")
    if options.out:
        try:
            for path in report.plots(result, options.out, options.name or ""):
                print(f"saved {path}")
        except ImportError:
            print("note: no plots, because matplotlib is not installed (pip install 'rop[bench]')")
    return FAILED if result["failures"] else OK


def bench_settings(options: argparse.Namespace, runner: Any, problems: Any) -> Any:
    """The runner's settings; a ValueError says which option is wrong."""
    from dataclasses import replace

    settings = runner.Settings()
    given: dict[str, Any] = {}
    if options.problems:
        found = [problem for name in options.problems for problem in problems.find(name)]
        given["problems"] = tuple(dict.fromkeys(found))
    elif options.growth and not options.full:
        given["problems"] = ()
    given["growth"] = options.growth or options.full
    given["thin"] = not (options.batch or options.dtype or options.works)
    for option in ("engines", "works"):
        if names := getattr(options, option):
            known = getattr(settings, option)
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"unknown {option[:-1]} {unknown[0]!r}; known: {', '.join(known)}")
            given[option] = tuple(dict.fromkeys(names))
    if options.batch:
        given["batches"] = tuple(dict.fromkeys(options.batch))
    if options.dtype:
        given["dtypes"] = tuple(dict.fromkeys(options.dtype))
    if options.name and (not options.out or Path(options.name).name != options.name):
        raise ValueError(f"--name {options.name}: needs --out, and is no path")
    if options.threads:
        if options.threads > runner.cores():
            raise ValueError(f"--threads {options.threads}, but there are only {runner.cores()} cores")
        given["threads"] = options.threads
    settings = replace(settings, **given)
    if options.quick:
        settings = runner.quick(settings)
    return replace(settings, rounds=options.rounds) if options.rounds else settings


def writable(options: argparse.Namespace) -> bool:
    """Find out before the run, not after it, that results cannot be saved."""
    for folder in filter(None, (options.json and options.json.parent, options.out)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"rop bench: cannot write to {folder}: {error.strerror}", file=sys.stderr)
            return False
    if options.json and options.json.is_dir():
        print(f"rop bench: --json takes a file, {options.json} is a folder", file=sys.stderr)
        return False
    return True


class Progress:
    """What is going on, on standard error: one changing line on a terminal, kept lines elsewhere too."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self.live:
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)

    def keep(self, text: str) -> None:
        self.done()
        print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
