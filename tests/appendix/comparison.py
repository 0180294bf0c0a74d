"""Every equation by itself: its right-hand side is fed with autograd's numbers, the result compared with autograd's.

So a mistake shows in the equation that has it and in no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.appendix import equations
from tests.appendix.autograd import Jet, Net, jets

Equation = Callable[..., np.ndarray]
ORDERS = {"": 0, "R_": 1, "R2_": 2}
QUANTITIES = ("x", "y", "dE_dy", "dE_dx", "dE_dw", "dE_db")
INPUTS = ("tanh", "separable_seeds", "coupled_seeds")

PRINTED: dict[str, Equation] = {
    name: function
    for name, function in vars(equations).items()
    if inspect.isfunction(function)
    and function.__module__ == equations.__name__
    and not name.endswith("_corrected")
    and name not in INPUTS
}
CORRECTED: dict[str, Equation] = {
    name: getattr(equations, f"{name}_corrected")
    for name in [*PRINTED, "dE_db"]
    if hasattr(equations, f"{name}_corrected")
}


def quantity_and_order(name: str) -> tuple[str, int]:
    """R2_dE_dy is dE_dy at order 2."""
    prefix = next(prefix for prefix in ("R2_", "R_", "") if name.startswith(prefix))
    return name.removeprefix(prefix), ORDERS[prefix]


def named(quantity: str, values: Jet) -> dict[str, np.ndarray]:
    """A jet under the names that the equations use: y, R_y, R2_y."""
    return {prefix + quantity: values[order] for prefix, order in ORDERS.items()}


def zeros_like(values: Jet) -> Jet:
    """A jet of zeros."""
    return np.zeros_like(values[0]), np.zeros_like(values[0]), np.zeros_like(values[0])


def seeds(net: Net, y: np.ndarray, full: bool) -> dict[str, np.ndarray]:
    """e, e1, e2 of the last layer: all derivatives if `full`, else only those of e_k by its own y_k."""
    if net.separable:
        e, e1, e2 = equations.separable_seeds(y, net.target)
        if full:
            e1, e2 = np.diag(e1), np.einsum("k,kl,km->klm", e2, np.eye(len(y)), np.eye(len(y)))
        return {"e": e, "e1": e1, "e2": e2}
    e, e1, e2 = equations.coupled_seeds(y, net.target)
    return {"e": e, "e1": e1, "e2": e2} if full else {"e": e, "e1": np.diag(e1), "e2": np.einsum("kkk->k", e2)}


class Comparison:
    """A net, and autograd's opinion of it."""

    def __init__(self, net: Net) -> None:
        self.net, self.truth, self.last = net, jets(net), len(net.weights) - 1

    def arguments(self, quantity: str, layer: int, full: bool) -> dict[str, Any]:
        """What may stand on the right-hand side of an equation for this quantity of this layer."""
        net, truth = self.net, self.truth
        unit = {
            **named("x", truth["x"][layer]),
            **named("dE_dy", truth["dE_dy"][layer + 1]),
            "s": equations.tanh(truth["x"][layer][0]),
            "I": net.biases[layer] if net.bias == "outside" else np.zeros_like(net.biases[layer]),
        }
        if quantity in ("y", "dE_dx"):
            return unit
        if quantity == "dE_dy":
            return {**named("y", truth["y"][layer + 1]), **self.behind(layer, full)}
        inside = float(net.bias == "inside")
        return {
            **named("y", truth["y"][layer]),
            **named("dE_dx", truth["dE_dx"][layer]),
            "w": net.weights[layer],
            "v": net.v[layer],
            "b": inside * net.biases[layer],
            "c": inside * net.c[layer],
        }

    def behind(self, layer: int, full: bool) -> dict[str, Any]:
        """What a layer's outputs meet: the layer behind, or the loss."""
        net, output = self.net, self.truth["y"][layer + 1]
        if layer == self.last:
            none = np.zeros((output[0].size, output[0].size))
            return {**named("dE_dx", zeros_like(output)), "w": none, "v": none, **seeds(net, output[0], full)}
        size = output[0].size
        nothing = {f"e{order or ''}": np.zeros((size,) * (order + 1 if full else 1)) for order in range(3)}
        return {
            **named("dE_dx", self.truth["dE_dx"][layer + 1]),
            "w": net.weights[layer + 1],
            "v": net.v[layer + 1],
            **nothing,
        }

    def error(self, name: str, layer: int, corrected: bool = False, **other: Any) -> float:
        """‖left − autograd's‖ / ‖autograd's‖ of an equation; `other` replaces arguments by name."""
        function = (CORRECTED if corrected and name in CORRECTED else PRINTED)[name]
        quantity, order = quantity_and_order(name)
        available = {**self.arguments(quantity, layer, full=corrected), **other}
        found = function(**{argument: available[argument] for argument in inspect.signature(function).parameters})
        shift = quantity in ("y", "dE_dy")  # the outputs of layer l are y[l + 1]
        expected = self.truth[quantity][layer + shift][order]
        if found.shape != expected.shape:
            return float("inf")
        return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
