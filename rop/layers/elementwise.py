"""Elementwise layers, y = σ(x).

    forward    y⁰ = σ(x⁰)          y¹ = σ′·x¹               y² = σ″·(x¹)² + σ′·x²
    backward   h⁰ = σ′·g⁰          h¹ = σ″·x¹·g⁰ + σ′·g¹    h² = (σ‴·(x¹)² + σ″·x²)·g⁰ + 2σ″·x¹·g¹ + σ′·g²

σ and its derivatives are taken at x⁰; g = ∂E/∂y, h = ∂E/∂x. One scalar function per layer returns (σ, σ′, σ″, σ‴);
the loops over lanes are generated from it once, in kernels/. A user's own activation is Elementwise(function); to add
one to the package, write its scalar function and its class with its record here, and its case in
tests/helpers/cases/elementwise.py.

The scalar functions are compiled. Those below must be finite for large |x|: exponentials take arguments ≤ 0 only.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable
from numbers import Real
from typing import Any

from rop.arguments import check_choice, check_float
from rop.errors import ArgumentError, ArgumentTypeError
from rop.layers import record
from rop.layers.base import Layer, Shape

Derivatives = tuple[float, float, float, float]  # σ, σ′, σ″, σ‴
Scalar = Callable[..., Derivatives]

# ---- the jet, in Taylor coefficients ---------------------------------------------------------------------------------
#
# Inside the engine order k is stored as a Taylor coefficient, a_k = R^k{a} / k!: order 1 as it is, order 2 as half of
# R². Binomial factors then vanish from all products: the jet of a product is the Cauchy product of the jets. With d_k
# the k-th derivative of σ at x_0, the rules above read
#
#     y_1 = d_1 x_1        y_2 = d_1 x_2 + d_2 x_1²/2          the jet of σ(x)
#     s_1 = d_2 x_1        s_2 = d_2 x_2 + d_3 x_1²/2          the jet of σ′(x), with s_0 = d_1
#     h_0 = s_0 g_0        h_1 = s_0 g_1 + s_1 g_0             h_2 = s_0 g_2 + s_1 g_1 + s_2 g_0


def output_1(d1: float, x1: float) -> float:
    """Order 1 of σ(x)."""
    return d1 * x1


def output_2(d1: float, d2: float, x1: float, x2: float) -> float:
    """Order 2 of σ(x)."""
    return d1 * x2 + d2 * x1 * x1 / 2


def slope_1(d2: float, x1: float) -> float:
    """Order 1 of σ′(x)."""
    return d2 * x1


def slope_2(d2: float, d3: float, x1: float, x2: float) -> float:
    """Order 2 of σ′(x)."""
    return d2 * x2 + d3 * x1 * x1 / 2


# ---- scalar functions: (σ, σ′, σ″, σ‴) at x --------------------------------------------------------------------------


def tanh(x: float) -> Derivatives:
    """y = tanh x; y′ = 1 − y², y″ = −2 y y′, y‴ = (6 y² − 2) y′."""
    y = math.tanh(x)
    d1 = (1 - y) * (1 + y)  # exact to rounding where 1 - y*y would cancel
    return y, d1, -2 * y * d1, (6 * y * y - 2) * d1


def sigmoid(x: float) -> Derivatives:
    """s = 1/(1 + e⁻ˣ); s′ = s (1 − s), s″ = (1 − 2 s) s′, s‴ = (1 − 6 s′) s′."""
    e = math.exp(-abs(x))
    high = 1 / (1 + e)  # the sigmoid of |x|
    s = high if x >= 0 else e * high
    s1 = e * high * high
    s2 = (1 - e) * high * s1 * (-1.0 if x >= 0 else 1.0)
    return s, s1, s2, (1 - 6 * s1) * s1


def softplus(x: float, beta: float, threshold: float) -> Derivatives:
    """y = log(1 + e^(βx)) / β; y′ = s(βx), y″ = β s′, y‴ = β² s″ with s the sigmoid; y = x where βx > threshold."""
    z = beta * x
    e = math.exp(-abs(z))
    high = 1 / (1 + e)
    s1 = e * high * high
    linear = z > threshold
    y = x if linear else (max(z, 0.0) + math.log1p(e)) / beta
    d1 = 1.0 if linear else high if z >= 0 else e * high
    d2 = 0.0 if linear else beta * s1
    d3 = 0.0 if linear else beta * beta * s1 * (1 - e) * high * (-1.0 if z >= 0 else 1.0)
    return y, d1, d2, d3


def silu(x: float) -> Derivatives:
    """y = x s(x) with s the sigmoid; y′ = s + x s′, y″ = 2 s′ + x s″, y‴ = 3 s″ + x s‴."""
    e = math.exp(-abs(x))
    high = 1 / (1 + e)
    s = high if x >= 0 else e * high
    s1 = e * high * high
    s2 = (1 - e) * high * s1 * (-1.0 if x >= 0 else 1.0)
    s3 = (1 - 6 * s1) * s1
    return x * s, s + x * s1, 2 * s1 + x * s2, 3 * s2 + x * s3


def gelu(x: float) -> Derivatives:
    """y = x Φ(x), Φ and φ of the normal law; y′ = Φ + x φ, y″ = (2 − x²) φ, y‴ = x (x² − 4) φ."""
    cdf = 0.5 * (1 + math.erf(x * 0.7071067811865476))  # 1/√2
    pdf = 0.3989422804014327 * math.exp(-0.5 * x * x)  # 1/√(2π)
    return x * cdf, cdf + x * pdf, (2 - x * x) * pdf, x * (x * x - 4) * pdf


def gelu_tanh(x: float) -> Derivatives:
    """y = x (1 + t)/2, t = tanh u, u = √(2/π) (x + 0.044715 x³); y′ = (1 + t + x t′)/2, and so on by Leibniz.

    t′ = d u′, t″ = d (u″ − 2 t u′²), t‴ = d (u‴ − 6 t u′ u″ + (6 t² − 2) u′³) with d = 1 − t². Both d and (1 + t)/2 are
    taken from e^(−2|u|), because they would cancel where t is close to −1.
    """
    k = 0.7978845608028654  # √(2/π)
    u = k * (x + 0.044715 * x * x * x)
    u1 = k * (1 + 0.134145 * x * x)
    u2 = k * 0.26829 * x
    e = math.exp(-2 * abs(u))
    high = 1 / (1 + e)
    half = high if u >= 0 else e * high
    t = 2 * half - 1
    d = 4 * e * high * high
    t1 = d * u1
    t2 = d * u2 - 2 * t * t1 * u1  # t′ = d u′ first: u′³ alone overflows in float32
    t3 = d * (k * 0.26829) - 6 * t * t1 * u2 + (6 * t * t - 2) * t1 * u1 * u1
    return x * half, half + 0.5 * x * t1, t1 + 0.5 * x * t2, 1.5 * t2 + 0.5 * x * t3


def mish(x: float) -> Derivatives:
    """y = x t, t = tanh(softplus(x)); y′ = t + x t′, y″ = 2 t′ + x t″, y‴ = 3 t″ + x t‴.

    t′ = d s, t″ = d (s′ − 2 t s²), t‴ = d (s″ − 6 t s s′ + (6 t² − 2) s³) with d = 1 − t² and s the sigmoid. With
    a = 1 + e^x, t = (a² − 1)/(a² + 1) and d = 4 a²/(a² + 1)², here as polynomials of e^−|x|, so that nothing cancels.
    """
    e = math.exp(-abs(x))
    right = x >= 0
    high = 1 / (1 + e)
    s = high if right else e * high
    s1 = e * high * high
    s2 = (1 - e) * high * s1 * (-1.0 if right else 1.0)
    over = 1 / ((1 + 2 * e + 2 * e * e) if right else (2 + 2 * e + e * e))
    t = ((1 + 2 * e) if right else e * (2 + e)) * over
    root = 2 * (e if right else 1.0) * (1 + e) * over
    d = root * root
    t1 = d * s
    t2 = d * (s1 - 2 * t * s * s)
    t3 = d * (s2 - 6 * t * s * s1 + (6 * t * t - 2) * s * s * s)
    return x * t, t + x * t1, 2 * t1 + x * t2, 3 * t2 + x * t3


def log_sigmoid(x: float) -> Derivatives:
    """y = −log(1 + e⁻ˣ); y′ = 1 − s, y″ = −s′, y‴ = −s″ with s the sigmoid."""
    e = math.exp(-abs(x))
    high = 1 / (1 + e)
    s1 = e * high * high
    s2 = (1 - e) * high * s1 * (-1.0 if x >= 0 else 1.0)
    return min(x, 0.0) - math.log1p(e), e * high if x >= 0 else high, -s1, -s2


def softsign(x: float) -> Derivatives:
    """y = x a, a = 1/(1 + |x|); y′ = a², y″ = −2 σ a³, y‴ = 6 σ² a⁴ with σ = sign x, 0 at 0 (torch's convention)."""
    a = 1 / (1 + abs(x))
    sign = 1.0 if x > 0 else -1.0 if x < 0 else 0.0
    d1 = a * a
    return x / (1 + abs(x)), d1, -2 * sign * a * d1, 6 * sign * sign * d1 * d1


# The functions below are made of pieces. At a seam every derivative is the one that torch returns there.


def hardtanh(x: float, min_val: float, max_val: float) -> Derivatives:
    """x between min_val and max_val, the nearer of them elsewhere; y′ is 1 or 0, and 0 at both."""
    y = min_val if x <= min_val else max_val if x >= max_val else x
    return y, 0.0 if x <= min_val or x >= max_val else 1.0, 0.0, 0.0


def hardsigmoid(x: float) -> Derivatives:
    """y = (x + 3)/6 between −3 and 3, and 0 or 1 elsewhere; y′ is 1/6 or 0, and 0 at ±3."""
    y = 0.0 if x <= -3 else 1.0 if x >= 3 else x / 6 + 0.5
    return y, 0.0 if x <= -3 or x >= 3 else 1 / 6, 0.0, 0.0


def hardswish(x: float) -> Derivatives:
    """y = x (x + 3)/6 between −3 and 3, 0 below and x above; y′ = (2x + 3)/6, 0 or 1, and 0 at −3, 1 at 3."""
    low, high = x <= -3, x >= 3
    y = 0.0 if low else x if high else x * (x / 6 + 0.5)
    d1 = 0.0 if low else 1.0 if high else x / 3 + 0.5
    return y, d1, 0.0 if low or high else 1 / 3, 0.0


def elu(x: float, left: float, right: float) -> Derivatives:
    """y = right·x where x > 0, left·(eˣ − 1) elsewhere; at 0, y′ = left and y″ = y‴ = 0."""
    low = min(x, 0.0)
    e = left * math.exp(low)
    rest = e if x < 0 else 0.0
    return left * math.expm1(low) if x <= 0 else right * x, e if x <= 0 else right, rest, rest


def celu(x: float, alpha: float) -> Derivatives:
    """y = x where x > 0, α (e^(x/α) − 1) elsewhere; at 0, y′ = 1 and y″ = y‴ = 0."""
    low = min(x, 0.0) / alpha
    d1 = math.exp(low)
    d2 = d1 / alpha if x < 0 else 0.0
    return alpha * math.expm1(low) if x <= 0 else x, d1, d2, d2 / alpha


# ---- layers ----------------------------------------------------------------------------------------------------------


MOST_PARAMETERS = 2  # the kernels carry this many beside x


@record.layer("elementwise", reference="rop.check.reference:given")
class Elementwise(Layer):
    """y = f(x) for every number x of the input, in any shape: an activation of your own.

    ``function(x, *parameters)`` takes one number and returns (f, f′, f″, f‴) there. It is plain Python that Numba
    compiles: it may use ``math`` and NumPy, constants of its surroundings, and other functions, plain or compiled. The
    engine is not compiled again, only the function's own loop, which takes a second or two and is kept on disk.
    Parameters, at most two, are numbers that are given to the function after x; they are not trained. One function then
    serves layers with different parameters. ``rop.check.layer`` says whether the derivatives are right.

    >>> import math, rop
    >>> def sine(x, frequency):
    ...     s, c = math.sin(frequency * x), math.cos(frequency * x)
    ...     return s, frequency * c, -frequency**2 * s, -frequency**3 * c
    >>> net = rop.Sequential(rop.Linear(3, 4), rop.Elementwise(sine, 2.0), rop.Linear(4, 1))
    >>> net.layers[1]
    Elementwise(sine, 2.0)
    """

    function: Scalar
    parameters: tuple[float, ...] = ()  # what it takes after x
    seams: tuple[float, ...] = ()  # of the package's own that are made of pieces: the x where one ends

    def __init__(self, function: Scalar, *parameters: float) -> None:
        if len(parameters) > MOST_PARAMETERS:
            raise ArgumentError(
                f"Elementwise: at most {MOST_PARAMETERS} parameters fit beside x, got {len(parameters)}; constants can "
                "stand in the function itself or around it"
            )
        numbers = tuple(check_float("Elementwise", f"parameter {i}", p) for i, p in enumerate(parameters, start=1))
        self._set(function=_check_function(function, numbers), parameters=numbers)

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        return shapes[0]

    def describe(self) -> str:
        if type(self) is not Elementwise:
            return super().describe()
        return " ".join(["Elementwise", self.function.__name__, *map(repr, self.parameters)])

    def __repr__(self) -> str:
        if type(self) is not Elementwise:
            return super().__repr__()
        return f"Elementwise({', '.join([self.function.__name__, *map(repr, self.parameters)])})"


def _check_function(function: Any, parameters: tuple[float, ...]) -> Scalar:
    """The plain Python function, after a look at what it takes and, at one x, at what it returns."""
    function = getattr(function, "py_func", function)  # one that is compiled with Numba already
    if not isinstance(function, types.FunctionType):
        raise ArgumentTypeError(
            "Elementwise: function must be a Python function of one number x that returns (f, f′, f″, f‴), got "
            f"{function!r} ({type(function).__name__})"
        )
    name, signature = function.__name__, inspect.signature(function)
    try:
        signature.bind(0.5, *parameters)
    except TypeError:
        raise ArgumentError(
            f"Elementwise: function {name} takes {signature}, but gets x and {len(parameters)} parameter(s) "
            f"{parameters}; write rop.Elementwise({name}, parameters...)"
        ) from None
    try:
        found: Any = function(0.5, *parameters)
    except (ArithmeticError, ValueError):  # a pole at this very x; the compiler looks at the rest
        return function
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"Elementwise: function {name} fails at x = 0.5: {what}") from error
    if not isinstance(found, tuple) or len(found) != 4 or not all(isinstance(number, Real) for number in found):
        raise ArgumentError(
            f"Elementwise: function {name} must return four numbers (f, f′, f″, f‴), got {found!r} at x = 0.5"
        )
    return function


# ---- the activations of the package ----------------------------------------------------------------------------------


class Builtin(Elementwise):
    """An activation of the package: its scalar function belongs to the class, and it takes no arguments by default."""

    def __init__(self) -> None:
        """Nothing is left to choose."""


@record.activation("torch.nn.functional:softplus", examples=((), (2.5,)))
class Softplus(Builtin):
    """log(1 + e^(βx)) / β, and x where βx > threshold."""

    function = staticmethod(softplus)
    beta: float
    threshold: float

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        beta = check_float("Softplus", "beta", beta, positive=True)
        threshold = check_float("Softplus", "threshold", threshold)
        self._set(beta=beta, threshold=threshold, parameters=(beta, threshold))


@record.activation("torch.nn.functional:gelu", reference="rop.check.reference:gelu", examples=((), ("tanh",)))
class GELU(Builtin):
    """x Φ(x), or its approximation by a tanh."""

    approximate: str

    def __init__(self, approximate: str = "none") -> None:
        check_choice("GELU", "approximate", approximate, ("none", "tanh"))
        self._set(approximate=approximate, function=gelu_tanh if approximate == "tanh" else gelu)


@record.activation("torch:tanh")
class Tanh(Builtin):
    """tanh x."""

    function = staticmethod(tanh)


@record.activation("torch:sigmoid")
class Sigmoid(Builtin):
    """1/(1 + e⁻ˣ)."""

    function = staticmethod(sigmoid)


@record.activation("torch.nn.functional:silu")
class SiLU(Builtin):
    """x times the sigmoid of x."""

    function = staticmethod(silu)


@record.activation("torch.nn.functional:mish", reference="rop.check.reference:mish")
class Mish(Builtin):
    """x tanh(log(1 + eˣ))."""

    function = staticmethod(mish)


@record.activation("torch.nn.functional:logsigmoid")
class LogSigmoid(Builtin):
    """log of the sigmoid."""

    function = staticmethod(log_sigmoid)


@record.activation("torch.nn.functional:softsign")
class Softsign(Builtin):
    """x / (1 + |x|)."""

    function = staticmethod(softsign)
    seams = (0.0,)


@record.activation("torch.nn.functional:hardtanh", examples=((), (-0.5, 2.0)))
class Hardtanh(Builtin):
    """x, but at least min_val and at most max_val; the slope at both is 0."""

    function = staticmethod(hardtanh)
    min_val: float
    max_val: float

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        min_val = check_float("Hardtanh", "min_val", min_val)
        max_val = check_float("Hardtanh", "max_val", max_val)
        if not min_val < max_val:
            raise ArgumentError(f"Hardtanh: min_val must be below max_val, got {min_val} and {max_val}")
        self._set(min_val=min_val, max_val=max_val, parameters=(min_val, max_val), seams=(min_val, max_val))


@record.activation("torch.nn.functional:relu6")
class ReLU6(Builtin):
    """x, but at least 0 and at most 6; the slope at both is 0."""

    function = staticmethod(hardtanh)
    parameters = seams = (0.0, 6.0)


@record.activation("torch.nn.functional:hardsigmoid", reference="rop.check.reference:hardsigmoid")
class Hardsigmoid(Builtin):
    """(x + 3)/6, but at least 0 and at most 1; the slope at ±3 is 0."""

    function = staticmethod(hardsigmoid)
    seams = (-3.0, 3.0)


@record.activation("torch.nn.functional:hardswish")
class Hardswish(Builtin):
    """x times the Hardsigmoid of x; the slope is 0 at −3 and 1 at 3."""

    function = staticmethod(hardswish)
    seams = (-3.0, 3.0)


@record.activation("torch.nn.functional:elu", examples=((), (0.5,)))
class ELU(Builtin):
    """x where x > 0, α (eˣ − 1) elsewhere; the slope at 0 is α."""

    function = staticmethod(elu)
    seams = (0.0,)
    alpha: float

    def __init__(self, alpha: float = 1.0) -> None:
        alpha = check_float("ELU", "alpha", alpha)
        self._set(alpha=alpha, parameters=(alpha, 1.0))


@record.activation("torch.nn.functional:selu")
class SELU(Builtin):
    """λ x where x > 0, λ α (eˣ − 1) elsewhere; the λ and α keep mean 0 and variance 1, and the slope at 0 is λ α."""

    function = staticmethod(elu)
    seams = (0.0,)
    parameters = (1.0507009873554805 * 1.6732632423543772, 1.0507009873554805)  # λ α and λ


@record.activation("torch.nn.functional:celu", examples=((), (2.0,)))
class CELU(Builtin):
    """x where x > 0, α (e^(x/α) − 1) elsewhere, for an α above 0; the slope at 0 is 1."""

    function = staticmethod(celu)
    seams = (0.0,)
    alpha: float

    def __init__(self, alpha: float = 1.0) -> None:
        alpha = check_float("CELU", "alpha", alpha, positive=True)
        self._set(alpha=alpha, parameters=(alpha,))
