"""Values of a network, the rows they take in the planes, and the gradients that flow back to them.

A tile of samples has one *plane* per order of the jet; a *buffer* is a number of rows in some of the planes. A row has
a lane for each sample of the tile, and then there is a row for each channel of each pixel; or, where the network has
*pixel lanes*, a map of C×H×W numbers has a row for each channel, with a lane for each pixel of each sample. Rows are
counted here, not bytes: where a row lies and how many lanes it has is decided by the layout of each device.

Structural zeros: ``value.levels`` holds the orders that are not identically zero. Data has {0}; behind a linear layer
and a ReLU order 2 is still zero; products with a zero factor are never emitted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rop.layers.base import Shape

if TYPE_CHECKING:
    from rop.lowering.plan import Operation

ORDERS = (0, 1, 2)


@dataclass(eq=False)
class Buffer:
    """Rows of a tile, in the planes of some orders; or some of the rows of another buffer."""

    rows: int
    orders: tuple[int, ...]
    pixels: int = 0  # pixels of a map, each of which has a lane for each sample; 0: a row has a lane for each sample
    inside: tuple[Buffer, int] | None = None  # the buffer of which these are rows, and the first of them

    def part(self, first: int, rows: int) -> Buffer:
        """Some of these rows."""
        return Buffer(rows, self.orders, self.pixels, (self, first))

    def whole(self) -> tuple[Buffer, int]:
        """The buffer that has rows of its own, and which of them is the first here."""
        buffer, first = self, 0
        while buffer.inside is not None:
            first += buffer.inside[1]
            buffer = buffer.inside[0]
        return buffer, first


@dataclass(eq=False)
class Flow:
    """The gradients that go back to a value: one from each of its uses, then their total."""

    uses: int = 0
    product_uses: int = 0
    gradients: list[tuple[Buffer, bool]] = field(default_factory=list)  # and whether it may be added to
    total: Buffer | None = None
    is_shared: bool = False  # the rows of the total are the gradient of another value, too
    rectified: bool = False  # a ReLU was fused into the operation that made the value

    @property
    def masked_by_user(self) -> bool:
        """Whether the product that alone uses a rectified value masks its gradient."""
        return self.rectified and self.uses == 1 and self.product_uses == 1


@dataclass(eq=False)
class Value:
    """The value of a node: rows (pixel, channel) in the planes. Views of the same rows share a flow."""

    shape: Shape
    levels: frozenset[int]
    needs_gradient: bool
    buffer: Buffer
    pixels: int
    channels: int
    flow: Flow = field(default_factory=Flow)
    producer: Operation | None = None
    row_order: np.ndarray | None = None  # row of each feature in the user's order, if it is not 0, 1, 2, …
    border: tuple[int, int] = (0, 0)  # pixels of zeros stored around an image (data before a convolution)

    @property
    def rows(self) -> int:
        """Rows that the value takes in each of its planes."""
        return self.pixels * self.channels


def cauchy_pairs(k: int, left: Collection[int], right: Collection[int]) -> list[tuple[int, int]]:
    """The terms (j, k − j) of order k of a product, Σ_j a_j b_{k−j}, whose factors are both not zero.

    ``left`` and ``right`` are the orders that a and b have. Terms are in ascending order of j: the order in which
    kernels add them up.

    >>> cauchy_pairs(2, (0, 1), frozenset({0, 1, 2}))
    [(0, 2), (1, 1)]
    >>> cauchy_pairs(2, (0, 1), frozenset({0, 1}))
    [(1, 1)]
    """
    return [(j, k - j) for j in range(k + 1) if j in left and k - j in right]
