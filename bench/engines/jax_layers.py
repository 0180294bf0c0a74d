"""How JAX computes each kind of layer and loss: images are (batch, row, column, channel), the fastest layout of XLA's
on a CPU, and labels are rows of a unit matrix."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..vocabulary import Conv
from .layers import Layers, Running


class JaxLayers(Layers[Array]):
    """Functions that JAX can trace.

    A maximum is taken from strided slices, and a mean without overlap from a reshape: nearly twice as fast in XLA at
    third order as reduce_window. (At a tie `maximum` shares the gradient where torch gives it to the first pixel. The
    problems have ties only between the zeros that a ReLU made, which have no gradient.)
    """

    activations = {
        "relu": jax.nn.relu,
        "leaky_relu": jax.nn.leaky_relu,
        "tanh": jnp.tanh,
        "sigmoid": jax.nn.sigmoid,
        "softplus": jax.nn.softplus,
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_tanh": jax.nn.gelu,
    }

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        x = x @ weight.T
        return x if bias is None else x + bias

    def conv(self, layer: Conv, x: Array, weight: Array, bias: Array | None) -> Array:
        y = lax.conv_general_dilated(
            x,
            weight.transpose(2, 3, 1, 0),  # (out, in, row, column) → (row, column, in, out)
            window_strides=(layer.stride, layer.stride),
            padding=((layer.padding, layer.padding),) * 2,
            rhs_dilation=(layer.dilation, layer.dilation),
            feature_group_count=layer.groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return y if bias is None else y + bias

    def max_pool(self, x: Array, kernel: int, stride: int, padding: int) -> Array:
        if padding:
            x = jnp.pad(x, border(padding), constant_values=-jnp.inf)
        for axis in (1, 2):
            outputs = (x.shape[axis] - kernel) // stride + 1
            ends = [k + (outputs - 1) * stride + 1 for k in range(kernel)]
            slices = (lax.slice_in_dim(x, k, end, stride, axis) for k, end in enumerate(ends))
            x = functools.reduce(jnp.maximum, slices)
        return x

    def avg_pool(self, x: Array, kernel: int, stride: int, padding: int) -> Array:
        if tiles(x, kernel, stride) and not padding:
            n, rows, columns, channels = x.shape
            return x.reshape(n, rows // kernel, kernel, columns // kernel, kernel, channels).mean((2, 4))
        sums = lax.reduce_window(x, 0.0, lax.add, (1, kernel, kernel, 1), (1, stride, stride, 1), border(padding))
        return sums / kernel**2

    def global_avg_pool(self, x: Array) -> Array:
        return x.mean((1, 2), keepdims=True)

    def flatten(self, x: Array) -> Array:
        """Channels first, because the parameters of the next layer are those of torch."""
        return x.transpose(0, 3, 1, 2).reshape(len(x), -1) if x.ndim == 4 else x

    def softmax(self, x: Array) -> Array:
        return jax.nn.softmax(x, -1)

    def log_softmax(self, x: Array) -> Array:
        return jax.nn.log_softmax(x, -1)

    def batchnorm(self, x: Array, gamma: Array, beta: Array, eps: float, running: Running[Array] | None) -> Array:
        if running is not None:
            scale = lax.rsqrt(running[1] + eps) * gamma
            return x * scale + (beta - running[0] * scale)
        axes = tuple(range(x.ndim - 1))
        centred = x - x.mean(axes)
        return centred * (lax.rsqrt((centred * centred).mean(axes) + eps) * gamma) + beta

    def layernorm(self, x: Array, gamma: Array, beta: Array, eps: float) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + eps) * gamma + beta

    def concat(self, branches: list[Array]) -> Array:
        return jnp.concatenate(branches, -1)

    def cross_entropy(self, outputs: Array, y: Array) -> Array:
        return -(jax.nn.log_softmax(outputs, -1) * y).sum() / len(outputs)

    def mse(self, outputs: Array, y: Array) -> Array:
        return jnp.mean((outputs - y) ** 2)


def border(padding: int) -> tuple[tuple[int, int], ...]:
    """The padding of every axis of a batch of images."""
    return (0, 0), (padding, padding), (padding, padding), (0, 0)


def tiles(x: Array, kernel: int, stride: int) -> bool:
    """Whether the windows of a pool cover the images without overlap."""
    return kernel == stride and x.shape[1] % kernel == x.shape[2] % kernel == 0
