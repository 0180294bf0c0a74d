"""docs/architecture.md is true: its files and functions exist, a call goes through them in this order, and packages
import each other in one direction."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from tests.helpers.zoo import normal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
DRAWING = (ROOT / "docs" / "architecture.svg").read_text("utf-8")
HOPS = re.findall(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", PAGE, re.M)
ROOMS = [  # as in the table of rooms: a package imports those before it, and files of its own
    ("errors", "arguments", "tensors"),
    ("layers",),
    ("graph",),
    ("lowering",),
    ("kernels",),
    ("devices",),
    ("inputs", "prediction", "activations", "objective"),
    ("curvature", "eigen", "kfac"),
    ("optim",),
    ("training",),
    ("experiments", "datasets"),
    ("reproduce",),
    ("check", "torch", "sklearn"),
    ("commands", "cli", "bench"),
]
PLACE = {package: i for i, packages in enumerate(ROOMS) for package in packages}


def functions(file: Path) -> set[str]:
    """The functions of a file as "name" and its methods as "Class.name"."""
    tree = ast.parse(file.read_text("utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found |= {f"{kind.name}.{node.name}" for node in kind.body if isinstance(node, ast.FunctionDef)}
    return found


# ---------------------------------------------------------------------------------------------------- the way of f.jet
def test_there_are_at_most_ten_hops_and_each_exists() -> None:
    assert [int(number) for number, _, _ in HOPS] == list(range(1, len(HOPS) + 1)) and 5 < len(HOPS) <= 10
    for _, file, function in HOPS:
        assert function in functions(ROOT / file), f"{file} has no {function}"


def test_a_call_goes_through_the_hops_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    net = rop.Sequential(rop.Linear(4, 8), rop.Tanh(), rop.Linear(8, 3))
    f = rop.Objective(net, rop.CrossEntropy(), normal(0, (8, 4)), np.arange(8) % 3, dtype=np.float64)
    w, v = net.init(dtype=np.float64), normal(1, (net.size,))
    f.jet(w, v)  # the pass is made at the first call
    wanted = [(str(ROOT / file), function) for _, file, function in HOPS]
    stacks: list[list[tuple[str, str]]] = []

    def chain(frame: Any) -> Iterator[tuple[str, str]]:
        while frame is not None:
            yield frame.f_code.co_filename, getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            frame = frame.f_back

    def watched(compiled: Any) -> Any:
        def called(*arguments: Any) -> Any:
            stacks.append(list(chain(sys._getframe()))[::-1])
            return compiled(*arguments)

        return called

    space: Any = f._workspace
    compiled = space.execution._answers
    monkeypatch.setattr(space.execution, "_answers", {way: watched(compiled[way]) for way in (True, False)})
    f.jet(w, v)
    (stack,) = stacks  # one run of the interpreter answers for all orders
    inside = [hop for hop in stack if hop[0].startswith(str(ROOT / "rop"))]
    python = [hop for hop in wanted if "kernels" not in hop[0]]
    if sys.version_info < (3, 11):  # code objects do not know their class
        python = [(file, function.rpartition(".")[2]) for file, function in python]
    assert inside == python


def test_compiled_hops_call_each_other() -> None:
    """The functions of the interpreter and of the kernels mention the next one."""
    compiled = [(ROOT / file, function) for _, file, function in HOPS if "/kernels/" in file]
    for (file, function), (_, called) in pairwise(compiled):
        if function == "_execute":  # calls kernels by their addresses
            continue
        (node,) = (n for n in ast.parse(file.read_text("utf-8")).body if getattr(n, "name", "") == function)
        assert called in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}, f"{function} does not call {called}"


def test_the_drawing_shows_the_files_of_the_hops() -> None:
    drawn = {file.partition(" ")[0] for file in re.findall(r">((?:rop|docs)/[^<]+)</text>", DRAWING)}
    for file in drawn:
        assert list(ROOT.glob(file)), f"{file} is drawn, but is not there"
    assert {file for _, file, _ in HOPS} - drawn <= {"rop/kernels/cpu/gemm.py"}  # named in the box of bilinear.py
    assert "gemm.multiply" in DRAWING


def test_every_file_and_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:rop|tests|bench|docs)/[\w./*-]+)`", PAGE))
    assert len(named) > 40
    for name in named:
        assert list(ROOT.glob(name.rstrip("/"))), name


# ------------------------------------------------------------------------------------------------------ one direction
def packages_imported(file: Path) -> set[str]:
    """The packages of rop that a file imports when it is loaded; not inside functions, nor for type checkers."""
    found: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == "rop":
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rop."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("rop.")}
    return found


FILES = sorted(file for file in (ROOT / "rop").rglob("*.py") if file.parent != ROOT / "rop" or file.stem in PLACE)


def package_of(file: Path) -> str:
    return file.relative_to(ROOT / "rop").parts[0].removesuffix(".py")


def test_every_package_has_a_place() -> None:
    assert {package_of(file) for file in FILES} <= set(PLACE)


@pytest.mark.parametrize("package", sorted({package_of(file) for file in FILES}))
def test_imports_go_in_one_direction(package: str) -> None:
    for file in FILES:
        if package_of(file) == package:
            above = {name for name in packages_imported(file) if PLACE.get(name, 0) > PLACE[package]}
            assert not above, f"{file.relative_to(ROOT)} imports {above}, which come after it"
