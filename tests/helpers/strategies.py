"""What Hypothesis draws: sizes, data, and whole networks. Numbers come from a drawn seed, structure from Hypothesis,
so that a failing example shrinks to a small network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rop
from rop.check.reference import output_shape
from rop.devices.cpu.choice import LANES
from rop.devices.cpu.emit import SMALL
from rop.devices.cpu.emit.bilinear import REGROUP, WIDE
from rop.devices.cpu.memory import RUN_LENGTH_WORTH_MOVING
from rop.devices.cpu.workspace import BLOCK_OF_VECTORS, CHUNK_TILES
from rop.kernels.cpu.gemm import DOT_COLUMNS, L1, PANEL
from rop.kernels.cpu.transfer import LONG
from rop.kernels.cpu.vector import BLOCK
from tests.helpers import rectified
from tests.helpers.zoo import Shape

seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([np.float64, np.float32])


def around(*thresholds: int) -> list[int]:
    """The numbers just below, at and just above thresholds of the code."""
    return sorted({number for threshold in thresholds for number in (threshold - 1, threshold, threshold + 1)})


# The engine cuts the batch into tiles: their lengths are the edges.
EDGES = (1, 2, *around(*(lanes for lanes in LANES if lanes <= 32)))


def batch_sizes(least: int = 1) -> st.SearchStrategy[int]:
    """Batch sizes up to 40, with the edges of a tile drawn often."""
    edges = [size for size in EDGES if size >= least]
    return st.one_of(st.sampled_from(edges), st.integers(least, 40))


# ---------------------------------------------------------------------------------------------------------------
# whole networks
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A drawn network with the shape of its input (without batch) and the number of its output classes."""

    net: Any
    shape: Shape
    classes: int
    least_batch: int = 1


ACTIVATIONS = (*rop.layers.ACTIVATIONS.values(), rop.ReLU, rop.LeakyReLU)


@st.composite
def activations(draw: st.DrawFn) -> Any:
    """Any activation layer with its default arguments."""
    return draw(st.sampled_from(ACTIVATIONS))()


@st.composite
def mlps(draw: st.DrawFn, batchnorm: bool = False) -> Problem:
    """A perceptron with one to three hidden layers, each with an activation of its own."""
    widths = draw(st.lists(st.integers(1, 20), min_size=2, max_size=4))
    classes = draw(st.integers(2, 7))
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers.append(rop.Linear(before, after, bias=draw(st.booleans())))
        if batchnorm:
            layers.append(rop.BatchNorm1d(after))
        layers.append(draw(activations()))
    net = rop.Sequential(*layers, rop.Linear(widths[-1], classes))
    return Problem(net, (widths[0],), classes, 5 if batchnorm else 1)


@st.composite
def cnns(draw: st.DrawFn, batchnorm: bool = False) -> Problem:
    """One to three convolutions with activation and perhaps pooling, then a linear layer."""
    shape: Shape = draw(st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)))
    layers: list[Any] = []
    here = shape
    for _ in range(draw(st.integers(1, 3))):
        for layer in draw(convolution_blocks(here, batchnorm)):
            layers.append(layer)
            here = output_shape(layer, here)
    classes = draw(st.integers(2, 6))
    net = rop.Sequential(*layers, rop.Flatten(), rop.Linear(int(np.prod(here)), classes))
    return Problem(net, shape, classes, 3 if batchnorm else 1)


@st.composite
def convolution_blocks(draw: st.DrawFn, shape: Shape, batchnorm: bool) -> list[Any]:
    """Convolution, batchnorm if wanted, activation, and a pooling layer if the image is large enough for one."""
    channels, height, width = shape
    out = draw(st.integers(1, 5))
    kernel = draw(st.sampled_from([1, 3]))
    block: list[Any] = [rop.Conv2d(channels, out, kernel, padding=kernel // 2, bias=draw(st.booleans()))]
    if batchnorm:
        block.append(rop.BatchNorm2d(out))
    block.append(draw(activations()))
    if min(height, width) >= 4:
        block += draw(st.sampled_from([[], [rop.MaxPool2d(2)], [rop.AvgPool2d(2)]]))
    return block


@st.composite
def flattened_nets(draw: st.DrawFn) -> Problem:
    """An image whose rows lie pixel by pixel once it is flattened, in all the places where the user's order matters:
    beside vectors, in sums, before batchnorm and at the end; with names for the same rows on the way."""
    channels, side, classes = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 4))
    x = rop.Input()
    image = convolved = rop.Conv2d(1, channels, 3, padding=1)(x)
    named: list[Any] = draw(st.lists(st.sampled_from([rop.Identity(), rop.ReLU(), rop.Tanh()]), max_size=2))
    for layer in named:
        image = layer(image)
    flat = rop.Flatten()(rop.MaxPool2d(1)(image) if draw(st.booleans()) else image)
    width = channels * side * side
    for layer in draw(st.lists(st.sampled_from([rop.Identity(), rop.ReLU()]), max_size=2)):
        flat = layer(flat)
    other = draw(st.sampled_from(["data", "linear", "same", "before", "after"]))
    beside = {
        "data": lambda: rop.Flatten()(x),
        "linear": lambda: rop.Linear(side * side, width)(rop.Flatten()(x)),
        "same": lambda: flat,
        "before": lambda: rop.Flatten()(convolved),
        "after": lambda: rop.Tanh()(flat),
    }[other]()
    last = draw(st.sampled_from(["concatenation", "sum", "product", "scale", "batchnorm", "nothing"]))
    if last == "concatenation":
        flat, width = rop.Concat()(beside, flat), width + (side * side if other == "data" else width)
    elif last == "sum" and (other != "data" or channels == 1):
        flat = rop.Add()(flat, beside)
    elif last == "product" and (other != "data" or channels == 1):
        flat = rop.Mul()(flat, beside)
    elif last == "scale":  # numbers for each channel, which are rows in another order
        flat = rop.Mul()(rop.Conv2d(1, width, 3, padding=1)(x), flat)
        flat, width = rop.Flatten()(flat), width * side * side
    elif last == "batchnorm":
        flat = rop.BatchNorm1d(width)(flat)
    if draw(st.booleans()) or width < 2:
        flat, width = rop.Linear(width, classes)(flat), classes
    return Problem(rop.Graph(x, flat), (1, side, side), width, 5)


@st.composite
def rectified_nets(draw: st.DrawFn) -> Problem:
    """A ReLU behind a product, a batchnorm or a sum, with one to three uses, and perhaps one of the value before it."""
    channels, height, width = (draw(st.integers(1, 4)) for _ in range(3))
    uses = draw(st.lists(st.sampled_from(list(rectified.USES)), min_size=1, max_size=3))
    before, seen = draw(st.sampled_from(list(rectified.BEFORE))), draw(st.booleans())
    features = rectified.around(rop.ReLU(), before, uses, seen, channels)
    classes = draw(st.integers(2, 4))
    total = (len(uses) + seen) * channels * height * width
    net = rop.Sequential(features, rop.Flatten(), rop.Linear(total, classes))
    return Problem(net, (rectified.DATA, height, width), classes, 5)


@st.composite
def constant_nets(draw: st.DrawFn) -> Problem:
    """Nets in which nothing, or not everything, depends on parameters."""
    shape: Shape = draw(st.tuples(st.integers(2, 5)) | st.tuples(st.integers(2, 3), st.just(3), st.just(3)))
    x = rop.Input()
    fixed = x
    kinds = [kind for kind in KEEPING if len(shape) == 3 or kind not in POOLINGS]
    for kind in draw(st.lists(st.sampled_from([*kinds, "activation"]), min_size=1, max_size=3)):
        fixed = (draw(activations()) if kind == "activation" else KEEPING[kind]())(fixed)
    out = fixed
    if draw(st.booleans()):
        trained = rop.Conv2d(shape[0], shape[0], 1) if len(shape) == 3 else rop.Linear(shape[0], shape[0])
        join = draw(st.sampled_from([rop.Add(), rop.Mul()]))
        out = join(*draw(st.permutations([fixed, trained(x)])))
    return Problem(rop.Graph(x, out), shape, shape[0])


# ---------------------------------------------------------------------------------------------------------------
# networks whose sizes lie around the thresholds of the code: they are imported, so that these follow when they move
# ---------------------------------------------------------------------------------------------------------------

number_of_directions = st.sampled_from([1, 2, *around(BLOCK_OF_VECTORS, 2 * BLOCK_OF_VECTORS)])
# Inputs of a linear layer: few and many panels, rows that are whole blocks or not, runs that are short or long.
FANS = around(PANEL, 2 * PANEL, RUN_LENGTH_WORTH_MOVING, BLOCK // 8, BLOCK // 4, 8 * BLOCK // 4)


@st.composite
def long_batches(draw: st.DrawFn, lanes: int = LANES[-1]) -> int:
    """A batch that is one chunk of tiles, or a little more, or several."""
    chunk = CHUNK_TILES * lanes
    return draw(st.sampled_from([*around(chunk), chunk + lanes + 1, 2 * chunk + 3]))


@st.composite
def wide_nets(draw: st.DrawFn) -> Problem:
    """A linear layer whose number of weights lies around a threshold: on the data, behind another layer or an image,
    or used twice; the last layer has a few classes."""
    weights, more = draw(st.sampled_from([WIDE, LONG])), draw(st.integers(0, 1))
    bias, activation, classes = draw(st.booleans()), draw(activations()), draw(st.integers(2, 4))
    kind = draw(st.sampled_from(["first", "behind", "behind", "image", "tied"]))
    shape: Shape = (3,)
    if kind == "tied":
        n = int(weights**0.5) - 1 + more
        tied = rop.Linear(n, n, bias=bias)
        layers, rows = [rop.Linear(3, n), activation, tied, draw(activations()), tied], n
    elif kind == "image":
        channels, side = draw(st.integers(2, 9)), draw(st.integers(3, 6))
        rows = weights // (channels * side * side) + more
        layers = [
            rop.Conv2d(1, channels, 3, padding=1),
            activation,
            rop.Flatten(),
            rop.Linear(channels * side * side, rows, bias=bias),
        ]
        shape = (1, side, side)
    else:
        fan = draw(st.sampled_from(FANS) | st.integers(1, 300))
        rows = weights // fan + more
        before = [] if kind == "first" else [rop.Linear(3, fan), activation]
        layers = [*before, rop.Linear(fan, rows, bias=bias)]
        shape = (fan if kind == "first" else 3,)
    return Problem(rop.Sequential(*layers, draw(activations()), rop.Linear(rows, classes)), shape, classes)


@st.composite
def large_cnns(draw: st.DrawFn) -> Problem:
    """Two convolutions, of which one has numbers of weights, of channels or of pixels around a threshold."""
    kind = draw(st.sampled_from(["weights", "channels", "pixels"]))
    many = round((SMALL / 9) ** 0.5)
    first = draw(st.sampled_from(around(many) if kind == "weights" else around(DOT_COLUMNS, REGROUP // 9 + 1)))
    second = draw(st.sampled_from(around(many))) if kind == "weights" else draw(st.integers(1, 9))
    edge = round((L1 / (2 * DOT_COLUMNS * BLOCK)) ** 0.5)
    side = draw(st.sampled_from(around(edge, 2 * edge))) if kind == "pixels" else draw(st.integers(3, 5))
    groups = draw(st.sampled_from([1, first])) if kind == "channels" else 1
    channels = draw(st.integers(1, 2))
    net = rop.Sequential(
        rop.Conv2d(channels, first, 3, padding=draw(st.integers(0, 1))),
        draw(activations()),
        rop.Conv2d(first, first if groups > 1 else second, 3, padding=1, groups=groups),
        draw(activations()),
        rop.AdaptiveAvgPool2d(1),
        rop.Flatten(),
        rop.Linear(first if groups > 1 else second, 3),
    )
    return Problem(net, (channels, side, side), 3)


# Layers without parameters that keep a value's shape; poolings for images only.
KEEPING: dict[str, Any] = {
    "identity": rop.Identity,
    "softmax": lambda: rop.Softmax(1),
    "log_softmax": lambda: rop.LogSoftmax(1),
    "maximum": lambda: rop.MaxPool2d(3, stride=1, padding=1),
    "average": lambda: rop.AvgPool2d(3, stride=1, padding=1),
}
POOLINGS = ("maximum", "average")


@st.composite
def dags(draw: st.DrawFn, images: bool) -> Problem:
    """A random graph: every step applies a layer to any earlier value, joins two of them, or uses a layer again.

    Steps keep the values' height and width (and, for vectors, any width), so that joins find partners. Every value,
    also one between a product and its activation, may be used again later; what is left unused at the end is
    concatenated, so that every step matters.
    """
    sizes = [st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)] if images else [st.integers(1, 8)]
    shape: Shape = draw(st.tuples(*sizes))
    graph = _Growing(shape)
    for _ in range(draw(st.integers(1, 8))):
        graph.grow(draw)
    out = graph.join_loose_ends()
    classes = draw(st.integers(2, 5))
    if images:
        out = rop.Flatten()(out)
    out = rop.Linear(graph.total * int(np.prod(shape[1:], dtype=int)), classes)(out)
    return Problem(rop.Graph(graph.input, out), shape, classes)


class _Growing:
    """A graph under construction: values with their numbers of channels, and the layers with parameters so far."""

    def __init__(self, shape: Shape) -> None:
        self.input = rop.Input()
        self.values: list[tuple[Any, int]] = [(self.input, shape[0])]
        self.loose: set[int] = {0}
        self.images = len(shape) == 3
        self.layers: list[tuple[Any, int, int]] = []
        self.total = 0

    def grow(self, draw: st.DrawFn) -> None:
        """One step on a drawn value; the latest ones are drawn more often, so that chains get long."""
        last = len(self.values) - 1
        source = draw(st.one_of(st.just(last), st.integers(0, last)))
        step = draw(
            st.sampled_from(
                [
                    self.product,
                    self.product,
                    self.activation,
                    self.activation,
                    self.keeping,
                    self.norm,
                    self.tied,
                    self.addition,
                    self.multiplication,
                    self.concatenation,
                ]
            )
        )
        step(draw, source)

    def product(self, draw: st.DrawFn, source: int) -> None:
        """A new linear or convolution layer."""
        into, out = self.values[source][1], draw(st.integers(1, 5))
        layer = rop.Conv2d(into, out, 3, padding=1) if self.images else rop.Linear(into, out)
        self.layers.append((layer, into, out))
        self.apply(layer, out, source)

    def tied(self, draw: st.DrawFn, source: int) -> None:
        """A layer that was used before, if one fits."""
        fitting = [(layer, out) for layer, into, out in self.layers if into == self.values[source][1]]
        if fitting:
            layer, out = draw(st.sampled_from(fitting))
            self.apply(layer, out, source)

    def activation(self, draw: st.DrawFn, source: int) -> None:
        """An activation; ReLU often, because the engine joins it with its neighbours."""
        layer = draw(st.one_of(st.builds(rop.ReLU), activations()))
        self.apply(layer, self.values[source][1], source)

    def keeping(self, draw: st.DrawFn, source: int) -> None:
        """A softmax, a pooling with stride 1, or nothing at all."""
        kinds = [kind for kind in KEEPING if self.images or kind not in POOLINGS]
        self.apply(KEEPING[draw(st.sampled_from(kinds))](), self.values[source][1], source)

    def norm(self, draw: st.DrawFn, source: int) -> None:
        """A normalisation by the sample's own statistics; it can be used again. A large ε, because the derivatives of
        one that has but a few numbers grow without bound."""
        channels = self.values[source][1]
        kinds: list[Any] = [partial(rop.GroupNorm, 1), rop.LayerNorm2d if self.images else rop.LayerNorm]
        kinds += [partial(rop.InstanceNorm2d, affine=True)] if self.images else [rop.RMSNorm]
        layer = draw(st.sampled_from(kinds))(channels, eps=0.5)
        self.layers.append((layer, channels, channels))
        self.apply(layer, channels, source)

    def addition(self, draw: st.DrawFn, source: int) -> None:
        """The sum with a value of the same shape, perhaps itself."""
        channels = self.values[source][1]
        other = draw(st.sampled_from([k for k, (_, c) in enumerate(self.values) if c == channels]))
        self.apply(rop.Add(), channels, source, other)

    def multiplication(self, draw: st.DrawFn, source: int) -> None:
        """The product with a value of the same shape, perhaps itself, or with one that has one channel."""
        channels = self.values[source][1]
        fitting = [k for k, (_, c) in enumerate(self.values) if c in (1, channels) or channels == 1]
        other = draw(st.sampled_from(fitting))
        factors = draw(st.permutations([source, other]))
        self.apply(rop.Mul(), max(channels, self.values[other][1]), *factors)

    def concatenation(self, draw: st.DrawFn, source: int) -> None:
        """A value beside another, perhaps itself."""
        other = draw(st.integers(0, len(self.values) - 1))
        self.apply(rop.Concat(), self.values[source][1] + self.values[other][1], source, other)

    def apply(self, layer: Any, channels: int, *sources: int) -> None:
        """Remember the layer's value; what it was made from is no loose end any more."""
        value = layer(*(self.values[k][0] for k in sources))
        self.loose -= set(sources)
        self.loose.add(len(self.values))
        self.values.append((value, channels))

    def join_loose_ends(self) -> Any:
        """One value that depends on everything."""
        first, *others = sorted(self.loose)
        value, self.total = self.values[first]
        for k in others:
            value, self.total = rop.Concat()(value, self.values[k][0]), self.total + self.values[k][1]
        return value


CHANNELS = 18  # of maps in the nets below: more than the vectors of most machines have lanes, and no multiple of them


@st.composite
def map_convolutions(draw: st.DrawFn) -> Any:
    """A convolution of maps of CHANNELS channels that keeps their number, and the height and width but for a stride."""
    kernel, dilation, stride = draw(st.sampled_from([(1, 1, 1), (3, 1, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1), (1, 1, 2)]))
    padding = dilation * (kernel // 2)
    groups = draw(st.sampled_from([1, 1, 3, CHANNELS]))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return rop.Conv2d(CHANNELS, CHANNELS, kernel, bias=draw(st.booleans()), **options)


@st.composite
def gates(draw: st.DrawFn, h: Any, y: Any) -> Any:
    """What a map y is multiplied with: the map h, itself, or a number for each channel, for each pixel or for all."""
    mean = rop.AdaptiveAvgPool2d(1)(h)
    values = {
        "map": lambda: h,
        "square": lambda: y,
        "channels": lambda: rop.Conv2d(CHANNELS, CHANNELS, 1)(mean),
        "vector": lambda: rop.Linear(CHANNELS, CHANNELS)(rop.Flatten()(mean)),
        "pixels": lambda: rop.Conv2d(CHANNELS, 1, 3, padding=1)(h),
        "number": lambda: rop.Linear(CHANNELS, 1)(rop.Flatten()(mean)),
    }
    return values[draw(st.sampled_from(list(values)))]()


@st.composite
def map_nets(draw: st.DrawFn) -> Problem:
    """Convolutions of every kind that pixel lanes know, with additions, products, concatenations, batchnorm and
    poolings."""
    shape: Shape = (draw(st.integers(1, 9)), draw(st.integers(4, 9)), draw(st.integers(4, 9)))
    x = rop.Input()
    h = rop.Conv2d(shape[0], CHANNELS, 3, padding=draw(st.integers(1, 2)))(x)
    for _ in range(draw(st.integers(1, 3))):
        layer, activation = draw(map_convolutions()), draw(activations())
        norms = [rop.BatchNorm2d(CHANNELS), rop.LayerNorm2d(CHANNELS), rop.GroupNorm(3, CHANNELS)]
        before = draw(st.sampled_from([rop.Identity(), *norms]))
        y = layer(activation(before(h)))
        way = draw(st.sampled_from(["next", "sum", "gate", "concatenation"]))
        if layer.stride != (1, 1) or way == "next":
            h = y
        elif way == "sum":
            h = rop.ReLU()(rop.Add()(h, y))
        elif way == "gate":
            h = rop.Mul()(*draw(st.permutations([y, draw(gates(h, y))])))
        else:  # several uses of rows that lie in one another
            grown = rop.Concat()(h, y, draw(st.sampled_from([h, y])))
            h = rop.Conv2d(3 * CHANNELS, CHANNELS, 1)(rop.ReLU()(rop.BatchNorm2d(3 * CHANNELS)(grown)))
    pool = draw(st.sampled_from([rop.Identity(), rop.MaxPool2d(3, 2, 1), rop.AvgPool2d(2, 1, 1)]))
    classes = draw(st.integers(2, 5))
    flat = rop.Flatten()(rop.AdaptiveAvgPool2d(draw(st.integers(1, 2)))(pool(h)))
    (features,) = rop.Graph(x, flat).shapes(shape)[flat]
    return Problem(rop.Graph(x, rop.Linear(features, classes)(flat)), shape, classes, 2)


@st.composite
def wide_map_nets(draw: st.DrawFn) -> Problem:
    """Convolutions of 3×3 with so many channels and pixels that Winograd's algorithm pays, and one of 1×1 whose
    gradient of weights goes straight to its place: its channels fill whole vectors."""
    side, padding = draw(st.integers(13, 15)), draw(st.integers(0, 2))
    net = rop.Sequential(
        rop.Conv2d(2, 64, 1),
        rop.Tanh(),
        rop.Conv2d(64, 64, 3, padding=padding, bias=draw(st.booleans())),
        draw(st.sampled_from([rop.ReLU(), rop.Tanh()])),
        rop.Conv2d(64, 64, 3, padding=1),
        rop.AdaptiveAvgPool2d(1),
        rop.Conv2d(64, 64, 1),
        rop.Flatten(),
        rop.Linear(64, 3),
    )
    return Problem(net, (2, side, side + 1), 3)
