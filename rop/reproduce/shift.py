"""The paper's covariate shift: test samples are weighted as if the means of the features had moved.

Features have mean 0 and standard deviation 1. For a shift δ the weight of a sample x is the ratio of normal densities

    Π_j N(x_j; δ_j, 1) / N(x_j; 0, 1) = exp(x·δ − ‖δ‖²/2),

weights are normalised to sum 1, and the accuracy on shifted data is Σ_i weight_i [sample i is classified rightly]. The
logarithm is linear in x, so a block of shifts costs one matrix product. All models see the same shifts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["RARE", "relative_accuracy", "shifted_accuracy", "shifts"]

DRAWS, SPREAD, SEED = 1000, 0.05, 1226
RARE = (28,)  # soil type 15, which three samples of 581,012 have: a weight there would emphasise these alone
BLOCK = 2**23  # weights at a time, 64 MB


def shifts(features: int, draws: int = DRAWS) -> np.ndarray:
    """δ ~ N(0, 0.05²), (draws, features): the same for every model and seed.

    >>> shifts(53).shape, bool((shifts(53, 10) == shifts(53)[:10]).all())
    ((1000, 53), True)
    """
    return SPREAD * np.random.default_rng(SEED).standard_normal((draws, features))


def shifted_accuracy(x: np.ndarray, right: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Accuracy under each shift, (draws,).

    Args:
        x: features of the test samples, (count, features).
        right: whether each is classified rightly, (count,).
        delta: the shifts, (draws, features).

    >>> x = np.array([[1.0], [-1.0]])
    >>> found = shifted_accuracy(x, np.array([True, False]), np.array([[0.0], [0.5]]))
    >>> bool(np.allclose(found, [0.5, np.e**0.5 / (np.e**0.5 + np.e**-0.5)]))
    True
    """
    x = np.asarray(x, np.float64)
    hits = np.asarray(right, np.float64)
    found = np.empty(len(delta))
    step = max(1, BLOCK // max(1, len(x)))
    for start in range(0, len(delta), step):
        part = slice(start, start + step)
        logs = delta[part] @ x.T  # (block, count); ‖δ‖²/2 cancels when weights are normalised
        logs -= logs.max(axis=1, keepdims=True)
        weights = np.exp(logs, out=logs)
        found[part] = weights @ hits / weights.sum(axis=1)
    return found


def relative_accuracy(
    x: np.ndarray, right: np.ndarray, draws: int = DRAWS, without: Sequence[int] = RARE
) -> dict[str, float]:
    """Accuracy on shifted data divided by accuracy on the test data minus 1: its mean over the shifts, its standard
    deviation, and 1.96·sd/√draws, half of the interval that the paper prints.

    >>> x = np.random.default_rng(0).standard_normal((500, 4))
    >>> found = relative_accuracy(x, x[:, 0] > 0, draws=50, without=[3])
    >>> sorted(found)
    ['shift_half', 'shift_mean', 'shift_sd']
    """
    kept = np.setdiff1d(np.arange(x.shape[1]), without)
    relative = shifted_accuracy(x[:, kept], right, shifts(kept.size, draws)) / np.mean(right) - 1
    sd = float(relative.std(ddof=1))
    return {"shift_mean": float(relative.mean()), "shift_sd": sd, "shift_half": 1.96 * sd / draws**0.5}
