"""device="cuda" in Numba's simulator: the tests of tests/on_device, in processes of their own, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from rop.devices import obstacle
from tests.processes import ROOT, environment

pytestmark = pytest.mark.skipif(
    find_spec("numba_cuda") is None or find_spec("greenlet") is None,
    reason="numba-cuda or greenlet is not installed; pip install 'rop[cuda-test]'",
)


@pytest.mark.parametrize("part", ["test_device_layers.py", "test_device_engine.py"])
def test_the_simulated_device_agrees_with_the_cpu(part: str) -> None:
    """Every layer and loss at every order in both precisions; vectors on the device, memory, eigenvectors, training."""
    path = ROOT / "tests" / "on_device" / part
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-x", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=ROOT,
                          env=environment(NUMBA_ENABLE_CUDASIM="1"))  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


@pytest.mark.skipif(obstacle() is None, reason="there is a GPU, so this process uses it")
def test_without_simulator_and_gpu_nothing_pretends_to_be_one() -> None:
    """Skipped tests must not look like passed ones: in this process tests/on_device would be skipped, with a reason."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist",
               str(ROOT / "tests" / "on_device" / "test_device_engine.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT,
                          env=environment(NUMBA_ENABLE_CUDASIM="0"))  # fmt: skip
    assert " passed" not in done.stdout and "skipped" in done.stdout and "test_cuda_simulator.py" in done.stdout
