"""Whole networks, drawn and named, agree with the oracle at every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rop
from tests.helpers.checker import check
from tests.helpers.rectified import BEFORE, DATA, USES, around
from tests.helpers.strategies import Problem, batch_sizes, cnns, dags, mlps, rectified_nets, seeds
from tests.helpers.zoo import dense, direction, drawn_state, forest, labels, normal, point, residual, usps, wide

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
def test_networks_with_batchnorm(problem: Problem, data: st.DataObject, training: bool, seed: int, dtype: Any) -> None:
    """Batchnorm after every linear or convolution layer, in both modes."""
    check_problem(problem, data.draw(batch_sizes(problem.least_batch)), seed, dtype, training)


@both_precisions
@given(problem=rectified_nets(), data=st.data(), training=st.booleans(), seed=seeds)
def test_networks_around_a_relu(problem: Problem, data: st.DataObject, training: bool, seed: int, dtype: Any) -> None:
    """A ReLU between any two operations, with one or several uses, in both modes of batchnorm."""
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
@pytest.mark.parametrize("training", [True, False])
def test_batchnorm_used_twice(training: bool, dtype: Any) -> None:
    """Tied batchnorm: one γ and β, the statistics of each use its own."""
    norm = rop.BatchNorm1d(4)
    net = rop.Sequential(rop.Linear(3, 4), norm, rop.Tanh(), rop.Linear(4, 4), norm, rop.SiLU(), rop.Linear(4, 3))
    x, y = normal(0, (24, 3)), labels(0, (24,), 3)
    check(net, rop.CrossEntropy(), x, y, dtype, training=training, state=drawn_state(net, 0))


@both_precisions
@pytest.mark.parametrize("batch", [21, 150])
@pytest.mark.parametrize("training", [True, False])
def test_wide_layers_between_batchnorms(training: bool, batch: int, dtype: Any) -> None:
    net = rop.Sequential(
        rop.Linear(70, 80), rop.BatchNorm1d(80), rop.ReLU(), rop.Linear(80, 60), rop.BatchNorm1d(60), rop.Linear(60, 3)
    )
    x, y = normal(0, (batch, 70)), labels(0, (batch,), 3)
    check(net, rop.CrossEntropy(), x, y, dtype, training=training, state=drawn_state(net, 0))


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


# ---------------------------------------------------------------------------------------------------------------
# neighbours: the engine joins layers (ReLU with the product, batchnorm or sum before it, or the pooling after it) and
# sees a flattened image and the image as the same rows; another use of a value in between must notice nothing
# ---------------------------------------------------------------------------------------------------------------

Nodes = Callable[[Any], Any]


def relu_behind(view: Any) -> Nodes:
    """A product, a layer that does nothing, a ReLU; and the product's own value is used as well."""

    def nodes(image: Any) -> Any:
        values = rop.Flatten()(rop.Conv2d(2, 3, 3, padding=1)(image))
        return rop.Add()(rop.ReLU()(view(values)), values)

    return nodes


def flattened_twice(image: Any) -> Any:
    """Two views of one image: one goes through ReLU, the other through tanh."""
    values = rop.Conv2d(2, 3, 3, padding=1)(image)
    return rop.Concat()(rop.ReLU()(rop.Flatten()(values)), rop.Tanh()(rop.Flatten()(values)))


def flattened_and_not(image: Any) -> Any:
    """A rectified image goes on as an image and as a vector."""
    values = rop.ReLU()(rop.Conv2d(2, 3, 3, padding=1)(image))
    again = rop.Conv2d(3, 3, 1)(values)
    return rop.Add()(rop.Linear(36, 5)(rop.Flatten()(values)), rop.Linear(36, 5)(rop.Flatten()(again)))


def pooled_and_not(image: Any) -> Any:
    """ReLU before a max pooling, with another use of the values before the ReLU, and of those after it."""
    values = rop.Conv2d(2, 3, 3, padding=1)(image)
    rectified = rop.ReLU()(rop.Identity()(values))
    parts = rop.MaxPool2d(2)(rop.ReLU()(values)), rop.AvgPool2d(2)(values), rop.MaxPool2d(2)(rectified)
    return rop.Flatten()(rop.Concat()(*parts, rop.AvgPool2d(2)(rectified)))


def flattened_beside_a_vector(image: Any) -> Any:
    """A flattened image plus a vector: rows of different origin must meet in the same order."""
    flat = rop.Flatten()(rop.Conv2d(2, 3, 3, padding=1)(image))
    return rop.Concat()(rop.Add()(flat, rop.Linear(24, 36)(rop.Flatten()(image))), rop.Flatten()(image))


def softmax_of_a_flattened_image(image: Any) -> Any:
    """Softmax over pixels and channels together, between an image and a wide layer."""
    flat = rop.Flatten()(rop.Softmax(1)(rop.Conv2d(2, 4, 3, padding=1)(image)))
    return rop.BatchNorm1d(90)(rop.Linear(48, 90)(rop.Softmax(1)(flat)))


def rectified_twice(image: Any) -> Any:
    """ReLU of ReLU, ReLU of leaky ReLU, one ReLU object in several places."""
    relu, conv = rop.ReLU(), rop.Conv2d(2, 2, 3, padding=1)
    return rop.Flatten()(relu(rop.LeakyReLU(0.2)(conv(relu(relu(conv(rop.MaxPool2d(1)(relu(conv(image))))))))))


NEIGHBOURS: dict[str, Nodes] = {
    "identity before relu": relu_behind(rop.Identity()),
    "flatten before relu": relu_behind(rop.Flatten()),
    "flattened twice": flattened_twice,
    "flattened and not": flattened_and_not,
    "pooled and not": pooled_and_not,
    "flattened beside a vector": flattened_beside_a_vector,
    "softmax of a flattened image": softmax_of_a_flattened_image,
    "rectified twice": rectified_twice,
}


@both_precisions
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_joined_layers_leave_other_uses_alone(name: str, dtype: Any) -> None:
    x = rop.Input()
    values = NEIGHBOURS[name](x)
    features = rop.Graph(x, values).shapes((2, 3, 4))[values][0]
    net = rop.Graph(x, rop.Linear(features, 3)(values))
    check(net, rop.CrossEntropy(), normal(0, (21, 2, 3, 4)), labels(0, (21,), 3), dtype)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("uses", [*((use,) for use in USES), ("product", "sum"), ("sum", "average")], ids=" and ".join)
@pytest.mark.parametrize("before", BEFORE)
def test_a_relu_between_any_two_operations(before: str, uses: tuple[str, ...], seen: bool, training: bool) -> None:
    """In one pass of all orders, and order by order, where later passes read the masked gradients of earlier ones."""
    net = around(rop.ReLU(), before, uses, seen, 3)
    x, y = normal(0, (21, DATA, 4, 3)), normal(1, (21, 3 * (len(uses) + seen), 4, 3))
    state = drawn_state(net, 0)
    expected = check(net, rop.MSE(), x, y, training=training, state=state)
    v = direction(net, 0)
    p = rop.Objective(net, rop.MSE(), x, y, dtype=np.float64, training=training, state=state).at(point(net, 0))
    for sign in (1, -1, 1):
        np.testing.assert_allclose(p.hvp(sign * v), sign * expected.hvp, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(p.r2(v), expected.r2, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(p.grad, expected.grad, rtol=1e-8, atol=1e-9)
