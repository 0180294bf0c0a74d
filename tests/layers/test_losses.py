"""Every loss with every option agrees with the oracle at every order, for vectors and for images of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rop
import rop.layers
from rop.check.reference import gradient, loss_value
from tests.helpers.cases import LOSS_CASES, LossCase
from tests.helpers.checker import check
from tests.helpers.strategies import batch_sizes, seeds
from tests.helpers.zoo import Shape, labels, normal

PRECISIONS = [np.float64, np.float32]


def network(shape: Shape, last: list[Any]) -> tuple[Any, Shape]:
    """A two-layer network whose outputs have the given shape, and the shape of its input."""
    if len(shape) == 1:
        return rop.Sequential(rop.Linear(5, 6), rop.Tanh(), rop.Linear(6, shape[0]), *last), (5,)
    convolutions = rop.Conv2d(2, 3, 3, padding=1), rop.Tanh(), rop.Conv2d(3, shape[0], 1)
    return rop.Sequential(*convolutions, *last), (2, *shape[1:])


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
@given(data=st.data(), batch=batch_sizes(), seed=seeds)
def test_loss_agrees_with_the_oracle(case: LossCase, dtype: Any, data: st.DataObject, batch: int, seed: int) -> None:
    arguments, shape, target = data.draw(case.drawn)
    loss = rop.layers.LOSSES[case.name](**arguments)
    net, input_shape = network(shape, [rop.LogSoftmax(1)] if case.name == "NLL" else [])
    check(net, loss, normal(seed, (batch, *input_shape)), target(seed, batch), dtype, seed=seed)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
@given(data=st.data(), batch=batch_sizes(), seed=seeds)
def test_loss_straight_after_a_nonlinear_layer(
    case: LossCase, dtype: Any, data: st.DataObject, batch: int, seed: int
) -> None:
    """Also without a linear layer before it, and (NLL) on numbers that are not log-probabilities."""
    arguments, shape, target = data.draw(case.drawn)
    loss = rop.layers.LOSSES[case.name](**arguments)
    net, input_shape = network(shape, [rop.Tanh()])
    check(net, loss, normal(seed, (batch, *input_shape)), target(seed, batch), dtype, seed=seed)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("name", ["CrossEntropy", "NLL"])
def test_labels_of_any_integer_type_mean_the_same(name: str, kind: Any) -> None:
    net, shape = network((4,), [])
    x, y, w = normal(0, (7, *shape)), labels(0, (7,), 4), net.init(seed=0)
    loss = getattr(rop, name)()
    expected = rop.Objective(net, loss, x, y).at(w)
    actual = rop.Objective(net, loss, x, y.astype(kind)).at(w)
    assert actual.loss == expected.loss
    np.testing.assert_array_equal(actual.grad, expected.grad)


def test_indices_and_their_one_hot_probabilities_mean_the_same() -> None:
    net, shape = network((4,), [])
    x, y, w = normal(0, (9, *shape)), labels(0, (9,), 4), net.init(seed=0, dtype=np.float64)
    indices = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).jet(w, w)
    onehot = rop.Objective(net, rop.CrossEntropy(), x, np.eye(4)[y], dtype=np.float64).jet(w, w)
    for name in indices._fields:
        np.testing.assert_allclose(getattr(indices, name), getattr(onehot, name), rtol=1e-12, atol=1e-14)


IN_PIECES = [
    rop.L1(),
    rop.SmoothL1(),
    rop.SmoothL1(beta=0.5),
    rop.SmoothL1(beta=0.0),
    rop.Huber(),
    rop.Huber(delta=2.0),
]


@pytest.mark.parametrize("loss", IN_PIECES, ids=repr)
def test_losses_made_of_pieces_have_the_derivatives_of_torch_at_their_seams(loss: Any) -> None:
    target = torch.tensor(0.25, dtype=torch.float64)
    for seam in (*loss.seams, 0.0):
        for number in (seam - 0.1, np.nextafter(seam, -9), seam, seam + 0.1):
            z = torch.tensor(0.25 + number, dtype=torch.float64, requires_grad=True)
            y = loss_value(loss, z, target)
            for k, found in enumerate(loss.function(z.item(), 0.25, *loss.parameters)):
                y = gradient(y, z) if k else y
                assert found == pytest.approx(y.item(), rel=1e-12, abs=1e-15), f"derivative {k} at {number}"
    assert np.isnan(loss.function(float("nan"), 0.25, *loss.parameters)[:2]).all()


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("scale", [30.0, 300.0, 3000.0])
@pytest.mark.parametrize(
    "loss",
    [
        rop.CrossEntropy(),
        rop.CrossEntropy(label_smoothing=0.1),
        rop.BCEWithLogits(),
        rop.BCEWithLogits(pos_weight=[0.3, 2.7, 9.1]),
        rop.Huber(),
        rop.SmoothL1(beta=0.0),
    ],
    ids=repr,
)
def test_large_outputs_do_not_overflow(loss: Any, scale: float, dtype: Any) -> None:
    net = rop.Sequential(rop.Linear(4, 3))
    x = scale * normal(3, (6, 4))
    y = labels(3, (6,), 3) if isinstance(loss, rop.CrossEntropy) else labels(3, (6, 3), 2).astype(np.float64)
    check(net, loss, x, y, dtype, seed=3)


def test_mean_is_taken_over_weights_and_ignored_labels_as_in_torch() -> None:
    """weights (1, 3), labels 0, 1, 1, ignored: the mean divides by 1 + 3 + 3."""
    net = rop.Sequential(rop.Linear(1, 2))
    x, y = np.zeros((4, 1)), np.array([0, 1, 1, -100])
    f = rop.Objective(net, rop.CrossEntropy(weight=np.array([1.0, 3.0])), x, y, dtype=np.float64)
    logits = np.array([0.3, -0.2])
    losses = np.log(np.exp(logits).sum()) - logits
    expected = (1 * losses[0] + 3 * losses[1] + 3 * losses[1]) / 7
    assert f.at(np.array([0.0, 0.0, *logits])).loss == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_batch_without_any_known_target_has_loss_and_derivatives_of_zero(reduction: str, dtype: Any) -> None:
    net, shape = network((3,), [])
    f = rop.Objective(net, rop.BCEWithLogits(reduction), normal(0, (4, *shape)), np.full((4, 3), np.nan), dtype=dtype)
    found = f.jet(net.init(seed=0, dtype=dtype), np.ones(net.size, dtype))
    assert found.loss == 0 and not (found.grad.any() or found.hvp.any() or found.r2.any())
    assert f.loss.value(np.ones((4, 3)), np.full((4, 3), np.nan)) == 0


def test_rows_whose_targets_are_unknown_count_no_more_than_rows_that_are_left_out() -> None:
    net, shape = network((3,), [])
    x, t = normal(0, (6, *shape)), labels(1, (6, 3), 2).astype(float)
    t[[1, 4]] = np.nan
    kept, loss, w = [0, 2, 3, 5], rop.BCEWithLogits(pos_weight=[2.0, 1.0, 0.5]), net.init(seed=0, dtype=np.float64)
    whole, part = (rop.Objective(net, loss, x[i], t[i], dtype=np.float64).jet(w, w) for i in (slice(None), kept))
    for name in whole._fields:
        np.testing.assert_allclose(getattr(whole, name), getattr(part, name), rtol=1e-12, atol=1e-14)
