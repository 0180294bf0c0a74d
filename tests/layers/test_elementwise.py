"""Activations of a user's own: what may be in them, how they are compiled and kept, and what is said when they fail."""

from __future__ import annotations

import copy
import math
import pickle
import re
import uuid
from math import exp
from typing import Any

import numba
import numpy as np
import pytest

import rop
from rop.kernels.compile import KERNELS
from rop.kernels.cpu import elementwise
from rop.kernels.scalar import identity
from tests.helpers.cases import bell, wave
from tests.helpers.checker import check
from tests.helpers.processes import run_python
from tests.helpers.zoo import labels, normal

PRECISIONS = [np.float64, np.float32]
Numbers = tuple[float, float, float, float]

# ---------------------------------------------------------------------------------------------------------------
# functions as users write them
# ---------------------------------------------------------------------------------------------------------------

SHARE = 0.25
COEFFICIENTS = (0.5, -0.25, 0.125)
TABLE = np.array([1.0, 0.3, -0.2])


def with_math(x: float) -> Numbers:
    y = math.tanh(x)
    d = 1 - y * y
    return y, d, -2 * y * d, (6 * y * y - 2) * d


def with_numpy(x: float) -> Numbers:
    s = 1 / (1 + np.exp(-x))
    d = s * (1 - s)
    return s, d, d * (1 - 2 * s), d * (1 - 6 * d)


def with_an_imported_name(x: float) -> Numbers:
    e = exp(-x * x)
    return e, -2 * x * e, (4 * x**2 - 2) * e, (12 * x - 8 * x**3) * e


@numba.njit
def compiled_helper(x: float) -> float:
    return math.exp(-0.5 * x * x)


def plain_helper(x: float) -> float:
    return SHARE * compiled_helper(x)


def with_helpers(x: float) -> Numbers:
    y = plain_helper(x)
    return x + y, 1 - x * y, (x * x - 1) * y, (3 - x * x) * x * y


def with_a_loop(x: float) -> Numbers:
    """A polynomial and its derivatives by Horner's scheme, over a tuple of constants."""
    y = d1 = d2 = d3 = 0.0
    for i in range(len(COEFFICIENTS)):
        d3 = d3 * x + d2
        d2 = d2 * x + d1
        d1 = d1 * x + y
        y = y * x + COEFFICIENTS[i]
    return y, d1, 2 * d2, 6 * d3


def with_a_table(x: float) -> Numbers:
    y = TABLE[0] * math.sin(x) + TABLE[1] * x + TABLE[2]
    return y, TABLE[0] * math.cos(x) + TABLE[1], -TABLE[0] * math.sin(x), -TABLE[0] * math.cos(x)


def with_an_inner_function(x: float) -> Numbers:
    def shifted(t: float) -> float:
        return math.cos(t + 1)

    return shifted(x), -math.sin(x + 1), -shifted(x), math.sin(x + 1)


def with_branches(x: float) -> Numbers:
    if x < 0:
        return 0.0, 0.0, 0.0, 0.0
    return x**4 / 24, x**3 / 6, x * x / 2, x


def with_a_default(x: float, frequency: float = 2.0) -> Numbers:
    s, c = math.sin(frequency * x), math.cos(frequency * x)
    return s, frequency * c, -(frequency**2) * s, -(frequency**3) * c


def factorial(n: int) -> int:
    return n * factorial(n - 1) if n > 1 else 1


def with_recursion(x: float) -> Numbers:
    y = x**3 / factorial(3)
    return y, x**2 / 2, x, 1.0


def enclosing(power: int, factor: float) -> Any:
    """A closure over an exponent and a number."""
    return lambda x: (
        factor * x**power,
        factor * power * x ** (power - 1),
        factor * power * (power - 1) * x ** (power - 2),
        factor * power * (power - 1) * (power - 2) * x ** (power - 3),
    )


def without_source() -> Any:
    """As typed at Python's prompt: there is no file to look the source up in."""
    scope: dict[str, Any] = {"np": np}
    exec("def typed(x):\n    s, c = np.sin(x), np.cos(x)\n    return s, c, -s, -c", scope)
    return scope["typed"]


FUNCTIONS = {
    function.__name__: (function, ())
    for function in (
        with_math,
        with_numpy,
        with_an_imported_name,
        with_helpers,
        with_a_loop,
        with_a_table,
        with_an_inner_function,
        with_branches,
        with_a_default,
        with_recursion,
    )
} | {
    "closure": (enclosing(3, 0.3), ()),
    "without source": (without_source(), ()),
    "lambda with a parameter": (lambda x, a: (a * x * x, 2 * a * x, 2 * a, 0), (0.7,)),
    "two parameters": (bell, (1.5, 2.0)),
    "compiled": (numba.njit(wave), ()),
}


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_function_agrees_with_python_and_with_torch(name: str, dtype: Any) -> None:
    function, parameters = FUNCTIONS[name]
    layer: Any = rop.Elementwise(function, *parameters)
    x = np.linspace(-2, 2, 40).reshape(10, 4)
    outputs = rop.Sequential(rop.Linear(4, 4, bias=False), layer).predict(np.eye(4, dtype=dtype).ravel(), x)
    expected = np.vectorize(lambda number: layer.function(number, *parameters)[0])(dtype(x).astype(np.float64))
    np.testing.assert_allclose(outputs, expected, rtol=2e-6 if dtype is np.float32 else 1e-14, atol=1e-6)
    net = rop.Sequential(rop.Linear(3, 5), layer, rop.Linear(5, 3))
    check(net, rop.CrossEntropy(), normal(0, (19, 3)), labels(0, (19,), 3), dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_these_functions_are_right(name: str) -> None:
    function, parameters = FUNCTIONS[name]
    rop.check.layer(rop.Elementwise(function, *parameters), engine=False).raise_if_wrong()


# ---------------------------------------------------------------------------------------------------------------
# how they are compiled
# ---------------------------------------------------------------------------------------------------------------


def compiled_in(function: Any, dtype: Any, count: int = 0) -> Any:
    """The function as the kernel calls it, compiled on its own."""
    scalar = elementwise.ActivationKernel(function, count)._scalar(dtype, whole_numbers=False, ours=True)
    scalar.compile((numba.from_dtype(np.dtype(dtype)),) * (1 + count))
    return scalar


@pytest.mark.parametrize("name", ["with_math", "with_numpy", "with_an_imported_name", "with_helpers", "closure"])
def test_float32_functions_are_computed_in_float32(name: str) -> None:
    """Literals, globals and enclosed numbers do not make them float64, which would cost half of the speed."""
    scalar = compiled_in(FUNCTIONS[name][0], np.float32)
    (overload,) = scalar.overloads.values()
    assert set(overload.signature.return_type) == {numba.float32}
    assert "double" not in overload.library.get_llvm_str().split("define")[1]  # the first is the function itself


def test_powers_with_whole_exponents_are_products() -> None:
    part = compiled_in(with_an_imported_name, np.float64)
    scalar = numba.njit(part.py_func)  # parts of kernels are not optimised by themselves
    scalar.compile((numba.float64,))
    (code,) = scalar.inspect_llvm().values()
    assert not re.search(r"call[^\n]*pow", code)


def test_a_new_activation_compiles_nothing_else() -> None:
    addresses = {name: kernel.address(np.float64) for name, kernel in KERNELS.items()}
    net = rop.Sequential(rop.Linear(3, 3), rop.Elementwise(lambda x: (3 * x, 3.0, 0.0, 0.0)))
    net.predict(net.init(dtype=np.float64), normal(0, (4, 3)))
    assert addresses == {name: kernel.address(np.float64) for name, kernel in KERNELS.items()}


def test_layers_with_other_parameters_share_the_compiled_function() -> None:
    one, two = rop.Elementwise(bell, 1.0, 2.0), rop.Elementwise(bell, 3.0, 4.0)
    assert elementwise.activation(one.function, 2) is elementwise.activation(two.function, 2)
    x = normal(0, (5, 3))
    w = np.eye(3).ravel()
    for layer, height, width in ((one, 1.0, 2.0), (two, 3.0, 4.0)):
        found = rop.Sequential(rop.Linear(3, 3, bias=False), layer).predict(w, x)
        np.testing.assert_allclose(found, height * np.exp(-0.5 * (x / width) ** 2), rtol=1e-14)


# ---------------------------------------------------------------------------------------------------------------
# identity: what is kept on disk is found again by what it depends on, and by nothing less
# ---------------------------------------------------------------------------------------------------------------


def scoped(source: str, **names: Any) -> Any:
    scope: dict[str, Any] = {"math": math, "np": np, **names}
    exec(source, scope)
    return scope["f"]


DIFFERENT: dict[str, Any] = {
    "names": ("def f(x): return math.sin(x)", "def f(x): return math.cos(x)", {}, {}),
    "constants": ("def f(x): return x + 1.5", "def f(x): return x + 2.5", {}, {}),
    "types of constants": ("def f(x): return x + 1", "def f(x): return x + 1.0", {}, {}),
    "constants of an inner function": (
        "def f(x):\n    def g(y): return y + 1\n    return g(x)",
        "def f(x):\n    def g(y): return y + 2\n    return g(x)",
        {},
        {},
    ),
    "globals": ("def f(x): return x + c", "def f(x): return x + c", {"c": 1.0}, {"c": 2.0}),
    "arrays": ("def f(x): return x + c[0]", "def f(x): return x + c[0]", {"c": np.zeros(2)}, {"c": np.ones(2)}),
    "helpers": ("def f(x): return g(x)", "def f(x): return g(x)", {"g": lambda x: x + 1}, {"g": lambda x: x + 2}),
    "compiled helpers": (
        "def f(x): return g(x)",
        "def f(x): return g(x)",
        {"g": numba.njit(lambda x: x + 1)},
        {"g": numba.njit(lambda x: x + 2)},
    ),
    "builtins": ("def f(x): return g(x)", "def f(x): return g(x)", {"g": math.sin}, {"g": math.cos}),
    "defaults": ("def f(x, a=1.0): return x + a", "def f(x, a=2.0): return x + a", {}, {}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_functions_that_differ_have_different_identities(what: str) -> None:
    first, second, before, after = DIFFERENT[what]
    found = identity(scoped(first, **before)), identity(scoped(second, **after))
    assert None not in found and found[0] != found[1]
    assert found[0] == identity(scoped(first, **before)), "and equal functions the same one"


def test_enclosed_values_belong_to_the_identity() -> None:
    assert identity(enclosing(3, 0.5)) == identity(enclosing(3, 0.5)) != identity(enclosing(3, 0.25))


def test_members_of_a_module_belong_to_the_identity() -> None:
    module = type(math)("settings")
    function = scoped("def f(x): return x + settings.shift", settings=module)
    vars(module)["shift"] = 1.0
    before = identity(function)
    vars(module)["shift"] = 2.0
    assert before != identity(function)


def test_what_cannot_be_told_apart_has_no_identity_and_is_not_kept() -> None:
    function = scoped("def f(x): return (x, 1.0, 0.0, 0.0) if c is None else (x, c.a, 0.0, 0.0)", c=object())
    assert identity(function) is None
    assert type(elementwise.ActivationKernel(function, 0).cache("name")).__name__ == "NullCache"


def test_a_changed_global_counts_for_the_next_objective() -> None:
    function = scoped("def f(x): return c * x, c, 0.0, 0.0", c=2.0)
    w, x = np.ones(1), np.ones((1, 1))
    outputs = []
    for value in (2.0, 5.0):
        function.__globals__["c"] = value
        net = rop.Sequential(rop.Linear(1, 1, bias=False), rop.Elementwise(function))
        outputs.append(float(net.predict(w, x)[0, 0]))
    assert outputs == [2.0, 5.0]


KEPT = """
import numpy as np, rop
from rop.kernels.cpu import elementwise
{before}
def mine(x):
    return {factor} * x, {factor}, 0.0, 0.0
net = rop.Sequential(rop.Linear(1, 1, bias=False), rop.Elementwise(mine))
print(net.predict(np.ones(1), np.ones((1, 1)))[0, 0])
"""


def test_a_compiled_activation_is_found_again_by_the_next_process() -> None:
    """Two processes compile functions of the same name; a third finds both, compiles nothing, and mixes nothing up."""
    first, second = (uuid.uuid4().int % 10**6 / 1000 for _ in range(2))
    for factor in (first, second):
        assert float(run_python(KEPT.format(factor=factor, before="")).stdout) == factor
    refuse = "def refuse(*a): raise SystemExit('compiled again')\nelementwise.KernelCache.save_overload = refuse"
    both = KEPT.format(factor=first, before=refuse) + KEPT.format(factor=second, before="")
    assert [float(line) for line in run_python(both).stdout.split()] == [first, second]


# ---------------------------------------------------------------------------------------------------------------
# a layer like any other
# ---------------------------------------------------------------------------------------------------------------


def test_its_name_stands_in_tables_and_messages() -> None:
    net = rop.Sequential(rop.Linear(2, 3), rop.Elementwise(bell, 1.0, 2.5), rop.Elementwise(wave))
    assert repr(net.layers[1]) == "Elementwise(bell, 1.0, 2.5)" and repr(net.layers[2]) == "Elementwise(wave)"
    assert "Elementwise bell 1.0 2.5  (batch, 3)           0" in net.summary_text((2,))
    assert net.where(net.output) == "layer 2 (Elementwise wave)"


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"]
)
def test_nets_with_it_survive_copying(duplicate: Any) -> None:
    net = rop.Sequential(rop.Linear(2, 3), rop.Elementwise(bell, 1.0, 2.5), rop.Linear(3, 1))
    twin, x, w = duplicate(net), normal(0, (4, 2)), net.init(seed=1)
    assert repr(twin) == repr(net)
    np.testing.assert_array_equal(twin.predict(w, x), net.predict(w, x))


def test_training_with_it() -> None:
    """The compiled training steps run it too: the penalty needs its third derivative."""
    x, y = normal(0, (64, 3)), labels(0, (64,), 2)
    histories = []
    for layer in (rop.Tanh(), rop.Elementwise(with_math)):
        net = rop.Sequential(rop.Linear(3, 6), layer, rop.Linear(6, 2))
        fit = rop.train(
            net,
            rop.CrossEntropy(),
            (x, y),
            epochs=3,
            batch_size=16,
            dtype=np.float64,
            progress=False,
            regularizer=rop.SpectralRadius(mu=0.01, K=0),
        )
        histories.append([(row["loss"], row["rho"]) for row in fit.history])
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------------
# what does not work
# ---------------------------------------------------------------------------------------------------------------


class Thing:
    factor = 2.0


THING = Thing()


def unknown_global(x: float) -> Numbers:
    return THING.factor * x, 2.0, 0.0, 0.0


def unlike_branches(x: float) -> Any:
    if x > 1:
        return x, 1.0, 0.0
    return x, 1.0, 0.0, 0.0


def imports_inside(x: float) -> Numbers:
    import math as m

    return m.sin(x), m.cos(x), -m.sin(x), -m.cos(x)


def sometimes_complex(x: float) -> Any:
    return (x, 1.0, 0.0, 0.0) if x == 0.5 else (x, 1.0, 0.0, x * 1j)


def undefined_in_a_branch(x: float) -> Numbers:
    if x < -100:
        return x, nowhere, 0.0, 0.0  # type: ignore[name-defined]  # noqa: F821
    return x, 1.0, 0.0, 0.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unknown_global, ("unknown_global does not compile", "'THING'", "test_elementwise.py")),
        (unlike_branches, ("unlike_branches", "x 3", "x 4")),
        (imports_inside, ("imports_inside does not compile", "IMPORT_NAME")),
        (sometimes_complex, ("sometimes_complex", "complex")),
        (undefined_in_a_branch, ("undefined_in_a_branch does not compile", "'nowhere' is not defined")),
    ],
)
def test_what_does_not_compile_is_said_in_a_line(function: Any, words: tuple[str, ...]) -> None:
    net = rop.Sequential(rop.Linear(1, 1), rop.Elementwise(function))
    with pytest.raises(rop.ArgumentError) as caught:
        net.predict(net.init(), np.ones((1, 1)))
    message = str(caught.value)
    assert message.startswith("Elementwise: function") and "\n" not in message and len(message) < 300
    assert all(word in message for word in words), message


def test_an_engine_goes_on_after_a_function_that_did_not_compile() -> None:
    net = rop.Sequential(rop.Linear(1, 1), rop.Elementwise(unknown_global))
    f = rop.Objective(net, rop.MSE(), np.ones((1, 1)), np.ones((1, 1)))
    for _ in range(2):
        with pytest.raises(rop.ArgumentError, match="THING"):
            f.at(net.init())
    other = rop.Objective(rop.Sequential(rop.Linear(1, 1), rop.Tanh()), rop.MSE(), np.ones((1, 1)), np.ones((1, 1)))
    assert math.isfinite(other.at(net.init()).loss)


def test_a_pole_at_the_point_of_the_first_look_is_no_error() -> None:
    def pole(x: float) -> Numbers:
        d = 1 / (x - 0.5)
        return math.log(abs(x - 0.5)), d, -d * d, 2 * d**3

    assert rop.Elementwise(pole).function is pole
