"""torch.func: forward mode over reverse mode, jvp of grad and jvp of jvp of grad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, jvp

from ..problems import Data, Problem
from .torch_engine import Torch


class TorchFunc(Torch):
    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        self.w = [tuple(point) for point in self.points]
        self.v = [tuple(direction) for direction in self.directions]

    def gradient(self, *w: Tensor) -> Any:
        """(∇f, loss), both differentiable."""
        return grad_and_value(lambda *w: self.loss(w), argnums=tuple(range(len(w))))(*w)

    def grad(self, repetition: int) -> Any:
        g, loss = self.gradient(*self.w[repetition % 2])
        return loss, g

    def hvp(self, repetition: int) -> Any:
        """Forward mode keeps nothing of the base pass: it is run again with every direction."""
        return jvp(lambda *w: self.gradient(*w)[0], self.w[0], self.v[repetition % 2])[1]

    def jet(self, repetition: int) -> Any:
        w, v = self.w[repetition % 2], self.v[repetition % 2]

        def along(*w: Tensor) -> Any:
            (g, loss), (hvp, _) = jvp(self.gradient, w, v)
            return hvp, (loss, g)

        (hvp, (loss, g)), (r2, _) = jvp(along, w, v)
        return loss, g, hvp, r2

    @staticmethod
    def versions() -> dict[str, str]:
        return {"torch": torch.__version__}
