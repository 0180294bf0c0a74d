"""Pooling: maximum (family select) and average (family linear) over windows of an image.

MaxPool2d picks, at order 0, the pixel m(i) of the first maximum of x⁰ in the window of output pixel i (row by row, as
torch does). Moving w a little does not move m, so every order reads and writes the picked pixel:

    forward    y⁰ = x⁰[m]                 y¹ = x¹[m]                 y² = x²[m]
    backward   h⁰[j] = Σ_{i: m(i)=j} g⁰[i]     and the same for h¹ from g¹ and h² from g²

AvgPool2d and AdaptiveAvgPool2d(1) are a fixed linear map A, y = A x, whose row i holds 1/|window i|:

    forward    y⁰ = A x⁰                  y¹ = A x¹                  y² = A x²
    backward   h⁰ = Aᵀ g⁰                 h¹ = Aᵀ g¹                 h² = Aᵀ g²

|window i| counts padding pixels too unless count_include_pad is False. Padding is −∞ for the maximum, 0 for the
average.
"""

from __future__ import annotations

from rop.errors import ArgumentError
from rop.layers._arguments import Pair, check_bool, check_pair
from rop.layers.base import Layer, Shape, check_image, window_count


class Pool2d(Layer):
    """What the two windowed poolings share: the window and the shapes."""

    kernel_size: Pair
    stride: Pair
    padding: Pair

    def __init__(self, kernel_size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        owner = type(self).__name__
        kernel = check_pair(owner, "kernel_size", kernel_size)
        pad = check_pair(owner, "padding", padding, minimum=0)
        if 2 * pad[0] > kernel[0] or 2 * pad[1] > kernel[1]:
            raise ArgumentError(f"{owner}: padding must be at most half of kernel_size {kernel}, got {pad}")
        self._set(
            kernel_size=kernel,
            stride=kernel if stride is None else check_pair(owner, "stride", stride),
            padding=pad,
        )

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape)
        return (shape[0], *window_count(where, shape, self.kernel_size, self.stride, self.padding))

    def describe(self) -> str:
        return f"{type(self).__name__} {self.kernel_size[0]}×{self.kernel_size[1]}"


class MaxPool2d(Pool2d):
    """The largest value of each window; stride defaults to the window's size.

    >>> MaxPool2d(2).output_shape("layer 0", (8, 5, 4))
    (8, 2, 2)
    """


class AvgPool2d(Pool2d):
    """The mean of each window; stride defaults to the window's size.

    >>> AvgPool2d(2, stride=1, padding=1).output_shape("layer 0", (8, 5, 4))
    (8, 6, 5)
    """

    count_include_pad: bool

    # Keyword-only: torch's fourth positional argument is another one (ceil_mode).
    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        *,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self._set(count_include_pad=check_bool("AvgPool2d", "count_include_pad", count_include_pad))


class AdaptiveAvgPool2d(Layer):
    """The mean of each channel over the whole image; 1 or (1, 1) is the only output size there is.

    >>> AdaptiveAvgPool2d(1).output_shape("layer 0", (8, 5, 4))
    (8, 1, 1)
    """

    output_size: Pair

    def __init__(self, output_size: int | Pair) -> None:
        size = check_pair("AdaptiveAvgPool2d", "output_size", output_size)
        if size != (1, 1):
            raise ArgumentError(
                f"AdaptiveAvgPool2d: only output_size 1 or (1, 1) is supported, got {output_size!r}; "
                "use AvgPool2d for other sizes"
            )
        self._set(output_size=size)

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape)
        return (shape[0], 1, 1)

    def describe(self) -> str:
        return "AdaptiveAvgPool2d 1×1"
