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


class _Tile:
    """Order 0 of one tile: the samples in it, padding left out, and its rows."""

    def __init__(self, layout: BaseLayout, words: np.ndarray, samples: np.ndarray):
        self._layout, self._words = layout, words
        self._counted = samples >= 0
        self.samples = samples[self._counted]

    def read(self, buffer: Buffer, like: Value, shape: Shape) -> np.ndarray:
        """A buffer whose rows lie as those of the value ``like``, as (samples, *shape)."""
        rows = self._layout.read(self._words, buffer)
        if buffer.pixels:  # (channel, sample and pixel)
            maps = rows.reshape(like.channels, -1, *shape[1:])
            return np.moveaxis(maps, 0, 1)[self._counted[: maps.shape[1]]]
        rows = rows[:, self._counted]
        if like.row_order is not None:
            return rows[like.row_order].T
        sides = [n + 2 * b for n, b in zip(shape[1:], like.border, strict=True)] if shape[1:] else []
        image = rows.reshape(*sides, like.channels, -1)
        for axis, border in enumerate(like.border if sides else ()):
            image = np.take(image, np.arange(border, image.shape[axis] - border), axis)
        return np.moveaxis(image, (-1, -2), (0, 1))


def _tiles(space: Workspace, position: Position) -> Iterator[_Tile]:
    """The tiles of the batch one after the other; stops with an error if another pass has overwritten them."""
    samples = position.data.samples.reshape(space.tiles, space.lanes)
    for first, plane in space.planes(position):
        for i, words in enumerate(plane):
            yield _Tile(space.lowered.layout, words, samples[first + i])
            space.check_resident(position)


def read_activations(space: Workspace, position: Position) -> Iterator[Activations]:
    """Inputs and output gradients of every use of a Linear or Conv2d layer, tile by tile of the batch."""
    uses = [operation for operation in space.plan.operations if isinstance(operation, Products)]
    for tile in _tiles(space, position):
        for use in uses:
            inputs = tile.read(use.source.buffer, use.source, use.source.shape)
            gradients = tile.read(use.delta, use.y, use.y.shape)
            yield Activations(use.layer, tile.samples, inputs, gradients)


def read_outputs(space: Workspace, position: Position) -> np.ndarray:
    """The net's outputs (batch, *output shape) in the pass at the position."""
    plan = space.plan
    shape = plan.shapes[plan.graph.output]
    parts = [tile.read(plan.output.buffer, plan.output, shape) for tile in _tiles(space, position)]
    return np.concatenate(parts).reshape(-1, *shape) if math.prod(shape) else np.empty((space.batch, *shape))
