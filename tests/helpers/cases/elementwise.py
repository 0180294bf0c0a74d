"""Activations, the package's and a user's own."""

from __future__ import annotations

import math

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import Case, Drawn, Refused, anything, misused, untyped, with_arguments


def wave(x: float) -> tuple[float, float, float, float]:
    """x + sin x."""
    s, c = math.sin(x), math.cos(x)
    return x + s, 1 + c, -s, -c


def bell(x: float, height: float, width: float) -> tuple[float, float, float, float]:
    """a exp(−(x/b)²/2), with z = x/b: y′ = −z y/b, y″ = (z² − 1) y/b², y‴ = (3 − z²) z y/b³."""
    z = x / width
    y = height * math.exp(-0.5 * z * z)
    return y, -z * y / width, (z**2 - 1) * y / width**2, (3 - z**2) * z * y / width**3


@st.composite
def own_activations(draw: st.DrawFn) -> Drawn:
    """Scalar functions with and without parameters."""
    shapes = (draw(anything),)
    if draw(st.booleans()):
        return {"function": wave}, shapes
    numbers = (draw(st.sampled_from([0.5, 2.0])), draw(st.sampled_from([1.0, 3.0])))
    return {"function": bell, "parameters": numbers}, shapes


tanh = Case("Tanh", with_arguments(anything), misused(rop.Tanh))

sigmoid = Case("Sigmoid", with_arguments(anything), misused(rop.Sigmoid))

softplus = Case(
    "Softplus",
    with_arguments(anything, beta=st.sampled_from([0.5, 1.0, 3]), threshold=st.sampled_from([20.0, 1.5])),
    (
        Refused(lambda: rop.Softplus(beta=0.0), ("Softplus", "beta", "0")),
        Refused(lambda: untyped.Softplus(beta="soft"), ("Softplus", "beta", "soft"), error=TypeError),
    ),
)

silu = Case("SiLU", with_arguments(anything), misused(rop.SiLU))

gelu = Case(
    "GELU",
    with_arguments(anything, approximate=st.sampled_from(["none", "tanh"])),
    (
        Refused(lambda: rop.GELU("sigmoid"), ("GELU", "approximate", "sigmoid")),
        Refused(lambda: untyped.GELU(approximate=1), ("GELU", "approximate", "1"), error=Exception),
    ),
)

mish = Case("Mish", with_arguments(anything), misused(rop.Mish))

logsigmoid = Case("LogSigmoid", with_arguments(anything), misused(rop.LogSigmoid))

softsign = Case("Softsign", with_arguments(anything), misused(rop.Softsign))

relu6 = Case("ReLU6", with_arguments(anything), misused(rop.ReLU6))

hardsigmoid = Case("Hardsigmoid", with_arguments(anything), misused(rop.Hardsigmoid))

hardswish = Case("Hardswish", with_arguments(anything), misused(rop.Hardswish))

selu = Case("SELU", with_arguments(anything), misused(rop.SELU))

hardtanh = Case(
    "Hardtanh",
    with_arguments(anything, min_val=st.sampled_from([-1.0, -0.25, 0]), max_val=st.sampled_from([0.5, 1.0, 2])),
    (
        Refused(lambda: rop.Hardtanh(1.0, 1.0), ("Hardtanh", "min_val", "max_val", "1.0")),
        Refused(lambda: rop.Hardtanh(max_val=float("inf")), ("Hardtanh", "max_val", "inf")),
        Refused(lambda: untyped.Hardtanh("low"), ("Hardtanh", "min_val", "low"), error=TypeError),
    ),
)

elu = Case(
    "ELU",
    with_arguments(anything, alpha=st.sampled_from([1.0, 0.25, 2, 0.0, -0.5])),
    (
        Refused(lambda: rop.ELU(float("nan")), ("ELU", "alpha", "nan")),
        Refused(lambda: untyped.ELU(alpha="soft"), ("ELU", "alpha", "soft"), error=TypeError),
    ),
)

celu = Case(
    "CELU",
    with_arguments(anything, alpha=st.sampled_from([1.0, 0.25, 2])),
    (
        Refused(lambda: rop.CELU(0.0), ("CELU", "alpha", "above 0", "0")),
        Refused(lambda: untyped.CELU(alpha=None), ("CELU", "alpha", "None"), error=TypeError),
    ),
)

elementwise = Case(
    "Elementwise",
    own_activations(),
    (
        Refused(lambda: untyped.Elementwise(3), ("Elementwise", "function", "3"), error=TypeError),
        Refused(lambda: rop.Elementwise(bell), ("Elementwise", "bell", "(x", "0 parameter")),
        Refused(lambda: untyped.Elementwise(lambda x: (x, x)), ("Elementwise", "four", "(0.5, 0.5)")),
        Refused(lambda: rop.Elementwise(wave, 1.0, 2.0, 3.0), ("Elementwise", "at most 2", "3")),
        Refused(lambda: rop.Elementwise(bell, 1.0, float("inf")), ("Elementwise", "parameter 2", "inf")),
    ),
)
