"""Conv2d, y = W ∗ x + b: a bilinear layer like Linear, with a window that moves.

One output pixel i reads the input at the pixels s·i + d·t − p, where t runs over the kernel (stride s, dilation d,
padding p); x is zero outside the image:

    (W ∗ x)[o, i]  =  Σ_c Σ_t W[o, c, t] · x[c, s·i + d·t − p]          correlation, as in torch
    (W ⋆ g)[c, j]  =  Σ_o Σ_t Σ_{i: s·i + d·t − p = j} W[o, c, t] · g[o, i]      its adjoint in x
    (g ⊛ x)[o, c, t]  =  Σ_i g[o, i] · x[c, s·i + d·t − p]                        its adjoint in W

With groups, c runs over the input channels of o's group only. V and u are the parts of v that belong to W and b:

    forward           y⁰ = W ∗ x⁰ + b     y¹ = W ∗ x¹ + V ∗ x⁰ + u      y² = W ∗ x² + 2 V ∗ x¹
    backward, input   h⁰ = W ⋆ g⁰         h¹ = W ⋆ g¹ + V ⋆ g⁰          h² = W ⋆ g² + 2 V ⋆ g¹
    backward, W       Σ g⁰ ⊛ x⁰           Σ (g¹ ⊛ x⁰ + g⁰ ⊛ x¹)         Σ (g² ⊛ x⁰ + 2 g¹ ⊛ x¹ + g⁰ ⊛ x²)
    backward, b       Σ g⁰                Σ g¹                          Σ g²

The sums run over the batch, those for b over the pixels too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rop.arguments import Pair, check_bool, check_int, check_pair
from rop.errors import ArgumentError
from rop.layers import record
from rop.layers.base import Layer, Shape, check_image, window_count
from rop.layers.linear import affine_shapes, uniform_parameters


@record.layer("bilinear", only_torch={"padding_mode": "zeros"})
class Conv2d(Layer):
    """Convolution of images (batch, channels, height, width) with zero padding.

    kernel_size, stride, padding and dilation are an integer or a pair (vertical, horizontal) and are kept as pairs;
    padding may also be "valid" (none) or "same" (the output is as large as the input; stride 1 only).

    >>> Conv2d(8, 16, 3, padding="same").padding
    (1, 1)
    """

    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    bias: bool

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        self._set(
            in_channels=check_int("Conv2d", "in_channels", in_channels),
            out_channels=check_int("Conv2d", "out_channels", out_channels),
            kernel_size=check_pair("Conv2d", "kernel_size", kernel_size),
            stride=check_pair("Conv2d", "stride", stride),
            dilation=check_pair("Conv2d", "dilation", dilation),
            groups=check_int("Conv2d", "groups", groups),
            bias=check_bool("Conv2d", "bias", bias),
        )
        self._set(padding=_padding(padding, self.kernel_size, self.stride, self.dilation))
        for name, channels in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if channels % self.groups:
                raise ArgumentError(f"Conv2d: groups must divide {name} = {channels}, got {self.groups}")

    def parameter_shapes(self) -> dict[str, Shape]:
        return affine_shapes((self.out_channels, self.in_channels // self.groups, *self.kernel_size), self.bias)

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return uniform_parameters(rng, self.parameter_shapes())

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape, self.in_channels)
        pixels = window_count(where, shape, self.kernel_size, self.stride, self.padding, self.dilation)
        return (self.out_channels, *pixels)

    def describe(self) -> str:
        return f"Conv2d {self.in_channels}→{self.out_channels}"


def _padding(padding: Any, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """The padding as a pair, with "valid" and "same" worked out."""
    if padding == "valid":
        return 0, 0
    if padding != "same":
        if isinstance(padding, str):
            raise ArgumentError(f"Conv2d: padding must be integers, 'valid' or 'same', got {padding!r}")
        return check_pair("Conv2d", "padding", padding, minimum=0)
    if stride != (1, 1):
        raise ArgumentError(f"Conv2d: padding='same' needs stride 1, got {stride}; give the padding as integers")
    extra = (dilation[0] * (kernel[0] - 1), dilation[1] * (kernel[1] - 1))
    if extra[0] % 2 or extra[1] % 2:
        raise ArgumentError(
            f"Conv2d: padding='same' needs dilation·(kernel_size − 1) to be even so that both sides get the same, got "
            f"kernel_size {kernel} with dilation {dilation}; use an odd kernel"
        )
    return extra[0] // 2, extra[1] // 2
