"""What torch and JAX share as engines: a vector is a list of arrays, one in the shape of each parameter."""

from __future__ import annotations

import itertools
import math
from typing import Any, Generic, TypeVar

import numpy as np

from ..problems import BLOCK, Data, Problem
from . import Engine

Array = TypeVar("Array")


class EngineOfParts(Engine, Generic[Array]):
    """An engine whose points, directions and results are lists of arrays. A subclass has `array`."""

    points: list[list[Array]]
    directions: list[list[Array]]

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        self.points = [self.split(w) for w in data.points]
        self.directions = [self.split(v) for v in data.directions]

    def array(self, part: np.ndarray) -> Array:
        """An array of the library with the numbers of a NumPy array."""
        raise NotImplementedError

    def to_numpy(self, part: Array) -> np.ndarray:
        """The numbers of an array of the library, in float64."""
        return np.asarray(part, dtype=np.float64)

    def split(self, flat: np.ndarray) -> list[Array]:
        """A vector, or every row of a matrix, cut into arrays of the parameters' shapes."""
        shapes = [parameter.shape for parameter in self.problem.parameters()]
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
        return [
            self.array(flat[..., start:end].reshape(*flat.shape[:-1], *shape))
            for start, end, shape in zip([0, *ends], ends, shapes, strict=False)
        ]

    def statistics(self) -> list[tuple[Array, Array]]:
        """The running mean and variance of every batchnorm; none in training mode."""
        return [
            (self.array(mean.astype(self.dtype)), self.array(variance.astype(self.dtype)))
            for mean, variance in self.problem.running()
        ]

    def block(self, repetition: int) -> list[Array]:
        """The directions of `hvp_block`: every part has one direction after the other along its first axis."""
        blocks = self.keep("blocks", lambda: [self.split(block.T) for block in self.problem.blocks(self.dtype)])
        return blocks[repetition % 2]

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return np.concatenate([self.to_numpy(part).ravel() for part in parts])

    def vectors(self, result: Any) -> np.ndarray:
        return self.flat([part[k] for k in range(BLOCK) for part in result])
