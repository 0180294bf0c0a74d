"""Which ReLUs are fused into the operation before them, and that they then need no rows of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rop
from rop.lowering import ORDERS, Plan, outline
from rop.lowering.rectified import Rectifiable
from rop.lowering.select import Rectify
from tests.helpers.rectified import BEFORE, DATA, USES, around

CHANNELS, SIDES = 3, (4, 5)
ROWS = CHANNELS * SIDES[0] * SIDES[1]
modes = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
behind = pytest.mark.parametrize("before", BEFORE)


def planned(net: Any, training: bool = True) -> Plan:
    """The plan of a network on images with DATA channels."""
    return outline(net, (DATA, *SIDES), training, rop.MSE(), np.float64)


def plan_of(relu: Any, before: str, *uses: str, seen: bool = False, training: bool = True) -> Plan:
    return planned(around(relu, before, uses, seen, CHANNELS), training)


def rectifies(plan: Plan) -> list[Any]:
    """The ReLUs that are operations of their own."""
    return [operation for operation in plan.operations if isinstance(operation, Rectify)]


def fused(plan: Plan) -> list[Rectifiable]:
    """The operations that a ReLU is fused into."""
    return [operation for operation in plan.operations if isinstance(operation, Rectifiable) and operation.relu]


# One use, and several: then one of the gradients that flow back is the value's own, to add to and to mask.
FREE = [*((use,) for use in USES if use != "sum"), ("product", "product"), ("product", "sum"), ("sum", "sum")]


def plane_rows(plan: Plan) -> dict[int, int]:
    """Rows of all buffers in the plane of each order."""
    return {k: sum(buffer.rows for buffer in plan.buffers if k in buffer.orders) for k in ORDERS}


@modes
@behind
@pytest.mark.parametrize("uses", FREE, ids=" and ".join)
def test_a_fused_relu_needs_no_rows(before: str, uses: tuple[str, ...], training: bool) -> None:
    plan = plan_of(rop.ReLU(), before, *uses, training=training)
    assert not rectifies(plan)
    assert plane_rows(plan) == plane_rows(plan_of(rop.Identity(), before, *uses, training=training))


@modes
@behind
def test_a_gradient_that_belongs_to_another_value_is_masked_in_rows_of_its_own(before: str, training: bool) -> None:
    """An addition hands the same gradient to both of its inputs, of which only one is rectified."""
    plan, plain = (plan_of(layer, before, "sum", training=training) for layer in (rop.ReLU(), rop.Identity()))
    (operation,) = fused(plan)
    assert not rectifies(plan) and operation.delta is not operation.g
    assert plane_rows(plan) == {k: rows + ROWS for k, rows in plane_rows(plain).items()}


@behind
def test_the_product_that_alone_uses_a_rectified_value_masks_its_gradient(before: str) -> None:
    (operation,) = fused(plan_of(rop.ReLU(), before, "product"))
    assert operation.y.flow.masked_by_user and not operation.masks_gradient
    for uses in (("product", "product"), ("product", "sum"), ("average",), ("end",)):
        (operation,) = fused(plan_of(rop.ReLU(), before, *uses))
        assert operation.masks_gradient and operation.delta is operation.g


@behind
@pytest.mark.parametrize("use", USES)
def test_a_value_that_is_used_before_its_relu_is_left_as_it_is(before: str, use: str) -> None:
    plan = plan_of(rop.ReLU(), before, use, seen=True)
    assert not fused(plan)
    assert len(rectifies(plan)) == (use != "maximum")  # which takes the ReLU before it


@behind
def test_a_leaky_relu_stands_on_its_own(before: str) -> None:
    plan = plan_of(rop.LeakyReLU(), before, "product")
    assert not fused(plan) and len(rectifies(plan)) == 1


@pytest.mark.parametrize("first", [rop.Identity(), rop.AvgPool2d(1), rop.Tanh()], ids=repr)
def test_a_relu_behind_anything_else_stands_on_its_own(first: Any) -> None:
    plan = planned(rop.Sequential(first, rop.ReLU(), rop.Conv2d(DATA, CHANNELS, 3)))
    assert not fused(plan) and len(rectifies(plan)) == 1


def test_a_residual_block_has_one_value_per_layer() -> None:
    """relu(bn(conv(relu(bn(conv(x))))) + x): two products, two batchnorms and a sum, two of them rectified."""
    x = rop.Input()
    start = rop.Conv2d(DATA, CHANNELS, 1)(x)
    inner = rop.ReLU()(rop.BatchNorm2d(CHANNELS)(rop.Conv2d(CHANNELS, CHANNELS, 3, padding=1)(start)))
    joined = rop.Add()(rop.BatchNorm2d(CHANNELS)(rop.Conv2d(CHANNELS, CHANNELS, 3, padding=1)(inner)), start)
    plan = planned(rop.Graph(x, rop.Conv2d(CHANNELS, 1, 1)(rop.ReLU()(joined))))
    assert [type(operation).__name__ for operation in fused(plan)] == ["BatchNormOperation", "Sum"]
    assert not rectifies(plan) and all(operation.delta is operation.g for operation in fused(plan))
