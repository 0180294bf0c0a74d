"""The plots of a report as PNG files."""

from __future__ import annotations

from pathlib import Path

from rop.experiments.runs import pyplot
from rop.reproduce.render.report import Report
from rop.training.checkpoint import write_atomically

__all__ = ["draw"]


def draw(report: Report, folder: Path) -> list[Path] | None:
    """Writes NAME-PLOT.png for each plot; None where matplotlib is not installed."""
    plt = pyplot()
    if plt is None:
        return None
    paths = []
    for plot in report.plots:
        figure, axes = plt.subplots(figsize=plot.size, layout="constrained")
        try:
            plot.draw(axes)
            path = folder / f"{report.name}-{plot.name}.png"
            write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))  # noqa: B023
        finally:
            plt.close(figure)
        paths.append(path)
    return paths
