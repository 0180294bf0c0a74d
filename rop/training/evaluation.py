"""How good a net is: its loss and accuracy, and whether it has collapsed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from rop.arguments import as_array
from rop.graph import Graph
from rop.inputs import check_problem
from rop.layers.loss import NLL, CrossEntropy, Loss
from rop.objective import Objective
from rop.prediction import predict

VANISHED = 1e-4  # ‖∇f‖ of collapsed forest nets is 2e-9 to 1.2e-5, of a live one 1e-2
PROBE = 256  # this number of samples is enough to see that a net is alive


def evaluate(
    net: Graph, loss: Loss, w: ArrayLike, x: ArrayLike, y: ArrayLike, state: Mapping[str, np.ndarray] | None = None
) -> tuple[float, float]:
    """Loss and accuracy of a net in evaluation mode; the accuracy of targets that are not labels is NaN.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(1, 2))
    >>> w = np.array([1.0, -1.0, 0.0, 0.0])                      # class 0 where x > 0
    >>> rop.evaluate(net, rop.CrossEntropy(), w, np.array([[3.0], [-3.0]]), np.array([0, 0]))[1]
    0.5
    """
    check_problem("evaluate", net, loss)
    outputs, y = predict(net, w, x, state), as_array("y", y)
    value = loss.value(outputs, y)
    labels = y.dtype.kind in "iu" and outputs.ndim == 2 and y.ndim == 1
    return value, float((outputs.argmax(axis=1) == y).mean()) if labels else float("nan")


def has_collapsed(
    net: Graph, loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray, state: Mapping[str, np.ndarray] | None = None
) -> bool:
    """Whether a classifier predicts one class for all samples, wrongly for some, and ‖∇f‖ < 1e-4: then no training on
    them will bring it back. For most nets that are alive the first samples are enough to see it.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(1, 2), rop.Softmax(1))
    >>> x, y = np.array([[1.0], [2.0]]), np.array([0, 1])
    >>> dead, alive = np.array([0.0, 0.0, 99.0, -99.0]), np.array([1.0, 0.0, 0.0, 0.0])
    >>> [has_collapsed(net, rop.CrossEntropy(), w, x, y) for w in (dead, alive)]
    [True, False]
    """
    if not isinstance(loss, (CrossEntropy, NLL)):
        return False
    wanted = y if y.dtype.kind in "iu" else y.argmax(axis=1)
    for part in (slice(PROBE), slice(None)):
        chosen = predict(net, w, x[part], state).argmax(axis=1)
        if (chosen != chosen.flat[0]).any():
            return False
    if (chosen == wanted).all():
        return False
    f = Objective(net, loss, x, y, dtype=w.dtype, training=False, state=state or None)
    return bool(np.linalg.norm(f.at(w).grad) < VANISHED)
