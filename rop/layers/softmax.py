"""Softmax and LogSoftmax over the classes (axis 1) of each sample, or of each pixel of an image.

With p = softmax(z), l = log p = z − log Σ e^z and ⟨·,·⟩ the sum over classes, d log Σ e^z = ⟨p, dz⟩ and dp = p ⊙ dl:

    l⁰ = z⁰ − log Σ e^z⁰      l¹ = z¹ − ⟨p⁰, z¹⟩      l² = z² − ⟨p⁰, z²⟩ − ⟨p⁰, (l¹)²⟩
    p⁰ = e^l⁰                 p¹ = p⁰ ⊙ l¹            p² = p⁰ ⊙ ((l¹)² + l²)

The last term of l² is R of the weights in ⟨p, z¹⟩: ⟨p¹, z¹⟩ = ⟨p⁰, l¹ z¹⟩ = ⟨p⁰, (l¹)²⟩, because ⟨p⁰, l¹⟩ = 0.

Softmax, y = p. Backward h = p ⊙ u with u = g − m, m = ⟨p, g⟩:

    m⁰ = ⟨p⁰, g⁰⟩       m¹ = ⟨p⁰, g¹⟩ + ⟨p¹, g⁰⟩       m² = ⟨p⁰, g²⟩ + 2⟨p¹, g¹⟩ + ⟨p², g⁰⟩       uᵏ = gᵏ − mᵏ
    h⁰ = p⁰ ⊙ u⁰        h¹ = p⁰ ⊙ u¹ + p¹ ⊙ u⁰         h² = p⁰ ⊙ u² + 2 p¹ ⊙ u¹ + p² ⊙ u⁰

LogSoftmax, y = l. Backward h = g − G p with G = Σ g over the classes, one number per sample:

    h⁰ = g⁰ − G⁰ p⁰     h¹ = g¹ − G⁰ p¹ − G¹ p⁰        h² = g² − G⁰ p² − 2 G¹ p¹ − G² p⁰
"""

from __future__ import annotations

from rop.arguments import check_choice
from rop.layers import record
from rop.layers.base import Layer, Shape, refuse_shape, to_vectors

# ---- the jet, in Taylor coefficients (see jet.py) -------------------------------------------------------------------
#
# With u_1 = z_1 and u_2 = z_2 + (l_1)²/2 every order of the rules above has one form:
#
#     l_1 = u_1 − ⟨p, u_1⟩      l_2 = z_2 − ⟨p, u_2⟩      p_k = p ⊙ (u_k − ⟨p, u_k⟩)
#
# and so has the gradient h = p ⊙ (g − ⟨p, g⟩), as the product of the jets of p and of g − ⟨p, g⟩.


def log_probability(z: float, mean: float) -> float:
    """Order k of l from order k of z and ⟨p, u_k⟩; for k = 0 the latter is log Σ e^z."""
    return z - mean


def tilt_2(z2: float, l1: float) -> float:
    """u_2, which order 2 weighs with p."""
    return z2 + l1 * l1 / 2


def probability(p: float, u: float, mean: float) -> float:
    """Order 1 or 2 of p, from order 0, u_k and ⟨p, u_k⟩."""
    return p * (u - mean)


def exponential_2(l1: float, l2: float) -> float:
    """Order 2 of p = e^l, divided by p; order 1 is l_1."""
    return l2 + l1 * l1 / 2


def log_gradient_0(g0: float, p0: float, total0: float) -> float:
    """Order 0 of h = g − p G, the gradient of LogSoftmax; G is the sum of g over the classes."""
    return g0 - p0 * total0


def log_gradient_1(g1: float, p0: float, p1: float, total0: float, total1: float) -> float:
    """Order 1 of h = g − p G."""
    return g1 - p0 * total1 - p1 * total0


def log_gradient_2(g2: float, p0: float, p1: float, p2: float, total0: float, total1: float, total2: float) -> float:
    """Order 2 of h = g − p G."""
    return g2 - p0 * total2 - p1 * total1 - p2 * total0


class _OverClasses(Layer):
    """What Softmax and LogSoftmax share: the axis."""

    dim: int | None

    def __init__(self, dim: int | None = None) -> None:
        self._set(dim=check_choice(type(self).__name__, "dim", dim, (None, 1, -1)))

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        if self.dim == -1 and len(shape) != 1:
            refuse_shape(where, ("features",), shape, "for images use dim=1, the channels")
        if len(shape) not in (1, 3):
            refuse_shape(where, ("features",), shape, f"or (batch, C, H, W); {to_vectors(shape)}")
        return shape


@record.layer("custom", checks="rop.check.subjects:on_vectors_and_images", examples=((1,),))
class Softmax(_OverClasses):
    """p_c = e^{z_c} / Σ e^z over axis 1; dim may be left out.

    >>> Softmax(dim=1).output_shape("layer 0", (10,))
    (10,)
    """


@record.layer("custom", checks="rop.check.subjects:on_vectors_and_images", examples=((1,),))
class LogSoftmax(_OverClasses):
    """l_c = z_c − log Σ e^z over axis 1; dim may be left out."""
