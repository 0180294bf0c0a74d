"""Inputs and output gradients of layers at a point, in the user's axes: for K-FAC and for methods of users' own.

A workspace stores order 0 of a batch as rows (pixel, channel) of tiles of lanes, and several layers may be fused. Here
these rows are turned back into arrays (samples, channels, height, width) or (samples, features), for both devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from rop.devices.emission import BaseLayout
from rop.devices.workspace import Gram, Position, Workspace
from rop.layers import Conv2d
from rop.layers.base import Layer, Shape
from rop.lowering.bilinear import Products
from rop.lowering.geometry import Geometry
from rop.lowering.values import Buffer, Value


class Activations(NamedTuple):
    """One use of a Linear or Conv2d layer on some samples of the batch."""

    layer: Layer
    samples: np.ndarray  # (m,) positions in the batch
    inputs: np.ndarray  # (m, *input shape): x of the layer
    gradients: np.ndarray  # (m, *output shape): ∂f/∂y of its output y = W x + b, before any activation


PIECE = 1 << 22  # numbers of unfolded input that are in memory at a time
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


# ---------------------------------------------------------------------------------------------------- sums over samples
def read_grams(space: Workspace, position: Position, root: np.ndarray) -> list[Gram]:
    """Σ ā āᵀ and Σ δ δᵀ of every use, see Gram; ``root`` has the factor of each sample's gradients, (batch,)."""
    found = space.grams(position, root)
    return grams_of(space, position, root) if found is None else found


def grams_of(space: Workspace, position: Position, root: np.ndarray) -> list[Gram]:
    """The same by NumPy. Products of a piece are summed in the precision of the net, and pieces in float64."""
    sums: list[Gram] = []
    uses = [operation for operation in space.plan.operations if isinstance(operation, Products)]
    for i, use in enumerate(read_activations(space, position)):
        if i < len(uses):
            sums.append(_empty_gram(use, uses[i].pixels))
        gram = sums[i % len(uses)]
        for x, delta in pairs(use, root[use.samples].astype(space.dtype)):
            for group in range(len(x)):
                inputs, outputs, count = gram.inputs[group], gram.outputs[group], x.shape[1]
                inputs[:count, :count] += x[group] @ x[group].T
                inputs[count:, :count] += x[group].sum(axis=1)
                inputs[:count, count:] = inputs[count:, :count].T
                inputs[count:, count:] += x.shape[2]
                outputs += delta[group] @ delta[group].T
    return sums


def _empty_gram(use: Activations, places: int) -> Gram:
    """Sums of zero, with a row and a column for the bias if there is one."""
    shapes, groups = use.layer.parameter_shapes(), getattr(use.layer, "groups", 1)
    rows, (outputs, *fan) = int("bias" in shapes), shapes["weight"]
    sizes = math.prod(fan) + rows, outputs // groups
    return Gram(use.layer, places, *(np.zeros((groups, size, size)) for size in sizes))


@lru_cache(maxsize=64)
def _reads(geometry: Geometry) -> np.ndarray:
    """The pixels that each place reads, (taps, places); one behind the last pixel of the image stands for padding."""
    pixel_in, pixel_out, tap = geometry.triples()
    reads = np.full((geometry.taps, math.prod(geometry.output)), math.prod(geometry.image))
    reads[tap, pixel_out] = pixel_in
    return reads


def _unfolded(use: Activations) -> Iterator[np.ndarray]:
    """The inputs that meet the weights of a use, (groups, inputs, N), in pieces of N places of samples, the samples of
    a place next to each other. N counts whole places."""
    count, groups = len(use.samples), getattr(use.layer, "groups", 1)
    if use.inputs.ndim == 2:
        yield use.inputs.T[None]
        return
    x, layer = use.inputs, cast(Conv2d, use.layer)
    sides = x.shape[2:], use.gradients.shape[2:]
    reads = _reads(Geometry(*sides, layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    image = np.zeros((x.shape[1], math.prod(x.shape[2:]) + 1, count), x.dtype)  # (channel, pixel, sample)
    image[:, :-1] = x.reshape(count, x.shape[1], -1).transpose(1, 2, 0)
    step = max(1, PIECE // (len(image) * len(reads) * count))
    for first in range(0, reads.shape[1], step):
        piece = np.take(image, reads[:, first : first + step], axis=1)  # (channel, tap, place, sample)
        yield piece.reshape(groups, len(image) // groups * len(reads), -1)


def pairs(use: Activations, factor: np.ndarray | float = 1.0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What a use of a layer multiplies, y = W x + b, in pieces of N places of samples, in the precision of the net.

    Yields x (groups, inputs, N) and the gradients of the outputs δ (groups, outputs, N), those of each sample times its
    ``factor``. Σ δ xᵀ, and Σ δ for the bias, are the contribution of the use to ∇f.
    """
    count, groups = len(use.samples), getattr(use.layer, "groups", 1)
    delta = use.gradients.reshape(count, groups, use.gradients.shape[1] // groups, -1).transpose(1, 2, 3, 0)
    scaled = np.ascontiguousarray(delta * factor)  # (groups, outputs, place, sample)
    first = 0
    for x in _unfolded(use):
        places = x.shape[2] // count
        yield x, scaled[:, :, first : first + places].reshape(*delta.shape[:2], -1)
        first += places
