"""PyTorch: one, two and three backward passes through its tape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


Norm = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def fused(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """torch's own batchnorm: the fastest for a gradient, but its third derivative is wrong in training mode."""
    return F.batch_norm(x, None, None, gamma, beta, training=True, eps=eps)


def written_out(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """Batchnorm in primitives, right at every order."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    column = (1, -1) + (1,) * (x.dim() - 2)
    centred = x - x.mean(axes, keepdim=True)
    scale = ((centred * centred).mean(axes, keepdim=True) + eps).rsqrt() * gamma.view(column)
    return centred * scale + beta.view(column)


def forward(layers: Sequence[Layer], parameters: Iterator[Tensor], x: Tensor, norm: Norm) -> Tensor:
    for layer in layers:
        match layer:
            case Linear(bias=bias):
                x = F.linear(x, next(parameters), next(parameters) if bias else None)
            case Conv(stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias):
                weight, shift = next(parameters), next(parameters) if bias else None
                x = F.conv2d(x, weight, shift, stride, padding, dilation, groups)
            case Activation(kind):
                x = ACTIVATIONS[kind](x)
            case Pool("max", kernel, stride):
                x = F.max_pool2d(x, kernel, stride)
            case Pool("avg", kernel, stride):
                x = F.avg_pool2d(x, kernel, stride)
            case GlobalAvgPool():
                x = x.mean((2, 3), keepdim=True)
            case Flatten():
                x = x.flatten(1)
            case Softmax(log):
                x = x.log_softmax(1) if log else x.softmax(1)
            case BatchNorm(_, eps):
                x = norm(x, next(parameters), next(parameters), eps)
            case Residual(body, shortcut):
                x = forward(body, parameters, x, norm) + forward(shortcut, parameters, x, norm)
            case Concat(branches):
                x = torch.cat([forward(branch, parameters, x, norm) for branch in branches], 1)
    return x


class Torch(Engine):
    @staticmethod
    def versions() -> dict[str, str]:
        return {"torch": torch.__version__}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        torch.set_num_threads(self.threads)
        self.problem = problem
        self.x, self.y = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self.points = [self.split(w) for w in data.points]
        self.directions = [self.split(v) for v in data.directions]
        self.forget()

    def split(self, flat: np.ndarray) -> list[Tensor]:
        shapes = [p.shape for p in self.problem.parameters()]
        starts = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
        return [torch.from_numpy(flat[start:].copy())[: math.prod(shape)].view(shape)
                for start, shape in zip(starts, shapes, strict=False)]

    def loss(self, parameters: Sequence[Tensor], norm: Norm = written_out) -> Tensor:
        out = forward(self.problem.layers, iter(parameters), self.x, norm)
        return F.cross_entropy(out, self.y) if self.problem.loss == "cross_entropy" else F.mse_loss(out, self.y)

    def leaves(self, repetition: int) -> list[Tensor]:
        return [w.detach().requires_grad_() for w in self.points[repetition % 2]]

    def grad(self, repetition: int) -> Any:
        w = self.leaves(repetition)
        loss = self.loss(w, fused)
        return loss, torch.autograd.grad(loss, w)

    def hvp(self, repetition: int) -> Any:
        if self.kept is None:
            w = self.leaves(0)
            self.kept = w, torch.autograd.grad(self.loss(w), w, create_graph=True)
        w, g = self.kept
        return torch.autograd.grad(g, w, self.directions[repetition % 2], retain_graph=True)

    def jet(self, repetition: int) -> Any:
        w, v = self.leaves(repetition), self.directions[repetition % 2]
        loss = self.loss(w)
        g = torch.autograd.grad(loss, w, create_graph=True)
        hvp = torch.autograd.grad(g, w, v, create_graph=True)
        r2 = torch.autograd.grad(hvp, w, v)
        return loss, g, hvp, r2

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return np.concatenate([part.detach().double().numpy().ravel() for part in parts])
