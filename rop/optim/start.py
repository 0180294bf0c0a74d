"""The vector from which the search for the dominant eigenvector starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

STARTS = ("random", "constant")


def start_of(penalty: Any) -> str:
    """Which of STARTS a penalty asks for: some have no such setting, and some runs have no penalty."""
    return str(getattr(penalty, "start_vector", "random"))


def first_direction(size: int, dtype: DTypeLike, seed: int | Sequence[int], start: str = "random") -> np.ndarray:
    """A vector of length one, (n,): random, or with equal components if ``start`` is "constant".

    The seed is that of the run for its first step, and (seed, step) for a step of a run without warm starts. Compiled
    steps without warm starts draw from a generator of their own, because NumPy's is not available to compiled code.

    >>> float(np.linalg.norm(first_direction(5, np.float64, seed=1)).round(12))
    1.0
    >>> first_direction(4, np.float64, seed=1, start="constant").tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    if start == "constant":
        return np.full(size, 1 / np.sqrt(size), dtype)
    random = np.random.default_rng(seed).standard_normal(size)
    return (random / np.linalg.norm(random)).astype(dtype)
