"""Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rop.arguments import check_float
from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels import rules
from rop.optim.method import Memory, Problem, Step
from rop.optim.schedules import Schedule, check_schedule


@dataclass(frozen=True)
class Adam:
    """Adam with torch's meaning of the settings.

    >>> Adam().lr
    0.001
    """

    lr: Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_schedule("Adam", "lr", self.lr)
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2):
            raise ArgumentTypeError(f"Adam: expected betas as a pair of numbers, got {self.betas!r}")
        for beta in self.betas:
            if not 0 <= check_float("Adam", "betas", beta) < 1:
                raise ArgumentError(f"Adam: expected betas in [0, 1), got {self.betas}")
        check_float("Adam", "eps", self.eps, positive=True)
        check_float("Adam", "weight_decay", self.weight_decay, minimum=0)

    def start(self, problem: Problem) -> Memory:
        """The running moments, zero at first."""
        return {"velocity": problem.zeros(), "squares": problem.zeros()}

    def step(self, now: Step, memory: Memory) -> None:
        """One step in Python; compiled code applies the same rule."""
        kind: Any = now.w.dtype.type
        mean, squares = memory["velocity"], memory["squares"]
        rate, scale = rules.unbiased(now.rate, *self.betas, now.number)
        p = now.gradient + kind(self.weight_decay) * now.w
        now.w[:], mean[:], squares[:] = rules.in_python(rules.adam, kind)(
            now.w, mean, squares, p, kind(rate), *map(kind, self.betas), kind(self.eps), kind(scale)
        )
