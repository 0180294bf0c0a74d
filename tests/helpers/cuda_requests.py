"""Which CUDA kernels the engine asks for, and in which specialisations, found by asking ``rop/devices/cuda/emit``.

A specialisation depends on the orders of a pass, on which orders of a layer's input are not zero, on options of the
layer, and on its size. ``networks`` has every layer and every loss behind inputs of every kind, in every size that
matters; ``requested`` is what all passes of the engine over them ask for. Lowering a network needs no device.

``specialisations`` are those that are compiled, assembled and executed: all, but of activations and separable losses.
Their kernels differ in nothing but the scalar function, so that one stands for all in the forms for part of the orders,
and the others are examined in the form that has all of it: every order, of inputs with every order.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

import rop
from rop.layers import ACTIVATIONS, LOSSES, elementwise, loss
from tests.helpers.cases import bell
from tests.helpers.zoo import Shape

Orders = tuple[int, ...]
Options = dict[str, Any]
Request = tuple[str, tuple[tuple[str, Any], ...]]  # kernel and options

EVERY: Orders = (0, 1, 2)
# (orders of a pass, those whose parameter gradient is wanted). on_device/ compares them with what the engine runs.
JET = (EVERY, EVERY)
PASSES: tuple[tuple[Orders, Orders], ...] = (
    JET,
    ((0,), (0,)),  # loss and gradient at a point
    ((1,), (1,)),  # H v there …
    ((0, 1), (1,)),  # … where nothing is kept
    ((2,), (2,)),  # R² after H v, …
    ((1, 2), (2,)),  # … of another v …
    (EVERY, (2,)),  # … and where nothing is kept
)


@dataclass(frozen=True)
class Network:
    """A network to lower, and the passes over it."""

    net: Any
    shape: Shape
    loss: Any
    dense: bool = True  # whether targets are numbers, not labels
    lanes: int = 32
    training: bool = True
    passes: tuple[tuple[Orders, Orders], ...] = PASSES

    def requests(self) -> Iterator[Request]:
        """The kernels of all passes."""
        from numba import cuda

        from rop.devices.cuda.emit import Lowered
        from rop.lowering import outline

        plan = outline(self.net, self.shape, self.training, self.loss, np.float32)
        with mock.patch.object(cuda, "to_device", lambda table: table):
            lowered = Lowered(plan, self.lanes)
            codes = [lowered.emit_pass(orders, wanted, self.dense) for orders, wanted in self.passes]
        for launch in (one for code in codes for one in code.instructions):
            yield launch.kernel.factory.name, tuple(launch.kernel.options.items())


# ------------------------------------------------------------------------------------------------------------------
# every layer and loss behind inputs of every kind
# ------------------------------------------------------------------------------------------------------------------
VECTOR: Shape = (3,)
IMAGE: Shape = (2, 3, 3)
WIDE: Shape = (70,)  # fills large tiles, with 64 lanes and in the weight gradient


def of_kind(kind: int, x: Any, shape: Shape) -> Any:
    """A value whose orders up to ``kind`` are not zero: data, a product, or a smooth function of one."""
    if kind == 0:
        return x
    product = rop.Linear(shape[0], shape[0]) if len(shape) == 1 else rop.Conv2d(shape[0], shape[0], 1)
    return product(x) if kind == 1 else rop.Tanh()(product(x))


def square(x: float) -> tuple[float, float, float, float]:
    """x², a user's own activation. (One with sin or cos would not do: NVIDIA's own use local memory for large x.)"""
    return x * x, 2 * x, 2.0, 0.0


def steep(x: float, slope: float) -> tuple[float, float, float, float]:
    """a x², one with a parameter."""
    return slope * x * x, 2 * slope * x, 2 * slope, 0.0


def samples() -> dict[str, list[tuple[Any, Shape]]]:
    """Layers of one input, with the options that their kernels depend on, and the shape of that input."""
    return {
        "Linear": [(rop.Linear(3, 2), VECTOR), (rop.Linear(70, 70), WIDE)],
        "Conv2d": [(rop.Conv2d(2, 2, 2), IMAGE)],
        "MaxPool2d": [(rop.MaxPool2d(2), IMAGE)],
        "AvgPool2d": [(rop.AvgPool2d(2), IMAGE)],
        "AdaptiveAvgPool2d": [(rop.AdaptiveAvgPool2d(2), IMAGE)],
        "Flatten": [(rop.Flatten(), IMAGE)],
        "Identity": [(rop.Identity(), VECTOR)],
        "ReLU": [(rop.ReLU(), VECTOR)],
        "LeakyReLU": [(rop.LeakyReLU(), VECTOR)],
        "GELU": [(rop.GELU(), VECTOR), (rop.GELU("tanh"), VECTOR)],
        **{name: [(kind(), VECTOR)] for name, kind in ACTIVATIONS.items() if name != "GELU"},
        "Elementwise": [(own, VECTOR) for own in OWN],
        "Softmax": [(rop.Softmax(1), VECTOR)],
        "LogSoftmax": [(rop.LogSoftmax(1), VECTOR)],
        "BatchNorm1d": [(rop.BatchNorm1d(3, affine=affine), VECTOR) for affine in (True, False)],
        "BatchNorm2d": [(rop.BatchNorm2d(2), IMAGE)],
        "LayerNorm": [(rop.LayerNorm(3), VECTOR)],
        "RMSNorm": [(rop.RMSNorm(3), VECTOR)],
        "LayerNorm2d": [(rop.LayerNorm2d(2), IMAGE)],
        "GroupNorm": [(rop.GroupNorm(1, 2), IMAGE)],
        "InstanceNorm2d": [(rop.InstanceNorm2d(2), IMAGE)],
    }


OWN = (rop.Elementwise(square), rop.Elementwise(steep, 0.5), rop.Elementwise(bell, 2.0, 3.0))  # no, one, two parameters
JOINS: dict[str, Any] = {"Add": rop.Add, "Mul": rop.Mul, "Concat": rop.Concat}


STAND_FOR_ALL = (elementwise.gelu_tanh, loss.poisson_surprise)  # all their derivatives are there


def is_examined(options: Options) -> bool:
    """Whether a form is examined itself, and not that of another scalar function in its place."""
    return "of" not in options or options["of"] in STAND_FOR_ALL or options["orders"] == options["levels"] == EVERY


def is_own(options: Options) -> bool:
    """Whether a kernel is that of a user's own activation."""
    return "of" in options and options["of"].__module__ not in (elementwise.__name__, loss.__name__)


def is_listed(options: Options) -> bool:
    """Whether the form of a kernel is listed in docs/cuda-kernels.md: all orders at once, where there are orders; no
    activation of a user."""
    whole = all(options.get(orders, EVERY) == EVERY for orders in ("orders", "levels", "others"))
    return whole and not is_own(options)


def networks() -> Iterator[Network]:
    """Each of them alone behind its input, with its output in the loss."""
    for kind in EVERY:
        for name, layers in samples().items():
            for layer, shape in layers:
                x = rop.Input()
                made = Network(rop.Graph(x, layer(of_kind(kind, x, shape))), shape, rop.MSE())
                yield replace(made, passes=(JET,)) if name == "Elementwise" else made
        for other in EVERY:
            for join in JOINS.values():
                x = rop.Input()
                joined = join()(of_kind(kind, x, VECTOR), of_kind(other, x, VECTOR))
                yield Network(rop.Graph(x, joined), VECTOR, rop.MSE())
        for made_loss in LOSSES.values():
            for dense in (False, True):
                x = rop.Input()
                yield Network(rop.Graph(x, rop.Identity()(of_kind(kind, x, VECTOR))), VECTOR, made_loss(), dense)
    yield Network(shared(), VECTOR, rop.MSE())


def shared() -> Any:
    """A value that is used by two additions, which hand on gradients that are not its own to add to."""
    x = rop.Input()
    a, b, c = (of_kind(1, x, VECTOR) for _ in range(3))
    return rop.Graph(x, rop.Concat()(rop.Add()(a, b), rop.Add()(a, c)))


# ------------------------------------------------------------------------------------------------------------------
# kernels
# ------------------------------------------------------------------------------------------------------------------
def factories() -> dict[str, Any]:
    """Every kernel that there is, by name."""
    package = importlib.import_module("rop.kernels.cuda")
    for file in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{file.name}")
    found: dict[str, Any] = importlib.import_module("rop.kernels.cuda.compile").FACTORIES
    return found


def told(options: tuple[tuple[str, Any], ...]) -> list[str]:
    """Options in a few letters each."""
    values = (getattr(value, "__name__", value) for _, value in options)
    texts = ("".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values)
    return [f"{name}={text}" for (name, _), text in zip(options, texts, strict=True)]


@cache
def requested() -> frozenset[Request]:
    """The kernels of all passes over all networks."""
    each = (
        replace(network, training=training, lanes=lanes)
        for network in networks()
        for training in (True, False)
        for lanes in (32, 64)
    )
    return frozenset(request for network in each for request in network.requests())


@cache
def specialisations() -> dict[str, list[Options]]:
    """The options of every kernel that are examined, or none where there is nothing to choose."""
    from rop.kernels.cuda.compile import no_options

    ordered = sorted(requested(), key=lambda request: told(request[1]))  # the same in every process
    examined = [(kernel, dict(options)) for kernel, options in ordered if is_examined(dict(options))]
    return {
        name: [{}] if factory.names is no_options else [options for kernel, options in examined if kernel == name]
        for name, factory in sorted(factories().items())
    }


def is_known(kernel: str, options: Options) -> bool:
    """Whether a kernel that was launched is one that is asked for here, or has nothing to choose."""
    return not options or (kernel, tuple(options.items())) in requested()
