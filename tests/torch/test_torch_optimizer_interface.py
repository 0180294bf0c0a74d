"""rop.torch.SpectralRadius is an optimizer of torch, of the module as it is: schedulers, closures, accumulation,
copies, saved states; other layers, modes and precisions are noticed."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rop
from tests.helpers.architectures import objective

SIZE = 24


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.act = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()
        self.second, self.bn2, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.first(x)))
        return self.last(torch.tanh(self.bn2(self.second(x))))


def problem(dtype: torch.dtype = torch.float64) -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net().to(dtype), torch.randn(SIZE, 3, dtype=dtype), torch.randint(0, 3, (SIZE,))


def made(module: nn.Module, kind: Any = torch.optim.SGD, lr: float = 0.1, **options: Any) -> rop.torch.SpectralRadius:
    base_options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    base = kind([p for p in module.parameters() if p.requires_grad], lr=lr, **base_options)
    return rop.torch.SpectralRadius(module, nn.CrossEntropyLoss(), base, **options)


def flat(module: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy().copy()


def gradients(module: nn.Module) -> np.ndarray:
    return np.concatenate([p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None])


EXACT: dict[str, Any] = {"mu": 0.3, "tol": 1e-12, "stop": "relative", "maxiter": 20_000, "limit": None}


def expected_gradient(module: nn.Module, x: Tensor, y: Tensor, mu: float = 0.3) -> tuple[float, float, np.ndarray]:
    """f, ρ and ∇(f + μρ) at the free parameters, by autograd through the full Hessian."""
    free = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in module.parameters()])
    base, whole = torch.from_numpy(flat(module)), objective(module, nn.CrossEntropyLoss(), x, y)
    part = base[free].clone().requires_grad_(True)

    def f(w: Tensor) -> Tensor:
        return whole(base.masked_scatter(free, w))

    H = torch.autograd.functional.hessian(f, part, create_graph=True)
    rho = torch.linalg.eigvalsh(H).abs().max()
    (found,) = torch.autograd.grad(f(part) + mu * rho, part)
    return f(part).item(), rho.item(), found.numpy()


# ------------------------------------------------------------------------------------------------- the module as it is
def freeze_body(module: Net) -> None:
    for layer in (module.first, module.bn):
        layer.requires_grad_(False)
    module.bn.eval()


CHANGES: dict[str, Any] = {
    "training": lambda module: None,
    "evaluation": lambda module: module.eval(),
    "one batchnorm frozen": lambda module: module.bn.eval(),
    "frozen body": freeze_body,
    "frozen in evaluation mode": lambda module: (module.eval(), module.second.requires_grad_(False)),
}


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "after a step"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_gradient_is_that_of_the_module_as_it_is(change: str, late: bool) -> None:
    """Also if it was something else in the step before, and again after it was something else."""
    module, x, y = problem()
    if not late:
        CHANGES[change](module)
    opt = made(module, lr=0.0, **EXACT)
    opt.step(x, y)
    if late:
        CHANGES[change](module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other(x)  # running statistics go on where torch's do
    value, rho, wanted = expected_gradient(module, x, y)
    assert opt.step(x, y) == pytest.approx(value, rel=1e-12)
    assert opt.rho == pytest.approx(rho, rel=1e-8)
    np.testing.assert_allclose(gradients(module), wanted, rtol=1e-6, atol=1e-7)
    for (name, ours), (_, theirs) in zip(module.named_buffers(), other.named_buffers(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("solver", ["power", "track", "lanczos", "lobpcg", "paper_lobpcg"])
def test_frozen_parameters_never_move(solver: str) -> None:
    module, x, y = problem()
    freeze_body(module)
    before = copy.deepcopy(module)
    opt = made(module, mu=0.05, solver=solver)
    for _ in range(3):
        opt.step(x, y)
    for name in ("first", "bn"):
        for ours, theirs in zip(
            module.get_submodule(name).state_dict().values(), getattr(before, name).state_dict().values(), strict=True
        ):
            assert torch.equal(ours, theirs)
    assert opt.found is not None and not opt.found.vector[: 3 * 4 + 4 + 8].any()
    assert not torch.equal(module.last.weight, before.last.weight)


def test_a_replaced_activation_is_noticed() -> None:
    module, x, y = problem()
    opt = made(module, **EXACT, lr=0.0)
    first = opt.step(x, y)
    module.act = nn.SiLU()
    value, rho, wanted = expected_gradient(module, x, y)
    assert opt.step(x, y) == pytest.approx(value, rel=1e-12) and value != first
    assert opt.rho == pytest.approx(rho, rel=1e-8)
    np.testing.assert_allclose(gradients(module), wanted, rtol=1e-6, atol=1e-7)


def test_a_replaced_layer_with_parameters_is_noticed() -> None:
    module, x, y = problem()
    opt = made(module, lr=0.0, **EXACT)
    opt.step(x, y)
    module.second, module.bn2, module.last = (
        nn.Linear(4, 5).double(),
        nn.BatchNorm1d(5).double(),
        nn.Linear(5, 3).double(),
    )
    with pytest.raises(rop.ArgumentError) as caught:
        opt.step(x, y)
    assert str(caught.value) == (
        "SpectralRadius: base_optimizer has parameters that are not the module's; make it with module.parameters(), "
        "and anew if a layer was replaced since, or set its param_groups"
    )
    opt.param_groups[0]["params"] = list(module.parameters())
    value, rho, wanted = expected_gradient(module, x, y)
    assert opt.step(x, y) == pytest.approx(value, rel=1e-12)
    assert opt.rho == pytest.approx(rho, rel=1e-8)
    np.testing.assert_allclose(gradients(module), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_another_precision_is_noticed(kind: Any) -> None:
    """Steps in float32 go on in float64, with the optimizer's averages and the eigenvector, and back."""
    module, x, y = problem(torch.float32)
    opt = made(module, kind, mu=0.05, lr=0.01)
    for _ in range(2):
        opt.step(x, y)
    module.double()
    other = copy.deepcopy(opt)
    value = opt.step(x.double(), y)
    assert value == pytest.approx(nn.functional.cross_entropy(other.module(x.double()), y).item(), rel=1e-12)
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {torch.float64}
    averages = [value for state in opt.state.values() for value in state.values() if isinstance(value, Tensor)]
    assert {one.dtype for one in averages if one.numel() > 1} == {torch.float64}
    assert opt.state is opt.base_optimizer.state and opt.param_groups is opt.base_optimizer.param_groups
    module.float()
    assert np.isfinite(opt.step(x, y)) and opt.found is not None and opt.found.vector.dtype == np.float32


def test_both_modes_are_traced_once() -> None:
    module, x, y = problem()
    opt = made(module, mu=0.05)
    for _ in range(3):
        module.train()
        opt.step(x, y)
        module.eval()
        opt.step(x, y)
    assert len(opt._bounds) == 2
    kept = list(opt._bounds.values())
    module.train()
    opt.step(x, y)
    assert set(map(id, opt._bounds.values())) == set(map(id, kept))


# ------------------------------------------------------------------------------------------ the interface of optimizers
def test_schedulers_work_on_it() -> None:
    """On itself or on the base optimizer alike, and with momentum."""
    rates: dict[str, list[float]] = {}
    for which in ("base", "own"):
        module, x, y = problem()
        opt = made(module, mu=0.05, lr=0.4)
        assert isinstance(opt, torch.optim.Optimizer)
        on: Any = opt if which == "own" else opt.base_optimizer
        schedulers = [
            torch.optim.lr_scheduler.OneCycleLR(on, max_lr=0.5, total_steps=6),
            torch.optim.lr_scheduler.ReduceLROnPlateau(on, patience=0),
        ]
        rates[which] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as: scheduler.step() before optimizer.step()
            for _ in range(5):
                opt.step(x, y)
                schedulers[0].step()
                rates[which].append(opt.base_optimizer.param_groups[0]["lr"])
            schedulers[1].step(1.0)
        again = pickle.loads(pickle.dumps(opt))
        assert again.param_groups is again.base_optimizer.param_groups
    assert rates["own"] == rates["base"] and len(set(rates["own"])) == 5


def test_a_closure() -> None:
    one, x, y = problem()
    other = copy.deepcopy(one)
    first, second = made(one, mu=0.1), made(other, mu=0.1)

    def closure() -> float:
        assert torch.is_grad_enabled()
        second.zero_grad()
        return second.backward(x, y)

    for give in (second.step, lambda given: second.step(closure=given)):
        with torch.no_grad():
            assert first.step(x, y) == give(closure)
    np.testing.assert_array_equal(flat(one), flat(other))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up(set_to_none: bool) -> None:
    """As those of torch do, with a term of autograd among them; the running statistics see each part."""
    module, x, y = problem()
    parts = [slice(0, 8), slice(8, 16), slice(16, 24)]
    before, expected = copy.deepcopy(module), np.zeros(flat(module).size)
    for part in parts:
        expected = expected + expected_gradient(module, x[part], y[part])[2] / 3
    opt = made(module, lr=0.1, **EXACT)
    opt.zero_grad(set_to_none)
    for part in parts:
        opt.backward(x[part], y[part], scale=1 / 3)
        before(x[part])
    np.testing.assert_allclose(gradients(module), expected, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(module.buffers(), before.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    (module.last.weight**2).sum().backward()
    added = gradients(module) - expected
    place = [p.numel() for p in module.parameters()]
    np.testing.assert_allclose(
        added[-sum(place[-2:]) : -place[-1]], 2 * module.last.weight.detach().numpy().ravel(), atol=1e-6
    )
    total, w = gradients(module).copy(), flat(module)
    assert opt.step() is None
    np.testing.assert_allclose(flat(module), w - 0.1 * total, rtol=1e-12)
    assert opt.steps == 3


def test_step_with_a_batch_starts_with_no_gradient() -> None:
    one, x, y = problem()
    other = copy.deepcopy(one)
    first, second = made(one, mu=0.1), made(other, mu=0.1)
    for parameter in other.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    assert first.step(x, y) == second.step(x=x, y=y)
    np.testing.assert_array_equal(flat(one), flat(other))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda opt, module, x, y: opt.step(),
            "SpectralRadius: expected a step without a batch to follow a call of opt.backward(x, y), which adds the "
            "gradients of f and of the penalty; loss.backward() knows nothing of the penalty",
        ),
        (
            lambda opt, module, x, y: opt.step(lambda: nn.functional.cross_entropy(module(x), y).backward()),
            "SpectralRadius: expected the closure to follow a call of opt.backward(x, y), which adds the gradients of "
            "f and of the penalty; loss.backward() knows nothing of the penalty",
        ),
        (
            lambda opt, module, x, y: (opt.backward(x, y), opt.zero_grad(), opt.step()),
            "SpectralRadius: expected a step without a batch to follow a call of opt.backward(x, y), which adds the "
            "gradients of f and of the penalty; loss.backward() knows nothing of the penalty",
        ),
        (
            lambda opt, module, x, y: opt.step(x),
            "SpectralRadius: expected step(x, y), step(closure) or step(), got another combination",
        ),
        (
            lambda opt, module, x, y: opt.step(x, y, closure=lambda: 0.0),
            "SpectralRadius: expected step(x, y), step(closure) or step(), got another combination",
        ),
        (
            lambda opt, module, x, y: opt.backward(x, y, scale="1"),
            "SpectralRadius: scale must be a real number, got '1' (str)",
        ),
    ],
)
def test_steps_without_the_penalty_are_refused(call: Any, message: str) -> None:
    module, x, y = problem()
    before = flat(module)
    with pytest.raises(rop.RopError) as caught:
        call(made(module), module, x, y)
    assert str(caught.value) == message
    np.testing.assert_array_equal(flat(module), before)


def test_a_state_is_that_of_an_optimizer() -> None:
    """Torch's own entries under torch's names, and nothing that torch.load refuses by default."""
    module, x, y = problem()
    opt = made(module, mu=0.1)
    opt.step(x, y)
    state = opt.state_dict()
    assert set(state) == {"state", "param_groups", "spectral_radius"}
    base = opt.base_optimizer.state_dict()
    assert state["param_groups"] == base["param_groups"] and state["state"].keys() == base["state"].keys()
    opt.load_state_dict(copy.deepcopy(state))
    assert opt.param_groups is opt.base_optimizer.param_groups and opt.state is opt.base_optimizer.state
    opt.base_optimizer.load_state_dict(base)
    opt.step(x, y)
    assert opt.param_groups is opt.base_optimizer.param_groups and opt.state is opt.base_optimizer.state


def test_copies_go_on_by_themselves() -> None:
    module, x, y = problem()
    opt = made(module, mu=0.1)
    opt.step(x, y)
    torch.optim.lr_scheduler.StepLR(opt, 1)
    twin = copy.deepcopy(opt)
    assert twin.module is not module and twin.param_groups is twin.base_optimizer.param_groups
    assert twin.step(x, y) == opt.step(x, y)
    np.testing.assert_array_equal(flat(twin.module), flat(module))
    assert {id(p) for p in twin.module.parameters()} == {id(p) for p in twin.param_groups[0]["params"]}


def test_parameter_groups_are_shared() -> None:
    module, x, y = problem()
    base = torch.optim.SGD(module.first.parameters(), lr=0.1)
    opt = rop.torch.SpectralRadius(module, nn.CrossEntropyLoss(), base, mu=0.01)
    opt.add_param_group({"params": list(module.last.parameters()), "lr": 0.5})
    assert [group["lr"] for group in base.param_groups] == [0.1, 0.5]
    before = copy.deepcopy(module)
    opt.step(x, y)
    assert not torch.equal(module.last.weight, before.last.weight) and torch.equal(
        module.second.weight, before.second.weight
    )
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    opt.step(x, y)
    assert calls == [1]
