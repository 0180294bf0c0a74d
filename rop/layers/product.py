"""Products of two values of the network: the family product, bilinear in its two inputs a and b.

    forward    y⁰ = a⁰b⁰          y¹ = a¹b⁰ + a⁰b¹            y² = a²b⁰ + 2 a¹b¹ + a⁰b²
    backward   ā⁰ = S(g⁰b⁰)       ā¹ = S(g¹b⁰ + g⁰b¹)         ā² = S(g²b⁰ + 2 g¹b¹ + g⁰b²)
               b̄⁰ = S(g⁰a⁰)       b̄¹ = S(g¹a⁰ + g⁰a¹)         b̄² = S(g²a⁰ + 2 g¹a¹ + g⁰a²)

g = ∂E/∂y, ā = ∂E/∂a and b̄ = ∂E/∂b. In Taylor coefficients (jet.py) all three are one sum, of two factors each:

    y_k = Σ_j a_j b_{k−j}         ā_k = Σ_j S(g_j b_{k−j})         b̄_k = Σ_j S(g_j a_{k−j})

Mul is the product number by number. An input with one channel is repeated for all channels of the other, and one with
one pixel for all pixels; S adds up what goes back to the repetitions of a number. A vector is a map of one pixel.

If both inputs are the same value, its gradient is ā + b̄, as for any value with two uses.
"""

from __future__ import annotations

from rop.errors import ArgumentError
from rop.layers import record
from rop.layers.base import Layer, Shape, batched

ONE_PIXEL = (1, 1)


@record.layer("product")
class Mul(Layer):
    """Product of two inputs, number by number: a gate, an attention, a square.

    Inputs have the same shape, or one of them has one channel, or one pixel, or both, for all of the other's:

    >>> Mul().output_shape("layer 0", (8, 4, 4), (8, 4, 4))  # a gate
    (8, 4, 4)
    >>> Mul().output_shape("layer 0", (8, 4, 4), (8,))  # a number for each channel, also as (8, 1, 1)
    (8, 4, 4)
    >>> Mul().output_shape("layer 0", (1, 4, 4), (8, 4, 4))  # a number for each pixel
    (8, 4, 4)
    >>> Mul().output_shape("layer 0", (8,), (1,))  # a single number, also as (1, 1, 1)
    (8,)
    """

    min_inputs = max_inputs = 2

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        a, b = shapes
        images = {shape[1:] or ONE_PIXEL for shape in shapes} - {ONE_PIXEL}
        channels = {a[0], b[0]} - {1}
        if len(channels) > 1 or len(images) > 1 or any(len(shape) not in (1, 3) for shape in shapes):
            raise ArgumentError(
                f"{where}: expected two inputs of one shape, or one input with a single channel or a single pixel for "
                f"all of the other's, got {batched(a)} and {batched(b)}; make the other axes equal"
            )
        pixels = images.pop() if images else max(a[1:], b[1:], key=len)
        return (max(a[0], b[0]), *pixels)
