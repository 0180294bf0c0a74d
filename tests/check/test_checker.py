"""The tests' own tools are tested: the oracle against finite differences, the comparison with planted mistakes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import rop
import rop.layers
from rop.check import reference as oracle
from rop.check.reference import differentiate, gradient, hessian, objective, output_shape, reference, tensor
from rop.layers.record import RECORDS
from tests.helpers.cases import CASES, LOSS_CASES, Case, LossCase, made
from tests.helpers.checker import ORDERS, TOLERANCES, check, discrepancies
from tests.helpers.strategies import seeds
from tests.helpers.zoo import direction, drawn_state, labels, normal, point
from tests.layers.test_layers import PLACES, before_the_loss
from tests.layers.test_losses import network

STEP = 1e-5


def central(function: oracle.Function, w: Tensor, v: Tensor, order: int) -> Tensor:
    """Central difference, along v, of the result of the given order (0 loss, 1 gradient, 2 Hv)."""
    ahead, behind = (differentiate(function, w + sign * STEP * v, v)[order] for sign in (1, -1))
    return (ahead - behind) / (2 * STEP)


def assert_consistent(function: oracle.Function, w: Tensor, v: Tensor) -> None:
    """Each order of the oracle is the derivative of the one before it, along v."""
    _, grad, hvp, r2 = differentiate(function, w, v)
    for order, expected in enumerate((grad @ v, hvp, r2)):
        found = central(function, w, v, order)
        error, size = float((found - expected).norm()), float(expected.norm())
        assert error <= 1e-6 * size + 1e-8, f"order {order}: error {error:.1e} in a result of norm {size:.1e}"


# ---------------------------------------------------------------------------------------------------------------
# the oracle
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=8)
@given(data=st.data(), place=st.sampled_from(PLACES), training=st.booleans(), seed=seeds)
def test_oracle_of_every_layer_agrees_with_finite_differences(
    case: Case, data: st.DataObject, place: Any, training: bool, seed: int
) -> None:
    arguments, shapes = data.draw(case.drawn)
    layer = made(case, arguments)
    net, shape = place(layer, shapes)
    x = normal(seed, (data.draw(st.integers(case.least_batch, 8)), *shape))
    y = labels(seed, (len(x),), 3)
    loss: Any = rop.CrossEntropy()
    if place is before_the_loss:
        loss, y = rop.MSE(), normal(seed, (len(x), *output_shape(layer, *shapes)))
    function = objective(net, loss, x, y, training, drawn_state(net, seed))
    assert_consistent(function, tensor(point(net, seed)), tensor(direction(net, seed)))


@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
@settings(max_examples=10)
@given(data=st.data(), batch=st.integers(1, 6), seed=seeds)
def test_oracle_of_every_loss_agrees_with_finite_differences(
    case: LossCase, data: st.DataObject, batch: int, seed: int
) -> None:
    arguments, shape, target = data.draw(case.drawn)
    loss = rop.layers.LOSSES[case.name](**arguments)
    net, input_shape = network(shape, [rop.LogSoftmax(1)] if case.name == "NLL" else [])
    function = objective(net, loss, normal(seed, (batch, *input_shape)), target(seed, batch))
    assert_consistent(function, tensor(point(net, seed)), tensor(direction(net, seed)))


def test_oracle_and_engine_agree_with_a_closed_form() -> None:
    """f(w) = tanh(w)²: with t = tanh w and d = 1 − t², f′ = 2 t d, f″ = 2 d² − 4 t² d, f‴ = 8 t³ d − 16 t d²."""
    net = rop.Sequential(rop.Linear(1, 1, bias=False), rop.Tanh())
    x, y, w, v = np.ones((1, 1)), np.zeros((1, 1)), np.array([0.7]), np.array([1.5])
    t = math.tanh(0.7)
    d = 1 - t * t
    expected = t * t, 2 * t * d, (2 * d * d - 4 * t * t * d) * 1.5, (8 * t**3 * d - 16 * t * d * d) * 1.5**2
    theirs = reference(net, rop.MSE(), x, y, w, v)
    ours = rop.Objective(net, rop.MSE(), x, y, dtype=np.float64).jet(w, v)
    for name, value in zip(ORDERS, expected, strict=True):
        np.testing.assert_allclose(getattr(theirs, name), value, rtol=1e-13)
        np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-13)


def test_parameters_without_influence_have_zero_derivatives() -> None:
    """The loss ignores every sample."""
    net = rop.Sequential(rop.Linear(2, 2))
    x, y = np.ones((3, 2)), np.full(3, -100)
    found = reference(net, rop.CrossEntropy(reduction="sum"), x, y, np.ones(6), np.ones(6))
    assert found.loss == 0 and not found.grad.any() and not found.hvp.any() and not found.r2.any()


def test_dense_hessian_of_least_squares() -> None:
    """For a linear network with MSE the Hessian is 2 XᵀX / batch, whatever w."""
    net = rop.Sequential(rop.Linear(3, 1, bias=False))
    x = normal(0, (6, 3))
    np.testing.assert_allclose(hessian(net, rop.MSE(), x, np.zeros((6, 1)), np.ones(3)), 2 * x.T @ x / 6, rtol=1e-13)


def test_dense_hessian_gives_the_oracles_and_the_engines_products() -> None:
    net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 3))
    x, y, w, v = normal(0, (6, 3)), labels(0, (6,), 3), point(net, 0), direction(net, 0)
    dense = hessian(net, rop.CrossEntropy(), x, y, w)
    np.testing.assert_allclose(dense, dense.T, atol=1e-15)
    np.testing.assert_allclose(dense @ v, reference(net, rop.CrossEntropy(), x, y, w, v).hvp, rtol=1e-12, atol=1e-15)
    block = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(w).hvp(np.eye(len(w)))
    np.testing.assert_allclose(block, dense, rtol=1e-9, atol=1e-14)


# ---------------------------------------------------------------------------------------------------------------
# the comparison: planted mistakes
# ---------------------------------------------------------------------------------------------------------------

FIRST_WRONG = {0: "loss", 1: "grad", 2: "hvp", 3: "r2"}


def planted(order: int, size: float) -> Any:
    """tanh whose derivative of one order is off by `size` and all lower ones right: + size·(x − x̄)ᵏ/k!, x̄ = x."""
    return lambda layer, use, x: torch.tanh(x) + size * (x - x.detach()) ** order / math.factorial(order)


@pytest.mark.parametrize("dtype, size", [(np.float64, 1e-6), (np.float32, 0.05)], ids=["float64", "float32"])
@pytest.mark.parametrize("order", FIRST_WRONG)
def test_a_wrong_derivative_of_an_activation_is_found_at_its_order(
    order: int, dtype: Any, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = rop.Sequential(rop.Linear(4, 5), rop.Tanh(), rop.Linear(5, 5), rop.Tanh(), rop.Linear(5, 3))
    x, y = normal(0, (17, 4)), labels(0, (17,), 3)
    check(net, rop.CrossEntropy(), x, y, dtype)
    monkeypatch.setitem(RECORDS, rop.Tanh, dataclasses.replace(RECORDS[rop.Tanh], reference=planted(order, size)))
    with pytest.raises(AssertionError) as caught:
        check(net, rop.CrossEntropy(), x, y, dtype)
    assert str(caught.value).startswith(FIRST_WRONG[order] + ":")


def example() -> tuple[oracle.Reference, np.ndarray]:
    """A reference result of ordinary size, and its direction."""
    net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 3))
    v = direction(net, 0)
    return reference(net, rop.CrossEntropy(), normal(0, (8, 3)), labels(0, (8,), 3), point(net, 0), v), v


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_an_equal_result_passes(dtype: Any) -> None:
    expected, v = example()
    assert discrepancies(expected, expected, v, TOLERANCES[dtype]) == []


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_a_wrong_result_is_found_at_its_order_only(name: str, dtype: Any) -> None:
    """A factor 2, a sign, a lost result, a few tolerances too many, a NaN, a wrong length."""
    expected, v = example()
    value, tolerance = getattr(expected, name), TOLERANCES[dtype]
    slightly = 1 + 10 * tolerance.relative + 1e3 * tolerance.floor
    wrongs: list[Any] = [2 * value, -value, 0 * value, slightly * value, np.nan * value, np.append(value, 0.0)]
    for wrong in wrongs:
        found = discrepancies(dataclasses.replace(expected, **{name: wrong}), expected, v, tolerance)
        assert len(found) == 1 and found[0].startswith(f"{name}:"), (wrong, found)


@pytest.mark.parametrize("name", ["grad", "hvp", "r2"])
def test_one_wrong_entry_among_many_is_found(name: str) -> None:
    expected, v = example()
    value = getattr(expected, name).copy()
    value[np.argmin(np.abs(value))] += 1e-6 * np.abs(value).max()
    assert discrepancies(dataclasses.replace(expected, **{name: value}), expected, v, TOLERANCES[np.dtype(np.float64)])


def test_a_result_that_should_be_zero_is_held_to_the_floor() -> None:
    """No relative error saves a result that should vanish."""
    expected, v = example()
    expected = dataclasses.replace(expected, r2=np.zeros_like(expected.r2))
    tolerance = TOLERANCES[np.dtype(np.float64)]
    noise = np.full_like(expected.r2, 1e-16)
    assert discrepancies(dataclasses.replace(expected, r2=noise), expected, v, tolerance) == []
    assert discrepancies(dataclasses.replace(expected, r2=1e6 * noise), expected, v, tolerance)


def test_an_ill_conditioned_result_is_measured_by_its_condition() -> None:
    """What one rounding of the input moves by 1e-6 may be wrong by a few times that, but not by hundreds of times."""
    expected, v = example()
    nearby = dataclasses.replace(expected, r2=expected.r2 + 1e-6)
    tolerance = TOLERANCES[np.dtype(np.float64)]
    for times, wrong in ((10, False), (300, True)):
        actual = dataclasses.replace(expected, r2=expected.r2 - times * 1e-6)
        assert bool(discrepancies(actual, expected, v, tolerance, nearby)) is wrong


def test_gradient_of_something_constant_is_zero() -> None:
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert not gradient(torch.ones(()), w).any()
    assert not gradient(torch.ones((), requires_grad=True) * 2, w).any()
