"""Fixed linear maps: average pooling, shapes and joins."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import (
    Case,
    Drawn,
    Refused,
    anything,
    images,
    misused,
    only_images,
    refused_windows,
    small,
    untyped,
    with_arguments,
)
from tests.helpers.cases.select import poolings


@st.composite
def average_poolings(draw: st.DrawFn) -> Drawn:
    """Average pooling, with the padding counted or not."""
    arguments, shapes = draw(poolings())
    return dict(arguments, count_include_pad=draw(st.booleans())), shapes


@st.composite
def concatenations(draw: st.DrawFn) -> Drawn:
    """Two or three inputs with the same pixels and any numbers of channels."""
    first, *others = draw(st.lists(st.integers(1, 6), min_size=2, max_size=3))
    rest = draw(anything)[1:]
    return {}, tuple((channels, *rest) for channels in (first, *others))


@st.composite
def additions(draw: st.DrawFn) -> Drawn:
    """Two or three inputs of one shape."""
    return {}, (draw(anything),) * draw(st.integers(2, 3))


def branches(join: Any, first: list[Any], second: list[Any]) -> Any:
    """A graph that joins two chains of layers on the same input."""
    x = rop.Input()
    a, b = x, x
    for layer in first:
        a = layer(a)
    for layer in second:
        b = layer(b)
    return rop.Graph(x, join(a, b))


avgpool2d = Case(
    "AvgPool2d",
    average_poolings(),
    (
        *(r for r in refused_windows(rop.AvgPool2d) if "(batch, 3" not in r.says),
        *only_images(rop.AvgPool2d, kernel_size=1),
        Refused(lambda: rop.AvgPool2d(2, padding=2), ("AvgPool2d", "padding", "2")),
        Refused(
            lambda: untyped.AvgPool2d(2, count_include_pad="no"),
            ("AvgPool2d", "count_include_pad", "no"),
            error=TypeError,
        ),
    ),
)

adaptiveavgpool2d = Case(
    "AdaptiveAvgPool2d",
    with_arguments(images, output_size=st.just(1) | small | st.tuples(st.integers(1, 9), small)),
    (
        *only_images(rop.AdaptiveAvgPool2d, output_size=1),
        Refused(lambda: rop.AdaptiveAvgPool2d(0), ("AdaptiveAvgPool2d", "output_size", "0")),
        Refused(
            lambda: untyped.AdaptiveAvgPool2d((None, 2)),
            ("AdaptiveAvgPool2d", "output_size", "None"),
            error=TypeError,
        ),
    ),
)

flatten = Case(
    "Flatten",
    with_arguments(anything),
    (*misused(rop.Flatten), Refused(lambda: rop.Flatten(start_dim=0), ("Flatten", "start_dim", "0"))),
)

identity = Case("Identity", with_arguments(anything), misused(rop.Identity))

add = Case(
    "Add",
    additions(),
    (
        Refused(lambda: branches(rop.Add(), [rop.Linear(5, 3)], [rop.Linear(5, 4)]), ("Add", "3", "4"), (5,)),
        Refused(lambda: branches(rop.Add(), [rop.Flatten()], []), ("Add", "12", "(batch, 3, 2, 2)"), (3, 2, 2)),
    ),
)

concat = Case(
    "Concat",
    concatenations(),
    (
        Refused(
            lambda: branches(rop.Concat(), [rop.MaxPool2d(2)], []),
            ("Concat", "(batch, 3, 2, 2)", "(batch, 3, 4, 4)"),
            (3, 4, 4),
        ),
        Refused(lambda: branches(rop.Concat(), [rop.Flatten()], []), ("Concat", "12"), (3, 2, 2)),
    ),
)
