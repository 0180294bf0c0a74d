"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rop.reproduce.render.report import LEGEND, Report
from rop.reproduce.tables import SOURCES, Table

__all__ = ["markdown"]


def markdown(report: Report) -> str:
    """The whole report; plots are named as ``rop reproduce`` writes them, beside the Markdown file."""
    parts = [f"# {report.title}"]
    for table in report.tables:
        parts += [f"## {table.title}", table.rule, LEGEND, table_text(table), *table.notes, *footer(report)]
    for plot in report.plots:
        parts.append(f"![{plot.caption}]({report.name}-{plot.name}.png)\n\n{plot.caption}")
    if report.verdicts:
        parts += ["## Claims of the paper", claims_text(report)]
    parts += ["## Where the numbers come from", "\n".join(f"- {fact}" for fact in report.facts)]
    return "\n\n".join(parts) + "\n"


def footer(report: Report) -> list[str]:
    """What stands below every table."""
    listed = "\n".join(f"- {text}" for text in report.deviations)
    return [f"Deviations from the paper:\n\n{listed}", f"Command: `{report.command}`"]


def table_text(table: Table) -> str:
    """The table alone."""
    return grid(table.headings(), table.lines(), len(table.columns))


def claims_text(report: Report) -> str:
    """A row for each claim, with a verdict and its numbers for each variant."""
    variants = list(report.verdicts[0][1])
    headings = ["claim", "where", "test", *(SOURCES[variant] for variant in variants)]
    rows = []
    for claim, found in report.verdicts:
        verdicts = [f"**{found[v].verdict}**" + f": {found[v].numbers}" * bool(found[v].numbers) for v in variants]
        rows.append([claim.text, claim.where, claim.test, *verdicts])
    return grid(headings, rows, 0)


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], right: int) -> str:
    """Cells as a table, the last ``right`` columns right-aligned.

    >>> print(grid(["a", "b"], [["x|y", "1"]], 1))
    | a | b |
    |---|---:|
    | x\\|y | 1 |
    """
    ruler = "|" + "|".join(["---"] * (len(headings) - right) + ["---:"] * right) + "|"
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (headings, *rows)]
    return "\n".join([lines[0], ruler, *lines[1:]])
