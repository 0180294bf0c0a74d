"""device="cuda" in Numba's simulator: on_device/ in processes of their own, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec

import pytest

from rop.devices import obstacle
from tests.helpers.processes import ROOT, environment

pytestmark = pytest.mark.skipif(
    find_spec("numba_cuda") is None or find_spec("greenlet") is None,
    reason="numba-cuda or greenlet is not installed; pip install 'rop[cuda-test]'",
)

Done = subprocess.CompletedProcess[str]
PARTS = ("test_device_layers.py", "test_device_engine.py")


def run_part(part: str, simulator: str = "1", *options: str) -> Done:
    """pytest on one file of tests/devices/cuda/on_device, with or without the simulator."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        *options,
        str(ROOT / "tests" / "devices" / "cuda" / "on_device" / part),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=1200, cwd=ROOT, env=environment(NUMBA_ENABLE_CUDASIM=simulator)
    )


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Done]]]:
    """The parts that this session asks for, at the same time as far as there are cores."""
    wanted = [item.callspec.params.get("part") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {part: pool.submit(run_part, part, "1", "-x") for part in PARTS if part in wanted}


@pytest.mark.parametrize("part", PARTS)
def test_the_simulated_device_agrees_with_the_cpu(part: str, running: dict[str, Future[Done]]) -> None:
    """Every layer and loss at every order in both precisions; vectors on the device, memory, eigenvectors, training."""
    done = running[part].result()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


@pytest.mark.skipif(obstacle() is None, reason="there is a GPU, so this process uses it")
def test_without_simulator_and_gpu_nothing_pretends_to_be_one() -> None:
    """Skipped tests must not look like passed ones: here they are skipped, with a reason."""
    done = run_part("test_device_engine.py", "0", "-rs")
    assert " passed" not in done.stdout and "skipped" in done.stdout and "test_cuda_simulator.py" in done.stdout
