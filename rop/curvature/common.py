"""Shared by the eigen-solvers: their result, arguments and start, and which pairs are wanted and converged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from rop.arguments import as_array, check_choice, check_float, check_int
from rop.curvature.hessian import Matrix, Operator
from rop.devices.cpu.solver_vectors import Block, lengths, orthonormal, without
from rop.errors import ArgumentError, ArgumentTypeError

__all__ = ["Eigen"]

ROUNDING = 100  # times machine epsilon: numbers up to this, relative to H, count as zero


class OnGpu(Protocol):
    """An array in a GPU's memory, of any library."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Start: TypeAlias = ArrayLike | OnGpu | None  # v0 of a solver, (n,) or (n, j); None: random
Seed: TypeAlias = int | Sequence[int] | np.random.Generator | None
Apply: TypeAlias = Callable[[Block], Block]  # T R of a preconditioner T


class Solve(Protocol):
    """A preconditioner by its method, as rop.kfac.Kfac and Shifted have it."""

    def solve(self, v: Block) -> Block: ...


Preconditioner: TypeAlias = Solve | LinearOperator | np.ndarray | Apply  # T as users may give it


@dataclass(frozen=True, eq=False)
class Eigen:
    """Eigenpairs, the most wanted first.

    Attributes:
        values: λ, (k,), signed.
        vectors: (n, k), columns of length one in H's precision; exactly the vectors that were multiplied.
        residuals: ‖Hv − λv‖, (k,), from those products.
        iterations: of the solver.
        hvps: products H·v used, those of blocks counted by columns, those that check the answer included.
        converged: whether the solver's test was met.

    >>> import numpy as np, rop
    >>> round(rop.eigen.power(np.diag([1.0, -4.0]), tol=1e-6).value, 6)
    -4.0
    """

    values: np.ndarray
    vectors: np.ndarray = field(repr=False)
    residuals: np.ndarray
    iterations: int
    hvps: int
    converged: bool

    @property
    def value(self) -> float:
        """λ of the first pair."""
        return float(self.values[0])

    @property
    def vector(self) -> np.ndarray:
        """v of the first pair, (n,)."""
        return self.vectors[:, 0]

    @property
    def rho(self) -> float:
        """|λ| of the first pair: the spectral radius if the largest magnitude was asked for."""
        return abs(self.value)


class Pairs(NamedTuple):
    """Unit vectors, their products with H, Rayleigh quotients and residuals."""

    vectors: Block
    products: Block
    values: np.ndarray
    residuals: np.ndarray


@np.errstate(over="ignore", invalid="ignore")
def true_pairs(H: Operator, vectors: Block) -> Pairs:
    """Rayleigh quotients and residuals from products of exactly these vectors."""
    vectors = H.round(vectors / lengths(vectors))
    products = H(vectors)
    values = np.einsum("ij,ij->j", vectors, products)
    return Pairs(vectors, products, values, lengths(products - vectors * values))


# ------------------------------------------------------------------------------------------------- a solver's arguments
@dataclass(frozen=True)
class EigenProblem:
    """The checked arguments of a solver (see ``rop.eigen``), and the results that follow from them."""

    owner: str  # the solver, for error messages
    H: Operator
    k: int
    which: str
    tol: float
    maxiter: int
    v0: Start  # as the user gave it; ``start`` checks it
    rng: np.random.Generator

    def start(self, width: int, v0: Start = None, against: Sequence[Block] = ()) -> Block:
        """Orthonormal columns to start from, orthogonal to those of ``against``."""
        return start(self.H, self.rng, self.owner, width, v0, against)

    def result(self, pairs: Pairs, iterations: int, sure: bool) -> Eigen:
        """The result; ``sure`` says that no other pair is wanted more."""
        ranked = ranking(pairs.values, self.which)
        values, residuals = pairs.values[ranked], pairs.residuals[ranked]
        good = bool((residuals <= self.tol * np.abs(values)).all())  # False where anything is NaN
        vectors = pairs.vectors[:, ranked].astype(self.H.dtype)
        return Eigen(values, vectors, residuals, iterations, self.H.hvps, bool(sure) and good)

    def not_finite(self, iterations: int) -> Eigen:
        """The result where H gave NaN or Inf: there is nothing to report."""
        vectors = np.full((self.H.size, self.k), np.nan, self.H.dtype)
        unknown = np.full(self.k, np.nan)
        return Eigen(unknown, vectors, unknown.copy(), iterations, self.H.hvps, False)


def check_eigenproblem(
    owner: str, p: Matrix, k: int, which: str, tol: float, maxiter: int, v0: Start, seed: Seed
) -> EigenProblem:
    """Checks the arguments that all solvers share, which ``rop.eigen`` describes."""
    check_int(owner, "k", k)
    check_choice(owner, "which", which, ("LM", "LA", "SA"))
    if check_float(owner, "tol", tol) < 0:
        raise ArgumentError(f"{owner}: tol must be at least 0, got {tol}")
    check_int(owner, "maxiter", maxiter)
    H = Operator(p, owner)
    if k > H.dimension:
        what = "the size of the operator" if H.dimension == H.size else "the number of parameters that are not fixed"
        raise ArgumentError(f"{owner}: expected k of at most {H.dimension}, {what}, got {k}")
    return EigenProblem(owner, H, k, which, tol, maxiter, v0, generator(owner, seed))


def generator(owner: str, seed: Seed) -> np.random.Generator:
    """Random numbers from a seed or from the user's own generator."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{owner}: seed must be a non-negative integer or a NumPy generator, got {seed!r}"
        ) from error


def check_preconditioner(T: Any, owner: str, H: Operator) -> Apply:
    """T as a function of blocks, its results checked."""
    apply = T
    if hasattr(T, "solve"):
        apply = T.solve
    elif isinstance(T, (LinearOperator, np.ndarray)) or issparse(T):
        apply = T.__matmul__
    elif not callable(T):
        raise ArgumentTypeError(
            f"{owner}: expected preconditioner with a method solve(block), a LinearOperator, a "
            f"matrix or a function of a block, got {type(T).__name__}"
        )

    def checked(block: Block) -> Block:
        result = as_array(f"{owner}: preconditioner", apply(block), "a block of numbers from it")
        if result.dtype.kind not in "fiu":
            raise ArgumentTypeError(f"{owner}: expected preconditioner to give real numbers, got {result.dtype}")
        result = H.variable(result.astype(np.float64))
        if result.shape != block.shape or not np.isfinite(result).all():
            got = "NaN or Inf" if result.shape == block.shape else f"shape {result.shape}"
            raise ArgumentError(
                f"{owner}: expected preconditioner to give a finite block of shape {block.shape} for "
                f"one of that shape, got {got}"
            )
        return result

    return checked


# ------------------------------------------------------------------------------------------------------------ the start
def start(
    H: Operator, rng: np.random.Generator, owner: str, width: int, v0: Start = None, against: Sequence[Block] = ()
) -> Block:
    """Orthonormal columns to start from: the user's first, then random ones; fewer than ``width`` if fewer dimensions
    are left."""
    width = min(width, H.dimension - sum(part.shape[1] for part in against))
    given = np.zeros((H.size, 0)) if v0 is None else _check_start(owner, v0, H.size, width)
    given = H.variable(given)
    given = given[:, given.any(axis=0)]  # the others have no part that H acts on
    columns = np.hstack([given / lengths(given), H.variable(rng.standard_normal((H.size, width)))])
    columns[:, given.shape[1] :] /= math.sqrt(H.dimension)
    new = orthonormal(without(columns, against), against, ROUNDING * H.eps)
    return H.round(new[:, :width])


def _check_start(owner: str, v0: Start, size: int, width: int) -> Block:
    """v0 as columns of float64."""
    columns = as_array(f"{owner}: v0", v0, "an array of real numbers")
    if columns.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"{owner}: expected v0 as an array of real numbers, got {columns.dtype}")
    shape, columns = columns.shape, columns.astype(np.float64)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or columns.shape[0] != size or not 1 <= columns.shape[1] <= width:
        block = f" or ({size}, j) with j of at most {width}" if width > 1 else ""
        raise ArgumentError(f"{owner}: expected v0 of shape ({size},){block}, got {shape}")
    if not np.isfinite(columns).all():
        raise ArgumentError(f"{owner}: expected finite numbers in v0, got NaN or Inf")
    if not columns.any(axis=0).all():
        raise ArgumentError(
            f"{owner}: expected v0 other than zero, got a zero vector, which has no direction; v0=None "
            "draws a random one"
        )
    return columns


# ------------------------------------------------------------------------------- which pairs are wanted and converged
def ranking(values: np.ndarray, which: str) -> np.ndarray:
    """The indices of eigenvalues, the most wanted first."""
    return np.argsort({"LM": -np.abs(values), "LA": -values, "SA": values}[which], kind="stable")


def ends(total: int, k: int, which: str) -> np.ndarray:
    """The positions among ascending eigenvalues at which the k wanted ones may be."""
    low, high = np.arange(min(k, total)), np.arange(max(total - k, 0), total)
    return {"LM": np.union1d(low, high), "LA": high, "SA": low}[which]


def unsettled(
    values: np.ndarray, residuals: np.ndarray, k: int, which: str, tol: float, watched: bool = False
) -> np.ndarray:
    """Which pairs have to improve.

    These are the k wanted ones until they converge, and others as long as their residuals allow that they overtake a
    wanted one (or, if the others are watched, until they do not move any more).
    """
    ranked, size = ranking(values, which), np.abs(values)
    wanted, others = ranked[:k], ranked[k:]
    result = np.zeros(values.size, bool)
    result[wanted] = ~(residuals[wanted] <= tol * size[wanted])
    if which == "LM":
        result[others] = ~(size[others] + residuals[others] <= (1 + tol) * size[wanted[-1]])
    if watched:
        result[others] |= ~(residuals[others] <= tol * size.max())
    return result
