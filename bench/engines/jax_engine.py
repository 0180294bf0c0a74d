"""JAX, compiled: forward over reverse and reverse over forward mode, whichever is faster."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..problems import (
    Activation,
    BatchNorm,
    Concat,
    Conv,
    Data,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    Pool,
    Problem,
    Residual,
    Softmax,
)
from . import Engine

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
}


def forward(layers: Sequence[Layer], parameters: Iterator[Any], x: Any) -> Any:
    """Images are (batch, height, width, channel), the layout XLA likes best on a CPU."""
    for layer in layers:
        match layer:
            case Linear(bias=bias):
                x = x @ next(parameters).T
                x = x + next(parameters) if bias else x
            case Conv():
                x = convolution(layer, parameters, x)
            case Activation(kind):
                x = ACTIVATIONS[kind](x)
            case Pool(kind, kernel, stride):
                x = pool(x, kind, kernel, stride)
            case GlobalAvgPool():
                x = x.mean((1, 2), keepdims=True)
            case Flatten():
                x = x.transpose(0, 3, 1, 2).reshape(len(x), -1) if x.ndim == 4 else x
            case Softmax(log):
                x = jax.nn.log_softmax(x, -1) if log else jax.nn.softmax(x, -1)
            case BatchNorm(_, eps):
                axes = tuple(range(x.ndim - 1))
                centred = x - x.mean(axes)
                x = centred * (lax.rsqrt((centred * centred).mean(axes) + eps) * next(parameters)) + next(parameters)
            case Residual(body, shortcut):
                x = forward(body, parameters, x) + forward(shortcut, parameters, x)
            case Concat(branches):
                x = jnp.concatenate([forward(branch, parameters, x) for branch in branches], -1)
    return x


def convolution(layer: Conv, parameters: Iterator[Any], x: Any) -> Any:
    weight = next(parameters).transpose(2, 3, 1, 0)  # (out, in, row, column) → (row, column, in, out)
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=(layer.stride, layer.stride),
        padding=((layer.padding, layer.padding),) * 2,
        rhs_dilation=(layer.dilation, layer.dilation),
        feature_group_count=layer.groups,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + next(parameters) if layer.bias else y


def pool(x: Any, kind: str, kernel: int, stride: int) -> Any:
    """Without overlap a pool is taken from strided slices, nearly twice as fast in XLA at third order as reduce_window.

    (At a tie `maximum` shares the gradient where torch gives it to the first. The problems have ties only between the
    zeros that a ReLU made, which have no gradient.)
    """
    if kernel == stride and x.shape[1] % kernel == x.shape[2] % kernel == 0:
        if kind == "max":
            x = functools.reduce(jnp.maximum, (x[:, k::kernel] for k in range(kernel)))
            return functools.reduce(jnp.maximum, (x[:, :, k::kernel] for k in range(kernel)))
        n, rows, columns, channels = x.shape
        return x.reshape(n, rows // kernel, kernel, columns // kernel, kernel, channels).mean((2, 4))
    window, strides = (1, kernel, kernel, 1), (1, stride, stride, 1)
    if kind == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
    return lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID") / kernel**2


class Jax(Engine):
    ways = {
        "grad": ("grad",),
        "hvp": ("hvp_linearized", "hvp_again"),
        "jet": ("jet_forward", "jet_reverse"),
    }

    @staticmethod
    def versions() -> dict[str, str]:
        return {"jax": jax.__version__}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        jax.config.update("jax_enable_x64", dtype == "float64")
        self.problem = problem
        x = data.x.transpose(0, 2, 3, 1) if data.x.ndim == 4 else data.x
        y = np.eye(problem.output_shape[0], dtype=dtype)[data.y] if problem.loss == "cross_entropy" else data.y
        self.data = jnp.asarray(x), jnp.asarray(y)
        self.points = [self.split(w) for w in data.points]
        self.directions = [self.split(v) for v in data.directions]
        self.forget()
        loss, value_and_grad = self.loss, jax.value_and_grad(self.loss)

        def jet_forward(w: Any, v: Any, x: Any, y: Any) -> Any:
            """jvp of jvp of grad."""

            def along(w: Any) -> Any:
                (value, g), (_, hvp) = jax.jvp(lambda w: value_and_grad(w, x, y), (w,), (v,))
                return hvp, (value, g)

            (hvp, (value, g)), (r2, _) = jax.jvp(along, (w,), (v,))
            return value, g, hvp, r2

        def jet_reverse(w: Any, v: Any, x: Any, y: Any) -> Any:
            """grad of jvp of jvp: f, ⟨∇f,v⟩ and vᵀHv forward, then each of them backward."""

            def value(w: Any) -> Any:
                return loss(w, x, y)

            def slope(w: Any) -> Any:
                return jax.jvp(value, (w,), (v,))

            def all_three(w: Any) -> Any:
                (f, df), (_, ddf) = jax.jvp(slope, (w,), (v,))
                return f, df, ddf

            (f, _, _), back = jax.vjp(all_three, w)
            one, zero = jnp.ones_like(f), jnp.zeros_like(f)
            (g,), (hvp,), (r2,) = back((one, zero, zero)), back((zero, one, zero)), back((zero, zero, one))
            return f, g, hvp, r2

        def hvp_again(w: Any, v: Any, x: Any, y: Any) -> Any:
            return jax.jvp(lambda w: value_and_grad(w, x, y)[1], (w,), (v,))[1]

        def linearized(w: Any, x: Any, y: Any) -> Any:
            return jax.linearize(lambda w: value_and_grad(w, x, y)[1], w)[1]

        self.compiled = {
            "grad": jax.jit(value_and_grad),
            "jet_forward": jax.jit(jet_forward),
            "jet_reverse": jax.jit(jet_reverse),
            "hvp_again": jax.jit(hvp_again),
            "linearized": jax.jit(linearized),
            "push": jax.jit(lambda push, v: push(v)),
        }

    def split(self, flat: np.ndarray) -> list[Any]:
        shapes = [p.shape for p in self.problem.parameters()]
        cuts = list(itertools.accumulate(math.prod(shape) for shape in shapes))[:-1]
        return [jnp.asarray(part.reshape(shape)) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]

    def loss(self, parameters: Any, x: Any, y: Any) -> Any:
        out = forward(self.problem.layers, iter(parameters), x)
        if self.problem.loss == "cross_entropy":
            return -(jax.nn.log_softmax(out, -1) * y).sum() / len(x)
        return jnp.mean((out - y) ** 2)

    def grad(self, repetition: int) -> Any:
        return jax.block_until_ready(self.compiled["grad"](self.points[repetition % 2], *self.data))

    def hvp_linearized(self, repetition: int) -> Any:
        if self.kept is None:
            self.kept = self.compiled["linearized"](self.points[0], *self.data)
        return jax.block_until_ready(self.compiled["push"](self.kept, self.directions[repetition % 2]))

    def hvp_again(self, repetition: int) -> Any:
        return jax.block_until_ready(
            self.compiled["hvp_again"](self.points[0], self.directions[repetition % 2], *self.data)
        )

    def jet_forward(self, repetition: int) -> Any:
        k = repetition % 2
        return jax.block_until_ready(self.compiled["jet_forward"](self.points[k], self.directions[k], *self.data))

    def jet_reverse(self, repetition: int) -> Any:
        k = repetition % 2
        return jax.block_until_ready(self.compiled["jet_reverse"](self.points[k], self.directions[k], *self.data))

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])
