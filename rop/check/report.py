"""The result of a check: rows, a verdict, and tables for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rop.check.derivatives import Derivative
from rop.check.examine import SLOPES, TOLERANCES, Row
from rop.errors import RopError

Paint = Callable[[str, str], str]  # (text, colour's name) -> text
COLUMNS = ("", "dtype", "direction", "order", "vs torch", "differences", "slope", "identities", "")
LEGEND = """vs torch      against autograd's triple backward in float64, relative to the norm of the result
differences   order k against extrapolated central differences of order k − 1, relative
slope         of the error of central differences as the step is halved: 2 if right, 0 if wrong; exact: rounding only
identities    E¹ = ⟨∇f, v⟩, E² = vᵀHv, ⟨u, Hv⟩ = ⟨v, Hu⟩, D³f[u, v, v] both ways, Rᵏ(cv) = cᵏRᵏ(v): largest violation
—             nothing to compare with"""
AT_ODDS = "at odds       right by itself, but an identity that links it to another row fails: look for what is WRONG"


class CheckFailed(RopError, AssertionError):
    """A derivative is wrong."""


@dataclass(frozen=True)
class Result:
    """The result of a check.

    ``derivatives`` are those of scalar functions (f′, f″, f‴ of an activation of your own), ``rows`` the results of the
    engine. ``print(result)`` shows both as tables.
    """

    title: str
    rows: tuple[Row, ...] = ()
    derivatives: tuple[Derivative, ...] = ()
    torch: str | None = None  # version of the reference, None if it is not installed

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def wrong(self) -> tuple[Row | Derivative, ...]:
        """What is wrong, in the order in which to examine it."""
        everything: list[Row | Derivative] = [*self.derivatives, *self.rows]
        found = [one for one in everything if not one.ok]
        return tuple(sorted(found, key=lambda one: isinstance(one, Row) and one.verdict == "at odds"))

    def raise_if_wrong(self) -> None:
        """For tests: raises CheckFailed, an AssertionError, with the tables as its text."""
        if not self.ok:
            raise CheckFailed(f"{self}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is infinite or missing becomes None."""
        derivatives = [{**dataclasses.asdict(d), "error": d.error, "ok": d.ok} for d in self.derivatives]
        rows = [{**dataclasses.asdict(row), "ok": row.ok, "verdict": row.verdict} for row in self.rows]
        return {
            "title": self.title,
            "ok": self.ok,
            "torch": self.torch,
            "derivatives": _finite(derivatives),
            "rows": _finite(rows),
        }

    def verdict(self) -> str:
        """One line: whether all is right, and otherwise what to examine first."""
        if self.ok:
            return f"{self.title}: all right"
        first = self.wrong[0]
        if isinstance(first, Derivative):
            return f"{self.title}: {_sentence(first)}"
        return (
            f"{self.title}: {len(self.wrong)} of {len(self.rows)} rows are wrong, the first is {first.subject} "
            f"{first.dtype}, {first.direction}, order {first.order}"
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, paint: Paint = lambda text, colour: text) -> str:
        """The tables; ``paint`` colours words."""
        parts = []
        if self.derivatives:
            parts.append(_derivative_table(self.derivatives, paint))
        if self.rows:
            parts.append(_row_table(self.rows, paint))
            parts.append(paint(_legend(self.rows), "dim"))
        if self.rows and self.torch is None:
            parts.append("torch is not installed: nothing was compared with it (pip install 'rop[torch]')")
        parts.append(paint(self.verdict(), "green" if self.ok else "red"))
        return "\n\n".join(parts)


def worst(rows: Iterable[Row]) -> list[Row]:
    """One row for every direction, order and precision of a subject that was examined in several settings."""
    found: dict[tuple[str, str, str, int], Row] = {}
    for row in rows:
        key = row.subject, row.dtype, row.direction, row.order
        found[key] = _worse(found[key], row) if key in found else row
    return list(found.values())


def _worse(a: Row, b: Row) -> Row:
    """The larger of both errors, the slope that is further from 2, and all that is wrong in either."""
    slopes = [row.slope for row in (a, b) if row.slope is not None]
    return dataclasses.replace(
        a,
        error=_larger(a.error, b.error),
        difference=_larger(a.difference, b.difference),
        identity=_larger(a.identity, b.identity),
        slope=max(slopes, key=lambda slope: abs(slope - 2), default=None),
        wrong=tuple(dict.fromkeys((*a.wrong, *b.wrong))),
    )


def _larger(a: float | None, b: float | None) -> float | None:
    return max((value for value in (a, b) if value is not None), default=None)


# -------------------------------------------------------------------------------------------------------------- tables
def _row_table(rows: Sequence[Row], paint: Paint) -> str:
    cells = []
    for i, row in enumerate(rows):
        before = rows[i - 1] if i else None
        same = [before is not None and row.subject == before.subject]
        same.append(same[-1] and before is not None and row.dtype == before.dtype)
        same.append(same[-1] and before is not None and row.direction == before.direction)
        names = [
            "" if repeated else name
            for name, repeated in zip((row.subject, row.dtype, row.direction), same, strict=True)
        ]
        slope = _slope(row)
        numbers = [_number(row.error), _number(row.difference), slope, _number(row.identity)]
        marks = [name in row.wrong for name in ("error", "difference", "slope", "identity")]
        cells.append(([*names, str(row.order), *numbers, row.verdict], [False] * 4 + marks + [not row.ok]))
    return _table(COLUMNS, cells, paint, left=(0, 1, 2, 8))


def _slope(row: Row) -> str:
    if row.difference is None:
        return "—"
    if row.slope is None:
        return "exact" if row.ok else "—"
    return f"{round(row.slope, 2) + 0.0:.2f}"  # + 0.0: no minus before a zero


def _derivative_table(found: Sequence[Derivative], paint: Paint) -> str:
    names = list(dict.fromkeys(d.function for d in found))
    one = len(names) == 1
    head = (names[0] if one else "", "compared with", "worst at x", "given", "expected", "off by", "wrong at", "")
    cells = []
    for d in found:
        verdict = "ok" if d.ok else "WRONG" + (f": {d.hint}" if d.hint else "")
        where = ["—"] * 3 if d.ok else [f"{d.x:.4f}", f"{d.given:.8g}", f"{d.expected:.8g}"]
        numbers = [*where, _number(d.error), f"{d.wrong} of {d.points}"]
        name = d.name if one else f"{d.function} {d.name}"
        cells.append(([name, d.compared_with, *numbers, verdict], [False] * 2 + [not d.ok] * 6))
    return _table(head, cells, paint, left=(0, 1, 7))


Cells = Sequence[tuple[list[str], list[bool]]]  # the texts of a row, and which of them are marked as wrong


def _table(head: Sequence[str], cells: Cells, paint: Paint, left: Sequence[int]) -> str:
    """Aligned text; columns in ``left`` are words, the rest numbers."""
    widths = [max(len(text) for text in column) for column in zip(head, *(row for row, _ in cells), strict=True)]

    def line(row: Sequence[str], colours: Sequence[str]) -> str:
        padded = [
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(
            paint(text, colour) if colour else text for text, colour in zip(padded, colours, strict=True)
        ).rstrip()

    lines = [line(head, ["bold"] * len(head))]
    for row, marks in cells:
        colours = ["red" if mark else "" for mark in marks]
        colours[-1] = "red" if marks[-1] else "green"
        lines.append(line(row, colours))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.1e}" if value else "0"


def _legend(rows: Sequence[Row]) -> str:
    odds = [AT_ODDS] if any(row.verdict == "at odds" for row in rows) else []
    return "\n".join([LEGEND, *odds, _allowed(rows)])


def _allowed(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(row.dtype for row in rows)
    allowed = {name: tolerances for name, tolerances in TOLERANCES.items() if name in names}
    parts = [f"{name}: {t.error:g}, {t.difference:g}, {t.identity:g}" for name, t in allowed.items()]
    return f"allowed       {'; '.join(parts)} (vs torch, differences, identities); slope {SLOPES[0]} to {SLOPES[1]}"


def _sentence(d: Derivative) -> str:
    """What is wrong with a derivative, where, and by how much."""
    hint = f"; it is {d.hint}" if d.hint else ""
    return (
        f"{d.name} is wrong: at x = {d.x:.4f} it gives {d.given:.8g}, {d.compared_with} say {d.expected:.8g} "
        f"(± {d.uncertainty:.0e}){hint}"
    )


def _finite(value: Any) -> Any:
    """JSON knows neither infinity nor NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
