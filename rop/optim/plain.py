"""Settings as JSON and back, and the methods that rop.optim names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError


def describe(value: Any) -> Any:
    """Settings as JSON: dataclasses become {"is": name, ...}; a function of the user's becomes its name.

    >>> import rop
    >>> describe(rop.SGD(lr=0.5))
    {'is': 'SGD', 'lr': 0.5, 'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) or not hasattr(value, "__dataclass_fields__"):
        return getattr(value, "__qualname__", repr(value)) if callable(value) else value
    return {"is": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}


def revive(value: Any) -> Any:
    """The opposite of ``describe``, for the methods and schedules of rop.optim.

    >>> revive({"is": "Adam", "lr": 0.1, "betas": [0.8, 0.9]})
    Adam(lr=0.1, betas=(0.8, 0.9), eps=1e-08, weight_decay=0.0)
    """
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    kinds, value = _kinds(), completed(value)
    if value.get("is") not in tuple(kinds):
        raise ArgumentError(f'settings: expected one of {", ".join(kinds)} as "is", got {value.get("is")!r}')
    given = {name: revive(part) for name, part in value.items() if name != "is"}
    try:
        return kinds[value["is"]](**given)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        names = ", ".join(f.name for f in fields(kinds[value["is"]]))
        raise ArgumentError(f"settings: {value['is']} has the settings {names}, got {', '.join(given)}") from error


def completed(value: Any) -> Any:
    """Settings that ``describe`` returned in an earlier version of rop, with the fields that were added since. A class
    has a function ``completed`` where the defaults of new fields differ from what that version did.

    >>> completed({"is": "SpectralRadius", "mu": 0.1, "solver": "power"})["limit"] is None
    True
    """
    name = value.get("is") if isinstance(value, dict) else None
    complete = getattr(_kinds().get(name), "completed", None) if isinstance(name, str) else None
    return value if complete is None else complete(value)


def optimizers() -> dict[str, type[Any]]:
    """The optimizers of rop.optim by their names in lower case, as ``rop train --optimizer`` spells them.

    >>> sorted(optimizers())
    ['adam', 'sgd']
    """
    return {name.lower(): kind for name, kind in _kinds().items() if hasattr(kind, "step")}


def _kinds() -> dict[str, type[Any]]:
    """The methods and schedules: the frozen dataclasses that rop.optim names, but for ``Problem``."""
    from rop import optim

    named = {name: value for name, value in vars(optim).items() if hasattr(value, "__dataclass_params__")}
    return {name: value for name, value in named.items() if value.__dataclass_params__.frozen and name != "Problem"}
