"""Pooling: maximum (family select) and average (family linear) over windows of an image.

MaxPool2d picks, at order 0, the pixel m(i) of the first maximum of x⁰ in the window of output pixel i (row by row, as
torch does). Moving w a little does not move m, so every order reads and writes the picked pixel:

    forward    y⁰ = x⁰[m]                 y¹ = x¹[m]                 y² = x²[m]
    backward   h⁰[j] = Σ_{i: m(i)=j} g⁰[i]     and the same for h¹ from g¹ and h² from g²

AvgPool2d and AdaptiveAvgPool2d are a fixed linear map A, y = A x, whose row i holds 1/|window i|:

    forward    y⁰ = A x⁰                  y¹ = A x¹                  y² = A x²
    backward   h⁰ = Aᵀ g⁰                 h¹ = Aᵀ g¹                 h² = Aᵀ g²

|window i| counts padding pixels too unless count_include_pad is False. Padding is −∞ for the maximum, 0 for the
average. With ceil_mode a last window that begins in the image, or in the padding before it, but reaches beyond the
padding behind it is there, too; what lies beyond does not count. Window i of n that AdaptiveAvgPool2d lays over s
pixels reaches from ⌊i·s/n⌋ to just before ⌈(i+1)·s/n⌉.
"""

from __future__ import annotations

from rop.arguments import Pair, check_bool, check_pair
from rop.errors import ArgumentError
from rop.layers import record
from rop.layers.base import Layer, Shape, check_image, window_count


class Pool2d(Layer):
    """What the two windowed poolings share: the window and the shapes."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    ceil_mode: bool

    # ceil_mode is keyword-only: its position in torch differs from pooling to pooling.
    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        *,
        ceil_mode: bool = False,
    ) -> None:
        owner = type(self).__name__
        kernel = check_pair(owner, "kernel_size", kernel_size)
        pad = check_pair(owner, "padding", padding, minimum=0)
        if 2 * pad[0] > kernel[0] or 2 * pad[1] > kernel[1]:
            raise ArgumentError(f"{owner}: padding must be at most half of kernel_size {kernel}, got {pad}")
        self._set(
            kernel_size=kernel,
            stride=kernel if stride is None else check_pair(owner, "stride", stride),
            padding=pad,
            ceil_mode=check_bool(owner, "ceil_mode", ceil_mode),
        )

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape)
        rows, columns = window_count(where, shape, self.kernel_size, self.stride, self.padding)
        if self.ceil_mode:
            rows, columns = rows + self._one_more(0, shape[1], rows), columns + self._one_more(1, shape[2], columns)
        return shape[0], rows, columns

    def _one_more(self, axis: int, size: int, count: int) -> bool:
        """Whether pixels are left behind the last of ``count`` windows and the next one would begin before them."""
        kernel, stride, padding = self.kernel_size[axis], self.stride[axis], self.padding[axis]
        return (count - 1) * stride + kernel < size + 2 * padding and count * stride < size + padding

    def describe(self) -> str:
        return f"{type(self).__name__} {self.kernel_size[0]}×{self.kernel_size[1]}"


@record.layer("select", only_torch={"dilation": 1, "return_indices": False})
class MaxPool2d(Pool2d):
    """The largest value of each window; stride defaults to the window's size.

    >>> MaxPool2d(2).output_shape("layer 0", (8, 5, 4))
    (8, 2, 2)
    """


@record.layer("linear", only_torch={"divisor_override": None})
class AvgPool2d(Pool2d):
    """The mean of each window; stride defaults to the window's size.

    >>> AvgPool2d(2, stride=1, padding=1).output_shape("layer 0", (8, 5, 4))
    (8, 6, 5)
    """

    count_include_pad: bool

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode=ceil_mode)
        self._set(count_include_pad=check_bool("AvgPool2d", "count_include_pad", count_include_pad))


@record.layer("linear")
class AdaptiveAvgPool2d(Layer):
    """The means of as many windows as the output has pixels, however large the image is.

    >>> AdaptiveAvgPool2d(1).output_shape("layer 0", (8, 5, 4))
    (8, 1, 1)
    >>> AdaptiveAvgPool2d((7, 7)).output_shape("layer 0", (8, 13, 4))
    (8, 7, 7)
    """

    output_size: Pair

    def __init__(self, output_size: int | Pair) -> None:
        self._set(output_size=check_pair("AdaptiveAvgPool2d", "output_size", output_size))

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape)
        return (shape[0], *self.output_size)

    def describe(self) -> str:
        return f"AdaptiveAvgPool2d {self.output_size[0]}×{self.output_size[1]}"
