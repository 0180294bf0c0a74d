"""Named networks and reproducible numbers for the tests. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import rop

Shape = tuple[int, ...]


# ---------------------------------------------------------------------------------------------------------------
# numbers
# ---------------------------------------------------------------------------------------------------------------


def normal(seed: int, shape: Shape) -> np.ndarray:
    """Standard normal float64 data."""
    return np.random.default_rng([seed, 3]).standard_normal(shape)


def labels(seed: int, shape: Shape, classes: int) -> np.ndarray:
    """Class indices 0 … classes − 1."""
    return np.random.default_rng([seed, 4]).integers(0, classes, shape)


def point(net: Any, seed: int, dtype: Any = np.float64) -> np.ndarray:
    """A w near the usual start, moved a little so that no parameter sits at a special value such as γ = 1."""
    start = net.init(seed=seed, dtype=np.float64)
    return (start + 0.1 * np.random.default_rng([seed, 1]).standard_normal(start.shape)).astype(dtype)


def direction(net: Any, seed: int, dtype: Any = np.float64) -> np.ndarray:
    """A random direction of length one."""
    v = np.random.default_rng([seed, 2]).standard_normal(net.size)
    return (v / max(1e-30, float(np.linalg.norm(v)))).astype(dtype)


def drawn_state(net: Any, seed: int) -> dict[str, np.ndarray] | None:
    """Running statistics other than zero and one; None for a network that has none."""
    rng = np.random.default_rng([seed, 5])
    state = {key: start + rng.uniform(0.1, 1.0, start.shape) for key, start in net.init_state().items()}
    return state or None


# ---------------------------------------------------------------------------------------------------------------
# networks
# ---------------------------------------------------------------------------------------------------------------


def forest(activation: Any = rop.ReLU) -> Any:
    """The paper's network for the forest data: 54-20-20-20-7, the 20×20 layer used twice, softmax outputs."""
    tied = rop.Linear(20, 20)
    hidden = [rop.Linear(54, 20), activation(), tied, activation(), tied, activation()]
    return rop.Sequential(*hidden, rop.Linear(20, 7), rop.Softmax(1))


def usps(activation: Any = rop.ReLU) -> Any:
    """A small network for 16×16 digits: three convolutions with pooling, two linear layers."""
    layers: list[Any] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [rop.Conv2d(before, after, 3, padding=1), activation(), rop.MaxPool2d(2)]
    return rop.Sequential(*layers, rop.Flatten(), rop.Linear(128, 64), activation(), rop.Linear(64, 10))


def wide() -> Any:
    """Two layers whose gradients are products over all tiles: of rows that are whole blocks, and of others."""
    return rop.Sequential(rop.Linear(131, 256), rop.Tanh(), rop.Linear(256, 67), rop.SiLU(), rop.Linear(67, 10))


def wide_image() -> Any:
    """Such a layer behind an image, whose rows lie in another order than its columns."""
    return rop.Sequential(
        rop.Conv2d(1, 16, 3, padding=1), rop.ReLU(), rop.Flatten(), rop.Linear(896, 19), rop.Tanh(), rop.Linear(19, 3)
    )


def mixed() -> Any:
    """One of every smooth activation."""
    layers: list[Any] = []
    for activation in (rop.Tanh(), rop.Sigmoid(), rop.Softplus(), rop.SiLU(), rop.GELU(), rop.GELU("tanh")):
        layers += [rop.Linear(6, 6), activation]
    return rop.Sequential(*layers, rop.Linear(6, 4), rop.LogSoftmax(1))


def residual(channels: int = 4, blocks: int = 2, batchnorm: bool = True) -> Any:
    """x + conv(act(conv(x))) several times, global average pooling and a linear layer."""
    x = rop.Input()
    h = rop.Conv2d(1, channels, 3, padding=1)(x)
    for _ in range(blocks):
        inner = rop.Conv2d(channels, channels, 3, padding=1)(h)
        inner = rop.SiLU()(rop.BatchNorm2d(channels)(inner) if batchnorm else inner)
        h = rop.Add()(h, rop.Conv2d(channels, channels, 1)(inner))
    return rop.Graph(x, rop.Linear(channels, 3)(rop.Flatten()(rop.AdaptiveAvgPool2d(1)(h))))


def dense(growth: int = 3) -> Any:
    """Every layer sees the concatenation of all values before it; images of 4×3 pixels with two channels."""
    x = rop.Input()
    h, channels = x, 2
    for _ in range(3):
        new = rop.Tanh()(rop.Conv2d(channels, growth, 3, padding=1)(h))
        h, channels = rop.Concat()(h, new), channels + growth
    return rop.Graph(x, rop.Linear(channels * 12, 3)(rop.Flatten()(h)))


def gated(channels: int = 3) -> Any:
    """Products of values: numbers for each channel, as a vector and as a map of one pixel, for each pixel and for all,
    and a square; images with two channels."""
    x = rop.Input()
    h = rop.Tanh()(rop.Conv2d(2, channels, 3, padding=1)(x))
    mean = rop.AdaptiveAvgPool2d(1)(h)
    vector = rop.Sigmoid()(rop.Linear(channels, channels)(rop.Flatten()(mean)))
    h = rop.Mul()(rop.Mul()(vector, h), rop.Conv2d(channels, channels, 1)(mean))
    h = rop.Mul()(rop.Conv2d(channels, 1, 1)(h), h)
    vector = rop.Flatten()(rop.AdaptiveAvgPool2d(1)(rop.Mul()(h, h)))
    return rop.Graph(x, rop.Linear(channels, 3)(rop.Mul()(rop.Linear(channels, 1)(vector), vector)))


@dataclass(frozen=True)
class Setting:
    """A network with a loss and a way to make data for it."""

    net: Any
    loss: Any
    shape: Shape
    classes: int

    def data(self, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Data and targets for a batch."""
        x = normal(seed, (batch, *self.shape))
        if isinstance(self.loss, (rop.CrossEntropy, rop.NLL)):
            return x, labels(seed, (batch,), self.classes)
        return x, np.random.default_rng(seed).uniform(0, 1, (batch, self.classes))

    def objective(self, batch: int, dtype: Any = np.float64, seed: int = 0, **options: Any) -> Any:
        """An objective on fresh data."""
        return rop.Objective(self.net, self.loss, *self.data(batch, seed), dtype=dtype, **options)


def settings() -> dict[str, Setting]:
    """Networks that between them use every kind of layer and loss."""
    return {
        "forest": Setting(forest(), rop.CrossEntropy(), (54,), 7),
        "usps": Setting(usps(), rop.CrossEntropy(label_smoothing=0.1), (1, 16, 16), 10),
        "usps tanh": Setting(usps(rop.Tanh), rop.MSE(), (1, 16, 16), 10),
        "wide": Setting(wide(), rop.CrossEntropy(), (131,), 10),
        "wide image": Setting(wide_image(), rop.CrossEntropy(), (1, 7, 8), 3),
        "mixed": Setting(mixed(), rop.NLL(), (6,), 4),
        "residual": Setting(residual(), rop.BCEWithLogits(), (1, 6, 5), 3),
        "dense": Setting(dense(), rop.CrossEntropy(reduction="sum"), (2, 4, 3), 3),
        "gated": Setting(gated(), rop.CrossEntropy(), (2, 5, 4), 3),
    }
