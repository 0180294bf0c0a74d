"""The protocol of training steps: the interface between the trainer and the classes that make steps.

Three classes make the same steps of min f(w) + μ·max(0, ρ − K): ``CompiledSteps`` runs whole epochs in compiled code,
``CudaSteps`` runs on a GPU, and ``StepwiseSteps`` runs in Python with any optimizer and penalty. ``steps_for`` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rop.arguments import check_choice, check_dtype, check_int
from rop.errors import ArgumentError
from rop.graph import Graph
from rop.inputs import check_data, check_problem, check_state, check_statistics, check_trainable
from rop.kernels.rules import Given
from rop.layers.loss import Loss, Targets
from rop.objective import Objective
from rop.optim import SGD, Epoch, Memory, Optimizer, Penalty
from rop.optim.method import check_methods
from rop.training.report import blank, is_finite
from rop.training.settings import has_compiled_form

NO_ROW = -1  # stands for no row of the data


def steps_of_epoch(samples: int, batch: int, partial_batch: bool) -> int:
    """The number of steps of an epoch, with or without a last one of fewer samples.

    >>> steps_of_epoch(10, 4, False), steps_of_epoch(10, 4, True)
    (2, 3)
    """
    return -(-samples // batch) if partial_batch else samples // batch


class Steps(ABC):
    """Steps over minibatches of a data set. The object owns the parameters while it runs.

    Args:
        net, loss, x, y: as for Objective; x and y are the whole data set.
        batch_size: samples per step.
        w: where to start (n,).
        dtype: precision.
        optimizer: None for SGD(). The caller evaluates its schedule.
        regularizer: the penalty, or None for plain training. The caller evaluates its schedules.
        state: running statistics of batchnorm; None for those of net.init_state().
        seed: of the first direction v.
        profile: whether reports say where the time went.
        layout, winograd: how the CPU computes, as for Objective.
    """

    _device = "cpu"

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        x: np.ndarray,
        y: ArrayLike,
        *,
        batch_size: int,
        w: np.ndarray,
        dtype: DTypeLike = np.float32,
        optimizer: Optimizer | None = None,
        regularizer: Penalty | None = None,
        state: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        profile: bool = False,
        layout: str | None = None,
        winograd: bool = True,
    ):
        owner = type(self).__name__
        check_problem(owner, net, loss)
        check_trainable(owner, net)
        self.net, self.loss, self.size, self.seed = net, loss, net.size, seed
        self.dtype = np.dtype(check_dtype(owner, dtype))
        self.batch = check_int(owner, "batch_size", batch_size)
        self.optimizer: Any = SGD() if optimizer is None else optimizer  # some paths read fields of its class
        self.regularizer: Any = regularizer
        check_methods(owner, self.optimizer, regularizer)
        self._memory: Memory = {}  # what the optimizer keeps and Python reads
        self._x, self._y, self._profiled = check_data(x, self.dtype, check_finite=True), y, profile
        self._labels = np.asarray(y)
        self._layout, self._winograd = layout, winograd
        self._targets = self._checked_targets(owner)
        self._state = check_state(net, state, self.dtype, owner)
        self._prepare(w)

    def _checked_targets(self, owner: str) -> Targets:
        if len(self._x) < self.batch:
            raise ArgumentError(f"{owner}: expected at least one batch of {self.batch} samples, got {len(self._x)}")
        shapes = self.net.shapes(self._x.shape[1:])
        check_statistics(self.net, shapes, self.batch)
        return self.loss.targets(self._y, len(self._x), shapes[self.net.output], self.dtype)

    @abstractmethod
    def _prepare(self, w: np.ndarray) -> None:
        """Allocates the memory of the steps and copies the parameters into it."""

    # ------------------------------------------------------------------------------------------------------------ steps
    def begin(self, order: np.ndarray, epoch: int = 1, partial_batch: bool = False) -> int:
        """Begins an epoch of samples in this order, with or without the last partial batch; returns its number of
        steps."""
        self._steps, self._epoch = steps_of_epoch(len(order), self.batch, partial_batch), epoch
        self._given = np.zeros((self._steps, len(Given)))
        rows = np.full(self._steps * self.batch, NO_ROW, np.int64)
        count = min(len(order), len(rows))
        rows[:count] = order[:count]
        batches = rows.reshape(self._steps, self.batch)
        check_statistics(self.net, self.net.shapes(self._x.shape[1:]), int((batches[-1] >= 0).sum()))
        self._arrange(batches)
        return self._steps

    @abstractmethod
    def _arrange(self, batches: np.ndarray) -> None:
        """Prepares an epoch with these rows of the data in each step, (steps, batch); the last step of an epoch with a
        partial batch has NO_ROW in the places that are left."""

    def run(
        self,
        first: int,
        count: int,
        *,
        rate: ArrayLike,
        mu: ArrayLike = 0.0,
        tol: ArrayLike = 0.0,
        before: int = 0,
        stop: Callable[[], bool] | None = None,
    ) -> np.ndarray:
        """Makes steps first, …, first + count − 1 of the epoch, with one rate, μ and tolerance or one for each step;
        ``before`` counts the steps before this epoch. Returns a report for each step that was begun, (steps, columns),
        see rop.training.report. A step whose loss or ρ is not finite is not made: its report is the last one, and w is
        what it was before. ``stop`` is polled during long steps; once it is true, the call returns."""
        given = self._given[first : first + count]
        given[:, Given.RATE], given[:, Given.MU], given[:, Given.TOLERANCE] = rate, mu, tol
        return self._run(first, len(given), before, stop)

    @abstractmethod
    def _run(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> np.ndarray:
        """See ``run``; the rate, μ and tolerance of each step are in self._given, (steps, Given)."""

    def end_epoch(self, epoch: int) -> None:
        """Calls the optimizer's ``end_epoch``, if it has one. ``arrays`` must then be views."""
        if not hasattr(self.optimizer, "end_epoch"):
            return
        self.mark()
        self.optimizer.end_epoch(Epoch(self.arrays["w"], self._state, epoch, self._statistics), self._memory)
        if not self.finite():
            self.back()
            raise ArgumentError(
                f"{type(self.optimizer).__name__}: expected finite parameters and statistics after end_epoch, got NaN "
                f"or Inf in epoch {epoch}"
            )

    # ----------------------------------------------------------------------------------------------- what a run carries
    @property
    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes from step to step, by name, on the host: the parameters "w", the running statistics
        as "state/...", the last direction "v" and its product "u" = Hv where the penalty has them, and the memory of
        the optimizer. They are read-only and short-lived: some are views of memory that the next step overwrites,
        others are copies of a GPU's memory, so that writing into them may change nothing. ``restore`` writes."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrites everything that changes with the values of an earlier ``arrays``."""
        for name, array in self.arrays.items():
            array[...] = arrays[name]

    def mark(self) -> None:
        """Keeps a copy of everything that changes."""
        self._marked = {name: array.copy() for name, array in self.arrays.items()}

    def back(self) -> None:
        """Returns to the last mark."""
        self.restore(self._marked)

    def finite(self) -> bool:
        """Whether the parameters and running statistics are finite numbers."""
        return all(np.isfinite(array).all() for name, array in self.arrays.items() if _is_model(name))

    def model(self) -> dict[str, np.ndarray]:
        """Copies of the parameters "w" and running statistics "state/..." with which the next step would begin."""
        return {name: array.copy() for name, array in self.arrays.items() if _is_model(name)}

    def result(self) -> dict[str, np.ndarray]:
        """The model that validation and the fit use: ``model``, unless the optimizer has a ``result`` of its own."""
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

    def _objective_of(self, rows: np.ndarray) -> Objective:
        """f of some rows of the data."""
        return self._first_batch.with_data(self._x[rows], self._labels[rows])

    @cached_property
    def _first_batch(self) -> Objective:
        settings: dict[str, Any] = {"dtype": self.dtype, "device": self._device, "training": True}
        settings |= {"layout": self._layout, "winograd": self._winograd}
        return Objective(self.net, self.loss, self._x[: self.batch], self._labels[: self.batch], **settings)

    @property
    def w(self) -> np.ndarray:
        """The parameters (a copy)."""
        return self.arrays["w"].copy()

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The running statistics (copies)."""
        return {name: array.copy() for name, array in self._state.items()}


def _is_model(name: str) -> bool:
    return name == "w" or name.startswith("state/")


class OneByOne(Steps):
    """Steps that return to Python after each of them."""

    def _arrange(self, batches: np.ndarray) -> None:
        self._batches = batches

    def _run(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> np.ndarray:
        reports = blank(count)
        with self._running():
            for i, report in enumerate(reports):
                step = first + i
                rows = self._batches[step]
                self._step(rows[rows >= 0], before + step, self._given[step], report)
                if not (is_finite(report) and self._goes_on()) or (stop is not None and stop()):
                    return reports[: i + 1]
        return reports

    @contextmanager
    def _running(self) -> Iterator[None]:
        """A context around the steps of one call."""
        yield

    def _goes_on(self) -> bool:
        """Whether the next step can be made after this one."""
        return True

    @abstractmethod
    def _step(self, rows: np.ndarray, number: int, given: np.ndarray, report: np.ndarray) -> None:
        """Makes one step on some rows of the data, after ``number`` others, and writes its report."""


def steps_for(optimizer: Optimizer, regularizer: Penalty | None, device: str = "cpu") -> Callable[..., Steps]:
    """The class that makes steps with these settings, to be called with the arguments of ``Steps``.

    >>> import rop
    >>> steps_for(rop.SGD(), None).__name__
    'CompiledSteps'
    """
    check_choice("train", "device", device, ("cpu", "cuda"))
    if not has_compiled_form(optimizer, regularizer, device):
        from rop.training.stepwise import StepwiseSteps

        return partial(StepwiseSteps, device=device)
    if device == "cuda":
        from rop.training.cuda import CudaSteps

        return CudaSteps
    from rop.training.compiled import CompiledSteps

    return CompiledSteps
