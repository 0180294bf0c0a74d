"""rop itself, by its public interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

import rop

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
from . import Engine

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
    ways = {"grad": ("grad",), "hvp": ("hvp",), "jet": ("jet",), "at_hvp_r2": ("at_hvp_r2",)}

    @staticmethod
    def versions() -> dict[str, str]:
        return {"rop": rop.__version__, "numba": numba.__version__}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        numba.set_num_threads(self.threads)
        loss = rop.CrossEntropy() if problem.loss == "cross_entropy" else rop.MSE()
        self.f = rop.Objective(network(problem), loss, data.x, data.y, dtype=np.dtype(dtype))
        self.points, self.directions = data.points, data.directions
        self.forget()

    def grad(self, repetition: int) -> Any:
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad

    def hvp(self, repetition: int) -> Any:
        if self.kept is None:
            self.kept = self.f.at(self.points[0])
        return self.kept.hvp(self.directions[repetition % 2])

    def jet(self, repetition: int) -> Any:
        return self.f.jet(self.points[repetition % 2], self.directions[repetition % 2])

    def at_hvp_r2(self, repetition: int) -> Any:
        v = self.directions[repetition % 2]
        p = self.f.at(self.points[repetition % 2])
        return p.loss, p.grad, p.hvp(v), p.r2(v)
