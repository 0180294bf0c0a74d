"""From losses of torch to the losses of rop that compute the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from rop.arguments import as_array
from rop.errors import ArgumentError, ArgumentTypeError
from rop.layers.loss import Loss
from rop.layers.record import RECORDS
from rop.torch.counterparts import with_counterparts

KINDS: dict[Callable[..., Any], type[Loss]] = {  # by module class and by function
    counterpart: record.kind
    for what in ("module", "function")
    for record, counterpart in with_counterparts(what)
    if issubclass(record.kind, Loss)
}
OUTDATED = ("size_average", "reduce")  # torch's deprecated names of reduction


def loss_from_torch(loss: nn.Module | Callable[..., Tensor] | Loss) -> Loss:
    """The rop loss for a loss module of torch, a function of torch.nn.functional, or a functools.partial of one.

    >>> import torch, rop
    >>> rop.torch.loss_from_torch(torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    CrossEntropy(weight=None, reduction='mean', label_smoothing=0.1, ignore_index=-100)
    """
    if isinstance(loss, Loss):
        return loss
    options, made_by = {}, loss
    if isinstance(loss, functools.partial):
        options, made_by = dict(loss.keywords), loss.func
    elif isinstance(loss, nn.Module):
        options, made_by = _attributes(loss), type(loss)
    kind = KINDS.get(made_by) if callable(made_by) else None
    if kind is None or (isinstance(loss, functools.partial) and loss.args):
        known = sorted(kind.__name__ for kind in KINDS if isinstance(kind, type))
        raise ArgumentTypeError(
            f"loss: expected one of torch's {', '.join(known)}, its function in "
            "torch.nn.functional (or a functools.partial with its options), or a loss of rop, got "
            f"{loss!r}"
        )
    return _made(kind, options)


def numbers(name: str, value: Tensor | ArrayLike) -> np.ndarray:
    """An array, or the numbers of a tensor on any device, whether it requires a gradient or not."""
    if not isinstance(value, torch.Tensor):
        return as_array(name, value)
    try:
        return value.detach().cpu().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:  # on the meta device, sparse, bfloat16
        raise ArgumentTypeError(
            f"{name}: expected a dense tensor of numbers, got one of {value.dtype} on "
            f"{value.device} with layout {value.layout}"
        ) from error


def _attributes(loss: nn.Module) -> dict[str, Any]:
    """The arguments a loss module was made with."""
    names = inspect.signature(type(loss)).parameters
    return {name: getattr(loss, name) for name in names if hasattr(loss, name)}


def _made(kind: type[Loss], options: dict[str, Any]) -> Loss:
    """The loss with torch's arguments; refuses a value that changes the loss but is no argument of rop's."""
    known, only_torch = inspect.signature(kind).parameters, RECORDS[kind].only_torch
    for option, value in list(options.items()):
        if option not in known:
            if value is not None and value != only_torch.get(option):
                hint = "; use reduction" if option in OUTDATED else ""
                raise ArgumentError(f"loss: rop.{kind.__name__} has no {option}, got {option}={value!r}{hint}")
            del options[option]
        elif isinstance(value, torch.Tensor):
            options[option] = numbers(f"loss: {option}", value)
    return kind(**options)
