"""Losses: the last node of a net. They report E⁰, E¹, E² and seed the backward pass with g⁰, g¹, g² (g = ∂E/∂z).

z (K classes or features) is the net's output for one sample, or for one pixel of it; E sums over samples and pixels.
κ is 1 for reduction "sum" and 1/total for "mean". The paper writes g = e(y), R{g} = e′ R{y} and
R²{g} = e″ (R{y})² + e′ R²{y} for a separable loss; cross-entropy couples the classes, so e′ and e″ become a matrix and
a cube, written out here through the jets of l = log softmax(z) and p = softmax(z), which softmax.py states.

CrossEntropy, with one non-negative number q_c per class and ω = Σ_c q_c:

    E⁰ = −κ Σ ⟨q, l⁰⟩                     E¹ = −κ Σ ⟨q, l¹⟩          E² = −κ Σ ⟨q, l²⟩
    g⁰ = κ (ω p⁰ − q)                     g¹ = κ ω p¹                g² = κ ω p²
    l¹ = z¹ − ⟨p⁰, z¹⟩                    l² = z² − ⟨p⁰, z²⟩ − ⟨p⁰, (l¹)²⟩
    p¹ = p⁰ ⊙ l¹ = e′ z¹                  p² = p⁰ ⊙ ((l¹)² + l²)     e′ = diag(p⁰) − p⁰ p⁰ᵀ

    class y with weight w_y:                     q = w_y 1[c = y]                          total = Σ w_y
    class y, label smoothing ε:                  q = (1 − ε) w_y 1[c = y] + ε w_c / K      total = Σ w_y
    probabilities t_c (ε as above):              q = w_c ((1 − ε) t_c + ε / K)             total = samples · pixels

NLL takes log-probabilities (after LogSoftmax) and is linear in them, with ω = w_y and total = Σ ω:

    E⁰ = −κ Σ ω z⁰_y                      E¹ = −κ Σ ω z¹_y           E² = −κ Σ ω z²_y
    g⁰ = −κ ω 1[c = y]                    g¹ = 0                     g² = 0

MSE, with d = z⁰ − t and total = all numbers of the output:

    E⁰ = κ Σ d²                           E¹ = 2κ Σ d z¹             E² = 2κ Σ ((z¹)² + d z²)
    g⁰ = 2κ d                             g¹ = 2κ z¹                 g² = 2κ z²

BCEWithLogits, with s the sigmoid of z⁰ and s′, s″ its derivatives (elementwise.py). A number with target t and positive
weight p has b = p t, which counts for a 1, c = 1 − t, which counts for a 0, and a = b + c; a target that is NaN is
unknown and has a = b = c = 0; total = the number of known targets:

    E⁰ = κ Σ (b log(1 + e^−z⁰) + c log(1 + e^z⁰))
    E¹ = κ Σ (a s − b) z¹                 E² = κ Σ (a s′ (z¹)² + (a s − b) z²)
    g⁰ = κ (a s − b)                      g¹ = κ a s′ z¹             g² = κ a (s″ (z¹)² + s′ z²)

A separable loss is a sum over the numbers of the output, E = κ Σ l(z, t), with total = all of them. One scalar function
says what it is: it returns l and its derivatives l′, l″, l‴ in z, all taken at z⁰.

    E⁰ = κ Σ l                            E¹ = κ Σ l′ z¹             E² = κ Σ (l″ (z¹)² + l′ z²)
    g⁰ = κ l′                             g¹ = κ l″ z¹               g² = κ (l‴ (z¹)² + l″ z²)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from rop.arguments import as_array, check_choice, check_float, check_fraction, check_int, shown
from rop.errors import ArgumentError, ArgumentTypeError
from rop.layers import record
from rop.layers.base import Immutable, Shape
from rop.layers.elementwise import Derivatives, Scalar, softplus

# ---- what one number of the output contributes, in Taylor coefficients (see jet.py) ---------------------------------


def residual(prediction: float, target: float) -> float:
    """z − t of MSE, a s − b of BCEWithLogits, ω p − q of CrossEntropy."""
    return prediction - target


def surprise(z: float, largest: float, log_total: float) -> float:
    """−l_c of a class with output z, where largest = max z and log_total = log Σ e^(z − largest): finite also where
    p_c = 0 in floating point."""
    return largest - z + log_total


def square_energy(omega: float, d: float) -> float:
    """E_0 of MSE for d = z − t; ω is κ, or 0 for padding."""
    return omega * d * d


def square_seed(omega: float, d: float) -> float:
    """g_k of MSE, where d is z − t at order 0 and z_k later."""
    return 2 * omega * d


def binary_energy(z: float, b: float, c: float) -> float:
    """E_0 of BCEWithLogits: b log(1 + e^−z) + c log(1 + e^z), from log(1 + e^−|z|), so that nothing cancels."""
    both, _, _, _ = softplus(-abs(z), 1, 1000)
    return b * (both + max(-z, 0.0)) + c * (both + max(z, 0.0))


def energy_2(g1_z1: float, g0_z2: float) -> float:
    """E_2 = ⟨g_1, z_1⟩/2 + ⟨g_0, z_2⟩ from its two products: the chain rule at the output, as is E_1 = ⟨g_0, z_1⟩."""
    return g1_z1 / 2 + g0_z2


# ---- separable losses: (l, l′, l″, l‴) in z at an output z and its target t ------------------------------------------
#
# Some are made of pieces. At a seam the derivatives are those that torch returns there.


def sign(d: float) -> float:
    """1, −1, or 0 at 0; what is not a number stays none."""
    return 1.0 if d > 0 else -1.0 if d < 0 else d


def absolute_error(z: float, t: float) -> Derivatives:
    """l = |d| with d = z − t; l′ = sign d, 0 at 0."""
    d = z - t
    return abs(d), sign(d), 0.0, 0.0


def smooth_error(z: float, t: float, beta: float) -> Derivatives:
    """l = d²/2β where |d| < β, d = z − t, and |d| − β/2 elsewhere; l′ = d/β or sign d, l″ = 1/β or 0."""
    d = z - t
    near = abs(d) < beta
    l0 = 0.5 * d * d / beta if near else abs(d) - 0.5 * beta
    return l0, d / beta if near else sign(d), 1 / beta if near else 0.0, 0.0


def huber_error(z: float, t: float, delta: float) -> Derivatives:
    """l = d²/2 where |d| < δ, d = z − t, and δ (|d| − δ/2) elsewhere; l′ = d or ±δ, l″ = 1 or 0."""
    d = z - t
    near = abs(d) < delta
    l0 = 0.5 * d * d if near else delta * (abs(d) - 0.5 * delta)
    return l0, d if near else delta * sign(d), 1.0 if near else 0.0, 0.0


def poisson_surprise(z: float, t: float) -> Derivatives:
    """l = eᶻ − t z; l′ = eᶻ − t, l″ = l‴ = eᶻ."""
    y = math.exp(z)
    return y - t * z, y - t, y, y


def divergence(z: float, t: float) -> Derivatives:
    """l = t (log t − z), 0 for t = 0; l′ = −t."""
    return (t * (math.log(t) - z) if t > 0 else 0.0), -t, 0.0, 0.0


@dataclass(frozen=True)
class Targets:
    """Targets of one batch, checked and in the form in which the kernels read them; P is the number of pixels.

    Exactly one of ``labels`` (class y per pixel) and ``dense`` (q or t above) is there. BCEWithLogits has two numbers
    for each output, b and c above, and its ω is the mean of a over the outputs of a pixel.
    """

    labels: np.ndarray | None  # (batch, P) int64
    dense: np.ndarray | None  # (batch, *output_shape); b and c: (batch, 2, *output_shape)
    weight: np.ndarray  # (batch, P), ω
    shares: np.ndarray  # (batch,) float64, what each sample adds to the total

    def of(self, rows: np.ndarray) -> Targets:
        """The targets of some samples."""
        labels, dense = (None if array is None else array[rows] for array in (self.labels, self.dense))
        return Targets(labels, dense, self.weight[rows], self.shares[rows])

    @property
    def total(self) -> float:
        """1/κ for any other reduction than "sum"."""
        return float(self.shares.sum())

    def scale(self, reduction: str) -> float:
        """κ. The mean over no target at all is 0, and so are its derivatives."""
        if reduction == "sum":
            return 1.0
        return 1.0 / self.total if self.total > 0 else 0.0


class Loss(Immutable):
    """A scalar function of a net's outputs and the targets."""

    reduction: str
    reductions: tuple[str, ...] = ("mean", "sum")

    def __init__(self, reduction: str = "mean") -> None:
        self._set(reduction=check_choice(type(self).__name__, "reduction", reduction, self.reductions))

    def targets(self, y: Any, batch: int, output_shape: Shape, dtype: Any) -> Targets:
        """Check the targets of a batch against the net's output and bring them into their final form."""
        owner = type(self).__name__
        if batch < 1:
            raise ArgumentError(f"{owner}: expected at least one sample, got an empty batch")
        y = as_array(f"{owner}: y", y, "targets as an array")
        return self._targets(y, (batch, *output_shape), np.dtype(dtype))

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        """``shape`` is that of the outputs, with the batch."""
        self._refuse("which targets it takes")

    def value(self, outputs: np.ndarray, y: Any) -> float:
        """E⁰ of outputs (batch, ...) that are there already, in float64.

        >>> MSE().value(np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]))
        2.5
        """
        z = as_array("outputs", outputs)
        if z.dtype.kind not in "fiu" or z.ndim < 2:
            raise ArgumentTypeError(f"outputs: expected numbers (batch, ...), got {z.dtype} of shape {z.shape}")
        z = z.astype(np.float64)
        targets = self.targets(y, len(z), z.shape[1:], np.float64)
        return self._energy(z, targets) * targets.scale(self.reduction)

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        """E⁰ with κ = 1."""
        self._refuse("how it is computed")

    def _refuse(self, what: str) -> NoReturn:
        *others, last = record.LOSSES
        raise ArgumentTypeError(
            f"{type(self).__name__}: a class derived from rop.Loss does not say {what}, and rop has formulas for its "
            f"own losses only; use rop.{', '.join(others)} or {last} behind layers of your own"
        )


# ---- the distributions whose negative log-likelihood a loss is: (outputs z, rng) ↦ targets ---------------------------


def class_targets(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Classes (batch, ...) with the probabilities softmax(z)."""
    by_class = np.ascontiguousarray(np.moveaxis(z, 1, 0))
    upto = np.add.accumulate(np.exp(by_class - by_class.max(axis=0)))
    level = rng.random(upto.shape[1:]) * upto[-1]
    return (upto[:-1] <= level).sum(axis=0)


def binary_targets(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """1 with the probability sigmoid(z), else 0."""
    return (rng.random(z.shape) < 0.5 * (1 + np.tanh(z / 2))).astype(np.float64)


def laplace_targets(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Around z with the density e^−|t − z| / 2, whose negative log-likelihood is the absolute error."""
    return z + rng.laplace(size=z.shape)


def poisson_targets(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts of events of which e^z are expected."""
    return rng.poisson(np.exp(z)).astype(np.float64)


def normal_targets(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal around z with variance ½, whose negative log-likelihood is the squared error."""
    return z + math.sqrt(0.5) * rng.standard_normal(z.shape)


# ---- losses ----------------------------------------------------------------------------------------------------------


class _ClassLoss(Loss):
    """What CrossEntropy and NLL share: class labels, class weights and labels to leave out."""

    weight: np.ndarray | None
    ignore_index: int

    def __init__(self, weight: Any, reduction: str, ignore_index: int) -> None:
        super().__init__(reduction)
        owner = type(self).__name__
        self._set(
            weight=None if weight is None else _class_weight(owner, weight),
            ignore_index=check_int(owner, "ignore_index", ignore_index, minimum=-(2**31)),
        )

    def _weight_for(self, classes: int) -> np.ndarray:
        """One weight per class, ones if none were given."""
        if self.weight is None:
            return np.ones(classes)
        if len(self.weight) != classes:
            raise ArgumentError(
                f"{type(self).__name__}: expected one weight per class, {classes} for this net, got {len(self.weight)}"
            )
        return self.weight

    def _labels(self, y: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Labels (batch, P), and which of them count; those to leave out become 0."""
        owner = type(self).__name__
        _check_labels(owner, y, (shape[0], *shape[2:]))
        kept = y != self.ignore_index
        _check_label_range(owner, y[kept], shape[1])
        labels = np.where(kept, y, 0).astype(np.int64)
        return labels.reshape(shape[0], -1), kept.reshape(shape[0], -1)

    def _label_weights(self, labels: np.ndarray, kept: np.ndarray, classes: int) -> np.ndarray:
        """ω = w_y (batch, P), 0 for labels to leave out."""
        weight = np.where(kept, self._weight_for(classes)[labels], 0.0)
        if weight.sum() == 0 and self.reduction == "mean":
            raise ArgumentError(
                f"{type(self).__name__}: expected at least one label with a weight above 0, got none (ignore_index is "
                f"{self.ignore_index}); the mean over nothing is undefined, use reduction='sum' or other data"
            )
        return weight


@record.loss("cross_entropy", "CrossEntropyLoss", likelihood=class_targets)
class CrossEntropy(_ClassLoss):
    """−log softmax(z) of the true class; softmax is part of the loss, as in torch's CrossEntropyLoss.

    Targets are class indices (batch, ...) of integers, or probabilities of the outputs' shape as floats.

    >>> CrossEntropy().targets([2, 0], batch=2, output_shape=(3,), dtype=np.float32).labels.tolist()
    [[2], [0]]
    """

    label_smoothing: float

    def __init__(
        self, weight: Any = None, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int = -100
    ) -> None:
        super().__init__(weight, reduction, ignore_index)
        self._set(label_smoothing=check_fraction("CrossEntropy", "label_smoothing", label_smoothing))

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        if y.dtype.kind == "f" and y.ndim == len(shape):
            return self._from_probabilities(y, shape, dtype)
        labels, kept = self._labels(y, shape)
        weight = self._label_weights(labels, kept, shape[1])
        if self.label_smoothing == 0:
            return Targets(labels, None, weight.astype(dtype), weight.sum(axis=1))
        return _dense_targets(self._smoothed(labels, kept, weight, shape), weight.sum(axis=1), dtype)

    def _smoothed(self, labels: np.ndarray, kept: np.ndarray, weight: np.ndarray, shape: Shape) -> np.ndarray:
        """q = (1 − ε) w_y 1[c = y] + ε w_c / K, and 0 for labels to leave out."""
        classes, eps = shape[1], self.label_smoothing
        true_class = np.arange(classes)[:, None] == labels[:, None, :]  # (batch, K, P)
        spread = (eps / classes) * self._weight_for(classes)[:, None] * kept[:, None, :]
        return ((1 - eps) * weight[:, None, :] * true_class + spread).reshape(shape)

    def _from_probabilities(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        """q = w_c ((1 − ε) t_c + ε / K)."""
        t = _check_dense("CrossEntropy", y, shape, np.dtype(np.float64))
        if t.min() < 0:
            raise ArgumentError(f"CrossEntropy: expected probabilities of at least 0, got {t.min():g}")
        if self.ignore_index >= 0:
            raise ArgumentError("CrossEntropy: ignore_index works with class indices only, got probabilities")
        classes, eps = shape[1], self.label_smoothing
        per_class = self._weight_for(classes).reshape(-1, *[1] * (len(shape) - 2))
        shares = np.full(shape[0], float(math.prod(shape[2:])))
        return _dense_targets(per_class * ((1 - eps) * t + eps / classes), shares, dtype)

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        top = z.max(axis=1, keepdims=True)
        logs = z - top - np.log(np.exp(z - top).sum(axis=1, keepdims=True))
        return _chosen(logs, targets) if targets.labels is not None else -float((targets.dense * logs).sum())


@record.loss("nll_loss", "NLLLoss", likelihood=class_targets)
class NLL(_ClassLoss):
    """−z_y for log-probabilities z, as torch's NLLLoss; put a LogSoftmax layer before it.

    >>> NLL(weight=[1.0, 3.0]).targets([1, 0], batch=2, output_shape=(2,), dtype=np.float32).total
    4.0
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", ignore_index: int = -100) -> None:
        super().__init__(weight, reduction, ignore_index)

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        labels, kept = self._labels(y, shape)
        weight = self._label_weights(labels, kept, shape[1])
        return Targets(labels, None, weight.astype(dtype), weight.sum(axis=1))

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        return _chosen(z, targets)


class _DenseLoss(Loss):
    """A loss with a target for every number of the output."""

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        dense = _check_dense(type(self).__name__, y, shape, dtype)
        ones = np.ones((shape[0], math.prod(shape[2:])), dtype)
        return Targets(None, dense, ones, np.full(shape[0], float(math.prod(shape[1:]))))


@record.loss("mse_loss", "MSELoss", likelihood=normal_targets)
class MSE(_DenseLoss):
    """(z − t)², as torch's MSELoss; the mean is over samples and features.

    >>> MSE().targets([[0.5, 1.5]], batch=1, output_shape=(2,), dtype=np.float32).total
    2.0
    """

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        return float(((z - targets.dense) ** 2).sum())


class Separable(_DenseLoss):
    """A sum over the numbers of the output: its function of an output, its target and the parameters says all."""

    function: Scalar  # (z, t, *parameters) ↦ (l, l′, l″, l‴)
    parameters: tuple[float, ...] = ()  # at most one
    seams: tuple[float, ...] = ()  # of a function made of pieces: the z − t where one ends

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        assert targets.dense is not None
        pairs = zip(z.ravel().tolist(), targets.dense.ravel().tolist(), strict=True)
        return math.fsum(self._value(*pair) for pair in pairs)

    def _value(self, z: float, t: float) -> float:
        """l in plain Python, which raises an error where the result is too large."""
        try:
            return self.function(z, t, *self.parameters)[0]
        except OverflowError:
            return math.inf


@record.loss("l1_loss", "L1Loss", likelihood=laplace_targets)
class L1(Separable):
    """|z − t|, as torch's L1Loss; the slope at 0 is 0."""

    function = staticmethod(absolute_error)
    seams = (0.0,)


@record.loss("smooth_l1_loss", "SmoothL1Loss")
class SmoothL1(Separable):
    """(z − t)²/2β where |z − t| < β, |z − t| − β/2 elsewhere, as torch's SmoothL1Loss; for β = 0 it is L1.

    >>> SmoothL1(beta=2.0).value(np.array([[1.0, 4.0]]), np.array([[0.0, 0.0]]))       # (1/4 + (4 − 1)) / 2
    1.625
    """

    function = staticmethod(smooth_error)
    beta: float

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        beta = check_float("SmoothL1", "beta", beta, minimum=0.0)
        self._set(beta=beta, parameters=(beta,), seams=(-beta, beta))


@record.loss("huber_loss", "HuberLoss")
class Huber(Separable):
    """(z − t)²/2 where |z − t| < δ, δ (|z − t| − δ/2) elsewhere, as torch's HuberLoss."""

    function = staticmethod(huber_error)
    delta: float

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        delta = check_float("Huber", "delta", delta, positive=True)
        self._set(delta=delta, parameters=(delta,), seams=(-delta, delta))


@record.loss(
    "poisson_nll_loss",
    "PoissonNLLLoss",
    likelihood=poisson_targets,
    only_torch={"log_input": True, "full": False, "eps": 1e-8},
)
class PoissonNLL(Separable):
    """eᶻ − t z, as torch's PoissonNLLLoss: −log of the probability to count t where eᶻ are expected, but for log t!."""

    function = staticmethod(poisson_surprise)


@record.loss("kl_div", "KLDivLoss", reference="rop.check.reference:kldiv")
class KLDiv(Separable):
    """t (log t − z) for log-probabilities z, as torch's KLDivLoss; put a LogSoftmax layer before it. Targets are
    probabilities, or with ``log_target`` their logarithms. The "mean" is over all numbers, as torch's is, and
    "batchmean" over samples, which is the divergence of the distributions.

    >>> loss, z, t = KLDiv("batchmean"), np.log(np.full((2, 4), 0.25)), np.eye(4)[:2]
    >>> bool(np.isclose(loss.value(z, t), np.log(4)))
    True
    """

    function = staticmethod(divergence)
    reductions = ("mean", "sum", "batchmean")
    log_target: bool

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self._set(log_target=check_choice("KLDiv", "log_target", log_target, (False, True)))

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        targets = super()._targets(y, shape, dtype)
        assert targets.dense is not None
        dense = np.exp(targets.dense) if self.log_target else targets.dense
        if dense.min() < 0:
            raise ArgumentError(f"KLDiv: expected probabilities of at least 0, got {dense.min():g}")
        shares = np.ones(shape[0]) if self.reduction == "batchmean" else targets.shares
        return replace(targets, dense=dense, shares=shares)


@record.loss(
    "binary_cross_entropy_with_logits",
    "BCEWithLogitsLoss",
    likelihood=binary_targets,
    reference="rop.check.reference:bcewithlogits",
)
class BCEWithLogits(Loss):
    """−p t log s − (1 − t) log(1 − s) with s = sigmoid(z), as torch's BCEWithLogitsLoss; targets t in [0, 1].

    A target that is NaN is unknown and does not count, neither in the sum nor in what the mean divides by, which is the
    number of known targets. A batch without any has the loss 0 and the gradient 0.

    Args:
        reduction: "mean" or "sum".
        pos_weight: p, the weight of ones relative to zeros: a number, or one for each output: (K,) for vectors of K
            outputs, (K, 1, 1) for images of K channels, as torch has it. Nothing else is broadcast.

    >>> loss, unknown = BCEWithLogits(pos_weight=[3.0, 1.0]), np.nan
    >>> z, t = np.zeros((2, 2)), np.array([[1.0, unknown], [0.0, unknown]])
    >>> float(round(loss.value(z, t) / np.log(2), 12))                # (3 + 1) / 2: two targets are known
    2.0
    """

    pos_weight: np.ndarray | None

    def __init__(self, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._set(pos_weight=None if pos_weight is None else _weights("BCEWithLogits", "pos_weight", pos_weight))

    def _targets(self, y: np.ndarray, shape: Shape, dtype: np.dtype) -> Targets:
        t = _check_dense("BCEWithLogits", y, shape, dtype, unknown=True).astype(np.float64)
        known = ~np.isnan(t)
        if known.any() and (t[known].min() < 0 or t[known].max() > 1):
            raise ArgumentError(
                f"BCEWithLogits: expected targets in [0, 1], or NaN for unknown ones, got values from "
                f"{t[known].min():g} to {t[known].max():g}"
            )
        b = np.where(known, self._positive_weight(shape[1:]) * t, 0.0)
        c = np.where(known, 1 - t, 0.0)
        weight = (b + c).mean(axis=1).reshape(shape[0], -1)
        shares = known.reshape(shape[0], -1).sum(axis=1, dtype=np.float64)
        return Targets(None, np.stack([b, c], axis=1).astype(dtype), weight.astype(dtype), shares)

    def _positive_weight(self, outputs: Shape) -> np.ndarray:
        """p in a shape that fits the outputs of a sample."""
        p = np.ones(()) if self.pos_weight is None else self.pos_weight
        fits = p.ndim == len(outputs) and all(
            mine in (1, theirs) for mine, theirs in zip(p.shape, outputs, strict=True)
        )
        if p.size == 1 or fits:
            return p.reshape(()) if p.size == 1 else p
        expected = (outputs[0], *[1] * (len(outputs) - 1))
        raise ArgumentError(
            f"BCEWithLogits: pos_weight must be a number or have one for each output, shape {expected} for this net, "
            f"got shape {p.shape}"
        )

    def _energy(self, z: np.ndarray, targets: Targets) -> float:
        assert targets.dense is not None
        b, c = targets.dense[:, 0], targets.dense[:, 1]
        return float((b * np.logaddexp(0, -z) + c * np.logaddexp(0, z)).sum())


def _weights(owner: str, name: str, weight: Any) -> np.ndarray:
    """Weights as a read-only array of finite numbers ≥ 0."""
    array = as_array(f"{owner}: {name}", weight, "an array of numbers")
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"{owner}: {name} must be an array of numbers, got an array of {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or (array.size and array.min() < 0):
        raise ArgumentError(f"{owner}: {name} must hold finite numbers of at least 0, got {shown(array.tolist())}")
    array.flags.writeable = False
    return array


def _class_weight(owner: str, weight: Any) -> np.ndarray:
    """One weight per class."""
    array = _weights(owner, "weight", weight)
    if array.ndim != 1 or array.size == 0:
        raise ArgumentError(f"{owner}: weight must be a vector with one number per class, got shape {array.shape}")
    return array


def _check_labels(owner: str, y: np.ndarray, expected: Shape) -> None:
    """Demand integers, one per sample (and pixel)."""
    if y.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"{owner}: expected class labels as integers of shape {expected}, got an array of {y.dtype} with shape "
            f"{y.shape}; convert labels with y.astype(np.int64)"
        )
    if y.shape != expected:
        hint = "give one label per sample"
        if y.size == math.prod(expected):
            hint = f"use y.reshape({expected})"
        elif y.ndim == len(expected) + 1:
            hint = "for one-hot rows use y.argmax(axis=1)"
        raise ArgumentError(f"{owner}: expected class labels of shape {expected}, got {y.shape}; {hint}")


def _check_label_range(owner: str, labels: np.ndarray, classes: int) -> None:
    """Demand labels that name a class."""
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise ArgumentError(
            f"{owner}: expected labels from 0 to {classes - 1}, the net has {classes} outputs; got labels from "
            f"{labels.min()} to {labels.max()}; renumber them or widen the last layer"
        )


def _check_dense(owner: str, y: np.ndarray, shape: Shape, dtype: np.dtype, unknown: bool = False) -> np.ndarray:
    """A copy of floats of the outputs' shape, finite in the dtype in which they are used; or NaN where targets may be
    unknown."""
    if y.dtype not in (np.float32, np.float64):
        raise ArgumentTypeError(
            f"{owner}: expected targets of float32 or float64, got {y.dtype}; convert them with y.astype(np.float32)"
        )
    if y.shape != shape:
        raise ArgumentError(
            f"{owner}: expected targets of the outputs' shape {shape}, got {y.shape}; "
            "reshape them, nothing is broadcast"
        )
    with np.errstate(over="ignore"):
        dense = np.array(y, dtype=dtype, order="C")
    if unknown and np.isinf(dense).any():
        raise ArgumentError(f"{owner}: expected finite targets, or NaN for unknown ones, got Inf in {dtype}")
    if not unknown and not np.isfinite(dense).all():
        raise ArgumentError(f"{owner}: expected finite targets, got NaN or Inf in {dtype}; clean the targets first")
    return dense


def _dense_targets(q: np.ndarray, shares: np.ndarray, dtype: np.dtype) -> Targets:
    """Cross-entropy targets q (batch, K, ...) with ω = Σ_c q_c."""
    weight = q.sum(axis=1).reshape(len(q), -1)
    return Targets(None, q.astype(dtype), weight.astype(dtype), shares)


def _chosen(logs: np.ndarray, targets: Targets) -> float:
    """−Σ ω l_y."""
    assert targets.labels is not None
    flat = logs.reshape(*logs.shape[:2], -1)
    return -float((targets.weight * np.take_along_axis(flat, targets.labels[:, None], axis=1)[:, 0]).sum())
