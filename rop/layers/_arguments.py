"""Argument checks for the constructors of layers and losses.

Every check takes the owner's name and the argument's name first, so that the message can say who refused what, and
returns the value in its canonical Python type.
"""

from __future__ import annotations

import math
import operator
from numbers import Integral, Real
from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError

Pair = tuple[int, int]

# Sizes stay below this so that products of two of them cannot overflow a 64-bit index in compiled code.
LARGEST = 2**31 - 1


def check_int(owner: str, name: str, value: Any, minimum: int = 1, maximum: int = LARGEST) -> int:
    """An integer in [minimum, maximum]; True and 3.0 are not integers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{owner}: {name} must be an integer, got {value!r} ({type(value).__name__})")
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
        raise ArgumentError(f"{owner}: {name} must be one integer or a pair of integers, got {value!r}")
    return check_int(owner, name, value[0], minimum), check_int(owner, name, value[1], minimum)


def check_bool(owner: str, name: str, value: Any) -> bool:
    """True or False, nothing that merely counts as such."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(f"{owner}: {name} must be True or False, got {value!r} ({type(value).__name__})")
    return bool(value)


def check_float(owner: str, name: str, value: Any, positive: bool = False) -> float:
    """A finite real number, optionally above zero."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{owner}: {name} must be a real number, got {value!r} ({type(value).__name__})")
    value = float(value)
    if not math.isfinite(value):
        raise ArgumentError(f"{owner}: {name} must be finite, got {value}")
    if positive and value <= 0:
        raise ArgumentError(f"{owner}: {name} must be above 0, got {value}")
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
    raise ArgumentError(f"{owner}: {name} must be one of {allowed}, got {value!r}")


def check_dtype(owner: str, dtype: Any) -> np.dtype:
    """float32 or float64."""
    try:
        found = np.dtype("object" if dtype is None else dtype)  # np.dtype(None) would be float64
    except TypeError:
        found = np.dtype("object")
    if found.type not in (np.float32, np.float64):
        raise ArgumentTypeError(f"{owner}: dtype must be float32 or float64, got {dtype!r}")
    return np.dtype(found.type)
