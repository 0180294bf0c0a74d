"""What training returns, and how it ends otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rop.errors import RopError

Row = dict[str, float]


class TrainingStopped(RopError):
    """A loss, ρ or parameter that is not finite, or a checkpoint that cannot be written; ``fit`` is the run up to the
    last good step."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.fit)  # it may have to come back from another process


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C; ``fit`` is the run so far, and its checkpoint, if it has one, is up to date."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.fit)  # it may have to come back from another process


@dataclass
class Fit:
    """A trained net.

    w, state: parameters and running statistics, the best on validation data if there were any, else the last.
    history: a dict for each epoch: epoch, loss, accuracy (of the steps' batches), rho, residual (their means over the
        steps), hvps, skipped (steps without the penalty because the eigenvector made no sense), seconds; with
        validation data valid_loss and valid_accuracy.
    memory: what the next step would need besides w and state: the optimizer's averages, the last eigenvector.
    epochs, steps: done so far, those of the fit it started from included.
    collapsed: whether w_last predicts one class for all training samples, wrongly for some, with ‖∇f‖ < 1e-4, so that
        training would not bring it back. Looked at when a run ends; None in a fit that callbacks or exceptions hold.
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
