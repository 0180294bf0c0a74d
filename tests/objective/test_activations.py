"""Point.activations and Point.outputs: what layers read and get back, in the user's axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rop
from rop.check import reference
from tests.helpers.zoo import drawn_state, point, settings

ZOO = settings()


def gradient_from(p: Any) -> np.ndarray:
    """The part of ∇f that belongs to Linear and Conv2d layers, from their inputs and output gradients by torch."""
    net, total = p.objective.net, np.zeros(p.w.size)
    for use in p.activations():
        x, g, layer = torch.tensor(use.inputs), torch.tensor(use.gradients), use.layer
        if isinstance(layer, rop.Linear):
            parts = {"weight": g.T @ x, "bias": g.sum(0)}
        else:
            shape = layer.parameter_shapes()["weight"]
            options = layer.stride, layer.padding, layer.dilation, layer.groups
            parts = {"weight": torch.nn.grad.conv2d_weight(x, shape, g, *options), "bias": g.sum((0, 2, 3))}
        for key in layer.parameter_shapes():
            start = net.offset(layer, key)
            total[start : start + parts[key].numel()] += parts[key].numpy().ravel()
    return total


@pytest.mark.parametrize("limit", [None, 1], ids=["resident", "computed again"])
@pytest.mark.parametrize("batch", [3, 150])
@pytest.mark.parametrize("name", ZOO)
def test_gradients_follow_from_inputs_and_output_gradients(name: str, batch: int, limit: int | None) -> None:
    f = ZOO[name].objective(batch, training=False, state=drawn_state(ZOO[name].net, 1), memory_limit=limit)
    p = f.at(point(f.net, 1))
    got, expected = gradient_from(p), p.grad
    layers = [node.layer for node in f.net.nodes if isinstance(node.layer, (rop.Linear, rop.Conv2d))]
    for layer in layers:
        for key, shape in layer.parameter_shapes().items():
            part = slice(f.net.offset(layer, key), f.net.offset(layer, key) + int(np.prod(shape)))
            np.testing.assert_allclose(got[part], expected[part], rtol=1e-10, atol=1e-13)
    assert layers


@pytest.mark.parametrize("limit", [None, 1], ids=["resident", "computed again"])
@pytest.mark.parametrize("name", ZOO)
def test_outputs_are_those_of_the_oracle(name: str, limit: int | None) -> None:
    setting = ZOO[name]
    training = limit is None
    state = None if training else drawn_state(setting.net, 1)
    p = setting.objective(150, training=training, state=state, memory_limit=limit).at(point(setting.net, 1))
    expected = reference.predict(setting.net, p.w, setting.data(150)[0], training=training, state=state)
    np.testing.assert_allclose(p.outputs(), expected, rtol=1e-10, atol=1e-12)


def test_grouped_strided_convolutions_with_borders() -> None:
    net = rop.Sequential(
        rop.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
        rop.ReLU(),
        rop.Conv2d(6, 6, 3, padding=1, groups=3, bias=False),
        rop.ReLU(),
        rop.Flatten(),
        rop.Linear(6 * 4 * 5, 2),
    )
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4, 8, 7)), rng.standard_normal((9, 2))
    p = rop.Objective(net, rop.MSE(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
    np.testing.assert_allclose(gradient_from(p), p.grad, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(next(p.activations()).inputs, x)


def test_reading_is_refused_once_another_question_has_overwritten_the_planes() -> None:
    f = ZOO["usps"].objective(5)
    p = f.at(point(f.net, 1))
    with pytest.raises(rop.RopError, match=r"list\(point\.activations\(\)\)"):
        for use in p.activations():
            f.at(use.layer and point(f.net, 2))
    assert len(list(p.activations())) == 5, "the point can be read again"
