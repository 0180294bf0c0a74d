"""Nothing falls through: whatever looks something up by its kind refuses a kind that it does not know.

Kinds of layers and losses are looked up by class. A subclass is computed as the class of the package that it derives
from, unless it changes what the engine would not look at: then it is refused, on every way into the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import rop
from rop import devices, experiments, optim
from rop.bench import engines, flops, networks, problems, vocabulary
from rop.bench.engines.torch_layers import FUSED
from rop.check import reference
from rop.experiments import runs
from rop.layers import ACTIVATIONS, LAYERS, LOSSES
from rop.layers.elementwise import tanh
from rop.layers.record import RECORDS
from rop.lowering import LOWERINGS, outline
from rop.lowering.linear_maps import ToMaps, ToSamples
from rop.training.compiled import CompiledSteps
from rop.training.steps import steps_for
from tests.helpers.cuda_requests import Network
from tests.helpers.zoo import normal
from tests.test_errors import assert_refused

X, Y = normal(0, (8, 4)), normal(1, (8, 4))
with_cuda = pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")


# ------------------------------------------------------------------------------------------------------- unknown kinds
class OwnLoss(rop.Loss):
    """Derives from no loss that is known."""


class WholeOwnLoss(rop.Loss):
    """Likewise, with everything that Python needs to evaluate it."""

    def _targets(self, y: Any, shape: Any, dtype: Any) -> Any:
        return rop.MSE().targets(y, shape[0], shape[1:], dtype)

    def _energy(self, z: np.ndarray, targets: Any) -> float:
        return float(np.abs(z - targets.dense).sum())


class OwnLayer(rop.Layer):
    """Derives from no layer that is known."""

    def output_shape(self, where: str, *shapes: Any) -> Any:
        return shapes[0]


class ShapelessLayer(rop.Layer):
    """Does not even say its shape."""


# ------------------------------------------------------------------- subclasses that change what nobody would look at
class Half(rop.MSE):
    def _energy(self, z: np.ndarray, targets: Any) -> float:
        return super()._energy(z, targets) / 2


class OtherTargets(rop.MSE):
    def _targets(self, y: Any, shape: Any, dtype: Any) -> Any:
        return super()._targets(2 * y, shape, dtype)


class OtherValue(rop.CrossEntropy):
    def value(self, outputs: Any, y: Any) -> float:
        return 0.0


class Leaky(rop.ReLU):
    negative_slope = 0.5


class WithForward(rop.Tanh):
    def forward(self, x: Any) -> Any:
        return x


class OtherFunction(rop.Tanh):
    function = staticmethod(rop.Sigmoid.function)


class Narrow(rop.Identity):
    def output_shape(self, where: str, *shapes: Any) -> Any:
        return (1,)


class MoreParameters(rop.Linear):
    def parameter_shapes(self) -> dict[str, Any]:
        return {**super().parameter_shapes(), "scale": (1,)}


class EqualIsTheSame(rop.Linear):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualIsTheSame)

    def __hash__(self) -> int:
        return 0


class Mixin:
    negative_slope = 1.0


class MixedIn(Mixin, rop.LeakyReLU):
    """What changes the formula comes from a class that has nothing to do with layers."""


REFUSED_LOSSES: list[tuple[Any, str]] = [
    (OwnLoss(), "OwnLoss"),
    (WholeOwnLoss(), "WholeOwnLoss"),
    (rop.Loss(), "Loss"),
    (Half(), "_energy"),
    (OtherTargets(), "_targets"),
    (OtherValue(), "value"),
]
REFUSED_LAYERS: list[tuple[Any, str]] = [
    (OwnLayer(), "OwnLayer"),
    (ShapelessLayer(), "ShapelessLayer"),
    (rop.Layer(), "Layer"),
    (Leaky(), "negative_slope"),
    (WithForward(), "forward"),
    (OtherFunction(), "function"),
    (Narrow(), "output_shape"),
    (MoreParameters(4, 4), "parameter_shapes"),
    (EqualIsTheSame(4, 4), "__eq__"),
    (MixedIn(0.1), "negative_slope"),
]


# -------------------------------------------------------------------------- subclasses that change nothing of the kind
class Wide(rop.Linear):
    """Its own constructor, its own name, its own start."""

    def __init__(self, width: int = 4) -> None:
        super().__init__(width, width)

    def describe(self) -> str:
        return "a wide layer"

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"weight": np.eye(self.out_features), "bias": np.full(self.out_features, 0.1)}

    def helper(self) -> int:
        return self.in_features


class Renamed(rop.LeakyReLU):
    """Nothing but another name."""


class Bent(rop.Elementwise):
    """An activation of a user's own as a class: the engine reads its function."""

    function = staticmethod(tanh)

    def __init__(self) -> None:
        """No arguments."""


class Weighted(rop.CrossEntropy):
    """Arguments that are always the same."""

    def __init__(self) -> None:
        super().__init__(weight=[1.0, 2.0, 3.0, 4.0])


class Norm(rop.BatchNorm1d):
    """Nothing but another name."""


SAME_LAYERS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (Wide, lambda: rop.Linear(4, 4)),
    (lambda: Renamed(0.2), lambda: rop.LeakyReLU(0.2)),
    (Bent, rop.Tanh),
    (lambda: Norm(4), lambda: rop.BatchNorm1d(4)),
]


def net_of(layer: Any) -> Any:
    return rop.Sequential(rop.Linear(4, 4), layer, rop.Linear(4, 4))


GOOD = net_of(rop.Tanh())
W = GOOD.init(dtype=np.float64)


def check_options() -> dict[str, Any]:
    return {"dtypes": ["float64"], "orders": [0]}


WAYS: dict[str, Callable[[Any, Any], Any]] = {  # every way into the engine, with a net and a loss
    "Objective": lambda net, loss: rop.Objective(net, loss, X, Y),
    "train": lambda net, loss: rop.train(net, loss, (X, Y), batch_size=4, epochs=1),
    "train step by step": lambda net, loss: rop.train(
        net, loss, (X, Y), batch_size=4, epochs=1, regularizer=rop.SpectralRadius(solver="lanczos")
    ),
    "CompiledSteps": lambda net, loss: CompiledSteps(net, loss, X, Y, batch_size=4, w=np.zeros(net.size)),
    "check.network": lambda net, loss: rop.check.network(net, loss, X, Y, **check_options()),
    "reference": lambda net, loss: reference.reference(net, loss, X, Y, np.zeros(net.size), np.zeros(net.size)),
    "lowering": lambda net, loss: outline(net, (4,), True, loss, np.dtype(np.float64)),
}
CUDA: dict[str, Callable[[Any, Any], Any]] = {
    "lowering for cuda": lambda net, loss: list(Network(net, (4,), loss).requests()),
}
MARKED = [*WAYS, pytest.param("lowering for cuda", marks=with_cuda)]


@pytest.mark.parametrize("way", MARKED)
@pytest.mark.parametrize("loss, word", REFUSED_LOSSES, ids=lambda value: type(value).__name__)
def test_an_unknown_loss_is_refused(way: str, loss: Any, word: str) -> None:
    assert_refused(lambda: {**WAYS, **CUDA}[way](GOOD, loss), TypeError, type(loss).__name__, word, "rop")


@pytest.mark.parametrize("way", MARKED)
@pytest.mark.parametrize("layer, word", REFUSED_LAYERS, ids=lambda value: type(value).__name__)
def test_an_unknown_layer_is_refused(way: str, layer: Any, word: str) -> None:
    assert_refused(lambda: {**WAYS, **CUDA}[way](net_of(layer), rop.MSE()), TypeError, type(layer).__name__, word)


@pytest.mark.parametrize("layer, word", REFUSED_LAYERS, ids=lambda value: type(value).__name__)
def test_an_unknown_layer_is_refused_elsewhere(layer: Any, word: str) -> None:
    net = net_of(layer)
    for call in (
        lambda: net.predict(np.zeros(net.size), X),
        lambda: rop.to_torch(net, np.zeros(net.size)),
        lambda: rop.check.layer(layer, **check_options()),
        lambda: reference.output_shape(layer, (4,)),
    ):
        assert_refused(call, TypeError, type(layer).__name__, word)


@pytest.mark.parametrize("loss, word", REFUSED_LOSSES, ids=lambda value: type(value).__name__)
def test_an_unknown_loss_is_refused_elsewhere(loss: Any, word: str) -> None:
    for call in (
        lambda: rop.evaluate(GOOD, loss, W, X, Y),
        lambda: rop.check.loss(loss, **check_options()),
        lambda: flops._seed(loss, frozenset({0})),
    ):
        assert_refused(call, TypeError, type(loss).__name__, word)


def test_a_loss_without_formulas_says_so_where_it_is_asked() -> None:
    assert_refused(lambda: OwnLoss().targets(Y, 8, (4,), np.float64), TypeError, "OwnLoss", "targets", "rop.MSE"[4:])
    assert_refused(lambda: OwnLoss()._energy(X, None), TypeError, "OwnLoss", "computed")  # type: ignore[arg-type]
    assert WholeOwnLoss().value(X, X) == 0.0  # what it does say is used


@pytest.mark.parametrize("kind", [rop.Linear, rop.Conv2d, rop.LeakyReLU, rop.BatchNorm1d, rop.CrossEntropy, rop.MSE])
def test_a_constructor_that_forgets_its_parent(kind: Any) -> None:
    forgetful = type("Forgetful", (kind,), {"__init__": lambda self: None})()
    call = lambda: rop.Objective(  # noqa: E731
        *((GOOD, forgetful) if isinstance(forgetful, rop.Loss) else (net_of(forgetful), rop.MSE())), X, Y
    )
    assert_refused(call, TypeError, "Forgetful", "super().__init__")
    assert not hasattr(forgetful, "something") and not hasattr(forgetful, "weight_")


# ------------------------------------------------------------------------------- a subclass is what it derives from
@pytest.mark.parametrize("own, like", SAME_LAYERS)
def test_a_subclass_of_a_layer_gives_the_same_bits(own: Any, like: Any) -> None:
    v = normal(2, (net_of(like()).size,))
    for training in (True, False):
        objectives = (
            rop.Objective(net_of(make()), rop.MSE(), X, Y, dtype=np.float64, training=training) for make in (own, like)
        )
        one, other = (f.jet(v, v[::-1]) for f in objectives)
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert rop.check.layer(own(), shape=(4,), **check_options()).ok


@with_cuda
@pytest.mark.parametrize("own, like", SAME_LAYERS)
def test_a_subclass_of_a_layer_launches_the_same_kernels(own: Any, like: Any) -> None:
    assert list(Network(net_of(own()), (4,), rop.MSE()).requests()) == list(
        Network(net_of(like()), (4,), rop.MSE()).requests()
    )


def test_a_subclass_of_a_loss() -> None:
    y, like = np.arange(8) % 4, rop.CrossEntropy(weight=[1.0, 2.0, 3.0, 4.0])
    points = [rop.Objective(GOOD, loss, X, y, dtype=np.float64).at(W) for loss in (Weighted(), like)]
    np.testing.assert_array_equal(points[0].grad, points[1].grad)
    factors = [rop.kfac.kfac(p).blocks[0].G for p in points]  # makes a plain loss of the same kind
    np.testing.assert_array_equal(factors[0], factors[1])
    assert rop.check.network(GOOD, Weighted(), X, y, **check_options()).ok
    assert rop.evaluate(GOOD, Weighted(), W, X, y) == rop.evaluate(GOOD, like, W, X, y)


@with_cuda
def test_a_subclass_of_a_loss_launches_the_same_kernels() -> None:
    requests = [list(Network(GOOD, (4,), loss, dense=False).requests()) for loss in (Weighted(), rop.CrossEntropy())]
    assert requests[0] == requests[1]


def test_a_subclass_goes_to_torch_as_its_parent() -> None:
    net = rop.Sequential(Wide(), Renamed(0.2))
    module = rop.to_torch(net, net.init())
    assert type(module[0]).__name__ == "Linear" and module[1].negative_slope == 0.2
    assert_refused(lambda: rop.to_torch(net_of(Bent()), W), TypeError, "to_torch", "Bent")  # torch has no such module


# ------------------------------------------------------------------------------------------------------------- devices
@with_cuda
def test_an_operation_without_launches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rop.devices.cuda.emit.base import REGISTRY
    from rop.lowering.elementwise import Activation

    monkeypatch.delitem(REGISTRY.all(), Activation)
    with pytest.raises(rop.DeviceError, match=r"layer 1 \(Tanh\).*no kernels for Activation on a GPU.*device='cpu'"):
        list(Network(GOOD, (4,), rop.MSE()).requests())


@with_cuda
def test_a_loss_without_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rop.devices.cpu.emit.base import REGISTRY as ON_CPU
    from rop.devices.cuda.emit.base import REGISTRY

    assert set(LOSSES.values()) <= set(REGISTRY.all()) == set(ON_CPU.all()) - {ToMaps, ToSamples}
    monkeypatch.delitem(REGISTRY.emitters, rop.MSE)
    with pytest.raises(rop.DeviceError, match=r"loss MSE: there are no kernels for MSE on a GPU.*device='cpu'"):
        list(Network(GOOD, (4,), rop.MSE()).requests())


def test_every_layer_has_a_lowering() -> None:
    assert not [kind for kind in LAYERS.values() if not set(kind.__mro__) & set(LOWERINGS)]


UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "workspace of a device": (
        lambda: devices.make_workspace("tpu", GOOD, (4,), True, rop.MSE(), np.float64, 8, 1),
        "tpu",
    ),
    "steps on a device": (lambda: steps_for(rop.SGD(), None, "tpu"), "tpu"),
    "device of an objective": (lambda: rop.Objective(GOOD, rop.MSE(), X, Y, device="tpu"), "tpu"),
    "device of training": (lambda: rop.train(GOOD, rop.MSE(), (X, Y), device="tpu"), "tpu"),
    "dtype": (lambda: rop.Objective(GOOD, rop.MSE(), X, Y, dtype="float16"), "float16"),
    "dtype that NumPy fails on": (lambda: GOOD.init(dtype={"names": 3}), "names"),
    "settings": (lambda: optim.revive({"is": "Lion", "lr": 0.1}), "Lion"),
    "settings without a name": (lambda: optim.revive({"lr": 0.1}), "None"),
    "settings with a list for a name": (lambda: optim.revive({"is": ["SGD"]}), "SGD"),
    "an argument of settings": (lambda: optim.revive({"is": "SGD", "rate": 0.1}), "rate"),
    "solver": (lambda: rop.SpectralRadius(solver="qr"), "qr"),
    "method": (lambda: rop.spectral_radius(np.eye(2), method="qr"), "qr"),
    "option of a method": (lambda: rop.spectral_radius(np.eye(2), method="lanczos", stop="paper"), "stop"),
    "fisher": (lambda: rop.kfac.kfac(rop.Objective(GOOD, rop.MSE(), X, Y).at(W), fisher="none"), "none"),
    "data set": (lambda: rop.datasets.load("imagenet"), "imagenet"),
    "experiment": (lambda: runs.new_config("imagenet"), "imagenet"),
    "run": (lambda: runs.Run({**runs.new_config("digits"), "dataset": "imagenet"}, None), "imagenet"),
    "setting": (lambda: experiments.forest_net("papr"), "papr"),
    "setting of another net": (lambda: experiments.usps_net("papr"), "papr"),
    "subject of a check": (lambda: rop.check.everything(["Conv3d"]), "Conv3d"),
    "loss of a problem": (lambda: problems.Problem("p", "", (4,), (), loss="hinge"), "hinge"),
    "activation of a problem": (lambda: problems.Activation("mish"), "mish"),
    "pooling of a problem": (lambda: problems.Pool("median", 2, 2), "median"),
    "engine": (lambda: engines.make("tensorflow", 1), "tensorflow"),
    "engine on a GPU": (lambda: engines.make("jax", 1, "cuda"), "jax"),
    "device of an engine": (lambda: engines.make("rop", 1, "tpu"), "tpu"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_an_unknown_name_is_refused(what: str) -> None:
    call, name = UNKNOWN[what]
    assert_refused(call, Exception, name)


def test_a_gap_in_the_reference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (rop.Tanh, rop.MSE):
        nowhere = replace(RECORDS[kind], reference="rop.check.reference:nothing")
        monkeypatch.setitem(RECORDS, kind, nowhere)
    assert_refused(lambda: reference.predict(GOOD, W, X), ValueError, "reference", "Tanh")
    tensor = reference.tensor(X)
    assert_refused(lambda: reference.loss_value(rop.MSE(), tensor, tensor), ValueError, "reference", "MSE")


# --------------------------------------------------------------------------------- settings are known by their class
@dataclass(frozen=True)
class AdamW(rop.Adam):
    """May have another step than Adam."""


@dataclass(frozen=True)
class Gentle(rop.SpectralRadius):
    """May have another gradient than its parent."""


def compiled_steps(**given: Any) -> Any:
    return CompiledSteps(GOOD, rop.MSE(), X, Y, batch_size=4, w=W, **given)


@pytest.mark.parametrize("given", [{"optimizer": AdamW()}, {"regularizer": Gentle()}])
def test_compiled_steps_take_no_subclass_for_its_parent(given: dict[str, Any]) -> None:
    (value,) = given.values()
    assert_refused(lambda: compiled_steps(**given), TypeError, "CompiledSteps", type(value).__name__)


@pytest.mark.parametrize(
    "given", [{"optimizer": rop.SGD}, {"optimizer": "adam"}, {"regularizer": 0.1}, {"regularizer": rop.SpectralRadius}]
)
def test_what_is_no_optimizer_and_no_penalty_is_refused(given: dict[str, Any]) -> None:
    (value,) = given.values()
    name = getattr(value, "__name__", type(value).__name__)
    assert_refused(lambda: rop.train(GOOD, rop.MSE(), (X, Y), batch_size=4, **given), TypeError, "train", name)
    assert_refused(lambda: compiled_steps(**given), TypeError, "CompiledSteps", name)


# -------------------------------------------------------------------------------------------------------- the benchmark
@dataclass(frozen=True)
class Attention:
    """A layer that no engine of the benchmark knows."""

    heads: int = 1


def forwards() -> Iterator[Any]:
    layers: Any = (Attention(),)
    yield pytest.param(lambda: networks.network(layers, (4,)), id="rop")
    x = reference.tensor(X)
    yield pytest.param(lambda: FUSED.forward(layers, iter(()), x), id="torch")
    yield pytest.param(lambda: list(vocabulary.parameters_of(layers)), id="parameters")
    yield pytest.param(lambda: vocabulary.shape_after(layers, (4,)), id="shapes")
    if find_spec("jax") is not None:
        from rop.bench.engines.jax_layers import JaxLayers

        yield pytest.param(lambda: JaxLayers().forward(layers, iter(()), X), id="jax")


@pytest.mark.parametrize("call", list(forwards()))
def test_the_benchmark_skips_no_layer(call: Callable[[], Any]) -> None:
    assert_refused(call, TypeError, "Attention", "bench")


def test_operations_are_counted_for_known_layers_only() -> None:
    net = net_of(OwnLayer())
    assert_refused(lambda: flops._Walk(net, net.shapes((4,)), True), TypeError, "OwnLayer", "flops")


# ---------------------------------------------------------------------------------------------------------- the package
def test_every_activation_of_the_registry_is_a_public_name() -> None:
    assert set(ACTIVATIONS) <= set(rop.__all__) and all(getattr(rop, name) is ACTIVATIONS[name] for name in ACTIVATIONS)
