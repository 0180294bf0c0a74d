"""The arguments of ``rop.train``, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rop.arguments import as_array, check_bool, check_choice, check_dtype, check_function, check_int
from rop.devices import LAYOUTS
from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.graph import Graph
from rop.inputs import check_data, check_problem, check_state, check_trainable
from rop.layers.loss import Loss
from rop.optim.method import Optimizer, Penalty, check_methods
from rop.training.fit import Fit
from rop.training.steps import steps_of_epoch

Pair = tuple[ArrayLike, ArrayLike]  # samples and targets, as the user gives them
Arrays = tuple[np.ndarray, np.ndarray]  # the same, checked

ORDERS = ("shuffled", "fixed")  # of the samples in an epoch


@dataclass(frozen=True)
class Task:
    """The checked arguments of a run; see ``rop.train``."""

    net: Graph
    loss: Loss
    optimizer: Optimizer
    regularizer: Penalty | None
    x: np.ndarray
    y: np.ndarray
    validation: Arrays | None
    epochs: int
    batch_size: int
    seed: int
    dtype: np.dtype
    device: str
    w: np.ndarray
    state: Mapping[str, np.ndarray]
    earlier: Fit | None
    profile: bool
    order: str
    partial_batch: bool
    layout: str | None
    winograd: bool

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        return steps_of_epoch(self.samples, self.batch_size, self.partial_batch)


def checked_task(
    net: Graph,
    loss: Loss,
    data: Pair,
    *,
    validation: Pair | None,
    epochs: int,
    batch_size: int,
    seed: int,
    optimizer: Optimizer,
    regularizer: Penalty | None,
    w: ArrayLike | None,
    state: Mapping[str, np.ndarray] | None,
    start: Fit | None,
    dtype: DTypeLike,
    device: str,
    profile: bool,
    order: str,
    partial_batch: bool,
    layout: str | None,
    winograd: bool,
) -> Task:
    """The arguments of ``rop.train`` in the form that a run uses."""
    check_problem("train", net, loss)
    check_trainable("train", net)
    check_methods("train", optimizer, regularizer)
    check_computation("train", order, partial_batch, layout, winograd)
    epochs, seed = check_int("train", "epochs", epochs), check_int("train", "seed", seed, minimum=0)
    precision = np.dtype(check_dtype("train", dtype))
    x, y = pair_of("data", data)
    x = check_data(x, precision, check_finite=True)
    if len(x) < check_int("train", "batch_size", batch_size):
        raise ArgumentError(
            f"train: expected at least one batch of {batch_size} samples, got {len(x)}; "
            f"give more data or batch_size={len(x)}"
        )
    checked: Arrays | None = None
    if validation is not None:
        xv, yv = pair_of("validation", validation)
        checked = check_data(xv, precision, check_finite=True), as_array("y", yv)
        check_validation(net, loss, *checked)
    if start is not None:
        w, state = start_of(start, w, state)
    return Task(
        net=net,
        loss=loss,
        optimizer=optimizer,
        regularizer=regularizer,
        x=x,
        y=np.asarray(y),
        validation=checked,
        epochs=epochs,
        batch_size=int(batch_size),
        seed=seed,
        dtype=precision,
        device=device,
        w=net.init(seed, precision) if w is None else parameters(net, w, precision),
        state=check_state(net, state, precision, "train"),
        earlier=start,
        profile=profile,
        order=order,
        partial_batch=partial_batch,
        layout=layout,
        winograd=winograd,
    )


def check_computation(owner: str, order: str, partial_batch: bool, layout: str | None, winograd: bool) -> None:
    """How an epoch goes through the samples, and how the CPU computes."""
    check_choice(owner, "order", order, ORDERS)
    check_bool(owner, "partial_batch", partial_batch)
    if layout is not None:
        check_choice(owner, "layout", layout, LAYOUTS)
    check_bool(owner, "winograd", winograd)


def check_callbacks(callbacks: Any) -> None:
    """A list of functions of two arguments."""
    if not isinstance(callbacks, Sequence):
        hint = "; write callbacks=[function]" if callable(callbacks) else ""
        raise ArgumentTypeError(
            f"train: expected callbacks as a list of functions, got {callbacks!r} ({type(callbacks).__name__}){hint}"
        )
    for i, callback in enumerate(callbacks):
        check_function("train", f"callbacks[{i}]", callback, "a row of the history and the fit so far", 2)


def check_validation(net: Graph, loss: Loss, x: np.ndarray, y: np.ndarray) -> None:
    """Refuses validation data that do not fit the net before the first epoch, not after it."""
    try:
        loss.targets(y, len(x), net.shapes(x.shape[1:])[net.output], x.dtype)
    except RopError as error:
        raise type(error)(f"train: validation: {error}") from error


def pair_of(name: str, value: Any) -> Arrays:
    """Samples and targets, of which there must be equal numbers."""
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise ArgumentTypeError(f"train: expected {name} as a pair (x, y), got {type(value).__name__}")
    x, y = (as_array(f"{name}: {part}", one) for part, one in zip("xy", value, strict=True))
    for part, array in (("x", x), ("y", y)):
        if array.ndim == 0 or array.dtype == object:
            raise ArgumentTypeError(
                f"train: expected {name} as a pair (x, y) of arrays of numbers, got {part} of type "
                f"{type(value['xy'.index(part)]).__name__}"
            )
    if len(x) != len(y):
        raise ArgumentError(
            f"train: expected as many targets as samples in {name}, got {len(x)} samples and {len(y)} targets"
        )
    return x, y


def parameters(net: Graph, w: ArrayLike, dtype: np.dtype) -> np.ndarray:
    """A vector of parameters to start from."""
    array = as_array("w", w, "a vector of real numbers")
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(
            f"w: expected a vector of real numbers of shape ({net.size},), got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    if array.shape != (net.size,) or not np.isfinite(array).all():
        raise ArgumentError(f"train: expected w of shape ({net.size},) with finite numbers, got shape {array.shape}")
    return array


def comparable(y: ArrayLike) -> np.ndarray:
    """Targets in the form in which they are compared: labels of all integer types are equal."""
    y = np.asarray(y)
    return y.astype(np.int64) if y.dtype.kind in "iu" else y


def start_of(
    earlier: Fit, w: ArrayLike | None, state: Mapping[str, np.ndarray] | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The last parameters and running statistics of an earlier fit."""
    if not isinstance(earlier, Fit):
        raise ArgumentTypeError(
            f"train: expected start as the Fit of an earlier call, got {type(earlier).__name__}; "
            "to start from parameters alone give w=..."
        )
    if w is not None or state is not None:
        raise ArgumentError("train: expected start=fit or w and state, got both; start has its own")
    return earlier.w_last, earlier.state_last
