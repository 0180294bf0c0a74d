"""Where the tests of this folder run: on a GPU if there is one, in the simulator if NUMBA_ENABLE_CUDASIM=1 (as
tests/devices/cuda/test_cuda_simulator.py arranges in a process of its own), else nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rop.devices import obstacle

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"

settings.register_profile(
    "device",
    max_examples=2 if SIMULATED else 25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run, with the reason."""
    missing = obstacle()
    for item in items:
        if missing and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"{missing} (the simulator runs this: test_cuda_simulator.py)"))


@pytest.fixture(autouse=True)
def examined() -> Iterator[None]:
    """Whatever a test launches is among the kernels that are compiled, assembled and executed as PTX elsewhere, or for
    which others stand there. (Only a user's own activation cannot be.)"""
    yield
    from tests.helpers.cuda_requests import factories, is_known, is_own, requested

    requested()  # asking for them makes kernels, so it comes before the loop over those that were made
    for kernel, factory in factories().items():
        for made in factory.made.values():
            known = is_own(made.options) or is_known(kernel, made.options)
            assert known, f"{made.title} is not in tests/helpers/cuda_requests.py"
