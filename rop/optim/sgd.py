"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rop.arguments import check_bool, check_float
from rop.errors import ArgumentError
from rop.kernels import rules
from rop.optim.method import Memory, Problem, Step
from rop.optim.schedules import Schedule, check_schedule


@dataclass(frozen=True)
class SGD:
    """w ← w − lr·(p, or its momentum), with torch's meaning of the settings; p = ∇f + μ∇ρ + weight_decay·w.

    >>> SGD(lr=0.1, momentum=0.9, nesterov=True).momentum
    0.9
    """

    lr: Schedule = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_schedule("SGD", "lr", self.lr)
        if not 0 <= check_float("SGD", "momentum", self.momentum) < 1:
            raise ArgumentError(
                f"SGD: momentum must lie in [0, 1), got {self.momentum}; with 1 no step is ever forgotten, 0.9 is usual"
            )
        check_float("SGD", "weight_decay", self.weight_decay, minimum=0)
        if check_bool("SGD", "nesterov", self.nesterov) and self.momentum == 0:
            raise ArgumentError("SGD: nesterov needs momentum, got momentum = 0; give momentum=0.9, say")

    def start(self, problem: Problem) -> Memory:
        """The velocity, zero at first."""
        return {"velocity": problem.zeros()}

    def step(self, now: Step, memory: Memory) -> None:
        """One step in Python; compiled code applies the same rule."""
        kind: Any = now.w.dtype.type
        velocity = memory["velocity"]
        p = now.gradient + kind(self.weight_decay) * now.w
        now.w[:], velocity[:] = rules.in_python(rules.sgd, kind)(
            now.w, velocity, p, kind(now.rate), kind(self.momentum), self.nesterov
        )
