"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import rop
from tests.helpers.cases.common import DrawnLoss, LossCase, Refused, anything, untyped
from tests.helpers.zoo import Shape

reductions = st.sampled_from(["mean", "sum"])
class_shapes = st.tuples(st.integers(2, 9)) | st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))


@st.composite
def class_targets(draw: st.DrawFn) -> DrawnLoss:
    """Class indices, some of them ignored, with or without class weights; one label per sample or per pixel."""
    shape = draw(class_shapes)
    arguments: dict[str, Any] = {"reduction": draw(reductions)}
    if draw(st.booleans()):
        arguments["weight"] = np.random.default_rng(draw(st.integers(0, 99))).uniform(0.2, 2.0, shape[0])
    ignored = draw(st.sampled_from([None, -100, 0, 255]))
    if ignored is not None:
        arguments["ignore_index"] = ignored

    def target(seed: int, batch: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        y = rng.integers(0, shape[0], (batch, *shape[1:]))
        if ignored is not None:
            y[rng.random(y.shape) < 0.3] = ignored
            y.flat[0] = shape[0] - 1  # at least one label counts: the mean over none is not a number
        return y

    return arguments, shape, target


@st.composite
def smoothed_targets(draw: st.DrawFn) -> DrawnLoss:
    """Class indices with label smoothing."""
    arguments, shape, target = draw(class_targets())
    return dict(arguments, label_smoothing=draw(st.sampled_from([0.1, 0.5, 1.0]))), shape, target


@st.composite
def probability_targets(draw: st.DrawFn) -> DrawnLoss:
    """A probability for every class instead of an index."""
    shape = draw(class_shapes)
    arguments: dict[str, Any] = {"reduction": draw(reductions), "label_smoothing": draw(st.sampled_from([0.0, 0.2]))}
    if draw(st.booleans()):
        arguments["weight"] = np.random.default_rng(draw(st.integers(0, 99))).uniform(0.2, 2.0, shape[0])

    def target(seed: int, batch: int) -> np.ndarray:
        raw = np.random.default_rng(seed).uniform(0.0, 1.0, (batch, *shape))
        return raw / raw.sum(axis=1, keepdims=True)

    return arguments, shape, target


def float_targets(least: float, most: float, **options: st.SearchStrategy[Any]) -> Any:
    """Targets of the outputs' own shape, and arguments of the loss."""

    def target(shape: Shape) -> Callable[[int, int], np.ndarray]:
        return lambda seed, batch: np.random.default_rng(seed).uniform(least, most, (batch, *shape))

    arguments = st.fixed_dictionaries({"reduction": reductions, **options})
    return st.tuples(arguments, anything).map(lambda drawn: (*drawn, target(drawn[1])))


@st.composite
def binary_targets(draw: st.DrawFn) -> DrawnLoss:
    """Targets in [0, 1], some of them unknown, with or without weights of the ones."""
    shape = draw(anything)
    arguments: dict[str, Any] = {"reduction": draw(reductions)}
    per_output = (shape[0], *[1] * (len(shape) - 1))
    size: tuple[int, ...] | None = draw(st.sampled_from([None, (), (1,), per_output]))
    if size is not None:
        arguments["pos_weight"] = np.random.default_rng(draw(st.integers(0, 99))).uniform(0.0, 4.0, size)
    unknown, whole = draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])), draw(st.booleans())

    def target(seed: int, batch: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        t = rng.uniform(0.0, 1.0, (batch, *shape))
        return np.where(rng.random(t.shape) < unknown, np.nan, np.round(t) if whole else t)

    return arguments, shape, target


def refused_reductions(kind: Any) -> tuple[Refused, ...]:
    """Every loss refuses a reduction it does not know."""
    name = kind.__name__
    return (
        Refused(lambda: kind(reduction="median"), (name, "reduction", "median")),
        Refused(lambda: kind(reduction="none"), (name, "reduction", "none")),
        Refused(lambda: kind(reduction=3), (name, "reduction", "3"), error=Exception),
    )


def refused_labels(kind: Any) -> tuple[Refused, ...]:
    """What both losses on class indices refuse. Outputs are (2, 3): two samples, three classes."""
    name = kind.__name__
    return (
        *refused_reductions(kind),
        Refused(kind, (name, "3"), (3,), np.array([0, 3])),
        Refused(kind, (name, "-1"), (3,), np.array([-1, 0])),
        Refused(kind, (name, "(2,)", "(3,)"), (3,), np.array([0, 1, 2])),
        Refused(kind, (name, "(2,)", "(2, 2)"), (3,), np.array([[0, 1], [1, 0]])),
        Refused(kind, (name, "float64"), (3,), np.array([0.0, 1.0]), Exception),
        Refused(kind, (name, "complex"), (3,), np.array([0j, 1j]), TypeError),
        Refused(kind, (name,), (3,), np.array(["cat", "dog"]), TypeError),
        Refused(kind, (name, "object"), (3,), np.array([0, None]), TypeError),
        Refused(lambda: kind(weight=np.ones(4)), (name, "weight", "3", "4"), (3,), np.array([0, 1])),
        Refused(lambda: kind(weight=np.array([1.0, -1.0, 1.0])), (name, "weight", "-1")),
        Refused(lambda: kind(weight=np.ones((3, 1))), (name, "weight", "(3, 1)")),
        Refused(lambda: kind(ignore_index=1.5), (name, "ignore_index", "1.5"), error=TypeError),
    )


def refused_shapes(kind: Any) -> tuple[Refused, ...]:
    """Losses with targets of the outputs' shape never broadcast. Outputs are (2, 3)."""
    name = kind.__name__
    return (
        *refused_reductions(kind),
        Refused(kind, (name, "(2, 3)", "(2, 1)"), (3,), np.zeros((2, 1))),
        Refused(kind, (name, "(2, 3)", "(2,)"), (3,), np.zeros(2)),
        Refused(kind, (name, "(2, 3)", "(3, 3)"), (3,), np.zeros((3, 3))),
        Refused(kind, (name, "int"), (3,), np.zeros((2, 3), int), TypeError),
        Refused(kind, (name, "complex"), (3,), np.zeros((2, 3), complex), TypeError),
        Refused(kind, (name, "object"), (3,), np.full((2, 3), None), TypeError),
        Refused(kind, (name,), (3,), np.full((2, 3), "a"), TypeError),
        Refused(kind, (name, "inf"), (3,), np.full((2, 3), np.inf)),
    )


crossentropy = LossCase(
    "CrossEntropy",
    st.one_of(class_targets(), smoothed_targets(), probability_targets()),
    (
        *refused_labels(rop.CrossEntropy),
        Refused(lambda: rop.CrossEntropy(label_smoothing=-0.1), ("CrossEntropy", "label_smoothing", "-0.1")),
        Refused(lambda: rop.CrossEntropy(label_smoothing=1.1), ("CrossEntropy", "label_smoothing", "1.1")),
        Refused(rop.CrossEntropy, ("CrossEntropy", "(2, 3)", "(2, 2)"), (3,), np.full((2, 2), 0.5)),
        Refused(rop.CrossEntropy, ("CrossEntropy", "nan"), (3,), np.full((2, 3), np.nan)),
    ),
)

nll = LossCase("NLL", class_targets(), refused_labels(rop.NLL))

mse = LossCase(
    "MSE",
    float_targets(-2.0, 2.0),
    (*refused_shapes(rop.MSE), Refused(rop.MSE, ("MSE", "nan"), (3,), np.full((2, 3), np.nan))),
)

bcewithlogits = LossCase(
    "BCEWithLogits",
    binary_targets(),
    (
        *refused_shapes(rop.BCEWithLogits),
        Refused(rop.BCEWithLogits, ("BCEWithLogits", "[0, 1]", "1.5"), (3,), np.full((2, 3), 1.5)),
        Refused(rop.BCEWithLogits, ("BCEWithLogits", "[0, 1]", "-0.5"), (3,), np.full((2, 3), -0.5)),
        Refused(
            lambda: rop.BCEWithLogits(pos_weight=np.ones(4)),
            ("BCEWithLogits", "pos_weight", "(3,)", "(4,)"),
            (3,),
            np.zeros((2, 3)),
        ),
        Refused(lambda: rop.BCEWithLogits(pos_weight=-1.0), ("BCEWithLogits", "pos_weight", "-1")),
        Refused(lambda: rop.BCEWithLogits(pos_weight=[1.0, np.nan]), ("BCEWithLogits", "pos_weight", "nan")),
    ),
)

l1 = LossCase("L1", float_targets(-2.0, 2.0), refused_shapes(rop.L1))

smoothl1 = LossCase(
    "SmoothL1",
    float_targets(-2.0, 2.0, beta=st.sampled_from([1.0, 0.25, 3, 0.0])),
    (*refused_shapes(rop.SmoothL1), Refused(lambda: rop.SmoothL1(beta=-1.0), ("SmoothL1", "beta", "at least 0", "-1"))),
)

huber = LossCase(
    "Huber",
    float_targets(-2.0, 2.0, delta=st.sampled_from([1.0, 0.25, 3])),
    (*refused_shapes(rop.Huber), Refused(lambda: rop.Huber(delta=0.0), ("Huber", "delta", "above 0", "0"))),
)

poissonnll = LossCase("PoissonNLL", float_targets(0.0, 5.0), refused_shapes(rop.PoissonNLL))

kldiv = LossCase(
    "KLDiv",
    float_targets(0.0, 1.0, log_target=st.booleans(), reduction=st.sampled_from(["mean", "sum", "batchmean"])),
    (
        *refused_shapes(rop.KLDiv),
        Refused(rop.KLDiv, ("KLDiv", "at least 0", "-0.5"), (3,), np.full((2, 3), -0.5)),
        Refused(lambda: untyped.KLDiv(log_target="yes"), ("KLDiv", "log_target", "yes")),
    ),
)
