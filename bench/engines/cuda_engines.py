"""rop and PyTorch on a GPU: parameters, directions and results stay in its memory, a call ends when it has ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..problems import Data, Problem
from .rop_engine import Rop, objective
from .torch_engine import Torch, torch

WORKS = ("grad", "hvp", "hvp_block", "jet", "at_hvp_r2")  # what has no loop around it that belongs to the CPU


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
        super().prepare(problem, batch, dtype, data)  # modules go where the parts of ``split`` are
        self.data = tuple(one.to(self.device) for one in self.data)

    def split(self, flat: np.ndarray) -> list[Any]:
        return [part.to(self.device) for part in super().split(flat)]

    def run(self, way: str, repetition: int) -> Any:
        result = super().run(way, repetition)
        torch.cuda.synchronize()
        return result

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return super().flat([part.detach().cpu() for part in parts])


def product_rate(dtype: str) -> float:
    """flop/s of a large matrix product of PyTorch's on the GPU, in full precision."""
    from ..worker import timed

    torch.backends.cuda.matmul.allow_tf32 = False
    n = 4096
    a, b = (torch.ones((n, n), dtype=getattr(torch, dtype), device="cuda") for _ in range(2))

    def product(repetition: int) -> None:
        torch.mm(a, b)
        torch.cuda.synchronize()

    return 2 * n**3 / min(timed(product, 3))
