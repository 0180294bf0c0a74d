"""The settings of an experiment: which net, which optimizer and which penalty for a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from rop.arguments import check_choice
from rop.errors import ArgumentError
from rop.graph import Graph
from rop.optim import SGD, Adam, Optimizer, Penalty, SpectralRadius, TopEigenvalues, Trace, inverse_epoch

SETTINGS = ("paper", "plain")  # see nets.py


@dataclass(frozen=True)
class Experiment:
    """The defaults for one data set, in ``rop train`` and in ``new_config``."""

    net: Callable[[str], Graph]  # setting -> net
    optimizer: Callable[[int], Optimizer]  # batch size -> optimizer
    mu: float
    epochs: int = 100
    batch_size: int = 128
    options: dict[str, Any] = field(default_factory=dict)  # of rop.datasets.load


def forest_sgd(batch_size: int) -> Optimizer:
    """The paper's optimizer for forest.

    >>> forest_sgd(64).lr
    inverse_epoch(start=0.1)
    """
    return SGD(lr=inverse_epoch(0.1 if batch_size <= 64 else 0.5))


def adam(batch_size: int) -> Optimizer:
    """Adam with its usual learning rate, for any batch size."""
    return Adam(lr=1e-3)


PENALTIES = {"radius": SpectralRadius, "top-k": TopEigenvalues, "trace": Trace}


def penalty(mu: float, kind: str = "radius", **options: Any) -> Penalty | None:
    """The penalty of this kind with weight mu; None for 0, which is plain training. The options are checked in both
    cases."""
    known: type[Any] = PENALTIES[check_choice("penalty", "kind", kind, tuple(PENALTIES))]
    names = [setting.name for setting in fields(known)]
    for name, value in options.items():
        if name not in names:
            raise ArgumentError(f"penalty: {kind} has the settings {', '.join(names)}, got {name} = {value!r}")
    made: Penalty = known(mu=mu, **options)
    return made if mu else None
