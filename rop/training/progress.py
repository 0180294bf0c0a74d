"""The progress bar of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from rop.errors import missing_package
from rop.training.report import means

if TYPE_CHECKING:
    from rich.progress import Progress


class Quiet:
    """Shows nothing."""

    def steps(self, epoch: int, step: int, total: int, reports: np.ndarray) -> None: ...

    def epoch(self, row: dict[str, float]) -> None: ...


class Bar(Quiet):
    """A bar over all steps, with the numbers of the last epoch that is complete."""

    def __init__(self, progress: Progress, epochs: int, per_epoch: int):
        self._progress, self._per_epoch, self._numbers = progress, per_epoch, ""
        self._task = progress.add_task("", total=epochs * per_epoch, epoch=f"0/{epochs}", numbers="")
        self._epochs = epochs

    def steps(self, epoch: int, step: int, total: int, reports: np.ndarray) -> None:
        numbers = self._numbers
        if not numbers and len(reports):
            mean = means(reports)
            numbers = f"loss {mean['loss']:.4f}" + (f"  ρ {mean['rho']:.3g}" if mean["rho"] else "")
        self._progress.update(
            self._task, completed=(epoch - 1) * self._per_epoch + step, epoch=f"{epoch}/{self._epochs}", numbers=numbers
        )

    def epoch(self, row: dict[str, float]) -> None:
        self._numbers = summary(row)
        self._progress.update(
            self._task,
            completed=row["epoch"] * self._per_epoch,
            numbers=self._numbers,
            epoch=f"{int(row['epoch'])}/{self._epochs}",
        )


def summary(row: dict[str, float]) -> str:
    """The numbers of an epoch in a few words."""
    parts = [f"loss {row['loss']:.4f}"]
    accuracy = row.get("valid_accuracy", row["accuracy"])
    if np.isfinite(accuracy):
        parts.append(f"{'valid' if 'valid_accuracy' in row else 'acc'} {100 * accuracy:.2f} %")
    if "rho" in row:
        parts.append(f"ρ {row['rho']:.3g}")
    return "  ".join(parts)


@contextmanager
def shown(epochs: int, per_epoch: int) -> Iterator[Bar]:
    """A progress bar on standard error, so that results can be piped."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError as error:
        raise missing_package("train: progress=True", "rich", "train", error) from error
    columns = [
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        yield Bar(progress, epochs, per_epoch)
