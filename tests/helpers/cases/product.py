"""Products of two values."""

from __future__ import annotations

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import Case, Drawn, Refused, images, vectors
from tests.helpers.cases.linear import branches


@st.composite
def factors(draw: st.DrawFn) -> Drawn:
    """Two shapes, in any order: one of a value and one that is repeated for its channels, its pixels, all or nothing;
    or one of channels and one of pixels, which are both repeated."""
    shape = draw(st.one_of(vectors, images))
    if len(shape) == 1:
        return {}, tuple(draw(st.permutations([shape, draw(st.sampled_from([shape, (1,), (1, 1, 1)]))])))
    channels, *pixels = shape
    by_channel, by_pixel = [(channels,), (channels, 1, 1)], [(1, *pixels)]
    whole = draw(st.sampled_from([shape, shape, shape, *by_pixel]))
    part = draw(st.sampled_from([shape, *by_channel, *by_pixel, (1,), (1, 1, 1)]))
    return {}, tuple(draw(st.permutations([whole, part])))


mul = Case(
    "Mul",
    factors(),
    (
        Refused(lambda: rop.Mul()(rop.Input()), ("Mul", "expected 2", "got 1")),
        Refused(lambda: rop.Mul()(rop.Input(), rop.Input(), rop.Input()), ("Mul", "expected 2", "got 3")),
        Refused(
            lambda: branches(rop.Mul(), [rop.Linear(5, 3)], [rop.Linear(5, 4)]),
            ("Mul", "(batch, 3)", "(batch, 4)", "single channel"),
            (5,),
        ),
        Refused(
            lambda: branches(rop.Mul(), [rop.Flatten()], []), ("Mul", "(batch, 12)", "(batch, 3, 2, 2)"), (3, 2, 2)
        ),
        Refused(
            lambda: branches(rop.Mul(), [rop.MaxPool2d(2)], []),
            ("Mul", "(batch, 3, 2, 2)", "(batch, 3, 4, 4)"),
            (3, 4, 4),
        ),
    ),
)
