"""Sharpness-aware minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.arguments import check_bool, check_float
from rop.errors import ArgumentTypeError
from rop.kernels import rules
from rop.optim.adam import Adam
from rop.optim.method import Memory, Problem, Step
from rop.optim.schedules import Schedule
from rop.optim.sgd import SGD


@dataclass(frozen=True)
class SAM:
    """min over w of max over ‖ε‖ ≤ radius of f(w + ε): a step of ``base`` with the gradient at the worst point nearby.

        ε = radius·∇f(w) / ‖∇f(w)‖                    (Foret et al. 2021)
        ε = radius·w²∘∇f(w) / ‖|w|∘∇f(w)‖             adaptive=True: ASAM (Kwon et al. 2021)
        p = ∇f(w + ε), with which ``base`` makes its step from w

    Both gradients are those of the step's batch, so a step costs two gradient passes. Running statistics of batchnorm
    take in the batch at w. A penalty is evaluated at w, where ρ is reported, and its gradient is added to p; ε comes
    from ∇f alone, so what is minimised is max f(w + ε) + μ·max(0, ρ(w) − K). Weight decay is that of ``base``, at w.

    Args:
        base: SGD or Adam; the learning rate is its own.
        radius: ρ in these papers, which call 0.05 usual, and 0.5 to 2 with adaptive=True.
        adaptive: measure ε relative to the size of each parameter.

    >>> SAM(SGD(lr=0.1, momentum=0.9), radius=0.1).lr
    0.1
    """

    base: SGD | Adam = SGD()
    radius: float = 0.05
    adaptive: bool = False

    def __post_init__(self) -> None:
        if type(self.base) not in (SGD, Adam):
            got = self.base.__name__ if isinstance(self.base, type) else type(self.base).__name__
            raise ArgumentTypeError(f"SAM: expected base=rop.SGD(...) or rop.Adam(...), got {got}")
        check_float("SAM", "radius", self.radius, minimum=0)
        check_bool("SAM", "adaptive", self.adaptive)

    @property
    def lr(self) -> Schedule:
        """The learning rate of ``base``."""
        return self.base.lr

    def start(self, problem: Problem) -> Memory:
        """The memory of ``base``."""
        return self.base.start(problem)

    def step(self, now: Step, memory: Memory) -> None:
        """One step in Python; compiled code applies the same rules."""
        now.gradient = now.gradient_at(self.worst(now.w, now.point.grad))
        self.base.step(now, memory)

    def worst(self, w: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """w + ε, (n,)."""
        kind: Any = w.dtype.type
        scaled = np.abs(w) * gradient if self.adaptive else gradient
        scale = rules.ascent_scale(self.radius, float(np.linalg.norm(scaled)))
        ascent = rules.in_python(rules.adaptive_ascent if self.adaptive else rules.ascent, kind)
        return ascent(w, gradient, kind(scale))
