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
        """Positions of the kernel."""
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


def adaptive_pairs(image: tuple[int, ...], output: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Input and output pixel of every pair that meets in windows laid evenly over an image (rop/layers/pool.py),
    ordered by output pixel."""
    sides = []
    for size, count in zip(image, output, strict=True):
        i, j = np.arange(count)[:, None], np.arange(size)[None, :]
        sides.append((i * size // count <= j) & (j < -(-(i + 1) * size // count)))  # (window, pixel)
    r, c, row, column = np.nonzero(sides[0][:, None, :, None] & sides[1][None, :, None, :])
    return row * image[1] + column, r * output[1] + c
