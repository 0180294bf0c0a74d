"""Stochastic weight averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.arguments import check_int
from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels import rules
from rop.optim.method import Epoch, Memory, Optimizer, Problem, Step, check_penalty
from rop.optim.schedules import Schedule
from rop.optim.sgd import SGD

AVERAGE, COUNT = "swa_average", "swa_count"


@dataclass(frozen=True)
class SWA:
    """Steps of ``base``; the result is the mean of w at the ends of epochs first, first + every, … up to ``last``
    (Izmailov et al. 2018).

        after the i-th of these epochs:   mean ← mean + (w − mean) / i

    w itself goes on as without the average. Once there is one, it is what validation and ``Fit.w`` use, with statistics
    of batchnorm that are computed anew over the training data; before, and in ``Fit.w_last``, it is w. With validation
    data ``Fit.w`` is the best of all epochs as ever: give none for the last average whatever its accuracy.

    Epochs are counted from 1 since the beginning of the run, those of the fit that ``start`` goes on from included. The
    learning rate is usually kept high while averaging, see ``piecewise_linear``. A penalty acts on the steps of
    ``base``.

    Args:
        base: SGD, Adam, SAM or any optimizer that has no ``result`` of its own.
        first, last, every: the epochs that are averaged; last=None: to the end.

    >>> SWA(SGD(lr=0.05), first=161, last=200).lr
    0.05
    """

    base: Optimizer = SGD()
    first: int = 1
    last: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.base, type) or not isinstance(self.base, Optimizer):
            got = self.base.__name__ if isinstance(self.base, type) else type(self.base).__name__
            raise ArgumentTypeError(f"SWA: expected base=rop.SGD(...) or another optimizer, got {got}")
        if hasattr(self.base, "result"):
            raise ArgumentTypeError(
                f"SWA: expected a base whose result is w, got {type(self.base).__name__}, which has a result of its own"
            )
        check_int("SWA", "first", self.first)
        check_int("SWA", "every", self.every)
        if self.last is not None and check_int("SWA", "last", self.last) < self.first:
            raise ArgumentError(f"SWA: expected last of at least first = {self.first}, got {self.last}")

    @property
    def lr(self) -> Schedule:
        """The learning rate of ``base``."""
        return self.base.lr

    def check_penalty(self, penalty: Any) -> None:
        """Refuses what ``base`` refuses."""
        check_penalty(self.base, penalty)

    def start(self, problem: Problem) -> Memory:
        """The memory of ``base``, the average, and the number of epochs in it."""
        memory = self.base.start(problem) if hasattr(self.base, "start") else {}
        return {**memory, AVERAGE: problem.zeros(), COUNT: np.zeros(1, np.int64)}

    def step(self, now: Step, memory: Memory) -> None:
        """A step of ``base``."""
        self.base.step(now, memory)

    def averages(self, epoch: int) -> bool:
        """Whether w at the end of this epoch is part of the average.

        >>> [epoch for epoch in range(1, 10) if SWA(first=3, last=8, every=2).averages(epoch)]
        [3, 5, 7]
        """
        before_last = self.last is None or epoch <= self.last
        return epoch >= self.first and before_last and (epoch - self.first) % self.every == 0

    def end_epoch(self, epoch: Epoch, memory: Memory) -> None:
        """Takes w into the average, after what ``base`` does at the end of an epoch."""
        if hasattr(self.base, "end_epoch"):
            self.base.end_epoch(epoch, memory)
        if self.averages(epoch.number):
            average, count = memory[AVERAGE], memory[COUNT]
            count += 1
            average[:] = rules.averaged(average, epoch.w, average.dtype.type(1 / count[0]))

    def result(self, memory: Memory) -> np.ndarray | None:
        """The average, once there is one."""
        return memory[AVERAGE] if memory[COUNT][0] else None
