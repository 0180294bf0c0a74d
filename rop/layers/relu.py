"""ReLU and LeakyReLU: y = φ x, where the slope φ is picked by the sign of x⁰ (family select).

φ = 1 where x⁰ > 0 and negative_slope elsewhere, 0 included (torch's convention). σ″ = σ‴ = 0, so the paper's
elementwise rules keep only the terms in σ′ = φ:

    forward    y⁰ = φ x⁰        y¹ = φ x¹        y² = φ x²
    backward   h⁰ = φ g⁰        h¹ = φ g¹        h² = φ g²
"""

from __future__ import annotations

from rop.arguments import check_float
from rop.layers import record
from rop.layers.base import Layer, Shape


def is_off(x0: float) -> bool:
    """Whether the slope at x⁰ is negative_slope. It is not where x⁰ is not a number, so that NaN propagates."""
    return x0 <= 0


def rectified(x: float, x0: float, negative_slope: float) -> float:
    """φ x for any order x of the input, φ being the slope at x⁰; without a slope an infinite x gives 0, not 0·∞.

    >>> rectified(3.0, -1.0, 0.5), rectified(3.0, 2.0, 0.5), rectified(float("inf"), -1.0, 0.0)
    (1.5, 3.0, 0.0)
    """
    off = negative_slope * x if negative_slope != 0 else 0.0
    return off if is_off(x0) else x


class Rectifier(Layer):
    """What ReLU and LeakyReLU share: a slope for the negative side."""

    negative_slope: float

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        return shapes[0]


@record.layer("select", function="torch.nn.functional:relu", checks="rop.check.subjects:on_vectors_and_images")
class ReLU(Rectifier):
    """max(x, 0), with slope 0 at 0."""

    negative_slope = 0.0


@record.layer(
    "select",
    function="torch.nn.functional:leaky_relu",
    checks="rop.check.subjects:on_vectors_and_images",
    examples=((0.2,),),
)
class LeakyReLU(Rectifier):
    """x where x > 0, negative_slope·x elsewhere."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self._set(negative_slope=check_float("LeakyReLU", "negative_slope", negative_slope))
