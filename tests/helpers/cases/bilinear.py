"""Products of values and parameters: Linear and Conv2d."""

from __future__ import annotations

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import Case, Drawn, Refused, refused_windows, small, untyped, window_sizes


@st.composite
def linears(draw: st.DrawFn) -> Drawn:
    """Linear layers, narrow and wide."""
    features = draw(st.integers(1, 70))
    arguments = {"in_features": features, "out_features": draw(st.integers(1, 40)), "bias": draw(st.booleans())}
    return arguments, ((features,),)


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Convolutions with everything odd: unequal kernels, strides beyond the kernel, dilation, groups, depthwise."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inner, outer = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kernel, padding = draw(st.tuples(small, small)), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    stride, dilation = draw(st.tuples(small, small)), draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    if draw(st.booleans()):
        padding, stride, dilation = (padding[0],) * 2, (stride[0],) * 2, (1, 1)
    arguments = {
        "in_channels": groups * inner,
        "out_channels": groups * outer,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    return arguments, ((groups * inner, *window_sizes(draw, kernel, padding, dilation)),)


@st.composite
def usual_convolutions(draw: st.DrawFn) -> Drawn:
    """The convolutions that networks are made of: 1×1, 3×3 and 5×5, full or depthwise, given by plain integers."""
    kernel, channels = draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 9))
    groups = draw(st.sampled_from([1, channels]))
    stride, padding = draw(st.sampled_from([(1, kernel // 2), (2, kernel // 2), (1, "same"), (1, "valid")]))
    arguments = {
        "in_channels": channels,
        "out_channels": groups * draw(st.integers(1, 9 if groups == 1 else 2)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "groups": groups,
    }
    sizes = st.integers(kernel if padding == "valid" else 1, 8)
    return arguments, ((channels, draw(sizes), draw(sizes)),)


linear = Case(
    "Linear",
    linears(),
    (
        Refused(lambda: rop.Linear(0, 3), ("Linear", "in_features", "0")),
        Refused(lambda: rop.Linear(-2, 3), ("Linear", "in_features", "-2")),
        Refused(lambda: rop.Linear(3, 0), ("Linear", "out_features", "0")),
        Refused(lambda: rop.Linear(3, -1), ("Linear", "out_features", "-1")),
        Refused(lambda: untyped.Linear(3.5, 1), ("Linear", "in_features", "3.5"), error=TypeError),
        Refused(lambda: untyped.Linear("3", 1), ("Linear", "in_features", "3"), error=TypeError),
        Refused(lambda: rop.Linear(4, 3), ("Linear", "expected", "(batch, 4)", "(batch, 5)"), shape=(5,)),
        Refused(lambda: rop.Linear(4, 3), ("Linear", "expected", "(batch, 4, 1, 1)"), shape=(4, 1, 1)),
    ),
)

conv2d = Case(
    "Conv2d",
    st.one_of(convolutions(), usual_convolutions()),
    (
        *refused_windows(rop.Conv2d, in_channels=3, out_channels=2),
        Refused(lambda: rop.Conv2d(0, 2, 3), ("Conv2d", "in_channels", "0")),
        Refused(lambda: rop.Conv2d(2, -1, 3), ("Conv2d", "out_channels", "-1")),
        Refused(lambda: rop.Conv2d(2, 2, 3, dilation=0), ("Conv2d", "dilation", "0")),
        Refused(lambda: rop.Conv2d(2, 2, 3, groups=0), ("Conv2d", "groups", "0")),
        Refused(lambda: rop.Conv2d(3, 2, 3, groups=2), ("Conv2d", "groups", "2", "3")),
        Refused(lambda: rop.Conv2d(2, 3, 3, groups=2), ("Conv2d", "groups", "2", "3")),
        Refused(lambda: rop.Conv2d(2, 2, 3, padding="full"), ("Conv2d", "padding", "full")),
        Refused(lambda: rop.Conv2d(2, 2, 3, stride=2, padding="same"), ("Conv2d", "same", "stride", "2")),
        Refused(lambda: untyped.Conv2d(2, 2, 3, bias=1), ("Conv2d", "bias", "1"), error=TypeError),
        Refused(lambda: rop.Conv2d(3, 2, 1), ("Conv2d", "expected", "3", "(batch, 4, 5, 5)"), shape=(4, 5, 5)),
    ),
)
