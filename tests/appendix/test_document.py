"""docs/derivations.md keeps its word: its tests exist, no equation is left out, its tables are those of a run."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from tests.appendix import __main__ as table
from tests.appendix import algorithms, equations
from tests.appendix.comparison import CORRECTED, PRINTED
from tests.torch.test_torch_batchnorm import example

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "derivations.md"
TEXT = DOCUMENT.read_text("utf-8")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]\d+)?")


def names_of_tests(*paths: Path) -> set[str]:
    """Names of the test functions in these files."""
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 40
    assert not named - names_of_tests(*(ROOT / "tests").rglob("test_*.py"))


def test_every_test_of_the_appendix_is_named() -> None:
    here = Path(__file__).parent
    shown = names_of_tests(*(here / f"test_{name}.py" for name in ("equations", "algorithms", "convergence")))
    assert not shown - set(re.findall(r"`(test_\w+)`", TEXT))


@pytest.mark.parametrize("module", [equations, algorithms], ids=lambda module: module.__name__)
def test_every_function_is_mentioned(module: object) -> None:
    own = inspect.getmodule(module)
    names = [
        name for name, function in inspect.getmembers(module, inspect.isfunction) if inspect.getmodule(function) is own
    ]
    assert names and not [name for name in names if not re.search(rf"\b{name}\b", TEXT)]


def test_the_summary_judges_as_the_tests_do() -> None:
    """A row per equation, in order; right means that there is no corrected form."""
    rows = re.findall(r"^\| \((\d+)\) \| `(\w+)` \| ([\w ]+) \|", TEXT, re.M)
    assert [name for _, name, _ in rows] == list(PRINTED)
    for position, (number, name, verdict) in enumerate(rows, start=1):
        assert int(number) == position
        assert (verdict == "right") == (name not in CORRECTED), name


def assert_same_table(shown: str, printed: str) -> None:
    """The same words, and the same numbers, to a twentieth where they are more than rounding."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        promised, found = float(ours), float(theirs)
        slack = 1.0 if ours.isdigit() else 0.0  # an iteration more or less on another processor
        assert found == pytest.approx(promised, rel=0.05, abs=slack) or max(promised, found) < 1e-7


def block(start: str) -> str:
    """The code block of the document that starts with these words."""
    return next(text for text in re.findall(r"^```text\n(.*?)^```$", TEXT, re.M | re.S) if text.startswith(start))


def test_the_tables_of_numbers_are_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    table.main()
    assert_same_table(block("Relative errors") + block("Algorithms and claims"), capsys.readouterr().out)


def test_the_tables_of_torch_are_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    shown = block("relative errors") + block("GELU")
    assert_same_table(shown, capsys.readouterr().out.split("\n", 1)[1])


def test_links_exist() -> None:
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert links and all((DOCUMENT.parent / target).exists() for target in links)
