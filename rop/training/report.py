"""The reports of training steps: rows of float64 numbers, one row per step, with the columns of ``Report``.

Compiled code, the GPU and Python write the same columns, and all readers use their names:

>>> reports = blank(2)
>>> reports[:, Report.LOSS] = 1.0, np.inf
>>> is_finite(reports).tolist(), COLUMNS[:3], COLUMNS[Report.HVPS]
([True, False], ('loss', 'correct', 'rho'), 'hvps')
"""

from __future__ import annotations

import numpy as np

from rop.kernels.rules import Report

__all__ = ["COLUMNS", "DECIDING", "TIMES", "Report", "blank", "is_finite", "means"]

COLUMNS = tuple(column.name.lower() for column in Report)
DECIDING = [
    Report.LOSS,
    Report.RHO,
]  # a step in which one of them is not finite is not made
TIMES = [Report.GRADIENT_NS, Report.POWER_NS, Report.R2_NS, Report.REST_NS]


def blank(steps: int) -> np.ndarray:
    """The reports of this number of steps, (steps, columns), zero so far."""
    return np.zeros((steps, len(Report)))


def is_finite(reports: np.ndarray) -> np.ndarray:
    """For each report (..., columns) whether its step could be made."""
    return np.isfinite(reports[..., DECIDING]).all(axis=-1)


def means(reports: np.ndarray) -> dict[str, float]:
    """The mean of every column over the steps, by name."""
    return dict(zip(COLUMNS, reports.mean(axis=0).tolist(), strict=True))
