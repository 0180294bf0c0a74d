"""Checks of arguments: numbers and choices of constructors, arrays, functions and paths.

A check first takes the names that its message needs, the owner's and the argument's, and returns the value in its
canonical Python type.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError

Pair = tuple[int, int]

# Sizes stay below this so that products of two of them cannot overflow a 64-bit index in compiled code.
LARGEST = 2**31 - 1


def shown(value: Any) -> str:
    """A value as messages show it: on one line, cut to 80 characters.

    >>> shown([1, 2]), shown("x" * 200)[:5]
    ('[1, 2]', "'xxxx")
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def check_int(owner: str, name: str, value: Any, minimum: int = 1, maximum: int = LARGEST) -> int:
    """An integer in [minimum, maximum]; True and 3.0 are not integers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{owner}: {name} must be an integer, got {shown(value)} ({type(value).__name__})")
    value = operator.index(value)
    if value < minimum:
        raise ArgumentError(f"{owner}: {name} must be at least {minimum}, got {value}")
    if value > maximum:
        raise ArgumentError(f"{owner}: {name} must be at most {maximum}, got {value}")
    return value


def check_pair(owner: str, name: str, value: Any, minimum: int = 1) -> Pair:
    """An integer for both directions, or (vertical, horizontal)."""
    if not isinstance(value, (tuple, list)):
        value = check_int(owner, name, value, minimum)
        return value, value
    if len(value) != 2:
        raise ArgumentError(f"{owner}: {name} must be one integer or a pair of integers, got {shown(value)}")
    return check_int(owner, name, value[0], minimum), check_int(owner, name, value[1], minimum)


def check_bool(owner: str, name: str, value: Any) -> bool:
    """True or False; 1 and 0 are not accepted."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(f"{owner}: {name} must be True or False, got {shown(value)} ({type(value).__name__})")
    return bool(value)


def check_float(owner: str, name: str, value: Any, positive: bool = False, minimum: float = -math.inf) -> float:
    """A finite real number, optionally above zero, or at least ``minimum``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{owner}: {name} must be a real number, got {shown(value)} ({type(value).__name__})")
    try:
        value = float(value)
    except OverflowError:  # an integer of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise ArgumentError(f"{owner}: {name} must be finite, got {value}")
    if positive and value <= 0:
        raise ArgumentError(f"{owner}: {name} must be above 0, got {value}")
    if value < minimum:
        raise ArgumentError(f"{owner}: {name} must be at least {minimum:g}, got {value}")
    return value


def check_fraction(owner: str, name: str, value: Any) -> float:
    """A real number in [0, 1]."""
    value = check_float(owner, name, value)
    if not 0 <= value <= 1:
        raise ArgumentError(f"{owner}: {name} must lie in [0, 1], got {value}")
    return value


def check_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """One of a few fixed values, of the same type as the choice it equals (so 1.0 and True are not 1)."""
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    allowed = ", ".join(map(repr, choices))
    raise ArgumentError(f"{owner}: {name} must be one of {allowed}, got {shown(value)}")


def check_dtype(owner: str, dtype: Any) -> np.dtype:
    """float32 or float64, also as torch's dtype of that name."""
    given = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    try:
        found = np.dtype("object" if given is None else given)  # np.dtype(None) would be float64
    except Exception:  # NumPy raises various errors, also those of a foreign object
        found = np.dtype("object")
    if found.type not in (np.float32, np.float64):
        raise ArgumentTypeError(f"{owner}: dtype must be float32 or float64, got {shown(dtype)}")
    return np.dtype(found.type)


def check_function(owner: str, name: str, value: Any, takes: str, count: int) -> Callable[..., Any]:
    """A function that takes ``count`` positional arguments; one whose signature cannot be read is accepted."""
    if not callable(value):
        raise ArgumentTypeError(
            f"{owner}: {name} must be a function of {takes}, got {shown(value)} ({type(value).__name__})"
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return value
    try:
        signature.bind(*[None] * count)
    except TypeError:
        called = getattr(value, "__name__", type(value).__name__)
        raise ArgumentTypeError(
            f"{owner}: {name} must be a function of {takes}, got {called}, which takes {signature}"
        ) from None
    return value


def as_array(name: str, value: Any, expected: str = "an array of numbers") -> np.ndarray:
    """An array of any dtype, without a copy if the value is one; refuses what NumPy would silently misread (a masked
    array as its data) and what it cannot read.

    >>> as_array("w", [1, 2])
    array([1, 2])
    """
    if type(value) is np.ndarray:
        return value
    short = name.rpartition(": ")[2]
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise ArgumentTypeError(
            f"{name}: expected {expected}, got a masked array, whose mask would be lost; give "
            f"{short}.filled(value), or leave the masked entries out"
        )
    if any(getattr(part, "requires_grad", False) is True for part in parts):
        raise ArgumentTypeError(
            f"{name}: expected {expected}, got a tensor that requires grad, which rop would not "
            f"send back to torch; give {short}.detach()"
        )
    try:
        return np.asarray(value)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a ragged list, or an error of a foreign __array__
        kind = type(value).__name__
        if isinstance(value, (list, tuple)) and isinstance(error, ValueError):
            reason = f"a ragged {kind}"
        else:
            words = str(error) or type(error).__name__
            reason = f"{kind}, which NumPy cannot read ({words.splitlines()[0]})"
        raise ArgumentTypeError(f"{name}: expected {expected}, got {reason}") from error


def check_path(owner: str, name: str, value: Any, folder: bool = False) -> Path:
    """A path that the file system accepts, whether it exists or not; with ``folder`` it must not be that of a file.

    >>> check_path("train", "checkpoint", "runs/1").name
    '1'
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise ArgumentTypeError(f"{owner}: {name} must be a path, got {shown(value)} ({type(value).__name__})")
    given = shown(os.fspath(value))
    if not os.fspath(value):
        raise ArgumentError(f"{owner}: {name} must be a path, got an empty string; the current folder is '.'")
    path = Path(value)
    try:
        os.stat(path)
        is_file = not path.is_dir()
    except (FileNotFoundError, PermissionError):
        return path
    except NotADirectoryError:
        is_file, given = True, f"{given}, which leads through a file"
    except (OSError, ValueError) as error:  # too long, a loop of links; a NUL, no encoding
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"{owner}: {name} must be a path, got {given}: {reason}; choose another name") from error
    if folder and is_file:
        raise ArgumentError(f"{owner}: {name} must be a folder, got the file {given}; choose another name")
    return path
