"""K-FAC: what is read from the engine, the factors made of it, and the algebra with them."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import rop
from rop import eigen
from rop.activations import grams_of, pairs
from rop.curvature.kfac import Kfac, kfac, positions
from tests.helpers.zoo import normal, point
from tests.helpers.zoo import settings as zoo

ZOO = zoo()
BATCH = 37  # no multiple of a tile: some lanes do not count


def tied_in_two_orders() -> rop.Graph:
    """One Linear that reads a flattened image, whose rows the engine keeps in its own order, and a plain vector."""
    x, tied = rop.Input(), rop.Linear(12, 12)
    h = rop.Tanh()(rop.Conv2d(2, 3, 2, stride=2)(x))  # (3, 2, 2)
    return rop.Graph(x, rop.Linear(12, 3)(rop.Tanh()(tied(rop.Tanh()(tied(rop.Flatten()(h)))))))


def tied_convolution() -> rop.Graph:
    """One convolution on images of two sizes."""
    x, tied = rop.Input(), rop.Conv2d(2, 2, 3, padding=1)
    h = rop.AvgPool2d(2)(rop.ReLU()(tied(x)))
    return rop.Graph(x, rop.Linear(8, 3)(rop.Flatten()(rop.ReLU()(tied(h)))))


IMAGES = (2, 4, 4)
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (rop.Sequential(rop.Linear(5, 3)), (5,)),
    "no bias": (rop.Sequential(rop.Linear(5, 4, bias=False), rop.ReLU(), rop.Linear(4, 3, bias=False)), (5,)),
    "wide": (rop.Sequential(rop.Linear(5, 70), rop.ReLU(), rop.Linear(70, 71), rop.ReLU(), rop.Linear(71, 3)), (5,)),
    "padding": (rop.Sequential(rop.Conv2d(2, 3, 3, padding=1), rop.ReLU(), rop.Flatten(), rop.Linear(48, 3)), IMAGES),
    "stride": (
        rop.Sequential(
            rop.Tanh(),
            rop.Conv2d(2, 5, (2, 3), stride=(2, 1), padding=(1, 2)),
            rop.ReLU(),
            rop.MaxPool2d(2),
            rop.Flatten(),
            rop.Linear(15, 3),
        ),
        IMAGES,
    ),
    "dilation": (
        rop.Sequential(
            rop.Conv2d(2, 4, 2, dilation=(3, 2), padding=(0, 1)),
            rop.SiLU(),
            rop.AdaptiveAvgPool2d(1),
            rop.Flatten(),
            rop.Linear(4, 3),
        ),
        IMAGES,
    ),
    "groups": (
        rop.Sequential(
            rop.Conv2d(2, 6, 3, padding=1, groups=2),
            rop.ReLU(),
            rop.MaxPool2d(2),
            rop.Conv2d(6, 6, 1, groups=6, bias=False),
            rop.Flatten(),
            rop.Linear(24, 3),
        ),
        IMAGES,
    ),
    "tied": (tied_in_two_orders(), IMAGES),
    "tied convolution": (tied_convolution(), IMAGES),
    "relu before pool": (
        rop.Sequential(rop.Conv2d(2, 3, 3), rop.ReLU(), rop.MaxPool2d(2), rop.Flatten(), rop.Linear(3, 3)),
        IMAGES,
    ),
    "batchnorm": (
        rop.Sequential(
            rop.Conv2d(2, 3, 3, bias=False), rop.BatchNorm2d(3), rop.ReLU(), rop.Flatten(), rop.Linear(12, 3)
        ),
        IMAGES,
    ),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def objective(name: str, loss: Any = None, batch: int = BATCH, dtype: Any = np.float64, **options: Any) -> Any:
    net, shape = NETWORKS[name]
    x, y = normal(0, (batch, *shape)), np.random.default_rng(1).integers(3, size=batch)
    return rop.Objective(net, loss or rop.CrossEntropy(), x, y, dtype=dtype, **options)


def at(name: str, **options: Any) -> Any:
    return objective(name, **options).at(point(NETWORKS[name][0], 2, options.get("dtype", np.float64)))


# ---------------------------------------------------------------------------------------------------------------
# what is read from the engine
# ---------------------------------------------------------------------------------------------------------------


def gradient_from_pairs(p: Any) -> np.ndarray:
    """∇f of the linear and convolutional layers as Σ δ āᵀ, NaN for other parameters."""
    result = np.full(p.w.size, np.nan)
    for use in p.activations():
        places = positions(p.objective.net, use.layer)
        result[places] = np.where(np.isnan(result[places]), 0, result[places])
        for x, g in pairs(use):
            ones = np.ones((len(x), places.shape[2] - x.shape[1], x.shape[2]))
            result[places] += g @ np.concatenate([x, ones], axis=1).transpose(0, 2, 1)
    return result


def assert_is_the_gradient(p: Any, tol: float) -> None:
    made, grad = gradient_from_pairs(p), p.grad.astype(np.float64)
    names = {slot.name: slot for slot in p._f.net.slots}
    for slot in names.values():
        part = slice(slot.offset, slot.offset + slot.size)
        if isinstance(slot.layer, (rop.Linear, rop.Conv2d)):
            np.testing.assert_allclose(made[part], grad[part], atol=tol * np.abs(grad).max(), err_msg=slot.name)
        else:
            assert np.isnan(made[part]).all()


@every_network
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
def test_the_gradient_is_made_of_what_was_read(name: str, dtype: Any) -> None:
    """Inputs and output gradients are those of the layers: their products, summed up, are ∇f."""
    p = at(name, dtype=dtype)
    assert_is_the_gradient(p, 1e-12 if dtype == np.float64 else 1e-5)
    p.r2(normal(4, p.w.shape))  # higher orders leave it untouched
    assert_is_the_gradient(p, 1e-12 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("name", [name for name in ZOO if name != "residual"])
def test_the_gradient_of_larger_networks(name: str) -> None:
    assert_is_the_gradient(ZOO[name].objective(BATCH).at(point(ZOO[name].net, 0)), 1e-11)


@pytest.mark.parametrize("name", ["linear", "padding", "tied"])
def test_activations_that_are_not_kept_are_computed_again(name: str) -> None:
    kept = at(name, batch=5003)
    p = at(name, batch=5003, memory_limit=1 << 16)
    assert kept._f._workspace.kept and not p._f._workspace.kept, "the test must compare different ways"
    assert_is_the_gradient(p, 1e-11)
    for fisher in ("model", "empirical"):
        for one, other in zip(kfac(kept, fisher=fisher).blocks, kfac(p, fisher=fisher).blocks, strict=True):
            np.testing.assert_array_equal(one.A, other.A)
            np.testing.assert_array_equal(one.G, other.G)
    v = normal(0, p.w.shape)
    np.testing.assert_array_equal(p.hvp(v), kept.hvp(v))


@every_network
@pytest.mark.parametrize("layout", ["samples", "pixels"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=lambda dtype: dtype.__name__)
def test_sums_by_the_kernel_are_those_by_numpy(name: str, layout: str, dtype: Any) -> None:
    p = at(name, dtype=dtype, layout=layout)
    root = np.random.default_rng(3).uniform(size=BATCH)
    numpy = grams_of(p._workspace, p._position, root)
    for one, other in zip(p.grams(root), numpy, strict=True):
        assert (one.layer, one.places) == (other.layer, other.places)
        for ours, theirs in (one.inputs, other.inputs), (one.outputs, other.outputs):
            for A, B in zip(ours, theirs, strict=True):
                tol = 1e-13 if dtype == np.float64 else 1e-5
                np.testing.assert_allclose(A, B, rtol=0, atol=tol * np.abs(B).max())
                assert np.abs(A).max() > 0


def test_sums_do_not_depend_on_threads() -> None:
    p, found = at("padding", batch=5003), []
    for threads in (1, 2):
        before = numba.get_num_threads()
        numba.set_num_threads(min(threads, before))
        try:
            found.append([np.copy(A) for gram in p.grams(np.ones(5003)) for A in (*gram.inputs, *gram.outputs)])
        finally:
            numba.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_images_are_unfolded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    p, root = at("padding"), np.ones(BATCH)
    expected = grams_of(p._workspace, p._position, root)
    monkeypatch.setattr("rop.activations.PIECE", 1)
    for one, other in zip(expected, grams_of(p._workspace, p._position, root), strict=True):
        np.testing.assert_allclose(one.inputs, other.inputs, rtol=1e-12)
        np.testing.assert_allclose(one.outputs, other.outputs, rtol=1e-12, atol=1e-18)


# ---------------------------------------------------------------------------------------------------------------
# the factors
# ---------------------------------------------------------------------------------------------------------------


def test_factors_of_a_small_cnn_against_torch() -> None:
    """The same sums, written with torch's autograd and unfold."""
    p = at("padding")
    w = rop.Sequential.params(p._f.net, p.w.copy())
    x = torch.tensor(normal(0, (BATCH, *IMAGES)))
    y = torch.tensor(np.random.default_rng(1).integers(3, size=BATCH))
    parts = {name: torch.tensor(value) for name, value in w.items()}
    first = F.conv2d(x, parts["0.weight"], parts["0.bias"], padding=1).requires_grad_()
    hidden = F.relu(first).flatten(1)
    second = (hidden @ parts["3.weight"].T + parts["3.bias"]).requires_grad_()
    delta = torch.autograd.grad(F.cross_entropy(second, y, reduction="sum"), [first, second])

    def with_one(a: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, torch.ones_like(a[:, :1])], dim=1)

    a = with_one(F.unfold(x, 3, padding=1))  # (batch, channel and tap and 1, location)
    g = delta[0].flatten(2)
    expected = [
        (torch.einsum("nit,njt->ij", a, a) / BATCH, torch.einsum("nit,njt->ij", g, g) / (BATCH * 16)),
        (with_one(hidden).T @ with_one(hidden) / BATCH, delta[1].T @ delta[1] / BATCH),
    ]
    for block, (A, G) in zip(kfac(p, fisher="empirical").blocks, expected, strict=True):
        np.testing.assert_allclose(block.A, A.detach(), rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(block.G, G.detach(), rtol=1e-10, atol=1e-14)


def test_uses_of_a_tied_layer_count_like_locations() -> None:
    p = at("tied convolution")
    (tied,) = [block for block in kfac(p, fisher="empirical").blocks if block.layer == "0"]
    uses = [use for use in p.activations() if p.objective.net.name_of(use.layer) == "0"]
    inputs, outputs = 0.0, 0.0
    for use in uses:
        for x, g in pairs(use):
            a = np.concatenate([x[0], np.ones((1, x.shape[2]))])
            inputs, outputs = inputs + a @ a.T, outputs + g[0] @ g[0].T
    np.testing.assert_allclose(tied.A, inputs / BATCH, rtol=1e-12)
    np.testing.assert_allclose(tied.G, BATCH * outputs / (16 + 4), rtol=1e-12)  # 4×4 and 2×2 pixels


def identical(loss: Any, outputs: int, y: Any, last: tuple[Any, ...] = ()) -> Any:
    """A linear net on copies of one sample: there G ⊗ A is exact in expectation, and many copies come close to it."""
    net = rop.Sequential(rop.Linear(3, outputs), *last)
    x = np.tile(normal(0, (1, 3)), (len(y), 1))
    return rop.Objective(net, loss, x, y, dtype=np.float64).at(point(net, 1))


COPIES = 20_000
LABELS = np.arange(COPIES) % 4
EXACT: dict[str, Any] = {
    "cross-entropy": lambda: identical(rop.CrossEntropy(), 4, LABELS),
    "sum": lambda: identical(rop.CrossEntropy(reduction="sum"), 4, LABELS),
    "class weights": lambda: identical(rop.CrossEntropy(weight=[1.0, 0.0, 5.0, 2.0]), 4, LABELS),
    "weights, sum": lambda: identical(rop.CrossEntropy([1.0, 0.0, 5.0, 2.0], reduction="sum"), 4, LABELS),
    "label smoothing": lambda: identical(rop.CrossEntropy(label_smoothing=0.3), 4, LABELS),
    "left out": lambda: identical(rop.CrossEntropy(ignore_index=2, reduction="sum"), 4, LABELS),
    "log-probabilities": lambda: identical(rop.NLL(weight=[1.0, 2.0, 3.0, 1.0]), 4, LABELS, (rop.LogSoftmax(1),)),
    "squares": lambda: identical(rop.MSE(), 4, normal(3, (COPIES, 4))),
    "sum of squares": lambda: identical(rop.MSE(reduction="sum"), 4, normal(3, (COPIES, 4))),
    "bits": lambda: identical(rop.BCEWithLogits(), 4, np.random.default_rng(0).uniform(0, 1, (COPIES, 4))),
}


@pytest.mark.parametrize("name", EXACT)
def test_k_is_the_hessian_where_it_can_be(name: str) -> None:
    """Scale, weights and the drawn distribution are right: K → H with the number of copies."""
    p = EXACT[name]()
    eye = np.eye(p.w.size)
    dense, exact = kfac(p, draws=3).matvec(eye), p.hvp(eye)
    assert np.linalg.norm(dense - exact) <= 0.02 * np.linalg.norm(exact)


def test_one_linear_layer_with_squares() -> None:
    """H = 2/O · I ⊗ E[x̄ x̄ᵀ]: A is exact, and G is 2/O · I up to the noise of what was drawn."""
    net = NETWORKS["linear"][0]
    f = rop.Objective(net, rop.MSE(), normal(0, (400, 5)), normal(1, (400, 3)), dtype=np.float64)
    p = f.at(point(net, 0))
    (block,) = kfac(p, draws=100).blocks
    x = np.hstack([normal(0, (400, 5)), np.ones((400, 1))])
    np.testing.assert_allclose(block.A, x.T @ x / 400, rtol=1e-12)
    np.testing.assert_allclose(block.G, 2 / 3 * np.eye(3), atol=0.02)
    hessian = np.zeros((18, 18))
    hessian[block.index.reshape(-1, 1), block.index.reshape(-1)] = np.kron(2 / 3 * np.eye(3), block.A)
    np.testing.assert_allclose(p.hvp(np.eye(18)), hessian, atol=1e-12)


def test_draws_come_from_the_nets_own_distribution() -> None:
    """The model's Fisher matrix does not depend on the targets, the empirical one does."""
    p = at("padding")
    other = p._f.with_data(normal(0, (BATCH, *IMAGES)), np.zeros(BATCH, int)).at(p.w)
    for one, two in zip(kfac(p).blocks, kfac(other).blocks, strict=True):
        np.testing.assert_array_equal(one.G, two.G)
    assert any(
        not np.allclose(one.G, two.G)
        for one, two in zip(kfac(p, fisher="empirical").blocks, kfac(other, fisher="empirical").blocks, strict=True)
    )
    again, different = kfac(p, seed=0).blocks[0].G, kfac(p, seed=[0, 1]).blocks[0].G
    np.testing.assert_array_equal(again, kfac(p).blocks[0].G)
    assert not np.array_equal(again, different)


def test_outputs_with_pixels() -> None:
    """A class per pixel; targets are drawn for each."""
    net = rop.Sequential(rop.Conv2d(2, 3, 3, padding=1))
    y = np.random.default_rng(0).integers(3, size=(BATCH, 4, 4))
    f = rop.Objective(net, rop.CrossEntropy(), normal(0, (BATCH, *IMAGES)), y, dtype=np.float64)
    p = f.at(point(net, 0))
    dense, exact = kfac(p, draws=20).matvec(np.eye(net.size)), p.hvp(np.eye(net.size))
    assert 0.5 < np.trace(dense) / np.trace(exact) < 2, "K has the scale of H"
    assert np.linalg.norm(dense - exact) < 0.5 * np.linalg.norm(exact)


def test_a_point_is_what_it_was_after_kfac() -> None:
    p = at("padding")
    grad, v = p.grad, normal(0, p.w.shape)
    hvp, r2 = p.hvp(v), p.r2(v)
    for fisher in ("model", "empirical"):
        kfac(p, fisher=fisher)
        np.testing.assert_array_equal(p.r2(v), r2)
        np.testing.assert_array_equal(p.hvp(v), hvp)
        np.testing.assert_array_equal(p.grad, grad)


# ---------------------------------------------------------------------------------------------------------------
# the algebra
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "wide"])  # n² would be 32 million
def test_functions_of_k(name: str) -> None:
    p = at(name)
    n, eye = p.w.size, np.eye(p.w.size)
    K = kfac(p, damping=0.01)
    dense = K.matvec(eye)
    np.testing.assert_allclose(dense, dense.T, atol=1e-14)
    values = np.linalg.eigvalsh(dense)
    assert values.min() > -1e-12 and math.isclose(values.max(), K.largest, rel_tol=1e-9)
    np.testing.assert_allclose(K.solve(dense + 0.01 * eye), eye, atol=1e-9)
    v = normal(5, (n,))
    np.testing.assert_allclose(K.solve(v), np.linalg.solve(dense + 0.01 * eye, v), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(K.solve(np.stack([v, 2 * v], axis=1))[:, 1], 2 * K.solve(v), rtol=1e-12)
    shifted = K.shifted(margin=0.1)
    assert math.isclose(shifted.theta, 1.1 * K.largest)
    np.testing.assert_allclose(shifted.solve(shifted.theta * eye - dense), eye, atol=1e-9)


def test_parameters_outside_the_blocks_have_the_eigenvalue_zero() -> None:
    p = at("batchnorm")
    K, v = kfac(p, damping=0.5), np.ones(p.w.size)
    others = p._f.net.params(np.arange(p.w.size, dtype=float))
    for name in ("1.weight", "1.bias"):
        index = others[name].astype(int)
        assert not K.matvec(v)[index].any()
        np.testing.assert_array_equal(K.solve(v)[index], 2.0)


def test_theta_lies_above_the_spectrum() -> None:
    K = kfac(at("padding"))
    assert math.isclose(K.shifted(ritz=10 * K.largest, margin=0.5).theta, 15 * K.largest)
    assert K.shifted(2 * K.largest).theta == 2 * K.largest
    for theta in (K.largest, 0.0, -1.0):
        with pytest.raises(rop.ArgumentError, match="theta above"):
            K.shifted(theta)


def test_precision_follows_the_vector() -> None:
    K = kfac(at("padding", dtype=np.float32))
    for dtype in (np.float32, np.float64):
        assert K.solve(np.ones(K.shape[0], dtype)).dtype == K.matvec(np.ones(K.shape[0], dtype)).dtype == dtype


def test_groups_have_blocks_of_their_own() -> None:
    blocks = kfac(at("groups")).blocks
    assert [(block.layer, block.group, len(block.G), len(block.A)) for block in blocks] == [
        ("0", 0, 3, 10),
        ("0", 1, 3, 10),
        *[("3", group, 1, 1) for group in range(6)],
        ("5", 0, 3, 25),
    ]


def test_as_preconditioner() -> None:
    p = at("padding")
    expected = np.abs(np.linalg.eigvalsh(p.hvp(np.eye(p.w.size)))).max()
    K = kfac(p)
    for T in (K, K.shifted(), K.shifted(ritz=expected)):
        found = eigen.lobpcg(p, preconditioner=T, tol=1e-6)
        assert found.converged and math.isclose(found.rho, expected, rel_tol=1e-8)
    given = eigen.paper_lobpcg(p, preconditioner=kfac(p), maxiter=4)
    np.testing.assert_array_equal(eigen.paper_lobpcg(p, maxiter=4).vector, given.vector)


# ---------------------------------------------------------------------------------------------------------------
# the door
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"damping": -1.0}, rop.ArgumentError, "damping must be at least 0"),
        ({"damping": "1"}, rop.ArgumentTypeError, "damping"),
        ({"fisher": "exact"}, rop.ArgumentError, "'model', 'empirical'"),
        ({"seed": -1}, rop.ArgumentError, "seed"),
        ({"draws": 0}, rop.ArgumentError, "draws"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        kfac(at("linear"), **options)


def test_what_is_no_point_is_refused() -> None:
    with pytest.raises(rop.ArgumentTypeError, match=r"objective\.at\(w\)"):
        kfac(objective("linear"))


def test_vectors_are_checked() -> None:
    K = kfac(at("linear"), damping=0.0)
    assert repr(K) == "Kfac(1 blocks, n=18, damping=0)"
    for bad in (np.ones(17), np.ones((18, 2, 2)), np.ones(18, complex), 1.0):
        with pytest.raises(rop.ArgumentError, match=r"shape \(18,\) or \(18, m\)"):
            K.matvec(bad)
    with pytest.raises(rop.ArgumentError, match="damping above 0"):
        K.solve(np.ones(18))


def test_outputs_that_are_not_finite_are_refused() -> None:
    net = rop.Sequential(rop.Linear(2, 2))
    f = rop.Objective(net, rop.MSE(), 1e30 * np.ones((3, 2)), np.zeros((3, 2)))
    with pytest.raises(rop.RopError, match="not finite"):
        kfac(f.at(1e30 * np.ones(6)))


def test_a_net_without_layers_to_factor() -> None:
    net = rop.Sequential(rop.BatchNorm1d(3))
    p = rop.Objective(net, rop.MSE(), normal(0, (9, 3)), normal(1, (9, 3)), dtype=np.float64).at(point(net, 0))
    K = kfac(p)
    assert isinstance(K, Kfac) and not K.blocks and K.largest == 0
    np.testing.assert_array_equal(K.solve(np.ones(6)), 1000.0)
    with pytest.raises(rop.ArgumentError, match="theta above 0"):
        K.shifted()
