"""Test stands read the quantities of a layer or loss at every order, as NumPy computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rop
from rop.check import subjects
from rop.check.examine import Examination
from rop.check.stand import FORWARD, TO_INPUT, TO_WEIGHTS, LayerStand, LossStand, fitting_shapes


def jets(stand: LayerStand) -> tuple[Any, Any]:
    """x⁰, x¹, x² and g⁰, g¹, g² of a stand with one vector input, (features, samples), from its parameters."""
    w, v = stand.net.params(stand.w), stand.net.params(stand.v)
    names = [name for name in w if w[name].ndim == 2]
    (W, A), (C, D) = names[:2], names[-2:]
    x = w[A] @ w[W], v[A] @ w[W] + w[A] @ v[W], 2 * v[A] @ v[W]
    g = -(w[D] @ w[C]).T, -(v[D] @ w[C] + w[D] @ v[C]).T, -2 * (v[D] @ v[C]).T
    return x, g


def answers(stand: Any) -> Any:
    return Examination(stand, np.float64, torch=False)._ours


def test_an_activation_is_read_at_every_order() -> None:
    """The rules of rop/layers/elementwise.py in plain NumPy, on the jets that the stand is meant to send in."""
    stand = LayerStand(rop.Tanh(), ((6,),))
    (x0, x1, x2), (g0, g1, g2) = jets(stand)
    t = np.tanh(x0)
    d1 = 1 - t**2
    d2, d3 = -2 * t * d1, (6 * t**2 - 2) * d1
    y = t, d1 * x1, d2 * x1**2 + d1 * x2
    h = d1 * g0, d2 * x1 * g0 + d1 * g1, (d3 * x1**2 + d2 * x2) * g0 + 2 * d2 * x1 * g1 + d1 * g2
    for k in range(3):
        np.testing.assert_allclose(np.transpose(stand.read(FORWARD, answers(stand))[k]), y[k], atol=1e-13)
        np.testing.assert_allclose(stand.read(TO_INPUT, answers(stand))[k], h[k].ravel(), atol=1e-13)
        assert np.abs(y[k]).max() > 0.01 and np.abs(h[k]).max() > 0.01, "an order that vanishes shows nothing"


def test_weights_are_read_at_every_order() -> None:
    layer = rop.Linear(6, 4)
    stand = LayerStand(layer, ((6,),))
    (x0, x1, x2), (g0, g1, g2) = jets(stand)
    weight = g0 @ x0.T, g1 @ x0.T + g0 @ x1.T, g2 @ x0.T + 2 * g1 @ x1.T + g0 @ x2.T
    bias = g0.sum(1), g1.sum(1), g2.sum(1)
    for k in range(3):
        expected = np.concatenate([weight[k].ravel(), bias[k]])
        np.testing.assert_allclose(stand.read(TO_WEIGHTS, answers(stand))[k], expected, atol=1e-13)


def test_a_loss_is_read_at_every_order() -> None:
    stand = LossStand(rop.MSE(reduction="sum"), (3,), np.zeros((17, 3)))
    w, v = stand.net.params(stand.w), stand.net.params(stand.v)
    W, A = list(w)
    z = w[A] @ w[W], v[A] @ w[W] + w[A] @ v[W], 2 * v[A] @ v[W]
    found = answers(stand)
    energies = (z[0] ** 2).sum(), 2 * (z[0] * z[1]).sum(), 2 * (z[1] ** 2 + z[0] * z[2]).sum()
    np.testing.assert_allclose(np.array(stand.read(FORWARD, found)), energies, rtol=1e-13)
    for k in range(3):
        np.testing.assert_allclose(stand.read(TO_INPUT, found)[k], 2 * z[k].ravel(), atol=1e-13)


def test_inputs_of_layers_with_kinks_are_clear_of_them() -> None:
    for name in ("ReLU", "LeakyReLU", "MaxPool2d"):
        stand: Any
        for stand in subjects.stands(name):
            for layer, shape in zip(stand._W, stand._shapes, strict=True):
                (part,) = stand.slices(layer)
                values = stand.w[part].reshape(shape[0], stand.samples, -1)
                assert np.abs(values).min() >= 0.25
                sorted_values = np.sort(values, axis=2)
                assert values.shape[2] == 1 or np.diff(sorted_values, axis=2).min() >= 0.5


@pytest.mark.parametrize(
    ("layer", "rank"),
    [
        (rop.Conv2d(3, 2, 5), 3),
        (rop.Linear(7, 2), 1),
        (rop.MaxPool2d(8), 3),
        (rop.BatchNorm1d(3), 1),
        (rop.BatchNorm2d(3), 3),
        (rop.Add(), 1),
        (rop.Flatten(), 1),
    ],
)
def test_a_shape_is_found_for_every_layer(layer: Any, rank: int) -> None:
    shapes = fitting_shapes(layer)
    assert len(shapes[0]) == rank and layer.output_shape("", *shapes)
