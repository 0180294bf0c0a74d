"""PyTorch: one, two and three backward passes through its tape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..problems import Data, Problem
from . import Step
from .parts import EngineOfParts
from .torch_layers import EXACT, FUSED

if TYPE_CHECKING:
    from ..modules import Modules

Parts = Sequence[Tensor]
Batch = tuple[Tensor, Tensor]
Jet = tuple[Tensor, Parts, Parts, Parts]  # loss, ∇f, H v, vᵀ∇H v
StepResult = tuple[Tensor, Tensor, Parts, Tensor]  # loss, λ, w′, v

ONE = "@1"  # marks a way that uses one thread, however many there are: often the fastest for a small net
LARGE = 2**20  # parameters of a net for which one thread is not tried


class Torch(EngineOfParts[Tensor]):
    """PyTorch's autograd. It has 26 methods because each work is a method, and so is each further way to do it."""

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
    ways_in_evaluation: dict[str, tuple[str, ...]] = {"jet": ("jet", "jet_fused")}  # beside those of training mode

    def __init__(self, threads: int):
        super().__init__(threads)
        self.ways = self.with_one_thread(type(self).ways)

    def with_one_thread(self, ways: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """The ways, and each of them with one thread where there are more."""
        if self.threads == 1 or not self.tries_one_thread:
            return ways
        return {work: some + tuple(way + ONE for way in some) for work, some in ways.items()}

    def choose_ways(self, problem: Problem) -> None:
        """One thread is not tried for a large net, and torch's own batchnorm for jets only with running statistics."""
        ways = type(self).ways
        if self.running:
            ways = {**ways, **self.ways_in_evaluation}
        self.ways = self.with_one_thread(ways) if problem.size < LARGE else ways

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
        self.sizes = [math.prod(p.shape) for p in problem.parameters()]
        self.modules = modules_of(problem, self.points)
        self.running = self.statistics()
        self.choose_ways(problem)

    def array(self, part: np.ndarray) -> Tensor:
        """A tensor with memory of its own, of the size of the part."""
        return torch.from_numpy(part.copy())

    def to_numpy(self, part: Tensor) -> np.ndarray:
        return part.detach().double().numpy()

    def loss(self, parameters: Parts, exact: bool = True, data: Batch | None = None) -> Tensor:
        """The loss of a batch; not exact: with torch's own batchnorm, in training mode for nothing but a gradient."""
        x, y = data or self.data
        if self.modules:
            return self.modules.loss(self.modules.outputs(parameters, x, exact), y)
        layers = EXACT if exact else FUSED
        running = None if self.problem.training else iter(self.running)
        return layers.loss(self.problem.loss, layers.forward(self.problem.layers, iter(parameters), x, running), y)

    def leaves(self, repetition: int) -> list[Tensor]:
        """The parameters of which derivatives are taken."""
        if self.modules:
            return self.modules.leaves[repetition % 2]
        return [w.detach().requires_grad_() for w in self.points[repetition % 2]]

    def grad(self, repetition: int) -> tuple[Tensor, Parts]:
        w = self.leaves(repetition)
        loss = self.loss(w, exact=False)
        return loss, torch.autograd.grad(loss, w)

    def point(self) -> tuple[Parts, Parts]:
        """(w, ∇f) with the graph of ∇f."""
        w = self.leaves(0)
        return w, torch.autograd.grad(self.loss(w), w, create_graph=True)

    def hvp(self, repetition: int) -> Parts:
        w, g = self.keep("point", self.point)
        return torch.autograd.grad(g, w, self.directions[repetition % 2], retain_graph=True)

    def hvp_block_batched(self, repetition: int) -> Parts:
        w, g = self.keep("point", self.point)
        return torch.autograd.grad(g, w, self.block(repetition), retain_graph=True, is_grads_batched=True)

    def hvp_block_loop(self, repetition: int) -> Parts:
        w, g = self.keep("point", self.point)
        block = zip(*self.block(repetition), strict=True)
        results = [torch.autograd.grad(g, w, v, retain_graph=True) for v in block]
        return [torch.stack(parts) for parts in zip(*results, strict=True)]

    def jet(self, repetition: int) -> Jet:
        return self.three_passes(repetition, exact=True)

    def jet_fused(self, repetition: int) -> Jet:
        """With torch's own batchnorm, whose third derivative is right in evaluation mode."""
        return self.three_passes(repetition, exact=False)

    def three_passes(self, repetition: int, exact: bool) -> Jet:
        w, v = self.leaves(repetition), self.directions[repetition % 2]
        loss = self.loss(w, exact)
        g = torch.autograd.grad(loss, w, create_graph=True)
        hvp = torch.autograd.grad(g, w, v, create_graph=True)
        r2 = third(hvp, w, v)
        return loss, g, hvp, r2

    # ------------------------------------------------------------------------------------------------ steps and epochs
    def parts(self, flat: Tensor) -> list[Tensor]:
        """A flat vector in the shapes of the parameters, without a copy."""
        return [part.view(w.shape) for part, w in zip(flat.split(self.sizes), self.points[0], strict=True)]

    def step(self, repetition: int) -> StepResult:
        """The graph of the gradient serves all products; only the last one gets a graph of its own, for r."""
        return self.one_step(self.leaves(repetition), self.directions[repetition % 2])[:4]

    def one_step(
        self, w: Parts, direction: Parts, batch: Batch | None = None
    ) -> tuple[Tensor, Tensor, Parts, Tensor, Tensor]:
        """A step, and its last u = H v."""
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

    def epoch_tensors(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """All rows, and the orders in which epochs go through them."""
        data = self.epoch_data()
        return torch.from_numpy(data.x), torch.from_numpy(data.y), [torch.from_numpy(order) for order in data.orders]

    def batches(self, repetition: int) -> Iterator[Batch]:
        """The batches of an epoch, whose rows are gathered in their order once."""
        x, y, orders = self.keep("epoch tensors", self.epoch_tensors)
        order = orders[repetition % 2][: self.steps * self.batch]
        return zip(x.index_select(0, order).split(self.batch), y.index_select(0, order).split(self.batch), strict=True)

    def epoch_by_hand(self, repetition: int) -> tuple[Tensor, Parts]:
        w = [part.clone().requires_grad_() for part in self.points[repetition % 2]]
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            loss = self.loss(w, exact=False, data=batch)
            g = torch.autograd.grad(loss, w)
            with torch.no_grad():
                torch._foreach_add_(w, g, alpha=-Step.RATE)
                total += loss
        return total / self.steps, w

    def penalised(self, repetition: int) -> tuple[Tensor, Parts]:
        w, direction = self.leaves(repetition), self.directions[repetition % 2]
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            loss, _, moved_w, _, u = self.one_step(w, direction, batch)
            w, direction = [part.detach().requires_grad_() for part in moved_w], self.parts(u / u.norm())
            total += loss.detach()
        return total / self.steps, w

    def epoch_by_optimizer(self, repetition: int) -> tuple[Tensor, Parts]:
        w = [part.clone().requires_grad_() for part in self.points[repetition % 2]]
        optimizer = torch.optim.SGD(w, lr=Step.RATE, fused=True)
        total = torch.zeros((), dtype=w[0].dtype)
        for batch in self.batches(repetition):
            optimizer.zero_grad()
            loss = self.loss(w, exact=False, data=batch)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total / self.steps, w


def third(hvp: Parts, w: Parts, v: Parts) -> Parts:
    """vᵀ∇H v from the graph of H v; zeros where H does not depend on w, as in least squares."""
    bent = [(part, along) for part, along in zip(hvp, v, strict=True) if part.requires_grad]
    if not bent:
        return [torch.zeros_like(part) for part in w]
    parts, along = zip(*bent, strict=True)
    return torch.autograd.grad(parts, w, along, materialize_grads=True)


def modules_of(problem: Problem, points: list[list[Tensor]]) -> Modules | None:
    """For a problem that is a torch module, its copies at the points."""
    from ..modules import ModuleProblem, Modules

    return Modules(problem, points) if isinstance(problem, ModuleProblem) else None


def joined(parts: Parts) -> Tensor:
    """One flat vector, without a graph."""
    return torch.cat([part.detach().reshape(-1) for part in parts])


def moved(w: Parts, g: Parts, r: Parts, eigenvalue: Tensor) -> list[Tensor]:
    """w − rate·(g + μ·sign(λ)·1[|λ| > K]·r)."""
    with torch.no_grad():
        factor = Step.MU * eigenvalue.sign() * (eigenvalue.abs() > Step.K)
        return [a - Step.RATE * (b + factor * c) for a, b, c in zip(w, g, r, strict=True)]
