"""Values of a network, their places in the planes, and the gradients that flow back to them.

A tile of samples has one *plane* per order of the jet; a *buffer* is a number of rows in some of the planes. Rows are
counted, not bytes: how many samples lie side by side in a row is decided by each device.

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


@dataclass(frozen=True)
class Buffer:
    """Rows of a tile: where they start in the plane of each order."""

    rows: int
    start: dict[int, int]  # order -> first row


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
