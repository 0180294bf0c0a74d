"""Extreme eigenvalues, spectral density and trace of a Hessian that is known by its products only.

    power          v ← Hv / ‖Hv‖                                             one pair, the largest in magnitude
    lanczos        Rayleigh–Ritz in span{B, HB, H²B, …}, B of k columns        k pairs, either end or both
    lobpcg         Rayleigh–Ritz in span{X, T R, P}, step by step             k pairs, either end or both
    paper_lobpcg   v ← v + α̃(j) T r, normalised (the paper's Algorithm 2)     one pair

R = HX − XΛ are the residuals, P the last change of X, T a preconditioner. What all of them share:

    p         what is multiplied: a rop.Point, a scipy LinearOperator or a symmetric matrix.
    k         how many pairs.
    which     "LM": largest |λ|, "LA": largest λ, "SA": smallest λ. Results come in that order, the extreme one first.
    tol       a pair has converged when ‖Hv − λv‖ ≤ tol·|λ|, v of length one. (So an eigenvalue 0 needs a residual 0.)
    maxiter   most iterations; one iteration multiplies one vector, or one block of vectors, by H.
    v0        where to start, (n,), or (n, j) for a block; what it lacks is filled up with random columns.
    seed      of the random numbers: an integer, a list of integers or a NumPy generator.

They return an ``Eigen``. Products are computed in H's own precision, everything else in float64 where that is cheap.
The dominant eigenvalue of a Hessian may be negative: ρ = |λ|, and its gradient is ∇ρ = sign(λ) vᵀ∇H v:

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
>>> x, y = np.random.default_rng(0).standard_normal((16, 3)), np.arange(16) % 2
>>> p = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
>>> found = rop.spectral_radius(p, method="lanczos")
>>> bool(found.converged and np.isclose(found.rho, np.abs(np.linalg.eigvalsh(p.hvp(np.eye(net.size)))).max()))
True
>>> gradient = np.sign(found.value) * p.r2(found.vector)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from scipy.special import ndtr

from rop.arguments import as_array, check_choice, check_float, check_function, check_int
from rop.errors import ArgumentError, ArgumentTypeError, RopError

__all__ = [
    "Eigen",
    "power",
    "lanczos",
    "lobpcg",
    "paper_lobpcg",
    "spectral_radius",
    "forest_step",
    "usps_step",
    "Density",
    "density",
    "Trace",
    "trace",
    "Hessian",
]

CHUNK = 32  # columns by which a Krylov basis grows
ROUNDING = 100  # times machine epsilon: what is not larger than this, relative to H, is nothing
FEW = 1 << 22  # multiplications that are not worth waking BLAS's threads for
TAILS = 6.0  # bandwidths by which the grid of a density reaches beyond its nodes

Block = np.ndarray  # (n, k) of float64
Preconditioner = Callable[[Block], Block]


# ------------------------------------------------------------------------------------------------------------ results
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

    >>> import numpy as np
    >>> round(power(np.diag([1.0, -4.0]), tol=1e-6).value, 6)
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


@dataclass(frozen=True, eq=False)
class Density:
    """The distribution of the eigenvalues: Σ weights·δ(nodes), and the same smoothed on a grid."""

    grid: np.ndarray  # (points,), evenly spaced
    density: np.ndarray  # (points,), integrates to 1
    nodes: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)  # they sum up to 1
    hvps: int


@dataclass(frozen=True)
class Trace:
    """An estimate of tr H = Σ λ, its standard error, and the products it took."""

    value: float
    error: float
    hvps: int


# ------------------------------------------------------------------------------------------------------ the operator
class Hessian(LinearOperator):
    """H(w) of a point for SciPy: what ``Point.hessian()`` returns.

    Real and symmetric, in the point's precision: so are the results, whatever is multiplied (integers and float64 are
    rounded to it). Complex vectors are multiplied part by part, H(a + ib) = Ha + iHb.

    >>> import numpy as np, rop
    >>> from scipy.sparse.linalg import expm_multiply
    >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)), dtype="f8")
    >>> H = f.at(np.zeros(2)).hessian()                         # [[2, 2], [2, 2]]: eigenvalues 0 and 4
    >>> expm_multiply(1j * np.pi / 4 * H, np.array([1, 1]), traceA=1j * np.pi).round(12)
    array([-1.+0.j, -1.+0.j])
    """

    def __init__(self, point: Any):
        size = point.w.size
        super().__init__(dtype=point.w.dtype, shape=(size, size))
        self._point = point

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.asarray(x).reshape(-1))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.asarray(x))

    def _product(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "c":
            result = np.empty(x.shape, np.result_type(self.dtype, np.complex64))
            result.real, result.imag = self._product(x.real), self._product(x.imag)
            return result
        with np.errstate(over="ignore"):  # a float64 too large for float32: hvp refuses Inf
            return self._point.hvp(x.astype(self.dtype, copy=False))

    def _adjoint(self) -> Hessian:
        return self  # H is real and symmetric

    def _transpose(self) -> Hessian:
        return self


class _Operator:
    """H as the solvers use it: float64 outside, its own precision inside, and a count of the products."""

    def __init__(self, p: Any, owner: str):
        self._linear = _linear_operator(p, owner)
        self.size: int = self._linear.shape[0]
        self.dtype = np.dtype(np.float32 if self._linear.dtype == np.float32 else np.float64)
        self.eps = float(np.finfo(self.dtype).eps)
        self.hvps = 0

    def round(self, x: np.ndarray) -> np.ndarray:
        """x as H will see it."""
        return x.astype(self.dtype).astype(np.float64)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """H x for a vector or for the columns of a block."""
        single = x.ndim == 1 or x.shape[1] == 1  # a single product leaves the point ready for r2 at this vector
        self.hvps += 1 if single else x.shape[1]
        x = x.astype(self.dtype, copy=False)
        product = self._linear.matvec(x) if single else self._linear.matmat(x)
        return np.asarray(product, np.float64).reshape(x.shape)


def _linear_operator(p: Any, owner: str) -> Any:
    """A square and real LinearOperator."""
    if hasattr(p, "hessian"):
        return p.hessian()
    if not isinstance(p, (LinearOperator, np.ndarray)) and not issparse(p):
        raise ArgumentTypeError(
            f"{owner}: expected p to be a rop.Point, a scipy LinearOperator or a symmetric matrix, "
            f"got {type(p).__name__}"
        )
    if len(p.shape) != 2 or p.shape[0] != p.shape[1] or p.shape[0] == 0:
        raise ArgumentError(f"{owner}: expected a square operator or matrix, got shape {p.shape}")
    if p.dtype is not None and np.dtype(p.dtype).kind not in "fiub":
        raise ArgumentTypeError(f"{owner}: expected an operator of real numbers, got {p.dtype}")
    if isinstance(p, np.ndarray):
        p = as_array(f"{owner}: p", p, "a symmetric matrix")
        _check_symmetry(p, owner)
    return aslinearoperator(p)


def _check_symmetry(matrix: np.ndarray, owner: str) -> None:
    matrix = np.asarray(matrix, np.float32 if matrix.dtype == np.float32 else np.float64)
    with np.errstate(invalid="ignore"):  # Inf − Inf: the solvers report what is not finite
        gap, size = np.abs(matrix - matrix.T).max(), np.abs(matrix).max()
    if gap > 1e3 * np.finfo(matrix.dtype).eps * size:
        raise ArgumentError(
            f"{owner}: expected a symmetric matrix, got one that differs from its transpose by {gap:g};"
            " use (A + A.T) / 2"
        )


def _preconditioner(T: Any, owner: str) -> Preconditioner:
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
        result = result.astype(np.float64)
        if result.shape != block.shape or not np.isfinite(result).all():
            got = "NaN or Inf" if result.shape == block.shape else f"shape {result.shape}"
            raise ArgumentError(
                f"{owner}: expected preconditioner to give a finite block of shape {block.shape} for "
                f"one of that shape, got {got}"
            )
        return result

    return checked


# ------------------------------------------------------------------------------------------------- one vector at a time
def power(
    p: Any,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Any = None,
    seed: Any = 0,
    *,
    stop: str = "relative",
) -> Eigen:
    """Power iteration: u = Hv, λ = uᵀv, r = ‖u − λv‖; if r is small stop, else v = u/‖u‖.

    The pair that is returned belongs together: v is the vector that was multiplied last. If λ and −λ are both extreme,
    v does not settle and ``converged`` is False. A v0 that is an eigenvector already is returned as it is, so a warm
    start costs one product; a v0 with Hv = 0 is replaced by a random one. See the module for the other arguments.

    Args:
        stop: "relative": r ≤ tol·|λ|. "paper", as the published experiments stopped: r ≤ tol, or λ within tol·|λ| of
            the iteration before, which may be far from an eigenvalue.

    >>> import numpy as np
    >>> found = power(np.diag([3.0, 1.0, 0.0]), tol=1e-8)
    >>> round(found.value, 12), np.abs(found.vector).round(6)
    (3.0, array([1., 0., 0.]))
    """
    H, rng = _problem("power", p, k, which, tol, maxiter, seed)
    _check_single("power", k, which, stop)
    vectors = _vectors_of(p, H, v0)
    return _single_vector(H, vectors, v0, rng, tol, maxiter, stop, lambda u, v, value, j: vectors.unit(u), "power")


def forest_step(j: int) -> float:
    """α̃(j) = exp(−4j − 2), the paper's step sizes for the forest network; j = 0 is a solve's first iteration.

    >>> round(forest_step(0), 4), round(forest_step(1), 4)
    (0.1353, 0.0025)
    """
    return math.exp(-4 * j - 2)


def usps_step(j: int) -> float:
    """α̃(j) = exp(−4j), the paper's step sizes for the USPS network; j = 0 is a solve's first iteration.

    >>> round(usps_step(0), 4), round(usps_step(1), 4)
    (1.0, 0.0183)
    """
    return math.exp(-4 * j)


def paper_lobpcg(
    p: Any,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Any = None,
    seed: Any = 0,
    *,
    preconditioner: Any = None,
    alpha: Callable[[int], float] = forest_step,
    stop: str = "relative",
) -> Eigen:
    """The paper's Algorithm 2: u = Hv, λ = uᵀv, r = u − λv; if ‖r‖ is small stop, else v = w/‖w‖ with w = v + α̃(j) T r.

    It has no Rayleigh–Ritz step, and with the paper's step sizes, which shrink by e⁻⁴ from one iteration to the next,
    v soon stands still wherever it is: expect ``converged`` False unless v0 is good or stop="paper". A v that does not
    move any more ends the solve. Use ``lobpcg`` or ``lanczos`` to find an eigenvalue, this to repeat the paper.

    Args:
        preconditioner: T, as for ``lobpcg``; None makes rop.kfac.kfac(p), whose ``solve`` is the paper's T.
        alpha: α̃, a function of the iteration j = 0, 1, … within this solve: forest_step, usps_step or any other.
        stop: as for ``power``.

    >>> import numpy as np
    >>> H = np.diag([3.0, 1.0, 0.5])
    >>> found = paper_lobpcg(H, preconditioner=lambda r: r, alpha=lambda j: 0.3)
    >>> found.converged, round(found.value, 3)
    (True, 3.0)
    """
    H, rng = _problem("paper_lobpcg", p, k, which, tol, maxiter, seed)
    _check_single("paper_lobpcg", k, which, stop)
    check_function("paper_lobpcg", "alpha", alpha, "the iteration (for one size use lambda j: size)", 1)
    T = _preconditioner(_kfac_of(p) if preconditioner is None else preconditioner, "paper_lobpcg")
    vectors = _HostVectors(H)

    def step(u: np.ndarray, v: np.ndarray, value: float, j: int) -> np.ndarray | None:
        return vectors.unit(v + float(alpha(j)) * T((u - value * v)[:, None])[:, 0])

    return _single_vector(H, vectors, v0, rng, tol, maxiter, stop, step, "paper_lobpcg")


def _kfac_of(p: Any) -> Any:
    if not hasattr(p, "hessian"):
        raise ArgumentError(
            "paper_lobpcg: expected a preconditioner for an operator or a matrix, got none; K-FAC is "
            "made for a rop.Point only. Give preconditioner=lambda r: r for none"
        )
    from rop.kfac import kfac

    return kfac(p)


class _HostVectors:
    """What a solver does with single vectors, in NumPy. rop/devices/cuda/power.py does the same on a GPU."""

    def __init__(self, H: _Operator):
        self._H = H

    def start(self, v0: Any, rng: np.random.Generator, owner: str) -> np.ndarray:
        return _start(self._H, v0, 1, rng, owner)[:, 0]

    def product(self, v: np.ndarray) -> np.ndarray | None:
        """u = H v; None if it is not finite."""
        u = self._H(v)
        return u if np.isfinite(u).all() else None

    def is_zero(self, u: np.ndarray) -> bool:
        return not u.any()

    def quotient(self, u: np.ndarray, v: np.ndarray) -> tuple[float, float]:
        """λ = uᵀv, and ‖u − λv‖."""
        value = _dot(u, v)
        return value, _length(u - value * v)

    def unit(self, direction: np.ndarray) -> np.ndarray | None:
        """The direction with length one, in H's precision; None if it has no length."""
        length = _length(direction)
        return self._H.round(direction / length) if 0 < length < math.inf else None

    def equal(self, u: np.ndarray, v: np.ndarray) -> bool:
        return np.array_equal(u, v)

    def column(self, v: np.ndarray) -> np.ndarray:
        """v for the user, (n, 1)."""
        return v[:, None].astype(self._H.dtype)


def _vectors_of(p: Any, H: _Operator, v0: Any) -> Any:
    """Where a solver for p keeps its vectors: on the GPU if products are computed there."""
    if getattr(getattr(p, "_f", None), "device", "cpu") == "cuda":
        from rop.devices.cuda.power import DeviceVectors

        return DeviceVectors(p, H, v0)
    return _HostVectors(H)


Step = Callable[[Any, Any, float, int], Any]  # u, v, λ, j -> the next v, None if there is none


@np.errstate(over="ignore", invalid="ignore")
def _single_vector(
    H: _Operator,
    vectors: Any,
    v0: Any,
    rng: np.random.Generator,
    tol: float,
    maxiter: int,
    stop: str,
    step: Step,
    owner: str,
) -> Eigen:
    v = vectors.start(v0, rng, owner)
    given, previous = v0 is not None, math.nan
    for iteration in range(1, maxiter + 1):
        u = vectors.product(v)
        if u is None:
            return _not_finite(H, 1, iteration)
        value, residual = vectors.quotient(u, v)
        says_nothing = given and vectors.is_zero(u)  # v0 in the null space: H may be anything elsewhere
        small = residual <= tol * abs(value)
        if stop == "paper":
            small = residual <= tol or abs(value - previous) <= tol * abs(value)
        converged = small and not says_nothing
        if converged or iteration == maxiter:
            break
        following = vectors.start(None, rng, owner) if says_nothing else step(u, v, value, iteration - 1)
        if following is None or vectors.equal(following, v):
            break
        given, previous, v = given and not says_nothing, value, following
    return Eigen(np.array([value]), vectors.column(v), np.array([residual]), iteration, H.hvps, converged)


# ------------------------------------------------------------------------------------------------------------- Lanczos
@np.errstate(over="ignore", invalid="ignore")
def lanczos(
    p: Any, k: int = 1, which: str = "LM", tol: float = 1e-3, maxiter: int = 1000, v0: Any = None, seed: Any = 0
) -> Eigen:
    """Block Lanczos with full reorthogonalisation: the eigenpairs of QᵀHQ, Q a basis of span{B, HB, H²B, …}.

    B has k columns, so an eigenvalue that occurs up to k times is found as often. Where the space ends (H leads nowhere
    new, as for an H of low rank or a v0 in one block of a block-diagonal H) it goes on with fresh random directions,
    unless everything has been seen. With "LM" both ends must be known well enough to tell which is larger. Residuals
    are checked by products before the answer is given. Memory: one vector per product. See the module for arguments.

    >>> import numpy as np
    >>> lanczos(np.diag([2.0, 2.0, -5.0, 0.0]), k=3, which="LA").values.round(6) + 0.0
    array([2., 2., 0.])
    """
    H, rng = _problem("lanczos", p, k, which, tol, maxiter, seed)
    space, block, random, first, due = _Krylov(H), _start(H, v0, k, rng, "lanczos"), v0 is None, 0, 0
    for iteration in count(1):
        following = space.extend(block)
        if following is None:
            return _not_finite(H, k, iteration)
        ended = following.shape[1] == 0
        complete = space.size == H.size or (ended and random)  # k random columns lead to every eigenvalue
        last = complete or iteration == maxiter
        if last or space.size >= due:
            begun = first > 0 and not space.settled(first, 1, which, tol)  # the new part may hold more
            sure = complete or (not ended and not begun and space.settled(0, k, which, tol))
            if last or sure:
                found = _eigen(H, _true_pairs(H, space.ritz_vectors(k, which)), which, tol, iteration, sure)
                if last or found.converged:
                    return found
            due = space.size + 1 + space.size // 10
        block = following
        if ended:
            block, random, first = _start(H, None, k, rng, "lanczos", space.parts), True, space.size
    raise AssertionError("count() does not end")


class _Krylov:
    """An orthonormal basis Q that grows by blocks, and G = QᵀHQ. What H makes of Q outside of its span comes from the
    last block alone: HQ = QG + F·(last columns)."""

    def __init__(self, H: _Operator):
        self._H, self.size = H, 0
        self._chunks: list[np.ndarray] = []  # (n, CHUNK) each, in H's precision
        self._matrix = np.zeros((CHUNK, CHUNK))  # G, of which the upper triangle counts
        self._outside = np.zeros((0, 0))  # (new directions, last columns): F in an orthonormal basis
        self._scale = 0.0  # longest H q so far: a lower bound of ‖H‖

    @property
    def parts(self) -> list[np.ndarray]:
        """Q in pieces."""
        return [chunk[:, : self.size - i * CHUNK] for i, chunk in enumerate(self._chunks)]

    @np.errstate(over="ignore", invalid="ignore")
    def extend(self, block: Block) -> Block | None:
        """Takes orthonormal columns into Q; returns the new directions that H leads to, None if H gave NaN or Inf."""
        product = self._H(block)
        if not np.isfinite(product).all():
            return None
        before, self.size = self.size, self.size + block.shape[1]
        self._store(block, before)
        inside = np.concatenate([_products(part, product.astype(part.dtype)) for part in self.parts])
        if not np.isfinite(inside).all():
            return None
        self._reserve()
        self._matrix[: self.size, before : self.size] = inside  # in float64 from here on
        self._scale = max(self._scale, *_lengths(product))
        left = _without(product, self.parts)
        new = _orthonormal(left, self.parts, ROUNDING * self._H.eps * self._scale)
        self._outside = _products(new, left)
        return self._H.round(new)

    def _store(self, block: Block, first: int) -> None:
        for i, column in enumerate(block.T, start=first):
            if i == CHUNK * len(self._chunks):
                self._chunks.append(np.empty((self._H.size, CHUNK), self._H.dtype, order="F"))
            self._chunks[i // CHUNK][:, i % CHUNK] = column

    def _reserve(self) -> None:
        old = len(self._matrix)
        if self.size > old:
            larger = np.zeros((2 * self.size, 2 * self.size))
            larger[:old, :old] = self._matrix
            self._matrix = larger

    def ritz(self, first: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues of G from a column on, ascending, their eigenvectors, and the residuals ‖F s‖ they imply."""
        values, vectors = np.linalg.eigh(self._matrix[first : self.size, first : self.size], UPLO="U")
        return values, vectors, _lengths(self._outside @ vectors[len(vectors) - self._outside.shape[1] :])

    def settled(self, first: int, k: int, which: str, tol: float) -> bool:
        """Whether the wanted pairs of G from a column on can be trusted."""
        values, _, residuals = self.ritz(first)
        carried = _ends(len(values), k, which)
        return not _open(values[carried], residuals[carried], k, which, tol).any()

    def ritz_vectors(self, k: int, which: str) -> Block:
        """The k most wanted, (n, k)."""
        values, vectors, _ = self.ritz()
        chosen = vectors[:, _order(values, which)[:k]]
        return sum(
            (_combinations(part, chosen[i * CHUNK : i * CHUNK + part.shape[1]]) for i, part in enumerate(self.parts)),
            np.zeros((self._H.size, k)),
        )


# -------------------------------------------------------------------------------------------------------------- LOBPCG
@np.errstate(over="ignore", invalid="ignore")
def lobpcg(
    p: Any,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-3,
    maxiter: int = 1000,
    v0: Any = None,
    seed: Any = 0,
    *,
    preconditioner: Any = None,
) -> Eigen:
    """Locally optimal block preconditioned conjugate gradients (Knyazev 2001): Rayleigh–Ritz in span{X, T R, P}.

    X are k Ritz vectors (with "LM" k at each end of the spectrum, until the smaller end is known to be smaller), R
    their residuals, P what the last step added to X. All three are kept orthonormal, dependent directions are dropped,
    and columns that have converged are not multiplied any more. Residuals are checked by products before the answer is
    given. See the module for the other arguments.

    Args:
        preconditioner: T, positive definite: an object with solve(block), a LinearOperator, a matrix or a function of
            a block (n, m). For the largest eigenvalue it should resemble (θI − H)⁻¹ with θ above the spectrum, see
            ``rop.kfac.Kfac.shifted``; an approximation of H⁻¹ helps at the small end. None: the identity.

    >>> import numpy as np
    >>> lobpcg(np.diag(np.arange(-50.0, 101.0)), k=2, tol=1e-6).values.round(6)
    array([100.,  99.])
    """
    H, rng = _problem("lobpcg", p, k, which, tol, maxiter, seed)
    T = None if preconditioner is None else _preconditioner(preconditioner, "lobpcg")
    W, HW, carried = _first_block(H, v0, k, which, rng)
    space = _Subspace(H.size, carried, which)
    for iteration in count(1):
        if not (np.isfinite(HW).all() and space.improve(W, HW)):
            return _not_finite(H, k, iteration)
        residuals = _lengths(space.residuals())
        unsettled = _open(space.values, residuals, k, which, tol, carried > k)
        last = iteration == maxiter
        if last or not unsettled.any():
            wanted = _order(space.values, which)[:k]
            pairs = _true_pairs(H, space.X[:, wanted])
            found = _eigen(H, pairs, which, tol, iteration, not unsettled.any())
            if last or found.converged or not np.isfinite(found.residuals).all():
                return found
            space.replace(wanted, pairs)
            unsettled[wanted] = ~(pairs.residuals <= tol * np.abs(pairs.values))
        W = space.new_directions(T, unsettled)
        if not W.size:  # the whole space, or T and rounding leave nothing to try
            return _eigen(
                H, _true_pairs(H, space.X[:, _order(space.values, which)[:k]]), which, tol, iteration, space.is_whole
            )
        W = H.round(W)
        HW = H(W)
    raise AssertionError("count() does not end")


def _first_block(H: _Operator, v0: Any, k: int, which: str, rng: np.random.Generator) -> tuple[Block, Block, int]:
    """X, HX, and how many columns to carry at each end: k, or one more if the user starts at an eigenvector. That has
    no residual to follow and would stay, whatever larger eigenvalues there are; the column beside it finds them."""
    ends = 2 if which == "LM" else 1
    X = _start(H, v0, min(ends * k, H.size), rng, "lobpcg")
    HX = H(X)
    residuals = _lengths(HX - X * np.einsum("ij,ij->j", X, HX))
    if v0 is None or not residuals.min() <= ROUNDING * H.eps * _lengths(HX).max():
        return X, HX, k
    more = _start(H, None, ends, rng, "lobpcg", [X])
    if more.size:
        X, HX = np.hstack([X, more]), np.hstack([HX, H(more)])
    return X, HX, k + 1


class _Subspace:
    """X and P of LOBPCG with their products, all columns orthonormal, and the Ritz values of X."""

    def __init__(self, size: int, carried: int, which: str):
        self._carried, self._which = carried, which
        self.X = self.HX = self.P = self.HP = np.zeros((size, 0))
        self.values = np.zeros(0)

    @property
    def is_whole(self) -> bool:
        return self.X.shape[1] + self.P.shape[1] >= len(self.X)

    def residuals(self) -> Block:
        return self.HX - self.X * self.values

    def replace(self, columns: np.ndarray, pairs: _Pairs) -> None:
        """Puts pairs with fresh products in the place of some columns."""
        self.X[:, columns], self.HX[:, columns], self.values[columns] = pairs.vectors, pairs.products, pairs.values

    def new_directions(self, T: Preconditioner | None, columns: np.ndarray) -> Block:
        """T R for some columns, without what lies in the span of X and P; R itself where that leaves nothing."""
        R = self.residuals()[:, columns]
        R = R[:, _lengths(R) > 0]
        R = R / _lengths(R)
        for directions in [T(R), R] if T is not None else [R]:
            lengths = _lengths(directions)
            directions = directions[:, lengths > 0] / lengths[lengths > 0]
            span = [self.X, self.P]
            new = _orthonormal(_without(directions, span), span, ROUNDING * float(np.finfo(np.float64).eps))
            if new.size:
                return new
        return R[:, :0]

    def improve(self, W: Block, HW: Block) -> bool:
        """Rayleigh–Ritz in span{X, W, P}; False if numbers have become too large for it."""
        S, HS = np.hstack([self.X, W, self.P]), np.hstack([self.HX, HW, self.HP])
        G = _products(S, HS)
        if not np.isfinite(G).all():
            return False
        values, C = np.linalg.eigh((G + G.T) / 2)
        carried = _ends(len(values), self._carried, self._which)
        self.values, C = values[carried], C[:, carried]
        change = C.copy()
        change[: self.X.shape[1]] = 0  # what W and P have contributed: the next P, made orthogonal to
        change = _orthonormal(_without(change, [C]), [C], 1e-12)  # X within the small space
        self.X, self.HX = _combinations(S, C), _combinations(HS, C)
        self.P, self.HP = _combinations(S, change), _combinations(HS, change)
        return True


# --------------------------------------------------------------------------------------------------- any of the solvers
SOLVERS: dict[str, Callable[..., Eigen]] = {
    "power": power,
    "lanczos": lanczos,
    "lobpcg": lobpcg,
    "paper_lobpcg": paper_lobpcg,
}


def spectral_radius(p: Any, method: str = "power", **options: Any) -> Eigen:
    """ρ = max |λ| and its eigenvector, by "power", "lanczos", "lobpcg" or "paper_lobpcg"; options are the solver's.

    >>> import numpy as np
    >>> round(spectral_radius(np.diag([1.0, -3.0]), method="lanczos").rho, 6)
    3.0
    """
    check_choice("spectral_radius", "method", method, tuple(SOLVERS))
    known = [name for name in signature(SOLVERS[method]).parameters if name != "p"]
    if unknown := [name for name in options if name not in known]:
        raise ArgumentTypeError(f"spectral_radius: the options of {method!r} are {', '.join(known)}, got {unknown[0]}")
    if options.get("which", "LM") != "LM":
        raise ArgumentError(
            f"spectral_radius: expected which='LM', the largest magnitude, got {options['which']!r}; "
            f"call rop.eigen.{method} for the ends of the spectrum"
        )
    return SOLVERS[method](p, **options)


# --------------------------------------------------------------------------------------------------- the whole spectrum
def density(
    p: Any, probes: int = 8, steps: int = 64, seed: Any = 0, points: int = 1024, bandwidth: float | None = None
) -> Density:
    """Spectral density φ(t) = (1/n) Σ δ(t − λ_i) by stochastic Lanczos quadrature.

    For a random z of length one, zᵀδ(t − H)z ≈ Σ_j s_j² δ(t − θ_j): θ_j the eigenvalues and s_j the first components of
    the eigenvectors of the tridiagonal matrix that Lanczos makes from z. The mean over probes estimates φ; the grid
    shows it smoothed with a Gaussian, as the mean over each grid cell, so that it integrates to 1 at any bandwidth.

    Args:
        probes: random vectors.
        steps: Lanczos steps, so products, per probe.
        points: of the grid.
        bandwidth: standard deviation of the Gaussian; None: a hundredth of the spectrum's width.

    >>> import numpy as np
    >>> found = density(np.diag([0.0, 0.0, 0.0, 1.0]), probes=200)
    >>> bool(abs(found.weights[found.nodes > 0.5].sum() - 0.25) < 0.05)
    True
    >>> round(float(found.density.sum() * (found.grid[1] - found.grid[0])), 12)
    1.0
    """
    probes, steps = check_int("density", "probes", probes), check_int("density", "steps", steps)
    points = check_int("density", "points", points, minimum=8)
    if bandwidth is not None:
        bandwidth = check_float("density", "bandwidth", bandwidth, positive=True)
    H, rng = _Operator(p, "density"), _generator("density", seed)
    found = [_quadrature(H, rng, steps) for _ in range(probes)]
    nodes = np.concatenate([theta for theta, _ in found])
    weights = np.concatenate([weight for _, weight in found]) / probes
    largest = float(np.abs(nodes).max()) or 1.0
    sigma = np.ptp(nodes) / 100 if bandwidth is None else bandwidth
    sigma = max(float(sigma), 1e-9 * largest)  # so that a single eigenvalue has a grid around it, too
    edges = np.linspace(nodes.min() - TAILS * sigma, nodes.max() + TAILS * sigma, points + 1)
    below = sum(weight * ndtr((edges - theta) / sigma) for theta, weight in zip(nodes, weights, strict=True))
    share = np.diff(below)
    return Density((edges[1:] + edges[:-1]) / 2, share / (share.sum() * (edges[1] - edges[0])), nodes, weights, H.hvps)


def _quadrature(H: _Operator, rng: np.random.Generator, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of one random vector."""
    space, block = _Krylov(H), _start(H, None, 1, rng, "density")
    for _ in range(min(steps, H.size)):
        following = space.extend(block)
        if following is None:
            raise RopError("density: the operator gave NaN or Inf")
        if not following.size:
            break
        block = following
    nodes, vectors, _ = space.ritz()
    return nodes, vectors[0] ** 2


def trace(p: Any, products: int = 48, seed: Any = 0) -> Trace:
    """tr H by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

    A third of the products finds a basis Q of H's dominant directions, a third takes their trace exactly, and the rest
    is estimated from random signs g: tr H = tr QᵀHQ + E[gᵀ(I − QQᵀ) H (I − QQᵀ) g]. Q of full size leaves no rest.

    >>> import numpy as np
    >>> round(trace(np.diag([1.0, 2.0, 4.0]), products=9).value, 9)
    7.0
    """
    products = check_int("trace", "products", products, minimum=6)
    H, rng = _Operator(p, "trace"), _generator("trace", seed)
    third = min(products // 3, H.size)
    sketch = _finite_product(H, _signs(rng, H.size, third))
    Q = H.round(np.linalg.qr(sketch)[0])
    exact = float(np.sum(Q * _finite_product(H, Q)))
    if third == H.size:
        return Trace(exact, 0.0, H.hvps)
    probes = H.round(_without(_signs(rng, H.size, products - 2 * third), [Q]))
    samples = np.sum(probes * _finite_product(H, probes), axis=0)
    return Trace(exact + float(samples.mean()), float(samples.std(ddof=1)) / math.sqrt(samples.size), H.hvps)


def _signs(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return 2.0 * rng.integers(0, 2, (rows, columns)) - 1.0


def _finite_product(H: _Operator, block: Block) -> Block:
    product = H(block)
    if not np.isfinite(product).all():
        raise RopError("trace: the operator gave NaN or Inf")
    return product


# --------------------------------------------------------------------------------------- which pairs, and are they good
class _Pairs(NamedTuple):
    """Unit vectors, their products with H, Rayleigh quotients and residuals."""

    vectors: Block
    products: Block
    values: np.ndarray
    residuals: np.ndarray


@np.errstate(over="ignore", invalid="ignore")
def _true_pairs(H: _Operator, vectors: Block) -> _Pairs:
    """Rayleigh quotients and residuals from products of exactly these vectors."""
    vectors = H.round(vectors / _lengths(vectors))
    products = H(vectors)
    values = np.einsum("ij,ij->j", vectors, products)
    return _Pairs(vectors, products, values, _lengths(products - vectors * values))


def _eigen(H: _Operator, pairs: _Pairs, which: str, tol: float, iterations: int, sure: bool) -> Eigen:
    """The result; ``sure`` says that no other pair is wanted more."""
    order = _order(pairs.values, which)
    values, residuals = pairs.values[order], pairs.residuals[order]
    good = bool((residuals <= tol * np.abs(values)).all())  # False where anything is NaN
    return Eigen(values, pairs.vectors[:, order].astype(H.dtype), residuals, iterations, H.hvps, bool(sure) and good)


def _not_finite(H: _Operator, k: int, iterations: int) -> Eigen:
    """H gave NaN or Inf: there is nothing to report."""
    vectors = np.full((H.size, k), np.nan, H.dtype)
    return Eigen(np.full(k, np.nan), vectors, np.full(k, np.nan), iterations, H.hvps, False)


def _order(values: np.ndarray, which: str) -> np.ndarray:
    """The most wanted first."""
    return np.argsort({"LM": -np.abs(values), "LA": -values, "SA": values}[which], kind="stable")


def _ends(total: int, k: int, which: str) -> np.ndarray:
    """Of ascending eigenvalues, the places where the k wanted ones may be."""
    low, high = np.arange(min(k, total)), np.arange(max(total - k, 0), total)
    return {"LM": np.union1d(low, high), "LA": high, "SA": low}[which]


def _open(
    values: np.ndarray, residuals: np.ndarray, k: int, which: str, tol: float, watched: bool = False
) -> np.ndarray:
    """Which pairs have to improve: the k wanted ones while they are not converged, the others while they might, as far
    as their residuals tell, come before them (or, if they are watched, until they have come to rest)."""
    order, size = _order(values, which), np.abs(values)
    wanted, others = order[:k], order[k:]
    result = np.zeros(values.size, bool)
    result[wanted] = ~(residuals[wanted] <= tol * size[wanted])
    if which == "LM":
        result[others] = ~(size[others] + residuals[others] <= (1 + tol) * size[wanted[-1]])
    if watched:
        result[others] |= ~(residuals[others] <= tol * size.max())
    return result


# ------------------------------------------------------------------------------------------------------ small geometry
# BLAS divides even a dot product among its threads, which then wait in a loop for more to do and take the cores from
# the engine's threads: on two cores a Hessian-vector product of 2 ms took 8 to 16 ms after one. einsum is plain loops.
def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """aᵀ b of two blocks."""
    if a.size * b.shape[1] > FEW:
        return a.T @ b
    return np.einsum("ji,ki->jk", np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))


def _combinations(block: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """block · coefficients."""
    if block.size * coefficients.shape[1] > FEW:
        return block @ coefficients
    return np.einsum("jk,ji->ki", coefficients, np.ascontiguousarray(block.T)).T


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.einsum("i,i->", x, y))


def _length(x: np.ndarray) -> float:
    """‖x‖, also where squares overflow or vanish."""
    length = math.sqrt(_dot(x, x))
    if 1e-140 < length < 1e140:
        return length
    largest = float(np.abs(x).max(initial=0.0))
    return largest * math.sqrt(_dot(x / largest, x / largest)) if 0 < largest < math.inf else largest


def _lengths(block: Block) -> np.ndarray:
    """‖·‖ of every column."""
    return np.array([_length(column) for column in block.T])


def _without(block: np.ndarray, against: Sequence[np.ndarray]) -> np.ndarray:
    """The block without its components along orthonormal columns, each piece in its own precision."""
    columns = block.reshape(len(block), -1)
    for part in against:
        columns = columns - _combinations(part, _products(part, columns.astype(part.dtype, copy=False)))
    return columns.reshape(block.shape)


def _orthonormal(block: Block, against: Sequence[np.ndarray], least: float) -> Block:
    """Orthonormal directions in which columns, already without their components along ``against``, go beyond it.

    Those not longer than ``least`` are dropped. After the columns have length one the projection is repeated: twice is
    enough for orthogonality to rounding.
    """
    new: list[np.ndarray] = []
    for column in block.T:
        so_far = [np.stack(new, axis=1)] if new else []
        column = _without(column, so_far)
        length = _length(column)
        if not least < length < math.inf:
            continue
        column = _without(column / length, [*against, *so_far])
        new.append(column / _length(column))
    return np.stack(new, axis=1) if new else np.zeros((len(block), 0))


def _start(
    H: _Operator, v0: Any, width: int, rng: np.random.Generator, owner: str, against: Sequence[np.ndarray] = ()
) -> Block:
    """Orthonormal columns to start from: the user's first, then random ones; fewer if there is no room for more."""
    width = min(width, H.size - sum(part.shape[1] for part in against))
    given = np.zeros((H.size, 0)) if v0 is None else _check_start(owner, v0, H.size, width)
    columns = np.hstack([given / _lengths(given), rng.standard_normal((H.size, width))])
    columns[:, given.shape[1] :] /= math.sqrt(H.size)
    new = _orthonormal(_without(columns, against), against, ROUNDING * H.eps)
    return H.round(new[:, :width])


# ------------------------------------------------------------------------------------------------- checks at the door
def _problem(
    owner: str, p: Any, k: int, which: str, tol: float, maxiter: int, seed: Any
) -> tuple[_Operator, np.random.Generator]:
    """The operator and the random numbers, after checking what all solvers share."""
    check_int(owner, "k", k)
    check_choice(owner, "which", which, ("LM", "LA", "SA"))
    if check_float(owner, "tol", tol) < 0:
        raise ArgumentError(f"{owner}: tol must be at least 0, got {tol}")
    check_int(owner, "maxiter", maxiter)
    H = _Operator(p, owner)
    if k > H.size:
        raise ArgumentError(f"{owner}: expected k of at most {H.size}, the size of the operator, got {k}")
    return H, _generator(owner, seed)


def _check_single(owner: str, k: int, which: str, stop: str) -> None:
    if k != 1:
        raise ArgumentError(
            f"{owner}: expected k = 1, it finds one eigenvalue, got {k}; use rop.eigen.lanczos or "
            "rop.eigen.lobpcg for several"
        )
    if which != "LM":
        raise ArgumentError(
            f"{owner}: expected which='LM', got {which!r}; use rop.eigen.lanczos or rop.eigen.lobpcg "
            "for one end of the spectrum"
        )
    check_choice(owner, "stop", stop, ("relative", "paper"))


def _check_start(owner: str, v0: Any, size: int, width: int) -> Block:
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


def _generator(owner: str, seed: Any) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{owner}: seed must be a non-negative integer or a NumPy generator, got {seed!r}"
        ) from error
