"""Checks of what users pass in: nets, losses, data, parameters and running statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rop.arguments import as_array
from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph, Node
from rop.layers.base import Shape, batched
from rop.layers.batchnorm import BatchNorm
from rop.layers.loss import Loss
from rop.lowering import check_kinds


def check_net(owner: str, net: Any) -> None:
    """Demand a net whose layers the engine has formulas for."""
    if not isinstance(net, Graph):
        raise ArgumentTypeError(f"{owner}: expected net to be a rop.Sequential or rop.Graph, got {type(net).__name__}")
    check_kinds(net)


def check_problem(owner: str, net: Any, loss: Any) -> None:
    """Demand a net and a loss that the engine has formulas for."""
    check_net(owner, net)
    if not isinstance(loss, Loss):
        raise ArgumentTypeError(f"{owner}: expected a loss such as rop.CrossEntropy(), got {type(loss).__name__}")
    check_kinds(net, loss)


def as_floats(name: str, value: Any) -> np.ndarray:
    """An array of float32 or float64."""
    array = as_array(name, value, "an array of float32 or float64")
    if array.dtype.kind != "f" or array.itemsize not in (4, 8):
        raise ArgumentTypeError(
            f"{name}: expected an array of float32 or float64, got {array.dtype}; convert it with "
            f"np.asarray({name}, dtype=np.float32)"
        )
    return array


def check_data(x: Any, dtype: np.dtype, check_finite: bool) -> np.ndarray:
    """The inputs of a batch, contiguous and in the precision of the computation."""
    array = as_floats("x", x)
    if array.ndim < 2:
        raise ArgumentError(
            f"x: expected (batch, ...) with at least two axes, got shape {array.shape}; one sample is x[None]"
        )
    if array.size == 0:
        raise ArgumentError(f"x: expected at least one sample, got an empty batch of shape {array.shape}")
    with np.errstate(over="ignore"):
        array = np.array(array, dtype=dtype, order="C")
    if check_finite and not np.isfinite(array).all():
        raise ArgumentError("x: expected finite numbers, got NaN or Inf; check_finite=False switches the check off")
    return array


def check_statistics(net: Graph, shapes: Mapping[Node, Shape], batch: int, training: bool | None = True) -> None:
    """Refuse batch statistics of a single value per channel, which has no variance."""
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, BatchNorm) and layer.uses_batch(training) and batch * math.prod(shapes[node][1:]) == 1:
            raise ArgumentError(
                f"{net.where(node)}: expected more than one value per channel for batch statistics, "
                f"got one sample of shape {batched(shapes[node])}; use a larger batch or "
                "training=False"
            )


def check_trainable(owner: str, net: Graph) -> None:
    """Demand a net without parameters that its module holds fixed: compiled steps move all of w."""
    if net.fixed:
        raise ArgumentError(
            f"{owner}: it trains all parameters, but the module that the net comes from holds {net.fixed[0]} fixed "
            "(requires_grad=False); rop.torch.SpectralRadius trains the others alone, and "
            "module.requires_grad_(True) before from_torch frees all"
        )


def objective_state(net: Graph, state: Any, training: bool | None, dtype: np.dtype) -> dict[str, np.ndarray] | None:
    """The running statistics that an objective reads; None if all batchnorm layers use those of the batch."""
    frozen = [layer for layer in net.layers if isinstance(layer, BatchNorm) and not layer.uses_batch(training)]
    if state is None and training is None and frozen:
        layer = frozen[0]
        raise ArgumentError(
            f"Objective: expected state, the running statistics that from_torch returned, because layer "
            f"{net.name_of(layer)} ({layer.describe()}) comes from a module in evaluation mode, got None; "
            "training=True uses those of the batch"
        )
    return check_state(net, state, dtype, "Objective") if frozen or training is False else None


def check_state(net: Graph, state: Any, dtype: np.dtype, owner: str) -> dict[str, np.ndarray]:
    """Running statistics for every batchnorm layer, in the precision of the computation."""
    expected = net.init_state(dtype)
    if not expected:
        return {}
    if state is None:
        return expected
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"{owner}: expected state as a dict like net.init_state(), got {type(state).__name__}")
    if set(state) != set(expected):
        raise ArgumentError(
            f"{owner}: expected state with the keys {sorted(expected)}, got {sorted(state)}; see net.init_state()"
        )
    result = {}
    for key, like in expected.items():
        value = as_floats(f"state[{key!r}]", state[key])
        if value.shape != like.shape:
            raise ArgumentError(f"{owner}: state[{key!r}]: expected shape {like.shape}, got {value.shape}")
        wrong = ~np.isfinite(value) | (value < 0 if key.endswith("var") else False)
        if wrong.any():
            raise ArgumentError(
                f"{owner}: state[{key!r}]: expected finite numbers, variances of at least 0, got {value[wrong][0]:g}"
            )
        result[key] = value.astype(dtype)
    return result
