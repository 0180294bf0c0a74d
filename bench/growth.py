"""How the time of loss+grad+Hv+R² grows with width, depth and batch: the points that are measured, and their slopes.

Cost should grow linearly in parameters, layers and samples: on logarithmic axes a line of slope 1, once it exceeds the
fixed overhead. So a slope is fitted to the upper half of the points. The slope of the operations that the recursion
needs is fitted to the same points for comparison: first and last layers differ from the others, so even that one is
not exactly 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .problems import Problem, find

WORK, DTYPE = "jet", "float32"


@dataclass(frozen=True)
class Axis:
    name: str
    about: str
    against: str  # what the slope is fitted against
    points: tuple[tuple[int, str, int], ...]  # value, problem, batch
    rivals: tuple[int, ...]  # the values at which engines other than rop are measured too

    def problem(self, value: int) -> tuple[Problem, int]:
        """The problem and the batch of a point."""
        ((name, batch),) = [(name, batch) for at, name, batch in self.points if at == value]
        return find(name)[0], batch


def mlp(*widths: int) -> str:
    return "mlp:" + "-".join(map(str, widths))


AXES = (
    Axis(
        "width",
        "MLP 54-w-w-w-7, batch 128",
        "parameters",
        tuple((w, mlp(54, w, w, w, 7), 128) for w in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        (8, 32, 128, 512),
    ),
    Axis(
        "depth",
        "MLP 64-64-…-64-10, batch 128",
        "layers 64→64",  # besides the first, which is cheaper
        tuple((n, mlp(64, *[64] * (n + 1), 10), 128) for n in (2, 3, 4, 6, 8, 12, 16)),
        (2, 4, 8, 16),
    ),
    Axis(
        "batch",
        "MLP 54-20-20-20-7",
        "samples",
        tuple((b, "forest", b) for b in (32, 64, 128, 256, 512, 1024, 2048, 4096)),
        (32, 128, 1024, 4096),
    ),
)


def abscissa(row: dict[str, Any]) -> float:
    """The quantity against which the slope is fitted."""
    return row["parameters"] if row["axis"] == "width" else row["value"]


def slope(x: list[float], y: list[float]) -> float | None:
    """The slope of a line fitted to the upper half of the points (at least two), with both axes logarithmic.

    >>> slope([1, 2, 4, 8], [5, 5, 12, 24])
    1.0
    """
    if len(x) < 2:
        return None
    points = sorted(zip(x, y, strict=True))[min(len(x) // 2, len(x) - 2) :]
    across, up = np.log(np.array(points)).T
    return round(float(np.polyfit(across, up, 1)[0]), 3)


def slopes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every axis and engine the slope of its times and of the operations at the same points."""
    result = []
    for axis in AXES:
        mine = [row for row in rows if row["axis"] == axis.name and row["status"] == "ok"]
        for engine in dict.fromkeys(name for row in mine for name in row["engines"]):
            at = [row for row in mine if engine in row["engines"]]
            x = [abscissa(row) for row in at]
            fitted = slope(x, [row["engines"][engine]["median_s"] for row in at])
            if fitted is not None:
                needed = slope(x, [row["flops"] for row in at])
                result.append(
                    {
                        "axis": axis.name,
                        "against": axis.against,
                        "engine": engine,
                        "points": len(at),
                        "slope": fitted,
                        "flops_slope": needed,
                    }
                )
    return result
