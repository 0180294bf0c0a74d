"""The paper's experiments: which net, which optimizer, which penalty for each data set.

A setting is "paper", the nets as published (softmax outputs fed to cross-entropy, which applies softmax again; forest
with one 20×20 layer used twice), or "plain" (logits, untied layers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rop
from rop.arguments import check_choice
from rop.graph import Graph
from rop.optim import SGD, Adam, Optimizer, SpectralRadius, inverse_epoch

SETTINGS = ("paper", "plain")


@dataclass(frozen=True)
class Experiment:
    """Defaults for one data set."""

    net: Callable[[str], Graph]  # setting -> net
    optimizer: Callable[[int], Optimizer]  # batch size -> optimizer
    mu: float
    epochs: int = 100
    batch_size: int = 128
    options: dict[str, Any] = field(default_factory=dict)  # of rop.datasets.load


def _outputs(setting: str) -> list[Any]:
    return [rop.Softmax(1)] if _is_paper(setting) else []


def _is_paper(setting: str) -> bool:
    return bool(check_choice("experiment", "setting", setting, SETTINGS) == "paper")


def experiment(dataset: str) -> Experiment:
    """The defaults for a data set.

    >>> experiment("forest").batch_size
    128
    """
    return EXPERIMENTS[check_choice("experiment", "dataset", dataset, tuple(EXPERIMENTS))]


def forest_net(setting: str) -> Graph:
    """54 → 20 → 20 → 20 → 7; in the paper's setting the two inner layers are one."""
    inner = rop.Linear(20, 20)
    again = inner if _is_paper(setting) else rop.Linear(20, 20)
    return rop.Sequential(
        rop.Linear(54, 20), rop.ReLU(), inner, rop.ReLU(), again, rop.ReLU(), rop.Linear(20, 7), *_outputs(setting)
    )


def _convolutions(channels: tuple[int, ...]) -> list[Any]:
    pairs = zip((1, *channels), channels, strict=False)
    return [layer for i, o in pairs for layer in (rop.Conv2d(i, o, 3, padding=1), rop.ReLU(), rop.MaxPool2d(2))]


def usps_net(setting: str) -> Graph:
    """Three convolutions (8, 16, 32 channels) with ReLU and 2×2 max-pooling, then 64 and 10 nodes."""
    return rop.Sequential(
        *_convolutions((8, 16, 32)),
        rop.Flatten(),
        rop.Linear(128, 64),
        rop.ReLU(),
        rop.Linear(64, 10),
        *_outputs(setting),
    )


def digits_net(setting: str) -> Graph:
    """The same idea for 8×8 images: two convolutions, then 32 and 10 nodes."""
    return rop.Sequential(
        *_convolutions((8, 16)), rop.Flatten(), rop.Linear(64, 32), rop.ReLU(), rop.Linear(32, 10), *_outputs(setting)
    )


def _forest_sgd(batch_size: int) -> Optimizer:
    return SGD(lr=inverse_epoch(0.1 if batch_size <= 64 else 0.5))


def _adam(batch_size: int) -> Optimizer:
    return Adam(lr=1e-3)


EXPERIMENTS = {
    "digits": Experiment(digits_net, _adam, mu=0.01, epochs=40, batch_size=32),
    "forest": Experiment(forest_net, _forest_sgd, mu=0.01),
    "usps": Experiment(usps_net, _adam, mu=0.005),
    "mnist": Experiment(usps_net, _adam, mu=0.005, epochs=20, options={"size": 16}),
}


def penalty(mu: float, **options: Any) -> SpectralRadius | None:
    """The penalty with weight mu; none at all for 0, which is plain training at full speed whatever its options."""
    made = SpectralRadius(mu=mu, **options)
    return made if mu else None
