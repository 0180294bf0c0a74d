"""The results in docs/reproduction are those of the records beside them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from rop import cli
from tests.helpers.markdown import links

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "reproduction"
PAGES = sorted(FOLDER.glob("*.md"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records, where rendering may write."""
    folder = tmp_path_factory.mktemp("reproduction")
    for records in FOLDER.glob("*/records"):
        shutil.copytree(records, folder / records.relative_to(FOLDER))
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_its_command_renders(page: Path, copy: Path) -> None:
    text = page.read_text("utf-8")
    (command,) = set(re.findall(r"^Command: `(rop reproduce .+)`$", text, re.M))
    arguments = [*shlex.split(command)[1:], "--render-only", "--out", str(copy)]
    assert cli.main(arguments) == 0
    assert (copy / page.name).read_text("utf-8") == text, f"rop {' '.join(arguments[:-1])} {FOLDER} writes it anew"
    assert (copy / page.name).with_suffix(".tex").read_text("utf-8") == page.with_suffix(".tex").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_of_the_reproduction_links_to_it(page: Path) -> None:
    assert page in {target.resolve() for target in links(DOCS / "reproduction.md")}
    for target in links(page):
        assert target.exists(), target
