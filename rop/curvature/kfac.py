"""K-FAC: a positive semidefinite approximation K of the Hessian that can be inverted.

A Linear or Conv2d layer with weights [W b] reads ā = (a, 1) and writes y = [W b] ā at each location t (pixel, and use
of a tied layer) of each sample; δ = ∂ℓ/∂y is the gradient of the sample's loss. Its block of the Fisher matrix,
E[vec(Σ_t δ_t ā_tᵀ) vec(Σ_t δ_t ā_tᵀ)ᵀ], is factorised as if inputs and gradients, and different locations, were
independent (Martens & Grosse 2015; for convolutions KFC, Grosse & Martens 2016):

    K_layer = G ⊗ A        A = E[Σ_t ā_t ā_tᵀ]        G = E[Σ_t δ_t δ_tᵀ] / T        T: locations per sample

The expectation is over the batch and over targets drawn from the net's own distribution (fisher="model": then K
approximates the generalised Gauss–Newton matrix, so the Hessian where the loss is well fitted) or over the targets that
were given (fisher="empirical"). Layers do not interact, other parameters (batchnorm) have K = 0. G carries the scale of
the objective, mean or sum, and the weights of the samples, so that K has the scale of H.

With the eigenvectors of A and G every function of K is exact and costs a few small matrix products: K v, the damped
inverse (K + λI)⁻¹ v that is the paper's preconditioner T, and (θI − K)⁻¹ v, which suits the largest eigenvalue.

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(3, 8), rop.Tanh(), rop.Linear(8, 2))
>>> x, y = np.random.default_rng(0).standard_normal((64, 3)), np.arange(64) % 2
>>> p = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
>>> K = rop.kfac.kfac(p, damping=0.1)
>>> [(block.layer, block.A.shape, block.G.shape) for block in K.blocks]
[('0', (4, 4), (8, 8)), ('2', (9, 9), (2, 2))]
>>> v = np.ones(net.size)
>>> bool(np.allclose(K.solve(K.matvec(v) + 0.1 * v), v))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from rop.arguments import as_array, check_choice, check_float, check_int
from rop.curvature.common import Seed, generator
from rop.devices.lock import engine_lock
from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.graph import Graph
from rop.layers import Loss
from rop.layers.base import Layer
from rop.layers.kinds import record_of
from rop.objective import Point

__all__ = ["Block", "Kfac", "Shifted", "kfac"]


# ------------------------------------------------------------------------------------------ what K-FAC reads of a point
def _with_targets(p: Point, y: np.ndarray) -> Point:
    """The point with other targets, all of which have the same weight."""
    f, loss = p.objective, p.objective.loss
    given = vars(loss)  # of which most losses have some only
    even = (
        given.get("weight") is None
        and given.get("pos_weight") is None
        and not given.get("label_smoothing")
        and given.get("ignore_index", -1) < 0
    )
    plain = None if even else record_of(loss, "kfac").kind(reduction=loss.reduction)
    return f.with_targets(y, plain).at(p.w)


def layers_with_factors(net: Graph) -> list[Layer]:
    """The layers that K-FAC knows, Linear and Conv2d, in the order of their parameters.

    >>> import rop
    >>> [type(layer).__name__ for layer in layers_with_factors(rop.Sequential(rop.Linear(2, 3), rop.BatchNorm1d(3)))]
    ['Linear']
    """
    return [layer for layer in net.layers if record_of(layer, "kfac").family == "bilinear"]


def positions(net: Graph, layer: Layer) -> np.ndarray:
    """Positions of [W b] in w, (groups, outputs, inputs + bias)."""
    shapes, groups = layer.parameter_shapes(), getattr(layer, "groups", 1)
    outputs = shapes["weight"][0] // groups
    index = net.offset(layer, "weight") + np.arange(math.prod(shapes["weight"])).reshape(groups, outputs, -1)
    if "bias" not in shapes:
        return index
    bias = net.offset(layer, "bias") + np.arange(groups * outputs).reshape(groups, outputs, 1)
    return np.concatenate([index, bias], axis=2)


# ----------------------------------------------------------------------------------------------- K and functions of it
@dataclass(frozen=True, eq=False)
class Block:
    """G ⊗ A of one layer, or of one group of a convolution's channels."""

    layer: str  # its name in the net
    group: int
    A: np.ndarray = field(repr=False)  # (inputs + bias, inputs + bias), inputs in the order of W's columns
    G: np.ndarray = field(repr=False)  # (outputs, outputs)
    index: np.ndarray = field(repr=False)  # (outputs, inputs + bias): where [W b] stands in w

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues of G ⊗ A, (outputs, inputs + bias), and the eigenvectors of G and of A."""
        g, G = np.linalg.eigh(self.G)
        a, A = np.linalg.eigh(self.A)
        return np.outer(np.maximum(g, 0), np.maximum(a, 0)), G, A  # below 0 by rounding only

    @property
    def values(self) -> np.ndarray:
        """Eigenvalues, (outputs, inputs + bias)."""
        return self._spectrum[0]

    def apply(self, function: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
        """function(G ⊗ A) on rows (m, outputs, inputs + bias)."""
        values, G, A = self._spectrum
        return G @ (function(values) * (G.T @ rows @ A)) @ A.T


class Kfac:
    """K, block by block. What ``kfac`` returns.

    Attributes:
        blocks: the factors A and G of every Linear and Conv2d layer.
        damping: λ of ``solve``.
        shape: (n, n).
    """

    def __init__(self, blocks: tuple[Block, ...], size: int, damping: float):
        self.blocks, self.damping, self.shape = blocks, damping, (size, size)

    def __repr__(self) -> str:
        return f"Kfac({len(self.blocks)} blocks, n={self.shape[0]}, damping={self.damping:g})"

    @cached_property
    def largest(self) -> float:
        """K's largest eigenvalue."""
        return max((float(block.values.max()) for block in self.blocks), default=0.0)

    def matvec(self, v: ArrayLike) -> np.ndarray:
        """K v, for a vector (n,) or for the columns of (n, m)."""
        return self._apply(lambda values: values, v)

    def solve(self, v: ArrayLike) -> np.ndarray:
        """(K + damping·I)⁻¹ v, for a vector (n,) or for the columns of (n, m): the paper's T."""
        if self.damping == 0:
            raise ArgumentError("Kfac: expected damping above 0 for solve, got 0; K is singular as a rule")
        return self._apply(lambda values: 1 / (values + self.damping), v)

    def shifted(self, theta: float | None = None, *, ritz: float = 0.0, margin: float = 0.5) -> Shifted:
        """(θI − K)⁻¹, a preconditioner for the largest eigenvalue.

        K has no blocks between layers, so its largest eigenvalue is often well below H's: give ``ritz`` if there is an
        estimate of that, and a margin that does not trust K's own eigenvectors too much.

        Args:
            theta: θ, above K's largest eigenvalue; None: (1 + margin) · max(K's largest eigenvalue, ritz).
            ritz: an estimate of H's largest eigenvalue, for the default θ.
            margin: of the default θ.
        """
        if theta is None:
            above = max(self.largest, check_float("shifted", "ritz", ritz))
            theta = (1 + check_float("shifted", "margin", margin, positive=True)) * above
        if not check_float("shifted", "theta", theta) > self.largest:
            raise ArgumentError(
                f"shifted: expected theta above {self.largest:g}, K's largest eigenvalue, got "
                f"{theta:g}; theta=None chooses one"
            )
        return Shifted(self, theta)

    def _apply(self, function: Callable[[np.ndarray], np.ndarray], v: ArrayLike) -> np.ndarray:
        """function(K) v; parameters outside the blocks have the eigenvalue 0."""
        array = as_array("Kfac: v", v)
        if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or array.shape[0] != self.shape[0]:
            n = self.shape[0]
            raise ArgumentError(
                f"Kfac: expected real numbers of shape ({n},) or ({n}, m), got {array.dtype} of shape {array.shape}"
            )
        rows = np.atleast_2d(array.T.astype(np.float64))
        result = rows * function(np.zeros(1))
        for block in self.blocks:
            result[:, block.index] = block.apply(function, rows[:, block.index])
        return result.T.reshape(array.shape).astype(array.dtype if array.dtype == np.float32 else np.float64)


@dataclass(frozen=True)
class Shifted:
    """(θI − K)⁻¹."""

    kfac: Kfac
    theta: float

    def solve(self, v: ArrayLike) -> np.ndarray:
        """(θI − K)⁻¹ v, for a vector (n,) or for the columns of (n, m)."""
        return self.kfac._apply(lambda values: 1 / (self.theta - values), v)


def kfac(p: Point, damping: float = 1e-3, fisher: str = "model", seed: Seed = 0, draws: int = 1) -> Kfac:
    """K-FAC factors at a point.

    The distribution of fisher="model" is softmax of the outputs for CrossEntropy and NLL, Bernoulli(sigmoid) for
    BCEWithLogits, and a Gaussian of variance ½ around the outputs for MSE: those whose negative log-likelihood the loss
    is. Class weights, label smoothing and labels to leave out count as they do in the Hessian (of outputs with several
    pixels, or with weights of their own as in BCEWithLogits, a sample has the mean of their weights). With
    fisher="empirical" the gradients are those of the given targets, weights included. Batch statistics of batchnorm are
    treated as constants.

    Args:
        p: a rop.Point.
        damping: λ of ``Kfac.solve``.
        fisher: "model" or "empirical".
        seed: of the drawn targets: an integer, a list of integers or a NumPy generator.
        draws: how often targets are drawn; G is their mean.

    >>> import numpy as np, rop
    >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.zeros((4, 1)))
    >>> rop.kfac.kfac(f.at(np.ones(2, "f4")), fisher="empirical").blocks[0].G       # E[(2·(1 + 1 − 0))²]
    array([[16.]])
    """
    if not isinstance(p, Point):
        raise ArgumentTypeError(f"kfac: expected a rop.Point, got {type(p).__name__}; make one with objective.at(w)")
    if check_float("kfac", "damping", damping) < 0:
        raise ArgumentError(f"kfac: damping must be at least 0, got {damping}")
    check_choice("kfac", "fisher", fisher, ("model", "empirical"))
    check_int("kfac", "draws", draws)
    return Kfac(sums_at(p, fisher, generator("kfac", seed), draws).blocks(), p.w.size, damping)


def sums_at(p: Point, fisher: str, rng: np.random.Generator, draws: int = 1) -> Sums:
    """The sums of which the factors at a point are made; see ``kfac``."""
    f = p.objective
    sums = Sums(f.net, f.batch)
    with engine_lock():
        if fisher == "empirical":
            sums.add(p, np.full(f.batch, 1 / f.scale if f.scale else 0.0))  # 0: nothing counts
        else:
            outputs = p.outputs().astype(np.float64)
            if not np.isfinite(outputs).all():
                raise RopError("kfac: the net's outputs are not finite, so no targets can be drawn from them")
            for _ in range(draws):
                drawn = _with_targets(p, _draw(f.loss, outputs, rng))
                sums.add(drawn, f.sample_weights() / (draws * drawn.objective.scale**2))
    return sums


def _draw(loss: Loss, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Targets from the distribution whose negative log-likelihood the loss is."""
    return _likelihood(loss)(z, rng)


@lru_cache(maxsize=16)
def _likelihood(loss: Loss) -> Callable[..., np.ndarray]:
    """(outputs, rng) ↦ targets; remembered, because to look at a loss takes as long as to draw for a small batch."""
    likelihood = record_of(loss, "kfac").likelihood
    if likelihood is None:
        raise ArgumentError(
            f"kfac: expected a loss that is a negative log-likelihood for fisher='model', got "
            f"{type(loss).__name__}; use fisher='empirical'"
        )
    return likelihood


class Sums:
    """Σ ā āᵀ and Σ weight·δ δᵀ of every layer, over samples, places and uses.

    Args:
        net: the net whose layers these are.
        batch: samples of the batch.
    """

    def __init__(self, net: Graph, batch: int) -> None:
        self.net, self._batch = net, batch
        self._inputs: dict[Layer, np.ndarray] = {}  # (groups, inputs + bias, inputs + bias)
        self._outputs: dict[Layer, np.ndarray] = {}  # (groups, outputs, outputs)
        self._places: dict[Layer, int] = {}  # of a sample, over all uses

    def add(self, p: Point, weight: np.ndarray) -> None:
        """Adds a point's gradients, weighted by sample; its inputs too if it is the first point."""
        first = not self._inputs
        for gram in p.grams(np.sqrt(weight)):
            layer = gram.layer
            if first:
                _accumulate(self._inputs, layer, gram.inputs)
                self._places[layer] = self._places.get(layer, 0) + gram.places
            _accumulate(self._outputs, layer, gram.outputs)

    def means(self) -> Iterator[tuple[Layer, np.ndarray, np.ndarray]]:
        """Each layer with the means A (groups, inputs + bias, inputs + bias) and G (groups, outputs, outputs), in the
        order of their parameters."""
        for layer in self.net.layers:
            if layer in self._inputs:
                outputs = self._outputs[layer] / self._places[layer]
                yield layer, self._inputs[layer] / self._batch, outputs

    def blocks(self) -> tuple[Block, ...]:
        """The means, block by block."""
        return tuple(
            Block(self.net.name_of(layer), group, *of_group)
            for layer, A, G in self.means()
            for group, of_group in enumerate(zip(A, G, positions(self.net, layer), strict=True))
        )


def _accumulate(sums: dict[Layer, np.ndarray], layer: Layer, term: np.ndarray) -> None:
    sums[layer] = sums[layer] + term if layer in sums else term.copy()
