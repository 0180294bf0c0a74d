"""How many floating-point operations the R and R² recursions cannot do without.

Only the products of linear and convolutional layers are counted, a multiplication and an addition each; activations,
pools, biases and the loss are left out. A layer y = B(x, w), with parameters (w, v, 0), needs

    order    forward                       gradient of x              gradient of w                       in all
      0      B(x⁰,w)                       Bᵀ(g⁰,w)                   ⟨g⁰,x⁰⟩                               3
      1      B(x¹,w) + B(x⁰,v)             Bᵀ(g¹,w) + Bᵀ(g⁰,v)        ⟨g¹,x⁰⟩ + ⟨g⁰,x¹⟩                     6
      2      B(x²,w) + 2B(x¹,v)            Bᵀ(g²,w) + 2Bᵀ(g¹,v)       ⟨g²,x⁰⟩ + 2⟨g¹,x¹⟩ + ⟨g⁰,x²⟩          7

A product with a factor that is zero for every w and v is not counted, nor is an input gradient that nobody needs: the
first layer costs 2, 2 and 1, because data have no tangents; the layer after it costs 5 at order 2 if only piecewise
linear layers stand between them, because then x² = 0. A convolution's taps outside the image are not counted either.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .engines import EPOCHS
from .problems import (
    Activation,
    BatchNorm,
    Concat,
    Conv,
    Layer,
    Linear,
    Problem,
    Residual,
    Shape,
    Softmax,
    shape_after,
)

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
PIECEWISE_LINEAR = ("relu", "leaky_relu")


@dataclass
class Count:
    """One linear or convolutional layer: how large a product is and how many each order needs."""

    layer: Linear | Conv
    multiplications: int  # of one product, per sample
    products: list[int] = field(default_factory=lambda: [0, 0, 0])  # at orders 0, 1, 2


def flops(problem: Problem, batch: int, work: str, steps: int = 1) -> int:
    """Floating-point operations that `work` needs for one batch, or for an epoch of several."""
    times = ORDERS[work]
    products = sum(c.multiplications * c.products[k] * times[k] for c in count(problem) for k in range(3))
    return 2 * batch * products * (steps if work in EPOCHS else 1)


def count(problem: Problem) -> list[Count]:
    """The products of every linear and convolutional layer, in the order in which they are met."""
    walk = _Walk(problem.layers, problem.input_shape, frozenset({0}), False)
    y = walk.orders
    if problem.loss == "mse":
        g = y
    else:
        g = _through_curve(y, frozenset({0}) | y)
    walk.backward(g)
    return walk.counts


def taps(size: int, conv: Conv) -> int:
    """Along one axis of `size` pixels: pairs of output pixel and kernel tap that lie inside the image."""
    outputs = (size + 2 * conv.padding - conv.dilation * (conv.kernel - 1) - 1) // conv.stride + 1
    starts = range(-conv.padding, -conv.padding + outputs * conv.stride, conv.stride)
    return sum(0 <= start + conv.dilation * tap < size for start in starts for tap in range(conv.kernel))


def multiplications(layer: Linear | Conv, shape: Shape) -> int:
    """Of one forward product for one sample of the given input shape."""
    if isinstance(layer, Linear):
        return layer.inputs * layer.outputs
    return layer.inputs // layer.groups * layer.outputs * taps(shape[1], layer) * taps(shape[2], layer)


def _through_curve(x: Orders, orders: Orders) -> Orders:
    """A function with curvature at a moving point: x¹ makes orders 1 and 2 appear, x² order 2."""
    return orders | ({1, 2} if 1 in x else set()) | ({2} if 2 in x else set())


class _Walk:
    """Forward over a chain of layers at once, recording what `backward` will need."""

    def __init__(self, layers: tuple[Layer, ...], shape: Shape, x: Orders, needed: bool):
        # x: the orders present in the input; needed: whether anybody wants the gradient of the input
        self.orders: Orders  # present in the output
        self.needed: bool  # whether anybody wants the gradient of the output
        self.counts: list[Count] = []
        self.tape: list[tuple[Layer, Orders, bool, list[_Walk], Count | None]] = []
        for layer in layers:
            inner: list[_Walk] = []
            counted = None
            y, wanted = x, needed
            match layer:
                case Linear() | Conv():
                    counted = Count(layer, multiplications(layer, shape))
                    self.counts.append(counted)
                    counted.products[0] += 1
                    counted.products[1] += 1 + (1 in x)
                    counted.products[2] += (1 in x) + (2 in x)
                    y = frozenset({0, 1}) | ({2} if 1 in x or 2 in x else set())
                    wanted = True
                case BatchNorm():
                    y, wanted = _through_curve(x, x | {1}), True
                case Softmax():
                    y = _through_curve(x, x)
                case Activation(kind):
                    y = x if kind in PIECEWISE_LINEAR else _through_curve(x, x)
                case Residual(body, shortcut):
                    inner = [_Walk(body, shape, x, needed), _Walk(shortcut, shape, x, needed)]
                case Concat(branches):
                    inner = [_Walk(branch, shape, x, needed) for branch in branches]
            for walk in inner:
                self.counts += walk.counts
                y, wanted = y | walk.orders, wanted or walk.needed
            self.tape.append((layer, x, needed, inner, counted))
            x, needed, shape = y, wanted, shape_after((layer,), shape)
        self.orders, self.needed = x, needed

    def backward(self, g: Orders) -> Orders:
        """From the orders present in the gradient of the output to those in the gradient of the input."""
        for layer, x, needed, inner, counted in reversed(self.tape):
            if counted:
                for k in range(3):
                    counted.products[k] += sum(k - j in g for j in x)
                    counted.products[k] += needed * ((k in g) + (k - 1 in g))
                g = g | {k + 1 for k in g if k < 2}
            elif inner:
                g = frozenset().union(*(walk.backward(g) for walk in inner))
            elif isinstance(layer, BatchNorm):
                g = _through_curve(x, g | {k + 1 for k in g if k < 2})
            elif isinstance(layer, Softmax) or (isinstance(layer, Activation) and layer.kind not in PIECEWISE_LINEAR):
                g = _through_curve(x, g)
        return g
