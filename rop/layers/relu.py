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


def slope(x: float, negative_slope: float) -> float:
    """φ at x; not-a-number counts as positive, so that it travels on."""
    return negative_slope if x <= 0 else 1.0


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
