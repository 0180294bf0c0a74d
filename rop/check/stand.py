"""Test stands: networks built around one layer or loss so that its own quantities can be read, at every order.

The engine answers questions about parameters only. Two tricks turn a layer's inputs and outputs into parameters. With
the samples numbered b = 1 … B, the data being the unit vectors e_b, the target of sample b being class b, and the loss
NLL, which is linear:

    u_b = W e_b         the b-th column of W: the input is a parameter
    x_b = A u_b         A is the identity, but has a tangent: x¹ = u¹ + A¹u⁰ and x² = 2 A¹u¹, so all orders are there
    y_b = layer(x_b)
    E   = −Σ_b ⟨e_b, D C y_b⟩        D is the identity with a tangent, C is any matrix

Row b of ∂E/∂C is −(Dᵀ Y)_b: the outputs y_b, jets and all. ∂E/∂W is Aᵀh: what the layer sends back to its input, where
g_b = −Cᵀ Dᵀ e_b comes in from behind with orders 0, 1 and 2. Both products are undone order by order:

    outputs     Y⁰ = −G⁰        Y¹ = −G¹ − D¹ᵀ Y⁰        Y² = −G² − 2 D¹ᵀ Y¹           G the jet of ∂E/∂C
    inputs      h⁰ = G⁰         h¹ = G¹ − A¹ᵀ h⁰         h² = G² − 2 A¹ᵀ h¹            G the jet of ∂E/∂W

Images have pixels: a 1×1 convolution takes the place of W, with a channel for every pixel of every sample. An input
that has one pixel beside a larger first one is the mean over the pixels of such an input; what is sent back to it is
read behind that mean. A loss stands where the layer stood, without C and D; its forward pass is read from the energies
E⁰, E¹, E² themselves. A whole network stands for itself: what is read are the energies and the gradient of every
parameter.

The stands themselves are made of Linear, Conv2d and NLL (and AdaptiveAvgPool2d, for such means): if one of those is
wrong, all rows are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rop.check.derivatives import jumps
from rop.check.differences import Numbers
from rop.errors import ArgumentError
from rop.graph import Graph, Input, Node
from rop.layers import NLL, AdaptiveAvgPool2d, Conv2d, Flatten, Linear
from rop.layers.base import Layer, Shape
from rop.layers.elementwise import Elementwise
from rop.layers.kinds import record_of
from rop.layers.loss import Loss, Separable

FORWARD, TO_INPUT, TO_WEIGHTS = "forward", "to input", "to weights"
APART = 0.5  # distance between any two inputs, and twice their distance from kinks, for layers that have them
SAMPLES, FEW_SAMPLES = (
    17,
    5,
)  # 17 fill a tile of the engine's lanes and a part of the next; 5 on images, where W is large
SMALL_STEP = 2.0**-5  # first step of differences where kinks may be near

Kinks = tuple[float, ...]
EQUAL: Kinks = (math.nan,)  # no number, but 0 and wherever two inputs are equal

Orders = tuple[Numbers, Numbers, Numbers]  # 0, 1, 2


class Answers(NamedTuple):
    """An engine's results for an objective at w along v."""

    loss: float
    slope: float  # ⟨∇f, v⟩
    curvature: float  # vᵀHv
    grad: np.ndarray
    hvp: np.ndarray
    r2: np.ndarray


class Stand:
    """An objective at w along v, and the parts of its answers that belong together.

    ``parts`` maps a direction's name to slices of the parameter vector. The name ``energy`` stands for E⁰, E¹, E².
    """

    kinks = False  # whether w + r v may cross a point where f has no derivatives
    first_step = (
        0.5  # of differences along v; v is scaled so that this is small, and still large compared with rounding
    )

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        x: np.ndarray,
        y: np.ndarray,
        *,
        training: bool = True,
        state: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
    ):
        self.net, self.loss, self.x, self.y = net, loss, x, y
        self.training = training
        self.state = drawn_state(net, seed) if state is None else dict(state)
        self.w, self.v = drawn_point(net, seed)
        self.parts: dict[str, list[slice]] = {}
        self.energy: str | None = None

    @property
    def directions(self) -> list[str]:
        return [*([self.energy] if self.energy else []), *self.parts]

    def raw(self, direction: str, answers: Answers) -> Orders:
        """Orders 0, 1, 2 of a direction as parts of the answers."""
        if direction == self.energy:
            return answers.loss, answers.slope, answers.curvature
        grad, hvp, r2 = (
            np.concatenate([np.float64(vector[part]) for part in self.parts[direction]])
            for vector in (answers.grad, answers.hvp, answers.r2)
        )
        return grad, hvp, r2

    def read(self, direction: str, answers: Answers) -> Orders:
        """Orders 0, 1, 2 of the quantity that the direction stands for: y, h, or a gradient."""
        return self.raw(direction, answers)

    def only(self, direction: str, vector: np.ndarray) -> np.ndarray:
        """The vector with zeros outside of the direction's part."""
        result = np.zeros_like(vector)
        for part in self.parts[direction]:
            result[part] = vector[part]
        return result

    def matrix(self, slot: str, vector: np.ndarray) -> np.ndarray:
        """A parameter as a matrix (rows, everything else), in float64."""
        view = self.net.params(vector)[slot]
        return np.float64(view.reshape(len(view), -1))

    def slices(self, layer: Layer) -> list[slice]:
        """The layer's parameters as slices of the parameter vector."""
        return [slice(s.offset, s.offset + s.size) for s in self.net.slots if s.layer is layer]


class NetworkStand(Stand):
    """A whole network: the energies, and one direction per parameter."""

    def __init__(self, net: Graph, loss: Loss, x: np.ndarray, y: np.ndarray, **options: Any):
        super().__init__(net, loss, x, y, **options)
        self.kinks = any(has_kinks(layer) for layer in net.layers)
        if self.kinks:
            self.first_step = SMALL_STEP
        self.energy = "loss"
        self.parts = {slot.name: [slice(slot.offset, slot.offset + slot.size)] for slot in net.slots if slot.size}


class _WithInputs(Stand):
    """The common part of the stands of layers and losses: inputs that are parameters."""

    def _inputs(self, x: Node, shapes: tuple[Shape, ...]) -> list[Node]:
        """Nodes of the given shapes; keeps their layers W and A."""
        pixels = shapes[0][1:]
        self._shapes = tuple((shape[0], *pixels) for shape in shapes)
        self.samples = samples_for(shapes[0])
        self._W: list[Layer] = []
        self._A: list[Layer] = []
        nodes = []
        for shape in shapes:
            columns, rows = self.samples * math.prod(pixels), shape[0]
            self._W.append(Conv2d(columns, rows, 1, bias=False) if pixels else Linear(columns, rows, bias=False))
            self._A.append(Conv2d(rows, rows, 1, bias=False) if pixels else Linear(rows, rows, bias=False))
            nodes.append(_shrunk(self._A[-1](self._W[-1](x)), pixels, shape))
        return nodes

    def _data(self) -> np.ndarray:
        """The unit vectors: (B, B), or (B, B·H·W, H, W) for images."""
        pixels = self._shapes[0][1:]
        columns = self.samples * math.prod(pixels)
        units = np.eye(columns).reshape(self.samples, *pixels, columns)
        return np.ascontiguousarray(np.moveaxis(units, -1, 1))

    def _place_inputs(self, kinks: Kinks, seed: int) -> None:
        """Write the inputs into W and the identity into A, and scale v so that no input moves faster than 1."""
        rng = np.random.default_rng([seed, 7])
        self.v = rng.standard_normal(self.net.size)
        speed = 0.0
        for layer_w, layer_a, shape in zip(self._W, self._A, self._shapes, strict=True):
            (w_part,), (a_part,) = self.slices(layer_w), self.slices(layer_a)
            self.w[w_part] = _values(shape, self.samples, kinks, rng).ravel()
            self.w[a_part] = np.eye(shape[0]).ravel()
            u0, u1 = (vector[w_part].reshape(shape[0], -1) for vector in (self.w, self.v))
            speed = max(speed, float(np.abs(u1 + self.v[a_part].reshape(shape[0], -1) @ u0).max()))
        self.v /= speed

    def _sent_back(self, answers: Answers) -> Orders:
        """h⁰, h¹, h² for all inputs."""
        orders: list[list[np.ndarray]] = [[], [], []]
        for layer_w, layer_a in zip(self._W, self._A, strict=True):
            w_name, a_name = (f"{self.net.name_of(layer)}.weight" for layer in (layer_w, layer_a))
            a1 = self.matrix(a_name, self.v)
            g0, g1, g2 = (self.matrix(w_name, vector) for vector in (answers.grad, answers.hvp, answers.r2))
            h0 = g0
            h1 = g1 - a1.T @ h0
            h2 = g2 - 2 * a1.T @ h1
            for order, h in zip(orders, (h0, h1, h2), strict=True):
                order.append(h.ravel())
        first, second, third = (np.concatenate(order) for order in orders)
        return first, second, third

    def read(self, direction: str, answers: Answers) -> Orders:
        return self._sent_back(answers) if direction == TO_INPUT else super().read(direction, answers)


class LayerStand(_WithInputs):
    """A layer between inputs W and a reader C; shapes are those of its inputs, without the batch."""

    def __init__(self, layer: Layer, shapes: tuple[Shape, ...], *, training: bool = True, seed: int = 0):
        kinks = kinks_of(layer)
        if kinks:
            self.first_step = APART / 2
        elif has_kinks(layer):
            self.kinks, self.first_step = True, SMALL_STEP
        outputs = math.prod(layer.output_shape(layer.describe(), *shapes))
        x = Input()
        y = layer(*self._inputs(x, shapes))
        count = self.samples
        self._C, self._D = Linear(outputs, count, bias=False), Linear(count, count, bias=False)
        net = Graph(x, self._D(self._C(Flatten()(y))))
        super().__init__(net, NLL(reduction="sum"), self._data(), np.arange(count), training=training, seed=seed)
        (d_part,) = self.slices(self._D)
        self.w[d_part] = np.eye(count).ravel()
        self._place_inputs(kinks, seed)
        self.parts = {FORWARD: self.slices(self._C), TO_INPUT: [part for one in self._W for part in self.slices(one)]}
        if layer.parameter_shapes():
            self.parts[TO_WEIGHTS] = self.slices(layer)

    def read(self, direction: str, answers: Answers) -> Orders:
        return self._outputs(answers) if direction == FORWARD else super().read(direction, answers)

    def _outputs(self, answers: Answers) -> Orders:
        """Y⁰, Y¹, Y²."""
        c_name, d_name = (f"{self.net.name_of(layer)}.weight" for layer in (self._C, self._D))
        d1 = self.matrix(d_name, self.v)
        g0, g1, g2 = (self.matrix(c_name, vector) for vector in (answers.grad, answers.hvp, answers.r2))
        y0 = -g0
        y1 = -g1 - d1.T @ y0
        y2 = -g2 - 2 * d1.T @ y1
        return y0, y1, y2


class LossStand(_WithInputs):
    """A loss on outputs of the given shape that are parameters."""

    def __init__(self, loss: Loss, shape: Shape, y: np.ndarray, *, seed: int = 0):
        x = Input()
        (z,) = self._inputs(x, (shape,))
        super().__init__(Graph(x, z), loss, self._data(), y, seed=seed)
        kinks = tuple(np.unique(np.add.outer(y, loss.seams)).tolist()) if isinstance(loss, Separable) else ()
        if kinks:
            self.first_step = APART / 2 if len(beside(kinks)) else SMALL_STEP
            self.kinks = not len(beside(kinks))
        self._place_inputs(() if self.kinks else kinks, seed)
        self.energy = FORWARD
        self.parts = {TO_INPUT: [part for one in self._W for part in self.slices(one)]}


def _shrunk(x: Node, pixels: Shape, wanted: Shape) -> Node:
    """A value with these pixels in the shape that is wanted, of which one pixel, or a vector, is the mean over all."""
    if wanted[1:] == pixels:
        return x
    mean = AdaptiveAvgPool2d(1)(x)
    return mean if len(wanted) == 3 else Flatten()(mean)


# ------------------------------------------------------------------------------------------------------------- numbers
def has_kinks(layer: Layer) -> bool:
    """Whether differences must not step over a point where the layer has no derivative."""
    if type(layer) is Elementwise:
        return jumps(layer.function, layer.parameters)
    return bool(kinks_of(layer))


def kinks_of(layer: Layer) -> Kinks:
    """The inputs where the layer has no derivative, as far as its class knows them. One of family select, which picks
    a map at order 0, has them at 0, or (max pooling) where two inputs are the same."""
    if record_of(layer, "check").family == "select":
        return EQUAL
    return layer.seams if isinstance(layer, Elementwise) else ()


def _values(shape: Shape, samples: int, kinks: Kinks, rng: np.random.Generator) -> np.ndarray:
    """Inputs (channels, pixels of all samples): normal, or so far apart or aside that no kink is near."""
    channels, pixels = shape[0], math.prod(shape[1:])
    if not kinks:
        return rng.standard_normal((channels, samples * pixels))
    if kinks is not EQUAL:
        return rng.choice(beside(kinks), (channels, samples * pixels))
    steps = np.stack([rng.permutation(max(pixels, 8))[:pixels] for _ in range(channels * samples)])
    return APART * (steps - max(pixels, 8) // 2 + 0.5).reshape(channels, samples * pixels)


def beside(kinks: Kinks) -> np.ndarray:
    """Inputs between the kinks and a little beyond them, but not near to any."""
    grid = np.linspace(min(kinks) - 2, max(kinks) + 2, 199)
    return grid[np.abs(grid[:, None] - np.array(kinks)).min(axis=1) >= APART / 2]


def samples_for(shape: Shape) -> int:
    """The number of samples of a stand for inputs of this shape."""
    return SAMPLES if math.prod(shape[1:]) <= 4 else FEW_SAMPLES


def drawn_point(net: Graph, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A w near the usual start, but without special values such as γ = 1, and a direction of length 1."""
    rng = np.random.default_rng([seed, 1])
    start = net.init(seed=seed, dtype=np.float64)
    v = rng.standard_normal(net.size)
    return start + 0.1 * rng.standard_normal(net.size), v / max(1e-30, float(np.linalg.norm(v)))


def drawn_state(net: Graph, seed: int) -> dict[str, np.ndarray]:
    """Running statistics other than zero and one."""
    rng = np.random.default_rng([seed, 5])
    return {key: start + rng.uniform(0.1, 1.0, start.shape) for key, start in net.init_state(np.float64).items()}


def fitting_shapes(layer: Layer) -> tuple[Shape, ...]:
    """Input shapes that the layer accepts, guessed from its arguments."""
    own = [getattr(layer, name) for name in ("in_features", "in_channels", "num_features") if hasattr(layer, name)]
    for channels in (*own, 4):
        for size in ((), (5, 4), (9, 8), (17, 16)):
            shapes = ((channels, *size),) * max(1, layer.min_inputs)
            try:
                layer.output_shape(layer.describe(), *shapes)
            except ArgumentError:
                continue
            return shapes
    raise ArgumentError(
        f"check: no input shape was found that {layer.describe()} accepts; give one, e.g. "
        "shape=(3, 16, 16), without the batch"
    )


def fitting_targets(loss: Loss, shape: Shape | None) -> tuple[Shape, np.ndarray]:
    """A shape of outputs for a loss, and targets for it: classes where it wants classes, else numbers in [0, 1]."""
    rng = np.random.default_rng(3)
    weight = getattr(loss, "weight", getattr(loss, "pos_weight", None))
    outputs = (5,) if weight is None or weight.size == 1 else weight.shape
    shape = tuple(shape) if shape is not None else outputs
    samples = samples_for(shape)
    if hasattr(loss, "ignore_index"):
        return shape, rng.integers(0, shape[0], (samples, *shape[1:]))
    return shape, rng.uniform(0, 1, (samples, *shape))
