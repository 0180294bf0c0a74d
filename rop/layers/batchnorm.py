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
from rop.layers.jet import product_1, product_2

# ---- the jets, in Taylor coefficients (see jet.py) ------------------------------------------------------------------
#
# With S_ij = Σ c_i c_j over the channel, and G and D the sums above, the rules read
#
#     s_0 = S_00 / N         s_1 = 2 S_01 / N                     s_2 = (2 S_02 + S_11) / N
#     r_0 = (s_0 + ε)^(−1/2) r_1 = −(r_0)³ s_1 / 2                r_2 = 3 (r_0)⁵ (s_1)² / 8 − (r_0)³ s_2 / 2
#     t = q r²:              (r²)_1 = 2 r_0 r_1                   (r²)_2 = 2 r_0 r_2 + (r_1)²
#
# and q = γ r, y = q c + β, a = q G / N, b = t D / N, D = Σ g c, h = q g − a − b c are Cauchy sums of the jets of their
# factors, in which γ has no order 2.


def merged(
    n: float, mean: float, scatter: float, other_n: float, other_mean: float, other_scatter: float
) -> tuple[float, float, float]:
    """N, m and S_00 of two sets of values together, from those of each (Chan, Golub and LeVeque)."""
    both = n + other_n
    apart = other_mean - mean
    return both, mean + apart * other_n / both, scatter + (other_scatter + apart * apart * n * other_n / both)


def centred(x: float, m: float) -> float:
    """c at any order."""
    return x - m


def variance_0(s00: float, n: float) -> float:
    """Order 0 of s."""
    return s00 / n


def variance_1(s01: float, n: float) -> float:
    """Order 1 of s."""
    return 2 * s01 / n


def variance_2(s02: float, s11: float, n: float) -> float:
    """Order 2 of s."""
    return (2 * s02 + s11) / n


def inverse_root_0(s0: float, eps: float) -> float:
    """Order 0 of r."""
    return 1 / np.sqrt(s0 + eps)


def inverse_root_1(r0: float, s1: float) -> float:
    """Order 1 of r."""
    return -r0 * r0 * r0 * s1 / 2


def inverse_root_2(r0: float, s1: float, s2: float) -> float:
    """Order 2 of r."""
    r3 = r0 * r0 * r0
    return 3 * r3 * r0 * r0 * s1 * s1 / 8 - r3 * s2 / 2


def scale_0(gamma0: float, r0: float) -> float:
    """Order 0 of q."""
    return gamma0 * r0


def scale_1(gamma0: float, gamma1: float, r0: float, r1: float) -> float:
    """Order 1 of q."""
    return product_1(gamma0, gamma1, r0, r1)


def scale_2(gamma0: float, gamma1: float, r1: float, r2: float) -> float:
    """Order 2 of q: γ has no order 2, so the sum is that of order 1 with r one order higher."""
    return product_1(gamma0, gamma1, r1, r2)


def square_1(r0: float, r1: float) -> float:
    """Order 1 of r²."""
    return 2 * r0 * r1


def square_2(r0: float, r1: float, r2: float) -> float:
    """Order 2 of r²."""
    return 2 * r0 * r2 + r1 * r1


def cube_0(q0: float, r0: float) -> float:
    """Order 0 of t."""
    return q0 * r0 * r0


def cube_1(q0: float, q1: float, r0: float, square1: float) -> float:
    """Order 1 of t, given order 1 of r²."""
    return q1 * r0 * r0 + q0 * square1


def cube_2(q0: float, q1: float, q2: float, r0: float, square1: float, square2: float) -> float:
    """Order 2 of t, given orders 1 and 2 of r²."""
    return q2 * r0 * r0 + q1 * square1 + q0 * square2


def output_0(q0: float, c0: float, beta0: float) -> float:
    """Order 0 of y."""
    return q0 * c0 + beta0


def output_1(q0: float, q1: float, c0: float, c1: float, beta1: float) -> float:
    """Order 1 of y."""
    return product_1(q0, q1, c0, c1) + beta1


def output_2(q0: float, q1: float, q2: float, c0: float, c1: float, c2: float) -> float:
    """Order 2 of y; β has no order 2."""
    return product_2(q0, q1, q2, c0, c1, c2)


def input_gradient_0(q0: float, b0: float, g0: float, c0: float, a0: float) -> float:
    """Order 0 of h."""
    return q0 * g0 - a0 - b0 * c0


def input_gradient_1(
    q0: float, q1: float, b0: float, b1: float, g0: float, g1: float, c0: float, c1: float, a1: float
) -> float:
    """Order 1 of h."""
    return product_1(q0, q1, g0, g1) - a1 - b0 * c1 - b1 * c0


def input_gradient_2(
    q0: float,
    q1: float,
    q2: float,
    b0: float,
    b1: float,
    b2: float,
    g0: float,
    g1: float,
    g2: float,
    c0: float,
    c1: float,
    c2: float,
    a2: float,
) -> float:
    """Order 2 of h."""
    return product_2(q0, q1, q2, g0, g1, g2) - a2 - b0 * c2 - b1 * c1 - b2 * c0


class BatchNorm(Layer):
    """What the two batch normalisations share; they differ in the shapes they take."""

    num_features: int
    eps: float
    momentum: (
        float  # the weight of a new batch in running averages, which training keeps; an objective never changes them
    )
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

    def uses_batch(self, training: bool | None) -> bool:
        """Whether it uses the statistics of the batch, in this mode of the net; None: in the mode of its origin, which
        is training for layers written in rop.

        >>> BatchNorm1d(3).uses_batch(None)
        True
        """
        if training is None:
            return self.origin is None or self.origin.training
        return training


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
