"""How torch computes each kind of layer and loss, and its two forms of batchnorm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..vocabulary import Conv
from .layers import Layers

Running = tuple[Tensor, Tensor]  # mean and variance, (channels,) each
Norm = Callable[[Tensor, Tensor, Tensor, float, Running | None], Tensor]


def fused(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, running: Running | None = None) -> Tensor:
    """torch's own batchnorm: the fastest for a gradient, but its third derivative is wrong in training mode."""
    mean, variance = running or (None, None)
    return F.batch_norm(x, mean, variance, gamma, beta, training=running is None, eps=eps)


def written_out(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, running: Running | None = None) -> Tensor:
    """Batchnorm in primitives, right at every order; with running mean and variance where they are given."""
    column = (1, -1) + (1,) * (x.dim() - 2)
    if running is not None:  # a scale and a shift for each channel
        scale = (running[1] + eps).rsqrt() * gamma
        return torch.addcmul((beta - running[0] * scale).view(column), x, scale.view(column))
    axes = [axis for axis in range(x.dim()) if axis != 1]
    centred = x - x.mean(axes, keepdim=True)
    scale = ((centred * centred).mean(axes, keepdim=True) + eps).rsqrt() * gamma.view(column)
    return centred * scale + beta.view(column)


class TorchLayers(Layers[Tensor]):
    """Functions of torch, without a Python call around those that take the same arguments."""

    activations = {
        "relu": F.relu,
        "leaky_relu": F.leaky_relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softplus": F.softplus,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    linear = staticmethod(F.linear)
    max_pool = staticmethod(F.max_pool2d)
    avg_pool = staticmethod(F.avg_pool2d)
    cross_entropy = staticmethod(F.cross_entropy)
    mse = staticmethod(F.mse_loss)

    def __init__(self, norm: Norm):
        self.norm = norm

    def conv(self, layer: Conv, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def global_avg_pool(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)

    def flatten(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(1)

    def log_softmax(self, x: Tensor) -> Tensor:
        return x.log_softmax(1)

    def batchnorm(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, running: Running | None) -> Tensor:
        return self.norm(x, gamma, beta, eps, running)

    def layernorm(self, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        """In primitives for both: torch's own is wrong at third order in evaluation mode, too."""
        column = (1, -1) + (1,) * (x.dim() - 2)
        centred = x - x.mean(1, keepdim=True)
        scale = ((centred * centred).mean(1, keepdim=True) + eps).rsqrt()
        return torch.addcmul(beta.view(column), centred * scale, gamma.view(column))

    def concat(self, branches: list[Tensor]) -> Tensor:
        return torch.cat(branches, 1)


FUSED = TorchLayers(fused)  # for gradients, and in evaluation mode for derivatives of every order
EXACT = TorchLayers(written_out)  # for derivatives of every order
