"""The worked examples of docs/recipes.md, as edits of a copy of the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.helpers.markdown import blocks
from tests.helpers.processes import ROOT

PAGE = ROOT / "docs" / "recipes.md"
HEAD = re.compile(r"# ([\w/]+\.py), (a new file|at the end)\n")


class Place(NamedTuple):
    """One place that a recipe edits: a new file, or text at the end of one that exists."""

    file: str
    is_new: bool
    text: str

    def edit(self, folder: Path) -> None:
        """Makes the edit in a copy of the package."""
        file = folder / self.file
        assert file.exists() != self.is_new, (
            f"{self.file}: the recipe says {'a new file' if self.is_new else 'at the end'}"
        )
        with open(file, "a", encoding="utf-8") as end:
            end.write(self.text if self.is_new else f"\n\n{self.text}")


def recipe(title: str) -> list[Place]:
    """The places of the recipe whose title starts like this."""
    (section,) = (part for part in PAGE.read_text("utf-8").split("\n## ") if part.startswith(f"{title}:"))
    places = []
    for block in blocks(section):
        head = HEAD.match(block.content)
        assert block.kind == "python" and head, f"{title}: a block that does not say which file it edits"
        places.append(Place(head[1], head[2] == "a new file", block.content[head.end() :]))
    return places
