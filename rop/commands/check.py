"""`rop check`: every layer and loss, or one of your own, at every order: against torch, differences and identities."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rop
from rop.commands.common import FAILED, OK, USAGE, Commands, Progress, add_command, positive
from rop.layers import LAYERS, LOSSES

if TYPE_CHECKING:
    from rop.check import Result

EXAMPLES = """examples:
  rop check                                  every layer and loss of the package, both precisions
  rop check Conv2d --order 2                 one layer, R² only
  rop check Tanh GELU --dtype float64
  rop check mine.py:swish                    an activation of your own: a function that returns f, f′, f″, f‴
  rop check mine.py:net --shape 1 16 16      a network of your own, on random images of one channel
  rop check --json > found.json
"""
COLOURS = {"red": "31", "green": "32", "bold": "1", "dim": "2"}


class WrongUsage(Exception):
    """An argument that names nothing that can be checked."""


def add(commands: Commands) -> None:
    """The parser of `rop check`."""
    parser = add_command(
        commands,
        "check",
        check,
        "check derivatives of layers, losses, or an activation or network of your own",
        EXAMPLES,
        "Compares every order of a layer, forward, backward to its input and backward to its weights, with\n"
        "torch (where installed), with finite differences, and by identities that must hold.",
    )
    parser.add_argument("subjects", nargs="*", metavar="NAME", help="layers, losses, or FILE.py:NAME (default: all)")
    parser.add_argument("--order", nargs="+", type=int, choices=(0, 1, 2), help="orders (default all)")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"), help="precisions (default both)")
    parser.add_argument("--shape", nargs="+", type=positive, metavar="N", help="of one input of FILE.py:NAME")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def check(options: argparse.Namespace) -> int:
    """Check the subjects, show the results, and return whether all are right as the exit code."""
    start, say = time.perf_counter(), Progress()
    try:
        names, own = sort_out(options.subjects)
    except WrongUsage as error:
        print(f"rop check: {error}", file=sys.stderr)
        return USAGE
    chosen: dict[str, Any] = {"dtypes": options.dtype or ["float64", "float32"], "orders": options.order or [0, 1, 2]}
    try:
        results = [check_own(thing, options.shape, say, **chosen) for thing in own.values()]
        if names or not own:
            results.append(rop.check.everything(names or None, progress=say, **chosen))
    finally:
        say.done()
    seconds = time.perf_counter() - start
    ok = all(result.ok for result in results)
    if options.json:
        found = {"rop": rop.__version__, "ok": ok, "seconds": round(seconds, 2)}
        print(json.dumps({**found, "results": [result.to_dict() for result in results]}, ensure_ascii=False))
    else:
        print("\n\n".join(result.text(painter()) for result in results))
        print(f"{sum(len(r.rows) + len(r.derivatives) for r in results)} rows in {seconds:.1f} s")
    return OK if ok else FAILED


def sort_out(subjects: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Names of the package's layers and losses as they are spelt there, and things from files."""
    known = {name.lower(): name for name in (*LAYERS, *LOSSES)}
    names, own = [], {}
    for subject in dict.fromkeys(subjects):
        if subject.lower() in known:
            names.append(known[subject.lower()])
        elif ":" in subject or subject.endswith(".py"):
            own[subject] = from_file(subject)
        else:
            raise WrongUsage(
                f"no layer or loss {subject!r}; known: {', '.join(known.values())}; one of your own is FILE.py:NAME"
            )
    return names, own


def from_file(subject: str) -> Any:
    """The thing called NAME in FILE.py, given as FILE.py:NAME."""
    path, _, name = subject.rpartition(":") if not subject.endswith(".py") else (subject, "", "")
    file = Path(path)
    if not file.is_file():
        raise WrongUsage(f"{subject}: there is no file {path!r}")
    module = load(file)
    found = {key: value for key, value in vars(module).items() if checkable(value, module)}
    if name not in vars(module):
        raise WrongUsage(
            f"{subject}: expected FILE.py:NAME with a NAME in that file; to choose from: "
            f"{', '.join(found) or 'nothing that can be checked'}"
        )
    return vars(module)[name]


def load(file: Path) -> types.ModuleType:
    """The file as a module, which can import from its own folder."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise WrongUsage(f"{file} is not a Python file")
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end itself
        raise rop.RopError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    return module


def checkable(value: object, module: types.ModuleType) -> bool:
    """Whether a value in a file is a function of that file, or a layer, loss or network."""
    if isinstance(value, types.FunctionType):
        return value.__module__ == module.__name__
    return isinstance(value, (rop.Layer, rop.Loss, rop.Graph))


def check_own(thing: Any, shape: list[int] | None, say: Progress, **chosen: Any) -> Result:
    """Checks a layer, function, loss or network of the user's."""
    say(f"{thing!r}")
    given = None if shape is None else tuple(shape)
    if isinstance(thing, rop.Loss):
        return rop.check.loss(thing, shape=given, **chosen)
    if not isinstance(thing, rop.Graph):
        return rop.check.layer(thing, shape=given, **chosen)
    if given is None:
        first = thing.nodes[1].layer
        if not isinstance(first, rop.Linear):
            raise rop.ArgumentError("a network needs the shape of its input, e.g. --shape 1 28 28")
        given = (first.in_features,)
    rng = np.random.default_rng(0)
    outputs = thing.shapes(given)[thing.output]
    x, y = rng.standard_normal((32, *given)), rng.standard_normal((32, *outputs))
    return rop.check.network(thing, rop.MSE(), x, y, **chosen)


def painter() -> Callable[[str, str], str]:
    """A function of a text and the name of a colour: it adds the colour on a terminal, unless $NO_COLOR is set."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain:
        return lambda text, colour: text
    return lambda text, colour: f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if text.strip() else text
