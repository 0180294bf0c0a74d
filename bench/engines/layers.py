"""The walk over a problem's layers that torch and JAX share: which parameters each layer takes, and how branches meet.

torch_layers.py and jax_layers.py say how the libraries compute each kind of layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from .. import vocabulary
from ..vocabulary import Layer, refuse_layer


class Numbers(Protocol):
    """An array of a library, as far as the walk needs to know it."""

    def __add__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any: ...


Array = TypeVar("Array", bound=Numbers)
Running = tuple[Array, Array]  # running mean and variance of a batchnorm, (channels,) each


class Layers(ABC, Generic[Array]):
    """A method for each kind of layer and loss; biases are None where a layer has none."""

    activations: dict[str, Callable[[Any], Any]]

    def forward(
        self,
        layers: Sequence[Layer],
        parameters: Iterator[Array],
        x: Array,
        running: Iterator[Running[Array]] | None = None,
    ) -> Array:
        """The output of the layers for a batch; every layer takes its parameters from the iterator.

        Each batchnorm takes its running statistics, too; without them it uses those of the batch.
        """
        for layer in layers:
            match layer:
                case vocabulary.Linear(bias=bias):
                    x = self.linear(x, next(parameters), next(parameters) if bias else None)
                case vocabulary.Conv(bias=bias):
                    x = self.conv(layer, x, next(parameters), next(parameters) if bias else None)
                case vocabulary.Activation(kind):
                    x = self.activations[kind](x)
                case vocabulary.Pool("max", kernel, stride, padding):
                    x = self.max_pool(x, kernel, stride, padding)
                case vocabulary.Pool("avg", kernel, stride, padding):
                    x = self.avg_pool(x, kernel, stride, padding)
                case vocabulary.GlobalAvgPool():
                    x = self.global_avg_pool(x)
                case vocabulary.Flatten():
                    x = self.flatten(x)
                case vocabulary.Softmax(log):
                    x = self.log_softmax(x) if log else self.softmax(x)
                case vocabulary.BatchNorm(_, eps):
                    statistics = None if running is None else next(running)
                    x = self.batchnorm(x, next(parameters), next(parameters), eps, statistics)
                case vocabulary.LayerNorm(_, eps):
                    x = self.layernorm(x, next(parameters), next(parameters), eps)
                case vocabulary.Residual(body, shortcut):
                    y = self.forward(body, parameters, x, running)
                    x = y + self.forward(shortcut, parameters, x, running)
                case vocabulary.Product(gate, body):
                    y = self.forward(body, parameters, x, running)
                    x = y * self.forward(gate, parameters, x, running)
                case vocabulary.Concat(branches):
                    x = self.concat([self.forward(branch, parameters, x, running) for branch in branches])
                case _:
                    refuse_layer(layer)
        return x

    def loss(self, kind: str, outputs: Array, y: Array) -> Array:
        """The mean loss of a batch, of a kind in LOSSES of problems.py."""
        return self.cross_entropy(outputs, y) if kind == "cross_entropy" else self.mse(outputs, y)

    @abstractmethod
    def linear(self, x: Array, weight: Array, bias: Array | None, /) -> Array: ...

    @abstractmethod
    def conv(self, layer: vocabulary.Conv, x: Array, weight: Array, bias: Array | None, /) -> Array: ...

    @abstractmethod
    def max_pool(self, x: Array, kernel: int, stride: int, padding: int, /) -> Array: ...

    @abstractmethod
    def avg_pool(self, x: Array, kernel: int, stride: int, padding: int, /) -> Array: ...

    @abstractmethod
    def global_avg_pool(self, x: Array, /) -> Array: ...

    @abstractmethod
    def flatten(self, x: Array, /) -> Array: ...

    @abstractmethod
    def softmax(self, x: Array, /) -> Array: ...

    @abstractmethod
    def log_softmax(self, x: Array, /) -> Array: ...

    @abstractmethod
    def batchnorm(
        self, x: Array, gamma: Array, beta: Array, eps: float, running: Running[Array] | None, /
    ) -> Array: ...

    @abstractmethod
    def layernorm(self, x: Array, gamma: Array, beta: Array, eps: float, /) -> Array: ...

    @abstractmethod
    def concat(self, branches: list[Array], /) -> Array: ...

    @abstractmethod
    def cross_entropy(self, outputs: Array, y: Array, /) -> Array: ...

    @abstractmethod
    def mse(self, outputs: Array, y: Array, /) -> Array: ...
