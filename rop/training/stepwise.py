"""Training steps one by one in Python, with any optimizer and any penalty, on any device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels.rules import Given, Report
from rop.objective import Objective
from rop.optim import Epoch, Memory, Problem, Step
from rop.training.averages import RunningAverages
from rop.training.report import is_finite
from rop.training.steps import OneByOne

RESERVED = ("w", "u", "meta", "reports", "profiled")  # names that checkpoints use for something else


class StepwiseSteps(OneByOne):
    """Steps of an optimizer and a penalty that follow the protocols of rop.optim; see Steps for the arguments.

    Args:
        device: where f and its derivatives are computed. The vectors of the methods are on the host.
    """

    def __init__(self, *problem: Any, device: str = "cpu", **options: Any):
        self._device = device
        super().__init__(*problem, **options)

    def _prepare(self, w: np.ndarray) -> None:
        self._labels, self._w = np.asarray(self._y), np.array(w, self.dtype)
        first = np.arange(self.batch)
        self._f = Objective(
            self.net, self.loss, self._x[first], self._labels[first], dtype=self.dtype, device=self._device
        )
        self._averages = RunningAverages(self.net, self._state)
        self._cache: dict[str, Any] = {}
        problem = Problem(self.net, self.size, self.dtype, self.batch, self.seed)
        self._memory = _started(self.optimizer, problem)
        self._penalty_memory = _started(self.regularizer, problem)
        if twice := sorted(self._memory.keys() & self._penalty_memory.keys()):
            raise ArgumentError(
                f"{type(self.optimizer).__name__}: expected names in the memory of the optimizer that "
                f"{type(self.regularizer).__name__} does not use, got {twice[0]!r}"
            )

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See Steps.arrays; these are views."""
        state = {f"state/{name}": array for name, array in self._state.items()}
        return {"w": self._w, **self._penalty_memory, **self._memory, **state}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See Steps.restore."""
        super().restore(arrays)
        self._cache.clear()

    def _goes_on(self) -> bool:
        return self.finite()

    # ------------------------------------------------------------------------------------------------------------ steps
    def _objective_of(self, rows: np.ndarray) -> Objective:
        return self._f.with_data(self._x[rows], self._labels[rows])

    def _step(self, rows: np.ndarray, number: int, given: np.ndarray, report: np.ndarray) -> None:
        objective = self._objective_of(rows)
        point = objective.at(self._w)
        rate, mu, tol = given.tolist()
        now = Step(
            w=self._w,
            objective=objective,
            point=point,
            gradient=point.grad,
            rate=rate,
            mu=mu,
            tol=tol,
            number=number + 1,
            epoch=self._epoch,
            seed=self.seed,
            batch=rows,
            objective_of=self._objective_of,
            samples=len(self._x),
            cache=self._cache,
        )
        report[Report.LOSS], report[Report.CORRECT] = point.loss, np.nan
        if self.regularizer is not None and given[Given.MU]:
            self._penalise(now, report)
        if is_finite(report):
            with np.errstate(over="ignore", invalid="ignore"):  # the trainer checks that the parameters are finite
                self.optimizer.step(now, self._memory)
            self._averages.take_in(point.batch_stats)

    def _penalise(self, now: Step, report: np.ndarray) -> None:
        """Adds the gradient of the penalty and reports its value."""
        value, added, numbers = self.regularizer.value_and_gradient(now, self._penalty_memory)
        report[Report.RHO] = value
        report[Report.RESIDUAL], report[Report.HVPS] = numbers.get("residual", 0.0), numbers.get("hvps", 0.0)
        if added is None:
            return
        if np.shape(added) != (self.size,):
            raise ArgumentError(
                f"{type(self.regularizer).__name__}: expected a gradient of shape ({self.size},) from "
                f"value_and_gradient, or None, got shape {np.shape(added)}"
            )
        now.gradient += added
        now.added, report[Report.PENALTY] = added, 1.0

    # ----------------------------------------------------------------------------------------------------------- epochs
    def end_epoch(self, epoch: int) -> None:
        """See Steps.end_epoch."""
        if not hasattr(self.optimizer, "end_epoch"):
            return
        self.mark()
        self.optimizer.end_epoch(Epoch(self._w, self._state, epoch, self._statistics), self._memory)
        if not self.finite():
            self.back()
            raise ArgumentError(
                f"{type(self.optimizer).__name__}: expected finite parameters and statistics after end_epoch, got NaN "
                f"or Inf in epoch {epoch}"
            )

    def result(self) -> dict[str, np.ndarray]:
        """See Steps.result."""
        w = self.optimizer.result(self._memory) if hasattr(self.optimizer, "result") else None
        if w is None:
            return self.model()
        return {"w": np.array(w, self.dtype)} | {f"state/{name}": one for name, one in self._statistics(w).items()}

    def _statistics(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """Statistics of batchnorm at w: the means of those of the batches of the data in their own order."""
        if not self._state:
            return {}
        starts = range(0, len(self._x) - self.batch + 1, self.batch)
        found = [self._objective_of(np.arange(i, i + self.batch)).at(w).batch_stats for i in starts]
        return {name: np.mean([one[name] for one in found], axis=0, dtype=self.dtype) for name in self._state}


def _started(method: Any, problem: Problem) -> Memory:
    """The memory with which a method begins, checked."""
    memory = method.start(problem) if hasattr(method, "start") else {}
    owner = type(method).__name__
    if not (isinstance(memory, dict) and all(isinstance(array, np.ndarray) for array in memory.values())):
        raise ArgumentTypeError(f"{owner}: expected start to return a dict of NumPy arrays, got {memory!r:.60}")
    for name, array in memory.items():
        own = name.isidentifier() or name.startswith("kfac/")
        if not own or name in RESERVED or array.dtype.kind not in "fiub":
            raise ArgumentError(
                f"{owner}: expected arrays of numbers from start, named by identifiers other than "
                f"{', '.join(RESERVED)}, got {name!r} of {array.dtype}"
            )
    return memory
