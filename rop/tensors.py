"""Torch's tensors, losses and dtypes where rop takes NumPy's: torch is not imported here, but found if it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np


def imported_torch() -> ModuleType | None:
    """The package torch, if the user has imported it."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch.

    >>> is_tensor([1.0, 2.0])
    False
    """
    torch = imported_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def giver(value: Any) -> Callable[[Any], Any]:
    """What makes of a result what the user wants who gave this value: a tensor if it is one, on the same device and
    without a copy.

    >>> giver([1.0])(np.ones(2))
    array([1., 1.])
    >>> import torch
    >>> giver(torch.ones(1))(np.ones(2))
    tensor([1., 1.], dtype=torch.float64)
    """
    return partial(_tensor, device=value.device) if is_tensor(value) else _unchanged


def _unchanged(result: Any) -> Any:
    return result


def _tensor(result: Any, device: Any) -> Any:
    torch = imported_torch()
    assert torch is not None
    return torch.from_numpy(result) if isinstance(result, np.ndarray) else torch.as_tensor(result, device=device)


def is_torchs(value: Any) -> bool:
    """Whether a loss is one of torch: a module, a function of torch.nn.functional, or a functools.partial of one."""
    torch = imported_torch()
    if torch is None:
        return False
    function = value.func if isinstance(value, partial) else value
    name = getattr(function, "__module__", None)
    return isinstance(value, torch.nn.Module) or (callable(function) and str(name).partition(".")[0] == "torch")
