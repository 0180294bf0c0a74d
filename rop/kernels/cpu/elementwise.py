"""Elementwise layers: one loop per activation computes order 0, the other orders are the same for all activations.

Order 0 stores σ′, σ″, σ‴ at x⁰; every later pass, forward or backward, is then a polynomial in the stored numbers. All
arrays are flat, (count,), because no operation depends on the shape.
"""

from __future__ import annotations

import re
import types as pytypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc

from rop.kernels.compile import (
    FORMULA_MATH,
    PART,
    Derivatives,
    Jet,
    Kernel,
    KernelCache,
    PerPrecision,
    Slice,
    algebra,
    formula,
    helper,
    itemsize,
    kernel,
    loop,
    real,
)
from rop.kernels.cpu.mathematics import versions
from rop.kernels.cpu.memory import bounds_of, jet_of_reals, reals
from rop.kernels.cpu.vector import number_in
from rop.kernels.scalar import CALLS, compilable, identity, refusal
from rop.layers import elementwise as layer
from rop.layers import jet

output_1, output_2 = formula(layer.output_1), formula(layer.output_2)
slope_1, slope_2 = formula(layer.slope_1), formula(layer.slope_2)
product_1, product_2 = algebra(jet.product_1), algebra(jet.product_2)


@helper
def run_of(count, part):
    """Byte offset and length of a slice of so many numbers."""
    low, high = bounds_of(count, part)
    return low * itemsize, high - low


@helper
def moved(jet, at):
    """The same arrays from a byte offset on."""
    return jet[0] + at, jet[1] + at, jet[2] + at


# -------------------------------------------------------------------------------------------- order 0, per activation
scalar: Any = None  # the functions that these templates call: bound by ``ActivationKernel``
activate: Any = None


def _activate(y, d1, d2, d3, x, a, b):
    for i in range(y.size):
        y[i], d1[i], d2[i], d3[i] = scalar(x[i], a, b)


def _activation(y, d: Derivatives, x, count, a, b, part: Slice):
    """y = σ(x) and d = σ′, σ″, σ‴, all (count,); a and b hold the bits of the layer's parameters."""
    at, count = run_of(count, part)
    d1, d2, d3 = jet_of_reals(moved(d, at), count)
    activate(reals(y + at, count), d1, d2, d3, reals(x + at, count), real(number_in(a)), real(number_in(b)))


def renamed(function: Callable[..., Any], tag: str) -> Callable[..., Any]:
    """A template under a name that it has with no other scalar function: compiled code is linked by name, including
    code that different processes have written to the cache."""
    copy: Any = pytypes.FunctionType(function.__code__, function.__globals__, f"{function.__name__}_{tag}")
    copy.__module__, copy.__annotations__ = function.__module__, function.__annotations__
    return copy


class ActivationKernel(Kernel):
    """The order-0 kernel of one scalar function. It uses the first version of the function that compiles: with all
    numbers in the kernel's precision, or with integers unchanged, or with ``math`` and NumPy unchanged as well."""

    def __init__(self, of: Callable[..., Any], count: int):
        known = identity(of)
        self._of, self._count = of, count
        self.ahead = of.__module__ == layer.__name__  # a built-in one, like all other kernels
        self.cache = partial(KernelCache, ahead=self.ahead) if known else lambda name: NullCache()
        self._tag = re.sub(r"\W", "", of.__name__) + "_" + (known or f"{id(of):x}")
        super().__init__(_activation, f"elementwise.{self._tag}-{count}")

    def _compile(self, dtype: Any) -> CFunc:
        for whole_numbers, ours in ((False, True), (True, True), (True, False)):
            scalar = partial(self._scalar, whole_numbers=whole_numbers, ours=ours)
            called = helper(self._own(CALLS[self._count]), function=PerPrecision(scalar))
            body = helper(self._own(_activation), activate=loop(self._own(_activate), scalar=called))
            try:
                return self._entry(body.made(dtype), dtype)
            except Exception as error:  # Numba raises many types of errors
                refused = error
        raise refusal(self._of, scalar(dtype), (numba.from_dtype(np.dtype(dtype)),) * (1 + self._count)) or refused

    def _scalar(self, dtype: Any, whole_numbers: bool, ours: bool) -> Any:
        jit = numba.njit(fastmath=FORMULA_MATH, **PART)
        return jit(compilable(self._of, dtype, jit, versions.made(dtype) if ours else {}, whole_numbers, self._tag))

    def _own(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return renamed(function, self._tag)


_activations: dict[Any, ActivationKernel] = {}


def activation(of: Callable[..., Any], count: int) -> ActivationKernel:
    """The order-0 kernel of a scalar function that returns (σ, σ′, σ″, σ‴) for x and ``count`` parameters."""
    key = identity(of) or of, count
    if key not in _activations:
        _activations[key] = ActivationKernel(of, count)
    return _activations[key]


# ------------------------------------------------------------------------------------- the orders, for all activations
@loop
def _forward_1(y1, d1, x1):
    for i in range(y1.size):
        y1[i] = output_1(d1[i], x1[i])


@loop
def _forward_2(y2, d1, d2, x1, x2):
    for i in range(y2.size):
        y2[i] = output_2(d1[i], d2[i], x1[i], x2[i])


@loop
def _backward_0(h, d1, g0):
    for i in range(h.size):
        h[i] = d1[i] * g0[i]


# The order in which a loop reads numbers fixes the order in which LLVM adds the terms of a reassociated sum, and thus
# the last bit of the result: the loops below read the factors term by term, a_0 b_k, a_1 b_{k−1}, ….
@loop
def _backward_1(h, d1, d2, x1, g0, g1):
    for i in range(h.size):
        s0, f1, s1, f0 = d1[i], g1[i], slope_1(d2[i], x1[i]), g0[i]
        h[i] = product_1(s0, s1, f0, f1)


@loop
def _backward_2(h, d1, d2, d3, x1, x2, g0, g1, g2):
    for i in range(h.size):
        s0, f2, s1, f1 = d1[i], g2[i], slope_1(d2[i], x1[i]), g1[i]
        s2, f0 = slope_2(d2[i], d3[i], x1[i], x2[i]), g0[i]
        h[i] = product_2(s0, s1, s2, f0, f1, f2)


@kernel
def forward(y, order, d: Derivatives, x: Jet, count, part: Slice):
    """Order 1 or 2 of y = σ(x)."""
    at, count = run_of(count, part)
    y, d, x = y + at, moved(d, at), moved(x, at)
    (d1, d2, _), (_, x1, x2) = jet_of_reals(d, count), jet_of_reals(x, count)
    if order == 1:
        _forward_1(reals(y, count), d1, x1)
    else:
        _forward_2(reals(y, count), d1, d2, x1, x2)


@kernel
def backward(h, order, d: Derivatives, x: Jet, g: Jet, count, part: Slice):
    """Order 0, 1 or 2 of h = σ′(x)·g."""
    at, count = run_of(count, part)
    h, d, x, g = h + at, moved(d, at), moved(x, at), moved(g, at)
    result, (d1, d2, d3) = reals(h, count), jet_of_reals(d, count)
    (_, x1, x2), (g0, g1, g2) = jet_of_reals(x, count), jet_of_reals(g, count)
    if order == 0:
        _backward_0(result, d1, g0)
    elif order == 1:
        _backward_1(result, d1, d2, x1, g0, g1)
    else:
        _backward_2(result, d1, d2, d3, x1, x2, g0, g1, g2)
