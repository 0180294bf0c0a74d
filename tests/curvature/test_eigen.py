"""Eigen-solvers: closed forms, dense Hessians, and that nothing is called converged that is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla
from hypothesis import given
from hypothesis import strategies as st

import rop
from rop import eigen
from tests.helpers.processes import run_python
from tests.helpers.zoo import normal, point
from tests.helpers.zoo import settings as zoo

ZOO = zoo()
SOLVERS: dict[str, Callable[..., eigen.Eigen]] = {
    "power": eigen.power,
    "lanczos": eigen.lanczos,
    "lobpcg": eigen.lobpcg,
    "paper_lobpcg": lambda p, **options: eigen.paper_lobpcg(p, **{"preconditioner": identity, **options}),
}
SEVERAL = {name: SOLVERS[name] for name in ("lanczos", "lobpcg")}

every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
every_subspace_solver = pytest.mark.parametrize("solve", SEVERAL.values(), ids=SEVERAL)
robust = pytest.mark.parametrize("solve", [eigen.power, eigen.lanczos, eigen.lobpcg])
both_precisions = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)


def identity(block: np.ndarray) -> np.ndarray:
    return block


def symmetric(values: Any, seed: int = 0) -> np.ndarray:
    """A dense matrix with these eigenvalues and random eigenvectors."""
    values = np.asarray(values, np.float64)
    basis = np.linalg.qr(normal(seed, (values.size, values.size)))[0]
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


def counting(matrix: np.ndarray) -> tuple[Any, list[int]]:
    """The matrix as an operator, and a list of the widths of what it was multiplied with."""
    widths: list[int] = []

    def apply(x: np.ndarray) -> np.ndarray:
        widths.append(1 if x.ndim == 1 else x.shape[1])
        return matrix @ x

    return spla.LinearOperator(matrix.shape, matvec=apply, matmat=apply, dtype=matrix.dtype), widths


def assert_honest(matrix: np.ndarray, found: eigen.Eigen, tol: float) -> None:
    """What a result says about itself is true."""
    vectors = found.vectors.astype(np.float64)
    k = found.values.size
    assert vectors.shape == (len(matrix), k) and found.residuals.shape == (k,)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1, atol=1e-6)
    residuals = np.linalg.norm(matrix.astype(np.float64) @ vectors - vectors * found.values, axis=0)
    rounding = 1e2 * np.finfo(matrix.dtype).eps * max(1e-300, np.linalg.norm(matrix.astype(np.float64)))
    np.testing.assert_allclose(found.residuals, residuals, rtol=1e-6, atol=rounding)
    if found.converged:
        assert (residuals <= tol * np.abs(found.values) + rounding).all()


def extreme(matrix: np.ndarray, k: int, which: str) -> np.ndarray:
    """The k wanted eigenvalues, by a dense solver."""
    values = np.linalg.eigvalsh(matrix)
    return values[np.argsort({"LM": -np.abs(values), "LA": -values, "SA": values}[which])[:k]]


# ---------------------------------------------------------------------------------------------------------------
# closed forms
# ---------------------------------------------------------------------------------------------------------------


@robust
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_dominant_eigenvalue_keeps_its_sign(solve: Any, sign: float) -> None:
    matrix = sign * symmetric([7.0, 3.0, -2.0, 1.0, 0.5, 0.0])
    found = solve(matrix, tol=1e-7)
    assert found.converged and math.isclose(found.value, sign * 7.0, rel_tol=1e-10) and found.rho == abs(found.value)
    assert_honest(matrix, found, 1e-7)


@every_subspace_solver
@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_either_end_and_both(solve: Any, which: str, k: int) -> None:
    matrix = symmetric([*np.linspace(-9, 4, 30), 11.0, -12.0, 7.0, 7.5, -10.5])
    found = solve(matrix, k=k, which=which, tol=1e-8)
    assert found.converged
    np.testing.assert_allclose(found.values, extreme(matrix, k, which), rtol=1e-12)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-6)
    assert_honest(matrix, found, 1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_eigenvalues_of_equal_size_and_opposite_sign(seed: int) -> None:
    """Power iteration cannot tell them apart and says so; the others find both."""
    matrix = symmetric([5.0, -5.0, 3.0, 1.0, -1.0, 0.0], seed)
    found = eigen.power(matrix, maxiter=300, seed=seed)
    assert not found.converged and found.iterations == found.hvps == 300
    for solve in SEVERAL.values():
        single = solve(matrix, tol=1e-8, seed=seed)
        assert single.converged and math.isclose(single.rho, 5.0, rel_tol=1e-9)
        found = solve(matrix, k=2, tol=1e-8, seed=seed)
        assert found.converged
        np.testing.assert_allclose(np.sort(found.values), [-5.0, 5.0], rtol=1e-9)


@every_subspace_solver
@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-4])
def test_the_slightly_larger_end_wins(solve: Any, gap: float) -> None:
    for sign in (1.0, -1.0):
        matrix = sign * symmetric([5.0, -(5.0 + gap), *np.linspace(-4, 4, 50)])
        found = solve(matrix, tol=1e-6)
        assert found.converged and math.isclose(found.value, -sign * (5 + gap), rel_tol=1e-7)


@every_subspace_solver
def test_a_cluster(solve: Any) -> None:
    matrix = symmetric([10.0, 10 - 1e-3, 10 - 2e-3, *np.linspace(0, 9, 60)])
    found = solve(matrix, k=3, which="LA", tol=1e-7, maxiter=3000)
    assert found.converged
    np.testing.assert_allclose(found.values, [10.0, 10 - 1e-3, 10 - 2e-3], rtol=1e-9)


@every_subspace_solver
@pytest.mark.parametrize(
    "values",
    [
        [5.0, 5.0, 5.0, *np.linspace(0, 4, 40)],  # among many others: no breakdown
        [2.0, 2.0, 2.0, -1.0, -1.0, 0.0],  # few distinct ones: the Krylov space ends early
        [3.0] * 8,  # a multiple of the identity: it ends at once
    ],
)
def test_multiple_eigenvalues_are_found_as_often_as_they_occur(solve: Any, values: list[float]) -> None:
    matrix = symmetric(values)
    for which in ("LA", "LM"):
        found = solve(matrix, k=3, which=which, tol=1e-8)
        assert found.converged
        np.testing.assert_allclose(found.values, values[0], rtol=1e-9)
        np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(3), atol=1e-7)


@both_precisions
def test_lanczos_finds_what_v0_has_no_part_in(dtype: Any) -> None:
    """Block-diagonal operators: v0 lives in the block with the small eigenvalues, and the space ends there."""
    matrix = scipy.sparse.block_diag([symmetric(np.linspace(1, 2, 6)), symmetric(np.linspace(-9, 3, 30))])
    matrix = matrix.toarray().astype(dtype)
    for width in (1, 3, 6):
        v0 = np.zeros(36)
        v0[:width] = 1
        found = eigen.lanczos(matrix, v0=v0)
        assert found.converged and math.isclose(found.value, -9, rel_tol=1e-5)
        assert eigen.lanczos(matrix, v0=v0, which="LA").value == pytest.approx(3, rel=1e-5)
        assert not eigen.lanczos(matrix, v0=v0, maxiter=6, which="LA").converged, "only one block was seen"


@robust
def test_a_start_in_the_null_space_says_nothing(solve: Any) -> None:
    matrix, v0 = np.diag([3.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
    found = solve(matrix, v0=v0)
    assert found.converged and math.isclose(found.value, 3.0, rel_tol=1e-5)
    assert not eigen.power(matrix, v0=v0, maxiter=1).converged
    for which in ("LA", "SA"):
        for solver in SEVERAL.values():
            signed = np.diag([2.0, -3.0, *np.linspace(-1, 1, 8), 0.0])
            assert abs(solver(signed, v0=np.eye(11)[10], which=which).value) > 1.9


@every_subspace_solver
def test_a_start_that_is_an_eigenvector_of_another_eigenvalue(solve: Any) -> None:
    values = np.array([9.0, 10.0, -1.0, *np.linspace(0, 4, 30)])
    for which in ("LM", "LA"):
        found = solve(np.diag(values), v0=np.eye(values.size)[0], which=which)
        assert found.converged and math.isclose(found.value, 10.0, rel_tol=1e-6)


@robust
def test_a_warm_start_is_worth_it(solve: Any) -> None:
    matrix = symmetric([10.0, *np.linspace(-9, 9, 60)])
    cold = solve(matrix, tol=1e-5)
    near = cold.vector + 1e-7 * normal(5, (61,))
    warm = solve(matrix, v0=near, tol=1e-4)
    assert warm.converged and warm.hvps < cold.hvps
    assert eigen.power(matrix, v0=near, tol=1e-4).hvps == 1


@robust
@both_precisions
def test_zero_has_the_spectral_radius_zero(solve: Any, dtype: Any) -> None:
    for v0 in (None, np.ones(20)):
        found = solve(np.zeros((20, 20), dtype), v0=v0)
        assert found.converged and found.rho == 0 and found.residuals[0] == 0 and found.hvps <= 6


@every_solver
def test_one_parameter(solve: Any) -> None:
    found = solve(np.array([[-2.5]]))
    assert found.converged and found.value == -2.5 and found.vectors.shape == (1, 1)


@every_subspace_solver
@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
def test_all_eigenvalues_at_once(solve: Any, which: str) -> None:
    for size in (1, 2, 7):
        matrix = symmetric(np.arange(size) - 2.3)
        found = solve(matrix, k=size, which=which, tol=1e-10)
        assert found.converged
        np.testing.assert_allclose(found.values, extreme(matrix, size, which), rtol=1e-9)


@every_solver
def test_a_single_iteration(solve: Any) -> None:
    matrix = symmetric(np.linspace(1, 2, 30))
    found = solve(matrix, maxiter=1)
    assert found.iterations == 1 and not found.converged
    assert_honest(matrix, found, 1e-3)


@every_solver
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("after", [0, 3])
def test_what_is_not_finite_never_converges(solve: Any, bad: float, after: int) -> None:
    """NaN from the start, and NaN that appears later."""
    matrix, calls = symmetric(np.linspace(-1, 2, 30)), 0

    def apply(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return matrix @ x * (bad if calls > after else 1.0)

    operator = spla.LinearOperator(matrix.shape, matvec=apply, matmat=apply, dtype=np.float64)
    for stop in ("relative", "paper") if solve in (eigen.power, SOLVERS["paper_lobpcg"]) else (None,):
        calls = 0
        found = solve(operator, tol=1e-6, maxiter=50, **({} if stop is None else {"stop": stop}))
        assert not found.converged and np.isnan(found.values).all() and calls <= 50
    assert not solve(np.full((4, 4), bad)).converged


@robust
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150, 1e300])
def test_any_scale(solve: Any, scale: float) -> None:
    """Squares of these numbers overflow or vanish."""
    matrix = symmetric([4.0, -2.0, 1.0, 0.5, 0.25]) * scale
    found = solve(matrix, tol=1e-5)
    assert found.converged == (abs(found.value / scale - 4) < 1e-8)
    assert found.converged or scale == 1e300


# ---------------------------------------------------------------------------------------------------------------
# what a result says about itself
# ---------------------------------------------------------------------------------------------------------------

ENTRIES = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0]), st.floats(-10, 10).map(lambda a: round(a, 3)))


@st.composite
def matrices(draw: Any) -> np.ndarray:
    """Symmetric matrices, many of them singular or with multiple eigenvalues."""
    n = draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n)] = draw(st.lists(ENTRIES, min_size=n * (n + 1) // 2, max_size=n * (n + 1) // 2))
    return (matrix + np.triu(matrix, 1).T).astype(dtype)


@given(matrix=matrices(), tol=st.sampled_from([1e-1, 1e-3, 1e-5]), seed=st.integers(0, 3), data=st.data())
def test_nothing_is_called_converged_that_is_not(matrix: np.ndarray, tol: float, seed: int, data: Any) -> None:
    n = len(matrix)
    k, which = data.draw(st.integers(1, n)), data.draw(st.sampled_from(["LM", "LA", "SA"]))
    maxiter = data.draw(st.sampled_from([1, 2, 5, 40]))
    v0 = data.draw(st.sampled_from([None, np.eye(n)[0], np.ones(n)]))
    common: dict[str, Any] = {"tol": tol, "seed": seed, "maxiter": maxiter, "v0": v0}
    for name, solve in SOLVERS.items():
        many = {"k": k, "which": which} if name in SEVERAL else {}
        operator, widths = counting(matrix)
        found = solve(operator, **common, **many)
        assert_honest(matrix, found, tol)
        assert found.hvps == sum(widths) and 1 <= found.iterations <= maxiter
        assert found.vectors.dtype == matrix.dtype and found.values.dtype == np.float64


@given(matrix=matrices(), seed=st.integers(0, 3), data=st.data())
def test_lanczos_with_enough_iterations_finds_the_wanted_ones(matrix: np.ndarray, seed: int, data: Any) -> None:
    """To rounding, whether or not a relative tolerance can be met (it cannot be for an eigenvalue zero)."""
    n = len(matrix)
    k, which = data.draw(st.integers(1, n)), data.draw(st.sampled_from(["LM", "LA", "SA"]))
    found = eigen.lanczos(matrix, k=k, which=which, tol=1e-7 if matrix.dtype == np.float64 else 1e-4, seed=seed)
    expected = extreme(matrix.astype(np.float64), k, which)
    size = np.abs(matrix).max() * n
    rounding = (1e-9 if matrix.dtype == np.float64 else 1e-4) * size
    if which == "LM":
        found_sizes, sizes = np.sort(np.abs(found.values)), np.sort(np.abs(expected))
        np.testing.assert_allclose(found_sizes, sizes, atol=rounding)
    else:
        np.testing.assert_allclose(found.values, expected, atol=rounding)


@every_solver
def test_the_pair_belongs_together_and_products_are_counted(solve: Any) -> None:
    """λ = vᵀHv for the v that is returned, whether the solver was stopped early or not."""
    matrix = symmetric(np.linspace(-1, 3, 40))
    for maxiter in (1, 2, 7, 500):
        operator, widths = counting(matrix)
        found = solve(operator, maxiter=maxiter)
        assert found.hvps == sum(widths)
        assert math.isclose(found.value, found.vector @ matrix @ found.vector, rel_tol=1e-12)
        assert_honest(matrix, found, 1e-3)


def test_equal_seeds_give_equal_bits() -> None:
    matrix = symmetric(np.linspace(-1, 3, 40))
    for solve in SOLVERS.values():
        first, again, other = solve(matrix, seed=3), solve(matrix, seed=3), solve(matrix, seed=[3, 1])
        np.testing.assert_array_equal(first.vectors, again.vectors)
        assert not np.array_equal(first.vectors, other.vectors)


def test_power_is_algorithm_1_with_the_residual_of_the_vector_that_was_multiplied() -> None:
    matrix = symmetric([4.0, 3.0, -2.0, 1.0])
    v = normal(0, (4,))
    found = eigen.power(matrix, v0=v, tol=1e-4)
    v = v / np.linalg.norm(v)
    for _ in range(found.iterations):
        u = matrix @ v
        value, residual, last = u @ v, np.linalg.norm(u - (u @ v) * v), v
        v = u / np.linalg.norm(u)
    assert residual <= 1e-4 * value
    np.testing.assert_allclose([found.value, found.residuals[0]], [value, residual], rtol=1e-9)
    np.testing.assert_allclose(found.vector, last, atol=1e-12)


def test_algorithm_2_to_the_letter() -> None:
    matrix, T, v = symmetric([4.0, 3.0, -2.0, 1.0]), symmetric([1.0, 2.0, 3.0, 4.0], 1), normal(0, (4,))
    found = eigen.paper_lobpcg(matrix, v0=v, preconditioner=T, alpha=eigen.usps_step, maxiter=3, tol=0.0)
    v = v / np.linalg.norm(v)
    for j in range(3):
        u = matrix @ v
        value, last = u @ v, v
        w = v + math.exp(-4 * j) * T @ (u - value * v)
        v = w / np.linalg.norm(w)
    assert found.iterations == found.hvps == 3
    np.testing.assert_allclose(found.vector, last, atol=1e-14)
    assert math.isclose(found.value, value, rel_tol=1e-14)


def test_the_papers_step_sizes_stand_still() -> None:
    """They shrink so fast that v stops moving; the solve ends there and does not claim an eigenvalue."""
    matrix = symmetric(np.linspace(0, 3, 50))
    found = eigen.paper_lobpcg(matrix, preconditioner=identity)
    assert not found.converged and found.iterations < 15
    assert eigen.paper_lobpcg(matrix, preconditioner=identity, stop="paper").converged


def test_the_published_stopping_rule() -> None:
    """An absolute residual, or a λ that changes little, which is not the same as an eigenvalue."""
    tie = eigen.power(symmetric([5.0, -5.0, 1.0]), stop="paper", tol=1e-3)
    assert tie.converged and tie.residuals[0] > 1 and tie.iterations < 40
    small = eigen.power(1e-4 * symmetric([5.0, 4.0, 1.0]), stop="paper", tol=1e-3)
    assert small.converged and small.iterations == 1
    found = eigen.power(symmetric([5.0, 1.0, 0.5]), stop="paper", tol=1e-9)
    assert found.converged and math.isclose(found.value, 5.0, rel_tol=1e-8)


# ---------------------------------------------------------------------------------------------------------------
# preconditioners
# ---------------------------------------------------------------------------------------------------------------


class Solver:
    """An object with a method solve."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def solve(self, block: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.matrix, block)


def test_preconditioners_of_every_kind_give_the_same() -> None:
    matrix = symmetric(np.linspace(0, 1, 80) ** 3)
    shifted = 1.01 * np.eye(80) - matrix + 0.01 * symmetric(np.linspace(0, 1, 80), 2)
    inverse = np.linalg.inv(shifted)
    kinds = [
        Solver(shifted),
        inverse,
        spla.aslinearoperator(inverse),
        scipy.sparse.csr_array(inverse),
        lambda block: inverse @ block,
    ]
    found = [eigen.lobpcg(matrix, which="LA", preconditioner=kind, tol=1e-7) for kind in kinds]
    plain = eigen.lobpcg(matrix, which="LA", tol=1e-7)
    for one in found:
        assert one.converged and one.iterations == found[0].iterations < plain.iterations
        assert math.isclose(one.value, 1.0, rel_tol=1e-10)


def test_which_preconditioner_suits_which_end() -> None:
    """An approximate inverse helps at the small end, (θI − H)⁻¹ at the large one; the wrong one hurts."""
    values = np.geomspace(1e-2, 1, 80)
    matrix = symmetric(values)
    near = matrix + 1e-3 * symmetric(np.linspace(0, 1, 80), 1)
    inverse, shifted = np.linalg.inv(near), np.linalg.inv(1.05 * np.eye(80) - near)

    def iterations(which: str, T: Any) -> int:
        found = eigen.lobpcg(matrix, which=which, preconditioner=T, tol=1e-4)
        assert math.isclose(found.value, values[-1 if which == "LA" else 0], rel_tol=1e-5)
        return found.iterations

    assert iterations("SA", inverse) < iterations("SA", None)
    assert iterations("LA", shifted) < iterations("LA", None) < iterations("LA", inverse)


def test_a_useless_preconditioner_does_not_stop_the_search() -> None:
    matrix = symmetric(np.linspace(-1, 3, 30))
    found = eigen.lobpcg(matrix, preconditioner=lambda block: 0 * block)
    assert found.converged and math.isclose(found.value, 3.0, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (lambda block: block[1:], rop.ArgumentError, "shape"),
        (lambda block: np.nan * block, rop.ArgumentError, "NaN or Inf"),
        ("kfac", rop.ArgumentTypeError, "solve"),
    ],
)
def test_bad_preconditioners_are_refused(bad: Any, error: Any, says: str) -> None:
    for solve in (eigen.lobpcg, eigen.paper_lobpcg):
        with pytest.raises(error, match=says):
            solve(symmetric(np.linspace(-1, 3, 30)), preconditioner=bad)


# ---------------------------------------------------------------------------------------------------------------
# Hessians
# ---------------------------------------------------------------------------------------------------------------


def networks() -> dict[str, Any]:
    """Small points in float64 with their dense Hessians: with positive and with negative dominant curvature."""
    tanh = rop.Sequential(rop.Linear(5, 6), rop.Tanh(), rop.Linear(6, 3))
    images = [rop.Conv2d(1, 3, 3, padding=1), rop.SiLU(), rop.MaxPool2d(2), rop.Flatten()]
    conv = rop.Sequential(*images, rop.Linear(12, 3))
    x, y = normal(0, (20, 5)), np.arange(20) % 3
    return {
        "tanh": (tanh, rop.CrossEntropy(), x, y, 0.0),
        "conv": (conv, rop.CrossEntropy(reduction="sum"), normal(1, (20, 1, 4, 4)), y, 0.0),
        "negative": (tanh, rop.MSE(), x, 30 * normal(2, (20, 3)), 0.5),
    }


NETWORKS = networks()
every_network = pytest.mark.parametrize("name", NETWORKS)


def objective(name: str, dtype: Any = np.float64) -> tuple[Any, np.ndarray]:
    net, loss, x, y, shift = NETWORKS[name]
    return rop.Objective(net, loss, x, y, dtype=dtype), point(net, 3, dtype) + dtype(shift)


@every_network
@both_precisions
def test_hessians_of_networks(name: str, dtype: Any) -> None:
    f, w = objective(name, dtype)
    p = f.at(w)
    exact, at = objective(name)
    dense = exact.at(at).hvp(np.eye(w.size))
    dense = (dense + dense.T) / 2
    tol = 1e-6 if dtype == np.float64 else 1e-3
    expected = extreme(dense, 3, "LM")
    for method in ("power", "lanczos", "lobpcg"):
        found = rop.spectral_radius(p, method=method, tol=tol, maxiter=5000)
        assert found.converged and found.vectors.dtype == dtype
        assert math.isclose(found.value, expected[0], rel_tol=1e-4)
        again = np.linalg.norm(p.hvp(found.vector).astype(np.float64) - found.value * found.vector.astype(np.float64))
        assert math.isclose(again, found.residuals[0], rel_tol=1e-6, abs_tol=1e-12)
    for solve in SEVERAL.values():
        np.testing.assert_allclose(solve(p, k=3, tol=tol, maxiter=5000).values, expected, rtol=2e-3)
        for which in ("LA", "SA"):
            found = solve(p, k=2, which=which, tol=tol, maxiter=5000)
            np.testing.assert_allclose(found.values, extreme(dense, 2, which), rtol=2e-3)


def test_the_negative_network_is_negative() -> None:
    f, w = objective("negative")
    assert eigen.lanczos(f.at(w)).value < 0


@every_network
def test_the_gradient_of_the_spectral_radius(name: str) -> None:
    """∇ρ = sign(λ) vᵀ∇H v against central differences of ρ."""
    f, w = objective(name)

    def rho(at: np.ndarray) -> float:
        return eigen.lanczos(f.at(at), tol=1e-9).rho

    p = f.at(w)
    found = eigen.lanczos(p, tol=1e-9)
    gradient = np.sign(found.value) * p.r2(found.vector)
    for seed in range(3):
        step = normal(seed, w.shape)
        h = 1e-5 / np.linalg.norm(step)
        slope = (rho(w + h * step) - rho(w - h * step)) / (2 * h)
        assert math.isclose(slope, gradient @ step, rel_tol=1e-4, abs_tol=1e-4 * np.linalg.norm(gradient))


@pytest.mark.parametrize("method", ["power", "lanczos", "lobpcg"])
def test_after_a_solve_the_point_is_ready_for_r2(method: str) -> None:
    """The vector that is returned was multiplied last, so its order-1 pass is still there."""
    f, w = objective("tanh", np.float32)
    p = f.at(w)
    found = rop.spectral_radius(p, method=method)
    space = p._workspace
    assert space._has_direction and np.array_equal(space.array("v0")[: w.size], found.vector)


# ---------------------------------------------------------------------------------------------------------------
# the whole spectrum
# ---------------------------------------------------------------------------------------------------------------


@both_precisions
def test_density_of_a_known_spectrum(dtype: Any) -> None:
    values = np.repeat([-1.0, 0.0, 2.0], [10, 70, 20])
    found = eigen.density(symmetric(values).astype(dtype), probes=40, steps=10, bandwidth=0.02)
    assert math.isclose(found.weights.sum(), 1, rel_tol=1e-6) and found.hvps <= 40 * 10
    step = found.grid[1] - found.grid[0]
    np.testing.assert_allclose(np.diff(found.grid), step)
    assert math.isclose(found.density.sum() * step, 1, rel_tol=1e-9) and found.density.min() >= 0
    for value, share in ((-1, 0.1), (0, 0.7), (2, 0.2)):
        near = np.abs(found.grid - value) < 0.5
        assert abs(found.density[near].sum() * step - share) < 0.05


def test_quadrature_is_exact_for_polynomials() -> None:
    """m nodes of one probe integrate polynomials of degree 2m − 1 against zᵀδ(t − H)z."""
    matrix = symmetric(np.linspace(-1, 2, 50))
    found = eigen.density(matrix, probes=1, steps=4, seed=7)
    z = np.random.default_rng(7).standard_normal((50, 1))
    z /= np.linalg.norm(z)
    for power in range(8):
        expected = float((z.T @ np.linalg.matrix_power(matrix, power) @ z).item())
        assert math.isclose(found.weights @ found.nodes**power, expected, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("bandwidth", [None, 1e-30, 1e-6, 10.0])
def test_density_integrates_to_one_at_any_bandwidth(bandwidth: float | None) -> None:
    for matrix in (np.zeros((5, 5)), 3 * np.eye(4), symmetric(np.linspace(-1, 2, 50)), np.array([[2.0]])):
        found = eigen.density(matrix, probes=2, points=64, bandwidth=bandwidth)
        width = np.ptp(found.grid) * 64 / 63  # a cell per point
        assert math.isclose(found.density.mean() * width, 1, rel_tol=1e-6) and found.density.min() >= 0


def test_trace_of_a_network() -> None:
    f, w = objective("conv")
    p = f.at(w)
    exact = float(np.trace(p.hvp(np.eye(w.size))))
    found = eigen.trace(p, products=60)
    assert abs(found.value - exact) <= 4 * found.error + 1e-9 * abs(exact) and found.hvps == 60
    complete = eigen.trace(p, products=3 * w.size)
    assert math.isclose(complete.value, exact, rel_tol=1e-9) and complete.error == 0 and complete.hvps == 2 * w.size


def test_trace_is_exact_for_low_rank_and_its_error_is_realistic() -> None:
    low = symmetric([5.0, -3.0, 2.0] + [0.0] * 60)
    assert math.isclose(eigen.trace(low, products=15).value, 4.0, rel_tol=1e-9)
    matrix = symmetric(np.linspace(-1, 3, 100))
    found = [eigen.trace(matrix, products=30, seed=seed) for seed in range(40)]
    deviations = np.array([(one.value - 100.0) / one.error for one in found])
    assert abs(deviations.mean()) < 1 and 0.5 < deviations.std() < 2


@pytest.mark.parametrize("measure", [eigen.density, eigen.trace])
def test_measures_refuse_what_is_not_finite(measure: Any) -> None:
    with pytest.raises(rop.RopError, match="NaN or Inf"):
        measure(np.full((4, 4), np.nan))


# ---------------------------------------------------------------------------------------------------------------
# the door
# ---------------------------------------------------------------------------------------------------------------

MATRIX = np.diag([3.0, 2.0, 1.0])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"k": 0}, rop.ArgumentError, "k must be at least 1"),
        ({"k": 4}, rop.ArgumentError, "at most 3"),
        ({"k": 1.0}, rop.ArgumentTypeError, "k must be an integer"),
        ({"which": "largest"}, rop.ArgumentError, "'LM', 'LA', 'SA'"),
        ({"tol": -1.0}, rop.ArgumentError, "tol"),
        ({"tol": math.nan}, rop.ArgumentError, "tol"),
        ({"maxiter": 0}, rop.ArgumentError, "maxiter"),
        ({"seed": "a"}, rop.ArgumentError, "seed"),
        ({"v0": np.zeros(3)}, rop.ArgumentError, "zero vector"),
        ({"v0": np.ones(4)}, rop.ArgumentError, r"shape \(3,\).*got \(4,\)"),
        ({"v0": np.ones((3, 3))}, rop.ArgumentError, "shape"),
        ({"v0": np.array([1.0, np.nan, 0.0])}, rop.ArgumentError, "NaN"),
        ({"v0": 1j * np.ones(3)}, rop.ArgumentTypeError, "complex"),
    ],
    ids=str,
)
@every_solver
def test_arguments_are_checked(solve: Any, options: dict[str, Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        solve(MATRIX, **options)


@every_solver
@pytest.mark.parametrize(
    ("p", "error", "says"),
    [
        ([[1.0]], rop.ArgumentTypeError, "rop.Point.*got list"),
        (np.ones((2, 3)), rop.ArgumentError, "square"),
        (np.zeros((0, 0)), rop.ArgumentError, "square"),
        (np.triu(np.ones((3, 3))), rop.ArgumentError, r"symmetric.*\(A \+ A.T\) / 2"),
        (1j * np.eye(3), rop.ArgumentTypeError, "real"),
    ],
)
def test_operators_are_checked(solve: Any, p: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        solve(p)


@pytest.mark.parametrize("name", ["power", "paper_lobpcg"])
def test_what_a_solver_cannot_do_is_refused_with_a_remedy(name: str) -> None:
    for options in ({"k": 2}, {"which": "LA"}, {"which": "SA"}):
        with pytest.raises(rop.ArgumentError, match=r"use rop\.eigen\.lanczos or rop\.eigen\.lobpcg"):
            SOLVERS[name](MATRIX, **options)
    with pytest.raises(rop.ArgumentError, match="'relative', 'paper'"):
        SOLVERS[name](MATRIX, stop="residual")
    with pytest.raises(rop.ArgumentTypeError, match="lambda j"):
        eigen.paper_lobpcg(MATRIX, preconditioner=identity, alpha=0.1)  # type: ignore[arg-type]
    with pytest.raises(rop.ArgumentError, match=r"made for a rop\.Point only"):
        eigen.paper_lobpcg(MATRIX)


def test_spectral_radius_names_its_methods() -> None:
    assert rop.spectral_radius(MATRIX).hvps == eigen.power(MATRIX).hvps
    with pytest.raises(rop.ArgumentError, match="'power', 'lanczos', 'lobpcg', 'paper_lobpcg'"):
        rop.spectral_radius(MATRIX, method="arnoldi")
    with pytest.raises(rop.ArgumentError, match=r"rop\.eigen\.lanczos for the ends"):
        rop.spectral_radius(MATRIX, method="lanczos", which="SA")
    assert rop.spectral_radius(MATRIX, method="lanczos", k=2).values.shape == (2,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: eigen.density(MATRIX, probes=0), "probes"),
        (lambda: eigen.density(MATRIX, steps=0), "steps"),
        (lambda: eigen.density(MATRIX, points=1), "points"),
        (lambda: eigen.density(MATRIX, bandwidth=0.0), "bandwidth"),
        (lambda: eigen.trace(MATRIX, products=2), "products must be at least 6"),
    ],
)
def test_arguments_of_the_measures_are_checked(call: Any, says: str) -> None:
    with pytest.raises(rop.ArgumentError, match=says):
        call()


def test_sparse_matrices_and_integers_are_operators_too() -> None:
    sparse = scipy.sparse.diags_array(np.array([4.0, -1.0, 2.0]))
    assert eigen.lanczos(sparse).value == pytest.approx(4)
    assert eigen.lobpcg(np.diag([4, -1, 2])).value == pytest.approx(4)


def test_rop_itself_loads_neither_scipy_nor_numba() -> None:
    code = "import sys, rop; print([m for m in ('scipy', 'numba') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"
    code = "import sys, rop; rop.spectral_radius, rop.eigen.power; print('numba' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"
