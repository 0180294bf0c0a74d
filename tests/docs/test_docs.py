"""The guides in docs/ keep their word: every block runs, in the order of the page, and prints what stands below it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from rop import cli
from tests.helpers.markdown import blocks, compare, links, run

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
INDEX = DOCS / "README.md"
# The first has a test of its own, the second needs a GPU, the third edits the package (tests/helpers/recipes.py).
APART = (DOCS / "tutorial-check.md", DOCS / "cuda.md", DOCS / "recipes.md")
RUNNABLE = [page for page in PAGES if "```python" in page.read_text("utf-8") and page not in APART]


def marked(page: Path) -> Any:
    """The pages with a benchmark and with the spectrum of a larger net take long."""
    slow = page.stem in ("benchmark-your-net", "torch-spectrum")
    return pytest.param(page, id=page.stem, marks=pytest.mark.thorough if slow else ())


@pytest.mark.parametrize("page", [marked(page) for page in RUNNABLE])
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # pages write files, and import them
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, object] = {"__name__": page.stem}
    printed = None
    for block in blocks(page.read_text("utf-8")):
        kind, content = block
        if block.file:
            Path(block.file).write_text(content, "utf-8")
        elif kind == "python":
            assert not printed, f"what it prints is not shown: {printed}"
            printed = run(content, page.name, scope)
        elif kind == "text":
            assert printed is not None, "a text block shows what the block before it prints"
            compare(printed, content, rel=0.02, absolute=0.01)  # trained in float32, on another processor
            printed = None
        elif kind == "sh":
            for line in content.splitlines():
                program, *arguments = shlex.split(line, comments=True)
                assert program == "rop"
                assert cli.main(arguments) == 0
    assert not printed, f"what it prints is not shown: {printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_exist(page: Path) -> None:
    for target in links(page):
        assert target.exists(), target


def test_the_index_knows_every_page() -> None:
    assert {target.name for target in links(INDEX)} == {page.name for page in PAGES if page != INDEX}
