"""Windows on images: which input pixels, output pixels and taps meet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Geometry:
    """A convolution as (input pixel, output pixel, tap) triples; a linear layer is one pixel and one tap."""

    image: tuple[int, ...]  # height and width of the stored input, border included
    output: tuple[int, ...]
    kernel: tuple[int, ...] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Input pixel, output pixel and tap of every product that falls into the image."""
        r, c, a, b = np.meshgrid(*(np.arange(n) for n in (*self.output, *self.kernel)), indexing="ij")
        row = r * self.stride[0] + a * self.dilation[0] - self.padding[0]
        column = c * self.stride[1] + b * self.dilation[1] - self.padding[1]
        inside = (row >= 0) & (row < self.image[0]) & (column >= 0) & (column < self.image[1])
        return (
            (row * self.image[1] + column)[inside],
            (r * self.output[1] + c)[inside],
            (a * self.kernel[1] + b)[inside],
        )

    def reversed_tap(self, tap: np.ndarray) -> np.ndarray:
        """Taps numbered with columns from right to left: then output pixels ascend with the tap."""
        a, b = np.divmod(tap, self.kernel[1])
        return a * self.kernel[1] + self.kernel[1] - 1 - b


def adaptive_pairs(image: tuple[int, ...], output: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Input and output pixel of every pair that meets in windows laid evenly over an image (rop/layers/pool.py),
    ordered by output pixel."""
    sides = []
    for size, count in zip(image, output, strict=True):
        i, j = np.arange(count)[:, None], np.arange(size)[None, :]
        sides.append((i * size // count <= j) & (j < -(-(i + 1) * size // count)))  # (window, pixel)
    r, c, row, column = np.nonzero(sides[0][:, None, :, None] & sides[1][None, :, None, :])
    return row * image[1] + column, r * output[1] + c


def padded(owner: np.ndarray, members: np.ndarray, owners: int, fill: float = -1) -> np.ndarray:
    """Members listed by owner (owners, most), in their order, filled up at the end.

    >>> padded(np.array([0, 0, 2]), np.array([5, 6, 7]), 3)
    array([[ 5,  6],
           [-1, -1],
           [ 7, -1]])
    """
    order = np.argsort(owner, kind="stable")
    owner, members = owner[order], members[order]
    counts = np.bincount(owner, minlength=owners)
    result = np.full((owners, max(1, counts.max(initial=0))), fill, members.dtype)
    result[owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)] = members
    return result
