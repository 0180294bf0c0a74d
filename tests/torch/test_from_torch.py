"""Modules of PyTorch come in and go out: the same numbers, the same order, the same outputs, or a clear refusal."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rop
from tests.helpers.architectures import ARCHITECTURES, LeNet, ResNet18, autograd
from tests.helpers.checker import ORDERS, TOLERANCES, Tolerance, error_of
from tests.helpers.zoo import drawn_state, gated, mixed, residual, usps, wide

# Batchnorm over 8 samples and a pixel divides by small deviations, layer after layer: relative to float64's 1e-9 the
# deepest net here has some hundred such divisions.
DEEP = Tolerance(1e-9, 1e-11)


def vector(module: nn.Module) -> np.ndarray:
    """The parameters in torch's own order."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def outputs(module: nn.Module, x: Tensor) -> np.ndarray:
    """In evaluation mode, with the module left as it was."""
    mode = module.training
    with torch.no_grad():
        result = module.eval()(x).numpy()
    module.train(mode)
    return result


class Function(nn.Module):
    """A module whose forward is any function of itself and x."""

    def __init__(self, forward: Callable[..., Tensor], **children: Any) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)
        self._function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self, x)


# ---------------------------------------------------------------------------------------------------------------
# real architectures
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_agree_with_autograd(name: str, training: bool) -> None:
    """Loss, gradient, Hv and R² in float64, against triple backward through the module itself."""
    architecture = ARCHITECTURES[name]
    module = architecture.module().train(training)
    x, y = architecture.data(batch=8)
    net, w, state = rop.from_torch(module)
    np.testing.assert_array_equal(w, vector(module))
    v = np.random.default_rng(0).standard_normal(w.size)
    v /= np.linalg.norm(v)
    loss = rop.torch.loss_from_torch(architecture.loss)
    f = rop.Objective(net, loss, x.numpy(), y.numpy(), dtype=np.float64, training=training, state=state)
    actual, expected = f.jet(w, v), autograd(module, architecture.loss, x, y, v)
    scale = 1 + float(np.linalg.norm(expected[1]))
    for order, wanted in zip(ORDERS, expected, strict=True):
        error, size = error_of(getattr(actual, order), wanted), float(np.linalg.norm(wanted))
        assert error <= DEEP.relative * size + DEEP.floor * scale, f"{order}: error {error:.2e}, norm {size:.2e}"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_come_back_as_they_were(name: str) -> None:
    """Parameters, statistics and names bit for bit, outputs to rounding; and once more around."""
    architecture = ARCHITECTURES[name]
    module = architecture.module()
    x, _ = architecture.data(batch=4)
    net, w, state = rop.from_torch(module)
    back = rop.to_torch(net, w, state)
    theirs = {key: value for key, value in module.state_dict().items() if "num_batches" not in key}
    ours = {key: value for key, value in back.state_dict().items() if "num_batches" not in key}
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    module.load_state_dict(back.state_dict())
    tolerance = TOLERANCES[np.dtype(np.float64)].relative
    np.testing.assert_allclose(outputs(back, x), outputs(module, x), rtol=tolerance)
    np.testing.assert_allclose(net.predict(w, x.numpy(), state), outputs(module, x), rtol=tolerance)
    net2, w2, state2 = rop.from_torch(back)
    np.testing.assert_array_equal(w2, w)
    assert [slot.name for slot in net2.slots] == [slot.name for slot in net.slots]
    assert state.keys() == state2.keys() and all(np.array_equal(state[key], state2[key]) for key in state)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("make", [mixed, residual, gated, usps, wide])
def test_nets_of_rop_go_to_torch_and_back(make: Any, dtype: Any) -> None:
    net = make()
    shapes = {"mixed": (6,), "residual": (1, 6, 5), "gated": (2, 5, 4), "usps": (1, 16, 16), "wide": (131,)}
    shape = shapes[make.__name__]
    w = net.init(seed=1, dtype=dtype)
    state = {key: value.astype(dtype) for key, value in (drawn_state(net, 1) or {}).items()}
    module = rop.to_torch(net, w, state)
    np.testing.assert_array_equal(vector(module), w)
    again, w2, state2 = rop.from_torch(module)
    np.testing.assert_array_equal(w2, w)
    assert w2.dtype == dtype and all(np.array_equal(state2[key], state[key]) for key in state)
    assert [(slot.name, slot.shape) for slot in again.slots] == [(slot.name, slot.shape) for slot in net.slots]
    x = np.random.default_rng(0).standard_normal((5, *shape)).astype(dtype)
    expected = net.predict(w, x, state or None)
    scale = np.abs(expected).max() * (1e-5 if dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(outputs(module, torch.from_numpy(x)), expected, rtol=0, atol=scale)
    np.testing.assert_array_equal(again.predict(w2, x, state2 or None), expected)


def test_modules_from_rop_are_readable_and_trainable() -> None:
    chain = rop.to_torch(usps(), usps().init())
    assert type(chain) is nn.Sequential and list(chain.state_dict())[:2] == ["0.weight", "0.bias"]
    net, w, state = rop.from_torch(ResNet18())
    module: Any = rop.to_torch(net, w, state)
    assert "self.layer1" in module.code and "layer2.0.downsample.0.weight" in module.state_dict()
    w[:] = 0  # the module has memory of its own
    assert vector(module).any() and module.training
    module(torch.randn(4, 3, 32, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


# ---------------------------------------------------------------------------------------------------------------
# what forward may do
# ---------------------------------------------------------------------------------------------------------------

IMAGE, FEATURES = (2, 4, 4), (6,)
CONV, LINEAR = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(6, 6)

FORWARDS: dict[str, tuple[tuple[int, ...], Callable[..., Tensor]]] = {
    "flatten function": (IMAGE, lambda m, x: torch.flatten(m.conv(x), 1)),
    "flatten method": (IMAGE, lambda m, x: m.conv(x).flatten(start_dim=1)),
    "view with size": (IMAGE, lambda m, x: m.conv(x).view(x.size(0), -1)),
    "view with a number": (IMAGE, lambda m, x: m.conv(x).view(-1, 48)),
    "reshape with shape": (IMAGE, lambda m, x: m.conv(x).reshape(x.shape[0], -1)),
    "reshape with a tuple": (IMAGE, lambda m, x: m.conv(x).reshape((x.shape[0], 48))),
    "torch.reshape": (IMAGE, lambda m, x: torch.reshape(m.conv(x), (-1, 48))),
    "unpacked shape": (IMAGE, lambda m, x: unpacked(m.conv(x))),
    "mean over pixels": (IMAGE, lambda m, x: m.conv(x).mean((2, 3))),
    "mean that keeps axes": (IMAGE, lambda m, x: torch.mean(m.conv(x), dim=[-1, -2], keepdim=True)),
    "global average of old": (IMAGE, lambda m, x: whole_average(m.conv(x))),
    "pooling with ceil_mode": (IMAGE, lambda m, x: F.max_pool2d(F.avg_pool2d(m.conv(x), 2, 1), 2, ceil_mode=True)),
    "average without padding": (IMAGE, lambda m, x: F.avg_pool2d(m.conv(x), 3, 2, 1, True, False)),
    "adaptive to 3×2": (IMAGE, lambda m, x: F.adaptive_avg_pool2d(m.conv(x), (3, 2))),
    "torch.cat": (IMAGE, lambda m, x: torch.cat([x, m.conv(x), x], dim=1)),
    "product": (FEATURES, lambda m, x: m.fc(x) * x),
    "torch.mul": (FEATURES, lambda m, x: torch.mul(torch.multiply(m.fc(x), x), x)),
    "mul method": (FEATURES, lambda m, x: m.fc(x).mul(x).multiply(x)),
    "squares": (FEATURES, lambda m, x: torch.square(m.fc(x)) + m.fc(x).square() + m.fc(x) ** 2 + m.fc(x).pow(2)),
    "imul": (FEATURES, lambda m, x: operator.imul(m.fc(x), x)),
    "products in place, seen through both names": (FEATURES, lambda m, x: scaled_in_place(m.fc(x), x)),
    "channels times a map": (IMAGE, lambda m, x: m.conv(x) * F.adaptive_avg_pool2d(m.conv(x), 1)),
    "pixels times a map": (IMAGE, lambda m, x: m.conv(x) * F.max_pool2d(m.conv(x), 4) * torch.sigmoid(m.conv(x))),
    "vector times a map": (IMAGE, lambda m, x: m.conv(x) * m.conv(x).mean((2, 3))[:, :, None, None]),
    "vector behind an ellipsis": (IMAGE, lambda m, x: m.conv(x).mean((2, 3))[..., None, None] * m.conv(x)),
    "unsqueezed": (IMAGE, lambda m, x: m.conv(x) * m.conv(x).mean((2, 3)).unsqueeze(-1).unsqueeze(3)),
    "viewed and expanded": (IMAGE, lambda m, x: excited(m.conv(x))),
    "torch.add": (FEATURES, lambda m, x: torch.add(m.fc(x), x)),
    "add method": (FEATURES, lambda m, x: m.fc(x).add(x)),
    "iadd": (FEATURES, lambda m, x: operator.iadd(m.fc(x), x)),
    "in place, seen through both names": (FEATURES, lambda m, x: in_place(m.fc(x), x)),
    "relu in place, seen by the residual": (FEATURES, lambda m, x: seen(m.fc(x))),
    "tied": (FEATURES, lambda m, x: m.fc(torch.tanh(m.fc(x)))),
    "activations": (FEATURES, lambda m, x: F.gelu(F.silu(F.softplus(F.leaky_relu(m.fc(x), 0.2)), inplace=False))),
    "activation options": (FEATURES, lambda m, x: F.gelu(F.softplus(m.fc(x), 2, threshold=3), approximate="tanh")),
    "activations in pieces": (
        FEATURES,
        lambda m, x: F.hardsigmoid(F.hardswish(F.relu6(F.hardtanh(F.elu_(F.celu(F.selu(m.fc(x)), 2.0)), -0.5, 2)))),
    ),
    "smooth activations": (FEATURES, lambda m, x: F.softsign(F.logsigmoid(F.mish(m.fc(x))))),
    "methods": (FEATURES, lambda m, x: m.fc(x).tanh().sigmoid().relu().softmax(-1).contiguous()),
    "log_softmax": (FEATURES, lambda m, x: F.log_softmax(m.fc(x), dim=1)),
    "dropout that drops nothing": (FEATURES, lambda m, x: F.dropout(m.fc(x), 0.5, training=False)),
    "parameters in a function": (FEATURES, lambda m, x: F.linear(x, m.fc.weight, m.fc.bias)),
    "convolution as a function": (IMAGE, lambda m, x: F.conv2d(x, m.conv.weight, None, stride=2, padding=(1, 0))),
    "layers called against their order": (FEATURES, lambda m, x: m.fc(m.last(x))),
}


def unpacked(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.view(batch, channels * height * width)


def scaled_in_place(y: Tensor, x: Tensor) -> Tensor:
    alias = y
    y *= x
    return alias + torch.tanh(y.mul_(x))


def excited(x: Tensor) -> Tensor:
    """As the first publications wrote it."""
    b, c, _, _ = x.size()
    y = F.adaptive_avg_pool2d(x, 1).view(b, c)
    return x * torch.sigmoid(y).view(b, c, 1, 1).expand_as(x) * y.view(-1, 3, 1, 1)


def whole_average(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, x.size()[2:])


def in_place(y: Tensor, x: Tensor) -> Tensor:
    alias = y
    y += x
    y = torch.tanh(alias)
    return y + alias


def seen(y: Tensor) -> Tensor:
    return F.relu(y, inplace=True) + y


@pytest.mark.parametrize("what", FORWARDS)
def test_forwards(what: str) -> None:
    """Outputs are the module's; parameters that forward uses stand in w in the module's order."""
    shape, forward = FORWARDS[what]
    torch.manual_seed(0)
    layers = {"conv": nn.Conv2d(2, 3, 3, padding=1)} if shape == IMAGE else {"fc": nn.Linear(6, 6)}
    if "order" in what:
        layers["last"] = nn.Linear(6, 6)
    module = Function(forward, **layers).double()
    x = torch.randn(5, *shape, dtype=torch.float64)
    net, w, _ = rop.from_torch(module)
    if "convolution" not in what:
        np.testing.assert_array_equal(w, vector(module))
        assert [slot.name for slot in net.slots] == [name for name, _ in module.named_parameters()]
    np.testing.assert_allclose(net.predict(w, x.numpy()), outputs(module, x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(outputs(rop.to_torch(net, w), x), outputs(module, x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 3),
        nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.Dropout(0.0)),
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, eps=0.1, momentum=0.5, affine=False), nn.Softmax(-1)),
        nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.SiLU()), nn.Sequential(nn.GELU("tanh"), nn.LogSoftmax(1))),
        nn.DataParallel(nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(6, 6), nn.ELU(0.5), nn.CELU(2.0), nn.SELU(inplace=True), nn.Mish(), nn.Softsign()),
        nn.Sequential(nn.Linear(6, 6), nn.Hardtanh(-0.5, 3.0), nn.ReLU6(), nn.Hardswish(), nn.Hardsigmoid()),
    ],
    ids=["one layer", "nothing", "batchnorm", "nested", "wrapped", "smooth", "in pieces"],
)
def test_modules(module: nn.Module) -> None:
    x = torch.randn(7, 6)
    net, w, state = rop.from_torch(module)
    assert w.dtype == np.float32
    np.testing.assert_array_equal(w, vector(module))
    np.testing.assert_allclose(net.predict(w, x.numpy(), state), outputs(module, x), rtol=1e-5, atol=1e-6)
    back = rop.to_torch(net, w, state)
    if isinstance(module, nn.Sequential):
        assert back.state_dict().keys() == module.state_dict().keys()


def test_subclasses_of_layers_are_looked_into() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return torch.tanh(super().forward(input))

    module = nn.Sequential(Scaled(6, 4), nn.Linear(4, 2))
    net, w, _ = rop.from_torch(module)
    assert [slot.name for slot in net.slots] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    x = torch.randn(3, 6)
    np.testing.assert_allclose(net.predict(w, x.numpy()), outputs(module, x), rtol=1e-5, atol=1e-6)


def test_arguments_with_defaults_and_unused_parameters() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.fc = nn.Linear(9, 9), nn.Linear(6, 2)

        def forward(self, x: Tensor, mask: Tensor | None = None, scale: int = 1) -> Tensor:
            return self.fc(x if mask is None else x * mask)

    net, w, _ = rop.from_torch(Module())
    assert w.size == net.size == 14


def test_modules_with_the_same_parameters_are_one_layer() -> None:
    a, b = nn.Linear(5, 5), nn.Linear(5, 5)
    b.weight, b.bias = a.weight, a.bias
    module = nn.Sequential(a, nn.Tanh(), b)
    net, w, _ = rop.from_torch(module)
    assert w.size == 30 and [slot.name for slot in net.slots] == ["0.weight", "0.bias"]
    x = torch.randn(3, 5)
    np.testing.assert_allclose(net.predict(w, x.numpy()), outputs(module, x), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------
# refusals
# ---------------------------------------------------------------------------------------------------------------


def half_tied() -> nn.Module:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    return nn.Sequential(a, b)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return module


def two_precisions() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())


def function(forward: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Identity(), Function(forward, fc=nn.Linear(3, 3)))


REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "not a module": (lambda: np.zeros(3), ("nn.Module", "ndarray")),
    "scripted": (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), ("scripted", "made from")),
    "unknown layer": (
        lambda: nn.Sequential(nn.Sequential(nn.Hardshrink())),
        ("0.0 (Hardshrink)", "no such layer", "layers={Hardshrink: convert}"),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)), ("1 (Dropout)", "p=0.3", "eval()")),
    "dropout function": (function(lambda m, x: F.dropout(m.fc(x), 0.5)), ("1 (torch.nn.functional.dropout", "eval()")),
    "padding mode": (lambda: nn.Conv2d(1, 1, 3, padding_mode="reflect"), ("0 (Conv2d)", "padding_mode='reflect'")),
    "dilated pooling": (lambda: nn.Sequential(nn.MaxPool2d(2, dilation=2)), ("0 (MaxPool2d)", "dilation=2")),
    "odd padding": (lambda: nn.Conv2d(1, 1, 2, padding="same"), ("0 (Conv2d)", "same", "odd kernel")),
    "no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), ("track_running_stats=False",)),
    "cumulative average": (lambda: nn.BatchNorm2d(3, momentum=None), ("0 (BatchNorm2d)", "momentum=None")),
    "softmax over pixels": (lambda: nn.Softmax(2), ("0 (Softmax)", "dim", "2")),
    "hooks": (hooked, ("0 (Linear)", "hooks")),
    "parametrized": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))),
        ("0 (ParametrizedLinear)", "nn.Linear", "plain module"),
    ),
    "half tied": (half_tied, ("1.weight", "0.weight", "whole layers")),
    "two precisions": (two_precisions, ("float32", "float64", "module.double()")),
    "half precision": (lambda: nn.Linear(2, 2).half(), ("float16",)),
    "no shape yet": (lambda: nn.Sequential(nn.LazyLinear(3)), ("0.weight", "run the module")),
    "branch on values": (
        function(lambda m, x: x if x.sum() > 0 else -x),
        ("1 (Function; test_from_torch.py:", "x if x.sum()", "): torch.fx cannot trace", "control flow", "{Function: "),
    ),
    "two inputs": (lambda: nn.Bilinear(2, 2, 2), ("one input", "input1", "input2")),
    "two outputs": (function(lambda m, x: (m.fc(x), x)), ("output", "one value")),
    "scaling": (function(lambda m, x: 0.5 * m.fc(x)), ("1 (operator.mul", "no layer")),
    "scaling by a parameter": (function(lambda m, x: m.fc(x) * m.fc.bias), ("1 (operator.mul", "a parameter")),
    "cube": (function(lambda m, x: m.fc(x) ** 3), ("1 (operator.pow", "squares")),
    "axis in the middle": (function(lambda m, x: m.fc(x) * x.unsqueeze(1)), ("1 (Tensor.unsqueeze", "dim=1")),
    "expanded elsewhere": (function(lambda m, x: m.fc(x) + x.expand_as(x)), ("1 (operator.add", "only products")),
    "expanded to a stranger": (function(lambda m, x: m.fc(x) * x.expand_as(x)), ("1 (operator.mul", "expanded")),
    "column changed in place": (function(lambda m, x: column_changed(m.fc(x), x)), ("1 (operator.mul", "in place")),
    "sum with a number": (function(lambda m, x: m.fc(x) + 1), ("1 (operator.add", "1")),
    "sum with a weight": (function(lambda m, x: torch.add(m.fc(x), x, alpha=2)), ("1 (torch.add", "alpha=2")),
    "matrix product": (
        function(lambda m, x: x @ m.fc.weight),
        ("1 (operator.matmul", "layers={operator.matmul: a layer of rop}"),
    ),
    "weight that is computed": (function(lambda m, x: F.linear(x, m.fc.weight.t())), ("1 (Tensor.t", "no such layer")),
    "part of a value": (function(lambda m, x: m.fc(x)[:, :2]), ("1 (operator.getitem", "picks")),
    "other view": (function(lambda m, x: m.fc(x).view(-1, 1, 3)), ("1 (Tensor.view", "x.view(-1, 1, 3)")),
    "cat of samples": (function(lambda m, x: torch.cat([x, m.fc(x)])), ("1 (torch.cat", "dim=0")),
    "mean over features": (function(lambda m, x: m.fc(x).mean(1)), ("1 (Tensor.mean", "dim=1")),
    "method": (function(lambda m, x: m.fc(x).exp()), ("1 (Tensor.exp", "no such layer")),
    "view changed in place": (function(lambda m, x: overwritten(m.fc(x))), ("1 (operator.add", "in place")),
    "window of another size": (function(lambda m, x: F.avg_pool2d(m.fc(x), x.size(2))), ("avg_pool2d", "a size of")),
    "unknown argument": (function(lambda m, x: torch.softmax(m.fc(x), 1, out=x)), ("1 (torch.softmax", "out=")),
    "weights of two strides": (
        lambda: Function(lambda m, x: m.conv(F.conv2d(x, m.conv.weight, m.conv.bias, 2)), conv=nn.Conv2d(1, 1, 1)),
        ("conv_1.weight", "conv.weight", "whole"),
    ),
    "nothing computed": (lambda: Function(lambda m, x: x), ("output", "computes")),
}


def column_changed(y: Tensor, x: Tensor) -> Tensor:
    column = y[:, :, None, None]
    y *= x
    return column * column


def overwritten(y: Tensor) -> Tensor:
    flat = y.flatten(1)
    y += flat
    return flat + y


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_translated_is_refused_by_path_and_operation(what: str) -> None:
    make, words = REFUSED[what]
    with pytest.raises(rop.RopError) as caught:
        rop.from_torch(make())
    message = str(caught.value)
    assert message.startswith("from_torch: ")
    for word in words:
        assert word in message, message


def test_a_product_that_torch_would_align_otherwise_is_refused() -> None:
    """A vector beside a map: torch takes the vector's samples for rows."""
    module = Function(lambda m, x: m.conv(x) * m.conv(x).mean((2, 3)), conv=nn.Conv2d(2, 3, 3, padding=1))
    net, _, _ = rop.from_torch(module)
    with pytest.raises(rop.ArgumentError, match=r"layer mul .*\(batch, 3, 4, 4\) and \(batch, 3\).*None, None"):
        net.shapes(IMAGE)


def test_a_view_that_would_mix_samples_is_refused() -> None:
    net, w, _ = rop.from_torch(LeNet())
    with pytest.raises(rop.ArgumentError, match=r"layer flatten .*expected 400 numbers .* got 784"):
        net.predict(w, np.zeros((2, 1, 36, 36), np.float32))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("net", np.zeros(3)), ("rop.Sequential", "str")),
        ((usps(), np.zeros(3)), ("(14794,)", "(3,)")),
        ((usps(), [0, 1]), ("float32", "int")),
        ((residual(), residual().init(), {"a": np.ones(2)}), ("state", "keys")),
    ],
)
def test_to_torch_refuses(given: tuple[Any, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(rop.RopError) as caught:
        rop.to_torch(*given)
    for word in words:
        assert word in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------
# without torch
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["rop.from_torch", "rop.to_torch", "rop.torch.SpectralRadius", "import rop.torch"])
def test_a_missing_torch_is_named_with_its_extra(call: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import rop; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'rop[torch]'" in done.stderr.splitlines()[-1]


def test_torch_is_loaded_only_when_asked_for_and_never_shadowed() -> None:
    code = (
        "import sys, rop; assert 'torch' not in sys.modules; from rop import *; assert 'torch' not in globals(); "
        "rop.from_torch; import torch; assert hasattr(torch, 'nn') and rop.torch is not torch"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # of KLDivLoss
@pytest.mark.parametrize(
    "theirs",
    [
        nn.L1Loss(),
        nn.SmoothL1Loss(beta=0.5),
        nn.HuberLoss(reduction="sum", delta=0.3),
        nn.PoissonNLLLoss(),
        nn.KLDivLoss(),
        nn.KLDivLoss(reduction="batchmean", log_target=True),
        functools.partial(F.huber_loss, delta=0.3),
    ],
    ids=lambda theirs: getattr(theirs, "func", type(theirs)).__name__,
)
def test_losses_come_from_torch(theirs: Any) -> None:
    ours = rop.torch.loss_from_torch(theirs)
    rng = np.random.default_rng(0)
    z, t = rng.standard_normal((4, 3)), rng.random((4, 3))
    assert ours.value(z, t) == pytest.approx(theirs(torch.tensor(z), torch.tensor(t)).item(), rel=1e-12)


@pytest.mark.parametrize("other", [{"log_input": False}, {"full": True}, {"eps": 1e-3}])
def test_other_poisson_losses_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(rop.ArgumentError, match=f"PoissonNLL has no {next(iter(other))}"):
        rop.torch.loss_from_torch(nn.PoissonNLLLoss(**other))


@pytest.mark.parametrize("weight", [torch.tensor(2.0), torch.tensor([1.0, 2.0, 0.5])], ids=["number", "per output"])
def test_positive_weights_come_from_torch(weight: torch.Tensor) -> None:
    theirs = torch.nn.BCEWithLogitsLoss(pos_weight=weight)
    ours = rop.torch.loss_from_torch(theirs)
    rng = np.random.default_rng(0)
    z, t = rng.standard_normal((4, 3)).astype("f4"), rng.random((4, 3)).astype("f4")
    assert isinstance(ours, rop.BCEWithLogits)
    assert ours.value(z, t) == pytest.approx(theirs(torch.tensor(z), torch.tensor(t)).item(), rel=1e-6)
    with pytest.raises(rop.errors.ArgumentError, match="has no weight"):
        rop.torch.loss_from_torch(torch.nn.BCEWithLogitsLoss(weight=torch.ones(3)))
