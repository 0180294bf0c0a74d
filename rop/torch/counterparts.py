"""The modules and functions of torch that compute the same as a layer or loss of rop, from rop/layers/record.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from rop.layers.record import RECORDS, Name, Record, resolve

Target = Callable[..., Any] | str  # of a traced call: a function, or the name of a method of tensors


def with_counterparts(what: str) -> Iterator[tuple[Record, Any]]:
    """Records with the module or function of torch that they name, where this version of torch has it; ``what`` is
    "module" or "function".

    >>> names = [module.__name__ for record, module in with_counterparts("module")]
    >>> "Conv2d" in names, "MSELoss" in names, "Add" in names
    (True, True, False)
    """
    for record in RECORDS.values():
        name = getattr(record, what)
        try:
            found = resolve(name) if name else None
        except AttributeError:  # a layer that torch.nn does not have
            found = None
        if found is not None:
            yield record, found


def spellings(function: Name) -> set[Target]:
    """A function of torch in torch and torch.nn.functional, also in place, and as a method of tensors.

    >>> sorted(one for one in spellings("torch:tanh") if isinstance(one, str))
    ['tanh', 'tanh_']
    """
    name = function.partition(":")[2]
    names = name, f"{name}_"
    functions = {getattr(place, one) for place in (F, torch) for one in names if hasattr(place, one)}
    return functions | {one for one in names if hasattr(torch.Tensor, one)}
