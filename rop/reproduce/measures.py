"""What is measured of a trained net: accuracy, and the spectral radius in the paper's sense and in the true one.

Both spectral radii are always named:

    rho_batch   Σ_b |b| ρ(H_b) / Σ_b |b|, the mean over the batches of the training set in their order, the last one
                partial: what the paper calls ρ of the full training set
    rho_full    ρ of the Hessian of the mean loss over the whole training set
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import rop
from rop.errors import RopError
from rop.graph import Graph
from rop.layers.loss import Loss
from rop.prediction import predict

__all__ = ["correct", "rho_batch", "rho_full"]

TOLERANCE = 1e-3  # ‖Hv − λv‖ ≤ TOLERANCE·|λ| for every batch; λ itself is then exact to about 1e-6
FULL_TOLERANCE = 1e-2  # on the whole training set; λ is then exact to about 1e-4
FEW, MANY = 40, 200  # products
ROUNDING = 1e-3  # below it the Hessian of a net in float32 is rounding errors: weights are of the order of 1
State = Mapping[str, np.ndarray]


def correct(net: Graph, w: np.ndarray, x: np.ndarray, y: np.ndarray, state: State | None = None) -> np.ndarray:
    """Which samples are classified rightly, (count,) of bool.

    >>> net = rop.Sequential(rop.Linear(1, 2))
    >>> correct(net, np.array([1.0, -1.0, 0.0, 0.0]), np.array([[3.0], [-3.0]]), np.array([0, 0])).tolist()
    [True, False]
    """
    found: np.ndarray = predict(net, w, x, state or None).argmax(axis=1) == y
    return found


def rho_full(net: Graph, loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray, state: State | None = None) -> float:
    """ρ of the Hessian of the loss over all samples, running statistics being used for batchnorm.

    >>> net = rop.Sequential(rop.Linear(1, 1))
    >>> x = np.array([[1.0], [-1.0]])
    >>> round(rho_full(net, rop.MSE(), net.init(), x, x), 4)  # f = w² + b² + …
    2.0
    """
    return _rho(_objective(net, loss, w, x, y, state), w, FULL_TOLERANCE)


def rho_batch(
    net: Graph,
    loss: Loss,
    w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    state: State | None = None,
    most: int | None = None,
) -> float:
    """The mean of ρ over batches, weighted by their sizes; of the first ``most`` batches only, if that is given.

    >>> net = rop.Sequential(rop.Linear(1, 1))
    >>> x = np.array([[1.0], [-1.0], [0.0]])
    >>> round(rho_batch(net, rop.MSE(), net.init(), x, x, batch_size=2), 4)  # ρ of the batches: 2 and 2
    2.0
    """
    objective: rop.Objective | None = None
    total = weight = 0.0
    for start in range(0, len(x), batch_size)[:most]:
        part = slice(start, start + batch_size)
        if objective is None:
            objective = _objective(net, loss, w, x[part], y[part], state)
        else:
            objective = objective.with_data(x[part], y[part])
        size = len(x[part])
        total, weight = total + size * _rho(objective, w, TOLERANCE), weight + size
    return total / weight


def _objective(net: Graph, loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray, state: Any) -> rop.Objective:
    return rop.Objective(net, loss, x, y, dtype=w.dtype, training=False, state=state or None)


def _rho(objective: rop.Objective, w: np.ndarray, tol: float) -> float:
    """ρ by Lanczos, from a random start. Where the Hessian is 0 to rounding, as of a net that has collapsed, no
    tolerance relative to λ can be met, and the value found after a few products is as good as 0."""
    point = objective.at(w)
    found = rop.eigen.lanczos(point, tol=tol, maxiter=FEW)
    if not found.converged and found.rho > ROUNDING:
        found = rop.eigen.lanczos(point, tol=tol, maxiter=MANY)
    if not np.isfinite(found.rho):
        raise RopError("the spectral radius of a trained net is not finite")
    return found.rho
