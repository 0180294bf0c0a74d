"""Code blocks of Markdown pages, run as a reader would."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    kind: str  # "python", "text", "sh"
    content: str

    @property
    def file(self) -> str | None:
        """The file that it shows, if its first line is a comment with a name."""
        named = re.match(r"# (\w+\.py)\n", self.content)
        return named[1] if named else None


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(text)]


def run(code: str, page: str, scope: dict[str, object]) -> str:
    """What the code prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), scope)
    return out.getvalue()


def compare(printed: str, shown: str, rel: float, absolute: float) -> None:
    """Word by word, with some room for numbers that are not whole."""
    assert " ".join(NUMBER.sub("#", printed).split()) == " ".join(NUMBER.sub("#", shown).split())
    numbers, promised = ([float(n) for n in NUMBER.findall(text)] for text in (printed, shown))
    assert numbers == pytest.approx(promised, rel=rel, abs=absolute)


def links(page: Path) -> list[Path]:
    """Files that the page refers to."""
    return [page.parent / target for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))]
