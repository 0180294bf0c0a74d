"""The subjects of `rop check`: every layer and every loss of the package, each in a few settings that take different
paths through the engine. A row of the table shows the worst of them.

There is one function per layer and per loss, which takes its class and makes the stands; the class's record
(rop/layers/record.py) names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rop.check.stand import SAMPLES, LayerStand, LossStand, Stand
from rop.layers.base import Layer, Shape
from rop.layers.elementwise import Derivatives
from rop.layers.loss import Loss
from rop.layers.record import LAYERS, LOSSES, RECORDS

VECTOR, IMAGE = (6,), (2, 4, 5)
LayerKind = Callable[..., Layer]  # the class of a layer
LossKind = Callable[..., Loss]


def names() -> tuple[str, ...]:
    """The names of all subjects."""
    return (*LAYERS, *LOSSES)


def stands(name: str) -> list[Stand]:
    """The settings of a layer or loss of the package.

    >>> [stand.net.layers[-4].describe() for stand in stands("Linear")]
    ['Linear 6→4', 'Linear 70→40']
    """
    kind = {**LAYERS, **LOSSES}[name]
    return RECORDS[kind].find("checks")(kind)


def _layer(layer: Layer, *shapes: Shape, training: bool = True) -> Stand:
    return LayerStand(layer, shapes, training=training)


def _loss(loss: Loss, shape: Shape, y: np.ndarray) -> Stand:
    return LossStand(loss, shape, y)


# --------------------------------------------------------------------------------------------------------------- layers
def on_vectors_and_images(kind: type[Layer]) -> list[Stand]:
    """A layer that takes vectors and images alike: its first example on both, the others on vectors."""
    first, *others = RECORDS[kind].made()
    return [_layer(first, VECTOR), _layer(first, IMAGE), *(_layer(other, VECTOR) for other in others)]


def linear(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(6, 4), VECTOR), _layer(kind(70, 40, bias=False), (70,))]


def conv2d(kind: LayerKind) -> list[Stand]:
    return [
        _layer(kind(2, 3, 3, padding=1), IMAGE),
        _layer(kind(2, 4, (3, 2), stride=2, dilation=(1, 2), bias=False), (2, 5, 6)),
        _layer(kind(4, 4, 3, groups=2, padding="same"), (4, 3, 4)),
    ]


def maxpool2d(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(2), (2, 4, 6)), _layer(kind(3, stride=2, padding=1), (2, 5, 5))]


def avgpool2d(kind: LayerKind) -> list[Stand]:
    return [
        _layer(kind(2), (2, 4, 6)),
        _layer(kind(3, stride=2, padding=1, count_include_pad=False), (2, 5, 5)),
    ]


def adaptiveavgpool2d(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(1), IMAGE)]


def flatten(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(), IMAGE)]


def sine(x: float, frequency: float) -> Derivatives:
    """x + sin(ωx)/ω, an activation as a user would write one."""
    s, c = math.sin(frequency * x), math.cos(frequency * x)
    return x + s / frequency, 1 + c, -frequency * s, -frequency * frequency * c


def elementwise(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(sine, 1.5), VECTOR), _layer(kind(sine, 1.5), IMAGE)]


def batchnorm1d(kind: LayerKind) -> list[Stand]:
    return [
        _layer(kind(6), VECTOR),
        _layer(kind(6, affine=False), VECTOR),
        _layer(kind(6), VECTOR, training=False),
    ]


def batchnorm2d(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(2), IMAGE), _layer(kind(2), IMAGE, training=False)]


def layernorm(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(6), VECTOR), _layer(kind(6, bias=False), VECTOR), _layer(kind(70, 0.1, False), (70,))]


def rmsnorm(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(6), VECTOR), _layer(kind(6, 0.1, False), VECTOR)]


def layernorm2d(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(6), (6, 3, 2)), _layer(kind(7, affine=False), (7, 2, 3))]


def groupnorm(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(2, 4), (4, 3, 5)), _layer(kind(1, 2, affine=False), IMAGE), _layer(kind(2, 6), VECTOR)]


def instancenorm2d(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(2), IMAGE), _layer(kind(2, affine=True), IMAGE)]


def add(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(), VECTOR, VECTOR), _layer(kind(), IMAGE, IMAGE, IMAGE)]


def mul(kind: LayerKind) -> list[Stand]:
    """A gate; numbers for each channel and for each pixel, and one for all."""
    repeated = (IMAGE[:1], (*IMAGE[:1], 1, 1), (1, *IMAGE[1:]), (1,))
    return [
        _layer(kind(), VECTOR, VECTOR),
        _layer(kind(), VECTOR, (1,)),
        _layer(kind(), IMAGE, IMAGE),
        *(_layer(kind(), IMAGE, shape) for shape in repeated),
    ]


def concat(kind: LayerKind) -> list[Stand]:
    return [_layer(kind(), (3,), (4,)), _layer(kind(), IMAGE, (3, 4, 5))]


# --------------------------------------------------------------------------------------------------------------- losses
_rng = np.random.default_rng(3)
_classes = _rng.integers(0, 5, SAMPLES)
_pixel_classes = _rng.integers(0, 3, (SAMPLES, 2, 2))
_some_ignored = np.where(np.arange(SAMPLES) % 4 == 1, -100, _classes)
_weights = np.array([0.5, 2.0, 1.0, 0.7, 1.3])
_fractions = _rng.uniform(0, 1, (SAMPLES, 4))
_apart = np.where(_fractions < 0.5, -3.0, 1.0)
_probabilities = _rng.dirichlet(np.ones(5), SAMPLES)
_normal, _normal_images = _rng.standard_normal((SAMPLES, 4)), _rng.standard_normal((SAMPLES, 2, 2, 2))


def crossentropy(kind: LossKind) -> list[Stand]:
    return [
        _loss(kind(), (5,), _classes),
        _loss(kind(weight=_weights), (5,), _some_ignored),
        _loss(kind(label_smoothing=0.1, reduction="sum"), (5,), _classes),
        _loss(kind(), (5,), _probabilities),
        _loss(kind(), (3, 2, 2), _pixel_classes),
    ]


def nll(kind: LossKind) -> list[Stand]:
    return [
        _loss(kind(weight=_weights), (5,), _some_ignored),
        _loss(kind(reduction="sum"), (3, 2, 2), _pixel_classes),
    ]


def mse(kind: LossKind) -> list[Stand]:
    """Numbers of any size, one for each output."""
    return [_loss(kind(), (4,), _normal), _loss(kind(reduction="sum"), (2, 2, 2), _normal_images)]


def l1(kind: LossKind) -> list[Stand]:
    """Targets far apart, so that inputs find room between the kinks around them."""
    return [_loss(kind(), (4,), _apart), _loss(kind(reduction="sum"), (4,), -_apart)]


def smoothl1(kind: LossKind) -> list[Stand]:
    return [_loss(kind(), (4,), _apart), _loss(kind(beta=0.5, reduction="sum"), (4,), _apart)]


def huber(kind: LossKind) -> list[Stand]:
    return [_loss(kind(), (4,), _apart), _loss(kind(delta=2.0, reduction="sum"), (4,), _apart)]


def poissonnll(kind: LossKind) -> list[Stand]:
    return [_loss(kind(), (4,), np.round(5 * _fractions)), _loss(kind(reduction="sum"), (4,), _fractions)]


def kldiv(kind: LossKind) -> list[Stand]:
    logs = np.log(_probabilities)
    return [_loss(kind(), (5,), _probabilities), _loss(kind("batchmean", log_target=True), (5,), logs)]


def bcewithlogits(kind: LossKind) -> list[Stand]:
    return [
        _loss(kind(), (4,), _fractions),
        _loss(kind(reduction="sum"), (4,), np.round(_fractions)),
        _loss(kind(pos_weight=_weights[:4]), (4,), np.where(_fractions < 0.3, np.nan, _fractions)),
    ]
