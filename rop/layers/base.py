"""What every layer offers: its parameters, its shapes and its name. How it is computed lives in rop/kernels."""

from __future__ import annotations

import inspect
import math
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError, MissingAttributeError

if TYPE_CHECKING:  # graph.py needs Layer, Layer.__call__ needs Node: the import at run time is inside the call
    from rop.graph import Node

Shape = tuple[int, ...]
SameLayer = TypeVar("SameLayer", bound="Layer")


class Immutable:
    """An object whose attributes are set once, by its constructor.

    Programs are lowered once from a net and then reused, so a layer that changed later would silently disagree with
    them. Equality and hash stay those of identity: two equal layers still have parameters of their own.
    """

    def _set(self, **attributes: Any) -> None:
        """Store attributes; only constructors call this."""
        self.__dict__.update(attributes)

    if not TYPE_CHECKING:  # who checks types knows the attributes by their annotations

        def __getattr__(self, name):
            """For what is not there: an argument that the constructor should have stored."""
            if any(name in inspect.get_annotations(kind) for kind in type(self).__mro__):
                raise MissingAttributeError(
                    f"{type(self).__name__}: {name} has not been set; the constructor of a subclass must call "
                    "super().__init__(...)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise ArgumentTypeError(f"{type(self).__name__} cannot be changed ({name} = {value!r}); make a new one instead")

    def __delattr__(self, name: str) -> NoReturn:
        raise ArgumentTypeError(f"{type(self).__name__} cannot be changed (del {name}); make a new one instead")

    def __repr__(self) -> str:
        """The call that makes an equal object; each constructor argument is stored under its own name."""
        names = [name for name in inspect.signature(type(self)).parameters if name in self.__dict__]
        values = [(name, getattr(self, name)) for name in names]
        shown = [(name, value.tolist() if isinstance(value, np.ndarray) else value) for name, value in values]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


@dataclass(frozen=True)
class Origin:
    """What a module of another library says of the layer that stands for it, beside what it computes."""

    training: bool  # its mode: whether a batchnorm uses the statistics of the batch
    dtype: np.dtype
    fixed: frozenset[str] = frozenset()  # the parameters that it holds fixed


class Layer(Immutable):
    """A map from one or more inputs to one output, with parameters that live in a net's flat vector.

    Calling a layer on a node of a graph gives a new node:

    >>> import rop.graph, rop.layers
    >>> x = rop.graph.Input()
    >>> rop.layers.ReLU()(rop.layers.Linear(3, 4)(x))
    Node(ReLU)
    """

    min_inputs: int = 1
    max_inputs: int | None = 1  # None: any number
    origin: Origin | None = None  # None: written in rop

    def coming_from(self: SameLayer, origin: Origin) -> SameLayer:
        """The same layer with an origin.

        >>> import numpy as np, rop
        >>> layer = rop.Linear(2, 1).coming_from(Origin(False, np.dtype("f8"), frozenset({"bias"})))
        >>> net = rop.Sequential(layer)
        >>> net.dtype, net.fixed
        (dtype('float64'), ('0.bias',))
        """
        made = copy(self)
        made._set(origin=origin)
        return made

    def parameter_shapes(self) -> dict[str, Shape]:
        """Shape of each parameter, in the order in which torch's ``parameters()`` gives them."""
        return {}

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Parameters drawn in float64 from torch's default distributions."""
        return {}

    def initial_state(self) -> dict[str, np.ndarray]:
        """Arrays that evaluation mode reads but that are not trained (batchnorm's running statistics)."""
        return {}

    def output_shape(self, where: str, *shapes: Shape) -> Shape:
        """Shape of the output for inputs of these shapes, all without the batch axis.

        ``where`` names the layer in its net, e.g. "layer 3 (Conv2d 8→16)", for the ArgumentError raised on a misfit.
        """
        raise ArgumentTypeError(
            f"{where}: {type(self).__name__} does not say the shape of its output; rop computes its own layers only, "
            "see rop.Elementwise for an activation of your own and CONTRIBUTING.md for how to add a layer"
        )

    def describe(self) -> str:
        """A few words for tables and messages, e.g. "Conv2d 8→16"."""
        return type(self).__name__

    def __call__(self, *nodes: Node) -> Node:
        from rop.graph import Node

        for node in nodes:
            if not isinstance(node, Node):
                raise ArgumentTypeError(
                    f"{self.describe()}: a layer is called on nodes of a graph, which start at rop.Input(); got "
                    f"{type(node).__name__}. To evaluate a net on arrays use net.predict or rop.Objective"
                )
        most = self.max_inputs
        if len(nodes) < self.min_inputs or (most is not None and len(nodes) > most):
            wanted = f"{self.min_inputs}" if most == self.min_inputs else f"at least {self.min_inputs}"
            raise ArgumentError(
                f"{self.describe()}: expected {wanted} input(s), got {len(nodes)}; "
                "layers with several inputs (Add, Mul, Concat) join the branches of a rop.Graph"
            )
        return Node(self, nodes)


def batched(shape: Shape | tuple[int | str, ...]) -> str:
    """A shape as users see it, with its batch axis: (8, "H", "W") -> "(batch, 8, H, W)"."""
    return f"({', '.join(['batch', *map(str, shape)])})"


def refuse_shape(where: str, expected: tuple[int | str, ...], got: Shape, remedy: str) -> NoReturn:
    """Raise the error for an input that does not fit a layer."""
    raise ArgumentError(f"{where}: expected input {batched(expected)}, got {batched(got)}; {remedy}")


def check_image(where: str, shape: Shape, channels: int | str = "C") -> None:
    """Demand (C, H, W), with this number of channels if one is given."""
    expected = (channels, "H", "W")
    if len(shape) != 3:
        refuse_shape(where, expected, shape, "images have the axes batch, channels, height, width")
    if isinstance(channels, int) and shape[0] != channels:
        refuse_shape(where, expected, shape, f"the layer or data before it gives {shape[0]} channels")


def check_features(where: str, shape: Shape, features: int | str = "features") -> None:
    """Demand (features,), with this number of features if one is given."""
    if len(shape) != 1:
        refuse_shape(where, (features,), shape, to_vectors(shape, features))
    if isinstance(features, int) and shape[0] != features:
        refuse_shape(where, (features,), shape, f"the layer or data before it gives {shape[0]} features")


def to_vectors(shape: Shape, features: int | str = "features") -> str:
    """The remedy for values of this shape where vectors are wanted. Flatten is one where it gives vectors of the right
    length; of sequences torch would take each position by itself."""
    size = math.prod(shape)
    if size == features or (len(shape) == 3 and not isinstance(features, int)):
        return "put a Flatten layer before it"
    if len(shape) == 2:
        return "sequences are not supported, every sample must be one vector"
    return f"every sample must be one vector, and a Flatten layer before it would give {size} features"


def window_count(
    where: str,
    shape: Shape,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int]:
    """How often a window fits: ⌊(size + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1 per direction."""
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = [size + 2 * p for size, p in zip(shape[1:], padding, strict=True)]
    if reach[0] > room[0] or reach[1] > room[1]:
        raise ArgumentError(
            f"{where}: expected input of at least {reach[0]}×{reach[1]} pixels including padding, got "
            f"{batched(shape)}, which is {room[0]}×{room[1]} with padding; use a smaller kernel or more padding"
        )
    return (room[0] - reach[0]) // stride[0] + 1, (room[1] - reach[1]) // stride[1] + 1
