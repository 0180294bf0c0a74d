"""A report as LaTeX: tables and claims that compile with the standard classes and amsmath, without other packages."""

from __future__ import annotations

import re

from rop.reproduce.render.report import LEGEND, Report
from rop.reproduce.tables import SOURCES, Table

__all__ = ["escaped", "latex"]

SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "‖": r"$\|$",
    "–": "--",
    "−": "$-$",
    "“": "``",
    "”": "''",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "°": r"$^\circ$",
    "√": r"$\surd$",
    "ᵀ": r"$^{T}$",
    "½": r"$\frac12$",
    "≈": r"$\approx$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "∇": r"$\nabla$",
    "…": r"\dots{}",
    "²": "$^2$",
    "₂": "$_2$",
    **{
        sign: f"$\\{name}$" for sign, name in {"μ": "mu", "ρ": "rho", "λ": "lambda", "α": "alpha", "δ": "delta"}.items()
    },
}
_SIGN = re.compile("|".join(map(re.escape, SIGNS)))
_NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")


def escaped(text: str) -> str:
    r"""Text with LaTeX's own characters and the signs of this package as commands; minus signs of numbers are signs.

    >>> print(escaped("rho_batch & μ = 5 %, -2.80"))
    rho\_batch \& $\mu$ = 5 \%, $-$2.80
    """
    return _NEGATIVE.sub("$-$", _SIGN.sub(lambda found: SIGNS[found[0]], text))


def latex(report: Report) -> str:
    """All tables and the claims, each a float of its own."""
    parts = [f"% {report.command}"]
    parts += [_table(table, report) for table in report.tables]
    if report.verdicts:
        parts.append(_claims(report))
    return "\n\n".join(parts) + "\n"


def _table(table: Table, report: Report) -> str:
    lines = [" & ".join(map(escaped, table.headings())) + r" \\ \hline"]
    for k, cells in enumerate(table.lines()):
        start = r"\hline " if k and cells[0] else ""
        lines.append(start + " & ".join(map(escaped, cells)) + r" \\")
    columns = "ll" + "r" * len(table.columns)
    notes = " ".join([*table.notes, LEGEND, *report.deviations])
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering\small",
            rf"\caption{{{escaped(table.title)}. {escaped(table.rule)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *lines,
            r"\end{tabular}",
            "",
            rf"\footnotesize {escaped(notes)} Command: \texttt{{{escaped(report.command)}}}",
            r"\end{table*}",
        ]
    )


def _claims(report: Report) -> str:
    variants = list(report.verdicts[0][1])
    lines = [" & ".join(["claim", *(escaped(SOURCES[variant]) for variant in variants)]) + r" \\ \hline"]
    for claim, found in report.verdicts:
        text = f"{claim.text} ({claim.where})"
        lines.append(" & ".join([escaped(text), *(escaped(found[variant].verdict) for variant in variants)]) + r" \\")
    columns = r"p{0.55\textwidth}" + r"p{0.18\textwidth}" * len(variants)
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering\small",
            rf"\caption{{Claims of the paper: {escaped(report.title)}}}",
            rf"\label{{tab:{report.name}-claims}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *lines,
            r"\end{tabular}",
            r"\end{table*}",
        ]
    )
