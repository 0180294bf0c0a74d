"""The README keeps its word: its example prints what it shows, and its set-up commands are where they are promised."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def test_example_prints_what_the_readme_shows():
    (_, code), (kind, shown) = next(
        (block, after) for block, after in itertools.pairwise(BLOCKS) if block[0] == "python"
    )
    assert kind == "text", "the output follows its example in a text block"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert NUMBER.sub("#", out.getvalue()) == NUMBER.sub("#", shown)
    numbers, promised = ([float(n) for n in NUMBER.findall(text)] for text in (out.getvalue(), shown))
    assert numbers == pytest.approx(promised, rel=2e-3, abs=2e-4)  # float32 on another processor


def test_every_example_runs():
    """One after the other, as a reader would type them."""
    scope: dict[str, object] = {"__name__": "readme"}
    with contextlib.redirect_stdout(io.StringIO()):
        for kind, code in BLOCKS:
            if kind == "python":
                exec(compile(code, "README.md", "exec"), scope)
    assert {"net", "fit"} <= set(scope)


def test_set_up_commands():
    """The first two lines that start with `pip install`, each one alone in its code block."""
    first, second = [line for line in README.splitlines() if line.startswith("pip install")][:2]
    contents = [content for _, content in BLOCKS]
    assert first + "\n" in contents and second + "\n" in contents
    assert first.endswith("&& rop demo")
    assert "pytest" in second
    assert README.index("```python") < README.index(first), "the example comes first"


def test_readme_links_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
