"""An independent second opinion: loss, gradient, H·v and vᵀ∇H·v of a rop network by PyTorch's triple backward.

The tests and ``rop check`` compare with it; nothing else needs torch (pip install 'rop[torch]').

The network is walked node by node in float64 with `torch.nn.functional`; every parameter is a view into ONE flat
tensor, so tied layers need no special care. The derivatives come from autograd alone:

    grad = ∇f        hvp = ∇⟨grad, v⟩ = H v        r2 = ∇⟨hvp, v⟩ = vᵀ∇H v

Batchnorm is written out in primitives, because torch's fused batchnorm is wrong at third order in training mode
(tests/torch/test_torch_batchnorm.py has the evidence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rop.errors import ArgumentError
from rop.layers import LAYERS
from rop.layers import LOSSES as KNOWN_LOSSES
from rop.layers.elementwise import Elementwise
from rop.layers.kinds import kind_of

State = Mapping[str, np.ndarray]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reference:
    """What the oracle says about one objective at one point w in one direction v."""

    loss: float
    grad: np.ndarray
    hvp: np.ndarray
    r2: np.ndarray
    outputs: np.ndarray
    batch_stats: dict[str, np.ndarray]


# ---------------------------------------------------------------------------------------------------------------
# layers: one torch expression per class name; `p` holds the layer's parameters
# ---------------------------------------------------------------------------------------------------------------


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's approximation in primitives: torch's own gives NaN at third order for large |x|."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ELEMENTWISE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Identity": lambda layer, x: x,
    "ReLU": lambda layer, x: F.relu(x),
    "LeakyReLU": lambda layer, x: F.leaky_relu(x, layer.negative_slope),
    "Tanh": lambda layer, x: torch.tanh(x),
    "Sigmoid": lambda layer, x: torch.sigmoid(x),
    "Softplus": lambda layer, x: F.softplus(x, layer.beta, layer.threshold),
    "SiLU": lambda layer, x: F.silu(x),
    "GELU": lambda layer, x: gelu_tanh(x) if layer.approximate == "tanh" else F.gelu(x),
}


class GivenDerivative(torch.autograd.Function):
    """Derivative number k of an activation of a user's own, as its scalar function gives it; the gradient is number
    k + 1. So autograd says what should follow from the derivatives that were given, right or wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Elementwise, k: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.k = layer, k
        numbers = [layer.function(number, *layer.parameters)[k] for number in x.detach().flatten().tolist()]
        return torch.tensor(numbers, dtype=x.dtype).view(x.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * GivenDerivative.apply(x, ctx.layer, ctx.k + 1), None, None


PARAMETER_FREE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Flatten": lambda layer, x: torch.flatten(x, 1),
    "MaxPool2d": lambda layer, x: F.max_pool2d(
        x, layer.kernel_size, layer.stride, layer.padding, ceil_mode=layer.ceil_mode
    ),
    "AvgPool2d": lambda layer, x: F.avg_pool2d(
        x, layer.kernel_size, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad
    ),
    "AdaptiveAvgPool2d": lambda layer, x: F.adaptive_avg_pool2d(x, layer.output_size),
    "Softmax": lambda layer, x: torch.softmax(x, 1),
    "LogSoftmax": lambda layer, x: torch.log_softmax(x, 1),
}

WITH_PARAMETERS: dict[str, Callable[[Any, Mapping[str, Tensor], Tensor], Tensor]] = {
    "Linear": lambda layer, p, x: F.linear(x, p["weight"], p.get("bias")),
    "Conv2d": lambda layer, p, x: F.conv2d(
        x, p["weight"], p.get("bias"), layer.stride, layer.padding, layer.dilation, layer.groups
    ),
}

JOINS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "Add": lambda xs: torch.stack(xs).sum(0),
    "Concat": lambda xs: torch.cat(xs, 1),
}

BATCHNORMS = ("BatchNorm1d", "BatchNorm2d")


def normalise(x: Tensor, mean: Tensor, var: Tensor, eps: float, p: Mapping[str, Tensor]) -> Tensor:
    """γ (x − mean) / √(var + ε) + β, with one mean and one variance per channel (axis 1)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    y = (x - mean.view(shape)) * (var.view(shape) + eps) ** -0.5
    return y * p["weight"].view(shape) + p["bias"].view(shape) if p else y


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel over the batch and all pixels, in primitives."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = x.mean(axes, keepdim=True)
    return mean.flatten(), ((x - mean) ** 2).mean(axes)


# ---------------------------------------------------------------------------------------------------------------
# networks
# ---------------------------------------------------------------------------------------------------------------


def parameters(net: Any, layer: Any, w: Tensor) -> dict[str, Tensor]:
    """Views of the flat vector w, one for each parameter of the layer."""
    views = {}
    for key, shape in layer.parameter_shapes().items():
        start = net.offset(layer, key)
        views[key] = w[start : start + int(np.prod(shape, dtype=int))].view(tuple(shape))
    return views


def prefix(net: Any, layer: Any) -> str:
    """The layer's name in the keys of states and parameters: "0", "1", ..."""
    return str(net.name_of(layer))


def apply(layer: Any, p: Mapping[str, Tensor], inputs: list[Tensor]) -> Tensor:
    """The output of a layer that knows no batch statistics."""
    name = kind_name(layer)
    if name in JOINS:
        return JOINS[name](inputs)
    (x,) = inputs
    if name in ELEMENTWISE:
        return ELEMENTWISE[name](layer, x)
    if name in PARAMETER_FREE:
        return PARAMETER_FREE[name](layer, x)
    if name == "Elementwise":  # a user's own; those of the package are torch's, above
        return GivenDerivative.apply(x, layer, 0)
    if name in WITH_PARAMETERS:
        return WITH_PARAMETERS[name](layer, p, x)
    raise ArgumentError(f"reference: there is no expression in torch for {name}; write one into rop/reference.py")


def kind_name(layer: Any) -> str:
    """The name of the layer of the package as which a layer is computed."""
    return kind_of(layer, LAYERS.values(), "reference").__name__


class Walk:
    """One evaluation of a network: goes through the nodes in order and remembers the batch statistics it met."""

    def __init__(self, net: Any, w: Tensor, training: bool, state: State | None) -> None:
        self.net, self.w, self.training, self.state = net, w, training, state
        self.batch_stats: dict[str, np.ndarray] = {}

    def outputs(self, x: Tensor) -> Tensor:
        """The network's outputs for the data x (batch, ...)."""
        values: list[Tensor] = []
        for node in self.net.nodes:
            inputs = [values[index] for index in input_indices(self.net, node)]
            values.append(self.apply(node.layer, inputs) if inputs else x)
        return values[-1]

    def apply(self, layer: Any, inputs: list[Tensor]) -> Tensor:
        """One layer's output."""
        p = parameters(self.net, layer, self.w)
        return self.batchnorm(layer, p, *inputs) if kind_name(layer) in BATCHNORMS else apply(layer, p, inputs)

    def batchnorm(self, layer: Any, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Batchnorm with the batch's statistics (training) or the state's."""
        name = prefix(self.net, layer)
        keys = f"{name}.running_mean", f"{name}.running_var"
        if self.training:
            mean, var = batch_statistics(x)
            count = x.numel() // x.shape[1]
            self.batch_stats[keys[0]] = mean.detach().numpy().copy()
            self.batch_stats[keys[1]] = var.detach().numpy() * (count / (count - 1))
        else:
            state = self.state if self.state is not None else self.net.init_state()
            mean, var = (torch.tensor(np.array(state[key], np.float64)) for key in keys)
        return normalise(x, mean, var, layer.eps, p)


def output_shape(layer: Any, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape (without batch) that torch gives a layer's output."""
    if kind_name(layer) in BATCHNORMS:
        return shapes[0]
    inputs = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
    p = {key: torch.zeros(tuple(shape), dtype=torch.float64) for key, shape in layer.parameter_shapes().items()}
    return tuple(apply(layer, p, inputs).shape[1:])


def input_indices(net: Any, node: Any) -> list[int]:
    """Positions in net.nodes of the nodes that feed this one."""
    return [i if isinstance(i, int) else next(k for k, n in enumerate(net.nodes) if n is i) for i in node.inputs]


# ---------------------------------------------------------------------------------------------------------------
# losses
# ---------------------------------------------------------------------------------------------------------------


def option(loss: Any, name: str) -> Tensor | None:
    """An optional array argument of a loss as a float64 tensor."""
    value = getattr(loss, name, None)
    return None if value is None else torch.tensor(np.array(value, np.float64))


def cross_entropy(loss: Any, out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits with class indices or probabilities."""
    return F.cross_entropy(
        out,
        y,
        option(loss, "weight"),
        ignore_index=loss.ignore_index,
        reduction=loss.reduction,
        label_smoothing=loss.label_smoothing,
    )


LOSSES: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "CrossEntropy": cross_entropy,
    "NLL": lambda loss, out, y: F.nll_loss(
        out, y, option(loss, "weight"), ignore_index=loss.ignore_index, reduction=loss.reduction
    ),
    "MSE": lambda loss, out, y: F.mse_loss(out, y, reduction=loss.reduction),
    "BCEWithLogits": lambda loss, out, y: F.binary_cross_entropy_with_logits(
        out, y, option(loss, "weight"), pos_weight=option(loss, "pos_weight"), reduction=loss.reduction
    ),
}


def loss_value(loss: Any, out: Tensor, y: Tensor) -> Tensor:
    """The scalar loss of outputs and targets."""
    name = kind_of(loss, KNOWN_LOSSES.values(), "reference").__name__
    if name not in LOSSES:
        raise ArgumentError(f"reference: there is no expression in torch for {name}; write one into rop/reference.py")
    return LOSSES[name](loss, out, y)


# ---------------------------------------------------------------------------------------------------------------
# derivatives
# ---------------------------------------------------------------------------------------------------------------


def tensor(array: Any) -> Tensor:
    """A float64 (floating input) or int64 (integer input) tensor of its own memory."""
    a = np.array(array)
    return torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else torch.int64)


def gradient(value: Tensor, w: Tensor) -> Tensor:
    """∂value/∂w that can be differentiated again; zeros where value does not depend on w."""
    if not value.requires_grad:
        return torch.zeros_like(w)
    (g,) = torch.autograd.grad(value, w, create_graph=True, allow_unused=True)
    return torch.zeros_like(w) if g is None else g


def differentiate(function: Function, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """f(w), ∇f, H v and vᵀ∇H v of a scalar function by triple backward."""
    w = w.detach().clone().requires_grad_(True)
    loss = function(w)
    grad = gradient(loss, w)
    hvp = gradient(grad @ v, w)
    r2 = gradient(hvp @ v, w)
    return loss.detach(), grad.detach(), hvp.detach(), r2.detach()


def objective(net: Any, loss: Any, x: Any, y: Any, training: bool = True, state: State | None = None) -> Function:
    """The torch function w ↦ loss(net(w, x), y)."""
    data, target = tensor(x), tensor(y)
    return lambda w: loss_value(loss, Walk(net, w, training, state).outputs(data), target)


def predict(net: Any, w: Any, x: Any, training: bool = False, state: State | None = None) -> np.ndarray:
    """The network's outputs (batch, ...)."""
    return Walk(net, tensor(w), training, state).outputs(tensor(x)).numpy()


def reference(
    net: Any, loss: Any, x: Any, y: Any, w: Any, v: Any, *, training: bool = True, state: State | None = None
) -> Reference:
    """Everything the oracle knows about the objective at w in the direction v."""
    function = objective(net, loss, x, y, training, state)
    value, grad, hvp, r2 = differentiate(function, tensor(w), tensor(v))
    walk = Walk(net, tensor(w), training, state)
    outputs = walk.outputs(tensor(x)).numpy()
    return Reference(float(value), grad.numpy(), hvp.numpy(), r2.numpy(), outputs, walk.batch_stats)


def hessian(net: Any, loss: Any, x: Any, y: Any, w: Any, *, training: bool = True) -> np.ndarray:
    """The dense Hessian (n, n) of a tiny network, column by column."""
    function = objective(net, loss, x, y, training)
    point = tensor(w).requires_grad_(True)
    grad = gradient(function(point), point)
    return np.stack([gradient(entry, point).detach().numpy() for entry in grad], axis=1)
