"""torch.func: forward mode over reverse mode, jvp of grad and jvp of jvp of grad."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad_and_value, jvp, vmap

from ..problems import Data, Problem
from . import Step
from .torch_engine import Jet, StepResult, Torch, joined, moved

Vector = tuple[Tensor, ...]


class TorchFunc(Torch):
    ways = {"grad": ("grad",), "hvp": ("hvp",), "hvp_block": ("hvp_block",), "jet": ("jet",), "step": ("step",)}
    tries_one_thread = False
    ways_in_evaluation = {}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        self.w = [tuple(point) for point in self.points]
        self.v = [tuple(direction) for direction in self.directions]

    def gradient(self, *w: Tensor) -> tuple[Vector, Tensor]:
        """(∇f, loss), both differentiable."""
        return grad_and_value(lambda *w: self.loss(w), argnums=tuple(range(len(w))))(*w)

    def grad(self, repetition: int) -> tuple[Tensor, Vector]:
        g, loss = self.gradient(*self.w[repetition % 2])
        return loss, g

    def product(self, w: Vector, v: Vector) -> Vector:
        """H v. Forward mode keeps nothing of the base pass: it is run again with every direction."""
        return jvp(lambda *w: self.gradient(*w)[0], w, v)[1]

    def hvp(self, repetition: int) -> Vector:
        return self.product(self.w[0], self.v[repetition % 2])

    def hvp_block(self, repetition: int) -> Vector:
        return vmap(lambda *v: self.product(self.w[0], v))(*self.block(repetition))

    def taylor(self, w: Vector, v: Vector) -> Jet:
        """loss, ∇f, H v, vᵀ∇H v."""

        def along(*w: Tensor) -> tuple[Vector, tuple[Tensor, Vector]]:
            (g, loss), (hvp, _) = jvp(self.gradient, w, v)
            return hvp, (loss, g)

        (hvp, (loss, g)), (r2, _) = jvp(along, w, v)
        return loss, g, hvp, r2

    def jet(self, repetition: int) -> Jet:
        return self.taylor(self.w[repetition % 2], self.v[repetition % 2])

    def step(self, repetition: int) -> StepResult:
        """The last product comes with r, and so do loss and gradient."""
        w, direction = self.w[repetition % 2], self.v[repetition % 2]
        v = joined(direction)
        for _ in range(Step.ITERATIONS - 1):
            u = joined(self.product(w, direction))
            v = u / u.norm()
            direction = tuple(self.parts(v))
        loss, g, hvp, r = self.taylor(w, direction)
        eigenvalue = joined(hvp).dot(v)
        return loss, eigenvalue, moved(w, g, r, eigenvalue), v
