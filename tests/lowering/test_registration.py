"""Lowerings and emitters are found where they are defined: nothing else lists them.

A layer and a loss that only the CPU can compute are added here in a few lines each, as a new file of the package would.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.devices.cpu.code import Code
from rop.devices.cpu.emit.base import REGISTRY, Emitter, emits
from rop.devices.cpu.emit.linear_maps import copy_or_add
from rop.devices.cpu.emit.loss import EmitMSE
from rop.layers import LAYERS, LOSSES
from rop.lowering import LOWERINGS, ORDERS, Operation, Plan, Value, lowers
from rop.lowering.bilinear import WEIGHT_ORDERS
from rop.lowering.linear_maps import ToMaps, ToSamples
from rop.lowering.values import cauchy_pairs
from tests.helpers.cuda_requests import Network
from tests.helpers.zoo import normal

PACKAGE = Path(rop.__file__).parent
X, Y = normal(0, (8, 4)), normal(1, (8, 4))
with_cuda = pytest.mark.skipif(find_spec("numba_cuda") is None, reason="numba-cuda is not installed")


# ------------------------------------------------------------------------------------------------- a layer and a loss
class Doubling(rop.Layer):
    """y = 2 x."""

    __module__ = "rop.layers.doubling"  # a class of the package, not a user's own

    def output_shape(self, where: str, *shapes: Any) -> Any:
        return shapes[0]


class DoubleOperation(Operation):
    """Twice the input."""

    def __init__(self, plan: Plan, x: Value):
        self.reads(x)
        self.y = plan.like(x, x.levels)


class EmitDouble(Emitter):
    """The input copied, then added once more; the gradient likewise."""

    operation: DoubleOperation

    def _pass(self, code: Code, k: int, y: Any, x: Any) -> None:
        for add in (False, True):
            copy_or_add(self.layout, code, k, y, x, add)

    def forward(self, code: Code, k: int, direction: int) -> None:
        op = self.operation
        if k in op.y.levels:
            self._pass(code, k, op.y.buffer, op.x[0].buffer)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op = self.operation
        self._pass(code, k, op.only_h, op.g)


class Distance(rop.MSE):
    """The mean squared error under another name, with an emitter of its own."""

    __module__ = "rop.layers.distance"


class EmitDistance(EmitMSE):
    """As for MSE."""


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer and the loss are known, and forgotten after the test; no device has emitters for them."""
    monkeypatch.setitem(LOWERINGS, Doubling, None)  # is deleted in the end
    monkeypatch.setitem(LOSSES, "Distance", Distance)
    lowers(Doubling)(lambda plan, node, layer, inputs: plan.add(DoubleOperation(plan, inputs[0])))


@pytest.fixture
def emitted(lowered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have emitters on the CPU, too."""
    for kind, emitter in ((DoubleOperation, EmitDouble), (Distance, EmitDistance)):
        monkeypatch.setitem(REGISTRY.emitters, kind, None)
        emits(kind)(emitter)


def net_of(double: Any) -> Any:
    x = rop.Input()
    return rop.Graph(x, rop.Linear(4, 4)(double(rop.Tanh()(rop.Linear(4, 4)(x)))))


def jet(net: Any, loss: Any) -> Any:
    w, v = normal(2, (net.size,)), normal(3, (net.size,))
    return rop.Objective(net, loss, X, Y, dtype=np.float64).jet(w, v)


def test_a_new_layer_and_a_new_loss_on_the_cpu(emitted: None) -> None:
    found = jet(net_of(Doubling()), Distance())
    expected = jet(net_of(lambda x: rop.Add()(x, x)), rop.MSE())
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@with_cuda
def test_a_layer_without_a_cuda_emitter_is_named(emitted: None) -> None:
    with pytest.raises(rop.DeviceError, match=r"^layer 2 \(Doubling\): .*DoubleOperation.*device='cpu'"):
        list(Network(net_of(Doubling()), (4,), rop.MSE()).requests())


@with_cuda
def test_a_loss_without_a_cuda_emitter_is_named(emitted: None) -> None:
    with pytest.raises(rop.DeviceError, match=r"^loss Distance: .*device='cpu'"):
        list(Network(net_of(rop.Tanh()), (4,), Distance()).requests())


def test_a_missing_emitter_of_the_cpu_is_a_mistake_in_the_package(lowered: None) -> None:
    with pytest.raises(NotImplementedError, match=r"layer 2 \(Doubling\).*DoubleOperation in rop\.devices\.cpu\.emit"):
        jet(net_of(Doubling()), rop.MSE())
    with pytest.raises(NotImplementedError, match=r"loss Distance.*Distance in rop\.devices\.cpu\.emit"):
        jet(net_of(rop.Tanh()), Distance())


# --------------------------------------------------------------------------------------------------------- the package
def operations() -> set[type[Operation]]:
    """Every kind of operation of the package."""

    def leaves(kind: type[Operation]) -> set[type[Operation]]:
        return {leaf for one in kind.__subclasses__() for leaf in leaves(one)} or {kind}

    return {kind for kind in leaves(Operation) if kind.__module__.startswith("rop.")}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=with_cuda)])
def test_every_operation_and_loss_has_an_emitter_in_the_file_of_its_family(device: str) -> None:
    registry = import_module(f"rop.devices.{device}.emit.base").REGISTRY
    emitters = registry.all()
    (loss,) = (kind for kind in operations() if kind.__name__ == "LossOperation")
    elsewhere = {loss} | ({ToMaps, ToSamples} if device == "cuda" else set())  # a GPU has no pixel lanes to come from
    assert set(emitters) == operations() - elsewhere | set(LOSSES.values())
    for kind, emitter in emitters.items():
        family = (loss if kind in LOSSES.values() else kind).__module__.rpartition(".")[2]
        assert emitter.__module__ == f"rop.devices.{device}.emit.{family}"


def test_every_layer_has_a_lowering() -> None:
    assert not [kind for kind in LAYERS.values() if not set(kind.__mro__) & set(LOWERINGS)]


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports, wherever it does."""
    tree = ast.walk(ast.parse(file.read_text("utf-8")))
    found = set()
    for node in tree:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def test_lowering_imports_no_device_and_no_kernel() -> None:
    for file in (PACKAGE / "lowering").glob("*.py"):
        assert not [name for name in imports_of(file) if name.startswith(("rop.devices", "rop.kernels"))], file


def test_the_devices_have_the_same_files_and_import_nothing_of_each_other() -> None:
    """But for the threads and the guard mode of a CPU, its two layouts, its passes of K-FAC, and its emitters of packed
    weights."""
    folders = {device: PACKAGE / "devices" / device for device in ("cpu", "cuda")}
    files = {
        device: {str(file.relative_to(folder)): file for file in folder.rglob("*.py")}
        for device, folder in folders.items()
    }
    assert set(files["cuda"]) <= set(files["cpu"])
    own = {"guard.py", "threads.py", "choice.py", "lifetimes.py", "factors.py", "preconditioner.py"}
    own |= {f"emit/{name}.py" for name in ("panels", "products", "reads", "strips", "winograd", "depthwise")}
    assert set(files["cpu"]) - set(files["cuda"]) == own
    for device, other in (("cpu", "cuda"), ("cuda", "cpu")):
        for file in files[device].values():
            unwanted = f"rop.devices.{other}", f"rop.kernels.{other}"
            assert not [name for name in imports_of(file) if name.startswith(unwanted)], file


# ----------------------------------------------------------------------------------------------------- Cauchy products
@pytest.mark.parametrize("k", ORDERS)
@pytest.mark.parametrize("levels", [{0}, {0, 1}, {0, 1, 2}, {2}, set()])
def test_terms_of_a_product_of_jets(k: int, levels: set[int]) -> None:
    """Coefficient k of (a_0 + a_1 t)(Σ b_i tⁱ), where b has these orders only."""
    a, b = [2.0, 3.0, 0.0], [float(5 + i) if i in levels else 0.0 for i in ORDERS]
    terms = cauchy_pairs(k, WEIGHT_ORDERS, levels)
    assert sum(a[j] * b[i] for j, i in terms) == np.convolve(a, b)[k]
    assert terms == sorted(terms) and all(i in levels and j in WEIGHT_ORDERS for j, i in terms)
