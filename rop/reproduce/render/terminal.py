"""A report on the terminal: tables by rich where it is installed, as Markdown else."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from rop.reproduce.render.markdown import footer, table_text
from rop.reproduce.render.report import LEGEND, Report
from rop.reproduce.tables import SOURCES, Table

__all__ = ["show"]

WIDEST = 200  # columns of a table that is not shown on a terminal, say in a file


def show(report: Report) -> None:
    """Prints tables, verdicts and where the numbers come from."""
    for table in report.tables:
        print(f"\n{table.title}\n{table.rule}\n{LEGEND}")
        if find_spec("rich"):
            _rich(table)
        else:
            print(table_text(table))
        print(*table.notes, *footer(report), sep="\n")
    if report.verdicts:
        print("\nClaims of the paper")
        for claim, found in report.verdicts:
            print(f"- {claim.text} ({claim.where})")
            for variant, verdict in found.items():
                numbers = verdict.brief or verdict.numbers
                print(f"    {SOURCES[variant]}: {verdict.verdict}" + f"; {numbers}" * bool(numbers))
    print("", *report.facts, sep="\n")


def _rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn: Any = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for k, heading in enumerate(table.headings()):
        drawn.add_column(heading, justify="left" if k < 2 else "right")
    for cells in table.lines():
        drawn.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else WIDEST, markup=False, highlight=False).print(drawn)
