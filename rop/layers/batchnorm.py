"""Batch normalisation, y = γ (x − μ) / √(σ² + ε) + β, per channel.

γ and β have the jets (γ, v_γ, 0) and (β, v_β, 0). Everything is written in terms of a few numbers per channel; sums and
means (m) run over the N values of the channel, that is over the batch and the pixels.

Both modes. With the jets of c (x centred), r (1/standard deviation) and q = γ r, one number per channel:

    q⁰ = γ r⁰                  q¹ = γ r¹ + v_γ r⁰                   q² = γ r² + 2 v_γ r¹
    y⁰ = q⁰ c⁰ + β             y¹ = q⁰ c¹ + q¹ c⁰ + v_β             y² = q⁰ c² + 2 q¹ c¹ + q² c⁰
    G⁰ = Σ g⁰                  G¹ = Σ g¹                            G² = Σ g²
    D⁰ = Σ g⁰ c⁰               D¹ = Σ (g¹ c⁰ + g⁰ c¹)               D² = Σ (g² c⁰ + 2 g¹ c¹ + g⁰ c²)

    backward, β     Gᵏ at order k
    backward, γ     r⁰ D⁰      r⁰ D¹ + r¹ D⁰                        r⁰ D² + 2 r¹ D¹ + r² D⁰

Training mode, batch statistics. c is linear in x, s = σ² is bilinear in c, and r = (s + ε)^(−1/2) is elementwise on one
number, with r′ = −r³/2 and r″ = 3r⁵/4:

    c⁰ = x⁰ − m(x⁰)            c¹ = x¹ − m(x¹)                      c² = x² − m(x²)
    s⁰ = m((c⁰)²)              s¹ = 2 m(c⁰ c¹)                      s² = 2 m((c¹)²) + 2 m(c⁰ c²)
    r⁰ = (s⁰ + ε)^(−1/2)       r¹ = −½ (r⁰)³ s¹                     r² = ¾ (r⁰)⁵ (s¹)² − ½ (r⁰)³ s²

Backward. dE = Σ g (q dc + γ c dr) with dr = −r³ Σ c dc / N gives ∂E/∂c = q g − b c; centring it (c is centred already)
leaves h = q g − a − b c, where a = q G/N and b = q r² D/N = t D/N are one number per channel:

    t⁰ = q⁰ (r⁰)²              t¹ = q¹ (r⁰)² + 2 q⁰ r⁰ r¹           t² = q² (r⁰)² + 4 q¹ r⁰ r¹ + 2 q⁰ ((r¹)² + r⁰ r²)
    a⁰ = q⁰ G⁰ / N             a¹ = (q⁰ G¹ + q¹ G⁰) / N             a² = (q⁰ G² + 2 q¹ G¹ + q² G⁰) / N
    b⁰ = t⁰ D⁰ / N             b¹ = (t⁰ D¹ + t¹ D⁰) / N             b² = (t⁰ D² + 2 t¹ D¹ + t² D⁰) / N

    h⁰ = q⁰ g⁰ − a⁰ − b⁰ c⁰
    h¹ = q⁰ g¹ + q¹ g⁰ − a¹ − b⁰ c¹ − b¹ c⁰
    h² = q⁰ g² + 2 q¹ g¹ + q² g⁰ − a² − b⁰ c² − 2 b¹ c¹ − b² c⁰

Evaluation mode, running statistics. μ and r are constants, so the layer is bilinear in (γ, x):

    c⁰ = x⁰ − μ                c¹ = x¹                              c² = x²
    r⁰ = (σ² + ε)^(−1/2)       r¹ = 0                               r² = 0
    h⁰ = q⁰ g⁰                 h¹ = q⁰ g¹ + q¹ g⁰                   h² = q⁰ g² + 2 q¹ g¹

Without affine parameters γ = 1, β = 0 and v_γ = v_β = 0.
"""

from __future__ import annotations

import numpy as np

from rop.arguments import check_bool, check_float, check_fraction, check_int
from rop.layers import record
from rop.layers.base import Layer, Shape, check_features, check_image

# ---- the jet of r = (s + ε)^(−1/2), in Taylor coefficients (see elementwise.py) --------------------------------------


def inverse_root_1(r0: float, s1: float) -> float:
    """Order 1 of r."""
    return -r0 * r0 * r0 * s1 / 2


def inverse_root_2(r0: float, s1: float, s2: float) -> float:
    """Order 2 of r."""
    r3 = r0 * r0 * r0
    return 3 * r3 * r0 * r0 * s1 * s1 / 8 - r3 * s2 / 2


class BatchNorm(Layer):
    """What the two batch normalisations share; they differ in the shapes they take."""

    num_features: int
    eps: float
    momentum: float  # for whoever keeps running averages; evaluating a net never changes them
    affine: bool

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        owner = type(self).__name__
        self._set(
            num_features=check_int(owner, "num_features", num_features),
            eps=check_float(owner, "eps", eps, positive=True),
            momentum=check_fraction(owner, "momentum", momentum),
            affine=check_bool(owner, "affine", affine),
        )

    def parameter_shapes(self) -> dict[str, Shape]:
        return {"weight": (self.num_features,), "bias": (self.num_features,)} if self.affine else {}

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"weight": np.ones(self.num_features), "bias": np.zeros(self.num_features)} if self.affine else {}

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"running_mean": np.zeros(self.num_features), "running_var": np.ones(self.num_features)}

    def describe(self) -> str:
        return f"{type(self).__name__} {self.num_features}"


@record.layer("custom", reference="rop.check.reference:batchnorm", only_torch={"track_running_stats": True})
class BatchNorm1d(BatchNorm):
    """Each feature of (batch, features) is normalised over the batch.

    >>> BatchNorm1d(3).parameter_shapes()
    {'weight': (3,), 'bias': (3,)}
    """

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_features(where, shape, self.num_features)
        return shape


@record.layer("custom", reference="rop.check.reference:batchnorm", only_torch={"track_running_stats": True})
class BatchNorm2d(BatchNorm):
    """Each channel of (batch, channels, height, width) is normalised over the batch and the pixels."""

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape, self.num_features)
        return shape
