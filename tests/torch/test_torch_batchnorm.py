"""torch's own third derivatives: which are wrong on the pinned torch, and therefore written out in primitives here.

These tests are to fail when torch changes for the better. Their messages say what may then be removed.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rop.check import reference as oracle
from rop.layers.elementwise import gelu_tanh

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "torch_batchnorm_third_order.py"

WORKAROUNDS = {
    "batch norm": "batchnorm in primitives (check/reference.py: normalise, bench/engines/torch_layers.py: written_out)",
    "layer norm": "layer norm in primitives (check/reference.py: standardise)",
    "instance norm": "instance norm in primitives (check/reference.py: standardise)",
    "gelu": "gelu_tanh in rop/check/reference.py",
}
DOCUMENTED = "examples/torch_batchnorm_third_order.py, tests/torch/test_torch_batchnorm.py and docs/derivations.md"


def load() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


example = load()
PROBLEM = example.Problem.drawn()


def news(name: str, found: Any) -> str:
    """What to do if torch is not wrong any more; empty as long as it is."""
    version = f"torch {torch.__version__}"
    if found.refusal:
        return (
            f"{version} refuses the third derivative of {name} now ({found.refusal}) and is no longer wrong without"
            f" a word. Keep {WORKAROUNDS[name]}; say so in {DOCUMENTED}."
        )
    if found.verdict == "right":
        return f"{version} gets {name} right at third order now. Remove {WORKAROUNDS[name]}; say so in {DOCUMENTED}."
    return ""


@pytest.mark.parametrize("name", ["batch norm", "layer norm", "instance norm"])
def test_fused_normalisation_is_wrong_at_third_order(name: str) -> None:
    """Against central differences of torch's own H·v, which is right, and against rop."""
    found = example.outcome(name, True, PROBLEM)
    assert found.hvp < 1e-7
    if message := news(name, found):
        pytest.fail(message)
    assert found.r2 > 0.05 and found.beside_rop > 0.05


@pytest.mark.parametrize("name", example.NORMALISATIONS)
def test_normalisation_in_primitives_is_right_at_third_order(name: str) -> None:
    found = example.outcome(name, False, PROBLEM)
    assert found.verdict == "right" and found.hvp < 1e-7 and found.r2 < 1e-7 and found.beside_rop < 1e-12


@pytest.mark.parametrize("name", example.NORMALISATIONS)
def test_rop_is_right_at_third_order(name: str) -> None:
    found = example.rop_outcome(name, PROBLEM)
    assert found.hvp < 1e-7 and found.r2 < 1e-7


def test_fused_group_norm_is_right_at_third_order() -> None:
    assert example.outcome("group norm", True, PROBLEM).r2 < 1e-7


def test_fused_batchnorm_is_right_at_third_order_in_evaluation_mode() -> None:
    """With running statistics it is an affine map, and torch knows it."""
    mean, var = torch.linspace(-1, 1, 8, dtype=torch.float64), torch.linspace(0.5, 2, 8, dtype=torch.float64)
    f = PROBLEM.loss(lambda h: F.batch_norm(h, mean, var, training=False))
    _, hvp, w = example.first_two(f, PROBLEM.w, PROBLEM.v)
    expected = example.central(f, PROBLEM.w, PROBLEM.v)[1]
    assert example.relative(example.third(hvp, w, PROBLEM.v), expected) < 1e-7


def test_the_oracles_batchnorm_is_the_one_in_primitives() -> None:
    """The reference that the whole suite compares with."""
    f = PROBLEM.loss(lambda h: oracle.normalise(h, *oracle.batch_statistics(h), example.EPS, {}))
    *_, r2 = oracle.differentiate(f, PROBLEM.w, PROBLEM.v)
    np.testing.assert_allclose(r2.numpy(), PROBLEM.rop_jet("batch norm").r2, rtol=1e-10)


# ---- GELU ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [13.1, 100.0, -13.1])
def test_fused_gelu_is_nan_at_third_order_for_large_inputs_in_float32(x: float) -> None:
    assert_nan(x, torch.float32)


@pytest.mark.parametrize("x", [26.9, -26.9])
def test_fused_gelu_is_nan_at_third_order_for_large_inputs_in_float64(x: float) -> None:
    assert_nan(x, torch.float64)


def assert_nan(x: float, dtype: torch.dtype) -> None:
    found = example.third_of_gelu(x, dtype, True)
    assert math.isnan(found), (
        f"torch {torch.__version__} gives {found} for the third derivative of GELU (tanh) at {x:g} in {dtype} now. "
        f"Remove {WORKAROUNDS['gelu']}; say so in {DOCUMENTED}."
    )
    assert example.third_of_gelu(x, dtype, False) == 0  # in primitives; the exact value is below 1e-70
    assert abs(gelu_tanh(x)[3]) < 1e-70


@pytest.mark.parametrize("x", [-5.0, -1.0, 0.3, 2.0, 5.0])
def test_fused_gelu_is_right_at_third_order_for_ordinary_inputs(x: float) -> None:
    found = [example.third_of_gelu(x, torch.float64, fused) for fused in (True, False)]
    assert found == pytest.approx([gelu_tanh(x)[3]] * 2, rel=1e-9)


# ---- the reports themselves ------------------------------------------------------------------------------------------


def test_a_repaired_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pin fails, and says what to remove, when the fused layer gives what primitives give."""
    primitives = example.NORMALISATIONS["batch norm"][1]
    monkeypatch.setattr(F, "batch_norm", lambda h, *args, **options: primitives(h))
    with pytest.raises(pytest.fail.Exception, match=r"gets batch norm right at third order now.*reference\.py"):
        test_fused_normalisation_is_wrong_at_third_order("batch norm")


def test_a_refusing_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.14.1 does."""

    def refuse(*args: Any) -> None:
        raise RuntimeError("batch_norm does not support 3rd+ order derivatives.")

    monkeypatch.setattr(example, "third", refuse)
    with pytest.raises(pytest.fail.Exception, match=r"refuses the third derivative.*3rd\+ order.*Keep"):
        test_fused_normalisation_is_wrong_at_third_order("batch norm")


def test_the_script_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"torch {torch.__version__}")
    fused, primitives, ours = lines[3:6]
    assert fused.startswith("batch norm") and fused.endswith(example.outcome("batch norm", True, PROBLEM).verdict)
    assert primitives.endswith("right") and ours.endswith("right")
    ends = {line.index("e-") for line in (fused, primitives, ours)}
    assert len(ends) == 1, "columns are aligned"
    assert sum("nan" in line for line in lines) == 4
