"""Normalisation of each sample by statistics of its own: LayerNorm, LayerNorm2d, RMSNorm, GroupNorm, InstanceNorm2d.

The numbers x of a sample are divided into sets of N numbers each: all features (LayerNorm, RMSNorm), the channels of
one pixel (LayerNorm2d), or a group of channels with all their pixels (GroupNorm, InstanceNorm2d). Every set is
standardised, n = r c, and then y = γ n + β, with one γ and one β for each feature or channel.

The first step is batch normalisation in training mode (batchnorm.py) with γ = 1, so q = r and t = r³, and with sums and
means over a set instead of the batch. With the jets of c = x − m(x) and of r = (m(c²) + ε)^(−1/2):

    n⁰ = r⁰ c⁰                 n¹ = r⁰ c¹ + r¹ c⁰                   n² = r⁰ c² + 2 r¹ c¹ + r² c⁰
    G⁰ = Σ g⁰                  G¹ = Σ g¹                            G² = Σ g²
    D⁰ = Σ g⁰ c⁰               D¹ = Σ (g¹ c⁰ + g⁰ c¹)               D² = Σ (g² c⁰ + 2 g¹ c¹ + g⁰ c²)
    a⁰ = r⁰ G⁰ / N             a¹ = (r⁰ G¹ + r¹ G⁰) / N             a² = (r⁰ G² + 2 r¹ G¹ + r² G⁰) / N
    b⁰ = t⁰ D⁰ / N             b¹ = (t⁰ D¹ + t¹ D⁰) / N             b² = (t⁰ D² + 2 t¹ D¹ + t² D⁰) / N

    h⁰ = r⁰ g⁰ − a⁰ − b⁰ c⁰
    h¹ = r⁰ g¹ + r¹ g⁰ − a¹ − b⁰ c¹ − b¹ c⁰
    h² = r⁰ g² + 2 r¹ g¹ + r² g⁰ − a² − b⁰ c² − 2 b¹ c¹ − b² c⁰

RMSNorm does not centre: c = x, and a = 0. The second step is batch normalisation in evaluation mode with μ = 0 and
σ² + ε = 1: bilinear in (γ, n), with the gradients Σ g n of γ and Σ g of β over samples and pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rop.arguments import check_bool, check_float, check_int
from rop.errors import ArgumentError
from rop.layers import record
from rop.layers.base import Layer, Shape, check_features, check_image, refuse_shape

# ---- the jet, in Taylor coefficients (see jet.py): the functions of batchnorm.py, and these --------------------------


def standardised_0(r0: float, c0: float) -> float:
    """Order 0 of n = r c; the others are those of a product."""
    return r0 * c0


def share_0(r0: float, total0: float, n: float) -> float:
    """Order 0 of a, or of b with t and D in the places of r and G."""
    return r0 * total0 / n


class SampleNorm(Layer):
    """What these layers share: γ and β for each of so many channels or features."""

    eps: float
    channels: int  # that γ and β are for,
    has_weight: bool  # and which of them there are
    has_bias: bool
    groups: int | None = None  # of channels, whose pixels form a set; None: every pixel is a set
    centres = True  # whether the mean is subtracted

    def _keep(self, channels: int, eps: float, has_weight: bool, has_bias: bool, **own: Any) -> None:
        """Stores what all have, and the arguments of a layer's own."""
        checked = check_float(type(self).__name__, "eps", eps, positive=True)
        self._set(channels=channels, eps=checked, has_weight=has_weight, has_bias=has_bias, **own)

    def parameter_shapes(self) -> dict[str, Shape]:
        names = {"weight": self.has_weight, "bias": self.has_bias}
        return {name: (self.channels,) for name, there in names.items() if there}

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        start = {"weight": 1.0, "bias": 0.0}
        return {name: np.full(shape, start[name]) for name, shape in self.parameter_shapes().items()}

    def describe(self) -> str:
        return f"{type(self).__name__} {self.channels}"


class _OverFeatures(SampleNorm):
    """What LayerNorm and RMSNorm share: a sample is one set."""

    normalized_shape: int

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if len(shape) == 3:
            refuse_shape(
                where,
                (self.normalized_shape,),
                shape,
                "for the channels of each pixel use LayerNorm2d, for all channels and pixels GroupNorm(1, channels)",
            )
        check_features(where, shape, self.normalized_shape)
        return shape


def _features(owner: str, given: int | tuple[int, ...]) -> int:
    """``normalized_shape`` as a number; torch keeps it as a tuple."""
    if isinstance(given, (tuple, list)):
        if len(given) != 1:
            raise ArgumentError(
                f"{owner}: expected normalized_shape to be a number of features, got {tuple(given)}; for all channels "
                "and pixels of an image use GroupNorm(1, channels)"
            )
        (given,) = given
    return check_int(owner, "normalized_shape", given)


@record.layer("custom")
class LayerNorm(_OverFeatures):
    """(x − mean) / √(variance + ε) · γ + β over the features of each sample, (batch, features).

    >>> LayerNorm(3).parameter_shapes()
    {'weight': (3,), 'bias': (3,)}
    """

    elementwise_affine: bool
    bias: bool

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        owner, features = type(self).__name__, _features(type(self).__name__, normalized_shape)
        affine = check_bool(owner, "elementwise_affine", elementwise_affine)
        own = {"normalized_shape": features, "elementwise_affine": affine, "bias": check_bool(owner, "bias", bias)}
        self._keep(features, eps, affine, affine and bias, **own)


@record.layer("custom")
class RMSNorm(_OverFeatures):
    """x / √(mean of x² + ε) · γ over the features of each sample, (batch, features). eps=None: the machine epsilon of
    float32, with any dtype.

    >>> RMSNorm(3).parameter_shapes()
    {'weight': (3,)}
    """

    elementwise_affine: bool
    centres = False

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        owner, features = type(self).__name__, _features(type(self).__name__, normalized_shape)
        given = float(np.finfo(np.float32).eps) if eps is None else eps
        affine = check_bool(owner, "elementwise_affine", elementwise_affine)
        self._keep(features, given, affine, False, normalized_shape=features, elementwise_affine=affine)


@record.layer("custom", reference="rop.check.reference:layernorm")
class LayerNorm2d(SampleNorm):
    """(x − mean) / √(variance + ε) · γ + β over the channels of each pixel of an image, as in ConvNeXt.

    >>> LayerNorm2d(8).output_shape("layer 0", (8, 5, 4))
    (8, 5, 4)
    """

    num_channels: int
    affine: bool

    def __init__(self, num_channels: int, eps: float = 1e-6, affine: bool = True) -> None:
        owner = type(self).__name__
        channels, there = check_int(owner, "num_channels", num_channels), check_bool(owner, "affine", affine)
        self._keep(channels, eps, there, there, num_channels=channels, affine=there)

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape, self.num_channels)
        return shape


class _OverPixels(SampleNorm):
    """What GroupNorm and InstanceNorm2d share: a set is a group of channels with all their pixels."""

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if len(shape) == 1 and self._takes_vectors:
            check_features(where, shape, self.channels)
        else:
            check_image(where, shape, self.channels)
        return shape

    _takes_vectors = False


@record.layer("custom")
class GroupNorm(_OverPixels):
    """(x − mean) / √(variance + ε) · γ + β over groups of channels and all pixels, for images and vectors.

    >>> GroupNorm(2, 8).output_shape("layer 0", (8, 5, 4))
    (8, 5, 4)
    """

    num_groups: int
    num_channels: int
    affine: bool
    _takes_vectors = True

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        owner = type(self).__name__
        groups, channels = check_int(owner, "num_groups", num_groups), check_int(owner, "num_channels", num_channels)
        if channels % groups:
            raise ArgumentError(f"{owner}: expected num_groups to divide num_channels {channels}, got {groups}")
        there = check_bool(owner, "affine", affine)
        own = {"num_groups": groups, "num_channels": channels, "affine": there}
        self._keep(channels, eps, there, there, groups=groups, **own)

    def describe(self) -> str:
        return f"GroupNorm {self.num_groups} of {self.num_channels}"


@record.layer("custom", only_torch={"track_running_stats": False})
class InstanceNorm2d(_OverPixels):
    """(x − mean) / √(variance + ε), and with affine · γ + β, over the pixels of each channel of an image.

    >>> InstanceNorm2d(8).parameter_shapes()
    {}
    """

    num_features: int
    affine: bool

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        owner = type(self).__name__
        channels, there = check_int(owner, "num_features", num_features), check_bool(owner, "affine", affine)
        self._keep(channels, eps, there, there, groups=channels, num_features=channels, affine=there)
