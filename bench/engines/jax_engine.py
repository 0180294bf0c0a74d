"""JAX, compiled: forward over reverse and reverse over forward mode, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problems import Data, Problem
from ..worker import timed
from . import Step
from . import jax_products as products
from .jax_layers import JaxLayers
from .jax_products import Jet, StepResult, Vector
from .parts import EngineOfParts


class Jax(EngineOfParts[Array]):
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
        jax.config.update("jax_enable_x64", dtype == "float64")
        super().prepare(problem, batch, dtype, data)
        self.data = self.put(data.x, data.y)
        self.running = self.statistics()
        self.last_jet = ""  # the kind of jet that steps end with, once `tune` has found it
        self.compiled: dict[str, Callable[..., Any]] = {
            "grad": jax.jit(jax.value_and_grad(self.loss)),
            "jet_forward": jax.jit(partial(products.forward_jet, self.loss)),
            "jet_reverse": jax.jit(partial(products.reverse_jet, self.loss)),
            "hvp_again": jax.jit(partial(products.product, self.loss)),
            "linearized": jax.jit(partial(products.linearized, self.loss)),
            "push": jax.jit(lambda push, v: push(v)),
            "push_block": jax.jit(lambda push, block: jax.vmap(push)(block)),
            "block_again": jax.jit(partial(products.block_product, self.loss)),
            "push_unit": jax.jit(lambda push, v: products.unit(push(v))),
            "finish": jax.jit(products.finish),
            "epoch_put_in_order": jax.jit(partial(products.epoch_put_in_order, self.loss), donate_argnums=0),
            "epoch_by_index": jax.jit(partial(products.epoch_by_index, self.loss), donate_argnums=0),
        }

    def array(self, part: np.ndarray) -> Array:
        return jnp.asarray(part)

    def put(self, x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
        """Images with channels last, labels as rows of a unit matrix."""
        x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x
        if self.problem.loss == "cross_entropy":
            y = np.eye(self.problem.output_shape[0], dtype=self.dtype)[y]
        return jnp.asarray(x), jnp.asarray(y)

    def loss(self, parameters: Vector, x: Array, y: Array) -> Array:
        layers = JaxLayers()
        running = None if self.problem.training else iter(self.running)
        return layers.loss(self.problem.loss, layers.forward(self.problem.layers, iter(parameters), x, running), y)

    def tune(self, work: str) -> None:
        """Finds the faster kind of jet, with which steps end."""
        if work in ("step", "penalised") and not self.last_jet:
            seconds = {way: min(timed(partial(self.run, way), 5)) for way in self.ways["jet"]}
            self.end_steps_with(min(seconds, key=lambda way: seconds[way]))

    def end_steps_with(self, kind: str) -> None:
        """Compiles steps, and epochs of them, with this kind of jet."""
        jets = {"jet_forward": products.forward_jet, "jet_reverse": products.reverse_jet}
        jet = partial(jets[kind], self.loss)
        self.last_jet = kind
        self.compiled["step_loop"] = jax.jit(partial(products.step, self.loss, jet))
        self.compiled["penalised"] = jax.jit(partial(products.penalised_epoch, self.loss, jet), donate_argnums=0)

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a compiled function, when all of it is there."""
        return jax.block_until_ready(self.compiled[name](*arguments))

    def grad(self, repetition: int) -> tuple[Array, Vector]:
        return self.call("grad", self.points[repetition % 2], *self.data)

    def push(self) -> Callable[[Vector], Vector]:
        return self.keep("push", lambda: self.compiled["linearized"](self.points[0], *self.data))

    def hvp_linearized(self, repetition: int) -> Vector:
        return self.call("push", self.push(), self.directions[repetition % 2])

    def hvp_again(self, repetition: int) -> Vector:
        return self.call("hvp_again", self.points[0], self.directions[repetition % 2], *self.data)

    def hvp_block_linearized(self, repetition: int) -> Vector:
        return self.call("push_block", self.push(), self.block(repetition))

    def hvp_block_again(self, repetition: int) -> Vector:
        return self.call("block_again", self.points[0], self.block(repetition), *self.data)

    def jet_forward(self, repetition: int) -> Jet:
        return self.call("jet_forward", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def jet_reverse(self, repetition: int) -> Jet:
        return self.call("jet_reverse", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def step_loop(self, repetition: int) -> StepResult:
        return self.call("step_loop", self.points[repetition % 2], self.directions[repetition % 2], *self.data)

    def step_python(self, repetition: int) -> StepResult:
        w, v = self.points[repetition % 2], self.directions[repetition % 2]
        push = self.compiled["linearized"](w, *self.data)
        for _ in range(Step.ITERATIONS - 1):
            v = self.compiled["push_unit"](push, v)
        return self.call("finish", w, v, self.compiled[self.last_jet](w, v, *self.data))

    def epoch_put_in_order(self, repetition: int) -> tuple[Array, Vector]:
        return self.call("epoch_put_in_order", self.start(repetition), *self.rows_in_order(repetition))

    def epoch_by_index(self, repetition: int) -> tuple[Array, Vector]:
        return self.call("epoch_by_index", self.start(repetition), *self.rows_in_order(repetition))

    def penalised(self, repetition: int) -> tuple[Array, Vector]:
        w, v = self.start(repetition), self.directions[repetition % 2]
        return self.call("penalised", w, v, *self.rows_in_order(repetition))

    def start(self, repetition: int) -> Vector:
        """A copy of the point, because epochs are compiled to reuse the memory of their first argument."""
        return [jnp.copy(part) for part in self.points[repetition % 2]]

    def rows_in_order(self, repetition: int) -> tuple[Array, Array, np.ndarray]:
        """The rows of an epoch, and the indices (steps, batch) of those in each batch."""
        x, y = self.keep("epoch arrays", lambda: self.put(self.epoch_data().x, self.epoch_data().y))
        return x, y, self.order(repetition).astype(np.int32).reshape(self.steps, self.batch)
