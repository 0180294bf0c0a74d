"""Entropy-SGD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.arguments import check_bool, check_float, check_int
from rop.errors import ArgumentError
from rop.kernels import draws, rules
from rop.optim.method import Memory, Problem, Step
from rop.optim.schedules import Schedule, check_schedule
from rop.optim.sgd import SGD


@dataclass(frozen=True)
class EntropySGD:
    """Descent on −log ∫ exp(−f(x′) − γ/2 ‖x − x′‖²) dx′, the local entropy, whose gradient is γ(x − E[x′]): the mean is
    estimated by Langevin steps x′ around x = w (Chaudhari et al. 2017, Algorithm 1).

        x′ ← x, m ← x, then ``steps`` times, each time with a minibatch and ξ ~ N(0, I):
            x′ ← x′ − η′(∇f(x′) − γ(x − x′)) + √η′·noise·ξ          η′ = inner_lr
            m ← beta·m + (1 − beta)·x′
        x ← x − lr·(x − m), with momentum as in SGD: without the factor γ of the gradient, as in the authors' code
        γ = gamma·(1 + scoping)^t in step t = 0, 1, …, at most 1/η′: there the pull of one inner step leads back to x
            itself, beyond it inner steps would overshoot and grow without bound

    The first inner step uses the batch of the step; the others draw theirs from all data, without replacement within a
    batch, by the seed and the number of the step. An epoch is as many steps as with SGD, so it costs ``steps`` times as
    many gradient passes: compare runs of 100 epochs of SGD with 5 epochs of 20 inner steps. The loss of a step and the
    statistics of batchnorm are those of its own batch at x. Weight decay belongs to f: it acts on the inner steps.

    With steps=0 this is SGD, with Nesterov momentum by default. A penalty is accepted with steps=0 only, since inner
    steps visit points and batches at which its gradient is not known.

    >>> EntropySGD().scope(0), EntropySGD().scope(10**6)
    (0.0001, 10.0)
    """

    lr: Schedule = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    steps: int = 20
    gamma: float = 1e-4
    scoping: float = 1e-3
    noise: float = 1e-4
    inner_lr: float = 0.1
    beta: float = 0.75
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        owner = "EntropySGD"
        check_schedule(owner, "lr", self.lr)
        check_int(owner, "steps", self.steps, minimum=0)
        for name in ("gamma", "scoping", "noise", "weight_decay"):
            check_float(owner, name, getattr(self, name), minimum=0)
        check_float(owner, "inner_lr", self.inner_lr, positive=True)
        for name in ("momentum", "beta"):
            if not 0 <= check_float(owner, name, getattr(self, name)) < 1:
                raise ArgumentError(f"{owner}: {name} must lie in [0, 1), got {getattr(self, name)}")
        if check_bool(owner, "nesterov", self.nesterov) and self.momentum == 0:
            raise ArgumentError(f"{owner}: nesterov needs momentum, got momentum = 0; give nesterov=False as well")

    @property
    def outer(self) -> SGD:
        """The optimizer of x, whose gradient is x − m."""
        return SGD(self.lr, self.momentum, self.nesterov, 0.0 if self.steps else self.weight_decay)

    def check_penalty(self, penalty: Any) -> None:
        """Refuses a penalty on steps that have inner steps."""
        if self.steps:
            raise ArgumentError(
                f"EntropySGD: expected no penalty with steps = {self.steps}, got {type(penalty).__name__}: its "
                "gradient is not known at the points of inner steps; leave the penalty out (mu=0 for a command or a "
                "classifier), or give steps=0, which is SGD"
            )

    def start(self, problem: Problem) -> Memory:
        """The velocity, zero at first."""
        return self.outer.start(problem)

    def step(self, now: Step, memory: Memory) -> None:
        """One step in Python."""
        if self.steps:
            now.gradient = now.w - self._mean(now)
        self.outer.step(now, memory)

    def scope(self, t: int) -> float:
        """γ after t steps."""
        return float(rules.scope_at(self.gamma, self.scoping, self.inner_lr, t))

    @property
    def deviation(self) -> float:
        """√η′·noise, the standard deviation of the noise of an inner step."""
        return math.sqrt(self.inner_lr) * self.noise

    def _mean(self, now: Step) -> np.ndarray:
        """m after the inner steps, (n,)."""
        kind: Any = now.w.dtype.type
        inner_step = rules.in_python(rules.langevin, kind)
        rate, scope, part = kind(self.inner_lr), kind(self.scope(now.number - 1)), kind(1 - self.beta)
        deviation, decay = kind(self.deviation), kind(self.weight_decay)
        inner, mean, gradient = now.w, now.w, now.gradient
        for number in range(self.steps):
            batch_key, noise_key = draws_of(now.seed, now.number, number)
            if number:
                rows = np.array(draws.distinct(now.batch.size, now.samples, batch_key))
                gradient = now.objective_of(rows).at(inner).grad
            noise = deviation * draws.normals(now.w.size, noise_key, kind)
            inner = inner_step(inner, now.w, gradient + decay * inner, noise, rate, scope)
            mean = rules.averaged(mean, inner, part)
        return mean


def draws_of(seed: int, step: int, inner: int) -> tuple[np.uint64, np.uint64]:
    """The keys of the batch and of the noise of an inner step; compiled code makes the same ones."""
    return draws.key_of(seed, step, 2 * inner), draws.key_of(seed, step, 2 * inner + 1)
