"""Choosing a device: what happens without a GPU, and that nobody pays for one who does not ask for it."""

from __future__ import annotations

import argparse
import pickle
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

import rop
from rop import devices
from tests.helpers.processes import run_python

LIGHT = """
import sys, numpy as np, rop
def loaded():
    rooms = "numba.cuda", "numba_cuda", "rop.devices.cuda", "rop.kernels.cuda", "rop.devices.cuda.emit"
    return [name for name in sys.modules if name.startswith(rooms)]
assert not loaded(), loaded()
net = rop.Sequential(rop.Linear(2, 2), rop.Tanh())
f = rop.Objective(net, rop.MSE(), np.ones((3, 2)), np.ones((3, 2)))
p = f.at(net.init())
p.r2(net.init()), rop.spectral_radius(p, maxiter=3)
rop.train(net, rop.MSE(), (np.ones((4, 2)), np.ones((4, 2))), batch_size=2, epochs=1)
import rop.cli, rop.kfac
assert not loaded(), loaded()
"""


def objective(device: Any) -> rop.Objective:
    return rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((1, 1)), np.ones((1, 1)), device=device)


def test_nothing_imports_numba_cuda_unless_a_gpu_is_asked_for() -> None:
    run_python(LIGHT)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the machine look like another one: whether numba-cuda is there, its driver's error, its GPUs, its NVVM."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def change(installed: bool = True, error: str | None = None, gpus: int = 1, compiler: bool = True) -> None:
        cuda = SimpleNamespace(
            is_available=lambda: error is None and compiler, cuda_error=lambda: error, gpus=[None] * gpus
        )
        monkeypatch.setattr(devices, "find_spec", lambda name: object() if installed else None)
        monkeypatch.setattr(numba, "cuda", cuda, raising=False)
        monkeypatch.setattr("numba.core.config.ENABLE_CUDASIM", False, raising=False)

    return change


CAUSES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "not installed": ({"installed": False}, ("numba-cuda is not installed", "pip install 'rop[cuda12]'", "[cuda13]")),
    "no driver": ({"error": "CUDA driver library\ncannot be found."}, ("driver library cannot be found", "nvidia-smi")),
    "no gpu": ({"error": "Call to cuInit results in CUDA_ERROR_NO_DEVICE (100)"}, ("finds no GPU", "nvidia-smi")),
    "no gpu in the list": ({"gpus": 0}, ("finds no GPU",)),
    "no compiler": ({"compiler": False}, ("NVVM", "pip install 'rop[cuda12]'")),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_one_error_says_what_is_missing(pretend: Any, cause: str) -> None:
    change, words = CAUSES[cause]
    pretend(**change)
    for ask in (lambda: objective("cuda"), train_on_cuda):
        with pytest.raises(rop.DeviceError) as caught:
            ask()
        message = str(caught.value)
        assert isinstance(caught.value, rop.RopError) and "device 'cuda' cannot be used" in message
        assert "\n" not in message and "device='cpu'" in message
        for word in words:
            assert word in message, message
    assert objective("auto").device == "cpu"


def train_on_cuda() -> None:
    rop.train(
        rop.Sequential(rop.Linear(1, 1)), rop.MSE(), (np.ones((4, 1)), np.ones((4, 1))), batch_size=2, device="cuda"
    )


def test_an_objective_from_a_machine_with_a_gpu_is_refused_clearly(pretend: Any) -> None:
    f = objective("cpu")
    f.device = "cuda"
    sent = pickle.dumps(f)
    pretend(installed=False)
    with pytest.raises(rop.DeviceError, match="numba-cuda is not installed"):
        pickle.loads(sent)


def test_hidden_gpus_are_named(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(gpus=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES is ''" in str(devices.obstacle())


def test_auto_takes_a_gpu_that_can_be_used(pretend: Any) -> None:
    pretend()
    assert devices.obstacle() is None
    assert devices.check_device("train", "auto") == devices.check_device("train", "cuda") == "cuda"


@pytest.mark.skipif(devices.obstacle() is None, reason="there is a GPU")
def test_commands_refuse_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    from rop.cli import main

    for arguments in (["train", "digits", "--device", "cuda"], ["bench", "--device", "cuda"]):
        assert main(arguments) == 1
        captured = capsys.readouterr()
        assert "device 'cuda' cannot be used" in captured.err and captured.err.count("\n") == 1
        assert not captured.out


def test_the_device_of_a_run_is_kept_and_may_be_changed() -> None:
    from rop.cli import parser
    from rop.experiments.runs import Run, new_config

    assert Run(new_config("digits", device="auto"), None).device == "auto"
    old = new_config("digits")
    del old["device"]  # a run of an earlier version
    assert Run(old, None).device == "cpu"
    options: argparse.Namespace = parser().parse_args(["resume", "folder", "--device", "cpu"])
    assert options.device == "cpu" and parser().parse_args(["resume", "folder"]).device is None


def test_a_device_array_is_known_by_its_interface() -> None:
    class Foreign:
        __cuda_array_interface__ = {"shape": (1,)}

    assert devices.on_device(Foreign()) and not devices.on_device(np.ones(1)) and not devices.on_device([1.0])
