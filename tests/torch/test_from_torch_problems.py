"""What from_torch refuses it lists at once, by path, source line and remedy; what it is taught it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rop
from tests.helpers.architectures import autograd


class Gate(nn.Module):
    """A branch that torch.fx cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(3, 3), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.fc(x))
        return x if x.sum() > 0 else -x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.shrink = nn.InstanceNorm1d(3), nn.Hardshrink()

    def forward(self, x: Tensor) -> Tensor:
        y = self.shrink(torch.erf(x))
        return F.dropout(self.norm(y).exp(), 0.2) * x


class Many(nn.Module):
    """Problems in two blocks of one kind, in a module that cannot be traced, and in what comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.Tanh(), Block())
        self.gate, self.head = Gate(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(self.blocks(x))
        second = x.chunk(2)[0]
        return F.linear(second, self.head.weight.abs()).view(-1, 1, 2)


def line_of(code: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.strip() == code)


def message_of(module: nn.Module, **options: Any) -> str:
    with pytest.raises(rop.ArgumentError) as caught:
        rop.from_torch(module, **options)
    return str(caught.value)


def test_all_problems_are_listed_at_once() -> None:
    shrink, product = "y = self.shrink(torch.erf(x))", "return F.dropout(self.norm(y).exp(), 0.2) * x"
    branch, gate = "return x if x.sum() > 0 else -x", "x = self.drop(self.fc(x))"
    head, chunk = (
        "return F.linear(second, self.head.weight.abs()).view(-1, 1, 2)",
        "second = x.chunk(2)[0]",
    )

    def at(code: str) -> str:
        shown = code if len(code) <= 80 else code[:79] + "…"
        return f"test_from_torch_problems.py:{line_of(code)}, {shown}"

    missing = "there is no such layer; say what computes it: layers="
    drops = "draws anew at every pass in training mode, so f has no Hessian; call module.eval(), or set p to 0"
    both = "blocks.0, blocks.2"
    expected = [
        "from_torch: Many has 10 problems:",
        f"1. gate (Gate; {at(branch)}): torch.fx cannot trace its forward: symbolically traced variables cannot be "
        "used as inputs to control flow; it must be a fixed sequence of operations, without branches or loops that "
        "depend on values, or say what computes it: layers={Gate: convert}",
        f"2. {both} (torch.erf in forward; {at(shrink)}): {missing}{{torch.erf: a layer of rop}}",
        f"3. blocks.0.shrink, blocks.2.shrink (Hardshrink; {at(shrink)}): {missing}{{Hardshrink: convert}}",
        f"4. blocks.0.norm, blocks.2.norm (InstanceNorm1d; {at(product)}): {missing}{{InstanceNorm1d: convert}}",
        f"5. {both} (Tensor.exp in forward; {at(product)}): {missing}{{'exp': a layer of rop}}",
        f"6. {both} (torch.nn.functional.dropout in forward; {at(product)}): dropout with p=0.2 {drops}",
        f"7. gate.drop (Dropout; {at(gate)}): dropout with p=0.3 {drops}",
        f"8. (Tensor.chunk in forward; {at(chunk)}): {missing}{{'chunk': a layer of rop}}",
        f"9. (Tensor.abs in forward; {at(head)}): {missing}{{'abs': a layer of rop}}",
        f"10. (Tensor.view in forward; {at(head)}): expected a view that makes each sample a vector, such as "
        "x.view(x.size(0), -1) or x.flatten(1), or a map of one pixel of it, got x.view(-1, 1, 2); there is no other "
        "reshaping layer",
    ]
    assert message_of(Many()).splitlines() == expected


def test_problems_of_tensors_are_listed_with_those_of_layers() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Hardshrink(), *(nn.Hardshrink() for _ in range(4)))
    module[0].bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    assert message_of(module).splitlines() == [
        "from_torch: Sequential has 2 problems:",
        "1. expected all parameters as float32 or all as float64, got torch.float32, torch.float64; use module.float() "
        "or module.double()",
        "2. 1, 2, 3 and 2 more (Hardshrink): there is no such layer; say what computes it: "
        "layers={Hardshrink: convert}",
    ]
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(3, bias=False))
    assert message_of(lazy) == (
        "from_torch: 0.weight, 0.bias, 1.weight: it has no shape yet; run the module on a batch first"
    )


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for row in self.fc(x):
            x = x + row
        return x


def test_a_forward_that_cannot_be_traced_at_all_is_shown() -> None:
    line = line_of("for row in self.fc(x):")
    message = message_of(Root())
    assert message.startswith(f"from_torch: Root ({Path(__file__).name}:{line}, for row in self.fc(x):): torch.fx ")
    assert "1. " not in message and message.endswith("layers={Root: convert}")


# ------------------------------------------------------------------------------------------------ what users teach it
class Scale(nn.Module):
    """A layer with parameters that forward reads in a way that torch.fx cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.norm(self.inner(x)))
        return y + x if y.isfinite().all() else y


def by_name(module: Scale) -> rop.Graph:
    x = rop.Input()
    inner, norm = rop.Linear(4, 4), rop.BatchNorm1d(4)
    last = rop.Tanh()(norm(inner(x)))
    add = rop.Add()(last, x)
    names = {norm: "norm", inner: "inner", last.layer: "tanh", add.layer: "add"}
    return rop.Graph(x, add, names={layer: name for layer, name in names.items() if layer is not None})


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


CUBE = rop.Elementwise(lambda x: (x**3, 3 * x**2, 6 * x, 6.0))


class Taught(nn.Module):
    """Every kind of thing that can be taught, twice, around layers that rop knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.cube = nn.Linear(4, 4), Scale(), Cube()
        self.mish, self.again, self.last = nn.Mish(), Scale(), Affine(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cube(self.scale(self.cube(self.first(x))))
        x = torch.square(self.again(self.mish(x))).square()
        return self.last(x)


class Affine(nn.Module):
    """Its parameters have names of their own: they are taken in their order."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(outputs, inputs))
        self.shift = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oi,bi->bo", self.matrix, x) + self.shift


SQUARE = rop.Elementwise(lambda x: (x**2, 2 * x, 2.0, 0.0))
LAYERS: dict[Any, Any] = {
    Scale: by_name,
    Cube: CUBE,
    nn.Mish: rop.Sequential(rop.Mish(), rop.Identity()),
    Affine: lambda module: rop.Linear(module.matrix.shape[1], module.matrix.shape[0]),
    torch.square: SQUARE,
    "square": SQUARE,
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_what_is_taught_is_computed(training: bool) -> None:
    """In place among other layers: the order of w, running statistics, and all derivatives."""
    torch.manual_seed(0)
    module = Taught().double().train(training)
    for buffer in (module.scale.norm.running_mean, module.again.norm.running_var):
        assert buffer is not None
        buffer.add_(0.5)
    net, w, state = rop.from_torch(module, layers=LAYERS)
    np.testing.assert_array_equal(w, nn.utils.parameters_to_vector(module.parameters()).detach().numpy())
    names = [name for name, _ in module.named_parameters()]
    assert [slot.name for slot in net.slots][:-2] == names[:-2] and net.slots[-1].name == "last.bias"
    assert set(state) == {name for name, _ in module.named_buffers() if "num" not in name}
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    v = np.random.default_rng(0).standard_normal(w.size)
    f = rop.Objective(net, rop.MSE(), x.numpy(), y.numpy(), dtype=np.float64, training=training, state=state)
    expected = autograd(module, nn.MSELoss(), x, y, v)
    for ours, theirs in zip(f.jet(w, v), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.linalg.norm(theirs)))


def test_a_whole_module_can_be_taught_and_what_is_known_otherwise() -> None:
    net, w, _ = rop.from_torch(nn.Mish(), layers={nn.Mish: CUBE})
    assert w.size == 0 and net.predict(w.astype("f4"), np.array([[2.0]], "f4")) == 8
    net, w, state = rop.from_torch(Scale(), layers={Scale: by_name})
    assert [slot.name for slot in net.slots][:2] == ["0.inner.weight", "0.inner.bias"] and len(state) == 2
    shared = Affine(3, 3)
    net, w, _ = rop.from_torch(nn.Sequential(shared, Cube(), shared), layers=LAYERS)
    assert w.size == 12


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mish = nn.Mish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(1)
        self.mish(y)
        return y + torch.tanh(y)


def test_what_is_taught_may_be_in_place() -> None:
    module, x = InPlace().double(), torch.randn(3, 4, dtype=torch.float64)
    net, w, _ = rop.from_torch(module, layers={nn.Mish: rop.Mish()})
    np.testing.assert_allclose(net.predict(w.astype("f8"), x.numpy()), module(x.clone()).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Mish], "from_torch: layers must be a dict such as {nn.Mish: rop.Elementwise(f)}, got [<class 'torch"),
        ({5: CUBE}, "from_torch: layers must have classes of modules, functions of torch or names of tensors' methods"),
        ({dict: CUBE}, "from_torch: layers must have classes of modules, functions of torch or names of tensors' meth"),
        ({torch.exp: by_name}, "from_torch: layers[exp] must be a layer such as rop.Elementwise(f), because it stands"),
        ({Cube: rop.Tanh}, "from_torch: layers[Cube] must be a layer or a net of rop, or a function that makes one"),
        ({Cube: 3}, "from_torch: layers[Cube] must be a layer or a net of rop, or a function that makes one for a m"),
        (
            {Cube: lambda module: None},
            f"from_torch: cube (Cube; {Path(__file__).name}:",
        ),
        (
            {Affine: lambda module: rop.Linear(4, 2)},
            "expected the module to have the parameters of what layers[Affine] gives, of the same names or in the same "
            "order: weight (2, 4), bias (2,); it has matrix (3, 4), shift (3,)",
        ),
        ({Affine: lambda module: rop.Linear(0, 2)}, "Linear: in_features must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_taught_is_refused(layers: Any, message: str) -> None:
    known = {**LAYERS, **layers} if isinstance(layers, dict) else layers
    with pytest.raises(rop.RopError) as caught:
        rop.from_torch(Taught(), layers=known)
    assert message in str(caught.value), caught.value


def test_a_taught_function_takes_values_only() -> None:
    class Power(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.pow(x, 2)

    assert "takes values of the net only, got the input, 2" in message_of(Power(), layers={torch.pow: SQUARE})


def test_the_optimizer_is_taught_in_the_same_way() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Affine(4, 4), Cube(), nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    loss = nn.functional.mse_loss(module(x), y)
    expected = torch.autograd.grad(loss, list(module.parameters()))
    sgd = torch.optim.SGD(module.parameters(), lr=0.0)
    opt = rop.torch.SpectralRadius(module, nn.MSELoss(), sgd, mu=0.0, layers=LAYERS)
    assert opt.step(x, y) == pytest.approx(loss.item(), rel=1e-12)
    for parameter, theirs in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-10, atol=1e-12)
