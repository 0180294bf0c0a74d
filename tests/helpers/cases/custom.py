"""Layers with formulas of their own: softmax and normalisations."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import Case, Drawn, Refused, batched, images, misused, untyped, vectors, with_arguments
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


# ------------------------------------------------------------------------------------- statistics of each sample's own
epsilons = st.sampled_from([1e-5, 1e-3, 0.1])


@st.composite
def over_features(draw: st.DrawFn, **options: st.SearchStrategy[Any]) -> Drawn:
    """Layers over all features: enough of them that a sample is not all zeros after its mean is taken away."""
    features = draw(st.integers(3, 70))
    given = {name: draw(option) for name, option in options.items()}
    return {"normalized_shape": features, "eps": draw(epsilons), **given}, ((features,),)


@st.composite
def over_channels(draw: st.DrawFn) -> Drawn:
    """Layers over the channels of each pixel."""
    shape = draw(st.integers(3, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return {"num_channels": shape[0], "eps": draw(epsilons), "affine": draw(st.booleans())}, (shape,)


@st.composite
def over_groups(draw: st.DrawFn) -> Drawn:
    """Layers over groups of channels and their pixels, of images and of vectors."""
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sizes = draw(st.one_of(st.tuples(st.integers(2, 5), st.integers(2, 5)), st.just(())))
    channels = groups * (channels if sizes else channels + 2)
    given = {"num_groups": groups, "num_channels": channels, "eps": draw(epsilons), "affine": draw(st.booleans())}
    return given, ((channels, *sizes),)


@st.composite
def over_pixels(draw: st.DrawFn) -> Drawn:
    """Layers over the pixels of each channel."""
    shape = draw(st.integers(1, 4)), draw(st.integers(2, 5)), draw(st.integers(2, 5))
    return {"num_features": shape[0], "eps": draw(epsilons), "affine": draw(st.booleans())}, (shape,)


def refused_norms(kind: Any, name: str, right: Shape, wrong: Shape, rank: Shape) -> tuple[Refused, ...]:
    """What all of them refuse; ``name`` is the argument with the number of channels."""
    own = kind.__name__
    return (
        Refused(lambda: kind(0), (own, name, "0")),
        Refused(lambda: kind(2.0), (own, name, "2.0"), error=TypeError),
        Refused(lambda: kind(4, eps=-1.0), (own, "eps", "-1")),
        Refused(lambda: kind(right[0]), (own, "expected", batched(wrong)), shape=wrong),
        Refused(lambda: kind(right[0]), (own, "expected", batched(rank)), shape=rank),
    )


layernorm = Case(
    "LayerNorm",
    over_features(elementwise_affine=st.booleans(), bias=st.booleans()),
    (
        *refused_norms(rop.LayerNorm, "normalized_shape", (4,), (5,), (4, 2, 2)),
        Refused(lambda: rop.LayerNorm((4, 2, 2)), ("LayerNorm", "normalized_shape", "(4, 2, 2)", "GroupNorm(1")),
        Refused(lambda: untyped.LayerNorm(4, bias=1), ("LayerNorm", "bias", "1"), error=TypeError),
    ),
)

rmsnorm = Case(
    "RMSNorm",
    over_features(elementwise_affine=st.booleans()),
    refused_norms(rop.RMSNorm, "normalized_shape", (4,), (5,), (4, 2, 2)),
)

layernorm2d = Case(
    "LayerNorm2d", over_channels(), refused_norms(rop.LayerNorm2d, "num_channels", (4, 2, 2), (3, 2, 2), (4,))
)

groupnorm = Case(
    "GroupNorm",
    over_groups(),
    (
        Refused(lambda: rop.GroupNorm(0, 4), ("GroupNorm", "num_groups", "0")),
        Refused(lambda: rop.GroupNorm(2, 0), ("GroupNorm", "num_channels", "0")),
        Refused(lambda: rop.GroupNorm(3, 4), ("GroupNorm", "num_groups", "4", "3")),
        Refused(lambda: rop.GroupNorm(2, 4, eps=0.0), ("GroupNorm", "eps", "0")),
        Refused(lambda: rop.GroupNorm(2, 4), ("GroupNorm", "expected", "(batch, 6, 2, 2)"), shape=(6, 2, 2)),
        Refused(lambda: rop.GroupNorm(2, 4), ("GroupNorm", "expected", "(batch, 6)"), shape=(6,)),
    ),
)

instancenorm2d = Case(
    "InstanceNorm2d",
    over_pixels(),
    refused_norms(rop.InstanceNorm2d, "num_features", (4, 2, 2), (3, 2, 2), (4,)),
)
