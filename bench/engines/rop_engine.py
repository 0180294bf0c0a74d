"""rop itself, by its public interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

import rop
from rop.descent import Descent

from ..problems import (
    Activation,
    BatchNorm,
    Concat,
    Conv,
    Data,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    Pool,
    Problem,
    Residual,
    Softmax,
)
from . import Engine, Step

ACTIVATIONS = {
    "relu": rop.ReLU,
    "leaky_relu": rop.LeakyReLU,
    "tanh": rop.Tanh,
    "sigmoid": rop.Sigmoid,
    "softplus": rop.Softplus,
    "silu": rop.SiLU,
    "gelu": rop.GELU,
    "gelu_tanh": lambda: rop.GELU(approximate="tanh"),
}


def network(problem: Problem) -> Any:
    x = rop.Input()
    return rop.Graph(x, build(problem.layers, x, flat=len(problem.input_shape) == 1))


def build(layers: Sequence[Layer], x: Any, flat: bool) -> Any:
    for layer in layers:
        match layer:
            case Linear(inputs, outputs, bias):
                x = rop.Linear(inputs, outputs, bias=bias)(x)
            case Conv(inputs, outputs, kernel, stride, padding, dilation, groups, bias):
                x = rop.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation,
                               groups=groups, bias=bias)(x)
            case Activation(kind):
                x = ACTIVATIONS[kind]()(x)
            case Pool("max", kernel, stride):
                x = rop.MaxPool2d(kernel, stride)(x)
            case Pool("avg", kernel, stride):
                x = rop.AvgPool2d(kernel, stride)(x)
            case GlobalAvgPool():
                x = rop.AdaptiveAvgPool2d(1)(x)
            case Flatten():
                x, flat = rop.Flatten()(x), True
            case Softmax(log):
                x = rop.LogSoftmax(1)(x) if log else rop.Softmax(1)(x)
            case BatchNorm(channels, eps):
                x = (rop.BatchNorm1d if flat else rop.BatchNorm2d)(channels, eps=eps)(x)
            case Residual(body, shortcut):
                x = rop.Add()(build(body, x, flat), build(shortcut, x, flat))
            case Concat(branches):
                x = rop.Concat()(*(build(branch, x, flat) for branch in branches))
    return x


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
        self.f = rop.Objective(network(problem), self.loss(), data.x, data.y, dtype=np.dtype(dtype))
        self.points, self.directions = data.points, data.directions

    def loss(self) -> Any:
        return rop.CrossEntropy() if self.problem.loss == "cross_entropy" else rop.MSE()

    def point(self) -> Any:
        return self.keep("point", lambda: self.f.at(self.points[0]))

    def grad(self, repetition: int) -> Any:
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad

    def hvp(self, repetition: int) -> Any:
        return self.point().hvp(self.directions[repetition % 2])

    def hvp_block(self, repetition: int) -> Any:
        blocks = self.keep("blocks", lambda: self.problem.blocks(self.dtype))
        return self.point().hvp(blocks[repetition % 2])

    def vectors(self, result: Any) -> np.ndarray:
        return self.flat(result.T)

    def jet(self, repetition: int) -> Any:
        return self.f.jet(self.points[repetition % 2], self.directions[repetition % 2])

    def at_hvp_r2(self, repetition: int) -> Any:
        v = self.directions[repetition % 2]
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad, p.hvp(v), p.r2(v)

    # ------------------------------------------------------------------------------------------------ steps and epochs
    def descent(self, x: np.ndarray, y: np.ndarray, mu: float) -> Descent:
        penalty = rop.SpectralRadius(mu=mu, K=Step.K, maxiter=Step.ITERATIONS, stop="relative") if mu else None
        return Descent(network(self.problem), self.loss(), x, y, batch_size=self.batch, w=self.points[0],
                       dtype=self.dtype, regularizer=penalty)  # fmt: skip

    def step(self, repetition: int) -> Any:
        d = self.keep("steps", lambda: self.descent(self.given.x, self.given.y, Step.MU))
        restart(d, self.points[repetition % 2], self.directions[repetition % 2])
        d.begin(self.keep("samples", lambda: np.arange(self.batch)))
        ((loss, *_),) = d.run(0, 1, rate=Step.RATE, mu=Step.MU)
        v = d.arrays["v"].copy()
        return loss, np.dot(d.arrays["u"], v), d.w, v  # the report has |λ|

    def step_python(self, repetition: int) -> Any:
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

    def steps_over_rows(self, repetition: int, mu: float) -> Any:
        data = self.epoch_data()
        d = self.keep(f"epochs {mu}", lambda: self.descent(data.x, data.y, mu))
        restart(d, self.points[repetition % 2], self.directions[repetition % 2])
        reports = d.run(0, d.begin(self.order(repetition)), rate=Step.RATE, mu=mu)
        return reports[:, 0].mean(), d.w

    def epoch(self, repetition: int) -> Any:
        return self.steps_over_rows(repetition, 0.0)

    def penalised(self, repetition: int) -> Any:
        return self.steps_over_rows(repetition, Step.MU)


def restart(d: Descent, w: np.ndarray, v: np.ndarray) -> None:
    """A descent goes on where it stopped; here it starts again."""
    d.arrays["w"][:], d.arrays["v"][:], d.arrays["u"][:] = w, v, 0
