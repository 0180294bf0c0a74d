"""One record says all: adding an activation, a layer or a loss takes as many places as CONTRIBUTING.md promises.

Each of these tests copies the package and its tests to a temporary folder, edits the copy at the places that it counts,
and runs the real machinery there: the suite's comparisons with torch at every order, and `rop check`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import rop
from rop.kernels.compile import cache_folder, source_digest
from rop.layers.elementwise import Builtin, tanh
from rop.layers.kinds import record_of
from rop.layers.record import ACTIVATIONS, FAMILIES, LAYERS, LOSSES, RECORDS, activation, layer, resolve
from tests.helpers.processes import ROOT, environment, run_python


# ------------------------------------------------------------------------------------------------------------- records
def test_every_public_layer_and_loss_has_a_record() -> None:
    assert {record.name: kind for kind, record in RECORDS.items()} == {**LAYERS, **LOSSES}
    assert all(record.family in FAMILIES for record in RECORDS.values())
    assert set(LOSSES.values()) == {r.kind for r in RECORDS.values() if r.family == "loss"}
    assert set(ACTIVATIONS) | {"Elementwise"} == {r.name for r in RECORDS.values() if r.family == "elementwise"}


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_name_in_a_record_leads_somewhere(kind: Any) -> None:
    record = RECORDS[kind]
    assert record.find("case").name == record.name
    assert callable(record.find("reference")) and record.find("checks")(kind)
    assert record.function is None or callable(record.find("function"))
    assert kind is getattr(rop, record.name) is getattr(rop.layers, record.name)


def test_a_missing_name_says_where_to_write_it() -> None:
    gap = replace(RECORDS[rop.Linear], checks="rop.check.subjects:nothing")
    with pytest.raises(rop.ArgumentError, match=r"Linear: its record names rop\.check\.subjects:nothing as its checks"):
        gap.find("checks")


def test_records_are_checked() -> None:
    with pytest.raises(rop.ArgumentError, match="family among bilinear, linear"):
        layer("quadratic")(rop.Linear)
    with pytest.raises(rop.ArgumentError, match="expression in torch"):
        activation()
    assert RECORDS[rop.Linear].family == "bilinear"


def test_a_class_with_a_record_is_computed_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twisted(Builtin):
        """tanh once more."""

        function = staticmethod(tanh)

    tables: list[tuple[dict[Any, Any], Any]] = [(RECORDS, Twisted), (LAYERS, "Twisted"), (ACTIVATIONS, "Twisted")]
    for table, key in tables:
        monkeypatch.setitem(table, key, None)  # is deleted in the end
    activation(expression=lambda torch, x: torch.tanh(x), case="tests.helpers.cases.elementwise:tanh")(Twisted)
    assert rop.layers.Twisted is Twisted and "Twisted" in rop.__all__
    assert record_of(Twisted(), "here").kind is Twisted
    assert rop.check.everything(["Twisted"], dtypes=["float64"]).ok


def test_the_core_imports_neither_torch_nor_hypothesis() -> None:
    run_python(
        "import sys, rop.layers; rop.Linear(2, 2); rop.layers.record.RECORDS[rop.Linear];"
        "assert not {'torch', 'hypothesis', 'numba', 'tests'} & set(sys.modules)"
    )


def test_lazy_names_are_found_once() -> None:
    assert resolve("rop.layers.elementwise:tanh") is tanh is resolve("rop.layers.elementwise:tanh")


# -------------------------------------------------------------------------------------------------------- public names
GROUPS = ("layers", "optim", "eigen", "training", "check", "datasets", "kfac", "experiments", "torch", "sklearn")


def test_groups_are_reachable_and_loaded_lazily() -> None:
    run_python(
        "import sys, rop\n"
        "assert not {'numpy', 'numba', 'scipy', 'torch'} & set(sys.modules)\n"
        f"for name in {GROUPS}:\n"
        "    assert getattr(rop, name).__name__ == f'rop.{name}' and name in dir(rop)\n"
    )


def test_all_holds_every_layer_and_loss_once() -> None:
    assert {*LAYERS, *LOSSES} <= set(rop.__all__) and len(set(rop.__all__)) == len(rop.__all__)
    assert all(getattr(rop, name) is not None for name in rop.__all__)


# ------------------------------------------------------------------------------------------------- how many places
@dataclass(frozen=True)
class Place:
    """An edit: text that is put at the end of a file, which is made if it is not there."""

    file: str
    text: str


@dataclass(frozen=True)
class Copy:
    """A copy of the package and its tests in a folder, with some places edited."""

    folder: Path

    def run(self, *command: str) -> str:
        """Runs Python in the copy; an error there is an error here, with its output."""
        variables = environment(ROP_CACHE_DIR=str(self.folder / "cache"), ROP_QUIET="1", PYTHONPATH=str(self.folder))
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def compare(self, name: str, *files: str) -> None:
        """The suite's tests of a layer or loss: against torch at every order, in both precisions, and its refusals."""
        said = self.run("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files, "-k", name)
        assert " passed" in said and "failed" not in said

    def check(self, name: str, code: str) -> None:
        """`rop check` of it, and code that uses it."""
        self.run("-m", "rop", "check", name)
        self.run("-c", code)


def edited(folder: Path, places: Sequence[Place]) -> Copy:
    """A copy with these places edited, and with the compiled kernels: an edit at the end of a file changes none of
    those that are there, so only new ones are compiled."""
    for name in ("rop", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for place in places:
        with open(folder / place.file, "a", encoding="utf-8") as file:
            file.write(place.text)
    kernels = folder / "cache" / cache_folder().name.replace(source_digest(), source_digest(folder / "rop"))
    shutil.copytree(cache_folder(), kernels)
    os.chmod(folder / "cache", 0o700)
    return Copy(folder)


ACTIVATION = [
    Place(
        "rop/layers/elementwise.py",
        '''

def log_sigmoid(x: float) -> Derivatives:
    """y = −log(1 + e⁻ˣ); y′ = 1 − s, y″ = −s′, y‴ = −s″ with s the sigmoid."""
    e = math.exp(-abs(x))
    high = 1 / (1 + e)
    s1 = e * high * high
    s2 = (1 - e) * high * s1 * (-1.0 if x >= 0 else 1.0)
    return min(x, 0.0) - math.log1p(e), e * high if x >= 0 else high, -s1, -s2


@record.activation("torch.nn.functional:logsigmoid")
class LogSigmoid(Builtin):
    """log of the sigmoid."""

    function = staticmethod(log_sigmoid)
''',
    ),
    Place(
        "tests/helpers/cases/elementwise.py",
        """
logsigmoid = Case("LogSigmoid", with_arguments(anything), misused(rop.LogSigmoid))
""",
    ),
]
USED_ACTIVATION = """
import torch, rop
from rop import LogSigmoid
assert rop.LogSigmoid is LogSigmoid is rop.layers.LAYERS["LogSigmoid"] and "LogSigmoid" in rop.__all__ + dir(rop)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.last = torch.nn.Linear(3, 2), torch.nn.LogSigmoid()
    def forward(self, x):
        return self.last(self.linear(torch.nn.functional.logsigmoid(x)))

net, w, _ = rop.from_torch(Net())
assert [type(layer).__name__ for layer in net.layers] == ["LogSigmoid", "Linear", "LogSigmoid"]
assert isinstance(rop.to_torch(rop.Sequential(LogSigmoid()), w[:0])[0], torch.nn.LogSigmoid)
assert rop.check.layer(LogSigmoid()).ok
"""


def test_an_activation_takes_two_places(tmp_path: Path) -> None:
    assert len(ACTIVATION) == 2
    copy = edited(tmp_path, ACTIVATION)
    copy.compare("LogSigmoid", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("LogSigmoid", USED_ACTIVATION)


LOSS = [
    Place(
        "rop/layers/loss.py",
        '''

def exponential(x: float) -> tuple[float, float, float, float]:
    """e^x, and so are its derivatives."""
    y = math.exp(x)
    return y, y, y, y


@record.loss(
    "poisson_nll_loss",
    "PoissonNLLLoss",
    only_torch={"log_input": True, "full": False, "eps": 1e-8},
    likelihood=lambda z, rng: rng.poisson(np.exp(z)).astype(np.float64),
)
class PoissonNLL(_DenseLoss):
    """e^z − t z, as torch's PoissonNLLLoss: −log of the probability to count t where e^z are expected, but for log t!.

    E⁰ = κ Σ (e^z⁰ − t z⁰)       E¹ = κ Σ (e^z⁰ − t) z¹       E² = κ Σ (e^z⁰ (z¹)² + (e^z⁰ − t) z²)
    g⁰ = κ (e^z⁰ − t)            g¹ = κ e^z⁰ z¹               g² = κ e^z⁰ ((z¹)² + z²)
    """

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        return float((np.exp(z) - targets.dense * z).sum())
''',
    ),
    Place(
        "rop/kernels/cpu/loss.py",
        '''

from rop.layers.loss import exponential as _exponential

exponential = formula(_exponential, versions)


@kernel
def poisson(g, energy, order, z0, z1, z2, dense, weight, samples, scale, omega, pixels, rows, lanes):
    """E = Σ ω (e^z − t z); g is ω times the jet of e^z (− t at order 0)."""
    sample = integers(samples, lanes)
    total = 0.0
    for pixel in range(pixels):
        factors = lane_weights(omega, order, weight, samples, scale, pixels, pixel, lanes)
        for row in range(rows):
            o = (pixel * rows + row) * lanes * itemsize
            seed, x0, x1, x2 = reals(g + o, lanes), reals(z0 + o, lanes), reals(z1 + o, lanes), reals(z2 + o, lanes)
            for t in range(lanes):
                y, d1, d2, _ = exponential(x0[t])
                if order == 0:
                    wanted = target(dense, sample[t], rows, pixels, row, pixel)
                    total += factors[t] * (y - wanted * x0[t])
                    seed[t] = factors[t] * (y - wanted)
                elif order == 1:
                    seed[t] = factors[t] * output_1(d1, x1[t])
                else:
                    seed[t] = factors[t] * output_2(d1, d2, x1[t], x2[t])
    if order == 0:
        doubles(energy, 1)[0] = total
''',
    ),
    Place(
        "rop/devices/cpu/emit/loss.py",
        '''

from rop.layers import PoissonNLL


@emits(PoissonNLL)
class EmitPoissonNLL(EmitBCEWithLogits):
    """Output by output, with the operands of BCEWithLogits."""

    kernel = loss.poisson
''',
    ),
    Place(
        "rop/check/subjects.py",
        """

def poissonnll(kind: Kind) -> list[Stand]:
    return [_loss(kind(), (4,), np.round(5 * _fractions)), _loss(kind(reduction="sum"), (4,), _fractions)]
""",
    ),
    Place(
        "tests/helpers/cases/loss.py",
        """
poissonnll = LossCase("PoissonNLL", float_targets(0.0, 5.0), refused_shapes(rop.PoissonNLL))
""",
    ),
]
USED_LOSS = """
import functools, numpy as np, torch, rop
assert repr(rop.torch.loss_from_torch(torch.nn.PoissonNLLLoss())) == "PoissonNLL(reduction='mean')"
partial = functools.partial(torch.nn.functional.poisson_nll_loss, reduction="sum")
assert rop.torch.loss_from_torch(partial).reduction == "sum"
try:
    rop.torch.loss_from_torch(torch.nn.PoissonNLLLoss(full=True))
except rop.ArgumentError as error:
    assert "full=True" in str(error)
net = rop.Sequential(rop.Linear(3, 2))
rng = np.random.default_rng(0)
x, y = rng.standard_normal((40, 3)), rng.poisson(1.0, (40, 2)).astype(float)
p = rop.Objective(net, rop.PoissonNLL(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
assert np.isfinite(rop.kfac.kfac(p).blocks[0].G).all()
assert rop.train(net, rop.PoissonNLL(), (x, y), epochs=1, batch_size=20).history
"""


def test_a_loss_takes_at_most_six_places(tmp_path: Path) -> None:
    assert len(LOSS) <= 6
    copy = edited(tmp_path, LOSS)
    copy.compare("PoissonNLL", "tests/layers/test_losses.py", "tests/test_errors.py")
    copy.check("PoissonNLL", USED_LOSS)


BILINEAR = [
    Place(
        "rop/layers/pointwise.py",
        '''"""Pointwise, y = W x + b at every pixel of an image: Linear's formulas, pixel by pixel."""

from __future__ import annotations

import numpy as np

from rop.arguments import check_int
from rop.layers import record
from rop.layers.base import Layer, Shape, check_image
from rop.layers.linear import affine_shapes, uniform_parameters


@record.layer("bilinear")
class Pointwise(Layer):
    """W (out_channels, in_channels) times the channels of each pixel."""

    in_channels: int
    out_channels: int
    bias = True
    kernel_size = stride = dilation = (1, 1)
    padding, groups = (0, 0), 1

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self._set(
            in_channels=check_int("Pointwise", "in_channels", in_channels),
            out_channels=check_int("Pointwise", "out_channels", out_channels),
        )

    def parameter_shapes(self) -> dict[str, Shape]:
        return affine_shapes((self.out_channels, self.in_channels), True)

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return uniform_parameters(rng, self.parameter_shapes())

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        (shape,) = shapes
        check_image(where, shape, self.in_channels)
        return (self.out_channels, *shape[1:])
''',
    ),
    Place(
        "rop/lowering/bilinear.py",
        '''

from rop.layers import Pointwise


@lowers(Pointwise)
def lower_pointwise(plan: Plan, node: Node, layer: Pointwise, inputs: list[Value]) -> Value:
    """A convolution with a window of one pixel."""
    return plan.add(ConvProducts(plan, node, layer, inputs[0]))
''',
    ),
    Place(
        "rop/check/reference.py",
        """

def pointwise(layer: Any, use: Use, x: Tensor) -> Tensor:
    return F.conv2d(x, use.parameters["weight"][:, :, None, None], use.parameters["bias"])
""",
    ),
    Place(
        "rop/check/subjects.py",
        """

def pointwise(kind: Kind) -> list[Stand]:
    return [_layer(kind(2, 3), IMAGE)]
""",
    ),
    Place(
        "tests/helpers/cases/bilinear.py",
        """

from tests.helpers.cases.common import only_images


@st.composite
def pointwises(draw: st.DrawFn) -> Drawn:
    channels, *pixels = draw(st.tuples(small, small, small))
    return {"in_channels": channels, "out_channels": draw(small)}, ((channels, *pixels),)


pointwise = Case("Pointwise", pointwises(), only_images(rop.Pointwise, in_channels=1, out_channels=1))
""",
    ),
]
USED_LAYER = """
import numpy as np, rop
net = rop.Sequential(rop.Pointwise(2, 3), rop.ReLU(), rop.Flatten(), rop.Linear(12, 2))
x, y = np.random.default_rng(0).standard_normal((8, 2, 2, 2)), np.arange(8) % 2
assert rop.check.network(net, rop.CrossEntropy(), x, y).ok
"""


def test_a_bilinear_layer_takes_at_most_six_places(tmp_path: Path) -> None:
    assert len(BILINEAR) <= 6
    copy = edited(tmp_path, BILINEAR)
    copy.compare("Pointwise", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("Pointwise", USED_LAYER)


CUSTOM = [
    Place(
        "rop/layers/square.py",
        '''"""Square, y = x², with formulas of its own.

    forward    y⁰ = (x⁰)²        y¹ = 2 x⁰ x¹                y² = 2 x⁰ x² + 2 (x¹)²
    backward   h⁰ = 2 x⁰ g⁰      h¹ = 2 (x⁰ g¹ + x¹ g⁰)      h² = 2 (x⁰ g² + 2 x¹ g¹ + x² g⁰)
"""

from __future__ import annotations

from rop.layers import record
from rop.layers.base import Layer, Shape


@record.layer("custom", checks="rop.check.subjects:on_vectors_and_images")
class Square(Layer):
    """x²."""

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        return shapes[0]
''',
    ),
    Place(
        "rop/lowering/square.py",
        '''"""Square."""

from __future__ import annotations

from rop.graph import Node
from rop.layers import Square
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class SquareOperation(Operation):
    """y = x²."""

    def __init__(self, plan: Plan, x: Value):
        self.reads(x)
        self.y = plan.like(x, frozenset(ORDERS) if x.levels & {1, 2} else frozenset({0}))


@lowers(Square)
def lower_square(plan: Plan, node: Node, layer: Square, inputs: list[Value]) -> Value:
    """One operation."""
    return plan.add(SquareOperation(plan, inputs[0]))
''',
    ),
    Place(
        "rop/kernels/cpu/square.py",
        '''"""Square, in Taylor coefficients."""

from __future__ import annotations

from rop.kernels.compile import kernel, real
from rop.kernels.cpu.memory import reals


@kernel
def forward(y, order, x0, x1, x2, count):
    """y_0 = (x_0)², y_1 = 2 x_0 x_1, y_2 = 2 x_0 x_2 + (x_1)²."""
    out, a, b, c = reals(y, count), reals(x0, count), reals(x1, count), reals(x2, count)
    for i in range(count):
        if order == 0:
            out[i] = a[i] * a[i]
        elif order == 1:
            out[i] = real(2) * a[i] * b[i]
        else:
            out[i] = real(2) * a[i] * c[i] + b[i] * b[i]


@kernel
def backward(h, order, x0, x1, x2, g0, g1, g2, count):
    """h_k = 2 Σ_j x_j g_(k−j)."""
    out, a, b, c = reals(h, count), reals(x0, count), reals(x1, count), reals(x2, count)
    d, e, f = reals(g0, count), reals(g1, count), reals(g2, count)
    for i in range(count):
        if order == 0:
            out[i] = real(2) * a[i] * d[i]
        elif order == 1:
            out[i] = real(2) * (a[i] * e[i] + b[i] * d[i])
        else:
            out[i] = real(2) * (a[i] * f[i] + b[i] * e[i] + c[i] * d[i])
''',
    ),
    Place(
        "rop/devices/cpu/emit/square.py",
        '''"""Square."""

from __future__ import annotations

from rop.devices.cpu.code import Code
from rop.devices.cpu.emit.base import Emitter, emits
from rop.kernels.cpu import square
from rop.lowering.square import SquareOperation


@emits(SquareOperation)
class EmitSquare(Emitter):
    """One kernel forward and one backward for each order."""

    operation: SquareOperation

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        if k in op.y.levels:
            x, count = layout.value("x", op.x[0], k), op.y.rows * layout.lanes
            code.tile(square.forward, y=layout.rows(op.y.buffer, k), order=k, **x, count=count)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        x, g, count = layout.value("x", op.x[0], k), layout.jet("g", op.g, k), op.y.rows * layout.lanes
        code.tile(square.backward, h=layout.rows(op.only_h, k), order=k, **x, **g, count=count)
''',
    ),
    Place(
        "rop/check/reference.py",
        """

def square(layer: Any, use: Use, x: Tensor) -> Tensor:
    return x * x
""",
    ),
    Place(
        "tests/helpers/cases/custom.py",
        """
square = Case("Square", with_arguments(vectors | images), misused(rop.Square))
""",
    ),
]
USED_CUSTOM = USED_LAYER.replace("rop.Pointwise(2, 3), rop.ReLU()", "rop.Conv2d(2, 3, 1), rop.Square()")


def test_a_custom_layer_takes_at_most_eight_places(tmp_path: Path) -> None:
    assert len(CUSTOM) <= 8
    copy = edited(tmp_path, CUSTOM)
    copy.compare("Square", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("Square", USED_CUSTOM)
