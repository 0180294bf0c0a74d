"""`rop bench`: the benchmark of bench/, which is installed as rop.bench."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from rop.arguments import check_path
from rop.commands.common import FAILED, OK, USAGE, Progress, add_command, note_missing, positive
from rop.devices import DEVICES, check_device


def add(commands: Any) -> None:
    """The parser of `rop bench`."""
    parser = add_command(
        commands,
        "bench",
        bench,
        "time rop beside PyTorch and JAX, answers checked first",
        details="Times rop, PyTorch, torch.func and JAX, each in a process of its own, in turns, after comparing their "
        "answers.\nEngines that are not installed are left out: pip install 'rop[bench]' brings them all.\n"
        "Without --batch, --dtype and --works, float64 and all works but grad, hvp and jet are run at batch 128 only.",
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
    try:
        runner, report, plots = (import_module(f"rop.bench.{name}") for name in ("runner", "report", "plots"))
        problems, settings = (import_module(f"rop.bench.{name}") for name in ("problems", "settings"))
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("rop.bench"):
            print(
                "rop bench: the benchmark is not installed with this copy of rop; in a clone of the repository run\n"
                "    pip install -e '.[bench]'",
                file=sys.stderr,
            )
            return FAILED
        raise
    if options.list:
        for problem in problems.GROUPS["all"]:
            print(f"{problem.name:22}{problem.size:>8} parameters   {problem.about}")
        for work, about in import_module("rop.bench.engines").WORKS.items():
            print(f"work {work:17}{about}")
        return OK
    options.device = check_device("bench", options.device)
    try:
        chosen = bench_settings(options, settings, problems)
    except ValueError as error:
        print(f"rop bench: {error}", file=sys.stderr)
        return USAGE
    if (options.json or options.out) and not writable(options):
        return USAGE

    say = Progress()
    run = runner.Run(chosen, say, lambda row: say.keep(report.line(row)))
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
            for path in plots.plots(result, options.out, options.name or ""):
                print(f"saved {path}")
        except ImportError:
            note_missing("plots", "matplotlib", "bench")
    return FAILED if result["failures"] else OK


def bench_settings(options: argparse.Namespace, module: Any, problems: Any) -> Any:
    """The settings of rop.bench.settings, the module; a ValueError says which option is wrong."""
    from dataclasses import replace

    settings = module.Settings()
    given: dict[str, Any] = {}
    if options.torch_module:
        module = load_module(options.torch_module)
        given.update(problems=(module,), batches=(len(module.x),))
    if options.problems:
        found = [problem for name in options.problems for problem in problems.find(name)]
        given["problems"] = tuple(dict.fromkeys([*given.get("problems", ()), *found]))
    elif options.growth and not options.full:
        given["problems"] = ()
    given["growth"] = options.growth or options.full
    if options.device == "cuda":
        settings = module.on_cuda(settings)
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
    for path in filter(None, (options.json, options.out and options.out / f"{options.name or 'results'}.json")):
        check_path("bench", "--json or --out", path)
    if options.threads:
        if options.threads > module.cores():
            raise ValueError(f"--threads {options.threads}, but there are only {module.cores()} cores")
        given["threads"] = options.threads
    settings = replace(settings, **given)
    if options.quick:
        settings = module.quick(settings)
    return replace(settings, rounds=options.rounds) if options.rounds else settings


def load_module(name: str) -> Any:
    """The problem of --torch-module; a ValueError says what is wrong with the file, the function or the module."""
    if ":" not in name:
        raise ValueError(f"--torch-module {name}: expected path/to/file.py:function")
    return import_module("rop.bench.modules").load(name)


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
