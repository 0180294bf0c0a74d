"""What keeps a module from becoming a net: each problem with its place, its source line and its remedy, all at once."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import NoReturn

import torch

from rop.errors import ArgumentError

FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # code that is not the user's
PLACES_SHOWN = 3

Source = tuple[str, int]  # a file and the number of a line in it


@dataclass(frozen=True)
class Problem:
    """One thing that rop cannot take over from a module."""

    place: str  # the path of a module or tensor, "" for the module itself
    what: str  # the class of the module, or the operation in its forward
    source: Source | None  # where forward calls it
    message: str  # what is wrong, and the remedy

    def text(self, places: Sequence[str]) -> str:
        """The problem as messages show it, for all places that have it."""
        shown = ", ".join(places[:PLACES_SHOWN]) + (
            f" and {more} more" if (more := len(places) - PLACES_SHOWN) > 0 else ""
        )
        inside = "; ".join(filter(None, (self.what, source_text(self.source))))
        where = " ".join(filter(None, (shown, f"({inside})" if inside else "")))
        return f"{where}: {self.message}" if where else self.message


def refuse(name: str, problems: Sequence[Problem]) -> NoReturn:
    """Raise one error that lists all problems of the module; the same one in several places is one entry."""
    places: dict[tuple[str, Source | None, str], list[str]] = {}
    kinds: dict[tuple[str, Source | None, str], Problem] = {}
    for problem in problems:
        key = problem.what, problem.source, problem.message
        kinds.setdefault(key, problem)
        known = places.setdefault(key, [])
        if problem.place not in known:
            known.append(problem.place)
    lines = [kinds[key].text([place for place in places[key] if place]) for key in kinds]
    if len(lines) == 1:
        raise ArgumentError(f"from_torch: {lines[0]}")
    listed = "".join(f"\n{number}. {line}" for number, line in enumerate(lines, 1))
    raise ArgumentError(f"from_torch: {name} has {len(lines)} problems:{listed}")


def caller(frame: FrameType | None, outermost: CodeType) -> Source | None:
    """The innermost line of the user's code at which a frame and its callers stand, up to the function ``outermost``;
    None if there is only torch's and rop's in between."""
    while frame is not None and frame.f_code is not outermost:
        if _is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def raised_at(error: BaseException, outermost: CodeType) -> Source | None:
    """The innermost line of the user's code in an error's traceback, inside the function ``outermost``."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is not outermost]
    found = [(frame.f_code.co_filename, line) for frame, line in frames if _is_users(frame.f_code.co_filename)]
    return found[-1] if found else None


def source_text(source: Source | None) -> str:
    """A line of source as messages show it: "net.py:12, return x.exp()".

    >>> source_text(("<stdin>", 3)), source_text(None)
    ('<stdin>:3', '')
    """
    if source is None:
        return ""
    file, number = source
    code = linecache.getline(file, number).strip()
    short = code if len(code) <= 80 else f"{code[:79]}…"
    return ", ".join(filter(None, (f"{Path(file).name}:{number}", short)))


def _is_users(file: str) -> bool:
    return not file.startswith(FOREIGN)
