"""Training: runs, the steps they consist of, and how to write an optimizer or a penalty of your own.

train, evaluate, Fit                  a run, its result, and how good a net is
TrainingStopped, TrainingInterrupted  the exceptions with which a run ends early
Optimizer, Penalty, Step, Epoch       the protocols of methods, and their arguments; see rop/optim/method.py
Steps, steps_for, Report              the protocol of steps; see rop/training/steps.py
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    from rop.optim.method import Epoch, Memory, Optimizer, Penalty, Problem, Step
    from rop.training.evaluation import evaluate, has_collapsed
    from rop.training.fit import Fit, TrainingInterrupted, TrainingStopped
    from rop.training.report import COLUMNS, Report
    from rop.training.run import train
    from rop.training.steps import Steps, steps_for

__all__ = [
    "train",
    "evaluate",
    "has_collapsed",
    "Fit",
    "TrainingStopped",
    "TrainingInterrupted",
    "Optimizer",
    "Penalty",
    "Step",
    "Epoch",
    "Problem",
    "Memory",
    "Steps",
    "steps_for",
    "Report",
    "COLUMNS",
]

# Loaded when first asked for, as in rop/__init__.py.
_ON_FIRST_USE = {
    **dict.fromkeys(("Optimizer", "Penalty", "Step", "Epoch", "Problem", "Memory"), "rop.optim.method"),
    **dict.fromkeys(("evaluate", "has_collapsed"), "rop.training.evaluation"),
    **dict.fromkeys(("Fit", "TrainingStopped", "TrainingInterrupted"), "rop.training.fit"),
    **dict.fromkeys(("COLUMNS", "Report"), "rop.training.report"),
    "train": "rop.training.run",
    **dict.fromkeys(("Steps", "steps_for"), "rop.training.steps"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'rop.training' has no attribute {name!r}")
    value = getattr(import_module(_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
