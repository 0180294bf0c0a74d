"""torch, scikit-learn, matplotlib and rich are optional: without one of them the rest works, and whatever needs it says
what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import run_python

# Python as it is where some packages are not installed: no finder knows them
HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)

sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]

def refused(call, *words):
    try:
        call()
    except ImportError as error:
        import rop
        assert isinstance(error, rop.RopError), type(error)
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError("it was not refused")
"""

CORE = """
import numpy as np, rop
net = rop.Sequential(rop.Linear(2, 5), rop.Tanh(), rop.Linear(5, 2))
x = np.random.default_rng(0).standard_normal((64, 2)); y = (x[:, 0] > 0).astype(int)
w = net.init()
jet = rop.Objective(net, rop.CrossEntropy(), x, y).jet(w, w)
assert np.isfinite(jet.r2).all()
fit = rop.train(net, rop.CrossEntropy(), (x, y), epochs=2, batch_size=32, regularizer=rop.SpectralRadius(0.01))
assert rop.spectral_radius(rop.Objective(net, rop.CrossEntropy(), x, y).at(fit.w)).rho > 0
from rop import *
assert not {"torch", "sklearn", "matplotlib", "rich", "jax", "pandas"} & set(sys.modules), "nobody asked for them"
"""

MESSAGES = {
    "sklearn": """
refused(lambda: rop.sklearn, "rop.sklearn: scikit-learn", "No module named 'sklearn'", "pip install 'rop[sklearn]'")
refused(lambda: __import__("rop.sklearn"), "pip install 'rop[sklearn]'")
refused(lambda: rop.datasets.load("digits"), "datasets: scikit-learn", "pip install 'rop[train]'")
from rop.cli import main
assert main(["demo", "--epochs", "1"]) == 1
""",
    "rich": """
from rop.cli import main
refused(lambda: rop.train(net, rop.CrossEntropy(), (x, y), batch_size=32, progress=True), "rich",
        "pip install 'rop[train]'")
assert main(["train", "digits", "--epochs", "1", "--out", "run"]) == 0
""",
    "matplotlib": """
from rop.cli import main
assert main(["train", "digits", "--epochs", "1", "--out", "run", "--quiet"]) == 0
assert main(["spectrum", "run", "--steps", "10", "--k", "1", "--probes", "1"]) in (0, 1)
from pathlib import Path
assert sorted(path.suffix for path in Path("run").iterdir()) == [".csv", ".json", ".npz", ".npz"]
""",
    "torch": """
refused(lambda: rop.from_torch, "rop.torch: PyTorch", "No module named 'torch'", "pip install 'rop[torch]'")
refused(lambda: rop.to_torch, "pip install 'rop[torch]'")
refused(lambda: rop.torch.SpectralRadius, "pip install 'rop[torch]'")
""",
}
SAID = {
    "sklearn": ["rop demo: datasets: scikit-learn is needed here", "pip install 'rop[train]'"],
    "rich": ["note: no progress bar, because rich is not installed (pip install 'rop[train]')"],
    "matplotlib": [
        "note: no curves.png, because matplotlib is not installed (pip install 'rop[train]')",
        "note: no spectrum.png, because matplotlib is not installed",
    ],
}


@pytest.mark.parametrize(
    "package", [pytest.param(name, marks=pytest.mark.thorough if name == "matplotlib" else ()) for name in MESSAGES]
)
def test_without(package: str, tmp_path: Path) -> None:
    code = f"HIDDEN = {[package]}{HIDE}import os\nos.chdir({str(tmp_path)!r}){CORE}{MESSAGES[package]}"
    said = run_python(code).stderr
    for line in SAID.get(package, []):
        assert line in said


def test_without_any_of_them() -> None:
    run_python(f"HIDDEN = {[*MESSAGES, 'jax', 'pandas', 'joblib']}{HIDE}{CORE}")
