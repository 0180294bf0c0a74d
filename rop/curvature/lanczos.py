"""Block Lanczos: eigenpairs at the ends of the spectrum, with the fewest products of all solvers here.

    Q: an orthonormal basis of span{B, HB, H²B, …}        G = QᵀHQ        H Q = Q G + F·(last columns of Q)ᵀ

An eigenpair (θ, s) of the small matrix G gives the Ritz pair (θ, Qs) of H. Its residual ‖HQs − θQs‖ = ‖F s'‖, s' being
the components of s for the last block, costs no product. Q is kept whole and reorthogonalised in full, so that
converged eigenvalues are not found again.

>>> import numpy as np
>>> H = np.diag(np.linspace(-1.0, 2.0, 301))
>>> found = lanczos(H, k=2, which="SA", tol=1e-6)
>>> found.values.round(6), found.converged
(array([-1.  , -0.99]), True)
"""

from __future__ import annotations

from itertools import count

import numpy as np

from rop.curvature.common import (
    ROUNDING,
    Block,
    Eigen,
    Seed,
    Start,
    check_eigenproblem,
    ends,
    ranking,
    true_pairs,
    unsettled,
)
from rop.curvature.hessian import Matrix, Operator
from rop.devices.cpu.solver_vectors import combinations, lengths, orthonormal, products, without

__all__ = ["lanczos"]

CHUNK = 32  # columns by which a Krylov basis grows


@np.errstate(over="ignore", invalid="ignore")
def lanczos(
    p: Matrix, k: int = 1, which: str = "LM", tol: float = 1e-3, maxiter: int = 1000, v0: Start = None, seed: Seed = 0
) -> Eigen:
    """Block Lanczos with full reorthogonalisation: the eigenpairs of QᵀHQ, Q a basis of span{B, HB, H²B, …}.

    B has k columns, so an eigenvalue that occurs up to k times is found as often. Where the space ends (H leads nowhere
    new, as for an H of low rank or a v0 in one block of a block-diagonal H) it goes on with fresh random directions,
    unless everything has been seen. With "LM" both ends must be known well enough to tell which is larger. Residuals
    are checked by products before the answer is given. Memory: one vector per product. See ``rop.eigen`` for
    the arguments.

    >>> import numpy as np
    >>> lanczos(np.diag([2.0, 2.0, -5.0, 0.0]), k=3, which="LA").values.round(6) + 0.0
    array([2., 2., 0.])
    """
    problem = check_eigenproblem("lanczos", p, k, which, tol, maxiter, v0, seed)
    H = problem.H
    space, block, random, first, due = Krylov(H), problem.start(k, v0), v0 is None, 0, 0
    for iteration in count(1):
        following = space.extend(block)
        if following is None:
            return problem.not_finite(iteration)
        ended = following.shape[1] == 0
        complete = space.size == H.dimension or (ended and random)  # k random columns lead to every eigenvalue
        last = complete or iteration == maxiter
        if last or space.size >= due:
            begun = first > 0 and not space.settled(first, 1, which, tol)  # the new part may hold more
            sure = complete or (not ended and not begun and space.settled(0, k, which, tol))
            if last or sure:
                found = problem.result(true_pairs(H, space.ritz_vectors(k, which)), iteration, sure)
                if last or found.converged:
                    return found
            due = space.size + 1 + space.size // 10
        block = following
        if ended:
            block, random, first = problem.start(k, against=space.parts), True, space.size
    raise AssertionError("count() does not end")


class Krylov:
    """An orthonormal basis Q that grows by blocks, and G = QᵀHQ.

    H leads out of the span of Q from the last block alone: HQ = QG + F·(last columns of Q)ᵀ.
    """

    def __init__(self, H: Operator):
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
        inside = np.concatenate([products(part, product.astype(part.dtype)) for part in self.parts])
        if not np.isfinite(inside).all():
            return None
        self._reserve()
        self._matrix[: self.size, before : self.size] = inside  # in float64 from here on
        self._scale = max(self._scale, *lengths(product))
        left = without(product, self.parts)
        new = orthonormal(left, self.parts, ROUNDING * self._H.eps * self._scale)
        self._outside = products(new, left)
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
        return values, vectors, lengths(self._outside @ vectors[len(vectors) - self._outside.shape[1] :])

    def settled(self, first: int, k: int, which: str, tol: float) -> bool:
        """Whether the wanted pairs of G from a column on can be trusted."""
        values, _, residuals = self.ritz(first)
        carried = ends(len(values), k, which)
        return not unsettled(values[carried], residuals[carried], k, which, tol).any()

    def ritz_vectors(self, k: int, which: str) -> Block:
        """The k most wanted, (n, k)."""
        values, vectors, _ = self.ritz()
        chosen = vectors[:, ranking(values, which)[:k]]
        return sum(
            (combinations(part, chosen[i * CHUNK : i * CHUNK + part.shape[1]]) for i, part in enumerate(self.parts)),
            np.zeros((self._H.size, k)),
        )
