"""Outputs of a net in evaluation mode: the forward pass alone, on the CPU."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from rop.devices.batch import Data, lane_samples
from rop.devices.cpu.workspace import CpuWorkspace
from rop.devices.lock import engine_lock
from rop.errors import ArgumentError
from rop.graph import Graph
from rop.inputs import as_floats, check_data, check_net, check_state
from rop.layers.base import Shape

PREDICT_BATCH = 4096  # samples in one forward pass


def predict(net: Graph, w: ArrayLike, x: ArrayLike, state: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """Outputs (batch, ...) of a net in evaluation mode; the precision is that of w."""
    check_net("predict", net)
    vector = as_floats("w", w)
    dtype = vector.dtype.newbyteorder("=")
    if vector.shape != (net.size,):
        raise ArgumentError(
            f"w: expected a vector of shape ({net.size},), the number of parameters, got {vector.shape}"
        )
    if not np.isfinite(vector).all():
        raise ArgumentError("w: expected finite numbers, got NaN or Inf")
    data = check_data(x, dtype, check_finite=True)
    shapes = net.shapes(data.shape[1:])
    frozen = check_state(net, state, dtype, "predict")
    result = np.empty((len(data), math.prod(shapes[net.output])), dtype)
    with engine_lock():
        for start in range(0, len(data), PREDICT_BATCH):
            part = data[start : start + PREDICT_BATCH]
            space = _forward_space(net, part.shape[1:], len(part), dtype)
            space.array("w")[: net.size] = vector
            space.put_state(frozen)
            batch = Data(part.reshape(len(part), -1), None, 1.0, lane_samples(len(part), space.lanes))
            space.outputs(batch, result[start : start + len(part)])
    return result.reshape(len(data), *shapes[net.output])


# The last two workspaces: those of a whole batch and of the remainder.
_forward_spaces: OrderedDict[tuple[Graph, Shape, int, np.dtype], CpuWorkspace] = OrderedDict()


def _forward_space(net: Graph, shape: Shape, batch: int, dtype: np.dtype) -> CpuWorkspace:
    """A workspace for the forward pass, cached because programs and buffers are costly to make."""
    key = net, shape, batch, dtype
    if key not in _forward_spaces:
        _forward_spaces[key] = CpuWorkspace.of(net, shape, False, None, dtype, batch, 0)
        if len(_forward_spaces) > 2:
            _forward_spaces.popitem(last=False)
    return _forward_spaces[key]
