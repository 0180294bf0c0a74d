"""rop and PyTorch on a GPU: points, directions and results stay in its memory, and every call waits for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..problems import Data, Problem
from ..worker import timed
from .rop_engine import Rop, objective
from .torch_engine import Torch

if TYPE_CHECKING:
    from torch import Tensor

WORKS = ("grad", "hvp", "hvp_block", "jet", "at_hvp_r2")  # steps and epochs are loops on the CPU


class RopCuda(Rop):
    ways = {work: ways for work, ways in Rop.ways.items() if work in WORKS}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        from numba import cuda

        super(Rop, self).prepare(problem, batch, dtype, data)
        self.cuda = cuda
        self.f = objective(problem, dtype, data, device="cuda")
        self.points: Any = [cuda.to_device(w) for w in data.points]
        self.directions: Any = [cuda.to_device(v) for v in data.directions]

    def hvp_block(self, repetition: int) -> Any:
        blocks = self.keep(
            "blocks",
            lambda: [self.cuda.to_device(np.asfortranarray(block)) for block in self.problem.blocks(self.dtype)],
        )
        return self.point().hvp(blocks[repetition % 2])

    def run(self, way: str, repetition: int) -> Any:
        result = super().run(way, repetition)
        self.cuda.synchronize()
        return result

    def flat(self, quantity: Any) -> np.ndarray:
        return super().flat(quantity.copy_to_host() if hasattr(quantity, "copy_to_host") else quantity)

    def vectors(self, result: Any) -> np.ndarray:
        return super().vectors(result.copy_to_host())


class TorchCuda(Torch):
    ways = {work: ways for work, ways in Torch.ways.items() if work in WORKS}
    tries_one_thread = False
    device = "cuda"

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)  # copies of a module go to the device of the points
        x, y = self.data
        self.data = x.to(self.device), y.to(self.device)

    def array(self, part: np.ndarray) -> Tensor:
        return super().array(part).to(self.device)

    def to_numpy(self, part: Tensor) -> np.ndarray:
        return super().to_numpy(part.cpu())

    def run(self, way: str, repetition: int) -> Any:
        result = super().run(way, repetition)
        torch.cuda.synchronize()
        return result


def product_rate(dtype: str) -> float:
    """flop/s of a large matrix product of PyTorch's on the GPU, in full precision."""
    torch.backends.cuda.matmul.allow_tf32 = False
    n = 4096
    a, b = (torch.ones((n, n), dtype=getattr(torch, dtype), device="cuda") for _ in range(2))

    def product(repetition: int) -> None:
        torch.mm(a, b)
        torch.cuda.synchronize()

    return 2 * n**3 / min(timed(product, 3))
