"""What JAX compiles: gradients, jets, products with the Hessian, steps and epochs, as functions of a loss.

The loss is called with (parameters, x, y). Points w and directions v are lists of arrays in the shapes of the
parameters, x and y a batch, or the rows of an epoch beside an `order` (steps, batch) of their indices.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import Step

Vector = list[Array]
Loss = Callable[[Vector, Array, Array], Array]
Jet = tuple[Array, Vector, Vector, Vector]  # loss, ∇f, H v, vᵀ∇H v
JetFunction = Callable[[Vector, Vector, Array, Array], Jet]
StepResult = tuple[Array, Array, Vector, Vector]  # loss, λ, w′, v


def forward_jet(loss: Loss, w: Vector, v: Vector, x: Array, y: Array) -> Jet:
    """jvp of jvp of grad."""
    value_and_grad = jax.value_and_grad(loss)

    def along(w: Vector) -> tuple[Vector, tuple[Array, Vector]]:
        (value, g), (_, hvp) = jax.jvp(lambda w: value_and_grad(w, x, y), (w,), (v,))
        return hvp, (value, g)

    (hvp, (value, g)), (r2, _) = jax.jvp(along, (w,), (v,))
    return value, g, hvp, r2


def reverse_jet(loss: Loss, w: Vector, v: Vector, x: Array, y: Array) -> Jet:
    """grad of jvp of jvp: f, ⟨∇f,v⟩ and vᵀHv forward, then each of them backward."""

    def slope(w: Vector) -> tuple[Array, Array]:
        return jax.jvp(lambda w: loss(w, x, y), (w,), (v,))

    def all_three(w: Vector) -> tuple[Array, Array, Array]:
        (f, df), (_, ddf) = jax.jvp(slope, (w,), (v,))
        return f, df, ddf

    (f, _, _), back = jax.vjp(all_three, w)
    one, zero = jnp.ones_like(f), jnp.zeros_like(f)
    (g,), (hvp,), (r2,) = back((one, zero, zero)), back((zero, one, zero)), back((zero, zero, one))
    return f, g, hvp, r2


def product(loss: Loss, w: Vector, v: Vector, x: Array, y: Array) -> Vector:
    """H v, with a base pass of its own."""
    return jax.jvp(lambda w: jax.grad(loss)(w, x, y), (w,), (v,))[1]


def block_product(loss: Loss, w: Vector, block: Vector, x: Array, y: Array) -> Vector:
    """H v for a block of directions, with one base pass for all of them."""
    return jax.vmap(lambda v: product(loss, w, v, x, y))(block)


def linearized(loss: Loss, w: Vector, x: Array, y: Array) -> Callable[[Vector], Vector]:
    """v ↦ H v, with the results of the base pass that it needs."""
    return jax.linearize(lambda w: jax.grad(loss)(w, x, y), w)[1]


def finish(w: Vector, v: Vector, jet: Jet) -> StepResult:
    """The end of a step: its last product came with r, loss and gradient."""
    value, g, u, r = jet
    eigenvalue = dot(u, v)
    factor = Step.MU * jnp.sign(eigenvalue) * (jnp.abs(eigenvalue) > Step.K)
    moved = [a - Step.RATE * (b + factor * c) for a, b, c in zip(w, g, r, strict=True)]
    return value, eigenvalue, moved, v


def step(loss: Loss, jet: JetFunction, w: Vector, v: Vector, x: Array, y: Array) -> StepResult:
    """A step that ends with this kind of jet."""
    return step_and_product(loss, jet, w, v, x, y)[0]


def step_and_product(
    loss: Loss, jet: JetFunction, w: Vector, v: Vector, x: Array, y: Array
) -> tuple[StepResult, Vector]:
    """A step, and its last u = H v."""
    push = linearized(loss, w, x, y)
    v = lax.fori_loop(0, Step.ITERATIONS - 1, lambda _, v: unit(push(v)), v)
    last = jet(w, v, x, y)
    return finish(w, v, last), last[2]


def sgd(loss: Loss, w: Vector, x: Array, y: Array) -> tuple[Vector, Array]:
    """A step of plain SGD: the next w, and the loss before it."""
    value, g = jax.value_and_grad(loss)(w, x, y)
    return [a - Step.RATE * b for a, b in zip(w, g, strict=True)], value


def epoch_put_in_order(loss: Loss, w: Vector, x: Array, y: Array, order: Array) -> tuple[Array, Vector]:
    """An epoch of SGD that gathers all rows in their order once, before the first step."""
    w, values = lax.scan(lambda w, batch: sgd(loss, w, *batch), w, (x[order], y[order]))
    return values.mean(), w


def epoch_by_index(loss: Loss, w: Vector, x: Array, y: Array, order: Array) -> tuple[Array, Vector]:
    """An epoch of SGD that gathers the rows of a batch when its step begins."""
    w, values = lax.scan(lambda w, rows: sgd(loss, w, x[rows], y[rows]), w, order)
    return values.mean(), w


def penalised_epoch(
    loss: Loss, jet: JetFunction, w: Vector, v: Vector, x: Array, y: Array, order: Array
) -> tuple[Array, Vector]:
    """Steps over the rows, each from the last u/‖u‖ of the one before."""

    def next_step(carried: tuple[Vector, Vector], rows: Array) -> tuple[tuple[Vector, Vector], Array]:
        w, v = carried
        (value, _, w, _), u = step_and_product(loss, jet, w, v, x[rows], y[rows])
        return (w, unit(u)), value

    (w, _), values = lax.scan(next_step, (w, v), order)
    return values.mean(), w


def dot(a: Vector, b: Vector) -> Array:
    return sum(jnp.vdot(x, y) for x, y in zip(a, b, strict=True))


def unit(u: Vector) -> Vector:
    scale = 1 / jnp.sqrt(dot(u, u))
    return [part * scale for part in u]
