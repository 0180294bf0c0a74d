"""rop.Objective with what torch has: losses, dtypes and tensors in, tensors out."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rop
from tests.helpers.architectures import autograd
from tests.helpers.processes import run_python


def problem(dtype: torch.dtype = torch.float64, training: bool = True) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype).train(training)
    for buffer in module[1].buffers():
        if buffer.is_floating_point():
            buffer.add_(0.25)
    return module, torch.randn(8, 3, dtype=dtype), torch.randint(0, 3, (8,))


def objective_of(module: nn.Module, loss: Any, x: Any, y: Any, **options: Any) -> tuple[rop.Objective, Tensor]:
    net, w, state = rop.from_torch(module)
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    return rop.Objective(net, loss, x, y, state=tensors, **options), torch.from_numpy(w)


LOSSES: dict[str, Any] = {
    "module": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)),
    "function": F.cross_entropy,
    "partial": functools.partial(F.cross_entropy, reduction="sum"),
    "numbers": nn.MSELoss(),
    "rop's": rop.CrossEntropy(),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_tensors_of_torch(kind: str, training: bool) -> None:
    """All results are tensors, and those of triple backward."""
    module, x, y = problem(training=training)
    loss = LOSSES[kind]
    y = torch.randn(8, 3, dtype=torch.float64) if kind == "numbers" else y
    f, w = objective_of(module, loss, x, y)
    v = torch.randn_like(w)
    expected = autograd(module, F.cross_entropy if kind == "rop's" else loss, x, y, v.numpy())
    p = f.at(w)
    for found in (f.jet(w, v), (p.loss, p.grad, p.hvp(v), p.r2(v))):
        assert isinstance(found[0], float)
        assert all(isinstance(one, Tensor) and one.dtype == torch.float64 for one in found[1:])
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
    assert isinstance(f.loss, rop.Loss)
    other = f.with_targets(y, nn.MSELoss() if kind == "numbers" else nn.CrossEntropyLoss())
    assert type(other.loss) is type(f.loss)


def test_results_are_on_the_side_of_what_was_given() -> None:
    """The gradient is where w is, products are where v is; numbers are the same on both."""
    module, x, y = problem()
    f, w = objective_of(module, nn.CrossEntropyLoss(), x, y)
    g, _ = objective_of(module, rop.CrossEntropy(), x.numpy(), y.numpy())
    v, block = torch.randn_like(w), torch.randn(w.numel(), 4, dtype=w.dtype)
    expected = g.jet(w.numpy(), v.numpy())
    assert all(type(one) is np.ndarray for one in expected[1:])
    for given_w, like_w in ((w, Tensor), (w.numpy(), np.ndarray)):
        p = f.at(given_w)
        assert isinstance(p.grad, like_w) and isinstance(p.outputs(), like_w)
        assert {type(one) for one in p.batch_stats.values()} == {like_w}
        assert isinstance(p.w, np.ndarray) and not p.w.flags.writeable
        for given_v, like_v in ((v, Tensor), (v.numpy(), np.ndarray)):
            jet = f.jet(given_w, given_v)
            assert [type(one) for one in jet[1:]] == [like_w, like_v, like_v]
            for ours, theirs in zip(jet, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            assert isinstance(p.hvp(given_v), like_v) and isinstance(p.r2(given_v), like_v)
            assert p.taylor(given_v) == g.at(w.numpy()).taylor(v.numpy())
        found = p.hvp(block)
        assert isinstance(found, Tensor) and found.shape == block.shape
        np.testing.assert_array_equal(found, p.hvp(block.numpy()))
    assert rop.eigen.lanczos(f.at(w), tol=1e-6).value == rop.eigen.lanczos(g.at(w.numpy()), tol=1e-6).value


def test_results_are_the_users_own() -> None:
    module, x, y = problem()
    f, w = objective_of(module, nn.CrossEntropyLoss(), x, y)
    p = f.at(w)
    kept, first = w.clone(), p.grad.clone()
    p.grad.zero_()
    w.add_(1)
    np.testing.assert_array_equal(p.grad, first)
    np.testing.assert_array_equal(p.w, kept)
    again = pickle.loads(pickle.dumps(copy.copy(p)))
    assert isinstance(again.grad, Tensor)


@pytest.mark.parametrize(("theirs", "ours"), [(torch.float32, np.float32), (torch.float64, np.float64)])
def test_dtypes_of_torch(theirs: torch.dtype, ours: Any) -> None:
    module, x, y = problem(torch.float32)
    f, w = objective_of(module, nn.CrossEntropyLoss(), x, y, dtype=theirs)
    assert f.dtype == ours and f.at(w).grad.dtype == theirs
    net = rop.Sequential(rop.Linear(2, 1))
    assert net.init(dtype=theirs).dtype == ours


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(), x, y, dtype=torch.bfloat16),
            "Objective: dtype must be float32 or float64, got torch.bfloat16",
        ),
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(), x.clone().requires_grad_(), y),
            "x: expected an array of float32 or float64, got a tensor that requires grad, which rop would not send "
            "back to torch; give x.detach()",
        ),
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(), x, y).at(torch.zeros(38, requires_grad=True)),
            "w: expected an array of float32 or float64, got a tensor that requires grad, which rop would not send "
            "back to torch; give w.detach()",
        ),
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(), x, y).at(torch.zeros(3)),
            "w: expected a vector of shape (48,), the number of parameters, got (3,)",
        ),
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(), x.int(), y),
            "x: expected an array of float32 or float64, got int32; convert it with np.asarray(x, dtype=np.float32)",
        ),
        (
            lambda net, x, y: rop.Objective(net, nn.CrossEntropyLoss(reduction="none"), x, y),
            "CrossEntropy: reduction must be one of 'mean', 'sum', got 'none'",
        ),
        (
            lambda net, x, y: rop.Objective(net, lambda z, t: z, x, y),
            "Objective: expected a loss such as rop.CrossEntropy(), got function",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    module, x, y = problem()
    net, _, _ = rop.from_torch(module)
    with pytest.raises(rop.RopError) as caught:
        make(net, x, y)
    assert str(caught.value) == message


@pytest.mark.parametrize("loss", [nn.MultiMarginLoss(), F.relu, torch.exp, functools.partial(F.hinge_embedding_loss)])
def test_other_losses_of_torch_are_refused_with_those_that_are_known(loss: Any) -> None:
    module, x, y = problem()
    with pytest.raises(
        rop.ArgumentTypeError, match=r"loss: expected one of torch's .*CrossEntropyLoss.* or a loss of rop"
    ):
        objective_of(module, loss, x, y)


def test_torch_is_not_loaded_by_an_objective() -> None:
    code = """
import sys
import numpy as np, rop
net = rop.Sequential(rop.Linear(2, 1))
f = rop.Objective(net, rop.MSE(), np.eye(2), np.ones((2, 1)))
f.jet([1, 2.0, 3], [1.0, 2, 3])
assert "torch" not in sys.modules
"""
    run_python(code)
    assert "torch" in sys.modules
