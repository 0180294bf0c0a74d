"""Whole networks, drawn and named, agree with the oracle at every order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rop
from tests.checker import check
from tests.strategies import Problem, batch_sizes, cnns, dags, mlps, seeds
from tests.zoo import dense, drawn_state, forest, labels, normal, residual, usps, wide

both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)


def check_problem(problem: Problem, batch: int, seed: int, dtype: Any, training: bool = True) -> None:
    """A drawn network as a classifier, against the oracle."""
    x, y = normal(seed, (batch, *problem.shape)), labels(seed, (batch,), problem.classes)
    state = drawn_state(problem.net, seed)
    check(problem.net, rop.CrossEntropy(), x, y, dtype, training=training, state=state, seed=seed)


# ---------------------------------------------------------------------------------------------------------------
# drawn networks
# ---------------------------------------------------------------------------------------------------------------


@both_precisions
@given(problem=mlps(), batch=batch_sizes(), seed=seeds)
def test_perceptrons(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=cnns(), batch=batch_sizes(), seed=seeds)
def test_convolutional_networks(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=dags(images=False), batch=batch_sizes(), seed=seeds)
def test_graphs_on_vectors(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    """Residual, concatenated, tied and shared values in any combination."""
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=dags(images=True), batch=batch_sizes(), seed=seeds)
def test_graphs_on_images(problem: Problem, batch: int, seed: int, dtype: Any) -> None:
    check_problem(problem, batch, seed, dtype)


@both_precisions
@given(problem=mlps(batchnorm=True) | cnns(batchnorm=True), data=st.data(), training=st.booleans(), seed=seeds)
def test_networks_with_batchnorm(
    problem: Problem, data: st.DataObject, training: bool, seed: int, dtype: Any
) -> None:
    """Batchnorm after every linear or convolution layer, in both modes."""
    check_problem(problem, data.draw(batch_sizes(problem.least_batch)), seed, dtype, training)


# ---------------------------------------------------------------------------------------------------------------
# the networks of the paper, and shapes of graphs that deserve a name
# ---------------------------------------------------------------------------------------------------------------


@both_precisions
@pytest.mark.parametrize("batch", [1, 16, 100, 128])
def test_forest_network_with_softmax_and_cross_entropy(batch: int, dtype: Any) -> None:
    net = forest()
    assert net.init().shape == (54 * 20 + 20 + 20 * 20 + 20 + 20 * 7 + 7,)
    check(net, rop.CrossEntropy(), normal(0, (batch, 54)), labels(0, (batch,), 7), dtype)


@both_precisions
@pytest.mark.parametrize("activation", [rop.ReLU, rop.Tanh])
def test_usps_network(activation: Any, dtype: Any) -> None:
    check(usps(activation), rop.CrossEntropy(), normal(0, (20, 1, 16, 16)), labels(0, (20,), 10), dtype)


@both_precisions
@pytest.mark.parametrize("batch", [1, 33, 130])
def test_wide_network(batch: int, dtype: Any) -> None:
    check(wide(), rop.CrossEntropy(), normal(0, (batch, 131)), labels(0, (batch,), 10), dtype)


@both_precisions
@pytest.mark.parametrize("loss", [rop.CrossEntropy(), rop.NLL(), rop.MSE()], ids=repr)
@pytest.mark.parametrize("last", [rop.Softmax(1), rop.LogSoftmax(1)], ids=repr)
def test_softmax_layers_before_every_loss(last: Any, loss: Any, dtype: Any) -> None:
    net = rop.Sequential(rop.Linear(6, 5), rop.Tanh(), rop.Linear(5, 4), last)
    y = normal(1, (19, 4)) if isinstance(loss, rop.MSE) else labels(1, (19,), 4)
    check(net, loss, normal(0, (19, 6)), y, dtype)


@both_precisions
@given(softmax=st.booleans(), batch=batch_sizes(), seed=seeds)
def test_softmax_in_the_middle(softmax: bool, batch: int, seed: int, dtype: Any) -> None:
    """Softmax is a layer like any other: it may stand between two linear layers."""
    layer = rop.Softmax(1) if softmax else rop.LogSoftmax(1)
    net = rop.Sequential(rop.Linear(4, 6), rop.Tanh(), rop.Linear(6, 5), layer, rop.Linear(5, 3))
    check(net, rop.CrossEntropy(), normal(seed, (batch, 4)), labels(seed, (batch,), 3), dtype, seed=seed)


@both_precisions
@pytest.mark.parametrize("batchnorm", [False, True])
def test_residual_network(batchnorm: bool, dtype: Any) -> None:
    net = residual(4, 3, batchnorm)
    check(net, rop.CrossEntropy(), normal(0, (21, 1, 6, 5)), labels(0, (21,), 3), dtype)


@both_precisions
def test_densely_concatenated_network(dtype: Any) -> None:
    check(dense(3), rop.CrossEntropy(), normal(0, (18, 2, 4, 3)), labels(0, (18,), 3), dtype)


def tied_twice(kind: str) -> tuple[Any, tuple[int, ...]]:
    """One layer used on two different inputs, once on its own output."""
    x = rop.Input()
    first: Any
    tied: Any
    shape: tuple[int, ...]
    if kind == "linear":
        first, tied, last, shape = rop.Linear(3, 4), rop.Linear(4, 4), rop.Linear(8, 3), (3,)
    else:
        first, tied, last, shape = rop.Conv2d(1, 2, 3), rop.Conv2d(2, 2, 3, padding=1), rop.Linear(24, 3), (1, 5, 4)
    a = rop.Tanh()(first(x))
    b = rop.Tanh()(tied(a))
    c = rop.Tanh()(tied(rop.Add()(a, b)))
    joined = rop.Concat()(tied(c), b)
    return rop.Graph(x, last(joined if kind == "linear" else rop.Flatten()(joined))), shape


@both_precisions
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_tied_layer_with_different_inputs(kind: str, dtype: Any) -> None:
    net, shape = tied_twice(kind)
    check(net, rop.CrossEntropy(), normal(0, (17, *shape)), labels(0, (17,), 3), dtype)


@both_precisions
def test_tied_layer_that_also_sees_the_data(dtype: Any) -> None:
    """The first use has no tangents on its input, the second has."""
    tied = rop.Linear(4, 4)
    net = rop.Sequential(tied, rop.Tanh(), tied, rop.Sigmoid(), tied)
    check(net, rop.CrossEntropy(), normal(0, (17, 4)), labels(0, (17,), 4), dtype)


@both_precisions
def test_value_with_many_consumers(dtype: Any) -> None:
    x = rop.Input()
    h = rop.Tanh()(rop.Linear(3, 4)(x))
    parts = [layer(h) for layer in (rop.ReLU(), rop.Sigmoid(), rop.Linear(4, 4), rop.Softmax(1), rop.Identity())]
    net = rop.Graph(x, rop.Linear(8, 3)(rop.Concat()(rop.Add()(*parts), h)))
    check(net, rop.CrossEntropy(), normal(0, (16, 3)), labels(0, (16,), 3), dtype)


@both_precisions
def test_the_data_joins_again_later(dtype: Any) -> None:
    """Structural zeros (the data has no tangents) must not leak into a sum or a concatenation."""
    x = rop.Input()
    h = rop.Tanh()(rop.Linear(4, 4)(x))
    net = rop.Graph(x, rop.Linear(8, 3)(rop.Tanh()(rop.Concat()(x, rop.Add()(x, h)))))
    check(net, rop.CrossEntropy(), normal(0, (16, 4)), labels(0, (16,), 3), dtype)


@both_precisions
def test_batchnorm_used_twice(dtype: Any) -> None:
    """Tied batchnorm: one γ and β, the statistics of each use its own."""
    norm = rop.BatchNorm1d(4)
    net = rop.Sequential(rop.Linear(3, 4), norm, rop.Tanh(), rop.Linear(4, 4), norm, rop.SiLU(), rop.Linear(4, 3))
    check(net, rop.CrossEntropy(), normal(0, (24, 3)), labels(0, (24,), 3), dtype)


@both_precisions
def test_sequential_inside_a_sequential_and_a_graph(dtype: Any) -> None:
    block = rop.Sequential(rop.Linear(4, 4), rop.Tanh())
    x = rop.Input()
    net = rop.Sequential(rop.Graph(x, rop.Add()(x, block(x))), block, rop.Linear(4, 3))
    check(net, rop.CrossEntropy(), normal(0, (16, 4)), labels(0, (16,), 3), dtype)


@both_precisions
def test_network_without_parameters_before_a_late_layer(dtype: Any) -> None:
    """Pooling, an activation and batchnorm straight on the data carry no tangents at all."""
    net = rop.Sequential(
        rop.BatchNorm2d(2, affine=False), rop.MaxPool2d(2), rop.Tanh(), rop.Flatten(), rop.Linear(8, 3), rop.Softmax(1)
    )
    check(net, rop.CrossEntropy(), normal(0, (18, 2, 4, 4)), labels(0, (18,), 3), dtype)


@both_precisions
def test_deep_network(dtype: Any) -> None:
    """Forty layers: buffers are many, and the orders still do not mix."""
    layers: list[Any] = []
    for _ in range(20):
        layers += [rop.Linear(6, 6), rop.Tanh()]
    check(rop.Sequential(*layers, rop.Linear(6, 3)), rop.CrossEntropy(), normal(0, (17, 6)), labels(0, (17,), 3), dtype)
