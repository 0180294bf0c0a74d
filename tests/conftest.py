"""Settings of the whole suite."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("ROP_GUARD", "1")  # canaries around all memory of the engine; read when rop is imported

import rop
from rop.devices import check_device
from rop.kernels import warm

settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=12)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=400, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
    from tests.helpers import simulator

    simulator.install()

# `make test-gpu`: objectives and training that do not name a device run there; the oracle is torch on the CPU as ever.
DEVICE = os.environ.get("ROP_TEST_DEVICE", "cpu")
if DEVICE != "cpu":
    check_device("make test-gpu", DEVICE)
    for function in (rop.Objective.__init__, rop.train):
        function.__kwdefaults__.update(device=DEVICE)  # type: ignore[union-attr]

# What is about the CPU engine itself: its threads, its memory, its streaming.
CPU_ONLY = re.compile(
    r"test_memory|test_pace|test_(the_number_of|two|a_process_with_any_number_of)_threads|"
    r"test_streaming|test_a_large_set|test_an_interrupt|test_use_after_a_fork|not_kept"
)


# What takes longest starts first, so that no process is left alone with it at the end.
SLOW = (
    "tests/bench/test_bench.py",
    "tests/kernels/test_kinds.py",
    "tests/devices/cuda/test_cuda_simulator.py",
    "tests/lowering/test_lowering_coverage.py",
    "tests/training/test_paths.py::test_the_simulated_gpu",
    "tests/training/test_killed.py",
    "tests/training/test_trainer.py::test_the_gradient_of_the_penalised_loss_vanishes",
    "tests/docs/test_docs.py",
    "tests/kernels/test_cache.py",
)
# Tests that share a costly fixture run in one process: those of these files, and those of one CUDA kernel.
TOGETHER = ("tests/bench/test_bench.py", "tests/check/test_check.py", "tests/devices/cuda/test_cuda_simulator.py")
KERNEL_TEST = re.compile(r"tests/kernels/cuda/test_cuda_(?:compile|ptx)\.py::\w+(\[.+\])$")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests go to the same process; each of the others may go to any."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            kernel = KERNEL_TEST.match(nodeid)
            return kernel[1] if kernel else file if file in TOGETHER else nodeid

    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))
    for item in items:
        if DEVICE != "cpu" and CPU_ONLY.search(item.nodeid):
            item.add_marker(pytest.mark.skip(reason="a test of the CPU engine itself"))


torch.set_num_threads(1)  # the oracle's networks are tiny: more threads only wait for each other


def pytest_sessionstart(session: pytest.Session) -> None:
    """Kernels are compiled once, before several processes need them at the same time."""
    several = getattr(session.config.option, "numprocesses", None)
    if several and not LAZY and not hasattr(session.config, "workerinput"):
        for dtype in (np.float32, np.float64):
            warm.ensure_compiled(dtype)


LAZY = os.environ.get("ROP_TEST_LAZY") == "1"  # compile only what the tests at hand need


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile or load the kernels of both precisions once, so that no single test is charged with it."""
    if LAZY:
        warm.compile_here()
        return
    net = rop.Sequential(rop.Linear(2, 2), rop.Tanh())
    for dtype in (np.float32, np.float64):
        warm.ensure_compiled(dtype)
        w = net.init(dtype=dtype)
        rop.Objective(net, rop.MSE(), np.ones((1, 2)), np.zeros((1, 2)), dtype=dtype).jet(w, w)
