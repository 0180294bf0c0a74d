"""Elementwise layers: one loop per activation, the rest of the jet is the same for all of them.

Order 0 keeps σ′, σ″, σ‴ at x⁰; every later pass, forward or backward, is then a polynomial in what is kept.
"""
from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from rop.kernels.compile import Kernel, formula, helper, kernel, loop, real
from rop.kernels.cpu.mathematics import vector_math
from rop.kernels.cpu.memory import reals
from rop.kernels.cpu.vector import number_in
from rop.layers import elementwise as layer

output_1, output_2 = formula(layer.output_1), formula(layer.output_2)
slope_1, slope_2 = formula(layer.slope_1), formula(layer.slope_2)


# -------------------------------------------------------------------------------------------- order 0, per activation
function: Any = None            # what these templates call: bound by ``activation``
scalar: Any = None
activate: Any = None


def _call_0(x, a, b):
    return function(x)


def _call_1(x, a, b):
    return function(x, a)


def _call_2(x, a, b):
    return function(x, a, b)


def _activate(y, d1, d2, d3, x, a, b):
    for i in range(y.size):
        y[i], d1[i], d2[i], d3[i] = scalar(x[i], a, b)


def _activation(y, d1, d2, d3, x, count, a, b):
    """y = σ(x) and its derivatives, for ``count`` numbers; a and b carry the layer's parameters."""
    activate(reals(y, count), reals(d1, count), reals(d2, count), reals(d3, count), reals(x, count),
             real(number_in(a)), real(number_in(b)))


@cache
def activation(of: Callable[..., Any]) -> Kernel:
    """The order-0 kernel of a scalar function that returns (σ, σ′, σ″, σ‴)."""
    adapter = (_call_0, _call_1, _call_2)[len(inspect.signature(of).parameters) - 1]
    called = helper(adapter, function=formula(of, vector_math))
    identity = hashlib.sha256(of.__code__.co_code + repr(of.__code__.co_consts).encode()).hexdigest()[:12]
    return Kernel(_activation, f"elementwise.{of.__name__}-{identity}", activate=loop(_activate, scalar=called))


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


@loop
def _backward_1(h, d1, d2, x1, g0, g1):
    for i in range(h.size):
        h[i] = d1[i] * g1[i] + slope_1(d2[i], x1[i]) * g0[i]


@loop
def _backward_2(h, d1, d2, d3, x1, x2, g0, g1, g2):
    for i in range(h.size):
        h[i] = d1[i] * g2[i] + slope_1(d2[i], x1[i]) * g1[i] + slope_2(d2[i], d3[i], x1[i], x2[i]) * g0[i]


@kernel
def forward(y, order, d1, d2, x1, x2, count):
    """Order 1 or 2 of σ(x)."""
    if order == 1:
        _forward_1(reals(y, count), reals(d1, count), reals(x1, count))
    else:
        _forward_2(reals(y, count), reals(d1, count), reals(d2, count), reals(x1, count), reals(x2, count))


@kernel
def backward(h, order, d1, d2, d3, x1, x2, g0, g1, g2, count):
    """Order 0, 1 or 2 of σ′(x)·g."""
    if order == 0:
        _backward_0(reals(h, count), reals(d1, count), reals(g0, count))
    elif order == 1:
        _backward_1(reals(h, count), reals(d1, count), reals(d2, count), reals(x1, count), reals(g0, count),
                    reals(g1, count))
    else:
        _backward_2(reals(h, count), reals(d1, count), reals(d2, count), reals(d3, count), reals(x1, count),
                    reals(x2, count), reals(g0, count), reals(g1, count), reals(g2, count))
