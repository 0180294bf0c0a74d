"""Functions and methods of tensors as layers: one rule per function, with torch's arguments.

A rule takes the walk (rop/torch/trace.py) and the arguments of the call in the module's forward, under torch's names.
To add one, write it here and list its targets in ``@rule(...)``: functions as objects, methods of tensors as strings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rop.arguments import Pair
from rop.graph import Node
from rop.layers import (
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    Concat,
    Conv2d,
    Flatten,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Softmax,
)
from rop.layers.base import Layer
from rop.torch.counterparts import Target, spellings, with_counterparts
from rop.torch.layers import Product, Unsupported, View, dropout, refuse_differences

if TYPE_CHECKING:
    from rop.torch.trace import Walk

Argument = object  # of a traced call: a node of the net, a tensor of the module, a size or a constant; rules check it
Rule = Callable[..., Argument]
SameRule = TypeVar("SameRule", bound=Rule)
FUNCTIONS: dict[Target, Rule] = {}


def rule(*targets: Target) -> Callable[[SameRule], SameRule]:
    """Registers a rule for functions (objects) and methods (strings)."""

    def register(function: SameRule) -> SameRule:
        FUNCTIONS.update(dict.fromkeys(targets, function))
        return function

    return register


# --------------------------------------------------------------------------------------------------------- activations
def _activation(kind: type[Layer], always_in_place: bool) -> Rule:
    """The rule of a layer with one input whose record names a function of torch."""

    def apply(walk: Walk, input: Argument, *args: Any, inplace: bool = False, **options: Any) -> Node:
        return walk.apply(kind(*args, **options), input, inplace=inplace or always_in_place)

    return apply


for _record, _ in with_counterparts("function"):
    if issubclass(_record.kind, Layer):
        for _target in spellings(_record.function or ""):
            _name = _target if isinstance(_target, str) else _target.__name__
            FUNCTIONS[_target] = _activation(_record.kind, _name.endswith("_"))


@rule(F.softmax, torch.softmax, "softmax")
def softmax(
    walk: Walk, input: Argument, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Node:
    _refuse_dtype(dtype)
    return walk.apply(Softmax(dim), input)


@rule(F.log_softmax, torch.log_softmax, "log_softmax")
def log_softmax(
    walk: Walk, input: Argument, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Node:
    _refuse_dtype(dtype)
    return walk.apply(LogSoftmax(dim), input, name="log_softmax")


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def no_dropout(walk: Walk, input: Argument, p: float = 0.5, training: bool = True, inplace: bool = False) -> Node:
    return walk.apply(dropout(p, training), input, name="dropout", inplace=inplace)


@rule("contiguous")
def same(walk: Walk, input: Argument, memory_format: torch.memory_format | None = None) -> Argument:
    return input


# ------------------------------------------------------------------------------------------------------------ products
@rule(F.linear)
def linear(walk: Walk, input: Argument, weight: Tensor, bias: Tensor | None = None) -> Node:
    tensors = _parameters(weight, bias)
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return walk.apply(layer, input, tensors=tensors)


@rule(F.conv2d, torch.conv2d)
def conv2d(
    walk: Walk,
    input: Argument,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: int | Pair | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Node:
    tensors = _parameters(weight, bias)
    outputs, inputs, *kernel = weight.shape
    window = tuple(kernel), _pair(stride), _pair(padding), _pair(dilation)
    layer = Conv2d(inputs * groups, outputs, *window, groups, bias=bias is not None)
    return walk.apply(layer, input, tensors=tensors)


@rule(F.batch_norm, torch.batch_norm)
def batch_norm(walk: Walk, *args: Argument, **options: Argument) -> Node:
    raise Unsupported(
        "batchnorm as a function does not say whether it is for vectors or images; use nn.BatchNorm1d or "
        "nn.BatchNorm2d (as a plain module, not a subclass)"
    )


def _parameters(weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """The tensors of a layer by the names of its parameters; refuses those that are not parameters of the module."""
    given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    for name, tensor in given.items():
        if not isinstance(tensor, torch.nn.Parameter):
            raise Unsupported(
                f"expected {name} to be a parameter of the module as it is, got one that forward computes, or a buffer"
            )
    return given


# ------------------------------------------------------------------------------------------------------------- pooling
@rule(F.max_pool2d, torch.max_pool2d)
def max_pool2d(
    walk: Walk,
    input: Argument,
    kernel_size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node:
    refuse_differences(MaxPool2d, {"dilation": dilation, "return_indices": return_indices})
    layer = MaxPool2d(_pair(kernel_size), _pair(stride) or None, _pair(padding), ceil_mode=ceil_mode)
    return walk.apply(layer, input, name="max_pool2d")


@rule(F.avg_pool2d)
def avg_pool2d(
    walk: Walk,
    input: Argument,
    kernel_size: Argument,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    refuse_differences(AvgPool2d, {"divisor_override": divisor_override})
    whole_image = isinstance(input, Node) and kernel_size in (
        Sizes(input, (2, 3)),
        (Size(input, (2,)), Size(input, (3,))),
    )
    if whole_image and stride is None and padding == 0:
        return walk.apply(AdaptiveAvgPool2d(1), input, name="avg_pool2d")
    window = _pair(kernel_size), _pair(stride) or None, _pair(padding)
    layer = AvgPool2d(*window, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    return walk.apply(layer, input, name="avg_pool2d")


@rule(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(walk: Walk, input: Argument, output_size: int | Pair) -> Node:
    return walk.apply(AdaptiveAvgPool2d(_pair(output_size)), input, name="adaptive_avg_pool2d")


@rule(torch.mean, "mean")
def mean(
    walk: Walk,
    input: Argument,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Node:
    _refuse_dtype(dtype)
    if not isinstance(dim, (tuple, list)) or {axis % 4 for axis in dim} != {2, 3}:
        raise Unsupported(f"expected a mean over height and width, dim=(2, 3), got dim={dim!r}; no other is a layer")
    node = walk.apply(AdaptiveAvgPool2d(1), input, name="mean")
    return node if keepdim else walk.apply(Flatten(), node)


# --------------------------------------------------------------------------------------------------------------- joins
@rule(operator.add, torch.add, "add")
def add(walk: Walk, input: Argument, other: Argument, alpha: float = 1, inplace: bool = False) -> Node:
    if alpha != 1:
        raise Unsupported(f"alpha={alpha!r} is not supported; rop.Add has weights of 1 only")
    return walk.apply(Add(), input, other, inplace=inplace)


@rule(operator.iadd, "add_")
def add_in_place(walk: Walk, input: Argument, other: Argument, alpha: float = 1) -> Node:
    return add(walk, input, other, alpha, inplace=True)


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(walk: Walk, tensors: Sequence[Argument], dim: int = 0, axis: int | None = None) -> Argument:
    dim = dim if axis is None else axis
    if dim != 1:
        raise Unsupported(f"expected values joined along channels, dim=1, got dim={dim}")
    if len(tensors) == 1:
        return tensors[0]
    return walk.apply(Concat(), *tensors, name="cat")


# ------------------------------------------------------------------------------------------------- products of values
@dataclass(frozen=True)
class Factor:
    """A value as it stands in a product only: with axes of one pixel behind it, or repeated to the shape of another."""

    of: Node
    axes: int = 0
    like: Node | None = None


@rule(operator.mul, torch.mul, torch.multiply, "mul", "multiply")
def product(walk: Walk, input: Argument, other: Argument, inplace: bool = False) -> Argument:
    if isinstance(input, Size) and isinstance(other, Size) and input.of is other.of:
        return Size(input.of, tuple(sorted(input.axes + other.axes)))
    if not isinstance(input, (Node, Factor)) or not isinstance(other, (Node, Factor)):
        raise Unsupported(
            "products of a value with a constant or a parameter are not supported: there is no layer for them"
        )
    a, b = _factor(input), _factor(other)
    if (inplace and a != Factor(a.of)) or any(x.like not in (None, y.of) for x, y in ((a, b), (b, a))):
        raise Unsupported("expected a value that is expanded to the shape of the one it is multiplied with")
    return walk.apply(Product(a.axes, b.axes), a.of, b.of, name="mul", inplace=inplace)


@rule(operator.imul, "mul_", "multiply_")
def product_in_place(walk: Walk, input: Argument, other: Argument) -> Argument:
    return product(walk, input, other, inplace=True)


@rule(torch.square, "square")
def square(walk: Walk, input: Argument) -> Argument:
    return product(walk, input, input)


@rule(operator.pow, torch.pow, "pow")
def power(walk: Walk, input: Argument, exponent: Argument) -> Argument:
    if exponent != 2:
        raise Unsupported("of powers only squares are supported, x ** 2")
    return product(walk, input, input)


@rule("expand_as")
def expand_as(walk: Walk, input: Argument, other: Argument) -> Factor:
    return replace(_factor(input), like=_check_value(other))


@rule(torch.unsqueeze, "unsqueeze")
def unsqueeze(walk: Walk, input: Argument, dim: int) -> Factor:
    factor = _factor(input)
    if dim not in (-1, 2 + factor.axes):
        raise Unsupported(f"expected an axis behind those of a vector, dim=-1, got dim={dim}; no other can be added")
    return replace(factor, axes=factor.axes + 1)


def _factor(value: Argument) -> Factor:
    return value if isinstance(value, Factor) else Factor(_check_value(value))


# ---------------------------------------------------------------------------------------------------- sizes and shapes
@dataclass(frozen=True)
class Size:
    """The product of a value's sizes along some axes; axis 0 is the batch."""

    of: Node
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """The shape of a value, or the sizes along some of its axes."""

    of: Node
    axes: tuple[int, ...] | None = None


@rule("size")
def size(walk: Walk, input: Argument, dim: int | None = None) -> Size | Sizes:
    value = _check_value(input)
    return Sizes(value) if dim is None else Size(value, (dim,))


@rule(getattr)
def attribute(walk: Walk, input: Argument, name: str) -> Sizes:
    value = _check_value(input)
    if name != "shape":
        raise Unsupported(f"the attribute {name!r} is not supported; x.shape is")
    return Sizes(value)


@rule(operator.getitem)
def item(walk: Walk, input: Argument, index: Argument) -> Size | Sizes | Factor:
    if isinstance(input, Node) and index in ((slice(None), slice(None), None, None), (..., None, None)):
        return Factor(input, axes=2)
    if not isinstance(input, Sizes):
        raise Unsupported("parts of a value are not supported: there is no layer that picks some of its numbers")
    if isinstance(index, int):
        return Size(input.of, (index if input.axes is None else input.axes[index],))
    if index in (slice(2, None, None), slice(-2, None, None)):
        return Sizes(input.of, (2, 3))
    raise Unsupported(f"x.shape[{index!r}] is not followed; x.shape[0] and x.shape[2:] are")


@rule(torch._assert, torch.fx._symbolic_trace._assert_is_none)
def ignored(walk: Walk, *args: Argument) -> None:
    """Assertions, which torch.fx adds for arguments of forward that have a default."""


@rule(operator.eq)
def equal(walk: Walk, input: Argument, other: Argument) -> None:
    """Refuses comparisons, except those of such defaults: torch.fx has put in the value, and the walk gives None."""
    if input is not None:
        raise Unsupported("comparisons are not followed")


@rule(torch.flatten, "flatten")
def flatten(walk: Walk, input: Argument, start_dim: int = 0, end_dim: int = -1) -> Node:
    return walk.apply(Flatten(start_dim, end_dim), input)


@rule("view", "reshape", torch.reshape)
def view(walk: Walk, input: Argument, *shape: Argument, **options: Sequence[Argument]) -> Node | Factor:
    _check_value(input)
    given = options.get("shape", options.get("size", shape))
    sizes = tuple(given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given)
    flat = _flattened(walk, input, *sizes[:2]) if len(sizes) == 2 or sizes[2:] == (1, 1) else None
    if flat is not None:
        return flat if len(sizes) == 2 else Factor(flat, axes=2)
    shown = ", ".join("batch" if isinstance(s, Size) and s.axes == (0,) else str(s) for s in sizes)
    raise Unsupported(
        "expected a view that makes each sample a vector, such as x.view(x.size(0), -1) or x.flatten(1), "
        f"or a map of one pixel of it, got x.view({shown}); there is no other reshaping layer"
    )


def _flattened(walk: Walk, input: Argument, batch: Argument, rest: Argument) -> Node | None:
    """A view with these two sizes, if it makes each sample a vector."""
    by_size = isinstance(batch, Size) and batch.axes == (0,)
    if not by_size and batch != -1:
        return None
    if isinstance(rest, int) and rest > 0:
        return walk.apply(View(rest), input, name="flatten")
    whole = isinstance(rest, Size) and rest.of is input and rest.axes == (1, 2, 3)
    if whole or (by_size and (rest == -1 or isinstance(rest, Size))):  # torch demands that the sizes fit
        return walk.apply(Flatten(), input)
    return None


# -------------------------------------------------------------------------------------------------------------- checks
def _check_value(value: Argument) -> Node:
    if not isinstance(value, Node):
        raise Unsupported("expected a value of the net")
    return value


def _pair(value: Argument) -> Any:
    """A number, or two in a tuple; torch takes lists, also of one number, and fx has its own class of lists. The layer
    checks the numbers."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(one, (Size, Sizes)) for one in values):
        raise Unsupported("expected numbers, got a size of a value; F.adaptive_avg_pool2d(x, 1) takes the whole image")
    return values[0] if len(values) == 1 else values


def _refuse_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None:
        raise Unsupported(f"dtype={dtype!r} is not supported")
