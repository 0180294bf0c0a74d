"""Numba's CUDA simulator with a scheduler of our own.

Numba's runs every CUDA thread as a thread of the operating system and polls them all until they meet at a barrier: ten
seconds for a network of two layers. Here the threads of a block are greenlets that run one after the other from barrier
to barrier, in an order that is drawn anew each time, so that a kernel which depends on it is likely to be noticed.
Shared and local memory starts as NaN. Everything else is Numba's: how kernels are declared, called and given arrays.

Needs NUMBA_ENABLE_CUDASIM=1 before numba is imported; ``install()`` then changes this process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


class Index:
    """threadIdx, blockIdx, blockDim, gridDim."""

    def __init__(self, x: int, y: int, z: int) -> None:
        self.x, self.y, self.z = x, y, z


def points(shape: tuple[int, ...]) -> Iterator[Index]:
    """All indices below a shape of three numbers."""
    for point in np.ndindex(*shape):
        yield Index(*point)


class Memory:
    """``cuda.shared`` of a block, ``cuda.local`` of a thread."""

    def __init__(self, shared: bool) -> None:
        self._arrays: dict[Any, np.ndarray] | None = {} if shared else None

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        """NaN wherever nothing was written; a line of source that asks for shared memory gets the same every time."""
        if self._arrays is None:
            return filled(shape, dtype)
        caller = sys._getframe(1)
        key = caller.f_code, caller.f_lineno
        if key not in self._arrays:
            self._arrays[key] = filled(shape, dtype)
        return self._arrays[key]


def filled(shape: Any, dtype: Any) -> np.ndarray:
    dtype = np.dtype(dtype)
    return np.full(shape, np.nan if dtype.kind == "f" else np.iinfo(dtype).min // 2, dtype)


class Cuda:
    """The module that a kernel sees under the name ``cuda``; other attributes are numba.cuda's."""

    def __init__(self, real: Any) -> None:
        import greenlet  # this file is imported wherever tests are collected

        self._real, self._greenlet = real, greenlet
        self._scheduler: Any = None
        self.threadIdx = self.blockIdx = self.blockDim = self.gridDim = Index(0, 0, 0)
        self.shared, self.local = Memory(shared=True), Memory(shared=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def syncthreads(self) -> None:
        self._scheduler.switch()

    def grid(self, ndim: int) -> int:
        assert ndim == 1
        return self.blockIdx.x * self.blockDim.x + self.threadIdx.x

    def gridsize(self, ndim: int) -> int:
        assert ndim == 1
        return self.gridDim.x * self.blockDim.x

    def run(self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any], rng: Any) -> None:
        """All blocks of a launch, one after the other."""
        self._scheduler, self.gridDim, self.blockDim = self._greenlet.getcurrent(), Index(*grid), Index(*block)
        for self.blockIdx in points(grid):
            self.shared = Memory(shared=True)
            threads = [(self._greenlet.greenlet(function), index) for index in points(block)]
            arguments: list[Any] = args
            while threads:
                rng.shuffle(threads)
                for thread, self.threadIdx in threads:
                    thread.switch(*arguments)
                threads = [(thread, index) for thread, index in threads if not thread.dead]
                arguments = []


def install(seed: int = 0) -> None:
    """Makes Numba's simulator use this scheduler."""
    from numba import cuda
    from numba.cuda.errors import normalize_kernel_dimensions
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
    from numba.cuda.simulator.kernel import FakeCUDAKernel

    seen, inside, rng = Cuda(cuda), [False], random.Random(seed)

    def within_kernel(arg: Any) -> Any:
        """NumPy arrays in place of arrays of the simulated device, also in tuples."""
        if isinstance(arg, tuple):
            return tuple(within_kernel(part) for part in arg)
        return arg._ary if isinstance(arg, FakeCUDAArray) else arg

    def call(self: Any, *args: Any) -> Any:
        scope = self.fn.__globals__
        if scope.get("cuda") is cuda:
            scope["cuda"] = seen
        if self._device or inside[0]:
            return self.fn(*args)
        grid, block = normalize_kernel_dimensions(self.grid_dim, self.block_dim)
        inside[0] = True
        try:
            with np.errstate(all="ignore"):
                seen.run(self.fn, grid, block, [within_kernel(arg) for arg in args], rng)
        finally:
            inside[0] = False

    FakeCUDAKernel.__call__ = call
