"""What a module says of itself is respected by an objective: modes, precision, and what it holds fixed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rop
from rop.devices.cpu.workspace import CpuWorkspace
from rop.objective import constants
from tests.helpers.architectures import autograd, objective

LAYOUTS = ["samples", "pixels"]
ALL_FREE: tuple[str, ...] = ()
FIXED = {
    "one": ("conv.weight",),
    "part of a layer": ("bn.bias",),
    "most": ("conv.weight", "bn.weight", "bn.bias", "conv2.weight", "conv2.bias", "out.bias"),
    "the last": ("out.weight", "out.bias"),
}


class Net(nn.Module):
    """Two batchnorm layers, each of which may have a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)
        self.out = nn.Linear(2 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.bn(self.conv(x)))
        return self.out(torch.relu(self.bn2(self.conv2(x))).flatten(1))


def made(fixed: tuple[str, ...] = ALL_FREE, dtype: Any = torch.float64) -> Net:
    torch.manual_seed(0)
    module = Net().to(dtype)
    for name, buffer in module.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand_like(buffer))
    for name in fixed:
        module.get_parameter(name).requires_grad_(False)
    return module


def data(dtype: Any = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(7, 1, 4, 4, dtype=dtype), torch.randint(0, 3, (7,))


def set_mode(module: Net, mode: str) -> Net:
    module.train(mode != "evaluation")
    if mode == "first frozen":
        module.bn.eval()
    elif mode == "second frozen":
        module.bn2.eval()
    return module


def objective_of(module: nn.Module, **options: Any) -> tuple[rop.Objective, np.ndarray]:
    net, w, state = rop.from_torch(module)
    x, y = data()
    return rop.Objective(net, rop.CrossEntropy(), x.numpy(), y.numpy(), state=state, **options), w


def direction(size: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(size)


def assert_jets(actual: Any, expected: Any) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10 * (1 + float(np.linalg.norm(theirs))))


MODES = ["training", "evaluation", "first frozen", "second frozen"]


# --------------------------------------------------------------------------------------------------------------- modes
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_each_batchnorm_follows_its_own_mode(mode: str, layout: str) -> None:
    """All orders in one run, and one after another, against triple backward through the module in this mode."""
    module = set_mode(made(), mode)
    f, w = objective_of(module, layout=layout)
    assert f.dtype == np.float64 and f.training is None
    v = direction(w.size)
    expected = autograd(module, nn.CrossEntropyLoss(), *data(), v)
    assert_jets(f.jet(w, v), expected)
    p = f.at(w)
    assert_jets((p.loss, p.grad, p.hvp(v), p.r2(v)), expected)
    used = {name for name in ("bn", "bn2") if module.get_submodule(name).training}
    assert {name.partition(".")[0] for name in p.batch_stats} == used
    other = f.with_targets(data()[1].numpy()[::-1].copy(), rop.NLL())
    assert other.training is None and np.isfinite(other.at(w).loss)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["first frozen", "second frozen"])
def test_modes_are_mixed_in_batches_of_several_tiles(mode: str, layout: str) -> None:
    """Sums over the batch cut a pass into stages, the frozen layer's gradients are added up tile by tile."""
    module = set_mode(made(FIXED["one"]), mode)
    net, w, state = rop.from_torch(module)
    torch.manual_seed(2)
    x, y = torch.randn(37, 1, 4, 4, dtype=torch.float64), torch.randint(0, 3, (37,))
    f = rop.Objective(net, nn.CrossEntropyLoss(), x, y, state=state, layout=layout, hold_fixed=False)
    v = direction(w.size)
    assert_jets(f.jet(w, v), autograd(module, nn.CrossEntropyLoss(), x, y, v))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False])
def test_an_explicit_mode_wins(mode: str, training: bool) -> None:
    module = set_mode(made(), mode)
    f, w = objective_of(module, training=training)
    v = direction(w.size)
    assert_jets(f.jet(w, v), autograd(copy.deepcopy(module).train(training), nn.CrossEntropyLoss(), *data(), v))


def test_modes_stay_with_layers_in_other_nets() -> None:
    """A frozen body in front of a head that was written in rop: batchnorm in the head uses the batch."""
    torch.manual_seed(0)
    body, _, state = rop.from_torch(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().eval())
    net = rop.Sequential(body, rop.Tanh(), rop.Linear(4, 4), rop.BatchNorm1d(4), rop.Linear(4, 2))
    x, y = np.random.default_rng(0).standard_normal((6, 3)), np.arange(6) % 2
    found = {f"0.{name}": value for name, value in state.items()} | {
        name: value for name, value in net.init_state(np.float64).items() if name.startswith("3")
    }
    f = rop.Objective(net, rop.CrossEntropy(), x, y, state=found)
    assert f.dtype == np.float64 and set(f.at(net.init(dtype="f8")).batch_stats) == {"3.running_mean", "3.running_var"}


def test_nets_written_in_rop_are_in_training_mode() -> None:
    net = rop.Sequential(rop.Linear(3, 2), rop.BatchNorm1d(2))
    x, y = np.random.default_rng(0).standard_normal((6, 3)), np.arange(6) % 2
    f, g = (rop.Objective(net, rop.CrossEntropy(), x, y, training=training) for training in (None, True))
    w, v = net.init(), np.ones(net.size, "f4")
    assert f.dtype == np.float32 and net.dtype is None and net.fixed == ()
    for ours, theirs in zip(f.jet(w, v), g.jet(w, v), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_statistics_have_to_be_given_where_they_are_read() -> None:
    x, y = (part.numpy() for part in data())
    net, _, _ = rop.from_torch(set_mode(made(), "second frozen"))
    with pytest.raises(rop.ArgumentError) as caught:
        rop.Objective(net, rop.CrossEntropy(), x, y)
    assert str(caught.value) == (
        "Objective: expected state, the running statistics that from_torch returned, because layer bn2 (BatchNorm2d 2) "
        "comes from a module in evaluation mode, got None; training=True uses those of the batch"
    )
    rop.Objective(net, rop.CrossEntropy(), x, y, training=True)
    with pytest.raises(rop.ArgumentTypeError, match="Objective: training must be True or False, got 'eval'"):
        rop.Objective(net, rop.CrossEntropy(), x, y, training="eval")  # type: ignore[arg-type]


def test_one_sample_is_enough_where_batchnorm_is_frozen() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net, w, state = rop.from_torch(module.eval())
    x, y = np.ones((1, 3), "f4"), np.zeros(1, int)
    assert np.isfinite(rop.Objective(net, rop.CrossEntropy(), x, y, state=state).at(w).loss)
    module[3].train()
    net, w, state = rop.from_torch(module)
    with pytest.raises(rop.ArgumentError, match=r"layer 3 \(BatchNorm1d 2\): expected more than one value per channel"):
        rop.Objective(net, rop.CrossEntropy(), x, y, state=state)


# ----------------------------------------------------------------------------------------------------------- precision
@pytest.mark.parametrize("theirs", [torch.float32, torch.float64])
def test_the_precision_is_the_modules_unless_given(theirs: torch.dtype) -> None:
    f, w = objective_of(made(dtype=theirs))
    own = np.dtype(str(theirs).partition(".")[2])
    assert f.dtype == own == w.dtype == f.at(w).grad.dtype
    f, w = objective_of(made(dtype=theirs), dtype="f4")
    assert f.dtype == np.float32


# -------------------------------------------------------------------------------------------------- what is held fixed
def of_free(module: nn.Module, w: np.ndarray, v: np.ndarray, order: int = 2) -> Any:
    """f, ∇f, H v and vᵀ∇H v of f as a function of the free parameters, by autograd, with zeros at the fixed ones."""
    free = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in module.parameters()])
    whole = objective(module, nn.CrossEntropyLoss(), *data())
    base, direction = torch.from_numpy(w), torch.from_numpy(v)[free]

    def f(part: Tensor) -> Tensor:
        return whole(base.masked_scatter(free, part))

    def spread(part: Tensor) -> np.ndarray:
        return torch.zeros_like(base).masked_scatter(free, part.detach()).numpy()

    part = base[free].clone().requires_grad_(True)
    loss = f(part)
    (g,) = torch.autograd.grad(loss, part, create_graph=True)
    (hvp,) = torch.autograd.grad(g @ direction, part, create_graph=True)
    (r2,) = torch.autograd.grad(hvp @ direction, part)
    return loss.item(), spread(g), spread(hvp), spread(r2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["training", "evaluation", "first frozen"])
@pytest.mark.parametrize("what", FIXED)
def test_results_are_those_of_a_function_of_the_free_parameters(what: str, mode: str, layout: str) -> None:
    module = set_mode(made(FIXED[what]), mode)
    f, w = objective_of(module, layout=layout)
    np.testing.assert_array_equal(w, nn.utils.parameters_to_vector(module.parameters()).detach().numpy())
    assert f.net.fixed == FIXED[what]
    v = direction(w.size)
    given = v.copy()
    expected = of_free(module, w, v)
    assert_jets(f.jet(w, v), expected)
    p = f.at(w)
    assert_jets((p.loss, p.grad, p.hvp(v), p.r2(v)), expected)
    np.testing.assert_array_equal(p.product(v), p.hvp(v))
    taylor = p.taylor(v)
    assert_jets(taylor, (expected[0], v @ expected[1], v @ expected[2]))
    np.testing.assert_array_equal(v, given)  # the user's own vectors stay as they are
    at_fixed = [parts for parts in constants(f.net) for parts in (p.grad[parts], p.r2(v)[parts])]
    assert all(not part.any() for part in at_fixed)


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_and_the_operator_are_of_the_free_parameters(order: Any) -> None:
    module = made(FIXED["most"])
    f, w = objective_of(module)
    p, block = f.at(w), np.asarray(np.random.default_rng(3).standard_normal((w.size, 11)), order=order)
    given = block.copy()
    columns = np.stack([p.hvp(column.copy()) for column in block.T], axis=1)
    np.testing.assert_allclose(p.hvp(block), columns, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(p.hessian() @ block, columns, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(block, given)
    whole = p.hvp(np.eye(w.size))
    np.testing.assert_allclose(whole, whole.T, atol=1e-13)
    assert np.linalg.matrix_rank(whole, tol=1e-10) <= f.net.size - sum(s.size for s in f.net.slots if s.fixed)


def test_not_a_number_at_a_fixed_place_of_v_is_none() -> None:
    f, w = objective_of(made(FIXED["one"]))
    v = direction(w.size)
    expected = f.at(w).hvp(v)
    v[constants(f.net)[0]] = np.nan
    np.testing.assert_array_equal(f.at(w).hvp(v), expected)


def test_all_parameters_are_variables_if_asked_for() -> None:
    fixed, free = (set_mode(made(what), "evaluation") for what in (FIXED["most"], ALL_FREE))
    (f, w), (g, _) = objective_of(fixed, hold_fixed=False), objective_of(free)
    v = direction(w.size)
    for ours, theirs in zip(f.jet(w, v), g.jet(w, v), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(rop.ArgumentTypeError, match="Objective: hold_fixed must be True or False, got 1"):
        objective_of(fixed, hold_fixed=1)


def long() -> nn.Module:
    """Long enough for vectors to be read where they are."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 220), nn.Tanh(), nn.Linear(220, 3)
    )
    module[3].weight.requires_grad_(False)
    module[5].bias.requires_grad_(False)
    return module.double()


def test_long_vectors() -> None:
    module = long()
    f, w = objective_of(module)
    assert isinstance(f._workspace, CpuWorkspace)
    assert f._workspace.vectors.are_long
    v = direction(w.size)
    expected, given = of_free(module, w, v), v.copy()
    assert_jets(f.jet(w, v), expected)
    p = f.at(w)
    for _ in range(2):  # results are not those of an earlier question
        assert_jets((p.loss, p.grad, p.hvp(v), p.r2(v)), expected)
        assert_jets((p.product(v), p.hvp(np.stack([v, -v], 1))[:, 1]), (expected[2], -expected[2]))
    np.testing.assert_array_equal(v, given)


# ----------------------------------------------------------------------------------------------------------- curvature
def spectrum(module: nn.Module, w: np.ndarray) -> np.ndarray:
    """Eigenvalues of the Hessian between the free parameters."""
    free = np.concatenate([np.full(p.numel(), p.requires_grad) for p in module.parameters()])
    whole = objective(module, nn.CrossEntropyLoss(), *data())
    H = torch.autograd.functional.hessian(whole, torch.from_numpy(w)).numpy()
    return np.linalg.eigvalsh(H[np.ix_(free, free)])


@pytest.mark.parametrize("what", ["one", "most"])
def test_eigenvalues_are_those_of_the_free_parameters(what: str) -> None:
    """The fixed ones bring no eigenvalues of zero, which would be the smallest of a positive definite Hessian."""
    module = set_mode(made(FIXED[what]), "evaluation")
    f, w = objective_of(module)
    p, expected = f.at(w), spectrum(module, w)
    rho = np.abs(expected).max()
    for method in ("power", "lanczos", "lobpcg"):
        found = rop.spectral_radius(p, method=method, tol=1e-8, maxiter=20_000)
        assert found.rho == pytest.approx(rho, rel=1e-6)
        assert all(np.abs(found.vector[part]).max() == 0 for part in constants(f.net))
    count = min(4, len(expected))
    for which, wanted in (("LA", expected[::-1][:count]), ("SA", expected[:count])):
        found = rop.eigen.lanczos(p, k=count, which=which, tol=1e-9)
        np.testing.assert_allclose(found.values, wanted, rtol=1e-6, atol=1e-9)
    density = rop.eigen.density(p, probes=200, steps=200)
    assert density.weights @ density.nodes == pytest.approx(expected.mean(), rel=0.2)
    assert rop.eigen.trace(p, products=3 * w.size).value == pytest.approx(expected.sum(), rel=1e-6)
    paper = rop.spectral_radius(p, method="paper_lobpcg", seed=1)
    assert all(np.abs(paper.vector[part]).max() == 0 for part in constants(f.net))


def test_as_many_eigenvalues_as_free_parameters() -> None:
    module = set_mode(made(FIXED["most"]), "evaluation")
    f, w = objective_of(module)
    p, expected = f.at(w), spectrum(module, w)
    found = rop.eigen.lanczos(p, k=len(expected), tol=1e-8)
    np.testing.assert_allclose(np.sort(found.values), expected, atol=1e-8)
    with pytest.raises(rop.ArgumentError, match=f"of at most {len(expected)}, the number of parameters that are not f"):
        rop.eigen.lanczos(p, k=len(expected) + 1)
    start = np.zeros(w.size)
    start[constants(f.net)[0]] = 1  # nothing of it is free
    assert rop.eigen.power(p, v0=start, maxiter=50).rho > 0


# ---------------------------------------------------------------------------------------------------------- other doors
def test_training_all_of_w_refuses_what_is_held_fixed() -> None:
    net, w, state = rop.from_torch(made(FIXED["one"], torch.float32))
    x, y = (part.numpy() for part in data(torch.float32))
    with pytest.raises(rop.ArgumentError) as caught:
        rop.train(net, rop.CrossEntropy(), (x, y), w=w, state=state, epochs=1, batch_size=7)
    assert str(caught.value) == (
        "train: it trains all parameters, but the module that the net comes from holds conv.weight fixed "
        "(requires_grad=False); rop.torch.SpectralRadius trains the others alone, and "
        "module.requires_grad_(True) before from_torch frees all"
    )


def test_training_uses_the_batch_whatever_the_module_did() -> None:
    x, y = (part.numpy() for part in data(torch.float32))
    fits = []
    for mode in ("training", "evaluation", "second frozen"):
        net, w, state = rop.from_torch(set_mode(made(dtype=torch.float32), mode))
        options: dict[str, Any] = {"w": w, "state": state, "epochs": 2, "batch_size": 7}
        for optimizer in (rop.SGD(), rop.SAM(adaptive=True)):
            fits.append(rop.train(net, rop.CrossEntropy(), (x, y), optimizer=optimizer, **options))
    for number, fit in enumerate(fits):
        np.testing.assert_array_equal(fit.w, fits[number % 2].w)


def test_what_was_fixed_comes_back_fixed() -> None:
    net, w, state = rop.from_torch(set_mode(made(FIXED["part of a layer"]), "evaluation"))
    back = rop.to_torch(net, w, state)
    assert [name for name, p in back.named_parameters() if not p.requires_grad] == ["bn.bias"]
    assert all(module.training for module in back.modules())
    assert rop.from_torch(back)[0].fixed == ("bn.bias",)


def test_check_looks_at_all_parameters() -> None:
    net, _, state = rop.from_torch(set_mode(made(FIXED["one"]), "evaluation"))
    x, y = (part.numpy() for part in data())
    assert rop.check.network(net, rop.CrossEntropy(), x, y, state=state, training=False).ok
