"""The number of floating-point operations that the R and R² recursions need.

Only the products of linear and convolutional layers are counted, a multiplication and an addition each; activations,
pools, products of values, biases and the loss are not. A layer y = B(x, w), with parameters (w, v, 0), needs

    order    forward                       gradient of x              gradient of w                       in all
      0      B(x⁰,w)                       Bᵀ(g⁰,w)                   ⟨g⁰,x⁰⟩                               3
      1      B(x¹,w) + B(x⁰,v)             Bᵀ(g¹,w) + Bᵀ(g⁰,v)        ⟨g¹,x⁰⟩ + ⟨g⁰,x¹⟩                     6
      2      B(x²,w) + 2B(x¹,v)            Bᵀ(g²,w) + 2Bᵀ(g¹,v)       ⟨g²,x⁰⟩ + 2⟨g¹,x¹⟩ + ⟨g⁰,x²⟩          7

A product with a factor that is zero for every w and v is not counted, nor is an input gradient that is not used: the
first layer costs 2, 2 and 1, because data have no tangents; the layer after it costs 5 at order 2 if only piecewise
linear layers stand between them, because then x² = 0. A convolution's taps outside the image are not counted either.
A convolution is counted as the direct sum (ALGORITHM): one that needs fewer products, as Winograd's does, can be faster
than what the limit allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import rop
from rop.errors import ArgumentTypeError
from rop.graph import Node
from rop.layers import LOSSES
from rop.layers.batchnorm import BatchNorm
from rop.layers.elementwise import Elementwise
from rop.layers.kinds import kind_of
from rop.layers.norm import SampleNorm
from rop.layers.pool import Pool2d
from rop.layers.relu import Rectifier

from .engines import EPOCHS
from .problems import Problem
from .vocabulary import Shape

ALGORITHM = "direct convolution"
ORDERS = {  # how often each work runs the orders 0, 1, 2 (a step of `epoch`, a vector of `hvp_block`)
    "grad": (1, 0, 0),
    "hvp": (0, 1, 0),
    "hvp_block": (0, 1, 0),
    "jet": (1, 1, 1),
    "at_hvp_r2": (1, 1, 1),
    "step": (1, 10, 1),
    "step_python": (1, 10, 1),
    "epoch": (1, 0, 0),
    "penalised": (1, 10, 1),
}

Orders = frozenset[int]  # the orders of a jet that are not structurally zero
CURVED = (Elementwise, rop.Softmax, rop.LogSoftmax)
STRAIGHT = (Rectifier, Pool2d, rop.AdaptiveAvgPool2d, rop.Flatten, rop.Identity, rop.Add, rop.Concat)


@dataclass
class Count:
    """One use of a linear or convolutional layer: the size of a product, and the number of them at each order."""

    layer: rop.Layer
    multiplications: int  # of one product, per sample
    products: list[int] = field(default_factory=lambda: [0, 0, 0])  # at orders 0, 1, 2


def flops(problem: Problem, batch: int, work: str, steps: int = 1) -> int:
    """Floating-point operations that `work` needs for one batch, or for an epoch of several."""
    times = ORDERS[work]
    products = sum(c.multiplications * c.products[k] * times[k] for c in count(problem) for k in range(3))
    return 2 * batch * products * (steps if work in EPOCHS else 1)


def count(problem: Problem) -> list[Count]:
    """The products of every linear and convolutional layer, in the order in which they are met."""
    return list(count_of(problem.network(), problem).values())


def count_of(net: rop.Graph, problem: Problem) -> dict[Node, Count]:
    """The same by the nodes of a net of the problem."""
    walk = _Walk(net, net.shapes(problem.input_shape), problem.training)
    walk.backward(_seed(problem.rop_loss(), walk.orders[net.output]))
    return walk.counts


def taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Along one axis of `size` pixels: pairs of output pixel and kernel tap that lie inside the image."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    starts = range(-padding, -padding + outputs * stride, stride)
    return sum(0 <= start + dilation * tap < size for start in starts for tap in range(kernel))


def multiplications(layer: rop.Linear | rop.Conv2d, shape: Shape) -> int:
    """The multiplications of one forward product of a layer for one sample of the given input shape."""
    if isinstance(layer, rop.Linear):
        return layer.in_features * layer.out_features
    windows = zip(shape[1:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    return layer.in_channels // layer.groups * layer.out_channels * prod(taps(*axis) for axis in windows)


def _through_curve(x: Orders, orders: Orders) -> Orders:
    """A function with curvature at a moving point: x¹ makes orders 1 and 2 appear, x² order 2."""
    return orders | ({1, 2} if 1 in x else set()) | ({2} if 2 in x else set())


def _next(orders: Orders) -> Orders:
    """The orders to which a product with a parameter's tangent lifts these."""
    return frozenset(k + 1 for k in orders if k < 2)


def _of_product(a: Orders, b: Orders) -> Orders:
    """The orders of a product of two values with these orders."""
    return frozenset(i + j for i in a for j in b if i + j < 3)


def _seed(loss: rop.Loss, y: Orders) -> Orders:
    """The orders of the loss's gradient for an output with these orders."""
    kind = kind_of(loss, LOSSES.values(), "bench")
    if kind is rop.MSE:
        return y
    return frozenset({0}) if kind is rop.NLL else _through_curve(y, frozenset({0}) | y)


class _Walk:
    """Goes forward over a graph when it is made, and keeps the orders of all values for `backward`."""

    def __init__(self, net: rop.Graph, shapes: dict[Node, Shape], training: bool):
        self.nodes, self.training = net.nodes, training
        self.orders: dict[Node, Orders] = {net.input: frozenset({0})}  # present in the value of each node
        self.needed = {net.input: False}  # whether the gradient of that value is used
        self.counts: dict[Node, Count] = {}
        for node in net.nodes[1:]:
            x = self.inputs(node)
            y, needed = x, any(self.needed[i] for i in node.inputs)
            if isinstance(node.layer, (rop.Linear, rop.Conv2d)):
                counted = self.counts[node] = Count(node.layer, multiplications(node.layer, shapes[node.inputs[0]]))
                counted.products = [1, 1 + (1 in x), (1 in x) + (2 in x)]
                y, needed = x | _next(x), True
            elif isinstance(node.layer, BatchNorm):
                y, needed = (_through_curve(x, x | {1}) if training else x | {1} | _next(x)), True
            elif isinstance(node.layer, SampleNorm):
                y = _through_curve(x, x)
                if node.layer.has_weight:
                    y, needed = y | {1} | _next(y), True
            elif isinstance(node.layer, CURVED):
                y = _through_curve(x, x)
            elif isinstance(node.layer, rop.Mul):
                y = _of_product(*(self.orders[i] for i in node.inputs))
            elif not isinstance(node.layer, STRAIGHT):
                raise ArgumentTypeError(
                    f"bench: it is not known which orders {node.layer!r} makes of those of its "
                    "input; bench/flops.py must say so"
                )
            self.orders[node], self.needed[node] = y, needed

    def inputs(self, node: Node) -> Orders:
        return frozenset().union(*(self.orders[i] for i in node.inputs))

    def backward(self, seed: Orders) -> None:
        """From the orders in the gradient of the output to those in the gradients of all nodes, counting on the way."""
        gradients: dict[Node, Orders] = dict.fromkeys(self.nodes, frozenset()) | {self.nodes[-1]: seed}
        for node in reversed(self.nodes[1:]):
            x, g = self.inputs(node), gradients[node]
            if node in self.counts:
                needed = self.needed[node.inputs[0]]
                for k in range(3):
                    self.counts[node].products[k] += sum(k - j in g for j in x) + needed * ((k in g) + (k - 1 in g))
                g = g | _next(g)
            elif isinstance(node.layer, BatchNorm):
                g = g | _next(g)
                g = _through_curve(x, g) if self.training else g
            elif isinstance(node.layer, SampleNorm):
                g = _through_curve(x, g | _next(g) if node.layer.has_weight else g)
            elif isinstance(node.layer, CURVED):
                g = _through_curve(x, g)
            for i, other in zip(node.inputs, node.inputs[::-1], strict=True):
                to_input = _of_product(g, self.orders[other]) if isinstance(node.layer, rop.Mul) else g
                gradients[i] = gradients[i] | to_input
