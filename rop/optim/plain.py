"""Settings as JSON and back, and the methods that rop.optim names."""

from __future__ import annotations

import re
from dataclasses import fields, replace
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
        return tuple(map(revive, value)) if isinstance(value, list) else value
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
    if not isinstance(value, dict):
        return value
    name, value = value.get("is"), {key: completed(part) for key, part in value.items()}
    complete = getattr(_kinds().get(name), "completed", None) if isinstance(name, str) else None
    return value if complete is None else complete(value)


def with_rate(optimizer: Any, lr: Any) -> Any:
    """The optimizer with another learning rate, which may be that of its base; it must be a dataclass.

    >>> import rop
    >>> with_rate(rop.SWA(rop.SAM(rop.Adam())), 0.5).base.base.lr
    0.5
    """
    if any(field.name == "lr" for field in fields(optimizer)):
        return replace(optimizer, lr=lr)
    return replace(optimizer, base=with_rate(optimizer.base, lr))


def innermost(optimizer: Any) -> Any:
    """The optimizer whose rule makes the step: ``optimizer`` itself, or its base, or the base of that.

    >>> import rop
    >>> innermost(rop.SWA(rop.SAM(rop.Adam(lr=0.1)))).lr
    0.1
    """
    return innermost(optimizer.base) if hasattr(optimizer, "base") else optimizer


def optimizers() -> dict[str, type[Any]]:
    """The optimizers of rop.optim by their names as ``rop train --method`` and RopClassifier spell them.

    >>> sorted(optimizers())
    ['adam', 'entropy-sgd', 'kfac', 'sam', 'sgd', 'swa']
    """
    return {spelled(name): kind for name, kind in _kinds().items() if hasattr(kind, "step")}


def spelled(name: str) -> str:
    """The name of a class in lower case, with a hyphen between its words; capitals that stand together are one word.

    >>> spelled("SGD"), spelled("EntropySGD"), spelled("HeavyBall")
    ('sgd', 'entropy-sgd', 'heavy-ball')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def _kinds() -> dict[str, type[Any]]:
    """The methods and schedules: the frozen dataclasses that rop.optim names, but for ``Problem``."""
    from rop import optim

    named = {name: value for name, value in vars(optim).items() if hasattr(value, "__dataclass_params__")}
    return {name: value for name, value in named.items() if value.__dataclass_params__.frozen and name != "Problem"}
