"""rop.torch.SpectralRadius: its gradient against autograd, its steps against rop's trainer, its interface."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rop
from tests.helpers.architectures import objective

SIZE = 24


def smooth() -> nn.Module:
    """Few enough parameters for a full Hessian."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


class Normalised(nn.Module):
    """Convolution and batchnorm, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3, momentum=0.3)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.bn(self.conv(x))).flatten(1))


def problem(make: Any = smooth, dtype: Any = torch.float64, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    module = make().to(dtype)
    shape = (1, 3, 3) if make is Normalised else (3,)
    return module, torch.randn(SIZE, *shape, dtype=dtype), torch.randint(0, 3, (SIZE,))


def flat(module: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def gradient(module: nn.Module) -> np.ndarray:
    parts = [parameter.grad for parameter in module.parameters()]
    assert all(part is not None for part in parts)
    return nn.utils.parameters_to_vector(parts).numpy()


def made(module: nn.Module, loss: Any = None, lr: float = 0.1, **options: Any) -> rop.torch.SpectralRadius:
    base = torch.optim.SGD(module.parameters(), lr=lr)
    return rop.torch.SpectralRadius(module, loss or nn.CrossEntropyLoss(), base, **options)


def trained(module: nn.Module, x: Tensor, y: Tensor, optimizer: rop.SGD | rop.Adam, **options: Any) -> rop.Fit:
    """Five steps on the whole data by rop's own trainer, from the parameters and statistics of the module."""
    net, w, state = rop.from_torch(module)
    return rop.train(
        net,
        rop.CrossEntropy(),
        (x.numpy(), y.numpy()),
        epochs=5,
        batch_size=SIZE,
        w=w,
        state=state,
        optimizer=optimizer,
        regularizer=rop.SpectralRadius(**options),
        dtype=np.float64,
    )


# ---------------------------------------------------------------------------------------------------------------
# the gradient
# ---------------------------------------------------------------------------------------------------------------

TARGETS = {
    "labels": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double(), label_smoothing=0.1), None),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), None),
    "numbers": (nn.MSELoss(), torch.linspace(-1, 1, 3 * SIZE, dtype=torch.float64).view(SIZE, 3)),
    "yes or no": (nn.BCEWithLogitsLoss(), torch.linspace(0, 1, 3 * SIZE, dtype=torch.float64).view(SIZE, 3)),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_gradient_is_that_of_the_loss_and_the_spectral_radius(kind: str) -> None:
    """∇(f + μρ), ρ from autograd's full Hessian and differentiated through its eigenvalues."""
    module, x, labels = problem()
    loss, target = TARGETS[kind]
    y, mu = labels if target is None else target, 0.3
    opt = made(module, loss, mu=mu, tol=1e-12, stop="relative", maxiter=20_000)

    w = torch.tensor(flat(module), requires_grad=True)
    function = objective(module, loss, x, y)
    H = torch.autograd.functional.hessian(function, w, create_graph=True)
    rho = torch.linalg.eigvalsh(H).abs().max()
    (expected,) = torch.autograd.grad(function(w) + mu * rho, w)

    value = opt.backward(x, y)
    assert value == pytest.approx(function(w).item(), rel=1e-12)
    assert opt.rho == pytest.approx(rho.item(), rel=1e-9)
    np.testing.assert_allclose(gradient(module), expected.numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("solver", ["power", "lanczos", "lobpcg"])
def test_frozen_parameters_are_no_variables(solver: str) -> None:
    """ρ and its gradient are those of the Hessian between the parameters that require a gradient."""
    module, x, y = problem()
    frozen = module.get_parameter("0.weight").requires_grad_(False)
    stop: dict[str, Any] = {"stop": "relative", "maxiter": 20_000} if solver == "power" else {}
    opt = made(module, mu=0.3, tol=1e-10, solver=solver, **stop)

    w = torch.tensor(flat(module))
    free = w[frozen.numel() :].clone().requires_grad_(True)
    function = objective(module, nn.CrossEntropyLoss(), x, y)

    def of_free(part: Tensor) -> Tensor:
        return function(torch.cat([w[: frozen.numel()], part]))

    H = torch.autograd.functional.hessian(of_free, free, create_graph=True)
    rho = torch.linalg.eigvalsh(H).abs().max()
    (expected,) = torch.autograd.grad(of_free(free) + 0.3 * rho, free)

    opt.step(x, y)
    assert opt.rho == pytest.approx(rho.item(), rel=1e-8)
    assert frozen.grad is None and torch.equal(w[: frozen.numel()].view(4, 3), frozen)
    gradients = [parameter.grad for parameter in list(module.parameters())[1:] if parameter.grad is not None]
    actual = nn.utils.parameters_to_vector(gradients)
    np.testing.assert_allclose(actual.numpy(), expected.numpy(), rtol=1e-6, atol=1e-7)


def test_without_weight_it_is_plain_training() -> None:
    module, x, y = problem()
    other = copy.deepcopy(module)
    opt, plain = made(module, mu=0.0), torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        plain.zero_grad()
        loss = nn.functional.cross_entropy(other(x), y)
        loss.backward()
        plain.step()
        assert opt.step(x, y) == pytest.approx(loss.item(), rel=1e-13)
    assert not opt.penalised and opt.found is None
    np.testing.assert_allclose(flat(module), flat(other), rtol=1e-12)


@pytest.mark.parametrize("limit", [0.5, 0.2])
def test_no_step_takes_away_more_of_the_radius_than_its_limit(limit: float) -> None:
    """α μ ‖∇ρ‖² = limit·ρ, where it would be more; without limit all of ∇ρ takes part."""
    module, x, y = problem()
    added, rate, mu = {}, 0.1, 1e4
    for chosen in (None, limit):
        made(module, mu=0.0).backward(x, y)
        plain = gradient(module).copy()
        opt = made(module, mu=mu, lr=rate, limit=chosen)
        opt.zero_grad()
        opt.backward(x, y)
        added[chosen] = gradient(module) - plain
        opt.zero_grad()
    slope = added[None] / mu
    assert rate * added[None] @ slope > opt.rho
    np.testing.assert_allclose(rate * added[limit] @ slope, limit * opt.rho, rtol=1e-9)
    np.testing.assert_allclose(added[limit] / np.linalg.norm(added[limit]), slope / np.linalg.norm(slope), rtol=1e-6)


def test_a_radius_below_K_is_free() -> None:
    module, x, y = problem()
    opt = made(module, mu=1.0, K=1e6)
    opt.backward(x, y)
    penalised = gradient(module)
    assert 0 < opt.rho < 1e6 and not opt.penalised
    opt.zero_grad()
    made(module, mu=0.0).backward(x, y)
    np.testing.assert_array_equal(gradient(module), penalised)


# ---------------------------------------------------------------------------------------------------------------
# steps
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [smooth, Normalised])
@pytest.mark.parametrize(
    "options",
    [
        {"mu": 0.05},
        {"mu": 0.5, "solver": "track"},
        {"mu": 0.05, "solver": "lanczos", "tol": 1e-8},
        {"mu": 0.5, "clip": 0.01, "stop": "relative", "maxiter": 7},
        {"mu": 0.05, "solver": "paper_lobpcg"},
        {"mu": 20.0, "limit": 0.1, "stop": "relative", "maxiter": 7},
    ],
    ids=lambda options: options.get("solver", f"power, {[*options][1]}" if len(options) > 1 else "power"),
)
def test_steps_are_those_of_the_trainer(make: Any, options: dict[str, Any]) -> None:
    """Five steps on the whole data, in the order of the trainer's epochs: the same parameters, ρ and statistics."""
    module, x, y = problem(make)
    fit = trained(module, x, y, rop.SGD(lr=0.1), **options)
    opt = made(module, **options)
    for row in fit.history:
        order = np.random.default_rng([0, int(row["epoch"])]).permutation(SIZE)
        assert opt.step(x[order], y[order]) == pytest.approx(row["loss"], rel=1e-12)
        assert opt.rho == pytest.approx(row["rho"], rel=1e-10)
    np.testing.assert_allclose(flat(module), fit.w, rtol=1e-10, atol=1e-12)
    for name, buffer in module.named_buffers():
        if name in fit.state:
            np.testing.assert_allclose(buffer.numpy(), fit.state[name], rtol=1e-10)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam], ids=lambda kind: kind.__name__)
def test_base_optimizers_mean_what_the_trainer_means(kind: Any) -> None:
    module, x, y = problem()
    given: dict[str, Any] = {"momentum": 0.9, "nesterov": True} if kind is torch.optim.SGD else {}
    fit = trained(module, x, y, rop.SGD(lr=0.1, **given) if given else rop.Adam(lr=0.1), mu=0.05)
    base = kind(module.parameters(), lr=0.1, **given)
    opt = rop.torch.SpectralRadius(module, nn.functional.cross_entropy, base, mu=0.05)
    for _ in range(5):
        opt.step(x, y)
    np.testing.assert_allclose(flat(module), fit.w, rtol=1e-7, atol=1e-9)


def test_running_statistics_are_torchs() -> None:
    module, x, y = problem(Normalised)
    other = copy.deepcopy(module)
    opt = made(module, mu=0.01, lr=0.0)
    for part in (slice(0, 12), slice(12, 24), slice(3, 20)):
        opt.step(x[part], y[part])
        other(x[part])
    for (name, ours), (_, torchs) in zip(module.named_buffers(), other.named_buffers(), strict=True):
        np.testing.assert_allclose(ours.numpy(), torchs.numpy(), rtol=1e-12, err_msg=name)
    assert int(module.get_buffer("bn.num_batches_tracked")) == 3


def test_evaluation_mode_reads_running_statistics_and_leaves_them_alone() -> None:
    module, x, y = problem(Normalised)
    opt = made(module, mu=0.05)
    opt.step(x, y)
    module.eval()
    for _ in range(2):
        before = copy.deepcopy(module)
        value = opt.backward(x, y)
        assert value == pytest.approx(nn.functional.cross_entropy(before(x), y).item(), rel=1e-12)
        for ours, torchs in zip(module.buffers(), before.buffers(), strict=True):
            assert torch.equal(ours, torchs)
        module.get_buffer("bn.running_mean").add_(0.25)  # seen by the next step
    module.train()
    opt.step(x, y)
    assert int(module.get_buffer("bn.num_batches_tracked")) == 2


def test_float32_and_arrays() -> None:
    module, x, y = problem(dtype=torch.float32)
    twin = copy.deepcopy(module)
    one, other = made(module, mu=0.1), made(twin, mu=0.1)
    assert one.step(x, y) == other.step(x.numpy(), y.numpy())
    assert flat(module).dtype == np.float32
    np.testing.assert_array_equal(flat(module), flat(twin))


# ---------------------------------------------------------------------------------------------------------------
# interface
# ---------------------------------------------------------------------------------------------------------------


def test_gradients_are_views_of_one_vector_and_parameters_stay_the_modules() -> None:
    module, x, y = problem()
    parameters = list(module.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    opt = made(module, mu=0.1)
    opt.step(x, y)
    gradients = [parameter.grad for parameter in parameters]
    assert len({grad.untyped_storage().data_ptr() for grad in gradients if grad is not None}) == 1
    assert [parameter.data_ptr() for parameter in parameters] == places
    opt.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)
    opt.step(x, y)
    assert all(parameter.grad is not None for parameter in parameters)


def test_learning_rate_schedulers_work_on_the_base_optimizer() -> None:
    module, x, y = problem()
    opt = made(module, mu=0.1, lr=0.4)
    scheduler = torch.optim.lr_scheduler.StepLR(opt.base_optimizer, step_size=1, gamma=0.5)
    opt.step(x, y)
    scheduler.step()
    before = flat(module).copy()
    opt.step(x, y)
    assert opt.param_groups[0]["lr"] == 0.2
    np.testing.assert_allclose(flat(module), before - 0.2 * gradient(module), rtol=1e-12)


def test_settings_can_change_between_steps() -> None:
    module, x, y = problem()
    opt = made(module, mu=0.1)
    opt.backward(x, y)
    assert opt.penalised
    opt.regularizer = dataclasses.replace(opt.regularizer, K=1e6)
    opt.backward(x, y)
    assert not opt.penalised and "K=1000000.0" in repr(opt)


def test_schedules_count_steps() -> None:
    module, x, y = problem()
    seen: list[tuple[int, int]] = []

    def mu(k: np.ndarray, epoch: int) -> float:
        seen.append((int(k[0]), epoch))
        return 0.0

    opt = made(module, mu=mu)
    opt.step(x, y)
    opt.epoch = 2
    opt.step(x, y)
    assert seen == [(1, 1), (2, 2)]


@pytest.mark.parametrize("solver", ["power", "track", "lobpcg"])
def test_a_run_goes_on_to_the_same_bits(solver: str, tmp_path: Any) -> None:
    module, x, y = problem(Normalised, torch.float32)
    base = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    opt = rop.torch.SpectralRadius(module, nn.CrossEntropyLoss(), base, mu=0.1, solver=solver)
    for _ in range(3):
        opt.step(x, y)
    torch.save({"module": module.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "saved.pt")
    losses = [opt.step(x, y) for _ in range(3)]

    fresh, _, _ = problem(Normalised, torch.float32, seed=1)
    base = torch.optim.SGD(fresh.parameters(), lr=0.7, momentum=0.9)
    again = rop.torch.SpectralRadius(fresh, nn.CrossEntropyLoss(), base, mu=0.1, solver=solver, seed=5)
    saved = torch.load(tmp_path / "saved.pt")
    fresh.load_state_dict(saved["module"])
    again.load_state_dict(saved["optimizer"])
    assert [again.step(x, y) for _ in range(3)] == losses
    np.testing.assert_array_equal(flat(fresh), flat(module))


def test_unused_parameters_have_no_gradient() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.used = nn.Linear(2, 2), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    module, x, y = problem(Spare)
    made(module, mu=0.1).step(x, y)
    assert module.get_parameter("spare.weight").grad is None
    assert module.get_parameter("used.weight").grad is not None


class Twice(nn.Module):
    """One batchnorm in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.fc(self.bn(x)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda m: made(m, nn.MultiMarginLoss()), ("loss", "CrossEntropyLoss", "MultiMarginLoss")),
        (lambda m: made(m, nn.CrossEntropyLoss(reduction="none")), ("CrossEntropy", "reduction", "none")),
        (lambda m: made(m, nn.BCEWithLogitsLoss(weight=torch.ones(3))), ("BCEWithLogits", "weight")),
        (lambda m: made(m, mu=-1.0).step(np.zeros((2, 3)), np.zeros(2, int)), ("SpectralRadius: mu", "-1")),
        (lambda m: made(m, solver="magic"), ("solver", "magic")),
        (lambda m: made(Twice()), ("bn", "2 times")),
        (lambda m: made(nn.Sequential(m, nn.Dropout())), ("1 (Dropout)", "eval()")),
        (lambda m: made(m).load_state_dict({"v": 1}), ("state_dict", "'spectral_radius'", "steps")),
        (
            lambda m: rop.torch.SpectralRadius(m, nn.MSELoss(), torch.optim.SGD(smooth().parameters())),
            ("base_optimizer", "module.parameters()"),
        ),
        (lambda m: rop.torch.SpectralRadius(m, nn.MSELoss(), torch.optim.LBFGS(m.parameters())), ("LBFGS", "SGD")),
        (lambda m: setattr(made(m), "regularizer", 0.1), ("rop.SpectralRadius", "0.1")),
        (lambda m: made(m).step(np.zeros((2, 3), int), np.zeros(2, int)), ("x", "int64")),
        (lambda m: rop.torch.SpectralRadius(m, nn.MSELoss(), torch.optim.SGD), ("base_optimizer", "torch.optim.SGD(")),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(rop.RopError) as caught:
        make(smooth())
    for word in words:
        assert word in str(caught.value)


def test_a_state_of_another_module_is_refused() -> None:
    module, _, _ = problem()
    other = made(problem(Normalised)[0])
    with pytest.raises(rop.ArgumentError, match="as many parameters"):
        made(module).load_state_dict(other.state_dict())


def test_a_loss_that_is_not_finite_stops_before_the_step() -> None:
    module, x, y = problem(dtype=torch.float32)
    opt = made(module, mu=0.1)
    with torch.no_grad():
        module.get_parameter("2.weight").mul_(1e38).mul_(1e38)
    before = flat(module).copy()
    with pytest.raises(rop.RopError):
        opt.step(x, y)
    np.testing.assert_array_equal(flat(module), before)


@pytest.mark.thorough
def test_the_example_runs() -> None:
    example = Path(__file__).parents[2] / "examples" / "torch_training.py"
    command = [sys.executable, str(example), "--epochs", "4", "--every", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, *rows = done.stdout.splitlines()
    assert header.split()[-1] == "seconds" and [row.split()[0] for row in rows] == ["SGD", "SpectralRadius"]
    assert all(len(row) == len(header) and float(row.split()[3]) > 50 for row in rows)  # aligned, and learning
