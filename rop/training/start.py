"""The vector from which the search for the dominant eigenvector starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike


def first_direction(size: int, dtype: DTypeLike, seed: int | Sequence[int]) -> np.ndarray:
    """A random vector of length one, (n,). The seed is that of the run for its first step, and (seed, step) for a step
    of a run without warm starts. Compiled steps without warm starts draw from a generator of their own, because
    NumPy's is not available to compiled code.

    >>> float(np.linalg.norm(first_direction(5, np.float64, seed=1)).round(12))
    1.0
    """
    random = np.random.default_rng(seed).standard_normal(size)
    return (random / np.linalg.norm(random)).astype(dtype)
