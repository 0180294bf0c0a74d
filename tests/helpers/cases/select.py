"""Layers that pick a map at order 0: rectifiers and maximum pooling."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import (
    Case,
    Drawn,
    Refused,
    anything,
    misused,
    only_images,
    refused_windows,
    small,
    untyped,
    window_sizes,
    with_arguments,
)


@st.composite
def poolings(draw: st.DrawFn) -> Drawn:
    """Pooling windows that overlap, touch, leave gaps or reach beyond the image, with padding up to half the window."""
    kernel = draw(st.tuples(small, small))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    arguments: dict[str, Any] = {"kernel_size": kernel, "padding": padding, "ceil_mode": draw(st.booleans())}
    if draw(st.booleans()):
        arguments["stride"] = draw(st.tuples(small, small))
    if kernel[0] == kernel[1] and padding[0] == padding[1] and draw(st.booleans()):
        arguments.update(kernel_size=kernel[0], padding=padding[0])
    return arguments, ((draw(st.integers(1, 4)), *window_sizes(draw, kernel, padding)),)


maxpool2d = Case(
    "MaxPool2d",
    poolings(),
    (
        *(r for r in refused_windows(rop.MaxPool2d) if "(batch, 3" not in r.says),
        *only_images(rop.MaxPool2d, kernel_size=1),
        Refused(lambda: rop.MaxPool2d(2, padding=2), ("MaxPool2d", "padding", "2")),
        Refused(lambda: untyped.MaxPool2d(2, ceil_mode=1), ("MaxPool2d", "ceil_mode", "1"), error=TypeError),
    ),
)

relu = Case("ReLU", with_arguments(anything), misused(rop.ReLU))

leakyrelu = Case(
    "LeakyReLU",
    with_arguments(anything, negative_slope=st.sampled_from([0.0, 0.01, 0.3, -0.5])),
    (
        Refused(lambda: untyped.LeakyReLU("steep"), ("LeakyReLU", "negative_slope", "steep"), error=TypeError),
        Refused(lambda: rop.LeakyReLU(float("nan")), ("LeakyReLU", "negative_slope", "nan")),
    ),
)
