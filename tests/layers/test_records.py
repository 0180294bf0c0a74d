"""One record says all: adding an activation, a layer or a loss takes as many places as CONTRIBUTING.md promises.

Each of these tests copies the package and its tests to a temporary folder, edits the copy as docs/recipes.md says,
counts the places, and runs the real machinery there: the comparisons with torch at every order, and `rop check`.
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
from tests.helpers.recipes import Place, recipe


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
    with pytest.raises(rop.ArgumentError, match="family among bilinear, product, linear"):
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
        place.edit(folder)
    kernels = folder / "cache" / cache_folder().name.replace(source_digest(), source_digest(folder / "rop"))
    shutil.copytree(cache_folder(), kernels)
    os.chmod(folder / "cache", 0o700)
    return Copy(folder)


USED_ACTIVATION = """
import torch, rop
from rop import Tanhshrink
assert rop.Tanhshrink is Tanhshrink is rop.layers.LAYERS["Tanhshrink"] and "Tanhshrink" in rop.__all__ + dir(rop)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.last = torch.nn.Linear(3, 2), torch.nn.Tanhshrink()
    def forward(self, x):
        return self.last(self.linear(torch.nn.functional.tanhshrink(x)))

net, w, _ = rop.from_torch(Net())
assert [type(layer).__name__ for layer in net.layers] == ["Tanhshrink", "Linear", "Tanhshrink"]
assert isinstance(rop.to_torch(rop.Sequential(Tanhshrink()), w[:0])[0], torch.nn.Tanhshrink)
assert rop.check.layer(Tanhshrink()).ok
"""


def test_an_activation_takes_two_places(tmp_path: Path) -> None:
    places = recipe("An activation")
    assert len(places) == 2
    copy = edited(tmp_path, places)
    copy.compare("Tanhshrink", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("Tanhshrink", USED_ACTIVATION)


USED_LOSS = """
import functools, numpy as np, torch, rop
assert repr(rop.torch.loss_from_torch(torch.nn.SoftMarginLoss())) == "SoftMargin(reduction='mean')"
partial = functools.partial(torch.nn.functional.soft_margin_loss, reduction="sum")
assert rop.torch.loss_from_torch(partial).reduction == "sum"
net = rop.Sequential(rop.Linear(3, 2))
rng = np.random.default_rng(0)
x, y = rng.standard_normal((40, 3)), rng.choice([-1.0, 1.0], (40, 2))
p = rop.Objective(net, rop.SoftMargin(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
assert np.isfinite(rop.kfac.kfac(p).blocks[0].G).all()
assert rop.train(net, rop.SoftMargin(), (x, y), epochs=1, batch_size=20).history
"""


def test_a_loss_takes_three_places(tmp_path: Path) -> None:
    places = recipe("A loss")
    assert len(places) == 3
    copy = edited(tmp_path, places)
    copy.compare("SoftMargin", "tests/layers/test_losses.py", "tests/test_errors.py")
    copy.check("SoftMargin", USED_LOSS)


USED_LAYER = """
import numpy as np, rop
net = rop.Sequential(rop.Pointwise(2, 3), rop.ReLU(), rop.Flatten(), rop.Linear(12, 2))
x, y = np.random.default_rng(0).standard_normal((8, 2, 2, 2)), np.arange(8) % 2
assert rop.check.network(net, rop.CrossEntropy(), x, y).ok
"""


def test_a_bilinear_layer_takes_at_most_six_places(tmp_path: Path) -> None:
    places = recipe("A layer of a known family")
    assert 1 < len(places) <= 6
    copy = edited(tmp_path, places)
    copy.compare("Pointwise", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("Pointwise", USED_LAYER)


USED_CUSTOM = USED_LAYER.replace("rop.Pointwise(2, 3), rop.ReLU()", "rop.Conv2d(2, 3, 1), rop.Square()")


def test_a_custom_layer_takes_at_most_eight_places(tmp_path: Path) -> None:
    places = recipe("A layer with formulas of its own")
    assert 1 < len(places) <= 8
    copy = edited(tmp_path, places)
    copy.compare("Square", "tests/layers/test_layers.py", "tests/test_errors.py")
    copy.check("Square", USED_CUSTOM)
