"""Linear, y = W x + b: a bilinear layer.

With V and u the parts of v that belong to W and b, so that R{W} = V, R²{W} = 0, R{b} = u, R²{b} = 0:

    forward           y⁰ = W x⁰ + b       y¹ = W x¹ + V x⁰ + u          y² = W x² + 2 V x¹
    backward, input   h⁰ = Wᵀ g⁰          h¹ = Wᵀ g¹ + Vᵀ g⁰            h² = Wᵀ g² + 2 Vᵀ g¹
    backward, W       Σ g⁰ x⁰ᵀ            Σ (g¹ x⁰ᵀ + g⁰ x¹ᵀ)           Σ (g² x⁰ᵀ + 2 g¹ x¹ᵀ + g⁰ x²ᵀ)
    backward, b       Σ g⁰                Σ g¹                          Σ g²

The sums run over the batch. The second line is the adjoint in x, the third the adjoint in W; both are bilinear again.
"""

from __future__ import annotations

import math

import numpy as np

from rop.arguments import check_bool, check_int
from rop.layers import record
from rop.layers.base import Layer, Shape, check_features


@record.layer("bilinear")
class Linear(Layer):
    """y = W x + b with weight W (out_features, in_features).

    >>> Linear(3, 2).parameter_shapes()
    {'weight': (2, 3), 'bias': (2,)}
    """

    in_features: int
    out_features: int
    bias: bool

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self._set(
            in_features=check_int("Linear", "in_features", in_features),
            out_features=check_int("Linear", "out_features", out_features),
            bias=check_bool("Linear", "bias", bias),
        )

    def parameter_shapes(self) -> dict[str, Shape]:
        return affine_shapes((self.out_features, self.in_features), self.bias)

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return uniform_parameters(rng, self.parameter_shapes())

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_features(where, shape, self.in_features)
        return (self.out_features,)

    def describe(self) -> str:
        return f"Linear {self.in_features}→{self.out_features}"


def affine_shapes(weight: Shape, bias: bool) -> dict[str, Shape]:
    """The weight and, if there is one, a bias with one number per output (the weight's first axis)."""
    return {"weight": weight, "bias": weight[:1]} if bias else {"weight": weight}


def uniform_parameters(rng: np.random.Generator, shapes: dict[str, Shape]) -> dict[str, np.ndarray]:
    """U(−1/√fan_in, 1/√fan_in) for weight and bias, where fan_in is the number of inputs of one output."""
    bound = 1 / math.sqrt(math.prod(shapes["weight"][1:]))
    return {key: rng.uniform(-bound, bound, shape) for key, shape in shapes.items()}
