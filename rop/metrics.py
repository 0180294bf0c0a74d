"""Measures of a classifier with several independent labels: the area under the ROC curve, label by label.

The area is the probability that a sample of the class has a higher score than one outside of it, an equal score
counting half (Mann and Whitney's U): with n₁ samples of the class, n₀ others and the mean ranks r of the scores,

    AUC = (Σ over samples of the class of r − n₁ (n₁ + 1) / 2) / (n₁ n₀).

Targets are 1 (in the class), 0 (not) or NaN: unknown, left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rop.arguments import as_array
from rop.errors import ArgumentError, ArgumentTypeError

__all__ = ["auc", "auc_by_label", "mean_auc"]


def auc(scores: ArrayLike, targets: ArrayLike) -> float:
    """The area under the ROC curve of one label.

    Args:
        scores: higher for samples that seem to be of the class, (N,): logits or probabilities.
        targets: 1, 0 or NaN, (N,). Both classes must occur.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])                  # of four pairs three are right, one is a tie
    0.875
    """
    s, t = _checked("auc", scores, targets, 1)
    if not _has_both(t):
        raise ArgumentError(
            f"auc: expected targets of both classes, got {int((t == 1).sum())} ones and {int((t == 0).sum())} zeros; "
            "the area under the ROC curve is not defined for one class"
        )
    return _area(s, t)


def auc_by_label(scores: ArrayLike, targets: ArrayLike) -> np.ndarray:
    """The area under the ROC curve of every column, (K,); NaN for a column without both classes.

    >>> auc_by_label([[0.2, 0.3], [0.9, 0.1]], [[0, 1], [1, np.nan]])
    array([ 1., nan])
    """
    s, t = _checked("auc_by_label", scores, targets, 2)
    areas = [_area(s[:, j], t[:, j]) if _has_both(t[:, j]) else np.nan for j in range(t.shape[1])]
    return np.array(areas, np.float64)


def mean_auc(scores: ArrayLike, targets: ArrayLike) -> float:
    """The mean of the areas under the ROC curves of all columns that have both classes.

    Args:
        scores: (N, K), for example the logits of a net with K labels.
        targets: 1, 0 or NaN for unknown, (N, K).

    >>> mean_auc([[0.2, 0.3], [0.9, 0.1], [0.5, 0.2]], [[0, 1], [1, 0], [1, np.nan]])
    1.0
    """
    s, t = _checked("mean_auc", scores, targets, 2)
    areas = auc_by_label(s, t)
    if np.isnan(areas).all():
        raise ArgumentError(
            f"mean_auc: expected at least one column with targets of both classes, got {t.shape[1]} columns without; "
            "evaluate more samples"
        )
    return float(np.nanmean(areas))


def _has_both(t: np.ndarray) -> bool:
    return bool((t == 0).any() and (t == 1).any())


def _area(s: np.ndarray, t: np.ndarray) -> float:
    """The area of one column that has both classes."""
    from scipy.stats import rankdata

    known = ~np.isnan(t)
    ranks, positive = rankdata(s[known]), t[known] == 1
    n1 = int(positive.sum())
    n0 = positive.size - n1
    return float((ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def _checked(owner: str, scores: ArrayLike, targets: ArrayLike, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets as float64 arrays of one shape."""
    s, t = as_array(f"{owner}: scores", scores), as_array(f"{owner}: targets", targets)
    for name, array in (("scores", s), ("targets", t)):
        if array.dtype.kind not in "fiub":
            raise ArgumentTypeError(f"{owner}: expected {name} as numbers, got an array of {array.dtype}")
    if s.ndim != ndim or s.shape != t.shape:
        expected = "(N,)" if ndim == 1 else "(N, K)"
        raise ArgumentError(
            f"{owner}: expected scores and targets of one shape {expected}, got scores {s.shape} and targets {t.shape}"
        )
    s, t = s.astype(np.float64), t.astype(np.float64)
    if np.isnan(s).any():
        missing = int(np.isnan(s).sum())
        raise ArgumentError(f"{owner}: expected scores without NaN, got {missing}; has the training diverged?")
    if not np.isin(t[~np.isnan(t)], (0, 1)).all():
        raise ArgumentError(f"{owner}: expected targets 0, 1 or NaN for unknown, got {t[~np.isin(t, (0, 1))][0]:g}")
    return s, t
