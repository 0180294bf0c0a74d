"""The independent reference: loss, gradient, H·v and vᵀ∇H·v of a rop network by PyTorch's triple backward.

The tests and ``rop check`` compare with it, the latter if torch is installed (pip install 'rop[torch]').

The network is evaluated node by node in float64 with `torch.nn.functional`; every parameter is a view of one flat
tensor, so tied layers need no special care. There is one function per layer below, which the layer's record
(rop/layers/record.py) names. The derivatives come from autograd alone:

    grad = ∇f        hvp = ∇⟨grad, v⟩ = H v        r2 = ∇⟨hvp, v⟩ = vᵀ∇H v

Batchnorm is written out in primitives, because torch's fused batchnorm is wrong at third order in training mode
(tests/torch/test_torch_batchnorm.py has the evidence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor
from torch.autograd.function import FunctionCtx

from rop import layers
from rop.graph import Graph, Node
from rop.layers.base import Layer, Shape
from rop.layers.batchnorm import BatchNorm
from rop.layers.elementwise import Elementwise
from rop.layers.kinds import record_of
from rop.layers.loss import BCEWithLogits, KLDiv, Loss

State = Mapping[str, np.ndarray]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reference:
    """Results for one objective at one point w in one direction v."""

    loss: float
    grad: np.ndarray
    hvp: np.ndarray
    r2: np.ndarray
    outputs: np.ndarray
    batch_stats: dict[str, np.ndarray]


# ---------------------------------------------------------------------------------------------------------------
# layers: (layer, use, *inputs) ↦ output
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Use:
    """A layer in one evaluation of a network: its parameters, and the statistics of batch normalisation."""

    parameters: Mapping[str, Tensor]
    training: bool = True
    state: Mapping[str, Tensor] = field(default_factory=dict)  # running statistics, read in evaluation mode
    found: dict[str, np.ndarray] = field(default_factory=dict)  # batch statistics, written in training mode


def linear(layer: layers.Linear, use: Use, x: Tensor) -> Tensor:
    return F.linear(x, use.parameters["weight"], use.parameters.get("bias"))


def conv2d(layer: layers.Conv2d, use: Use, x: Tensor) -> Tensor:
    weight, bias = use.parameters["weight"], use.parameters.get("bias")
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)


def maxpool2d(layer: layers.MaxPool2d, use: Use, x: Tensor) -> Tensor:
    return F.max_pool2d(x, layer.kernel_size, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


def avgpool2d(layer: layers.AvgPool2d, use: Use, x: Tensor) -> Tensor:
    window = layer.kernel_size, layer.stride, layer.padding
    return F.avg_pool2d(x, *window, layer.ceil_mode, layer.count_include_pad)


def adaptiveavgpool2d(layer: layers.AdaptiveAvgPool2d, use: Use, x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, layer.output_size)


def flatten(layer: layers.Flatten, use: Use, x: Tensor) -> Tensor:
    return torch.flatten(x, 1)


def identity(layer: layers.Identity, use: Use, x: Tensor) -> Tensor:
    return x


def add(layer: layers.Add, use: Use, *inputs: Tensor) -> Tensor:
    return torch.stack(inputs).sum(0)


def mul(layer: layers.Mul, use: Use, a: Tensor, b: Tensor) -> Tensor:
    a, b = (x[(...,) + (None,) * (max(a.dim(), b.dim()) - x.dim())] for x in (a, b))
    return a * b


def concat(layer: layers.Concat, use: Use, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, 1)


def relu(layer: layers.ReLU, use: Use, x: Tensor) -> Tensor:
    return F.relu(x)


def leakyrelu(layer: layers.LeakyReLU, use: Use, x: Tensor) -> Tensor:
    return F.leaky_relu(x, layer.negative_slope)


def softmax(layer: layers.Softmax, use: Use, x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def logsoftmax(layer: layers.LogSoftmax, use: Use, x: Tensor) -> Tensor:
    return torch.log_softmax(x, 1)


# ------------------------------------------------------------------------------------------------- elementwise layers
def by_function(layer: Elementwise, use: Use, x: Tensor) -> Tensor:
    """An activation by the function of torch that its record names, which has arguments of the same names."""
    record = record_of(layer, "reference")
    return record.find("function")(x, **{name: getattr(layer, name) for name in signature(record.kind).parameters})


def mish(layer: layers.Mish, use: Use, x: Tensor) -> Tensor:
    """In primitives: torch's own gives NaN at second order for large x."""
    return x * torch.tanh(F.softplus(x))


def hardsigmoid(layer: layers.Hardsigmoid, use: Use, x: Tensor) -> Tensor:
    """In primitives: torch's own cannot be differentiated twice, and has the slope 1/6 in float32 only."""
    return F.relu6(x + 3) / 6


def gelu(layer: layers.GELU, use: Use, x: Tensor) -> Tensor:
    return gelu_tanh(x) if layer.approximate == "tanh" else F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's approximation in primitives: torch's own gives NaN at third order for large |x|."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def given(layer: Elementwise, use: Use, x: Tensor) -> Tensor:
    """An activation of a user's own, which is known by its scalar function alone."""
    return GivenDerivative.apply(x, layer, 0)


class GivenDerivative(torch.autograd.Function):
    """Derivative number k of an activation of a user's own, as its scalar function gives it; the gradient is number
    k + 1. So autograd computes what follows from the given derivatives, whether they are right or wrong."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, layer: Elementwise, k: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.k = layer, k
        numbers = [layer.function(number, *layer.parameters)[k] for number in x.detach().flatten().tolist()]
        return torch.tensor(numbers, dtype=x.dtype).view(x.shape)

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return g * GivenDerivative.apply(x, ctx.layer, ctx.k + 1), None, None


# ------------------------------------------------------------------------------------------------------ normalisation
def batchnorm(layer: BatchNorm, use: Use, x: Tensor) -> Tensor:
    """Batchnorm with the batch's statistics (training) or the state's."""
    if not use.training:
        return normalise(x, use.state["running_mean"], use.state["running_var"], layer.eps, use.parameters)
    mean, var = batch_statistics(x)
    count = x.numel() // x.shape[1]
    use.found["running_mean"] = mean.detach().numpy().copy()
    use.found["running_var"] = var.detach().numpy() * (count / (count - 1))
    return normalise(x, mean, var, layer.eps, use.parameters)


def normalise(x: Tensor, mean: Tensor, var: Tensor, eps: float, p: Mapping[str, Tensor]) -> Tensor:
    """γ (x − mean) / √(var + ε) + β, with one mean and one variance per channel (axis 1)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return scaled((x - mean.view(shape)) * (var.view(shape) + eps) ** -0.5, p)


def scaled(y: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """γ y + β, with those of them that there are, one for each channel (axis 1)."""
    shape = (1, -1) + (1,) * (y.dim() - 2)
    y = y * p["weight"].view(shape) if "weight" in p else y
    return y + p["bias"].view(shape) if "bias" in p else y


def standardise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x minus its mean over these axes, over its standard deviation, in primitives: the third derivatives of torch's
    own normalisations are wrong."""
    c = x - x.mean(axes, keepdim=True)
    return c * ((c**2).mean(axes, keepdim=True) + eps) ** -0.5


def layernorm(layer: layers.LayerNorm | layers.LayerNorm2d, use: Use, x: Tensor) -> Tensor:
    return scaled(standardise(x, (1,), layer.eps), use.parameters)


def rmsnorm(layer: layers.RMSNorm, use: Use, x: Tensor) -> Tensor:
    return scaled(x * ((x**2).mean(1, keepdim=True) + layer.eps) ** -0.5, use.parameters)


def groupnorm(layer: layers.GroupNorm, use: Use, x: Tensor) -> Tensor:
    grouped = x.reshape(len(x), layer.num_groups, -1)
    return scaled(standardise(grouped, (2,), layer.eps).reshape(x.shape), use.parameters)


def instancenorm2d(layer: layers.InstanceNorm2d, use: Use, x: Tensor) -> Tensor:
    return scaled(standardise(x, (2, 3), layer.eps), use.parameters)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel over the batch and all pixels, in primitives."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = x.mean(axes, keepdim=True)
    return mean.flatten(), ((x - mean) ** 2).mean(axes)


# ---------------------------------------------------------------------------------------------------------------
# networks
# ---------------------------------------------------------------------------------------------------------------


def apply(layer: Layer, use: Use, inputs: list[Tensor]) -> Tensor:
    """One layer's output, by the function that its record names."""
    return record_of(layer, "reference").find("reference")(layer, use, *inputs)


class Evaluation:
    """One evaluation of a network, node by node; keeps the batch statistics of its batchnorm layers."""

    def __init__(self, net: Graph, w: Tensor, training: bool, state: State | None) -> None:
        self.net, self.w, self.training = net, w, training
        self.state = net.init_state() if state is None else state
        self.batch_stats: dict[str, np.ndarray] = {}

    def outputs(self, x: Tensor) -> Tensor:
        """The network's outputs for the data x (batch, ...)."""
        values: dict[Node, Tensor] = {self.net.input: x}
        for node in self.net.nodes[1:]:
            assert node.layer is not None
            values[node] = self.apply(node.layer, [values[source] for source in node.inputs])
        return values[self.net.output]

    def apply(self, layer: Layer, inputs: list[Tensor]) -> Tensor:
        """One layer's output."""
        name = self.net.name_of(layer)
        state = {key: tensor(np.asarray(self.state[f"{name}.{key}"], np.float64)) for key in layer.initial_state()}
        use = Use(self.parameters(layer), self.training, state)
        y = apply(layer, use, inputs)
        self.batch_stats.update({f"{name}.{key}": value for key, value in use.found.items()})
        return y

    def parameters(self, layer: Layer) -> dict[str, Tensor]:
        """Views of the flat vector w, one for each parameter of the layer."""
        views = {}
        for key, shape in layer.parameter_shapes().items():
            start = self.net.offset(layer, key)
            views[key] = self.w[start : start + math.prod(shape)].view(tuple(shape))
        return views


def output_shape(layer: Layer, *shapes: Shape) -> Shape:
    """The shape (without batch) that torch gives a layer's output."""
    inputs = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
    p = {key: torch.zeros(tuple(shape), dtype=torch.float64) for key, shape in layer.parameter_shapes().items()}
    state = {key: tensor(value) for key, value in layer.initial_state().items()}
    return tuple(apply(layer, Use(p, training=False, state=state), inputs).shape[1:])


# ---------------------------------------------------------------------------------------------------------------
# losses: (loss, outputs, targets) ↦ value
# ---------------------------------------------------------------------------------------------------------------


def loss_by_function(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """A loss by the function of torch that its record names, which has arguments of the same names."""
    record = record_of(loss, "reference")
    given = {name: getattr(loss, name) for name in signature(record.kind).parameters}
    options = {name: tensor(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
    return record.find("function")(out, y, **options)


def bcewithlogits(loss: BCEWithLogits, out: Tensor, y: Tensor) -> Tensor:
    """torch's binary cross-entropy, in which targets that are NaN have the weight 0 and do not count in the mean."""
    known = ~torch.isnan(y)
    p = None if loss.pos_weight is None else tensor(loss.pos_weight)
    mask, t = known.to(out.dtype), torch.where(known, y, 0.0)
    total = F.binary_cross_entropy_with_logits(out, t, weight=mask, pos_weight=p, reduction="sum")
    return total / max(1, int(known.sum())) if loss.reduction == "mean" else total


def kldiv(loss: KLDiv, out: Tensor, y: Tensor) -> Tensor:
    """torch's divergence; its own "mean", over all numbers as here, warns of becoming another one."""
    total = F.kl_div(out, y, reduction="sum", log_target=loss.log_target)
    return total / {"sum": 1, "mean": out.numel(), "batchmean": len(out)}[loss.reduction]


def loss_value(loss: Loss, out: Tensor, y: Tensor) -> Tensor:
    """The scalar loss of outputs and targets, by the function that its record names."""
    return record_of(loss, "reference").find("reference")(loss, out, y)


# ---------------------------------------------------------------------------------------------------------------
# derivatives
# ---------------------------------------------------------------------------------------------------------------


def tensor(array: ArrayLike) -> Tensor:
    """A float64 (floating input) or int64 (integer input) tensor with memory of its own."""
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


def objective(
    net: Graph, loss: Loss, x: ArrayLike, y: ArrayLike, training: bool = True, state: State | None = None
) -> Function:
    """The torch function w ↦ loss(net(w, x), y)."""
    data, target = tensor(x), tensor(y)
    return lambda w: loss_value(loss, Evaluation(net, w, training, state).outputs(data), target)


def predict(net: Graph, w: ArrayLike, x: ArrayLike, training: bool = False, state: State | None = None) -> np.ndarray:
    """The network's outputs (batch, ...)."""
    return Evaluation(net, tensor(w), training, state).outputs(tensor(x)).numpy()


def reference(
    net: Graph,
    loss: Loss,
    x: ArrayLike,
    y: ArrayLike,
    w: ArrayLike,
    v: ArrayLike,
    *,
    training: bool = True,
    state: State | None = None,
) -> Reference:
    """All results for the objective at w in the direction v."""
    function = objective(net, loss, x, y, training, state)
    value, grad, hvp, r2 = differentiate(function, tensor(w), tensor(v))
    evaluation = Evaluation(net, tensor(w), training, state)
    outputs = evaluation.outputs(tensor(x)).numpy()
    return Reference(float(value), grad.numpy(), hvp.numpy(), r2.numpy(), outputs, evaluation.batch_stats)


def hessian(net: Graph, loss: Loss, x: ArrayLike, y: ArrayLike, w: ArrayLike, *, training: bool = True) -> np.ndarray:
    """The dense Hessian (n, n) of a tiny network, column by column."""
    function = objective(net, loss, x, y, training)
    point = tensor(w).requires_grad_(True)
    grad = gradient(function(point), point)
    return np.stack([gradient(entry, point).detach().numpy() for entry in grad], axis=1)
