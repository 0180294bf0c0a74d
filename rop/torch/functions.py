"""Functions and methods of tensors, as layers: one rule per function, with torch's arguments.

A rule takes the walk (rop/torch/trace.py) and the arguments as they stand in the module's forward. To add one, write it
here and name what it is for in ``@rule(...)``: functions as objects, methods of tensors as strings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

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
from rop.torch.counterparts import spellings, with_counterparts
from rop.torch.layers import Unsupported, View, dropout, refuse_differences

if TYPE_CHECKING:
    from rop.torch.trace import Walk

Rule = Callable[..., Any]
FUNCTIONS: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for functions (objects) and methods (strings)."""

    def register(function: Rule) -> Rule:
        FUNCTIONS.update(dict.fromkeys(targets, function))
        return function

    return register


# --------------------------------------------------------------------------------------------------------- activations
def _activation(kind: type[Layer], always_in_place: bool) -> Rule:
    """The rule of a layer on one value whose record names a function of torch."""

    def apply(walk: Walk, input: Any, *args: Any, inplace: bool = False, **options: Any) -> Node:
        return walk.apply(kind(*args, **options), input, inplace=inplace or always_in_place)

    return apply


for _record, _ in with_counterparts("function"):
    if issubclass(_record.kind, Layer):
        for _target in spellings(_record.function or ""):
            _name = _target if isinstance(_target, str) else _target.__name__
            FUNCTIONS[_target] = _activation(_record.kind, _name.endswith("_"))


@rule(F.softmax, torch.softmax, "softmax")
def softmax(walk: Walk, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Node:
    _refuse(dtype=dtype)
    return walk.apply(Softmax(dim), input)


@rule(F.log_softmax, torch.log_softmax, "log_softmax")
def log_softmax(walk: Walk, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Node:
    _refuse(dtype=dtype)
    return walk.apply(LogSoftmax(dim), input, name="log_softmax")


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def no_dropout(walk: Walk, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Node:
    return walk.apply(dropout(p, training), input, name="dropout", inplace=inplace)


@rule("contiguous")
def same(walk: Walk, input: Any, memory_format: Any = None) -> Any:
    return input


# ------------------------------------------------------------------------------------------------------------ products
@rule(F.linear)
def linear(walk: Walk, input: Any, weight: Any, bias: Any = None) -> Node:
    tensors = _parameters(weight, bias)
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return walk.apply(layer, input, tensors=tensors)


@rule(F.conv2d, torch.conv2d)
def conv2d(
    walk: Walk,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Node:
    tensors = _parameters(weight, bias)
    outputs, inputs, *kernel = weight.shape
    layer = Conv2d(
        inputs * groups,
        outputs,
        tuple(kernel),
        _pair(stride),
        _pair(padding),
        _pair(dilation),
        groups,
        bias=bias is not None,
    )
    return walk.apply(layer, input, tensors=tensors)


@rule(F.batch_norm, torch.batch_norm)
def batch_norm(
    walk: Walk,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *rest: Any,
) -> Node:
    raise Unsupported(
        "batchnorm as a function does not say whether it is for vectors or images; use nn.BatchNorm1d or "
        "nn.BatchNorm2d (as a plain module, not a subclass)"
    )


def _parameters(weight: Any, bias: Any) -> dict[str, torch.Tensor]:
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
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node:
    refuse_differences(MaxPool2d, {"dilation": dilation, "return_indices": return_indices})
    layer = MaxPool2d(_pair(kernel_size), _pair(stride) or None, _pair(padding), ceil_mode=ceil_mode)
    return walk.apply(layer, input, name="max_pool2d")


@rule(F.avg_pool2d)
def avg_pool2d(
    walk: Walk,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Node:
    refuse_differences(AvgPool2d, {"divisor_override": divisor_override})
    whole = kernel_size in (Sizes(input, (2, 3)), (Size(input, (2,)), Size(input, (3,))))
    if whole and stride is None and padding == 0:
        return walk.apply(AdaptiveAvgPool2d(1), input, name="avg_pool2d")
    layer = AvgPool2d(
        _pair(kernel_size),
        _pair(stride) or None,
        _pair(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )
    return walk.apply(layer, input, name="avg_pool2d")


@rule(F.adaptive_avg_pool2d)
def adaptive_avg_pool2d(walk: Walk, input: Any, output_size: Any) -> Node:
    return walk.apply(AdaptiveAvgPool2d(_pair(output_size)), input, name="adaptive_avg_pool2d")


@rule(torch.mean, "mean")
def mean(walk: Walk, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    _refuse(dtype=dtype)
    if not isinstance(dim, (tuple, list)) or {axis % 4 for axis in dim} != {2, 3}:
        raise Unsupported(f"expected a mean over height and width, dim=(2, 3), got dim={dim!r}; no other is a layer")
    node = walk.apply(AdaptiveAvgPool2d(1), input, name="mean")
    return node if keepdim else walk.apply(Flatten(), node)


# --------------------------------------------------------------------------------------------------------------- joins
@rule(operator.add, torch.add, "add")
def add(walk: Walk, input: Any, other: Any, alpha: Any = 1, inplace: bool = False) -> Node:
    if alpha != 1:
        raise Unsupported(f"alpha={alpha!r} is not supported; rop.Add has weights of 1 only")
    return walk.apply(Add(), input, other, inplace=inplace)


@rule(operator.iadd, "add_")
def add_in_place(walk: Walk, input: Any, other: Any, alpha: Any = 1) -> Node:
    return add(walk, input, other, alpha, inplace=True)


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(walk: Walk, tensors: Any, dim: int = 0, axis: int | None = None) -> Node:
    if (dim if axis is None else axis) != 1:
        raise Unsupported(f"expected values joined along channels, dim=1, got dim={dim if axis is None else axis}")
    if len(tensors) == 1:
        return tensors[0]
    return walk.apply(Concat(), *tensors, name="cat")


# ---------------------------------------------------------------------------------------------------- sizes and shapes
@dataclass(frozen=True)
class Size:
    """The product of some of a value's sizes; axis 0 is the batch."""

    of: Node
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """The shape of a value, or a part of it."""

    of: Node
    axes: tuple[int, ...] | None = None


@rule("size")
def size(walk: Walk, input: Any, dim: int | None = None) -> Any:
    _check_value(input)
    return Sizes(input) if dim is None else Size(input, (dim,))


@rule(getattr)
def attribute(walk: Walk, input: Any, name: str) -> Any:
    _check_value(input)
    if name != "shape":
        raise Unsupported(f"the attribute {name!r} is not supported; x.shape is")
    return Sizes(input)


@rule(operator.getitem)
def item(walk: Walk, input: Any, index: Any) -> Any:
    if not isinstance(input, Sizes):
        raise Unsupported("parts of a value are not supported: there is no layer that picks some of its numbers")
    if isinstance(index, int) and input.axes is None:
        return Size(input.of, (index,))
    if isinstance(index, int) and input.axes is not None:
        return Size(input.of, (input.axes[index],))
    if index in (slice(2, None, None), slice(-2, None, None)):
        return Sizes(input.of, (2, 3))
    raise Unsupported(f"x.shape[{index!r}] is not followed; x.shape[0] and x.shape[2:] are")


@rule(operator.mul)
def product(walk: Walk, input: Any, other: Any) -> Any:
    if isinstance(input, Size) and isinstance(other, Size) and input.of is other.of:
        return Size(input.of, tuple(sorted(input.axes + other.axes)))
    raise Unsupported(
        "products of values are not supported: there is no layer for them; to add one see "
        'CONTRIBUTING.md, "How to add a layer"'
    )


@rule(torch._assert, torch.fx._symbolic_trace._assert_is_none)
def ignored(walk: Walk, *args: Any) -> None:
    """What torch.fx adds for arguments of forward that have a default."""


@rule(operator.eq)
def equal(walk: Walk, input: Any, other: Any) -> None:
    if input is not None:
        raise Unsupported("comparisons are not followed")


@rule(torch.flatten, "flatten")
def flatten(walk: Walk, input: Any, start_dim: int = 0, end_dim: int = -1) -> Node:
    return walk.apply(Flatten(start_dim, end_dim), input)


@rule("view", "reshape", torch.reshape)
def view(walk: Walk, input: Any, *shape: Any, **options: Any) -> Node:
    _check_value(input)
    sizes = options.get("shape", options.get("size", shape))
    sizes = tuple(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes)
    batch = len(sizes) == 2 and (sizes[0] == -1 or (isinstance(sizes[0], Size) and sizes[0].axes == (0,)))
    rest = sizes[1] if batch else None
    if rest == -1 and sizes[0] != -1:
        return walk.apply(Flatten(), input)
    if isinstance(rest, int) and rest > 0:
        return walk.apply(View(rest), input, name="flatten")
    if isinstance(rest, Size) and rest.of is input and rest.axes == (1, 2, 3):
        return walk.apply(Flatten(), input)
    shown = ", ".join("batch" if isinstance(s, Size) and s.axes == (0,) else str(s) for s in sizes)
    raise Unsupported(
        "expected a view that makes each sample a vector, such as x.view(x.size(0), -1) or x.flatten(1), "
        f"got x.view({shown}); there is no other reshaping layer"
    )


# -------------------------------------------------------------------------------------------------------------- checks
def _check_value(value: Any) -> None:
    if not isinstance(value, Node):
        raise Unsupported("expected a value of the net")


def _pair(value: Any) -> Any:
    """An int, or two in a tuple; fx makes its own lists of what it has traced, and torch takes lists of one."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(one, (Size, Sizes)) for one in values):
        raise Unsupported("expected numbers, got a size of a value; F.adaptive_avg_pool2d(x, 1) takes the whole image")
    return values[0] if len(values) == 1 else values


def _refuse(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise Unsupported(f"{name}={value!r} is not supported")
