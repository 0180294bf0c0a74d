"""The result of training, and the exceptions with which it ends early."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rop.errors import RopError

Row = dict[str, float]


class _EndedEarly(BaseException):
    """An exception that carries the run so far, also to another process."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit

    def __reduce__(self) -> tuple[type[_EndedEarly], tuple[str, Fit]]:
        return type(self), (str(self), self.fit)


class TrainingStopped(_EndedEarly, RopError):
    """A loss, ρ or parameter that is not finite, or a checkpoint that cannot be written; ``fit`` is the run up to the
    last good step."""


class TrainingInterrupted(_EndedEarly, KeyboardInterrupt):
    """Ctrl-C; ``fit`` is the run so far, and its checkpoint, if it has one, is up to date."""


@dataclass
class Fit:
    """A trained net.

    w, state: parameters and running statistics, the best on validation data if there were any, else the last.
    history: a dict for each epoch: epoch, loss, accuracy (of the steps' batches), rho, residual (their means over the
        steps), hvps, skipped (steps without the penalty because the eigenvector was too inaccurate), seconds; with
        validation data valid_loss and valid_accuracy.
    memory: the arrays that the next step would need besides w and state: the optimizer's averages, the last
        eigenvector.
    epochs, steps: their numbers so far, including those of the fit it started from.
    collapsed: whether w_last predicts one class for all training samples, wrongly for some, with ‖∇f‖ < 1e-4, so that
        training would not bring it back. It is determined when a run ends, and is None in the fits of callbacks and
        exceptions.
    """

    w: np.ndarray
    state: dict[str, np.ndarray]
    history: list[Row]
    w_last: np.ndarray
    state_last: dict[str, np.ndarray]
    best_epoch: int
    profile: dict[str, float] = field(default_factory=dict)
    memory: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    epochs: int = 0
    steps: int = 0
    collapsed: bool | None = None

    def column(self, name: str) -> np.ndarray:
        """One number of every epoch's row."""
        return np.array([row[name] for row in self.history])
