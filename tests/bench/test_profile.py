"""The profile by layer and kernel: what it counts and shows, and that measuring changes no result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.bench import flops, problems, profile
from tests.helpers.processes import environment

USPS = problems.BY_NAME["usps"]


def objective(dtype: type = np.float64) -> tuple[rop.Objective, np.ndarray, np.ndarray]:
    data = USPS.data(8, np.dtype(dtype).name)
    f = rop.Objective(USPS.network(), USPS.rop_loss(), data.x, data.y, dtype=dtype)
    return f, data.points[0], data.directions[0]


@pytest.mark.parametrize("layout", ["samples", "pixels"])
def test_instructions_run_one_by_one_give_the_results_of_a_pass(layout: str) -> None:
    f, w, v = objective()
    f = rop.Objective(f.net, f.loss, f._data.x.reshape(-1, 1, 16, 16), np.arange(8), dtype=np.float64, layout=layout)
    expected = f.jet(w, v)
    space: Any = f._workspace
    space.poison()
    costs = space.costs(f._position(w), (0, 1, 2), v)
    found = [space.memory[f"out{k}"][: w.size] * scale for k, scale in enumerate((1, 1, 2))]
    assert all(np.array_equal(one, other) for one, other in zip(found, expected[1:], strict=True))
    assert all(cost.seconds >= 0 for cost in costs)
    assert np.array_equal(f.jet(w, v).r2, expected.r2)  # and nothing is thought to be resident that is not


def test_every_layer_with_work_is_named() -> None:
    f, w, v = objective()
    space: Any = f._workspace
    named = {cost.where for cost in space.costs(f._position(w), (0, 1, 2), v)}
    wanted = {f.net.where(node) for node in f.net.nodes if isinstance(node.layer, (rop.Conv2d, rop.Linear))}
    assert wanted <= named
    assert "loss CrossEntropy" in named


def test_products_are_those_of_the_limit() -> None:
    made = profile.measure(USPS, 8, "jet", "float32", rounds=2)
    assert sum(made.flops.values()) == flops.flops(USPS, 8, "jet")
    assert made.rate > 1e8
    assert made.flops.keys() <= {where for where, _ in made.seconds}


def test_tables_show_shares_and_rates() -> None:
    seconds = {
        ("layer 0 (Conv2d 3→4)", "a.b"): 0.003,
        ("layer 0 (Conv2d 3→4)", "c.d"): 0.001,
        ("all layers", "c.d"): 0.001,
    }
    text = profile.tables(profile.Profile("p", 4, "jet", seconds, {"layer 0 (Conv2d 3→4)": 8_000_000}, 5e9))
    assert "| a.b | 3.0 | 60% |" in text
    assert "| c.d | 2.0 | 40% |" in text
    assert "| layer 0 (Conv2d 3→4) | 4.0 | 80% | 2 | a.b 3.0, c.d 1.0 |" in text
    assert "In all 5.0 ms of one thread for 0.0 Gflop of direct products, 2 Gflop/s" in text


def run(*given: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: it sets the number of threads before it imports anything."""
    command = [sys.executable, "-m", "rop.bench.profile", *given]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "profile.md"
    done = run("forest", "--work", "grad", "--batch", "16", "--rounds", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "## forest, batch 16, grad" in done.stdout
    assert out.read_text("utf-8").startswith("# Where the time goes\n\n`python -m rop.bench.profile forest --work grad")


@pytest.mark.parametrize(
    ("given", "said"), [(["no-such"], "unknown problem 'no-such'"), (["usps", "--rounds", "0"], "from 1")]
)
def test_wrong_words_are_refused(given: list[str], said: str) -> None:
    done = run(*given)
    assert done.returncode == 2 and said in done.stderr
