"""The README keeps its word: its example prints what it shows, and its set-up commands are where they are promised."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.helpers.markdown import blocks, compare, links, run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = [(block.kind, block.content) for block in blocks(README)]


def test_example_prints_what_the_readme_shows():
    (_, code), (kind, shown) = next(
        (block, after) for block, after in itertools.pairwise(BLOCKS) if block[0] == "python"
    )
    assert kind == "text", "the output follows its example in a text block"
    printed = run(code, "README.md", {"__name__": "readme"})
    compare(printed, shown, rel=2e-3, absolute=2e-4)  # float32 on another processor


def test_every_example_runs():
    """One after the other, as a reader would type them."""
    scope: dict[str, object] = {"__name__": "readme"}
    for kind, code in BLOCKS:
        if kind == "python":
            run(code, "README.md", scope)
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
    for target in links(ROOT / "README.md"):
        assert target.exists(), target
