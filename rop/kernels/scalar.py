"""Scalar functions (formulas of the layers and users' own activations): their identity, and copies that compile.

The function may be written anywhere (a module, a notebook, a closure) and call ``math``, NumPy and other functions,
plain or compiled. ``compilable`` makes a copy for one precision in which all of these are known to the compiler;
``identity`` digests everything that the compiled code depends on, so that it can be kept on disk. Neither depends on a
target: the decorator that compiles and its versions of ``math`` are arguments. ``CALLS`` gives all activations one
signature, and ``refusal`` explains why a function does not compile.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import re
import types as pytypes
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numba
import numpy as np

from rop.errors import ArgumentError

Function = Callable[..., Any]


# ----------------------------------------------------------------------------------------------------------- identity
class _Nameless(Exception):
    """An object whose value cannot be described, so that it could not be told from another one."""


def identity(function: Function) -> str | None:
    """A digest of the function's code, its constants and the values of all names that it uses, including the functions
    that it calls; None if one of them is of a kind that cannot be digested.

    >>> identity(lambda x: x + 1) == identity(lambda y: y + 1), identity(lambda x: x + 1) == identity(lambda x: x + 2)
    (True, False)
    """
    try:
        description = _described(function, (), {})
    except _Nameless:
        return None
    return hashlib.sha256(repr(description).encode()).hexdigest()[:16]


def _described(value: Any, names: tuple[str, ...], seen: dict[int, int]) -> Any:
    """The value as plain tuples and strings; ``names`` are the attributes that the surrounding code reads."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value).__name__, repr(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return "array", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, *(_described(item, names, seen) for item in value)
    if isinstance(value, pytypes.CodeType):
        constants = [_described(constant, value.co_names, seen) for constant in value.co_consts]
        return "code", value.co_code, constants, value.co_names, value.co_freevars, value.co_argcount
    if isinstance(value, pytypes.ModuleType):
        inside = [(name, _described(vars(value)[name], (), seen)) for name in names if name in vars(value)]
        return "module", value.__name__, inside
    if hasattr(value, "py_func"):
        return "compiled", repr(getattr(value, "targetoptions", "")), _described(value.py_func, names, seen)
    if isinstance(value, pytypes.FunctionType) and not _known_to_numba(value):
        return _described_function(value, seen)
    if isinstance(value, (pytypes.BuiltinFunctionType, np.ufunc)) or (callable(value) and _known_to_numba(value)):
        return "named", getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)
    raise _Nameless(type(value).__name__)


def _described_function(function: pytypes.FunctionType, seen: dict[int, int]) -> Any:
    """The function with everything that it reads; ``seen`` numbers the functions met so far."""
    if id(function) in seen:  # recursion
        return "again", seen[id(function)]
    seen[id(function)] = len(seen)
    names = function.__code__.co_names
    found = [(name, _described(value, names, seen)) for name, value in _used_globals(function)]
    enclosed = [_described(cell.cell_contents, names, seen) for cell in function.__closure__ or ()]
    return (
        "function",
        _described(function.__code__, names, seen),
        _described(function.__defaults__, names, seen),
        enclosed,
        found,
    )


def _used_globals(function: pytypes.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that the function's code reads, in the order of their names."""
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _global_names(code: pytypes.CodeType) -> set[str]:
    """The names of the globals that this code and the functions inside it read."""
    inner = [constant for constant in code.co_consts if isinstance(constant, pytypes.CodeType)]
    read = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return read.union(*map(_global_names, inner))


def _known_to_numba(function: Any) -> bool:
    """Whether a function belongs to a library whose functions Numba replaces by its own."""
    return (getattr(function, "__module__", "") or "").partition(".")[0] in ("numpy", "numba", "math", "builtins")


# ---------------------------------------------------------------------------------------- one signature for all of them
function: Any = None  # the function that these templates call: bound where they are compiled


def _call_0(x, a, b):
    return function(x)


def _call_1(x, a, b):
    return function(x, a)


def _call_2(x, a, b):
    return function(x, a, b)


CALLS = _call_0, _call_1, _call_2  # CALLS[n] calls a function of x and n parameters as one of x, a and b


# --------------------------------------------------------------------------------------------------- a copy to compile
def compilable(
    function: Function,
    dtype: Any,
    jit: Callable[[Function], Any],
    versions: Mapping[Any, Any] | None = None,
    whole_numbers: bool = False,
    tag: str = "",
) -> Function:
    """A copy of the function for the precision ``dtype``.

    Numbers in it (literals, globals, defaults, closure variables) take the type ``dtype``: otherwise ``1 - y * y``
    would be float64 for a float32 y. With ``whole_numbers`` integers stay integers, for functions that count or index.
    Functions that it calls are copied likewise and compiled with ``jit``; modules and functions that are keys of
    ``versions`` are replaced by the values. ``tag`` is added to the names of the copies.
    """
    return _Copies(dtype, jit, versions or {}, whole_numbers, tag).copy(_plain(function))


class _Copies:
    """The copies of a function and of all functions that it calls; each is made once, so that recursion ends."""

    def __init__(
        self, dtype: Any, jit: Callable[[Function], Any], versions: Mapping[Any, Any], whole_numbers: bool, tag: str
    ):
        self._dtype, self._jit, self._versions, self._whole, self._tag = dtype, jit, versions, whole_numbers, tag
        self._compiled: dict[pytypes.FunctionType, Any] = {}

    def copy(self, function: pytypes.FunctionType) -> pytypes.FunctionType:
        """The function with all its values replaced (see ``value``)."""
        # The module of the copy exists in every process, wherever the original was written: cached code names it.
        scope: dict[str, Any] = {"__builtins__": builtins, "__name__": __name__}
        cells = tuple(pytypes.CellType() for _ in function.__closure__ or ())
        name = f"{function.__name__}_{self._tag}"
        copy = pytypes.FunctionType(self._code(function.__code__), scope, name, None, cells)
        copy.__module__ = __name__
        copy.__defaults__ = self.value(function.__defaults__)
        self._compiled.setdefault(function, self._jit(copy))
        scope.update((name, self.value(value)) for name, value in _used_globals(function))
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.value(original.cell_contents)
        return copy

    def value(self, value: Any) -> Any:
        """The replacement of a constant, a global or a closure variable."""
        if isinstance(value, (pytypes.ModuleType, pytypes.BuiltinFunctionType, np.ufunc)):
            return self._versions.get(value, value)
        if isinstance(value, (bool, np.bool_)):
            return value
        if isinstance(value, (int, np.integer)):
            return value if self._whole else self._dtype(value)
        if isinstance(value, (float, np.floating)):
            return self._dtype(value)
        if type(value) is tuple:
            return tuple(map(self.value, value))
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.astype(self._dtype)
        if hasattr(value, "py_func") or (isinstance(value, pytypes.FunctionType) and not _known_to_numba(value)):
            plain = _plain(value)
            if plain not in self._compiled:
                self.copy(plain)
            return self._compiled[plain]
        return value

    def _code(self, code: pytypes.CodeType) -> pytypes.CodeType:
        """The code with other constants. Exponents stay integers: x ** 3 is then two products, not a call of pow."""
        constants = [self._code(c) if isinstance(c, pytypes.CodeType) else self.value(c) for c in code.co_consts]
        instructions = bytearray(code.co_code)
        for load, use in pairwise(dis.get_instructions(code)):
            power = use.opname == "BINARY_POWER" or (use.opname == "BINARY_OP" and use.argrepr == "**")
            if power and load.opname == "LOAD_CONST" and type(load.argval) is int and len(constants) < 256:
                constants.append(load.argval)
                instructions[load.offset + 1] = len(constants) - 1
        return code.replace(co_consts=tuple(constants), co_code=bytes(instructions))


def _plain(function: Any) -> pytypes.FunctionType:
    """The Python function behind one that is compiled already."""
    return getattr(function, "py_func", function)


# -------------------------------------------------------------------------------------------------------------- errors
def refusal(function: Function, compiled: Any, arguments: tuple[Any, ...]) -> ArgumentError | None:
    """An error that says in one line why an activation did not compile into its kernel; ``compiled`` is the function
    alone, to be compiled for arguments of these types."""
    owner, four = f"Elementwise: function {function.__name__}", "four real numbers (f, f′, f″, f‴)"
    try:
        compiled.compile(arguments)
    except Exception as error:  # Numba raises many types of errors
        return ArgumentError(f"{owner} does not compile: {essence(error)}")
    (result,) = (overload.signature.return_type for overload in compiled.overloads.values())
    if not isinstance(result, numba.types.BaseTuple) or len(result) != 4:
        return ArgumentError(f"{owner} must return {four}, the compiler finds {result}")
    real = numba.types.Float, numba.types.Integer, numba.types.Boolean
    others = [kind for kind in result if not isinstance(kind, real)]
    return ArgumentError(f"{owner} must return {four}, the compiler finds a {others[0]} among them") if others else None


def essence(error: Exception) -> str:
    """The line of Numba's message that names the error, and the place in the source.

    >>> essence(Exception("Failed in nopython mode pipeline (step: nopython frontend)\\nUntyped global name 'k'"))
    "Untyped global name 'k'"
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", ">>>")]
    said = [line for line in lines if not line.startswith(("Failed in", "- Resolution failure", ">>>"))]
    words = said[0].rstrip(":") if said else type(error).__name__
    called = [line.removeprefix(">>> ") for line in lines if line.startswith(">>>")]
    if words.endswith("for signature") and called:
        words += f" {called[0]}"
    where = re.search(r'File "([^"]*)", line (\d+):', text)
    return words + (f" (line {where[2]} of {where[1]})" if where and "numba" not in where[1] else "")
