"""Layers with formulas of their own: softmax and batch normalisation."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import Case, Drawn, Refused, batched, images, misused, vectors, with_arguments
from tests.helpers.zoo import Shape


@st.composite
def batchnorms(draw: st.DrawFn, shapes: st.SearchStrategy[Shape]) -> Drawn:
    """Batchnorm layers with and without parameters."""
    shape = draw(shapes)
    eps = draw(st.sampled_from([1e-5, 1e-3, 0.1]))
    return {"num_features": shape[0], "eps": eps, "affine": draw(st.booleans())}, (shape,)


softmaxes = st.one_of(
    with_arguments(vectors, dim=st.sampled_from([None, 1, -1])), with_arguments(images, dim=st.sampled_from([None, 1]))
)


def refused_batchnorms(kind: Any, right: Shape, wrong: Shape, rank: Shape) -> tuple[Refused, ...]:
    """What both batchnorms refuse."""
    name = kind.__name__
    return (
        Refused(lambda: kind(0), (name, "num_features", "0")),
        Refused(lambda: kind(-4), (name, "num_features", "-4")),
        Refused(lambda: kind(2.0), (name, "num_features", "2.0"), error=TypeError),
        Refused(lambda: kind(4, eps=-1.0), (name, "eps", "-1")),
        Refused(lambda: kind(right[0]), (name, "expected", batched(wrong)), shape=wrong),
        Refused(lambda: kind(right[0]), (name, "expected", batched(rank)), shape=rank),
    )


def refused_softmaxes(kind: Any) -> tuple[Refused, ...]:
    """What Softmax and LogSoftmax refuse: any axis but that of the classes."""
    name = kind.__name__
    return (
        *misused(kind),
        Refused(lambda: kind(dim=0), (name, "dim", "0")),
        Refused(lambda: kind(dim=2), (name, "dim", "2")),
        Refused(lambda: kind(dim=-1), (name, "expected", "(batch, 3, 2, 2)"), shape=(3, 2, 2)),
    )


softmax = Case("Softmax", softmaxes, refused_softmaxes(rop.Softmax))

logsoftmax = Case("LogSoftmax", softmaxes, refused_softmaxes(rop.LogSoftmax))

batchnorm1d = Case(
    "BatchNorm1d",
    batchnorms(vectors),
    refused_batchnorms(rop.BatchNorm1d, (4,), (5,), (4, 2, 2)),
    least_batch=5,
)

batchnorm2d = Case(
    "BatchNorm2d",
    batchnorms(images),
    refused_batchnorms(rop.BatchNorm2d, (4, 2, 2), (3, 2, 2), (4,)),
    least_batch=5,
)
