"""The nets of the experiments, each in two settings: "paper", as published, and "plain".

The published nets feed softmax outputs to cross-entropy, which applies softmax again, and use one 20×20 layer of forest
twice. The plain ones have logits as outputs, and every layer has weights of its own.

>>> forest_net("paper").size, forest_net("plain").size
(1667, 2087)
"""

from __future__ import annotations

import rop
from rop.arguments import check_choice
from rop.experiments.settings import SETTINGS
from rop.graph import Graph


def _outputs(setting: str) -> list[rop.Layer]:
    return [rop.Softmax(1)] if _is_paper(setting) else []


def _is_paper(setting: str) -> bool:
    return bool(check_choice("experiment", "setting", setting, SETTINGS) == "paper")


def forest_net(setting: str) -> Graph:
    """54 → 20 → 20 → 20 → 7; in the paper's setting the two inner layers are one."""
    inner = rop.Linear(20, 20)
    again = inner if _is_paper(setting) else rop.Linear(20, 20)
    return rop.Sequential(
        rop.Linear(54, 20), rop.ReLU(), inner, rop.ReLU(), again, rop.ReLU(), rop.Linear(20, 7), *_outputs(setting)
    )


def _convolutions(channels: tuple[int, ...]) -> list[rop.Layer]:
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
