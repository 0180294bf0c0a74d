"""The Hessian as an operator: for SciPy, and for the solvers of this package.

    H(w) = ∇²f(w)        H v = ∂/∂r ∇f(w + r v) at r = 0, one pass of order 1; H itself is never formed

``Hessian`` is SciPy's view of a point. ``Operator`` is the solvers' view of a point, a LinearOperator or a matrix.

>>> import numpy as np, rop
>>> from scipy.sparse.linalg import eigsh
>>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
>>> x, y = np.random.default_rng(0).standard_normal((16, 3)), np.arange(16) % 2
>>> p = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(net.init(dtype=np.float64))
>>> bool(np.isclose(eigsh(p.hessian(), k=1, which="LA")[0][0], rop.eigen.lanczos(p, which="LA", tol=1e-8).value))
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from rop.arguments import as_array
from rop.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from scipy.sparse import sparray, spmatrix

    from rop.devices.cuda.vectors import Vector as DeviceVector
    from rop.objective import Point

__all__ = ["Hessian"]

Matrix: TypeAlias = "Point | LinearOperator | np.ndarray | spmatrix | sparray"  # symmetric; a point stands for its H(w)


class Hessian(LinearOperator):
    """H(w) of a point for SciPy: what ``Point.hessian()`` returns.

    H is real and symmetric, in the point's precision. Results have that precision for all operands: integers and
    float64 are rounded to it. Complex vectors are multiplied part by part, H(a + ib) = Ha + iHb.

    >>> import numpy as np, rop
    >>> from scipy.sparse.linalg import expm_multiply
    >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)), dtype="f8")
    >>> H = f.at(np.zeros(2)).hessian()                         # [[2, 2], [2, 2]]: eigenvalues 0 and 4
    >>> expm_multiply(1j * np.pi / 4 * H, np.array([1, 1]), traceA=1j * np.pi).round(12)
    array([-1.+0.j, -1.+0.j])
    """

    def __init__(self, point: Point):
        size = point.w.size
        super().__init__(dtype=point.w.dtype, shape=(size, size))
        self._point = point
        self.constants = point.objective.constants  # parts of vectors that it clears

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.asarray(x).reshape(-1))

    def _matmat(self, x: np.ndarray) -> np.ndarray:
        return self._product(np.asarray(x))

    def _product(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "c":
            result = np.empty(x.shape, np.result_type(self.dtype, np.complex64))
            result.real, result.imag = self._product(x.real), self._product(x.imag)
            return result
        with np.errstate(over="ignore"):  # a float64 may be too large for float32; hvp refuses the Inf it becomes
            return self._point.hvp(x.astype(self.dtype, copy=False))

    def _adjoint(self) -> Hessian:
        return self  # H is real and symmetric

    def _transpose(self) -> Hessian:
        return self


class Operator:
    """H as the solvers use it: float64 outside, its own precision inside, and a count of the products.

    Args:
        p: a rop.Point, a scipy LinearOperator or a symmetric matrix.
        owner: the solver, for error messages.
    """

    def __init__(self, p: Matrix, owner: str):
        self._p: Any = p  # its class has been checked before a method for points alone is called
        self._linear = linear_operator(p, owner)
        self.size: int = self._linear.shape[0]
        self.dtype = np.dtype(np.float32 if self._linear.dtype == np.float32 else np.float64)
        self.eps = float(np.finfo(self.dtype).eps)
        self.hvps = 0
        self._constants: tuple[slice, ...] = getattr(self._linear, "constants", ())
        self.dimension = self.size - sum(part.stop - part.start for part in self._constants)  # of what H acts on

    def variable(self, block: np.ndarray) -> np.ndarray:
        """A vector or block with zeros where w is constant: H maps such vectors onto such vectors, so a solver that
        starts with them sees the Hessian of the variables alone."""
        if self._constants:
            block = block.copy()
        for part in self._constants:
            block[part] = 0
        return block

    def round(self, x: np.ndarray) -> np.ndarray:
        """x in float64, with the digits that H will see."""
        return x.astype(self.dtype).astype(np.float64)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """H x for a vector (n,) or for the columns of a block (n, k)."""
        single = x.ndim == 1 or x.shape[1] == 1  # a single product leaves the point ready for r2 at this vector
        self.hvps += 1 if single else x.shape[1]
        x = x.astype(self.dtype, copy=False)
        product = self._linear.matvec(x) if single else self._linear.matmat(x)
        return np.asarray(product, np.float64).reshape(x.shape)

    @property
    def device(self) -> str:
        """Where products of a point are computed; other operators take vectors in the host's memory: "cpu"."""
        return str(getattr(getattr(self._p, "objective", None), "device", "cpu"))

    @property
    def parameters(self) -> Any:
        """w of a point: a NumPy array, or an array in a GPU's memory if the user gave one."""
        return self._p.w

    def on_device(self, v: DeviceVector) -> DeviceVector:
        """H v for a vector in the memory of a point's device, left there; it is valid until the next product."""
        self.hvps += 1
        return self._p.product(v)


def linear_operator(p: Any, owner: str) -> LinearOperator:
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
    with np.errstate(invalid="ignore"):  # Inf − Inf; the solvers report products that are not finite
        gap, size = np.abs(matrix - matrix.T).max(), np.abs(matrix).max()
    if gap > 1e3 * np.finfo(matrix.dtype).eps * size:
        raise ArgumentError(
            f"{owner}: expected a symmetric matrix, got one that differs from its transpose by {gap:g};"
            " use (A + A.T) / 2"
        )
