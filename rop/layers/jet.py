"""The jet of a product, which all layers share.

Inside the engine order k of a quantity a is stored as its Taylor coefficient a_k = R^k{a} / k!: order 1 as it is, order
2 as half of R². Binomial factors then vanish, and order k of a product is the Cauchy sum of the orders of its factors:

    (a b)_k = Σ_j a_j b_{k−j}

Like all scalar functions of this folder these are plain Python, which rop/kernels compiles for both devices.
"""

from __future__ import annotations


def product_1(a0: float, a1: float, b0: float, b1: float) -> float:
    """Order 1 of a b.

    >>> product_1(2.0, 3.0, 5.0, 7.0)  # (2 + 3 t) (5 + 7 t) = 10 + 29 t + …
    29.0
    """
    return a0 * b1 + a1 * b0


def product_2(a0: float, a1: float, a2: float, b0: float, b1: float, b2: float) -> float:
    """Order 2 of a b.

    >>> product_2(2.0, 3.0, 1.0, 5.0, 7.0, 4.0)  # 2·4 + 3·7 + 1·5
    34.0
    """
    return a0 * b2 + a1 * b1 + a2 * b0
