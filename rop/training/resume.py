"""The position of a run, how it is saved in a checkpoint, and how it is restored.

rop/training/checkpoint.py writes and reads files; this file defines their content for a run. Nothing that is read from
a checkpoint is used before it has been checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rop.errors import ArgumentError, say
from rop.optim import Adam, completed
from rop.optim.plain import innermost
from rop.training import checkpoint as files
from rop.training.arguments import Task, comparable
from rop.training.fingerprint import described, digest, machine
from rop.training.fit import Row
from rop.training.report import TIMES, Report, blank, is_finite
from rop.training.steps import Steps


@dataclass
class Standing:
    """How far a run has come.

    epoch, step: the current epoch, counted from 1, and the steps that are done of it.
    history: a row for each epoch that is done.
    best, best_epoch: parameters and running statistics of the best epoch so far, and which one it is.
    reports: those of the current epoch, (steps, columns).
    seconds: spent in the current epoch.
    profiled: nanoseconds of the parts of all steps of earlier epochs, as in report.TIMES.
    """

    epoch: int
    best: dict[str, np.ndarray]
    step: int = 0
    best_epoch: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)
    reports: np.ndarray = field(default_factory=lambda: blank(0))
    profiled: np.ndarray = field(default_factory=lambda: np.zeros(len(TIMES)))


def fingerprint(task: Task) -> dict[str, Any]:
    """What must be equal for a checkpoint to be continued; the number of epochs may change."""
    earlier = task.earlier
    past = (0, 0, None) if earlier is None else (earlier.epochs, earlier.steps, earlier.memory)
    return {
        "net": digest(task.net),
        "loss": digest(task.loss),
        "optimizer": described(task.optimizer),
        "regularizer": described(task.regularizer),
        "batch_size": task.batch_size,
        "seed": task.seed,
        "dtype": task.dtype.name,
        "data": digest(task.x, comparable(task.y)),
        "validation": None if task.validation is None else digest(*map(comparable, task.validation)),
        "start": digest(task.w, task.state, *past),
    }


class Keeper:
    """Writes and restores the checkpoint of a run.

    Args:
        path: the file.
        task: the arguments of the run.
        steps: its steps, whose arrays are saved.
        past_epochs: epochs of the fit that the run started from.
    """

    def __init__(self, path: Path, task: Task, steps: Steps, past_epochs: int):
        self.path, self._task, self._steps, self._past = path, task, steps, past_epochs
        self._fingerprint, self._machine = fingerprint(task), machine(task.device)

    def save(self, now: Standing) -> None:
        """Writes everything that the run needs to continue from here."""
        meta = {
            "epoch": now.epoch,
            "step": now.step,
            "best_epoch": now.best_epoch,
            "history": now.history,
            "seconds": now.seconds,
            "settings": self._fingerprint,
            "machine": self._machine,
        }
        files.save(self.path, meta, self._arrays(now))

    def _arrays(self, now: Standing) -> dict[str, np.ndarray]:
        best = {f"best/{name}": array for name, array in now.best.items()}
        return {**self._steps.arrays, **best, "reports": now.reports, "profiled": now.profiled}

    def restore(self, now: Standing) -> None:
        """Continues from the checkpoint."""
        meta, arrays = files.load(self.path, partial(self._expected, now))
        for name, array in arrays.items():
            self._check_values(name, array)
        if meta.get("machine") != self._machine:
            say(
                f"{self.path} was made on another kind of machine ({_differences(meta.get('machine'), self._machine)}):"
                " the run goes on, but its last bits will differ from those of a run on one machine"
            )
        now.epoch, now.step, now.best_epoch = meta["epoch"], meta["step"], meta["best_epoch"]
        now.history, now.seconds = meta["history"], float(meta["seconds"])
        self._steps.restore(arrays)
        now.best = {name: arrays[f"best/{name}"] for name in now.best}
        now.reports, now.profiled = arrays["reports"], arrays["profiled"]

    # ----------------------------------------------------------------------------------- what a checkpoint must contain
    def _expected(self, now: Standing, meta: dict[str, Any]) -> files.Forms:
        """The arrays that a checkpoint of this run has at the position in ``meta``, which must be one of this run."""
        saved, expected = meta.get("settings"), json.loads(json.dumps(self._fingerprint))
        saved = saved if isinstance(saved, dict) else {}
        different = [name for name, value in expected.items() if name not in saved or completed(saved[name]) != value]
        if different:
            raise ArgumentError(
                f"{self.path}: expected a checkpoint of this run, got one of a run with other settings: "
                f"{', '.join(different)}; it was left as it is"
            )
        values, past = files.Values(self.path, meta), self._past
        rows = values.rows("history", self._columns())
        for i, row in enumerate(rows):
            files.Values(self.path, row).whole("epoch", *(past + 1 + i,) * 2)
        values.whole("epoch", *(past + len(rows) + 1,) * 2)
        step = values.whole("step", 0, self._task.per_epoch)
        values.whole("best_epoch", *((past + 1, past + len(rows)) if rows else (0, 0)))
        values.seconds("seconds")
        forms = {name: (array.shape, array.dtype) for name, array in self._arrays(now).items()}
        return {**forms, "reports": ((step, len(Report)), np.float64)}

    def _columns(self) -> set[str]:
        """The columns of every row of the history."""
        penalty = {"rho", "residual", "hvps", "skipped"} if self._task.regularizer is not None else set()
        checked = {"valid_loss", "valid_accuracy"} if self._task.validation is not None else set()
        return {"epoch", "loss", "accuracy", "seconds"} | penalty | checked

    def _check_values(self, name: str, array: np.ndarray) -> None:
        """Refuses numbers that a run never saves."""
        part = name.removeprefix("best/")
        if part == "kfac/batch":  # rows of the data
            good = bool(((array >= -1) & (array < self._task.samples)).all())
        elif part == "w" or part.startswith("state/"):
            good = bool(np.isfinite(array).all()) and not (part.endswith("running_var") and (array < 0).any())
        elif part == "reports":
            good = bool(is_finite(array).all())
        else:
            good = not (part == "squares" and isinstance(innermost(self._task.optimizer), Adam) and (array < 0).any())
        if not good:
            raise ArgumentError(
                f"{self.path}: expected numbers that training can have led to for {name!r}, got others, "
                "such as NaN; it was left as it is"
            )


def _differences(before: Any, now: Mapping[str, Any]) -> str:
    """The differences between two machines, in a few words."""
    before = before if isinstance(before, dict) else {}
    return ", ".join(
        f"{name} {before.get(name, 'unknown')}, now {value}" for name, value in now.items() if before.get(name) != value
    )
