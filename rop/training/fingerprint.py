"""Fingerprints of runs: two runs with equal fingerprints make the same steps to the bit, on equal machines.

``described`` follows attributes, not a list of known layers: every argument that a layer, loss, optimizer or schedule
keeps is covered. Functions are told apart by their code and the constants it uses.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np

from rop.graph import Graph
from rop.kernels.compile import kind
from rop.kernels.scalar import identity
from rop.layers.base import Immutable, Layer
from rop.layers.loss import Loss


def digest(*values: Any) -> str:
    """A short digest of values of any kind that ``described`` knows.

    >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(3.0))
    (True, False)
    """
    return hashlib.sha256(json.dumps([described(value) for value in values]).encode()).hexdigest()[:16]


def described(value: Any) -> Any:
    """The value in lists, dicts and strings that JSON can hold.

    >>> import rop
    >>> described(rop.LeakyReLU(0.3))
    {'is': 'LeakyReLU', 'negative_slope': 0.3}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, Mapping):
        return [[described(key), described(item)] for key, item in value.items()]
    if isinstance(value, Graph):
        return _graph(value)
    if isinstance(value, Immutable):
        return {"is": _name(type(value)), **{name: _argument(getattr(value, name)) for name in _attributes(value)}}
    return _callable(value) if callable(value) and not hasattr(value, "__dataclass_fields__") else _object(value)


def _array(array: np.ndarray) -> list[Any]:
    if array.dtype.hasobject:
        return ["array", list(array.shape), described(array.tolist())]
    content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return ["array", array.dtype.str, list(array.shape), content.hexdigest()[:32]]


def _graph(net: Graph) -> dict[str, Any]:
    """Layers by name, in the order of their parameters, and which of them reads what; a tied layer appears twice in
    the wiring."""
    place = {node: number for number, node in enumerate(net.nodes)}
    wiring = [
        [net.name_of(node.layer), *(place[source] for source in node.inputs)]
        for node in net.nodes
        if node.layer is not None
    ]
    return {"layers": [[net.name_of(layer), described(layer)] for layer in net.layers], "wiring": wiring}


def _attributes(value: Immutable) -> list[str]:
    """What the constructor stored, and what its classes declare below those that all share."""
    own = [kind for kind in type(value).__mro__ if kind not in (Layer, Loss, Immutable, object)]
    declared = {name for kind in own for name in vars(kind).get("__annotations__", ()) if hasattr(value, name)}
    return sorted(declared | vars(value).keys())


def _argument(value: Any) -> Any:
    """An argument of a layer: a function among them is compiled with everything it uses."""
    if isinstance(value, types.FunctionType) and not _ours(value):
        return identity(value) or described(value)
    return described(value)


# ----------------------------------------------------------------------------------------------- functions and objects
def _name(kind: Any) -> str:
    return kind.__qualname__ if _ours(kind) else f"{kind.__module__}.{kind.__qualname__}"


def _ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", "") or "").partition(".")[0] == "rop"


def _callable(value: Any) -> Any:
    """A schedule of the user's: a function, a class that can be called, or a part of one."""
    if isinstance(value, functools.partial):
        return ["partial", described(value.func), described(value.args), described(value.keywords)]
    if isinstance(value, types.MethodType):
        return ["method", described(value.__func__), described(value.__self__)]
    if isinstance(value, types.FunctionType):
        return value.__qualname__ if _ours(value) else _function(value, ())
    if isinstance(value, (type, types.BuiltinFunctionType, np.ufunc)):
        return ["named", getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)]
    call: Any = type(value).__call__
    return ["called", _function(call, ()) if isinstance(call, types.FunctionType) else "", _object(value)]


def _object(value: Any) -> dict[str, Any]:
    """Its class and the values it was made with. Objects other than dataclasses may collect results in lists and dicts,
    which are left out."""
    items = sorted(getattr(value, "__dict__", {}).items())
    whole = hasattr(value, "__dataclass_fields__")
    return {"is": _name(type(value)), **{name: described(item) for name, item in items if whole or _constant(item)}}


def _constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_constant, value))
    known = (bool, int, float, str, np.generic, np.ndarray, functools.partial, types.FunctionType)
    return value is None or isinstance(value, known) or hasattr(value, "__dataclass_fields__")


def _function(function: types.FunctionType, seen: tuple[Any, ...]) -> Any:
    """Code, and the constants and functions that it uses from around it."""
    if function in seen:
        return "again"
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    around |= {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    used = [
        [name, _function(value, (*seen, function)) if isinstance(value, types.FunctionType) else described(value)]
        for name, value in sorted(around.items())
        if _constant(value)
    ]
    defaults = [described(value) for value in function.__defaults__ or () if _constant(value)]
    content = json.dumps([_code(function.__code__), defaults, used])
    return ["function", hashlib.sha256(content.encode()).hexdigest()[:32]]


def _code(code: types.CodeType) -> list[Any]:
    return [code.co_code.hex(), [_literal(item) for item in code.co_consts], list(code.co_names)]


def _literal(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)  # sets have no order


def _names(code: types.CodeType) -> set[str]:
    inner = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


# ----------------------------------------------------------------------------------------------------- the machine
def machine(device: str) -> dict[str, Any]:
    """The facts besides the settings on which the last bits depend: the kind of CPU and the compiler.

    >>> sorted(machine("cpu"))
    ['cpu', 'device', 'numba']
    """
    return {"device": device, "cpu": kind(), "numba": numba.__version__}
