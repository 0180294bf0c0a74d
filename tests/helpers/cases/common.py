"""What a case is, and the shapes and refusals that several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rop
from tests.helpers.zoo import Shape

Drawn = tuple[dict[str, Any], tuple[Shape, ...]]  # constructor arguments, shapes of the inputs
DrawnLoss = tuple[dict[str, Any], Shape, Callable[[int, int], np.ndarray]]  # arguments, outputs' shape, targets

untyped: Any = rop  # for calls that a type checker would refuse too


@dataclass(frozen=True)
class Refused:
    """Something that must raise an error of the package, and words its message must contain.

    `make` builds a layer, a network or a loss. If it returns, the error must come when an objective is made of it with
    data of the given shape (networks and layers) or with the given outputs' shape and targets (losses).
    """

    make: Callable[[], Any]
    says: tuple[str, ...]
    shape: Shape | None = None
    target: Any = None
    error: type[Exception] = ValueError


@dataclass(frozen=True)
class Case:
    """A layer: how to draw its arguments and input shapes (without batch), and what it must refuse."""

    name: str
    drawn: st.SearchStrategy[Drawn]
    refused: tuple[Refused, ...]
    least_batch: int = 1


@dataclass(frozen=True)
class LossCase:
    """A loss: how to draw its arguments, the outputs' shape (without batch) and targets, and what it must refuse.

    `drawn` gives (arguments, shape, target), target being a function (seed, batch) → array.
    """

    name: str
    drawn: st.SearchStrategy[DrawnLoss]
    refused: tuple[Refused, ...]


def made(case: Case, arguments: dict[str, Any]) -> Any:
    """The layer with drawn arguments; ``parameters`` are positional ones."""
    kind: Any = rop.layers.LAYERS[case.name]
    if "function" in arguments:
        return kind(arguments["function"], *arguments.get("parameters", ()))
    return kind(**arguments)


# --------------------------------------------------------------------------------------------------------------- shapes
vectors = st.tuples(st.integers(1, 24))
images = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7))
anything = st.one_of(vectors, images)
small = st.integers(1, 4)


def with_arguments(shapes: st.SearchStrategy[Shape], **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Drawn]:
    """Arguments and one input shape, drawn independently of each other."""
    return st.tuples(st.fixed_dictionaries(arguments), shapes.map(lambda shape: (shape,)))


def window_sizes(draw: st.DrawFn, kernel: Shape, padding: Shape, dilation: Shape = (1, 1)) -> Shape:
    """Heights and widths that hold the window at least once."""
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    return tuple(draw(st.integers(size, size + 5)) for size in least)


def batched(shape: Shape) -> str:
    """A shape as messages write it."""
    return f"({', '.join(['batch', *map(str, shape)])})"


# ---------------------------------------------------------------------------------------------------------- refusals
def misused(kind: Any) -> tuple[Refused, ...]:
    """Layers on one value refuse two, and arrays in the place of nodes."""
    name = kind.__name__
    return (
        Refused(lambda: kind()(rop.Input(), rop.Input()), (name, "expected 1", "got 2")),
        Refused(lambda: kind()(np.zeros((2, 3))), (name, "ndarray"), error=TypeError),
    )


def refused_windows(kind: Any, **least: Any) -> tuple[Refused, ...]:
    """What every sliding window refuses, whichever layer it belongs to."""
    name = kind.__name__
    return (
        Refused(lambda: kind(**least, kernel_size=0), (name, "kernel_size", "0")),
        Refused(lambda: kind(**least, kernel_size=-3), (name, "kernel_size", "-3")),
        Refused(lambda: kind(**least, kernel_size=(3, 0)), (name, "kernel_size", "0")),
        Refused(lambda: kind(**least, kernel_size=(3, 3, 3)), (name, "kernel_size", "(3, 3, 3)")),
        Refused(lambda: kind(**least, kernel_size="big"), (name, "kernel_size", "big"), error=TypeError),
        Refused(lambda: kind(**least, kernel_size=2.5), (name, "kernel_size", "2.5"), error=TypeError),
        Refused(lambda: kind(**least, kernel_size=3, stride=0), (name, "stride", "0")),
        Refused(lambda: kind(**least, kernel_size=3, stride=(1, -1)), (name, "stride", "-1")),
        Refused(lambda: kind(**least, kernel_size=3, padding=-1), (name, "padding", "-1")),
        Refused(lambda: kind(**least, kernel_size=5), (name, "5", "(batch, 3, 4, 9)"), shape=(3, 4, 9)),
        Refused(lambda: kind(**least, kernel_size=2), (name, "expected", "(batch, 3", "(batch, 12)"), shape=(12,)),
    )


def only_images(kind: Any, **arguments: Any) -> tuple[Refused, ...]:
    """Layers on images refuse vectors and volumes."""
    name = kind.__name__
    return (
        Refused(lambda: kind(**arguments), (name, "expected", "(batch, 12)"), shape=(12,)),
        Refused(lambda: kind(**arguments), (name, "expected", "(batch, 1, 2, 3, 4)"), shape=(1, 2, 3, 4)),
    )
