"""JAX, compiled: forward over reverse and reverse over forward mode, whichever is faster."""

from __future__ import annotations

import functools
import itertools
import math
import time
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
    refuse_layer,
)
from . import Engine, Step

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
            case _:
                refuse_layer(layer)
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
        "hvp_block": ("hvp_block_linearized", "hvp_block_again"),
        "jet": ("jet_forward", "jet_reverse"),
        "step": ("step_loop", "step_python"),
        "epoch": ("epoch_put_in_order", "epoch_by_index"),
        "penalised": ("penalised",),
    }

    @staticmethod
    def versions() -> dict[str, str]:
        return {"jax": jax.__version__}

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        super().prepare(problem, batch, dtype, data)
        jax.config.update("jax_enable_x64", dtype == "float64")
        self.data = self.put(data.x, data.y)
        self.points = [self.split(w) for w in data.points]
        self.directions = [self.split(v) for v in data.directions]
        self.tuned_jet = ""
        self.compiled = {
            "grad": jax.jit(jax.value_and_grad(self.loss)),
            "jet_forward": jax.jit(self.forward_jet),
            "jet_reverse": jax.jit(self.reverse_jet),
            "hvp_again": jax.jit(self.product),
            "linearized": jax.jit(self.linearized),
            "push": jax.jit(lambda push, v: push(v)),
            "push_block": jax.jit(lambda push, block: jax.vmap(push)(block)),
            "block_again": jax.jit(lambda w, block, x, y: jax.vmap(lambda v: self.product(w, v, x, y))(block)),
            "step_loop": jax.jit(self.step_in_one),
            "push_unit": jax.jit(lambda push, v: unit(push(v))),
            "finish": jax.jit(self.finish),
            "epoch_put_in_order": jax.jit(self.epoch_of_batches, donate_argnums=0),
            "epoch_by_index": jax.jit(self.epoch_of_indices, donate_argnums=0),
            "penalised": jax.jit(self.penalised_epoch, donate_argnums=0),
        }

    def put(self, x: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
        """Images with channels last, labels as rows of a unit matrix."""
        x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
        if self.problem.loss == "cross_entropy":
            y = np.eye(self.problem.output_shape[0], dtype=self.dtype)[y]
        return jnp.asarray(x), jnp.asarray(y)

    def split(self, flat: np.ndarray) -> list[Any]:
        """A vector, or the rows of a matrix, in the shapes of the parameters."""
        shapes = [p.shape for p in self.problem.parameters()]
        cuts = list(itertools.accumulate(math.prod(shape) for shape in shapes))[:-1]
        parts = np.split(flat, cuts, axis=-1)
        return [jnp.asarray(part.reshape(flat.shape[:-1] + shape)) for part, shape in zip(parts, shapes, strict=True)]

    # ---------------------------------------------------------------------------------------------- what is compiled
    def loss(self, parameters: Any, x: Any, y: Any) -> Any:
        out = forward(self.problem.layers, iter(parameters), x)
        if self.problem.loss == "cross_entropy":
            return -(jax.nn.log_softmax(out, -1) * y).sum() / len(x)
        return jnp.mean((out - y) ** 2)

    def forward_jet(self, w: Any, v: Any, x: Any, y: Any) -> Any:
        """jvp of jvp of grad."""
        value_and_grad = jax.value_and_grad(self.loss)

        def along(w: Any) -> Any:
            (value, g), (_, hvp) = jax.jvp(lambda w: value_and_grad(w, x, y), (w,), (v,))
            return hvp, (value, g)

        (hvp, (value, g)), (r2, _) = jax.jvp(along, (w,), (v,))
        return value, g, hvp, r2

    def reverse_jet(self, w: Any, v: Any, x: Any, y: Any) -> Any:
        """grad of jvp of jvp: f, ⟨∇f,v⟩ and vᵀHv forward, then each of them backward."""

        def slope(w: Any) -> Any:
            return jax.jvp(lambda w: self.loss(w, x, y), (w,), (v,))

        def all_three(w: Any) -> Any:
            (f, df), (_, ddf) = jax.jvp(slope, (w,), (v,))
            return f, df, ddf

        (f, _, _), back = jax.vjp(all_three, w)
        one, zero = jnp.ones_like(f), jnp.zeros_like(f)
        (g,), (hvp,), (r2,) = back((one, zero, zero)), back((zero, one, zero)), back((zero, zero, one))
        return f, g, hvp, r2

    def product(self, w: Any, v: Any, x: Any, y: Any) -> Any:
        return jax.jvp(lambda w: jax.grad(self.loss)(w, x, y), (w,), (v,))[1]

    def linearized(self, w: Any, x: Any, y: Any) -> Any:
        """v ↦ H v, with what it needs of the base pass."""
        return jax.linearize(lambda w: jax.grad(self.loss)(w, x, y), w)[1]

    def finish(self, w: Any, v: Any, jet: Any) -> Any:
        """The end of a step: its last product came with r, loss and gradient."""
        value, g, u, r = jet
        eigenvalue = dot(u, v)
        factor = Step.MU * jnp.sign(eigenvalue) * (jnp.abs(eigenvalue) > Step.K)
        moved = [a - Step.RATE * (b + factor * c) for a, b, c in zip(w, g, r, strict=True)]
        return value, eigenvalue, moved, v

    def step_in_one(self, w: Any, v: Any, x: Any, y: Any) -> Any:
        return self.step_and_product(w, v, x, y)[0]

    def step_and_product(self, w: Any, v: Any, x: Any, y: Any) -> Any:
        """A step, and the last u = H v of it."""
        push = self.linearized(w, x, y)
        v = lax.fori_loop(0, Step.ITERATIONS - 1, lambda _, v: unit(push(v)), v)
        jet = self.forward_jet if self.tuned_jet == "jet_forward" else self.reverse_jet
        last = jet(w, v, x, y)
        return self.finish(w, v, last), last[2]

    def sgd(self, w: Any, batch: Any) -> Any:
        value, g = jax.value_and_grad(self.loss)(w, *batch)
        return [a - Step.RATE * b for a, b in zip(w, g, strict=True)], value

    def epoch_of_batches(self, w: Any, x: Any, y: Any, order: Any) -> Any:
        """The rows put into this epoch's order once, then cut."""
        w, values = lax.scan(self.sgd, w, (x[order], y[order]))
        return values.mean(), w

    def epoch_of_indices(self, w: Any, x: Any, y: Any, order: Any) -> Any:
        """The rows of a batch fetched when it is its turn."""
        w, values = lax.scan(lambda w, rows: self.sgd(w, (x[rows], y[rows])), w, order)
        return values.mean(), w

    def penalised_epoch(self, w: Any, v: Any, x: Any, y: Any, order: Any) -> Any:
        def step(carried: Any, rows: Any) -> Any:
            w, v = carried
            (value, _, w, _), u = self.step_and_product(w, v, x[rows], y[rows])
            return (w, unit(u)), value

        (w, _), values = lax.scan(step, (w, v), order)
        return values.mean(), w

    # ------------------------------------------------------------------------------------------------- what is called
    def tune(self, work: str) -> None:
        """A step ends with the kind of jet that is the faster one here."""
        if work in ("step", "penalised") and not self.tuned_jet:
            seconds = {}
            for way in self.ways["jet"]:
                self.run(way, 0)
                seconds[way] = min(self.seconds(way) for _ in range(5))
            self.tuned_jet = min(seconds, key=lambda way: seconds[way])

    def seconds(self, way: str) -> float:
        start = time.perf_counter()
        self.run(way, 0)
        return time.perf_counter() - start

    def call(self, name: str, *arguments: Any) -> Any:
        return jax.block_until_ready(self.compiled[name](*arguments))

    def grad(self, repetition: int) -> Any:
        return self.call("grad", self.points[repetition % 2], *self.data)

    def push(self) -> Any:
        return self.keep("push", lambda: self.compiled["linearized"](self.points[0], *self.data))

    def hvp_linearized(self, repetition: int) -> Any:
        return self.call("push", self.push(), self.directions[repetition % 2])

    def hvp_again(self, repetition: int) -> Any:
        return self.call("hvp_again", self.points[0], self.directions[repetition % 2], *self.data)

    def block(self, repetition: int) -> Any:
        blocks = self.keep("blocks", lambda: [self.split(b.T) for b in self.problem.blocks(self.dtype)])
        return blocks[repetition % 2]

    def hvp_block_linearized(self, repetition: int) -> Any:
        return self.call("push_block", self.push(), self.block(repetition))

    def hvp_block_again(self, repetition: int) -> Any:
        return self.call("block_again", self.points[0], self.block(repetition), *self.data)

    def vectors(self, result: Any) -> np.ndarray:
        return self.flat(jnp.concatenate([part.reshape(len(part), -1) for part in result], 1))

    def jet_forward(self, repetition: int) -> Any:
        return self.call("jet_forward", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def jet_reverse(self, repetition: int) -> Any:
        return self.call("jet_reverse", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def step_loop(self, repetition: int) -> Any:
        return self.call("step_loop", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def step_python(self, repetition: int) -> Any:
        w, v = self.points[repetition % 2], self.directions[repetition % 2]
        push = self.compiled["linearized"](w, *self.data)
        for _ in range(Step.ITERATIONS - 1):
            v = self.compiled["push_unit"](push, v)
        return self.call("finish", w, v, self.compiled[self.tuned_jet](w, v, *self.data))

    def epoch_arrays(self) -> Any:
        data = self.epoch_data()
        return self.put(data.x, data.y)

    def epoch(self, way: str, repetition: int) -> Any:
        x, y = self.keep("epoch arrays", self.epoch_arrays)
        order = self.order(repetition).astype(np.int32).reshape(self.steps, self.batch)
        w = [jnp.copy(part) for part in self.points[repetition % 2]]  # they are given away
        return self.call(way, w, x, y, order)

    def penalised(self, repetition: int) -> Any:
        x, y = self.keep("epoch arrays", self.epoch_arrays)
        order = self.order(repetition).astype(np.int32).reshape(self.steps, self.batch)
        w = [jnp.copy(part) for part in self.points[repetition % 2]]
        return self.call("penalised", w, self.directions[repetition % 2], x, y, order)

    def epoch_put_in_order(self, repetition: int) -> Any:
        return self.epoch("epoch_put_in_order", repetition)

    def epoch_by_index(self, repetition: int) -> Any:
        return self.epoch("epoch_by_index", repetition)

    def flat(self, quantity: Any) -> np.ndarray:
        parts = quantity if isinstance(quantity, list | tuple) else [quantity]
        return np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])


def dot(a: list[Any], b: list[Any]) -> Any:
    return sum(jnp.vdot(x, y) for x, y in zip(a, b, strict=True))


def unit(u: list[Any]) -> list[Any]:
    scale = 1 / jnp.sqrt(dot(u, u))
    return [part * scale for part in u]
