"""The checker is checked: it examines everything, and finds planted errors where they are, nowhere else."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

import rop
from rop.check import subjects
from rop.check.examine import TOLERANCES, Row
from rop.check.report import Result, worst
from rop.check.stand import FORWARD, TO_INPUT, TO_WEIGHTS, NetworkStand
from rop.devices.cpu.emit.bilinear import EmitConv
from rop.devices.cpu.emit.elementwise import EmitActivation
from rop.devices.cpu.emit.loss import EmitLoss
from rop.kernels.cpu import elementwise
from rop.layers import LAYERS, LOSSES
from rop.layers.elementwise import Derivatives
from rop.lowering import LOWERINGS
from tests.check.test_derivatives import planted, swish
from tests.helpers.zoo import labels, normal

# ---------------------------------------------------------------------------------------------------------------
# everything is right, and everything is examined
# ---------------------------------------------------------------------------------------------------------------


def test_every_layer_and_loss_is_a_subject() -> None:
    assert set(subjects.names()) == {*LAYERS, *LOSSES}
    assert all(subjects.stands(name) for name in subjects.names())


@pytest.fixture(scope="module")
def everything() -> Result:
    return rop.check.everything()


def test_everything_is_right(everything: Result) -> None:
    everything.raise_if_wrong()


def test_there_is_a_row_for_everything(everything: Result) -> None:
    found = {(row.subject, row.direction, row.order, row.dtype) for row in everything.rows}
    assert len(found) == len(everything.rows)
    expected = set()
    for name in (*LAYERS, *LOSSES):
        weights = [TO_WEIGHTS] if any(TO_WEIGHTS in stand.directions for stand in subjects.stands(name)) else []
        for direction in (FORWARD, TO_INPUT, *weights):
            expected |= {(name, direction, k, dtype) for k in range(3) for dtype in TOLERANCES}
    assert found == expected


def test_every_row_is_measured(everything: Result) -> None:
    for row in everything.rows:
        assert row.error is not None
        assert (row.difference is None) == (row.direction == FORWARD and row.order == 0)
        assert row.identity is not None or row.subject in LOSSES


def test_slopes_are_those_of_central_differences(everything: Result) -> None:
    """Most results are no polynomials of degree two: there the order of convergence is seen, and it is 2."""
    slopes = [row.slope for row in everything.rows if row.dtype == "float64" and row.slope is not None]
    assert len(slopes) > 60 and all(abs(slope - 2) < 0.1 for slope in slopes)


# ---------------------------------------------------------------------------------------------------------------
# planted errors in the engine
# ---------------------------------------------------------------------------------------------------------------


def wrong_rows(result: Result) -> set[tuple[str, int]]:
    return {(row.direction, row.order) for row in result.rows if row.verdict == "WRONG"}


def checked(name: str, dtype: str = "float64") -> Result:
    return rop.check.everything([name], dtypes=[dtype])


both_precisions = pytest.mark.parametrize("dtype", TOLERANCES)
with_and_without_torch = pytest.mark.parametrize("torch", [True, False], ids=["torch", "no torch"])


@pytest.fixture
def reference(torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides torch from the checker."""
    if not torch:
        monkeypatch.setattr(rop.check, "torch_version", lambda: None)


def tanh_with(k: int, factor: float) -> Any:
    def function(x: float) -> Derivatives:
        y = math.tanh(x)
        d = 1 - y * y
        numbers = [y, d, -2 * y * d, (6 * y * y - 2) * d]
        numbers[k] *= factor
        return numbers[0], numbers[1], numbers[2], numbers[3]

    return function


# which rows a wrong derivative of an activation must spoil, and which it must not
SPOILT = {
    1: ({(FORWARD, 1), (FORWARD, 2), (TO_INPUT, 0), (TO_INPUT, 1), (TO_INPUT, 2)}, set()),
    2: ({(FORWARD, 2), (TO_INPUT, 1), (TO_INPUT, 2)}, {(FORWARD, 0), (FORWARD, 1), (TO_INPUT, 0)}),
    3: ({(TO_INPUT, 2)}, {(FORWARD, 0), (FORWARD, 1), (FORWARD, 2), (TO_INPUT, 0), (TO_INPUT, 1)}),
}


@with_and_without_torch
@pytest.mark.parametrize("k", SPOILT)
def test_a_wrong_derivative_in_the_engine(
    k: int, torch: bool, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rop.Tanh, "function", staticmethod(tanh_with(k, 1.01)))
    spoilt, sound = SPOILT[k]
    found = checked("Tanh")
    assert spoilt <= wrong_rows(found) and not sound & wrong_rows(found)
    measures = {name for row in found.rows for name in row.wrong}
    assert measures >= {"difference", "slope"} and ("error" in measures) == torch


@both_precisions
def test_a_forgotten_term_of_the_backward_pass(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """h¹ without σ″x¹g⁰, the classical mistake: forward rows are right, and so is the gradient."""
    original = EmitActivation.backward

    def forgetful(self: Any, code: Any, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k != 1:
            original(self, code, k, direction)
        elif op.h[0] is not None:
            code.tile(
                elementwise.backward,
                h=layout.rows(op.h[0], 1),
                order=0,
                d=self._derivatives(),
                x=layout.value(op.x[0], 1),
                g=(layout.rows(op.g, 1),) * 3,
                count=layout.count(op.y.buffer),
                part=(0, 1),
            )

    monkeypatch.setattr(EmitActivation, "backward", forgetful)
    found = checked("SiLU", dtype)
    assert wrong_rows(found) == {(TO_INPUT, 1)} or wrong_rows(found) == {(TO_INPUT, 1), (TO_INPUT, 2)}
    row = next(row for row in found.rows if not row.ok)
    assert {"error", "difference", "identity"} <= set(row.wrong), "three ways to see it"


@with_and_without_torch
@pytest.mark.parametrize(
    ("weights", "spoilt"),
    [("forward_weights", {(FORWARD, 1), (FORWARD, 2)}), ("backward_weights", {(TO_INPUT, 1), (TO_INPUT, 2)})],
)
def test_a_wrong_term_of_a_convolution(
    weights: str, spoilt: set[Any], torch: bool, reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W¹ replaced by W⁰ in the products of real convolutions (those of the stand itself are 1×1)."""
    original = getattr(EmitConv, weights)

    def wrong(self: Any, j: int, direction: int, group: int) -> Any:
        return original(self, 0 if self.operation.geometry.taps > 1 else j, direction, group)

    monkeypatch.setattr(EmitConv, weights, wrong)
    found = checked("Conv2d")
    assert spoilt <= wrong_rows(found) and (TO_INPUT, 0) not in wrong_rows(found)
    assert checked("Linear").ok


@pytest.mark.parametrize("name", LOSSES)
def test_a_wrong_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order 2 is never seeded."""
    original = EmitLoss.forward

    def lazy(self: Any, code: Any, k: int, direction: int) -> None:
        if k < 2:
            original(self, code, k, direction)

    monkeypatch.setattr(EmitLoss, "forward", lazy)
    found = wrong_rows(checked(name))
    assert found and all(order == 2 for _, order in found)


def test_another_function_that_is_consistent_in_itself_is_seen_by_torch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer that computes something else, with all its derivatives right."""
    monkeypatch.setattr(rop.Sigmoid, "function", rop.Tanh.function)
    found = checked("Sigmoid")
    assert {name for row in found.rows for name in row.wrong} == {"error"}
    assert all(not row.ok for row in found.rows if row.order == 0)


def test_a_wrong_lowering_of_one_layer_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    flatten = LOWERINGS[rop.Flatten]
    monkeypatch.setitem(LOWERINGS, rop.Softmax, lambda plan, node, layer, x: flatten(plan, node, layer, x))
    assert not checked("Softmax").ok
    assert checked("Tanh").ok


def test_not_a_number_is_wrong() -> None:
    def broken(x: float) -> Derivatives:
        return x, 1.0, math.sqrt(x - 1e9) if x > 10 else 0.0, 0.0

    assert rop.check.layer(broken, engine=False, x=[1.0, 2.0]).ok
    found = worst([Row("a", "float64", FORWARD, 0, error=math.inf, wrong=("error",)), Row("a", "float64", FORWARD, 0)])
    assert not Result("a", tuple(found)).ok


# ---------------------------------------------------------------------------------------------------------------
# layers, losses and networks of one's own
# ---------------------------------------------------------------------------------------------------------------


def test_a_right_activation_runs_in_the_engine_as_torch_says() -> None:
    found = rop.check.layer(swish)
    found.raise_if_wrong()
    assert len(found.rows) == 12 and found.title == "swish"


def test_a_wrong_activation_in_the_engine() -> None:
    """The engine does what it is told, so torch agrees when told the same; differences and symmetry do not."""
    found = rop.check.layer(planted(2, lambda x, right: -right), dtypes=["float64"])
    assert [d.name for d in found.derivatives if not d.ok] == ["f″"]
    assert {(FORWARD, 2), (TO_INPUT, 1)} <= wrong_rows(found)
    assert "error" not in {name for row in found.rows for name in row.wrong}


@pytest.mark.parametrize("loss", [rop.CrossEntropy(weight=[1.0, 2.0, 0.5]), rop.NLL(), rop.MSE("sum")], ids=repr)
def test_losses(loss: Any) -> None:
    found = rop.check.loss(loss)
    assert found.ok and len(found.rows) == 12


def test_a_network_is_checked_parameter_by_parameter() -> None:
    net = rop.Sequential(
        rop.Conv2d(1, 2, 3, padding=1), rop.BatchNorm2d(2), rop.Elementwise(swish), rop.Flatten(), rop.Linear(32, 3)
    )
    found = rop.check.network(net, rop.CrossEntropy(), normal(0, (12, 1, 4, 4)), labels(0, (12,), 3))
    found.raise_if_wrong()
    names = dict.fromkeys(row.direction for row in found.rows)
    assert list(names) == ["loss", *net.params(net.init())]
    assert [d.function for d in found.derivatives] == ["swish"] * 3


def test_a_network_with_kinks_is_compared_with_small_steps_in_float64() -> None:
    net = rop.Sequential(rop.Conv2d(1, 4, 3), rop.ReLU(), rop.MaxPool2d(2), rop.Flatten(), rop.Linear(16, 3))
    found = rop.check.network(net, rop.CrossEntropy(), normal(0, (20, 1, 6, 6)), labels(0, (20,), 3))
    found.raise_if_wrong()
    measured = {row.dtype for row in found.rows if row.difference is not None}
    assert measured == {"float64"}


def test_a_wrong_activation_is_found_in_a_network() -> None:
    net = rop.Sequential(rop.Linear(3, 4), rop.Elementwise(planted(3, lambda x, right: right + 1)), rop.Linear(4, 2))
    found = rop.check.network(net, rop.CrossEntropy(), normal(0, (9, 3)), labels(0, (9,), 2), dtypes=["float64"])
    assert [d.name for d in found.derivatives if not d.ok] == ["f‴"]
    assert {("0.weight", 2), ("0.bias", 2)} <= wrong_rows(found)
    assert "f‴ is wrong" in found.verdict()


def test_a_point_and_direction_of_ones_own() -> None:
    net = rop.Sequential(rop.Linear(2, 2))
    stand = NetworkStand(net, rop.MSE(), normal(0, (3, 2)), normal(1, (3, 2)))
    w, v = np.ones(6), np.arange(6.0)
    assert rop.check.network(net, rop.MSE(), stand.x, stand.y, w=w, v=v).ok
    with pytest.raises(rop.ArgumentError, match=r"v: expected shape \(6,\), got \(5,\)"):
        rop.check.network(net, rop.MSE(), stand.x, stand.y, v=np.ones(5))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: rop.check.layer(rop.Tanh), TypeError, "Tanh(...)"),  # type: ignore[arg-type]
        (lambda: rop.check.layer(3), TypeError, "function"),  # type: ignore[arg-type]
        (lambda: rop.check.loss(rop.Tanh()), TypeError, "loss"),  # type: ignore[arg-type]
        (lambda: rop.check.loss(rop.MSE(), y=np.ones((3, 5))), ValueError, "17 samples"),
        (lambda: rop.check.network(rop.Tanh(), rop.MSE(), 0, 0), TypeError, "Sequential"),  # type: ignore[arg-type]
        (lambda: rop.check.layer(rop.Tanh(), orders=[3]), ValueError, "orders"),
        (lambda: rop.check.layer(rop.Tanh(), dtypes=["float16"]), TypeError, "float16"),
        (lambda: rop.check.layer(rop.Linear(3, 2), shape=(4,)), ValueError, "expected input (batch, 3)"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()


# ---------------------------------------------------------------------------------------------------------------
# results
# ---------------------------------------------------------------------------------------------------------------


def test_a_result_for_tests_and_machines() -> None:
    found = rop.check.layer(planted(1, lambda x, right: math.nan), engine=False)
    with pytest.raises(AssertionError, match="f′ is wrong"):
        found.raise_if_wrong()
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert not data["ok"] and data["derivatives"][0]["given"] is None and data["derivatives"][0]["name"] == "f′"


def test_tables_are_aligned_and_plain() -> None:
    text = str(rop.check.layer(swish, dtypes=["float64"]))
    assert "\x1b" not in text
    head, *rows = next(part for part in text.split("\n\n") if "vs torch" in part.splitlines()[0]).splitlines()
    for row in rows:
        assert row[head.index("identities") + len("identities") :].strip() == "ok"
    assert "swish: all right" in text


def test_without_torch_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rop.check, "torch_version", lambda: None)
    found = rop.check.layer(rop.Tanh(), dtypes=["float64"])
    assert found.ok and all(row.error is None and row.identity is not None for row in found.rows)
    assert "pip install 'rop[torch]'" in str(found)
