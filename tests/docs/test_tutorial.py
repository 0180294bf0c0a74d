"""The tutorial on checking derivations keeps its word: every block runs, and prints what is shown.

`python -m tests.docs.test_tutorial` writes what the blocks print into the tutorial.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

from rop import cli

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-check.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?!\w)")


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(TUTORIAL.read_text("utf-8"))


def outputs() -> list[str | None]:
    """What each block prints, None for blocks that are outputs; run one after the other, as a reader would."""
    scope: dict[str, object] = {"__name__": "tutorial"}
    found: list[str | None] = []
    for kind, code in blocks():
        if kind == "text":
            found.append(None)
            continue
        named = re.match(r"# (\w+\.py)\n", code)
        if named:
            Path(named[1]).write_text(code, "utf-8")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if kind == "sh":
                command, *arguments = shlex.split(code)
                assert command == "rop"
                cli.main(arguments)
            else:
                exec(compile(code, TUTORIAL.name, "exec"), scope)
        found.append(out.getvalue())
    return found


def comparable(text: str) -> tuple[str, list[float]]:
    """The words, with one space between them, and the numbers apart; times are no part of either."""
    words = re.sub(r"in \d+\.\d+ s", "in # s", " ".join(text.split()))
    return NUMBER.sub("#", words), [float(number) for number in NUMBER.findall(words)]


def test_every_block_prints_what_the_tutorial_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shown = 0
    for printed, (kind, after) in zip(outputs(), [*blocks()[1:], ("", "")], strict=True):
        if printed is None:
            continue
        expected = after if kind == "text" else ""
        shown += bool(expected)
        words, numbers = comparable(printed)
        promised_words, promised = comparable(expected)
        assert words == promised_words
        assert numbers == pytest.approx(promised, rel=1e-3, abs=1e-6)  # errors of 1e-14 differ between processors
    assert shown >= 6


def rewrite() -> None:
    """Put the present outputs into the tutorial."""
    text = TUTORIAL.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        printed = [output for output in outputs() if output]
        os.chdir(before)
    fresh = iter(printed)
    TUTORIAL.write_text(
        re.sub(r"^```text\n(.*?)^```$", lambda match: f"```text\n{next(fresh)}```", text, flags=re.M | re.S), "utf-8"
    )


if __name__ == "__main__":
    rewrite()
