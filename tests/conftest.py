"""Settings of the whole suite."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import rop

settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=400, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

torch.set_num_threads(1)  # the oracle's networks are tiny: more threads only wait for each other


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile or load the kernels of both precisions once, so that no single test is charged with it."""
    net = rop.Sequential(rop.Linear(2, 2), rop.Tanh())
    for dtype in (np.float32, np.float64):
        w = net.init(dtype=dtype)
        rop.Objective(net, rop.MSE(), np.ones((1, 2)), np.zeros((1, 2)), dtype=dtype).jet(w, w)
