"""Tables and plots as data: what stands where, and no word on how it is drawn. ``rop/reproduce/render`` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rop.reproduce.records import Records
from rop.reproduce.statistics import Summary, summary

__all__ = ["Cell", "Column", "Plot", "Row", "Table", "table_of"]

SOURCES = {"published": "ours, as published", "corrected": "ours, corrected", "plain": "ours, plain net"}
NOT_RUN, NO_FIGURE = "not run", "–"


@dataclass(frozen=True)
class Column:
    """A figure of the records and how it is written: multiplied by ``scale``, with so many digits."""

    figure: str
    heading: str
    digits: int = 2
    scale: float = 1.0

    def shown(self, found: Summary | None) -> str:
        """median [smallest, largest] (interval of the median); the range and the interval only where there is one.

        >>> Column("accuracy", "accuracy, %", 1, 100).shown(summary([0.7, 0.72, 0.71]))
        '71.0 [70.0, 72.0] (70.0, 72.0)'
        """
        if found is None:
            return NOT_RUN
        text = self.number(found.median)
        if found.count > 1:
            text += f" [{self.number(found.low)}, {self.number(found.high)}]"
        if not math.isnan(found.interval[0]):
            text += " ({}, {})".format(*map(self.number, found.interval))
        return text

    def number(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"


@dataclass(frozen=True)
class Cell:
    """The paper's figure as it prints it, or None where it prints none, and ours by variant."""

    paper: str | None
    ours: Mapping[str, Summary | None]


@dataclass(frozen=True)
class Row:
    """A model, and a cell for each column by its figure."""

    label: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name: a part of file names and labels.
        title: what it shows.
        rule: how models were selected; it stands above the table.
        heading: of the first column.
        columns, rows: the content.
        variants: those that are shown, a line of each row for each, below the paper's.
        notes: sentences below it, besides the deviations of the experiment.
    """

    name: str
    title: str
    rule: str
    heading: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    variants: Sequence[str]
    notes: Sequence[str] = field(default_factory=tuple)

    def lines(self) -> list[list[str]]:
        """All cells as text, line by line: the model (in the first of its lines), the source, and the figures."""
        found = []
        for row in self.rows:
            cells = [row.cells[column.figure] for column in self.columns]
            lines = []
            if any(cell.paper is not None for cell in cells):
                lines.append(["paper", *(cell.paper or NO_FIGURE for cell in cells)])
            for variant in self.variants:
                shown = [column.shown(cell.ours.get(variant)) for column, cell in zip(self.columns, cells, strict=True)]
                lines.append([SOURCES[variant], *shown])
            found += [[row.label if k == 0 else "", *line] for k, line in enumerate(lines)]
        return found

    def headings(self) -> list[str]:
        return [self.heading, "source", *(column.heading for column in self.columns)]


@dataclass(frozen=True)
class Plot:
    """A figure: ``draw(axes)`` draws it with matplotlib; ``caption`` says what it shows."""

    name: str
    caption: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (6.0, 4.0)


def table_of(
    records: Records,
    *,
    name: str,
    title: str,
    rule: str,
    heading: str,
    columns: Sequence[Column],
    paper: Mapping[str, Mapping[str, str]],
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """A table whose rows are models: ``paper`` has a row for each, with the printed figures by the figure's name."""

    def cell(model: str, figure: str) -> Cell:
        ours = {
            variant: summary(records.where(model=model, variant=variant).values(figure).values())
            for variant in variants
        }
        return Cell(paper[model].get(figure), ours)

    rows = [
        Row((labels or {}).get(model, model), {c.figure: cell(model, c.figure) for c in columns}) for model in paper
    ]
    return Table(name, title, rule, heading, columns, rows, variants, notes)
