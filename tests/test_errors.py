"""Bad input gets a clear error of the package's own, before anything is computed, that says what was wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rop
from rop.devices import batch
from rop.errors import RopError
from tests.helpers.cases import CASES, LOSS_CASES, Refused

N = 4 * 3 + 3  # parameters of the network below


def network() -> Any:
    """Four features, three classes."""
    return rop.Sequential(rop.Linear(4, 3))


def good() -> dict[str, Any]:
    """Arguments of an objective that works."""
    return {"net": network(), "loss": rop.CrossEntropy(), "x": np.ones((2, 4)), "y": np.array([0, 2])}


def objective(**changes: Any) -> Any:
    """An objective that works, but for the changes."""
    arguments = {**good(), **changes}
    first = [arguments.pop(name) for name in ("net", "loss", "x", "y")]
    return rop.Objective(*first, **arguments)


def assert_refused(call: Callable[[], Any], error: type[Exception], *says: str) -> None:
    """The call raises an error of the package, of the right builtin kind, whose message contains all the words."""
    with pytest.raises(RopError) as caught:
        call()
    assert isinstance(caught.value, (ValueError, TypeError)), "an error must also be a ValueError or a TypeError"
    assert isinstance(caught.value, error), f"expected a {error.__name__}, got {type(caught.value).__mro__}"
    message = str(caught.value)
    missing = [word for word in says if word.lower() not in message.lower()]
    assert not missing, f"the message {message!r} does not say {missing}"


def test_the_good_arguments_are_good() -> None:
    """The base of all refusals below works, so each of them is refused for its one change."""
    assert np.isfinite(objective().jet(np.ones(N), np.ones(N)).r2).all()


# ---------------------------------------------------------------------------------------------------------------
# layers and losses: from the registry
# ---------------------------------------------------------------------------------------------------------------


def named(cases: list[Any]) -> list[Any]:
    """One pytest parameter per refusal, named after its case and its words."""
    return [pytest.param(r, id=f"{case.name}-{'-'.join(r.says[1:])}") for case in cases for r in case.refused]


def evaluate_layer(refused: Refused) -> None:
    """Make the layer or network and, if that works, an objective with the refused shape of data."""
    made = refused.make()
    assert refused.shape is not None, "making it did not raise"
    net = rop.Sequential(made, rop.Flatten(), rop.Linear(1, 1))
    rop.Objective(net, rop.MSE(), np.ones((2, *refused.shape)), np.zeros((2, 1)))


def evaluate_loss(refused: Refused) -> None:
    """Make the loss and, if that works, an objective with outputs of the refused shape and target."""
    loss = refused.make()
    assert refused.shape is not None, "making it did not raise"
    (features,) = refused.shape
    rop.Objective(rop.Sequential(rop.Linear(1, features)), loss, np.ones((2, 1)), refused.target)


@pytest.mark.parametrize("refused", named(CASES))
def test_layer_refuses(refused: Refused) -> None:
    assert_refused(lambda: evaluate_layer(refused), refused.error, *refused.says)


@pytest.mark.parametrize("refused", named(LOSS_CASES))
def test_loss_refuses(refused: Refused) -> None:
    assert_refused(lambda: evaluate_loss(refused), refused.error, *refused.says)


# ---------------------------------------------------------------------------------------------------------------
# networks
# ---------------------------------------------------------------------------------------------------------------


def wrongly(call: Any, *arguments: Any) -> Any:
    """A call that a type checker would refuse too."""
    return call(*arguments)


def graph_without_the_input() -> Any:
    """A graph whose output comes from another input."""
    return rop.Graph(rop.Input(), rop.Tanh()(rop.Input()))


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: rop.Sequential(), ValueError, ("Sequential", "empty")),
        (lambda: wrongly(rop.Sequential, rop.Tanh), TypeError, ("Sequential", "class Tanh")),
        (lambda: wrongly(rop.Sequential, [rop.Tanh()]), TypeError, ("Sequential", "list")),
        (lambda: wrongly(rop.Sequential, rop.Linear(2, 2), "relu"), TypeError, ("argument 1", "str")),
        (graph_without_the_input, ValueError, ("Graph", "input")),
        (lambda: wrongly(rop.Graph, np.ones(3), rop.Tanh()(rop.Input())), TypeError, ("Graph", "ndarray")),
        (lambda: wrongly(rop.Graph, rop.Input(), None), TypeError, ("Graph", "NoneType")),
        (lambda: network().init(dtype="float16"), TypeError, ("dtype", "float16")),
        (lambda: network().init(seed=-1), ValueError, ("seed", "-1")),
        (lambda: network().init(seed="one"), ValueError, ("seed", "one")),
        (lambda: network().params(np.ones(N + 1)), ValueError, (f"({N},)", f"({N + 1},)")),
        (lambda: network().params([1.0] * N), TypeError, ("w", "list")),
    ],
)
def test_network_refuses(make: Callable[[], Any], error: type[Exception], says: tuple[str, ...]) -> None:
    assert_refused(make, error, *says)


def test_empty_graph_is_refused() -> None:
    x = rop.Input()
    assert_refused(lambda: rop.Graph(x, x), ValueError, "Graph", "empty")


def test_a_misfit_deep_in_a_network_names_its_layer() -> None:
    net = rop.Sequential(rop.Conv2d(1, 8, 3, padding=1), rop.ReLU(), rop.Conv2d(3, 16, 3), rop.Flatten())
    call = lambda: rop.Objective(net, rop.MSE(), np.ones((2, 1, 8, 8)), np.ones((2, 1)))  # noqa: E731
    assert_refused(call, ValueError, "layer 2", "Conv2d 3→16", "(batch, 3, H, W)", "(batch, 8, 8, 8)")


@pytest.mark.parametrize(
    "net, shape",
    [
        (rop.Sequential(rop.BatchNorm1d(4)), (4,)),
        (rop.Sequential(rop.Conv2d(1, 4, 2), rop.BatchNorm2d(4)), (1, 2, 2)),
    ],
)
def test_batchnorm_with_one_value_per_channel_is_refused(net: Any, shape: tuple[int, ...]) -> None:
    x = np.ones((1, *shape))
    call = lambda: rop.Objective(net, rop.MSE(), x, np.ones((1, 4, *shape[3:])), training=True)  # noqa: E731
    assert_refused(call, ValueError, "BatchNorm", "1")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batchnorm_with_one_value_per_channel_is_fine_in_evaluation_mode(dtype: Any) -> None:
    net = rop.Sequential(rop.BatchNorm1d(4))
    f = rop.Objective(net, rop.MSE(), np.ones((1, 4)), np.zeros((1, 4)), training=False, dtype=dtype)
    assert f.at(net.init(dtype=dtype)).loss == pytest.approx(1 / (1 + 1e-5), rel=1e-6)


# ---------------------------------------------------------------------------------------------------------------
# objectives
# ---------------------------------------------------------------------------------------------------------------


def with_one(value: float, shape: tuple[int, ...]) -> np.ndarray:
    """Ones with a single bad number at the end."""
    a = np.ones(shape)
    a.flat[-1] = value
    return a


BAD_OBJECTIVES: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "no net": ({"net": rop.Linear(4, 3)}, TypeError, ("net", "Linear")),
    "no net at all": ({"net": None}, TypeError, ("net", "NoneType")),
    "no loss": ({"loss": "mse"}, TypeError, ("loss", "str")),
    "loss class": ({"loss": rop.CrossEntropy}, TypeError, ("loss", "CrossEntropy")),
    "features": ({"x": np.ones((2, 5))}, ValueError, ("Linear", "(batch, 4)", "(batch, 5)")),
    "rank": ({"x": np.ones((2, 4, 1, 1))}, ValueError, ("Linear", "(batch, 4)", "(batch, 4, 1, 1)")),
    "no batch axis": ({"x": np.ones(4)}, ValueError, ("x", "(4,)")),
    "scalar x": ({"x": np.float64(1.0)}, Exception, ("x",)),
    "empty batch": ({"x": np.ones((0, 4)), "y": np.array([], int)}, ValueError, ("empty",)),
    "empty image": (
        {"net": rop.Sequential(rop.Conv2d(3, 3, 1)), "x": np.ones((2, 3, 0, 4)), "loss": rop.MSE(), "y": np.ones(2)},
        ValueError,
        ("(2, 3, 0, 4)",),
    ),
    "integer x": ({"x": np.ones((2, 4), int)}, TypeError, ("x", "float", "int")),
    "boolean x": ({"x": np.ones((2, 4), bool)}, TypeError, ("x", "float", "bool")),
    "complex x": ({"x": np.ones((2, 4), complex)}, TypeError, ("x", "float", "complex")),
    "object x": ({"x": np.ones((2, 4), object)}, TypeError, ("x", "float", "object")),
    "text x": ({"x": np.full((2, 4), "1")}, TypeError, ("x", "float")),
    "half x": ({"x": np.ones((2, 4), np.float16)}, TypeError, ("x", "float", "float16")),
    "ragged x": ({"x": [[1.0, 2.0], [1.0]]}, TypeError, ("x",)),
    "masked x": ({"x": np.ma.masked_less(np.eye(2, 4), 1)}, TypeError, ("x", "masked", "x.filled(")),
    "masked y": ({"y": np.ma.masked_less(np.arange(2), 1)}, TypeError, ("CrossEntropy: y", "masked", "y.filled(")),
    "x with grad": ({"x": torch.ones(2, 4, requires_grad=True)}, TypeError, ("x", "requires grad", "x.detach()")),
    "y with grad": ({"loss": rop.MSE(), "y": torch.ones(2, 3, requires_grad=True)}, TypeError, ("y.detach()",)),
    "NaN x": ({"x": with_one(np.nan, (2, 4))}, ValueError, ("x", "nan")),
    "Inf x": ({"x": with_one(np.inf, (2, 4))}, ValueError, ("x", "inf")),
    "-Inf x": ({"x": with_one(-np.inf, (2, 4))}, ValueError, ("x", "inf")),
    "overflow": ({"x": with_one(1e300, (2, 4)), "dtype": np.float32}, ValueError, ("x", "inf")),
    "batch of y": ({"y": np.array([0, 1, 2])}, ValueError, ("CrossEntropy", "(2,)", "(3,)")),
    "label": ({"y": np.array([0, 3])}, ValueError, ("CrossEntropy", "3")),
    "dtype": ({"dtype": np.float16}, TypeError, ("dtype", "float16")),
    "integer dtype": ({"dtype": int}, TypeError, ("dtype", "int")),
    "text dtype": ({"dtype": "quick"}, TypeError, ("dtype", "quick")),
    "device": ({"device": "tpu"}, ValueError, ("device", "tpu", "cpu")),
    "device type": ({"device": 0}, Exception, ("device", "0")),
    "training": ({"training": "yes"}, TypeError, ("training", "yes")),
    "check_finite": ({"check_finite": "no"}, TypeError, ("check_finite", "no")),
    "memory_limit": ({"memory_limit": 2**70}, ValueError, ("memory_limit", "at most")),
    "memory_limit below 0": ({"memory_limit": -1}, ValueError, ("memory_limit", "-1")),
    "memory_limit type": ({"memory_limit": "1GB"}, TypeError, ("memory_limit", "1GB")),
}


@pytest.mark.parametrize("name", BAD_OBJECTIVES)
def test_objective_refuses(name: str) -> None:
    changes, error, says = BAD_OBJECTIVES[name]
    assert_refused(lambda: objective(**changes), error, *says)


def normed() -> Any:
    """A network with running statistics."""
    return rop.Sequential(rop.Linear(4, 3), rop.BatchNorm1d(3))


BAD_STATES = {
    "no dict": (lambda s: [1.0], TypeError, ("state", "list")),
    "missing": (lambda s: {"1.running_mean": s["1.running_mean"]}, ValueError, ("1.running_var",)),
    "unknown": (lambda s: {**s, "7.running_mean": np.zeros(3)}, ValueError, ("7.running_mean",)),
    "length": (lambda s: {**s, "1.running_var": np.ones(4)}, ValueError, ("1.running_var", "(3,)", "(4,)")),
    "text": (lambda s: {**s, "1.running_var": np.full(3, "a")}, TypeError, ("1.running_var",)),
    "NaN": (lambda s: {**s, "1.running_var": np.full(3, np.nan)}, ValueError, ("1.running_var", "nan")),
    "negative": (lambda s: {**s, "1.running_var": np.full(3, -1.0)}, ValueError, ("1.running_var", "-1")),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_bad_state_is_refused(name: str) -> None:
    change, error, says = BAD_STATES[name]
    net = normed()
    state = change(net.init_state())
    assert_refused(lambda: objective(net=net, training=False, state=state), error, *says)
    assert_refused(lambda: net.predict(net.init(), np.ones((2, 4)), state=state), error, *says)


# ---------------------------------------------------------------------------------------------------------------
# points and directions
# ---------------------------------------------------------------------------------------------------------------

BAD_VECTORS = {
    "short": (np.ones(N - 1), ValueError, (f"({N},)", f"({N - 1},)")),
    "long": (np.ones(N + 1), ValueError, (f"({N},)", f"({N + 1},)")),
    "empty": (np.ones(0), ValueError, (f"({N},)", "(0,)")),
    "scalar": (np.float64(1.0), Exception, (f"({N},)",)),
    "row": (np.ones((1, N)), ValueError, (f"({N},)", f"(1, {N})")),
    "cube": (np.ones((N, 1, 1)), ValueError, (f"({N},)", f"({N}, 1, 1)")),
    "integer": (np.ones(N, int), TypeError, ("float", "int")),
    "boolean": (np.ones(N, bool), TypeError, ("float", "bool")),
    "complex": (np.ones(N, complex), TypeError, ("float", "complex")),
    "object": (np.ones(N, object), TypeError, ("float", "object")),
    "text": (np.full(N, "1.0"), TypeError, ("float",)),
    "half": (np.ones(N, np.float16), TypeError, ("float", "float16")),
    "none": (None, TypeError, ("float",)),
    "word": ("abc", TypeError, ("float",)),
    "ragged": ([[1.0], [1.0, 2.0]], TypeError, ("ragged", "list")),
    "masked": (np.ma.masked_less(np.arange(N) - 1.0, 0), TypeError, ("masked", ".filled(")),
    "masked, nothing hidden": (np.ma.masked_array(np.ones(N)), TypeError, ("masked", ".filled(")),
    "list of masked": ([np.ma.masked_array(np.ones(N))], TypeError, ("masked", ".filled(")),
    "tensor with grad": (torch.ones(N, requires_grad=True), TypeError, ("requires grad", ".detach()")),
    "tensor of bfloat16": (torch.ones(N, dtype=torch.bfloat16), TypeError, ("Tensor", "cannot read")),
    "tensor without numbers": (torch.ones(N, device="meta"), TypeError, ("Tensor", "cannot read")),
    "NaN": (with_one(np.nan, (N,)), ValueError, ("nan",)),
    "Inf": (with_one(np.inf, (N,)), ValueError, ("inf",)),
}


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_point_is_refused(name: str) -> None:
    bad, error, says = BAD_VECTORS[name]
    f, net = objective(), network()
    assert_refused(lambda: f.at(bad), error, "w", *says)
    assert_refused(lambda: f.jet(bad, np.ones(N)), error, "w", *says)
    assert_refused(lambda: net.predict(bad, np.ones((2, 4))), error, "w", *says)
    assert_refused(lambda: rop.evaluate(net, rop.CrossEntropy(), bad, np.ones((2, 4)), [0, 2]), error, "w", *says)
    assert_refused(lambda: rop.Point(f, bad), error, "w", *says)


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_direction_is_refused(name: str) -> None:
    bad, error, says = BAD_VECTORS[name]
    f = objective()
    p = f.at(np.ones(N))
    assert_refused(lambda: p.hvp(bad), error, "v", *says)
    assert_refused(lambda: p.r2(bad), error, "v", *says)
    assert_refused(lambda: p.taylor(bad), error, "v", *says)
    assert_refused(lambda: f.jet(np.ones(N), bad), error, "v", *says)
    np.testing.assert_array_equal(p.hvp(np.ones(N)), objective().at(np.ones(N)).hvp(np.ones(N)))


def test_block_of_directions_is_for_hvp_only() -> None:
    p = objective().at(np.ones(N))
    assert p.hvp(np.ones((N, 2))).shape == (N, 2)
    assert_refused(lambda: p.r2(np.ones((N, 2))), ValueError, "v", f"({N},)", f"({N}, 2)")
    assert_refused(lambda: p.hvp(np.ones((N + 1, 2))), ValueError, "v", f"({N}", f"({N + 1}, 2)")
    assert_refused(lambda: p.hvp(with_one(np.nan, (N, 2))), ValueError, "v", "nan")


def test_check_finite_can_be_switched_off() -> None:
    """Then not-a-number travels through instead of raising."""
    f = objective(x=with_one(np.nan, (2, 4)), check_finite=False)
    p = f.at(np.ones(N))
    assert np.isnan(p.loss) and np.isnan(p.grad).any()
    assert np.isnan(objective(check_finite=False).at(with_one(np.nan, (N,))).loss)
    assert np.isnan(objective(check_finite=False).at(np.ones(N)).hvp(with_one(np.nan, (N,)))).any()


def test_not_a_number_is_never_swallowed_by_a_layer() -> None:
    """ReLU, max pooling and softmax pass it on when the check is off."""
    x = np.ones((3, 1, 4, 4))
    x[1, 0, 2, 1] = np.nan
    for layer in (rop.ReLU(), rop.LeakyReLU(), rop.MaxPool2d(2), rop.AvgPool2d(2), rop.Tanh(), rop.Softmax(1)):
        net = rop.Sequential(rop.Conv2d(1, 2, 1), layer, rop.AdaptiveAvgPool2d(1), rop.Flatten())
        f = rop.Objective(net, rop.MSE(), x, np.zeros((3, 2)), check_finite=False)
        assert np.isnan(f.at(net.init()).loss), layer


# ---------------------------------------------------------------------------------------------------------------
# data: with_data and predict check like the constructor
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "features",
        "rank",
        "no batch axis",
        "empty batch",
        "integer x",
        "complex x",
        "object x",
        "text x",
        "NaN x",
        "Inf x",
        "batch of y",
        "label",
    ],
)
def test_new_data_is_checked_like_the_first(name: str) -> None:
    changes, error, says = BAD_OBJECTIVES[name]
    data = {"x": good()["x"], "y": good()["y"], **changes}
    f = objective()
    assert_refused(lambda: f.with_data(data["x"], data["y"]), error, *says)
    if "x" in changes and name != "empty batch":
        assert_refused(lambda: network().predict(np.ones(N), data["x"]), error, *says)


def test_batchnorm_over_data_that_does_not_fit_is_refused() -> None:
    """Batch statistics need the whole set at once."""
    net = normed()
    x, y = np.ones((4096, 4)), np.zeros((4096, 3))
    call = lambda: rop.Objective(net, rop.MSE(), x, y, memory_limit=4096).at(net.init())  # noqa: E731
    assert_refused(call, ValueError, "BatchNorm1d", "memory_limit")


def test_batchnorm_may_take_all_of_the_memory_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than the usual half is said; more than the machine has is refused."""
    net = normed()
    x, y = np.ones((4096, 4)), np.zeros((4096, 3))
    monkeypatch.setattr(batch, "LEAST_MEMORY", 0)
    monkeypatch.setattr(batch, "machine_memory", lambda: 4096)
    with pytest.raises(RopError, match=r"BatchNorm1d.* a machine with 4,096") as refused:
        rop.Objective(net, rop.MSE(), x, y)
    (needed,) = re.findall(r"([\d,]+) bytes", str(refused.value))
    monkeypatch.setattr(batch, "machine_memory", lambda: int(needed.replace(",", "")))
    rop.Objective(net, rop.MSE(), x, y)
    said = capsys.readouterr().err
    assert "BatchNorm1d" in said and "more than half of the machine's memory" in said
    monkeypatch.setattr(batch, "machine_memory", lambda: 2 * int(needed.replace(",", "")))
    rop.Objective(net, rop.MSE(), x, y)
    assert capsys.readouterr().err == ""
