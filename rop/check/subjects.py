"""What `rop check` looks at: every layer and every loss of the package, each in a few settings that take different ways
through the engine. A row of the table shows the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rop import layers
from rop.check.stand import SAMPLES, LayerStand, LossStand, Stand
from rop.layers.base import Shape

Maker = Callable[[], Stand]


def sine(x: float, frequency: float) -> tuple[float, float, float, float]:
    """x + sin(ωx)/ω, an activation as a user would write one."""
    s, c = math.sin(frequency * x), math.cos(frequency * x)
    return x + s / frequency, 1 + c, -frequency * s, -frequency * frequency * c


def _layer(layer: Any, *shapes: Shape, training: bool = True) -> Maker:
    return lambda: LayerStand(layer, shapes, training=training)


def _loss(loss: Any, shape: Shape, y: Any) -> Maker:
    return lambda: LossStand(loss, shape, y)


VECTOR, IMAGE = (6,), (2, 4, 5)
_rng = np.random.default_rng(3)
_classes = _rng.integers(0, 5, SAMPLES)
_pixel_classes = _rng.integers(0, 3, (SAMPLES, 2, 2))
_some_ignored = np.where(np.arange(SAMPLES) % 4 == 1, -100, _classes)
_weights = np.array([0.5, 2.0, 1.0, 0.7, 1.3])
_fractions = _rng.uniform(0, 1, (SAMPLES, 4))
_probabilities = _rng.dirichlet(np.ones(5), SAMPLES)
_normal, _normal_images = _rng.standard_normal((SAMPLES, 4)), _rng.standard_normal((SAMPLES, 2, 2, 2))


def _plain(kind: Any, *arguments: Any) -> list[Maker]:
    """A layer that takes vectors and images alike."""
    return [_layer(kind(*arguments), VECTOR), _layer(kind(*arguments), IMAGE)]


LAYERS: dict[str, list[Maker]] = {
    "Linear": [_layer(layers.Linear(6, 4), VECTOR), _layer(layers.Linear(70, 40, bias=False), (70,))],
    "Conv2d": [
        _layer(layers.Conv2d(2, 3, 3, padding=1), IMAGE),
        _layer(layers.Conv2d(2, 4, (3, 2), stride=2, dilation=(1, 2), bias=False), (2, 5, 6)),
        _layer(layers.Conv2d(4, 4, 3, groups=2, padding="same"), (4, 3, 4)),
    ],
    "MaxPool2d": [_layer(layers.MaxPool2d(2), (2, 4, 6)), _layer(layers.MaxPool2d(3, stride=2, padding=1), (2, 5, 5))],
    "AvgPool2d": [
        _layer(layers.AvgPool2d(2), (2, 4, 6)),
        _layer(layers.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (2, 5, 5)),
    ],
    "AdaptiveAvgPool2d": [_layer(layers.AdaptiveAvgPool2d(1), IMAGE)],
    "Flatten": [_layer(layers.Flatten(), IMAGE)],
    "Identity": _plain(layers.Identity),
    "ReLU": _plain(layers.ReLU),
    "LeakyReLU": _plain(layers.LeakyReLU, 0.2),
    "Tanh": _plain(layers.Tanh),
    "Sigmoid": _plain(layers.Sigmoid),
    "Softplus": [*_plain(layers.Softplus), _layer(layers.Softplus(2.5), VECTOR)],
    "SiLU": _plain(layers.SiLU),
    "GELU": [*_plain(layers.GELU), _layer(layers.GELU("tanh"), VECTOR)],
    "Elementwise": _plain(layers.Elementwise, sine, 1.5),
    "Softmax": _plain(layers.Softmax, 1),
    "LogSoftmax": _plain(layers.LogSoftmax, 1),
    "BatchNorm1d": [
        _layer(layers.BatchNorm1d(6), VECTOR),
        _layer(layers.BatchNorm1d(6, affine=False), VECTOR),
        _layer(layers.BatchNorm1d(6), VECTOR, training=False),
    ],
    "BatchNorm2d": [_layer(layers.BatchNorm2d(2), IMAGE), _layer(layers.BatchNorm2d(2), IMAGE, training=False)],
    "Add": [_layer(layers.Add(), VECTOR, VECTOR), _layer(layers.Add(), IMAGE, IMAGE, IMAGE)],
    "Concat": [_layer(layers.Concat(), (3,), (4,)), _layer(layers.Concat(), IMAGE, (3, 4, 5))],
}

LOSSES: dict[str, list[Maker]] = {
    "CrossEntropy": [
        _loss(layers.CrossEntropy(), (5,), _classes),
        _loss(layers.CrossEntropy(weight=_weights), (5,), _some_ignored),
        _loss(layers.CrossEntropy(label_smoothing=0.1, reduction="sum"), (5,), _classes),
        _loss(layers.CrossEntropy(), (5,), _probabilities),
        _loss(layers.CrossEntropy(), (3, 2, 2), _pixel_classes),
    ],
    "NLL": [
        _loss(layers.NLL(weight=_weights), (5,), _some_ignored),
        _loss(layers.NLL(reduction="sum"), (3, 2, 2), _pixel_classes),
    ],
    "MSE": [_loss(layers.MSE(), (4,), _normal), _loss(layers.MSE(reduction="sum"), (2, 2, 2), _normal_images)],
    "BCEWithLogits": [
        _loss(layers.BCEWithLogits(), (4,), _fractions),
        _loss(layers.BCEWithLogits(reduction="sum"), (4,), np.round(_fractions)),
    ],
}

SUBJECTS = {**LAYERS, **LOSSES}
