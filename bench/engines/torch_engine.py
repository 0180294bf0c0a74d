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
    refuse_layer,
)
from . import Engine, Step

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


def written_out(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, running: Any = None) -> Tensor:
    """Batchnorm in primitives, right at every order; with running mean and variance where they are given."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    column = (1, -1) + (1,) * (x.dim() - 2)
    centred = x - (x.mean(axes, keepdim=True) if running is None else running[0].view(column))
    variance = (centred * centred).mean(axes, keepdim=True) if running is None else running[1].view(column)
    scale = (variance + eps).rsqrt() * gamma.view(column)
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
            case _:
                refuse_layer(layer)
    return x


ONE = "@1"  # marks a way that is gone with one thread, however many there are: often the best one for a small net


class Torch(Engine):
    ways = {
        "grad": ("grad",),
        "hvp": ("hvp",),
        "hvp_block": ("hvp_block_batched", "hvp_block_loop"),
        "jet": ("jet",),
        "step": ("step",),
        "epoch": ("epoch_by_hand", "epoch_by_optimizer"),
        "penalised": ("penalised",),
    }
    tries_one_thread = True

    def __init__(self, threads: int):
        super().__init__(threads)
        if threads > 1 and self.tries_one_thread:
            self.ways = {work: ways + tuple(way + ONE for way in ways) for work, ways in self.ways.items()}

    @staticmethod
    def versions() -> dict[str, str]:
        return {"torch": torch.__version__}

    def run(self, way: str, repetition: int) -> Any:
        threads = 1 if way.endswith(ONE) else self.threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return super().run(way.removesuffix(ONE), repetition)

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        self.data = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self.points = [self.split(w) for w in data.points]
        self.directions = [self.split(v) for v in data.directions]
        self.sizes = [math.prod(p.shape) for p in problem.parameters()]
        self.modules = modules_of(problem, self.points)

    def split(self, flat: np.ndarray) -> list[Tensor]:
        """A flat vector as tensors of the parameters' shapes, each with memory of its own."""
        shapes = [p.shape for p in self.problem.parameters()]
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
        return [
            torch.from_numpy(flat[start:end].copy()).view(shape)
            for start, end, shape in zip([0, *ends], ends, shapes, strict=False)
        ]

    def loss(self, parameters: Sequence[Tensor], norm: Norm = written_out, data: Any = None) -> Tensor:
        x, y = data or self.data
        if self.modules:
            return self.modules.loss(self.modules.outputs(parameters, x, norm is written_out), y)
        out = forward(self.problem.layers, iter(parameters), x, norm)
        return F.cross_entropy(out, y) if self.problem.loss == "cross_entropy" else F.mse_loss(out, y)

    def leaves(self, repetition: int) -> list[Tensor]:
        if self.modules:
            return self.modules.leaves[repetition % 2]
        return [w.detach().requires_grad_() for w in self.points[repetition % 2]]

    def grad(self, repetition: int) -> Any:
        w = self.leaves(repetition)
        loss = self.loss(w, fused)
        return loss, torch.autograd.grad(loss, w)

    def point(self) -> Any:
        """(w, ∇f) with the graph of ∇f."""
        w = self.leaves(0)
        return w, torch.autograd.grad(self.loss(w), w, create_graph=True)

    def hvp(self, repetition: int) -> Any:
        w, g = self.keep("point", self.point)
        return torch.autograd.grad(g, w, self.directions[repetition % 2], retain_graph=True)

    def blocks(self) -> Any:
        """For both blocks the vectors, each in the shapes of the parameters, stacked."""
        blocks = [[self.split(v) for v in block.T] for block in self.problem.blocks(self.dtype)]
        return [[torch.stack(parts) for parts in zip(*block, strict=True)] for block in blocks]

    def hvp_block_batched(self, repetition: int) -> Any:
        w, g = self.keep("point", self.point)
        v = self.keep("blocks", self.blocks)[repetition % 2]
        return torch.autograd.grad(g, w, v, retain_graph=True, is_grads_batched=True)

    def hvp_block_loop(self, repetition: int) -> Any:
        w, g = self.keep("point", self.point)
        block = zip(*self.keep("blocks", self.blocks)[repetition % 2], strict=True)
        results = [torch.autograd.grad(g, w, v, retain_graph=True) for v in block]
        return [torch.stack(parts) for parts in zip(*results, strict=True)]

    def vectors(self, result: Any) -> np.ndarray:
        return self.flat(torch.cat([part.flatten(1) for part in result], 1))

    def jet(self, repetition: int) -> Any:
        w, v = self.leaves(repetition), self.directions[repetition % 2]
        loss = self.loss(w)
        g = torch.autograd.grad(loss, w, create_graph=True)
        hvp = torch.autograd.grad(g, w, v, create_graph=True)
        r2 = third(hvp, w, v)
        return loss, g, hvp, r2

    # ------------------------------------------------------------------------------------------------ steps and epochs
    def parts(self, flat: Tensor) -> list[Tensor]:
        """A flat vector in the shapes of the parameters, without a copy."""
        return [part.view(w.shape) for part, w in zip(flat.split(self.sizes), self.points[0], strict=True)]

    def step(self, repetition: int) -> Any:
        """The graph of the gradient serves all products; only the last one gets a graph of its own, for r."""
        return self.one_step(self.leaves(repetition), self.directions[repetition % 2])[:4]

    def one_step(self, w: list[Tensor], direction: list[Tensor], batch: Any = None) -> Any:
        """A step, and the last u = H v of it."""
        loss = self.loss(w, data=batch)
        g = torch.autograd.grad(loss, w, create_graph=True)
        v = joined(direction)
        for _ in range(Step.ITERATIONS - 1):
            u = joined(torch.autograd.grad(g, w, direction, retain_graph=True))
            v = u / u.norm()
            direction = self.parts(v)
        hvp = torch.autograd.grad(g, w, direction, create_graph=True)
        eigenvalue = joined(hvp).dot(v)
        r = third(hvp, w, direction)
        return loss, eigenvalue, moved(w, g, r, eigenvalue), v, joined(hvp)

    def epoch_tensors(self) -> Any:
        data = self.epoch_data()
        return torch.from_numpy(data.x), torch.from_numpy(data.y), [torch.from_numpy(order) for order in data.orders]

    def batches(self, repetition: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows put into this epoch's order once, then cut."""
        x, y, orders = self.keep("epoch tensors", self.epoch_tensors)
        order = orders[repetition % 2][: self.steps * self.batch]
        return zip(x.index_select(0, order).split(self.batch), y.index_select(0, order).split(self.batch), strict=True)

    def epoch_by_hand(self, repetition: int) -> Any:
        w = [part.clone().requires_grad_() for part in self.points[repetition % 2]]
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            loss = self.loss(w, fused, batch)
            g = torch.autograd.grad(loss, w)
            with torch.no_grad():
                torch._foreach_add_(w, g, alpha=-Step.RATE)
                total += loss
        return total / self.steps, w

    def penalised(self, repetition: int) -> Any:
        w, direction = self.leaves(repetition), self.directions[repetition % 2]
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            loss, _, moved_w, _, u = self.one_step(w, direction, batch)
            w, direction = [part.detach().requires_grad_() for part in moved_w], self.parts(u / u.norm())
            total += loss.detach()
        return total / self.steps, w

    def epoch_by_optimizer(self, repetition: int) -> Any:
        w = [part.clone().requires_grad_() for part in self.points[repetition % 2]]
        optimizer = torch.optim.SGD(w, lr=Step.RATE, fused=True)
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            optimizer.zero_grad()
            loss = self.loss(w, fused, batch)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total / self.steps, w

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return np.concatenate([part.detach().double().numpy().ravel() for part in parts])


def third(hvp: Sequence[Tensor], w: Sequence[Tensor], v: Sequence[Tensor]) -> Sequence[Tensor]:
    """vᵀ∇H v from the graph of H v; zeros where H does not depend on w, as in least squares."""
    bent = [(part, along) for part, along in zip(hvp, v, strict=True) if part.requires_grad]
    if not bent:
        return [torch.zeros_like(part) for part in w]
    parts, along = zip(*bent, strict=True)
    return torch.autograd.grad(parts, w, along, materialize_grads=True)


def modules_of(problem: Problem, points: list[list[Tensor]]) -> Any:
    """For a problem that is a torch module, its copies at the points."""
    from ..modules import ModuleProblem, Modules

    return Modules(problem, points, written_out) if isinstance(problem, ModuleProblem) else None


def joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def moved(w: Sequence[Tensor], g: Sequence[Tensor], r: Sequence[Tensor], eigenvalue: Tensor) -> list[Tensor]:
    """w − rate·(g + μ·sign(λ)·1[|λ| > K]·r)."""
    with torch.no_grad():
        factor = Step.MU * eigenvalue.sign() * (eigenvalue.abs() > Step.K)
        return [a - Step.RATE * (b + factor * c) for a, b, c in zip(w, g, r, strict=True)]
