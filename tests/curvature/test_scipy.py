"""p.hessian() in SciPy's solvers: each gives the numbers of the dense Hessian, which torch computes in float64."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.linalg as dense
import scipy.sparse.linalg as sparse

import rop
from rop.check.reference import hessian

# what rounding costs, relative to the size of the result
PRECISIONS = pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-9), (np.float32, 2e-4)], ids=["64", "32"])


@cache
def problem() -> tuple[Any, Any, Any, np.ndarray]:
    """A net with a convolution and an indefinite Hessian: net, x, y, and w in float32."""
    rng = np.random.default_rng(0)
    net = rop.Sequential(
        rop.Conv2d(1, 2, 3), rop.Tanh(), rop.Flatten(), rop.Linear(2 * 3 * 3, 3), rop.SiLU(), rop.Linear(3, 3)
    )
    return net, rng.standard_normal((24, 1, 5, 5)), rng.integers(3, size=24), 2 * net.init(seed=1)


@cache
def reference() -> np.ndarray:
    net, x, y, w = problem()
    return hessian(net, rop.CrossEntropy(), x.astype(np.float32).astype(np.float64), y, w.astype(np.float64))


def point(dtype: Any) -> rop.Point:
    net, x, y, w = problem()
    return rop.Objective(net, rop.CrossEntropy(), x.astype(np.float32), y, dtype=dtype).at(w.astype(dtype))


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got: Any, expected: Any, tol: float) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=tol * np.abs(expected).max())


def test_the_problem_is_indefinite() -> None:
    values = np.linalg.eigvalsh(reference())
    assert values[0] < -0.01 * values[-1] < 0


# ---------------------------------------------------------------------------------------------------------- eigenvalues
@PRECISIONS
@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
def test_eigsh(dtype: Any, tol: float, which: str) -> None:
    H = point(dtype).hessian()
    found, vectors = sparse.eigsh(H, k=4, which=which, v0=normal(0, H.shape[0], dtype=dtype))
    values = np.linalg.eigvalsh(reference())
    wanted = {
        "LA": values[-4:],
        "SA": values[:4],
        "LM": values[np.sort(np.argsort(abs(values))[-4:])],
        "BE": values[[0, 1, -2, -1]],
    }[which]
    assert found.dtype == vectors.dtype == dtype
    close(np.sort(found), wanted, tol)
    close(reference() @ vectors, vectors * found, 10 * tol)


@PRECISIONS
def test_eigsh_inside_the_spectrum(dtype: Any, tol: float) -> None:
    """Shift and invert: SciPy solves (H − σI)x = b by an iterative solver of its own."""
    H, values = point(dtype).hessian(), np.linalg.eigvalsh(reference())
    sigma = (values[-3] + values[-4]) / 2
    found, _ = sparse.eigsh(H, k=2, sigma=sigma, v0=normal(0, H.shape[0], dtype=dtype), tol=1e-4 if tol > 1e-5 else 0)
    close(np.sort(found), values[[-4, -3]], 10 * tol)


@PRECISIONS
@pytest.mark.parametrize("largest", [True, False])
def test_lobpcg(dtype: Any, tol: float, largest: bool) -> None:
    H, values = point(dtype).hessian(), np.linalg.eigvalsh(reference())
    start = normal(0, H.shape[0], 3, dtype=dtype)
    found, vectors = sparse.lobpcg(H, start, largest=largest, maxiter=400, tol=1e-6 if tol < 1e-5 else 1e-4)
    assert found.dtype == vectors.dtype == dtype
    close(np.sort(found), values[-3:] if largest else values[:3], 10 * tol)


@PRECISIONS
def test_svds(dtype: Any, tol: float) -> None:
    H = point(dtype).hessian()
    close(np.sort(sparse.svds(H, k=2)[1]), np.sort(np.abs(np.linalg.eigvalsh(reference())))[-2:], tol)


# -------------------------------------------------------------------------------------------------------------- solvers
@PRECISIONS
def test_cg_takes_a_damped_newton_step(dtype: Any, tol: float) -> None:
    p = point(dtype)
    damping = 1.5 * abs(np.linalg.eigvalsh(reference())[0])
    shifted = p.hessian() + damping * sparse.aslinearoperator(np.eye(p.w.size, dtype=dtype))
    step, failed = sparse.cg(shifted, -p.grad, rtol=0.01 * tol)
    assert not failed
    close(step, dense.solve(reference() + damping * np.eye(p.w.size), -p.grad), 10 * tol)


@PRECISIONS
def test_minres_on_an_indefinite_hessian(dtype: Any, tol: float) -> None:
    H, b = point(dtype).hessian(), reference() @ normal(3, len(reference()))
    found, failed = sparse.minres(H, b, rtol=0.01 * tol, maxiter=2000)
    assert not failed
    close(reference() @ found, b, 10 * tol)


# ---------------------------------------------------------------------------------------------- functions of the matrix
@PRECISIONS
@pytest.mark.parametrize("factor", [-1.0, 2j], ids=["flow", "rotation"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=["vector", "block"])
@pytest.mark.parametrize("unit", [1, 1 + 2j], ids=["real", "complex"])
def test_expm_multiply(dtype: Any, tol: float, factor: complex, shape: tuple[int, ...], unit: complex) -> None:
    """Gradient flow of the quadratic model, e^(−tH) v, and e^(2itH) v."""
    H, v = point(dtype).hessian(), unit * normal(1, len(reference()), *shape, dtype=dtype)
    found = sparse.expm_multiply(factor * H, v, traceA=factor * np.trace(reference()))
    close(found, dense.expm(factor * reference()) @ v, 10 * tol)
    assert np.iscomplexobj(found) == (np.iscomplexobj(v) or isinstance(factor, complex))


@PRECISIONS
def test_expm_multiply_at_several_times_without_a_trace(dtype: Any, tol: float) -> None:
    H, v = point(dtype).hessian(), normal(1, len(reference()), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy says that it estimates the trace, by H.T
        found = sparse.expm_multiply(-1.0 * H, v, start=0.5, stop=2, num=4, endpoint=True)
    close(found, [dense.expm(-t * reference()) @ v for t in (0.5, 1, 1.5, 2)], 10 * tol)


@PRECISIONS
def test_one_norm(dtype: Any, tol: float) -> None:
    """SciPy's estimate is a random lower bound, with two columns too low for 4 of 1500 seeds, with six for none."""
    np.random.seed(0)
    close(sparse.onenormest(point(dtype).hessian(), t=6), dense.norm(reference(), 1), tol)


# --------------------------------------------------------------------------------------------------------- the operator
@PRECISIONS
def test_products_of_all_kinds(dtype: Any, tol: float) -> None:
    p = point(dtype)
    H, D, n = p.hessian(), reference(), p.w.size
    v, block = normal(1, n, dtype=dtype), normal(2, n, 3, dtype=dtype)
    assert isinstance(H, sparse.LinearOperator) and H.shape == (n, n) and H.dtype == dtype
    np.testing.assert_array_equal(H @ v, p.hvp(v))
    np.testing.assert_array_equal(H @ block, p.hvp(block))
    products = {
        "vector": (H @ v, D @ v),
        "column": (H @ v[:, None], D @ v[:, None]),
        "block": (H @ block, D @ block),
        "no columns": (H @ block[:, :0], D @ block[:, :0]),
        "fortran": (H @ np.asfortranarray(block), D @ block),
        "from the left": (v @ H, v @ D),
        "block from the left": (block.T @ H, block.T @ D),
        "transposed": (H.T @ v, D @ v),
        "adjoint": (H.H @ block, D @ block),
        "rmatvec": (H.rmatvec(v), D @ v),
        "rmatmat": (H.rmatmat(block), D @ block),
        "sum": ((H + H.T) @ v, 2 * D @ v),
        "negative": ((-H) @ v, -D @ v),
        "power": ((H**2) @ v, D @ (D @ v)),
        "product": ((H @ H) @ v, D @ (D @ v)),
        "float64": (H @ v.astype(np.float64), D @ v),
        "integers": (H @ np.arange(n), D @ np.arange(n)),
        "booleans": (H @ np.ones(n, bool), D @ np.ones(n)),
    }
    for name, (got, expected) in products.items():
        assert (got.dtype, got.shape) == (dtype, expected.shape), name
        if expected.size:
            close(got, expected, tol)


@PRECISIONS
@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_complex_vectors(dtype: Any, tol: float, kind: Any) -> None:
    """The precision of the result is that of the point, as for real vectors."""
    H, n = point(dtype).hessian(), len(reference())
    z, block = ((normal(1, *shape) + 1j * normal(2, *shape)).astype(kind) for shape in ((n,), (n, 3)))
    for got, expected in (
        (H @ z, reference() @ z),
        (H @ block, reference() @ block),
        (H.H @ z, reference() @ z),
        ((1j * H).H @ z, -1j * reference() @ z),
    ):
        assert got.shape == expected.shape
        close(got, expected, max(tol, 1e-6))
    assert (H @ z).dtype == (np.complex64 if dtype == np.float32 else np.complex128)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (lambda n: np.ones(n + 1), "mismatch"),
        (lambda n: np.full(n, np.nan), "NaN or Inf"),
        (lambda n: np.full(n, 1e300), "NaN or Inf .in float32"),
        (lambda n: np.full(n, 1j * np.inf), "NaN or Inf"),
        (lambda n: np.array(["a"] * n), "could not convert"),
    ],
)
def test_what_cannot_be_multiplied(vector: Any, message: str) -> None:
    H = point(np.float32).hessian()
    with pytest.raises(ValueError, match=message):
        H @ vector(H.shape[0])
