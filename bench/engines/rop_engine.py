"""rop: single calls by its public interface, steps and epochs by the compiled steps of rop/training."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

import rop
from rop.training.compiled import CompiledSteps
from rop.training.report import Report

from ..problems import Data, Problem
from . import Engine, Step

StepResult = tuple[float, float, np.ndarray, np.ndarray]  # loss, λ, w′, v


class Rop(Engine):
    ways = {
        "grad": ("grad",),
        "hvp": ("hvp",),
        "hvp_block": ("hvp_block",),
        "jet": ("jet",),
        "at_hvp_r2": ("at_hvp_r2",),
        "step": ("step",),
        "step_python": ("step_python",),
        "epoch": ("epoch",),
        "penalised": ("penalised",),
    }

    @staticmethod
    def versions() -> dict[str, str]:
        return {"rop": rop.__version__, "numba": numba.__version__}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        numba.set_num_threads(self.threads)
        self.f = objective(problem, dtype, data)
        self.points, self.directions = data.points, data.directions
        if not problem.training and problem.state():  # in compiled steps batchnorm uses the batch's statistics
            self.ways = {**self.ways, "step": ("step_python",)}

    def point(self) -> rop.Point:
        return self.keep("point", lambda: self.f.at(self.points[0]))

    def grad(self, repetition: int) -> tuple[float, np.ndarray]:
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad

    def hvp(self, repetition: int) -> np.ndarray:
        return self.point().hvp(self.directions[repetition % 2])

    def hvp_block(self, repetition: int) -> np.ndarray:
        blocks = self.keep("blocks", lambda: self.problem.blocks(self.dtype))
        return self.point().hvp(blocks[repetition % 2])

    def vectors(self, result: np.ndarray) -> np.ndarray:
        return self.flat(result.T)

    def jet(self, repetition: int) -> rop.Jet:
        return self.f.jet(self.points[repetition % 2], self.directions[repetition % 2])

    def at_hvp_r2(self, repetition: int) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        v = self.directions[repetition % 2]
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad, p.hvp(v), p.r2(v)

    # ------------------------------------------------------------------------------------------------ steps and epochs
    def descent(self, x: np.ndarray, y: np.ndarray, mu: float) -> CompiledSteps:
        penalty = None  # limit=None: the steps of the other engines have none either
        if mu:
            penalty = rop.SpectralRadius(mu=mu, K=Step.K, maxiter=Step.ITERATIONS, stop="relative", limit=None)
        return CompiledSteps(
            self.f.net,
            self.f.loss,
            x,
            y,
            batch_size=self.batch,
            w=self.points[0],
            dtype=self.dtype,
            regularizer=penalty,
        )

    def step(self, repetition: int) -> StepResult:
        d = self.keep("steps", self.one_step)
        restart(d, self.points[repetition % 2], self.directions[repetition % 2])
        loss = d.run(0, 1, rate=Step.RATE, mu=Step.MU)[0, Report.LOSS]
        arrays = d.arrays
        v = arrays["v"].copy()
        return loss, np.dot(arrays["u"], v), arrays["w"].copy(), v  # the report has |λ|

    def one_step(self) -> CompiledSteps:
        """A step on the batch, which is arranged once: the other engines prepare their data before they are timed."""
        d = self.descent(self.given.x, self.given.y, Step.MU)
        d.begin(np.arange(self.batch))
        return d

    def step_python(self, repetition: int) -> StepResult:
        w, v = self.points[repetition % 2], self.directions[repetition % 2]
        p = self.f.at(w)
        u = p.hvp(v)
        for _ in range(Step.ITERATIONS - 1):
            v = u / np.linalg.norm(u)
            u = p.hvp(v)
        eigenvalue = np.dot(u, v)
        direction = p.grad
        if abs(eigenvalue) > Step.K:
            direction += (Step.MU * np.sign(eigenvalue)) * p.r2(v)
        return p.loss, eigenvalue, w - w.dtype.type(Step.RATE) * direction, v

    def steps_over_rows(self, repetition: int, mu: float) -> tuple[float, np.ndarray]:
        """The mean loss of the steps of an epoch, and the last w."""
        data = self.epoch_data()
        d = self.keep(f"epochs {mu}", lambda: self.descent(data.x, data.y, mu))
        restart(d, self.points[repetition % 2], self.directions[repetition % 2])
        reports = d.run(0, d.begin(self.order(repetition)), rate=Step.RATE, mu=mu)
        return reports[:, Report.LOSS].mean(), d.w

    def epoch(self, repetition: int) -> tuple[float, np.ndarray]:
        return self.steps_over_rows(repetition, 0.0)

    def penalised(self, repetition: int) -> tuple[float, np.ndarray]:
        return self.steps_over_rows(repetition, Step.MU)


def objective(problem: Problem, dtype: str, data: Data, device: str = "cpu") -> rop.Objective:
    """The problem as an objective."""
    settings: dict[str, Any] = {"training": problem.training, "state": problem.state(), "device": device}
    settings["hold_fixed"] = False  # all engines differentiate by all parameters
    return rop.Objective(problem.network(), problem.rop_loss(), data.x, data.y, dtype=np.dtype(dtype), **settings)


def restart(d: CompiledSteps, w: np.ndarray, v: np.ndarray) -> None:
    """Start again from w and v, because compiled steps continue where the last ones stopped."""
    arrays = d.arrays
    arrays["w"][:], arrays["v"][:], arrays["u"][:] = w, v, 0
