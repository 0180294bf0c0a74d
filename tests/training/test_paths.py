"""Every way to make a training step makes the same one: compiled code, the GPU, Python, and the optimizer for torch.

Compiled steps are the standard; tests/training/test_descent.py compares them with torch.optim and Algorithm 1 by hand.
The GPU is Numba's simulator, in a process of its own, where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import rop
from rop.devices import obstacle
from rop.training.report import Report, is_finite
from rop.training.settings import has_compiled_form
from rop.training.steps import Steps
from tests.helpers.processes import ROOT, environment
from tests.helpers.zoo import normal

BATCH, STEPS, SEED = 4, 3, 5
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"

OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sgd": (rop.SGD(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
    "momentum": (rop.SGD(lr=0.2, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9)),
    "nesterov": (
        rop.SGD(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "decay": (rop.SGD(lr=0.2, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.05)),
    "adam": (rop.Adam(lr=0.03), lambda p: torch.optim.Adam(p, lr=0.03)),
    "adam, all settings": (
        rop.Adam(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
}
PENALTIES: dict[str, dict[str, Any]] = {
    "none": {},
    "to the letter": {"mu": 0.1, "maxiter": 3, "tol": 0.0, "limit": None},
    "clipped": {"mu": 0.5, "maxiter": 3, "tol": 0.0, "clip": 0.05},
    "limited": {"mu": 20.0, "maxiter": 3, "tol": 0.0, "limit": 0.2},
    "clipped and limited": {"mu": 20.0, "maxiter": 3, "tol": 0.0, "clip": 0.5, "limit": 0.03},
    "the paper's stop": {"mu": 0.1, "maxiter": 50, "tol": 0.02},
    "relative stop": {"mu": 0.1, "maxiter": 50, "tol": 0.3, "stop": "relative"},
    "the published stop": {"mu": 0.1, "maxiter": 50, "tol": 1e-9, "stop": "published"},
    "the published start": {"mu": 0.1, "maxiter": 2, "tol": 0.0, "warm_start": False, "start_vector": "constant"},
    "unsigned": {"mu": 0.1, "maxiter": 3, "tol": 0.0, "signed": False},
    "below K": {"mu": 0.1, "maxiter": 3, "K": 1e6},
    "track": {"mu": 0.1, "solver": "track", "products": 8},
    "track without sense": {"mu": 0.1, "solver": "track", "products": 1},
}
CASES = [(name, "limited") for name in OPTIMIZERS] + [(name, "none") for name in OPTIMIZERS]
CASES += [("sgd", name) for name in PENALTIES if name not in ("none", "limited")]

Trace = tuple[list[np.ndarray], list[np.ndarray]]  # after each step: w with the running statistics; the report
COMPARED = [Report.LOSS, Report.RHO, Report.RESIDUAL, Report.HVPS, Report.PENALTY]


def network() -> rop.Graph:
    return rop.Sequential(rop.Linear(2, 3), rop.BatchNorm1d(3, momentum=0.3), rop.Tanh(), rop.Linear(3, 2))


def data() -> tuple[np.ndarray, np.ndarray]:
    return normal(0, (BATCH * STEPS, 2)), np.random.default_rng(1).integers(2, size=BATCH * STEPS)


def penalty(options: dict[str, Any]) -> rop.SpectralRadius | None:
    return rop.SpectralRadius(**options) if options else None


def make_steps(path: str, optimizer: str, options: dict[str, Any], **given: Any) -> Steps:
    """The steps of a path over all data, from the same start on every path."""
    name = {"compiled": "CompiledSteps", "stepwise": "StepwiseSteps", "cuda": "CudaSteps"}[path]
    kind, (x, y), net = getattr(import_module(f"rop.training.{path}"), name), data(), network()
    usual = {"loss": rop.CrossEntropy(), "y": y, "w": net.init(seed=3, dtype=np.float64)}
    steps: Steps = kind(
        net,
        x=x,
        batch_size=BATCH,
        dtype=np.float64,
        optimizer=OPTIMIZERS[optimizer][0],
        regularizer=penalty(options),
        seed=SEED,
        **{**usual, **given},
    )
    assert steps.begin(np.arange(BATCH * STEPS)) == STEPS
    return steps


def model(steps: Steps) -> np.ndarray:
    return np.concatenate([steps.w, *steps.state.values()])


def by_steps(path: str, optimizer: str, options: dict[str, Any]) -> Trace:
    steps = make_steps(path, optimizer, options)
    schedules = {} if steps.regularizer is None else {"mu": steps.regularizer.mu, "tol": steps.regularizer.tol}
    points, reports = [], []
    for i in range(STEPS):
        reports.append(steps.run(i, 1, rate=steps.optimizer.lr, **schedules)[0, COMPARED])
        points.append(model(steps))
    return points, reports


def by_torch(optimizer: str, options: dict[str, Any]) -> Trace:
    """torch's own optimizer behind rop.torch.SpectralRadius."""
    net, (x, y) = network(), data()
    module = rop.to_torch(net, net.init(seed=3, dtype=np.float64), net.init_state(np.float64)).train()
    base = OPTIMIZERS[optimizer][1](module.parameters())
    opt = rop.torch.SpectralRadius(module, rop.CrossEntropy(), base, seed=SEED, **(options or {"mu": 0.0}))
    points, reports = [], []
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        loss, found = opt.step(x[rows], y[rows]), opt.found
        numbers = (0.0, 0.0, 0.0) if found is None else (found.rho, float(found.residuals[0]), found.hvps)
        reports.append(np.array([loss, *numbers, opt.penalised]))
        state = [buffer.numpy() for name, buffer in module.named_buffers() if "running" in name]
        w = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        points.append(np.concatenate([w.copy(), *(array.copy() for array in state)]))
    return points, reports


def trace(path: str, optimizer: str, options: dict[str, Any]) -> Trace:
    return by_torch(optimizer, options) if path == "torch" else by_steps(path, optimizer, options)


on_gpu = pytest.mark.skipif(obstacle() is not None, reason=f"{obstacle()} (test_the_simulated_gpu runs this)")
CUDA = pytest.param("cuda", marks=on_gpu)


@pytest.mark.parametrize(("optimizer", "options"), CASES, ids=[", ".join(case) for case in CASES])
@pytest.mark.parametrize("path", ["stepwise", CUDA, "torch"])
def test_all_paths_make_the_same_steps(path: str, optimizer: str, options: str) -> None:
    expected, found = (trace(one, optimizer, PENALTIES[options]) for one in ("compiled", path))
    for step in range(STEPS):
        np.testing.assert_allclose(found[1][step], expected[1][step], rtol=1e-7, atol=1e-9, err_msg=f"report {step}")
        np.testing.assert_allclose(found[0][step], expected[0][step], rtol=1e-7, atol=1e-9, err_msg=f"point {step}")
    if options != "none":
        took_part = [bool(report[-1]) for report in expected[1]]
        assert any(took_part) == (options not in ("below K", "track without sense"))


@pytest.mark.parametrize("path", ["stepwise", CUDA, "torch"])
def test_random_starts_lead_to_the_same_steps(path: str) -> None:
    """Compiled code has a generator of its own, so only what power iteration converges to is the same."""
    options = {"mu": 0.1, "warm_start": False, "maxiter": 500, "tol": 1e-9, "stop": "relative"}
    expected, found = trace("compiled", "sgd", options), trace(path, "sgd", options)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize("path", ["compiled", "stepwise", CUDA])
def test_schedules_have_a_value_for_each_step(path: str) -> None:
    """All steps in one call, against compiled steps one by one. A μ of 0 leaves the penalty out."""
    schedules: dict[str, Any] = {"rate": [0.2, 0.1, 0.05], "mu": [0.1, 0.0, 20.0], "tol": [0.5, 0.0, 0.01]}
    options = {"maxiter": 50, "stop": "relative"}
    expected, found = (make_steps(one, "momentum", options) for one in ("compiled", path))
    single = [
        expected.run(i, 1, **{name: numbers[i] for name, numbers in schedules.items()})[0, COMPARED]
        for i in range(STEPS)
    ]
    reports = found.run(0, STEPS, **schedules)
    np.testing.assert_allclose(reports[:, COMPARED], single, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model(found), model(expected), rtol=1e-7, atol=1e-9)
    products = reports[:, Report.HVPS]
    assert reports[:, Report.PENALTY].tolist() == [1, 0, 1] and products[1] == 0 and 0 < products[0] < products[2]


@pytest.mark.parametrize("path", ["compiled", "stepwise", CUDA])
def test_each_batch_divides_by_its_own_number_of_known_targets(path: str) -> None:
    """Against torch, where unknown targets have the weight 0. In the second batch nothing is known: w stays."""
    t = np.random.default_rng(4).integers(2, size=(BATCH * STEPS, 2)).astype(float)
    t[0], t[2, 1], t[BATCH : 2 * BATCH] = np.nan, np.nan, np.nan
    weight, net, (x, _) = [2.0, 0.5], network(), data()
    module = rop.to_torch(net, net.init(seed=3, dtype=np.float64), net.init_state(np.float64)).train()
    opt = torch.optim.SGD(module.parameters(), lr=0.2)
    steps = make_steps(path, "sgd", {}, loss=rop.BCEWithLogits(pos_weight=weight), y=t)
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        target = torch.tensor(t[rows])
        known = ~target.isnan()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            module(torch.tensor(x[rows])),
            target.nan_to_num(),
            weight=known.double(),
            pos_weight=torch.tensor(weight).double(),
            reduction="sum",
        )
        loss = loss / max(1, int(known.sum()))
        opt.zero_grad()
        loss.backward()
        opt.step()
        before = steps.w
        report = steps.run(i, 1, rate=0.2)[0]
        assert report[Report.LOSS] == pytest.approx(loss.item(), rel=1e-12) and (i != 1 or report[Report.LOSS] == 0)
        w = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        np.testing.assert_allclose(steps.w, w, rtol=1e-12, atol=1e-14)
        assert (steps.w == before).all() == (i == 1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulated GPU computes with NumPy, which warns of overflow
@pytest.mark.parametrize("path", ["compiled", "stepwise", CUDA])
@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
@pytest.mark.parametrize("column", [Report.LOSS, Report.RHO])
def test_a_step_that_is_not_finite_is_not_made(column: Report, optimizer: str, path: str) -> None:
    """Its report is the last one, and the parameters, the running statistics and the moments are as before."""
    w = np.random.default_rng(2).standard_normal(network().size)
    hidden, output = w[:9], w[15:21].reshape(2, 3)
    if column is Report.LOSS:
        output *= 1e200
    else:  # two hidden nodes that are equal and cancel: outputs of 0 with derivatives of 1e160, whose square overflows
        hidden[2:4], hidden[7], output[:] = hidden[:2], hidden[6], (1e160, -1e160, 0.0)
        w[9:15] = 0.5
    options = {"maxiter": 3, "tol": 0.0}
    steps = make_steps(path, optimizer, options, loss=rop.MSE(), y=normal(4, (BATCH * STEPS, 2)), w=w)
    before = {name: array.copy() for name, array in steps.arrays.items() if name not in "uv"}
    reports = steps.run(0, STEPS, rate=0.1, mu=0.1)
    assert len(reports) == 1 and not is_finite(reports).any()
    assert np.isfinite(reports[0, Report.LOSS]) == (column is Report.RHO) and not np.isfinite(reports[0, column])
    for name, array in before.items():
        np.testing.assert_array_equal(steps.arrays[name], array, err_msg=name)


def test_these_are_all_settings_that_are_compiled() -> None:
    for optimizer, _ in OPTIMIZERS.values():
        assert all(has_compiled_form(optimizer, penalty(options)) for options in PENALTIES.values())


@pytest.mark.skipif(
    SIMULATED or find_spec("numba_cuda") is None or find_spec("greenlet") is None,
    reason="this is the simulator, or numba-cuda or greenlet is not installed; pip install 'rop[cuda-test]'",
)
def test_the_simulated_gpu() -> None:
    """The cases of the GPU here, in test_methods.py and in test_block_penalties.py, in Numba's simulator."""
    files = [
        str(ROOT / "tests" / "training" / name)
        for name in ("test_paths.py", "test_methods.py", "test_block_penalties.py")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "cuda", "-x", *files]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, cwd=ROOT, env=environment(NUMBA_ENABLE_CUDASIM="1")
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout
