"""The protocols of optimizers and penalties, and what the trainer shows them of a step.

An optimizer of your own is an object with a learning rate ``lr`` and a method ``step``; a penalty of your own is an
object with a method ``value_and_gradient``. Both run in Python, step by step, on any device. They keep what they need
from one step to the next in NumPy arrays by name, their *memory*: checkpoints save it, so a run that is resumed ends
with the same bits. ``Optimizer`` and ``Penalty`` below name the methods that are optional.

An optimizer with a memory, and a penalty:

>>> from dataclasses import dataclass
>>> import numpy as np, rop
>>> from rop.optim import Memory, Problem, Schedule, Step
>>> @dataclass(frozen=True)
... class Signum:
...     lr: Schedule = 0.01
...     beta: float = 0.9
...
...     def start(self, problem: Problem) -> Memory:
...         return {"average": problem.zeros()}
...
...     def step(self, now: Step, memory: Memory) -> None:
...         memory["average"] += np.float32(1 - self.beta) * (now.gradient - memory["average"])
...         now.w -= np.float32(now.rate) * np.sign(memory["average"])
>>> @dataclass(frozen=True)
... class Ridge:
...     mu: Schedule = 0.01
...
...     def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, dict[str, float]]:
...         return now.mu / 2 * float(now.w @ now.w), np.float32(now.mu) * now.w, {}
>>> x = np.random.default_rng(0).standard_normal((64, 2)).astype("f4")
>>> net = rop.Sequential(rop.Linear(2, 8), rop.Tanh(), rop.Linear(8, 2))
>>> fit = rop.train(net, rop.CrossEntropy(), (x, (x[:, 0] > x[:, 1]).astype(int)), batch_size=16, epochs=20,
...                 optimizer=Signum(), regularizer=Ridge())
>>> bool(fit.history[-1]["loss"] < 0.2), list(fit.memory), bool(fit.history[-1]["rho"] > 0)  # rho: Ridge's value
(True, ['average'], True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rop.errors import ArgumentTypeError
from rop.optim.schedules import Schedule

if TYPE_CHECKING:
    from rop.graph import Graph
    from rop.objective import Objective, Point

Memory = dict[str, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """The facts about a run that ``start`` is given.

    net: the network, of ``size`` parameters.
    dtype: the precision of the parameters.
    batch_size: samples per step.
    seed: the seed of the run.
    """

    net: Graph | None
    size: int
    dtype: np.dtype
    batch_size: int
    seed: int

    def zeros(self) -> np.ndarray:
        """A vector like the parameters, (n,)."""
        return np.zeros(self.size, self.dtype)


@dataclass
class Step:
    """One training step, as a method sees it.

    w: the parameters (n,), which an optimizer changes in place.
    objective: f of the step's batch.
    point: the objective at w, with all its derivatives; ``rop.kfac.kfac(now.point)`` gives its factors.
    gradient: ∇f(w) plus what the penalty adds, (n,). The optimizer may change it.
    rate, mu, tol: the values of the schedules for this step: the learning rate, and the weight and the tolerance of
        the penalty.
    number, epoch: the step and the epoch, both counted from 1 since the beginning of the run.
    seed: the seed of the run.
    batch: rows of the data that the batch consists of.
    objective_of: makes the objective of other rows of the data.
    samples: the number of rows of the data.
    cache: a dict that lives as long as the run, for values that can be computed again from memory. It is not saved,
        and it is emptied whenever the run returns to an earlier step.
    added: the part of the gradient that the penalty has added; None if it added nothing.
    """

    w: np.ndarray
    objective: Objective
    point: Point
    gradient: np.ndarray
    rate: float
    mu: float
    tol: float
    number: int
    epoch: int
    seed: int
    batch: np.ndarray
    objective_of: Callable[[np.ndarray], Objective]
    samples: int
    cache: dict[str, Any] = field(default_factory=dict)
    added: np.ndarray | None = None

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed and the number of the step only."""
        return np.random.default_rng([self.seed, self.number])

    def gradient_at(self, w: np.ndarray) -> np.ndarray:
        """∇f of the step's batch at another point, plus what the penalty adds at the step's own point: the penalty is
        evaluated once per step."""
        gradient = self.objective.at(w).grad
        if self.added is not None:
            gradient += self.added
        return gradient


@dataclass
class Epoch:
    """An epoch whose last step is done, as ``end_epoch`` sees it.

    w: the parameters (n,), which may be changed in place.
    state: the running statistics of batchnorm by name, which may be changed in place.
    number: the epoch, counted from 1.
    statistics: statistics(w) computes the statistics of batchnorm over all training data at other parameters.
    """

    w: np.ndarray
    state: Mapping[str, np.ndarray]
    number: int
    statistics: Callable[[np.ndarray], dict[str, np.ndarray]]


@runtime_checkable
class Optimizer(Protocol):
    """An optimizer: a learning rate, and a step.

    ``step(now, memory)`` changes now.w in place, given now.gradient and now.rate, and may change the arrays of
    ``memory`` in place. Four methods are optional:

    ``start(problem)`` returns the memory with which a run begins, arrays by name (an identifier); without it there is
    none. ``end_epoch(epoch, memory)`` is called after the last step of every epoch. ``result(memory)`` returns the
    parameters that validation and ``Fit.w`` use instead of w, say an average, or None for w itself; running
    statistics of batchnorm are then computed anew for them over the training data. ``check_penalty(penalty)`` raises an
    ArgumentError for a penalty that has no meaning with this optimizer.
    """

    @property
    def lr(self) -> Schedule: ...

    def step(self, now: Step, memory: Memory) -> None: ...


@runtime_checkable
class Penalty(Protocol):
    """A penalty: a term that is added to the loss of every batch.

    ``value_and_gradient(now, memory)`` returns the value, its gradient (n,) with its weight in it, or None to leave
    it out of this step, and a dict that may name "residual" and "hvps" for the report of the step. Optional are
    ``start(problem)``, as for an optimizer; ``mu`` and ``tol``, numbers or schedules that come back as now.mu and
    now.tol (the penalty is skipped where mu is 0); and ``K``, the value up to which the penalty leaves steps alone.
    """

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, Mapping[str, float]]: ...


def check_methods(owner: str, optimizer: Any, regularizer: Any) -> None:
    """Refuses what is neither an optimizer nor a penalty, naming what is missing, and what does not go together.

    >>> check_methods("train", "sgd", None)
    Traceback (most recent call last):
    rop.errors.ArgumentTypeError: train: expected optimizer=rop.SGD(...), rop.Adam(...) or an object with lr and
    step(now, memory), see rop.optim.Optimizer, got str
    """
    for value, kind, expected in (
        (
            optimizer,
            Optimizer,
            "optimizer=rop.SGD(...), rop.Adam(...) or an object with lr and step(now, memory), see rop.optim.Optimizer",
        ),
        (
            regularizer,
            Penalty,
            "regularizer=rop.SpectralRadius(...) or an object with value_and_gradient(now, memory), see "
            "rop.optim.Penalty",
        ),
    ):
        if kind is Penalty and value is None:
            continue
        if isinstance(value, type) or not isinstance(value, kind):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise ArgumentTypeError(f"{owner}: expected {expected}, got {got}")
    if regularizer is not None:
        check_penalty(optimizer, regularizer)


def check_penalty(optimizer: Any, penalty: Any) -> None:
    """Lets the optimizer refuse a penalty, if it has a method for that."""
    if hasattr(optimizer, "check_penalty"):
        optimizer.check_penalty(penalty)
