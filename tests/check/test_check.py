"""The checker is checked: it reads what it says it reads, and finds planted errors where they are, nowhere else."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop import cli
from rop.check import subjects
from rop.check.derivatives import STEPS, check_derivatives, jumps, points_in
from rop.check.differences import extrapolated
from rop.check.examine import TOLERANCES, Examination, Row
from rop.check.report import Result, worst
from rop.check.stand import FORWARD, TO_INPUT, TO_WEIGHTS, LayerStand, LossStand, NetworkStand, fitting_shapes
from rop.commands import check as command
from rop.commands.common import FAILED, OK, USAGE
from rop.devices.cpu.emit.bilinear import EmitConv
from rop.devices.cpu.emit.elementwise import EmitActivation
from rop.devices.cpu.emit.loss import EmitLoss
from rop.kernels.cpu import elementwise
from rop.layers import LAYERS, LOSSES
from rop.lowering import LOWERINGS
from tests.helpers.zoo import labels, normal

Numbers = tuple[float, float, float, float]


# ---------------------------------------------------------------------------------------------------------------
# derivatives of scalar functions
# ---------------------------------------------------------------------------------------------------------------


def swish(x: float) -> Numbers:
    """x s(x), with the sigmoid s."""
    s = 1 / (1 + math.exp(-x))
    s1 = s * (1 - s)
    s2 = s1 * (1 - 2 * s)
    s3 = s2 * (1 - 2 * s) - 2 * s1 * s1
    return x * s, s + x * s1, 2 * s1 + x * s2, 3 * s2 + x * s3


def planted(k: int, error: Callable[[float, float], float]) -> Any:
    """swish with derivative number k replaced by error(x, right value)."""

    def wrong(x: float) -> Any:
        y, d1, d2, d3 = swish(x)
        if k == 0:
            return error(x, y), d1, d2, d3
        if k == 1:
            return y, error(x, d1), d2, d3
        return (y, d1, error(x, d2), d3) if k == 2 else (y, d1, d2, error(x, d3))

    return wrong


def test_right_derivatives_pass() -> None:
    found = rop.check.layer(swish, engine=False)
    assert found.ok and [d.name for d in found.derivatives] == ["f′", "f″", "f‴"]
    assert all(d.points == 201 and d.error < 1e-8 for d in found.derivatives)


ERRORS = {
    "sign": (lambda x, right: -right, "-1 times"),
    "factor": (lambda x, right: 2 * right, "2 times"),
    "offset": (lambda x, right: right + 0.5, "0.5 too much"),
    "side": (lambda x, right: right if x > 0 else right + x * x, "only for x < 0"),
    "slight": (lambda x, right: right * (1 + 1e-4 * math.sin(x)), ""),
    "not a number": (lambda x, right: math.nan if abs(x - 1) < 0.1 else right, "finite"),
    "zero": (lambda x, right: 0.0, "0 times"),
}


@pytest.mark.parametrize("what", ERRORS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_wrong_derivative_is_named_and_no_other(k: int, what: str) -> None:
    error, hint = ERRORS[what]
    found = rop.check.layer(planted(k, error), engine=False)
    (wrong,) = found.wrong
    assert wrong.name == ("f", "f′", "f″", "f‴")[k]  # type: ignore[union-attr]
    assert hint in wrong.hint  # type: ignore[union-attr]
    assert found.verdict().startswith(f"wrong: {wrong.name} is wrong: at x = ")  # type: ignore[union-attr]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_report_says_where_and_by_how_much(k: int) -> None:
    """An error of height 0.3 at x = 2 with a width of 0.2."""
    found = rop.check.layer(planted(k, lambda x, right: right + 0.3 * math.exp(-(((x - 2) / 0.2) ** 2))), engine=False)
    (wrong,) = (d for d in found.derivatives if not d.ok)
    assert abs(wrong.x - 2) < 0.05 and wrong.error == pytest.approx(0.3, abs=0.02)
    assert wrong.given == pytest.approx(swish(wrong.x)[k] + wrong.error, rel=1e-6)
    assert wrong.expected == pytest.approx(swish(wrong.x)[k], rel=1e-6)
    assert 0 < wrong.wrong < 40


def test_an_error_in_the_function_itself_shows_in_the_first_derivative() -> None:
    """f is the definition: if it is wrong, f′ disagrees with it, and the rest with f′."""
    found = rop.check.layer(planted(0, lambda x, right: right + math.sin(x)), engine=False)
    assert {d.name for d in found.derivatives if not d.ok} == {"f′", "f″", "f‴"}


def test_all_derivatives_wrong_at_once() -> None:
    found = rop.check.layer(lambda x: (math.sin(x), 2 * math.cos(x), 3.0, math.sin(x)), engine=False)
    assert [d.ok for d in found.derivatives] == [False, False, False]
    assert [d.compared_with for d in found.derivatives] == [
        "differences of f",
        "second differences of f",
        "third differences of f",
    ]


def test_kinks_and_seams_are_no_errors() -> None:
    """Functions made of pieces are right on each of them."""

    def pieces(x: float) -> Numbers:
        if x < 0:
            return 0.0, 0.0, 0.0, 0.0
        return (x, 1.0, 0.0, 0.0) if x > 1 else (x * x / 2, x, 1.0, 0.0)

    found = rop.check.layer(pieces)
    found.raise_if_wrong()
    assert {row.dtype for row in found.rows if row.difference is not None} == {"float64"}, "with small steps"
    assert jumps(pieces) and not jumps(swish)


def test_steep_and_flat_functions() -> None:
    for scale in (1e-6, 1e-2, 1.0, 30.0, 1e6):
        found = rop.check.layer(lambda x, a=scale: (a * x**3, 3 * a * x * x, 6 * a * x, 6 * a), engine=False)
        assert found.ok, str(found)
    for beta in (0.01, 20.0):
        layer = rop.Elementwise(
            lambda x, b: (math.sin(b * x), b * math.cos(b * x), -b * b * math.sin(b * x), -(b**3) * math.cos(b * x)),
            beta,
        )
        assert rop.check.layer(layer, engine=False).ok


@pytest.mark.parametrize("layer", [kind() for kind in rop.layers.ACTIVATIONS.values()] + [rop.GELU("tanh")], ids=repr)
def test_the_packages_own_activations_pass(layer: Any) -> None:
    rop.check.layer(layer, engine=False).raise_if_wrong()


def test_points_of_ones_own() -> None:
    def logarithm(x: float) -> Numbers:
        return math.log(x), 1 / x, -1 / x**2, 2 / x**3

    assert rop.check.layer(logarithm, x=np.linspace(0.7, 5, 30), engine=False).ok
    found = rop.check.layer(logarithm, engine=False)  # half of the points are no numbers: they are left out
    assert found.ok and found.derivatives[0].points < 120
    with pytest.raises(rop.ArgumentError, match="finite"):
        rop.check.layer(swish, x=[np.inf])


def test_nothing_that_can_be_decided_is_not_right() -> None:
    (first, *_) = check_derivatives(lambda x: (math.nan,) * 4, (), points_in(-1, 1, 11))
    assert not first.ok and "could" in first.hint


@pytest.mark.parametrize("order", [1, 2, 3])
def test_differences_know_their_own_error(order: int) -> None:
    x = np.linspace(-2, 2, 41)
    value, error = extrapolated(lambda r: np.exp(np.sin(x + r)), STEPS[order], order)
    s, c = np.sin(x), np.cos(x)
    exact = np.exp(s) * (c, c * c - s, c**3 - 3 * s * c - c)[order - 1]
    assert np.all(np.abs(value - exact) <= 20 * error + 1e-9) and np.all(error < 1e-6)


# ---------------------------------------------------------------------------------------------------------------
# stands: they read what they say they read
# ---------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------
# everything is right, and everything is looked at
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
    def function(x: float) -> Numbers:
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
    """h¹ without σ″x¹g⁰, the classical slip: forward rows are right, and so is the gradient."""
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
                **self._kept(),
                **layout.value("x", op.x[0], 1, lowest=1),
                g0=layout.rows(op.g, 1),
                g1=layout.rows(op.g, 1),
                g2=layout.rows(op.g, 1),
                count=op.y.rows * layout.lanes,
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
    def broken(x: float) -> Numbers:
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


# ---------------------------------------------------------------------------------------------------------------
# the command
# ---------------------------------------------------------------------------------------------------------------

MINE = """
import math, rop

def right(x):
    s, c = math.sin(x), math.cos(x)
    return s, c, -s, -c

def wrong(x):
    s, c = math.sin(x), math.cos(x)
    return s, c, s, -c

layer = rop.Elementwise(right)
loss = rop.MSE()
net = rop.Sequential(rop.Linear(3, 4), layer, rop.Linear(4, 2))
images = rop.Sequential(rop.Conv2d(1, 2, 3), layer)
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "mine_to_check.py"
    path.write_text(MINE, "utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(path)


def test_the_command_narrows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "conv2d", "--order", "2", "--dtype", "float64"]) == OK
    out = capsys.readouterr().out
    assert "Conv2d" in out and "float32" not in out and "3 rows in" in out and "Conv2d: all right" in out
    assert "\x1b" not in out, "no colours in a pipe"


def test_the_command_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "Tanh", "MSE", "--json"]) == OK
    data = json.loads(capsys.readouterr().out)
    (result,) = data["results"]
    assert data["ok"] and {row["subject"] for row in result["rows"]} == {"Tanh", "MSE"}
    assert set(result["rows"][0]) >= {"dtype", "direction", "order", "error", "difference", "slope", "identity", "ok"}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("right", [], OK, "right: all right"),
        ("wrong", [], FAILED, "wrong: f″ is wrong: at x = "),
        ("layer", [], OK, "right: all right"),
        ("loss", [], OK, "MSE: all right"),
        ("net", [], OK, "network of 26 parameters: all right"),
        ("images", ["--shape", "1", "4", "4"], OK, "all right"),
        ("images", [], FAILED, "--shape 1 28 28"),
        ("number", [], FAILED, "must be a Python function"),
        ("nothing", [], USAGE, "to choose from: right, wrong, layer, loss, net, images"),
    ],
)
def test_the_command_on_ones_own_file(
    name: str, arguments: list[str], code: int, words: str, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", f"{mine}:{name}", "--dtype", "float64", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_wrong_usage_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "Tanhh"]) == USAGE
    assert "no layer or loss 'Tanhh'; known: Linear, Conv2d" in capsys.readouterr().err
    assert cli.main(["check", "nowhere.py:f"]) == USAGE
    assert "there is no file 'nowhere.py'" in capsys.readouterr().err
    broken = tmp_path / "broken_to_check.py"
    broken.write_text("1 / 0", "utf-8")
    assert cli.main(["check", f"{broken}:f"]) == FAILED
    assert "cannot be run: ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", "--order", "3"])
    assert stop.value.code == USAGE


def test_the_exit_code_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rop.Tanh, "function", staticmethod(tanh_with(3, -1.0)))
    assert cli.main(["check", "Tanh", "--dtype", "float64"]) == FAILED
    out = capsys.readouterr().out
    assert "WRONG" in out and "the first is Tanh float64, to input, order 2" in out


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.painter()("ok", "green") == "ok"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert command.painter()("ok", "green") == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert command.painter()("ok", "green") == "ok"
