"""Checks derivatives: of an activation, a layer, a loss or a whole network, the package's or your own.

>>> import math, rop
>>> def swish(x):
...     s = 1 / (1 + math.exp(-x))
...     d = s * (1 - s)
...     return x * s, s + x * d, 2 * d + x * d * (1 - s), 0.0       # the last two are wrong
>>> found = rop.check.layer(swish, engine=False)
>>> found.ok, [d.name for d in found.wrong]
(False, ['f″', 'f‴'])

``layer``, ``loss`` and ``network`` return a ``Result``: rows, a verdict, and tables for ``print``; in tests,
``result.raise_if_wrong()``. The command `rop check` does the same for everything the package has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rop.arguments import as_array, check_choice, check_dtype, check_int, shown
from rop.check import subjects
from rop.check.derivatives import Derivative, check_derivatives, points_in
from rop.check.examine import Examination, Row
from rop.check.report import CheckFailed, Result, worst
from rop.check.stand import LayerStand, LossStand, NetworkStand, Stand, fitting_shapes, fitting_targets
from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph
from rop.inputs import as_floats, check_problem
from rop.layers.base import Layer, Shape
from rop.layers.elementwise import Elementwise, Scalar
from rop.layers.kinds import record_of
from rop.layers.loss import Loss

__all__ = ["CheckFailed", "Result", "layer", "loss", "network", "everything"]

BOTH = ("float64", "float32")
RANGE, POINTS = (-6.0, 6.0), 201  # where the derivatives of a scalar function are checked


def layer(
    layer: Layer | Scalar,
    *,
    shape: Shape | None = None,
    x: ArrayLike | None = None,
    dtypes: Sequence[DTypeLike] = BOTH,
    orders: Sequence[int] = (0, 1, 2),
    training: bool = True,
    engine: bool = True,
) -> Result:
    """Checks a layer, or a function (f, f′, f″, f‴) as rop.Elementwise takes it.

    For an elementwise layer each derivative is compared with differences of the one before it, at the points ``x``
    (default: 201 points from −6 to 6); the result says which is wrong, at which x and by how much. Then the layer runs
    in the engine, on random inputs of the given ``shape`` (without the batch; guessed if left out): its outputs and
    the gradients of its input and of its weights are compared at every order with torch, with differences and by
    identities. ``engine=False`` leaves that out.

    >>> import rop
    >>> rop.check.layer(rop.Linear(3, 2), dtypes=["float64"]).ok
    True
    """
    if isinstance(layer, type):
        raise ArgumentTypeError(f"check: expected a layer, got the class {layer.__name__}; write {layer.__name__}(...)")
    if not isinstance(layer, Layer):
        layer = Elementwise(layer)
    record_of(layer, "check")
    derivatives = _scalar(layer, x) if isinstance(layer, Elementwise) else []
    rows = []
    if engine:
        shapes = fitting_shapes(layer) if shape is None else (_shape(shape),) * max(1, layer.min_inputs)
        rows = _rows(LayerStand(layer, shapes, training=training), _name(layer), dtypes, orders)
    return Result(_name(layer), tuple(rows), tuple(derivatives), torch_version())


def loss(
    loss: Loss,
    *,
    shape: Shape | None = None,
    y: ArrayLike | None = None,
    dtypes: Sequence[DTypeLike] = BOTH,
    orders: Sequence[int] = (0, 1, 2),
) -> Result:
    """Checks a loss on random outputs of the given shape (without the batch) with the targets y.

    Both are drawn if they are left out. There are 17 samples, or 5 for outputs of more than four pixels.

    >>> import numpy as np, rop
    >>> rop.check.loss(rop.CrossEntropy(label_smoothing=0.1), dtypes=["float64"]).ok
    True
    """
    if not isinstance(loss, Loss):
        raise ArgumentTypeError(f"check: expected a loss such as rop.CrossEntropy(), got {type(loss).__name__}")
    record_of(loss, "check")
    shape, drawn = fitting_targets(loss, None if shape is None else _shape(shape))
    targets = drawn if y is None else as_array("check: y", y)
    if targets.ndim == 0 or len(targets) != len(drawn):
        raise ArgumentError(f"check: expected targets of {len(drawn)} samples, got shape {targets.shape}")
    rows = _rows(LossStand(loss, shape, targets), type(loss).__name__, dtypes, orders)
    return Result(type(loss).__name__, tuple(rows), (), torch_version())


def network(
    net: Graph,
    loss: Loss,
    x: ArrayLike,
    y: ArrayLike,
    *,
    w: ArrayLike | None = None,
    v: ArrayLike | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    training: bool = True,
    dtypes: Sequence[DTypeLike] = BOTH,
    orders: Sequence[int] = (0, 1, 2),
) -> Result:
    """Checks a whole network with its loss and data: loss, gradient, H·v and vᵀ∇H·v, parameter by parameter.

    Directions are the names of the parameters, and "loss" for E⁰, E¹, E². w and v are drawn if they are left out. The
    derivatives of the activations of your own in the net are checked first. Networks with kinks (ReLU, max pooling) are
    compared with differences in float64 only, with small steps.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
    >>> x, y = np.random.default_rng(0).standard_normal((8, 3)), np.arange(8) % 2
    >>> rop.check.network(net, rop.CrossEntropy(), x, y, dtypes=["float64"]).ok
    True
    """
    check_problem("check", net, loss)
    own = {one.describe(): one for one in net.layers if type(one) is Elementwise}
    derivatives = [found for one in own.values() for found in _scalar(one, None)]
    stand = NetworkStand(net, loss, as_array("check: x", x), as_array("check: y", y), training=training, state=state)
    if w is not None:
        stand.w = _vector("w", w, net.size)
    if v is not None:
        stand.v = _vector("v", v, net.size)
    rows = _rows(stand, "network", dtypes, orders)
    return Result(f"network of {net.size} parameters", tuple(rows), tuple(derivatives), torch_version())


def everything(
    names: Sequence[str] | None = None,
    *,
    dtypes: Sequence[DTypeLike] = BOTH,
    orders: Sequence[int] = (0, 1, 2),
    progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Checks the named layers and losses of the package, or all of them."""
    known = subjects.names()
    chosen = [check_choice("check", "name", name, known) for name in (known if names is None else names)]
    rows = []
    for done, name in enumerate(chosen):
        progress(f"{done}/{len(chosen)}  {name}")
        stands = subjects.stands(name)
        rows += worst(row for dtype in dtypes for stand in stands for row in _rows(stand, name, [dtype], orders))
    title = f"{len(chosen)} layers and losses" if len(chosen) != 1 else chosen[0]
    return Result(title, tuple(rows), (), torch_version())


# -------------------------------------------------------------------------------------------------------------- helpers
def torch_version() -> str | None:
    """The version of torch, if it is installed."""
    if find_spec("torch") is None:
        return None
    import torch

    return str(torch.__version__)


def _rows(stand: Stand, subject: str, dtypes: Sequence[DTypeLike], orders: Sequence[int]) -> list[Row]:
    for name, several in (("orders", orders), ("dtypes", dtypes)):
        if not isinstance(several, (list, tuple)):
            raise ArgumentTypeError(f"check: {name} must be a list such as [{name[:-1]}], got {shown(several)}")
    wanted = tuple(sorted({check_int("check", "order", order, minimum=0) for order in orders}))
    if not wanted or wanted[-1] > 2:
        raise ArgumentError(f"check: orders must be among 0, 1, 2, got {tuple(orders)}")
    found = []
    for dtype in dtypes:
        found += Examination(stand, check_dtype("check", dtype), torch_version() is not None).rows(subject, wanted)
    return found


def _scalar(layer: Elementwise, x: ArrayLike | None) -> list[Derivative]:
    """The derivatives of the layer's scalar function, checked at the points x."""
    points = points_in(*RANGE, POINTS) if x is None else np.atleast_1d(as_array("check: x", x)).ravel()
    if points.size == 0 or points.dtype.kind not in "fiu" or not np.isfinite(points).all():
        raise ArgumentError(f"check: x must be finite numbers, got {shown(x)}")
    return check_derivatives(layer.function, layer.parameters, points.astype(np.float64))


def _vector(name: str, given: ArrayLike, size: int) -> np.ndarray:
    vector = as_floats(f"check: {name}", given).astype(np.float64)
    if vector.shape != (size,):
        raise ArgumentError(f"check: {name}: expected shape ({size},), got {vector.shape}")
    return vector


def _shape(shape: Any) -> Shape:
    """The shape of one sample."""
    if not isinstance(shape, (tuple, list)) or not shape:
        raise ArgumentTypeError(
            f"check: shape must be a tuple such as (3, 16, 16), without the batch, got {shown(shape)}"
        )
    return tuple(check_int("check", f"axis {axis} of shape", size) for axis, size in enumerate(shape))


def _name(layer: Layer) -> str:
    return layer.describe().removeprefix("Elementwise ") if type(layer) is Elementwise else layer.describe()
