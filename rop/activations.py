"""Inputs and output gradients of layers at a point, in the user's axes: for K-FAC and for methods of users' own.

A workspace stores order 0 of a batch as rows (pixel, channel) of tiles of lanes, and several layers may be fused. Here
these rows are turned back into arrays (samples, channels, height, width) or (samples, features), for both devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rop.devices.emission import BaseLayout
from rop.devices.workspace import Position, Workspace
from rop.layers.base import Layer, Shape
from rop.lowering.bilinear import Products
from rop.lowering.values import Buffer, Value


class Activations(NamedTuple):
    """One use of a Linear or Conv2d layer on some samples of the batch."""

    layer: Layer
    samples: np.ndarray  # (m,) positions in the batch
    inputs: np.ndarray  # (m, *input shape): x of the layer
    gradients: np.ndarray  # (m, *output shape): ∂f/∂y of its output y = W x + b, before any activation


TOGETHER = 1 << 22  # numbers of tiles that are read together, unless a single tile has more


class _Tiles:
    """Order 0 of some tiles: the samples in them, padding left out, and their rows."""

    def __init__(self, layout: BaseLayout, words: np.ndarray, samples: np.ndarray):
        self._layout, self._words = layout, words  # (tiles, words)
        self._counted = samples >= 0  # (tiles, lanes)
        self.samples = samples[self._counted]

    def read(self, buffer: Buffer, like: Value, shape: Shape) -> np.ndarray:
        """A buffer whose rows lie as those of the value ``like``, as (samples, *shape)."""
        rows = self._layout.read(self._words, buffer)  # (tile, row, lane)
        if buffer.pixels:  # (tile, channel, sample and pixel)
            maps = rows.reshape(len(rows), like.channels, -1, *shape[1:]).swapaxes(1, 2)
            return maps.reshape(-1, *shape)[self._counted[:, : maps.shape[1]].ravel()]
        if like.row_order is not None:
            rows = rows[:, like.row_order]
            return rows.swapaxes(1, 2).reshape(-1, *shape)[self._counted.ravel()]
        sides = [n + 2 * b for n, b in zip(shape[1:], like.border, strict=True)] if shape[1:] else []
        image = rows.reshape(len(rows), *sides, like.channels, -1)
        if sides:  # without the border
            (top, left), (height, width) = like.border, shape[1:]
            image = image[:, top : top + height, left : left + width].transpose(0, 4, 3, 1, 2)
        else:
            image = image.swapaxes(1, 2)
        return image.reshape(-1, *shape)[self._counted.ravel()]


def _tiles(space: Workspace, position: Position) -> Iterator[_Tiles]:
    """The tiles of the batch, some at a time, as many whether they are resident or computed again; stops with an error
    if another pass has overwritten them."""
    samples = position.data.samples.reshape(space.tiles, space.lanes)
    for first, plane in space.planes(position):
        together = max(1, min(space.chunk, TOGETHER // plane.shape[1]))
        for chunk in range(0, len(plane), space.chunk):
            end = min(chunk + space.chunk, len(plane))
            for start in range(chunk, end, together):
                some = slice(start, min(start + together, end))
                yield _Tiles(space.lowered.layout, plane[some], samples[first + start : first + some.stop])
                space.check_resident(position)


def read_activations(space: Workspace, position: Position) -> Iterator[Activations]:
    """Inputs and output gradients of every use of a Linear or Conv2d layer, some tiles of the batch at a time."""
    uses = [operation for operation in space.plan.operations if isinstance(operation, Products)]
    for tiles in _tiles(space, position):
        for use in uses:
            inputs = tiles.read(use.source.buffer, use.source, use.source.shape)
            gradients = tiles.read(use.delta, use.y, use.y.shape)
            yield Activations(use.layer, tiles.samples, inputs, gradients)


def read_outputs(space: Workspace, position: Position) -> np.ndarray:
    """The net's outputs (batch, *output shape) in the pass at the position."""
    plan = space.plan
    shape = plan.shapes[plan.graph.output]
    parts = [tiles.read(plan.output.buffer, plan.output, shape) for tiles in _tiles(space, position)]
    return np.concatenate(parts).reshape(-1, *shape) if math.prod(shape) else np.empty((space.batch, *shape))
