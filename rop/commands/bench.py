"""`rop bench`: the benchmark of bench/, which is installed as rop.bench."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rop.arguments import check_path
from rop.commands.common import FAILED, OK, USAGE, Progress, add_command, note_missing, positive
from rop.devices import DEVICES, check_device

if TYPE_CHECKING:  # the benchmark may not be installed, see `bench`
    from rop.bench.problems import Problem
    from rop.bench.settings import Settings


def add(commands: Any) -> None:
    """The parser of `rop bench`."""
    parser = add_command(
        commands,
        "bench",
        bench,
        "time rop beside PyTorch and JAX, answers checked first",
        details="Times rop, PyTorch, torch.func and JAX, each in a process of its own, in turns, after comparing their "
        "answers.\nEngines that are not installed are left out: pip install 'rop[bench]' brings them all.\n"
        "Without --batch, --dtype and --works, float64 and all works but grad, hvp and jet are run at batch 128 only.\n"
        "The problems of the group medium are known architectures, each with its own batch size and mode of batchnorm, "
        "for grad\nand jet in float32 unless --works or --dtype name others: rop bench --problems medium.",
    )
    parser.add_argument("--quick", action="store_true", help="three problems, batch 128, float32, no torch.func")
    parser.add_argument("--growth", action="store_true", help="growth with width, depth and batch, instead of problems")
    parser.add_argument("--full", action="store_true", help="problems and growth, all batches and precisions, 25 min")
    parser.add_argument("--problems", nargs="+", metavar="NAME", help="problems or groups (default main; see --list)")
    parser.add_argument(
        "--torch-module",
        metavar="FILE.py:FUNCTION",
        help="your own torch module: what FUNCTION() "
        "returns, a module or (module, x[, y[, loss]]); see docs/benchmark-your-net.md",
    )
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="of rop, torch, torch.func, jax (default all)")
    parser.add_argument("--works", nargs="+", metavar="NAME", help="what is computed (default all; see --list)")
    parser.add_argument("--batch", nargs="+", type=positive, metavar="N", help="batch sizes (default 32 128 512)")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"), help="precisions (default both)")
    parser.add_argument("--threads", type=positive, metavar="N", help="of every engine (default: all cores)")
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="cuda: rop and torch on a GPU, for the works that are single calls; auto: a GPU if one "
        "can be used (default cpu)",
    )
    parser.add_argument("--rounds", type=positive, metavar="N", help="turns of every engine (default 9, quick 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the results with the environment")
    parser.add_argument("--out", type=Path, metavar="DIR", help="save results.json and the plots there")
    parser.add_argument("--name", metavar="NAME", help="with --out: save NAME.json and NAME-*.png instead")
    parser.add_argument("--list", action="store_true", help="list problems and works, and stop")


def bench(options: argparse.Namespace) -> int:
    """Check the options, run the benchmark, show and save the result."""
    if find_spec("rop.bench") is None:
        print(
            "rop bench: the benchmark is not installed with this copy of rop; in a clone of the repository run\n"
            "    pip install -e '.[bench]'",
            file=sys.stderr,
        )
        return FAILED
    from rop.bench import report, runner

    if options.list:
        return list_names()
    options.device = check_device("bench", options.device)
    try:
        settings = bench_settings(options)
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
    save(result, options)
    return FAILED if result["failures"] else OK


def list_names() -> int:
    """Print the names of all problems and works."""
    from rop.bench import engines, problems

    for problem in problems.BY_NAME.values():
        mode = "training" if problem.training else "evaluation"
        own = f", batch {problem.batch}, {mode} mode" if problem.batch else ""
        print(f"{problem.name:22}{problem.size:>8} parameters   {problem.about}{own}")
    for group, members in problems.GROUPS.items():
        print(f"group {group:16}{', '.join(problem.name for problem in members)}")
    for work, about in engines.WORKS.items():
        print(f"work {work:17}{about}")
    return OK


def bench_settings(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for; a ValueError says which option is wrong."""
    from rop.bench import settings

    usual = settings.Settings()
    if options.device == "cuda":
        usual = settings.on_cuda(usual)
    given: dict[str, Any] = {
        **chosen_problems(options),
        "growth": options.growth or options.full,
        "thin": not (options.batch or options.dtype or options.works),
    }
    for option in ("engines", "works"):
        if names := getattr(options, option):
            known = getattr(usual, option)
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"unknown {option[:-1]} {unknown[0]!r}; known: {', '.join(known)}")
            given[option] = tuple(dict.fromkeys(names))
    given["named"] = tuple(name for name, value in (("works", options.works), ("dtypes", options.dtype)) if value)
    if options.batch:
        given["batches"] = tuple(dict.fromkeys(options.batch))
    if options.dtype:
        given["dtypes"] = tuple(dict.fromkeys(options.dtype))
    if options.name and (not options.out or Path(options.name).name != options.name):
        raise ValueError(f"--name {options.name}: needs --out, and is no path")
    for path in result_files(options):
        check_path("bench", "--json or --out", path)
    if options.threads:
        if options.threads > settings.cores():
            raise ValueError(f"--threads {options.threads}, but there are only {settings.cores()} cores")
        given["threads"] = options.threads
    chosen = replace(usual, **given)
    if options.quick:
        chosen = settings.quick(chosen)
    return replace(chosen, rounds=options.rounds) if options.rounds else chosen


def chosen_problems(options: argparse.Namespace) -> dict[str, Any]:
    """The settings `problems` and `batches` where the options say something about them."""
    from rop.bench import problems

    given: dict[str, Any] = {}
    if options.torch_module:
        module = load_module(options.torch_module)
        given.update(problems=(module,), batches=(len(module.x),))
    if options.problems:
        found = [problem for name in options.problems for problem in problems.find(name)]
        given["problems"] = tuple(dict.fromkeys([*given.get("problems", ()), *found]))
    elif options.growth and not options.full:
        given["problems"] = ()
    return given


def load_module(name: str) -> Problem:
    """The problem of --torch-module; a ValueError says what is wrong with the file, the function or the module."""
    if ":" not in name:
        raise ValueError(f"--torch-module {name}: expected path/to/file.py:function")
    from rop.bench import modules

    return modules.load(name)


def result_files(options: argparse.Namespace) -> Iterator[Path]:
    """The JSON files in which results are to be saved."""
    if options.json:
        yield options.json
    if options.out:
        yield options.out / f"{options.name or 'results'}.json"


def writable(options: argparse.Namespace) -> bool:
    """Find out before the run, not after it, that results cannot be saved."""
    for folder in filter(None, (options.json and options.json.parent, options.out)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
            reason = error.strerror if isinstance(error, OSError) else error
            print(f"rop bench: cannot write to {str(folder)[:80]!r}: {reason}", file=sys.stderr)
            return False
    if options.json and options.json.is_dir():
        print(f"rop bench: --json takes a file, {options.json} is a folder", file=sys.stderr)
        return False
    return True


def save(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the files that the options name: JSON, and plots if matplotlib is installed."""
    from rop.bench import plots, report

    for path in result_files(options):
        report.save_json(result, path)
        print(f"saved {path}")
    if options.out:
        try:
            for path in plots.plots(result, options.out, options.name or ""):
                print(f"saved {path}")
        except ImportError:
            note_missing("plots", "matplotlib", "bench")
