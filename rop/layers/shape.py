"""Layers that only move, join or add values: the family linear, the same map at every order k = 0, 1, 2.

    Flatten, Identity    y^k = x^k (in another shape)                      h^k = g^k
    Add                  y^k = x₁^k + x₂^k + …                             h₁^k = h₂^k = … = g^k
    Concat               y^k = x₁^k above x₂^k above …, along channels     hᵢ^k = the rows of g^k that came from xᵢ

The backward of Add copies; if the same node is added twice its gradient is the sum of both copies.
"""

from __future__ import annotations

import math

from rop.arguments import check_choice
from rop.errors import ArgumentError
from rop.layers import record
from rop.layers.base import Layer, Shape, batched


@record.layer("linear")
class Flatten(Layer):
    """All axes but the batch become one.

    >>> Flatten().output_shape("layer 0", (8, 4, 4))
    (128,)
    """

    start_dim: int
    end_dim: int

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self._set(
            start_dim=check_choice("Flatten", "start_dim", start_dim, (1,)),
            end_dim=check_choice("Flatten", "end_dim", end_dim, (-1,)),
        )

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        return (math.prod(shapes[0]),)


@record.layer("linear", checks="rop.check.subjects:on_vectors_and_images")
class Identity(Layer):
    """y = x."""

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        return shapes[0]


@record.layer("linear")
class Add(Layer):
    """Sum of two or more inputs of one shape (a residual connection)."""

    min_inputs = 2
    max_inputs = None

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        if any(shape != shapes[0] for shape in shapes):
            raise ArgumentError(
                f"{where}: expected inputs of one shape, got {_list(shapes)}; nothing is broadcast, make them equal"
            )
        return shapes[0]


@record.layer("linear")
class Concat(Layer):
    """Two or more inputs joined along axis 1: channels of images, features of vectors.

    >>> Concat().output_shape("layer 0", (8, 4, 4), (3, 4, 4))
    (11, 4, 4)
    """

    min_inputs = 2
    max_inputs = None

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            raise ArgumentError(
                f"{where}: expected inputs that differ in channels only, got {_list(shapes)}; make the other axes equal"
            )
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _list(shapes: tuple[Shape, ...]) -> str:
    return " and ".join(map(batched, shapes))
