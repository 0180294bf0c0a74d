"""What Hypothesis draws: sizes, data, and whole networks. Numbers come from a drawn seed, structure from Hypothesis,
so that a failing example shrinks to a small network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rop
from tests.oracle import output_shape
from tests.zoo import Shape

seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([np.float64, np.float32])

# The engine cuts the batch into tiles whose lengths are multiples of 16: 1, 15, 16, 17 and 33 are the edges.
EDGES = (1, 2, 15, 16, 17, 31, 32, 33)


def batch_sizes(least: int = 1) -> st.SearchStrategy[int]:
    """Batch sizes up to 40, with the edges of a tile drawn often."""
    edges = [size for size in EDGES if size >= least]
    return st.one_of(st.sampled_from(edges), st.integers(least, 40))


# ---------------------------------------------------------------------------------------------------------------
# whole networks
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A drawn network with the shape of its input (without batch) and the number of its output classes."""

    net: Any
    shape: Shape
    classes: int
    least_batch: int = 1


SMOOTH = (rop.Tanh, rop.Sigmoid, rop.Softplus, rop.SiLU, rop.GELU)
ACTIVATIONS = (*SMOOTH, rop.ReLU, rop.LeakyReLU)


@st.composite
def activations(draw: st.DrawFn) -> Any:
    """Any activation layer with its default arguments."""
    return draw(st.sampled_from(ACTIVATIONS))()


@st.composite
def mlps(draw: st.DrawFn, batchnorm: bool = False) -> Problem:
    """A perceptron with one to three hidden layers, each with an activation of its own."""
    widths = draw(st.lists(st.integers(1, 20), min_size=2, max_size=4))
    classes = draw(st.integers(2, 7))
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers.append(rop.Linear(before, after, bias=draw(st.booleans())))
        if batchnorm:
            layers.append(rop.BatchNorm1d(after))
        layers.append(draw(activations()))
    net = rop.Sequential(*layers, rop.Linear(widths[-1], classes))
    return Problem(net, (widths[0],), classes, 5 if batchnorm else 1)


@st.composite
def cnns(draw: st.DrawFn, batchnorm: bool = False) -> Problem:
    """One to three convolutions with activation and perhaps pooling, then a linear layer."""
    shape: Shape = draw(st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)))
    layers: list[Any] = []
    here = shape
    for _ in range(draw(st.integers(1, 3))):
        for layer in draw(convolution_blocks(here, batchnorm)):
            layers.append(layer)
            here = output_shape(layer, here)
    classes = draw(st.integers(2, 6))
    net = rop.Sequential(*layers, rop.Flatten(), rop.Linear(int(np.prod(here)), classes))
    return Problem(net, shape, classes, 3 if batchnorm else 1)


@st.composite
def convolution_blocks(draw: st.DrawFn, shape: Shape, batchnorm: bool) -> list[Any]:
    """Convolution, batchnorm if wanted, activation, and a pooling layer if the image is large enough for one."""
    channels, height, width = shape
    out = draw(st.integers(1, 5))
    kernel = draw(st.sampled_from([1, 3]))
    block: list[Any] = [rop.Conv2d(channels, out, kernel, padding=kernel // 2, bias=draw(st.booleans()))]
    if batchnorm:
        block.append(rop.BatchNorm2d(out))
    block.append(draw(activations()))
    if min(height, width) >= 4:
        block += draw(st.sampled_from([[], [rop.MaxPool2d(2)], [rop.AvgPool2d(2)]]))
    return block


@st.composite
def dags(draw: st.DrawFn, images: bool) -> Problem:
    """A random graph: every step applies a layer to any earlier value, joins two of them, or uses a layer again.

    Steps keep the values' height and width (and, for vectors, any width), so that joins find partners; what is left
    unused at the end is concatenated, so that every step matters.
    """
    shape: Shape = draw(st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(2, 5)) if images else
                        st.tuples(st.integers(1, 8)))
    graph = _Growing(shape)
    for _ in range(draw(st.integers(1, 7))):
        graph.grow(draw)
    out = graph.join_loose_ends()
    classes = draw(st.integers(2, 5))
    if images:
        out = rop.Flatten()(out)
    out = rop.Linear(graph.total * int(np.prod(shape[1:], dtype=int)), classes)(out)
    return Problem(rop.Graph(graph.input, out), shape, classes)


class _Growing:
    """A graph under construction: values with their numbers of channels, and the layers met so far."""

    def __init__(self, shape: Shape) -> None:
        self.input = rop.Input()
        self.values: list[tuple[Any, int]] = [(self.input, shape[0])]
        self.loose: set[int] = {0}
        self.images = len(shape) == 3
        self.layers: list[tuple[Any, int, int]] = []
        self.total = 0

    def grow(self, draw: st.DrawFn) -> None:
        """One step: a new layer, a tied layer, a sum or a concatenation."""
        step = draw(st.sampled_from(["new", "new", "activation", "tied", "add", "concat"]))
        source = draw(st.integers(0, len(self.values) - 1))
        channels = self.values[source][1]
        partners = [k for k, (_, c) in enumerate(self.values) if step == "concat" or c == channels]
        tied = [(layer, out) for layer, into, out in self.layers if into == channels]
        if step == "activation":
            self.append(draw(activations())(self.values[source][0]), channels, source)
        elif step in ("add", "concat"):
            self.join(rop.Add() if step == "add" else rop.Concat(), source, draw(st.sampled_from(partners)))
        elif step == "tied" and tied:
            layer, out = draw(st.sampled_from(tied))
            self.append(layer(self.values[source][0]), out, source)
        else:
            out = draw(st.integers(1, 5))
            layer = rop.Conv2d(channels, out, 3, padding=1) if self.images else rop.Linear(channels, out)
            self.layers.append((layer, channels, out))
            self.append(rop.Tanh()(layer(self.values[source][0])), out, source)

    def join(self, layer: Any, first: int, second: int) -> None:
        """Add or concatenate two values (the same one twice is allowed)."""
        (a, m), (b, n) = self.values[first], self.values[second]
        self.append(layer(a, b), m if isinstance(layer, rop.Add) else m + n, first, second)

    def append(self, value: Any, channels: int, *sources: int) -> None:
        """Remember a new value; what it was made from is no loose end any more."""
        self.loose -= set(sources)
        self.loose.add(len(self.values))
        self.values.append((value, channels))

    def join_loose_ends(self) -> Any:
        """One value that depends on everything."""
        first, *others = sorted(self.loose)
        value, self.total = self.values[first]
        for k in others:
            value, self.total = rop.Concat()(value, self.values[k][0]), self.total + self.values[k][1]
        return value
