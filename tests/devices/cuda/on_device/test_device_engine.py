"""The engine on a GPU as a user sees it: vectors on either side, points and passes, memory, eigenvectors, training."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.devices import on_device
from rop.layers.base import Origin
from rop.training.run import TrainingStopped
from tests.devices.cuda.on_device.compare import by_passes, check_device
from tests.helpers.cuda_requests import PASSES
from tests.helpers.zoo import direction, labels, normal, point


@pytest.fixture
def cuda() -> Any:
    """numba.cuda, which only tests on a device may import."""
    from numba import cuda

    return cuda


def mlp(**options: Any) -> Any:
    """A small objective on a GPU."""
    net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
    return rop.Objective(net, rop.CrossEntropy(), normal(0, (5, 3)), labels(0, (5,), 2), dtype=np.float64, **options)


def same(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    """Equal up to rounding, wherever the arrays are."""
    a, b = host(a), host(b)
    assert a.shape == b.shape and a.dtype == b.dtype
    assert np.linalg.norm(a - b) <= tolerance * (1e-3 + np.linalg.norm(b))


def host(array: Any) -> np.ndarray:
    return array.copy_to_host() if on_device(array) else np.asarray(array)


# ---------------------------------------------------------------------------------------------------------------
# networks whose values are used several times, in other orders of rows, with tied parameters
# ---------------------------------------------------------------------------------------------------------------


def tied() -> Any:
    inner, norm = rop.Linear(4, 4), rop.BatchNorm1d(4)
    return rop.Sequential(rop.Linear(3, 4), rop.ReLU(), inner, norm, rop.ReLU(), inner, norm, rop.Linear(4, 2)), (3,)


def branches() -> Any:
    x = rop.Input()
    a = rop.Linear(3, 4)(x)
    b = rop.ReLU()(a)
    c = rop.Add()(b, rop.SiLU()(rop.Linear(4, 4)(b)), a)
    return rop.Graph(x, rop.Linear(12, 2)(rop.Concat()(c, rop.ReLU()(c), rop.Add()(c, c)))), (3,)


def images() -> Any:
    """Groups, strides, dilation and padding; a flattened image straight into a linear layer."""
    first = rop.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    return rop.Sequential(
        first,
        rop.ReLU(),
        rop.MaxPool2d((1, 2), stride=1),
        rop.Conv2d(4, 4, 1, groups=4, bias=False),
        rop.ReLU(),
        rop.Flatten(),
        rop.Linear(24, 2),
    ), (2, 3, 2)


def flattened() -> Any:
    """A flattened image that is normalised, added and given out, all in the user's order of features."""
    x = rop.Input()
    h = rop.Flatten()(rop.Conv2d(1, 2, 2)(x))
    return rop.Graph(x, rop.Add()(rop.BatchNorm1d(4)(h), h)), (1, 2, 3)


def rectified() -> Any:
    """ReLUs behind batchnorm and additions, whose gradients come from a product, from several uses, or are shared."""
    x = rop.Input()
    a = rop.ReLU()(rop.BatchNorm1d(4)(rop.Linear(3, 4)(x)))
    b = rop.ReLU()(rop.Add()(rop.BatchNorm1d(4)(rop.Linear(4, 4)(a)), a))
    c = rop.ReLU()(rop.BatchNorm1d(4)(rop.Linear(4, 4)(b)))
    d = rop.ReLU()(rop.Add()(rop.Linear(3, 4)(x), rop.Linear(4, 4)(b)))
    return rop.Graph(x, rop.Concat()(rop.Add()(c, d), rop.ReLU()(rop.BatchNorm1d(4)(rop.Linear(4, 4)(b))))), (3,)


def gated() -> Any:
    """Numbers for each channel and for each pixel, a square, and a flattened image times a vector and a number."""
    x = rop.Input()
    h = rop.Tanh()(rop.Conv2d(1, 2, 2)(x))
    mean = rop.AdaptiveAvgPool2d(1)(h)
    h = rop.Mul()(rop.Mul()(h, rop.Conv2d(2, 2, 1)(mean)), rop.Conv2d(2, 1, 1)(h))
    flat = rop.Flatten()(rop.Mul()(h, h))
    scaled = rop.Mul()(rop.Linear(2, 1)(rop.Flatten()(mean)), rop.Mul()(flat, rop.Linear(4, 4)(flat)))
    return rop.Graph(x, scaled), (1, 2, 3)


NETWORKS = [tied, branches, images, flattened, rectified, gated]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_networks_agree_with_the_cpu(network: Any, training: bool) -> None:
    net, shape = network()
    outputs = net.shapes(shape)[net.output]
    way = by_passes if training else rop.Objective.jet
    check_device(net, rop.MSE(), normal(0, (5, *shape)), normal(1, (5, *outputs)), np.float64, way, training=training)


# ---------------------------------------------------------------------------------------------------------------
# vectors on either side
# ---------------------------------------------------------------------------------------------------------------


def test_results_are_where_the_vectors_are(cuda: Any) -> None:
    f, on_cpu = mlp(device="cuda"), mlp()
    w, v = point(f.net, 0), direction(f.net, 0)
    dw, dv = cuda.to_device(w), cuda.to_device(v)
    expected = on_cpu.jet(w, v)
    for one, other in ((w, v), (dw, dv), (dw, v), (w, dv)):
        jet = f.jet(one, other)
        assert on_device(jet.grad) == on_device(one)
        assert on_device(jet.hvp) == on_device(jet.r2) == on_device(other)
        for name in ("grad", "hvp", "r2"):
            same(getattr(jet, name), getattr(expected, name))
    p = f.at(dw)
    assert on_device(p.grad) and on_device(p.w) and p.loss == pytest.approx(expected.loss, rel=1e-12)
    same(p.hvp(v), expected.hvp)
    assert isinstance(p.hvp(v), np.ndarray) and on_device(p.hvp(dv))
    dw.copy_to_device(np.zeros_like(w))  # the point has its own copy
    same(p.hvp(dv), expected.hvp)


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_of_vectors(cuda: Any, order: Any) -> None:
    f, on_cpu = mlp(device="cuda"), mlp()
    w, block = point(f.net, 0), np.asarray(normal(1, (f.net.size, 3)), order=order)
    expected = on_cpu.at(w).hvp(block)
    p = f.at(w)
    same(p.hvp(block), expected)
    result = p.hvp(cuda.to_device(block))
    assert on_device(result)
    same(result, expected)


def test_arrays_of_other_packages(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has the interface goes through Numba's own conversion (which the simulator has not)."""

    class Foreign:
        def __init__(self, values: np.ndarray) -> None:
            self.array = cuda.to_device(values)
            self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "data": (0, False)}

    monkeypatch.setattr(cuda, "as_cuda_array", lambda foreign: foreign.array, raising=False)
    f, on_cpu = mlp(device="cuda"), mlp()
    w, v = point(f.net, 0), direction(f.net, 0)
    expected, jet = on_cpu.jet(w, v), f.jet(Foreign(w), Foreign(v))
    for name in ("grad", "hvp", "r2"):
        assert on_device(getattr(jet, name))
        same(getattr(jet, name), getattr(expected, name))
    block = np.asfortranarray(np.stack([v, w], axis=1))
    same(f.at(Foreign(w)).hvp(Foreign(block)), on_cpu.at(w).hvp(block))
    found = rop.eigen.power(f.at(w), v0=Foreign(v[:, None]), maxiter=1)
    assert on_device(found.vectors) and found.hvps == 1


def test_results_belong_to_the_user(cuda: Any) -> None:
    """A later call does not change an earlier result."""
    f = mlp(device="cuda")
    w, v = cuda.to_device(point(f.net, 0)), cuda.to_device(direction(f.net, 0))
    p = f.at(w)
    first, grad = p.hvp(v), p.grad
    before = host(first).copy(), host(grad).copy()
    p.hvp(cuda.to_device(direction(f.net, 5)))
    f.jet(v, w)
    np.testing.assert_array_equal(host(first), before[0])
    np.testing.assert_array_equal(host(grad), before[1])


def test_what_is_refused(cuda: Any) -> None:
    f = mlp(device="cuda")
    w = point(f.net, 0)
    bad = w.copy()
    bad[3] = np.nan
    for wrong in (bad, cuda.to_device(bad)):
        with pytest.raises(rop.ArgumentError, match="w: expected finite"):
            f.at(wrong)
        with pytest.raises(rop.ArgumentError, match="v: expected finite"):
            f.at(w).hvp(wrong)
    assert np.isnan(mlp(device="cuda", check_finite=False).at(bad).loss)
    with pytest.raises(rop.ArgumentTypeError, match=r"expected a device array of float64.*float32"):
        f.at(cuda.to_device(w.astype(np.float32)))
    with pytest.raises(rop.ArgumentError, match="expected a vector of shape"):
        f.at(cuda.to_device(w[:-1].copy()))
    with pytest.raises(rop.ArgumentError, match="contiguous"):
        f.at(cuda.to_device(np.repeat(w, 2))[::2])


# ---------------------------------------------------------------------------------------------------------------
# points, data, copies
# ---------------------------------------------------------------------------------------------------------------


def test_points_batches_and_copies_share_one_device() -> None:
    f, on_cpu = mlp(device="cuda"), mlp()
    w, v = point(f.net, 0), direction(f.net, 0)
    p, q = f.at(w), f.at(-w)
    same(p.hvp(v), on_cpu.at(w).hvp(v))  # q's activations were in its place
    same(q.r2(v), on_cpu.at(-w).r2(v))
    x, y = normal(7, (3, 3)), labels(7, (3,), 2)
    other = f.with_data(x, y)
    same(other.jet(w, v).r2, on_cpu.with_data(x, y).jet(w, v).r2)
    same(p.r2(v), on_cpu.at(w).r2(v))
    taylor, expected = p.taylor(v), on_cpu.at(w).taylor(v)
    np.testing.assert_allclose(taylor, expected, rtol=1e-10)
    for clone in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert clone.device == "cuda"
        assert clone.at(w).loss == p.loss
    same(p.hessian() @ v, on_cpu.at(w).hessian() @ v)


def test_batch_statistics() -> None:
    net, shape = tied()
    x, y, w = normal(0, (6, *shape)), normal(1, (6, 2)), point(net, 0)
    on_cpu, f = (rop.Objective(net, rop.MSE(), x, y, dtype=np.float64, device=device) for device in ("cpu", "cuda"))
    expected, found = on_cpu.at(w).batch_stats, f.at(w).batch_stats
    assert list(found) == list(expected)
    for name in expected:
        same(found[name], expected[name])
    with pytest.raises(rop.ArgumentError, match="batch statistics need all activations at once"):
        rop.Objective(net, rop.MSE(), x, y, device="cuda", memory_limit=100)


def test_repeated_calls_give_the_same_bits() -> None:
    f = mlp(device="cuda")
    w, v = point(f.net, 0), direction(f.net, 0)
    first, again = f.jet(w, v), f.jet(w, v)
    passes = by_passes(f, w, v)
    for name in ("loss", "grad", "hvp", "r2"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        same(getattr(passes, name), getattr(first, name), 1e-14)


def test_nothing_is_read_before_it_was_written() -> None:
    f, fresh = mlp(device="cuda"), mlp(device="cuda")
    w, v = point(f.net, 0), direction(f.net, 0)
    expected = f.jet(w, v)
    space: Any = fresh._workspace
    space.poison()
    actual = fresh.jet(w, v)
    for name in ("loss", "grad", "hvp", "r2"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    p = fresh.at(w)
    space.poison()
    np.testing.assert_array_equal(p.r2(v), by_passes(f, w, v).r2)


def in_tiles(monkeypatch: pytest.MonkeyPatch, kept: int) -> tuple[rop.Objective, rop.Objective]:
    """A batch of 70 in tiles of 32, of which this number of orders is kept, on a GPU and on the CPU."""
    from rop.devices.cuda import workspace

    monkeypatch.setattr(workspace, "TILE_BYTES", 1)
    net = rop.Sequential(rop.Linear(2, 2), rop.SiLU(), rop.BatchNorm1d(2), rop.Linear(2, 1))
    x, y = normal(0, (70, 2)), normal(1, (70, 1))
    options: dict[str, Any] = {"dtype": np.float64, "training": False}
    space: Any = rop.Objective(net, rop.MSE(), x, y, device="cuda", **options)._workspace
    rows = max(space.lowered.layout.plane_sizes.values())
    f = rop.Objective(net, rop.MSE(), x, y, device="cuda", memory_limit=max(1, kept * rows * 96 * 8), **options)
    assert f._workspace.tiles == 3 and f._workspace.kept == kept
    return f, rop.Objective(net, rop.MSE(), x, y, device="cpu", **options)


@pytest.mark.parametrize("kept", [3, 1, 0])
def test_large_batches_are_cut_into_tiles(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Results do not depend on how much of a batch is kept."""
    f, cpu = in_tiles(monkeypatch, kept)
    w, v = point(f.net, 0), direction(f.net, 0)
    expected, found = by_passes(cpu, w, v), by_passes(f, w, v)
    for name in ("loss", "grad", "hvp", "r2"):
        same(getattr(found, name), getattr(expected, name))
    same(f.at(w).r2(v), expected.r2)
    kfac = rop.kfac.kfac(f.at(w), fisher="empirical")
    on_cpu = rop.kfac.kfac(cpu.at(w), fisher="empirical")
    for block, like in zip(kfac.blocks, on_cpu.blocks, strict=True):
        same(block.A, like.A)
        same(block.G, like.G)


# ---------------------------------------------------------------------------------------------------------------
# what is launched and what is allocated
# ---------------------------------------------------------------------------------------------------------------


def test_a_question_launches_the_orders_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jet is one sweep of all orders; at a point a product is order 1 alone and R² order 2 alone."""
    from rop.kernels.cuda.compile import Launch

    launched: list[Any] = []
    run = Launch.__call__

    def recorded(self: Any, *args: Any) -> None:
        launched.append(self.kernel)
        run(self, *args)

    monkeypatch.setattr(Launch, "__call__", recorded)

    def orders(call: Any) -> tuple[set[Any], int]:
        launched.clear()
        result = call()
        names = [kernel.factory.name for kernel in launched]
        assert names.count("bilinear.weight_gradient") == 2 and names.count("elementwise.forward") == 1
        assert result is not None
        found = {kernel.options["orders"] for kernel in launched if "orders" in kernel.options}
        return found, names.count("memory.load")

    f = mlp(device="cuda")
    w, v = point(f.net, 0), direction(f.net, 0)
    jet_orders, loads = orders(lambda: f.jet(w, v))
    assert jet_orders == {(0, 1, 2)} | {(0, 1)} and loads == 1  # (0, 1): behind the first layer order 2 is zero
    assert orders(lambda: f.at(w)) == ({(0,)}, 1)
    p = f.at(w)
    assert orders(lambda: p.hvp(v)) == ({(1,)}, 0)
    assert orders(lambda: p.r2(v)) == ({(2,)}, 0)
    assert orders(lambda: p.r2(-v)) == ({(1, 2), (1,), (2,)}, 0)  # (2,): the only parameter gradient that is wanted


def test_the_passes_are_those_whose_kernels_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question at a point with all, some and no orders kept, the solver, and training."""
    from rop.devices.cuda.workspace import CudaWorkspace

    passes: set[Any] = set()
    run, training = CudaWorkspace.run, False

    def noted(self: Any, orders: Any, results: Any, into: Any = None) -> Any:
        levels = tuple(k for k, _ in orders)
        wanted = tuple(levels[i] for i in results)
        passes.add((levels, wanted))
        if training:
            return run(self, orders, results, into)
        for k in wanted:  # what comes out does not matter: questions at a point do not depend on it
            self.result(k).copy_to_device(np.zeros(self.plan.graph.size))
        return [self.result(k) for k in wanted]

    monkeypatch.setattr(CudaWorkspace, "run", noted)
    for kept in (3, 1, 0):
        f, _ = in_tiles(monkeypatch, kept)
        w, v = point(f.net, 0), direction(f.net, 0)
        p = f.at(w)
        p.hvp(np.stack([v, -v], axis=1))
        p.hvp(v), p.r2(v), p.r2(-v), p.taylor(w), f.jet(w, v)
        rop.eigen.power(p, maxiter=1)
    training = True
    trained(device="cuda", epochs=1, **SETTINGS["power"])
    assert passes == set(PASSES)


def test_memory_is_allocated_once(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first calls, only results are allocated, and only those that stay on the device."""
    f = mlp(device="cuda")
    w, v = cuda.to_device(point(f.net, 0)), cuda.to_device(direction(f.net, 0))
    p = f.at(w)
    calls = {"hvp": lambda: p.hvp(v), "jet": lambda: f.jet(w, v), "r2": lambda: p.r2(v)}
    for call in calls.values():
        call()
    made: list[Any] = []

    def counted(make: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            made.append(args)
            return make(*args, **options)

        return call

    for name in ("device_array", "to_device"):
        monkeypatch.setattr(cuda, name, counted(getattr(cuda, name)))
    for name, results in {"hvp": 1, "jet": 3, "r2": 1}.items():
        made.clear()
        calls[name]()
        assert [shape for shape, _ in made] == [f.net.size] * results, name
    made.clear()
    rop.eigen.power(p, maxiter=6, tol=0.0)
    few = len(made)
    made.clear()
    rop.eigen.power(p, maxiter=2, tol=0.0)
    assert len(made) == few, "iterations of the power method allocate nothing"


# ---------------------------------------------------------------------------------------------------------------
# eigenvectors and K-FAC
# ---------------------------------------------------------------------------------------------------------------


def test_power_iteration_keeps_its_vectors_on_the_device(cuda: Any) -> None:
    f, on_cpu = mlp(device="cuda"), mlp()
    w = point(f.net, 0)
    expected = rop.spectral_radius(on_cpu.at(w), tol=1e-2, maxiter=60)
    p = f.at(cuda.to_device(w))
    found = rop.spectral_radius(p, tol=1e-2, maxiter=60)
    assert found.converged == expected.converged and found.hvps == expected.hvps
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    assert on_device(found.vectors) and on_device(found.vector)
    same(found.vector, expected.vector, 1e-8)
    same(p.r2(found.vector), on_cpu.at(w).r2(expected.vector), 1e-8)
    from_host = rop.spectral_radius(f.at(w), tol=1e-2, v0=expected.vector)
    assert isinstance(from_host.vectors, np.ndarray) and from_host.hvps == 1
    again = rop.spectral_radius(f.at(w), tol=1e-2, v0=found.vector)
    assert on_device(again.vectors) and again.hvps == 1
    lanczos, like = (rop.eigen.lanczos(one.at(w), k=1, tol=1e-1) for one in (f, on_cpu))
    np.testing.assert_allclose(lanczos.values, like.values, rtol=1e-9)


def test_kfac_reads_the_device() -> None:
    f, on_cpu = mlp(device="cuda"), mlp()
    w = point(f.net, 0)
    found, expected = (rop.kfac.kfac(one.at(w), seed=3) for one in (f, on_cpu))
    r = normal(2, (f.net.size, 2))
    same(found.solve(r), expected.solve(r), 1e-8)


# ---------------------------------------------------------------------------------------------------------------
# training
# ---------------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": rop.SGD(lr=0.3)},
    "momentum": {"optimizer": rop.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)},
    "adam": {"optimizer": rop.Adam(lr=0.03)},
    "power": {"optimizer": rop.SGD(lr=0.2), "regularizer": rop.SpectralRadius(mu=0.05, maxiter=2, clip=0.5)},
    "limited": {"optimizer": rop.SGD(lr=0.2), "regularizer": rop.SpectralRadius(mu=20.0, maxiter=2, limit=0.2)},
    "track": {"optimizer": rop.Adam(lr=0.02), "regularizer": rop.SpectralRadius(mu=0.05, solver="track")},
    "lanczos": {"optimizer": rop.SGD(lr=0.2), "regularizer": rop.SpectralRadius(mu=0.05, solver="lanczos", maxiter=2)},
}


def trained(**options: Any) -> rop.Fit:
    """A few steps of training in float64, with batchnorm."""
    net = rop.Sequential(rop.Linear(2, 3), rop.BatchNorm1d(3), rop.Tanh(), rop.Linear(3, 2))
    data = normal(0, (8, 2)), labels(0, (8,), 2)
    return rop.train(net, rop.CrossEntropy(), data, batch_size=4, **{"epochs": 2, "dtype": np.float64, **options})


@pytest.mark.parametrize("name", SETTINGS)
def test_training_takes_the_same_steps(name: str) -> None:
    expected, found = (trained(device=device, **SETTINGS[name]) for device in ("cpu", "cuda"))
    same(found.w, expected.w, 1e-8)
    for key, value in expected.state.items():
        same(found.state[key], value, 1e-8)
    for row, like in zip(found.history, expected.history, strict=True):
        assert list(row) == list(like)
        for column in set(row) - {"seconds", "accuracy"}:
            assert row[column] == pytest.approx(like[column], rel=1e-7, abs=1e-9), column
        if name != "lanczos":
            assert row["accuracy"] == like["accuracy"]


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    options = {"device": "cuda", **SETTINGS["power"]}
    whole = trained(**options)
    trained(epochs=1, checkpoint=tmp_path, **options)
    resumed = trained(checkpoint=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(resumed.w_last, whole.w_last)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


def test_a_run_may_go_on_elsewhere(tmp_path: Path) -> None:
    """A checkpoint of the CPU is continued on the device."""
    trained(epochs=1, checkpoint=tmp_path, **SETTINGS["momentum"])
    resumed = trained(checkpoint=tmp_path, resume=True, device="cuda", **SETTINGS["momentum"])
    same(resumed.w_last, trained(**SETTINGS["momentum"]).w_last, 1e-8)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_fit_goes_on_on_the_device(device: str) -> None:
    """With Adam's averages and the eigenvector, wherever it was begun; without the averages it would end elsewhere."""
    whole = trained(device="cuda", **SETTINGS["track"])
    first = trained(epochs=1, device=device, **SETTINGS["track"])
    then = trained(epochs=1, device="cuda", start=first, **SETTINGS["track"])
    same(then.w_last, whole.w_last, 1e-8)
    for name, array in whole.memory.items():
        same(then.memory[name], array, 1e-8)
    forgot = trained(epochs=1, device="cuda", w=first.w_last, state=first.state_last, **SETTINGS["track"])
    assert np.abs(forgot.w_last - whole.w_last).max() > 1e-4


def test_a_fit_goes_on_in_another_precision() -> None:
    first = trained(epochs=1, device="cuda", **SETTINGS["momentum"])
    then, like = (
        trained(epochs=1, device=device, start=first, dtype=np.float32, **SETTINGS["momentum"])
        for device in ("cuda", "cpu")
    )
    same(then.w_last, like.w_last, 1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the simulated kernels are Python, which warns of infinities
@pytest.mark.parametrize("solver", ["power", "lanczos"])
def test_parameters_stay_finite(solver: str, tmp_path: Path) -> None:
    """Those of the third of four steps would be infinite: the fit is that of the second."""
    given = {"regularizer": SETTINGS[solver]["regularizer"], "dtype": np.float32}
    optimizer = rop.SGD(lr=lambda k, epoch: np.where(k == 3, 1e39, 0.1), momentum=0.9)
    with pytest.raises(TrainingStopped, match="not finite after epoch 2, step 1") as stop:
        trained(device="cuda", optimizer=optimizer, checkpoint=tmp_path, **given)
    expected = trained(epochs=1, optimizer=rop.SGD(lr=0.1, momentum=0.9), **given)
    same(stop.value.fit.w_last, expected.w_last, 1e-5)
    same(stop.value.fit.memory["velocity"], expected.memory["velocity"], 1e-5)
    for key, value in expected.state_last.items():
        same(stop.value.fit.state_last[key], value, 1e-5)
    with np.load(tmp_path / "checkpoint.npz") as saved:
        np.testing.assert_array_equal(saved["w"], stop.value.fit.w_last)


# ---------------------------------------------------------------------------------------------------------------
# the benchmark
# ---------------------------------------------------------------------------------------------------------------


def test_the_benchmark_of_the_device_computes_the_same() -> None:
    """rop's engine of `rop bench --device cuda`, work by work, against the CPU's."""
    from rop.bench import engines
    from rop.bench.engines.cuda_engines import WORKS
    from rop.bench.problems import Activation, Linear, Problem

    problem = Problem("small", "", (3,), (Linear(3, 4), Activation("tanh"), Linear(4, 2)))
    data = problem.data(3, "float64")
    ours, cpu = engines.make("rop", 1, "cuda"), engines.make("rop", 1)
    assert set(ours.ways) == set(WORKS)
    for engine in (ours, cpu):
        engine.prepare(problem, 3, "float64", data)
    for work in WORKS:
        for way in ours.ways[work]:
            found = ours.quantities(work, ours.run(way, 0))
            for name, expected in cpu.quantities(work, cpu.run(way, 0)).items():
                same(found[name], expected)


# ---------------------------------------------------------------------------------------------------------------
# kinds of layers and losses
# ---------------------------------------------------------------------------------------------------------------


class Squares(rop.MSE):
    """Nothing but another name."""


class Absolute(rop.Loss):
    """A loss that nobody has formulas for."""


def test_losses_are_known_by_their_kind() -> None:
    net, x, y = rop.Sequential(rop.Linear(3, 2), rop.Tanh()), normal(0, (5, 3)), normal(1, (5, 2))
    w = net.init(dtype=np.float64)
    mine, theirs = (
        rop.Objective(net, loss, x, y, dtype=np.float64, device="cuda").at(w) for loss in (Squares(), rop.MSE())
    )
    assert mine.loss == theirs.loss and np.array_equal(host(mine.grad), host(theirs.grad))
    with pytest.raises(rop.ArgumentTypeError, match="Absolute"):
        rop.Objective(net, Absolute(), x, y, device="cuda")
    with pytest.raises(rop.ArgumentTypeError, match="Absolute"):
        rop.train(net, Absolute(), (x, y), batch_size=2, device="cuda")


def test_what_a_module_holds_fixed_is_constant(cuda: Any) -> None:
    """Vectors and blocks on either side, and eigenvectors, are those of the CPU; the user's own are left alone."""
    origin = Origin(True, np.dtype(np.float64), frozenset({"weight"}))
    net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2).coming_from(origin))
    x, y = normal(0, (5, 3)), labels(0, (5,), 2)
    f, g = (rop.Objective(net, rop.CrossEntropy(), x, y, device=device) for device in ("cuda", "cpu"))
    w, v, block = point(net, 0, np.float64), direction(net, 0, np.float64), normal(2, (net.size, 3))
    expected, copies = g.jet(w, v), (v.copy(), block.copy())
    on_gpu, block_on_gpu = cuda.to_device(v), cuda.to_device(block)
    for given in (v, on_gpu):
        for ours, theirs in zip(f.jet(w, given)[1:], expected[1:], strict=True):
            same(ours, theirs)
        same(f.at(w).r2(given), expected.r2)
    for given in (block, block_on_gpu):
        same(f.at(w).hvp(given), g.at(w).hvp(block))
    same(f.at(w).product(on_gpu), expected.hvp)
    assert not expected.hvp[16:24].any() and expected.hvp[:16].any()
    for now, before in ((on_gpu, copies[0]), (block_on_gpu, copies[1])):
        np.testing.assert_array_equal(host(now), before)
    rhos = [rop.spectral_radius(one.at(w), tol=1e-8, maxiter=2000).rho for one in (f, g)]
    assert rhos[0] == pytest.approx(rhos[1], rel=1e-6)


def test_each_batchnorm_may_have_a_mode_of_its_own() -> None:
    """One with running statistics in a net that uses those of the batch, as on the CPU."""
    evaluation = Origin(False, np.dtype(np.float64))
    net = rop.Sequential(
        rop.Linear(3, 4), rop.BatchNorm1d(4).coming_from(evaluation), rop.Tanh(), rop.Linear(4, 2), rop.BatchNorm1d(2)
    )
    x, y, state = normal(0, (37, 3)), labels(0, (37,), 2), net.init_state(np.float64)
    for number, name in enumerate(state):
        state[name] += normal(number, state[name].shape) ** 2
    f, g = (rop.Objective(net, rop.CrossEntropy(), x, y, state=state, device=device) for device in ("cuda", "cpu"))
    w, v = point(net, 0, np.float64), direction(net, 0, np.float64)
    for ours, theirs in zip(f.jet(w, v)[1:], g.jet(w, v)[1:], strict=True):
        same(ours, theirs)
    found, expected = f.at(w).batch_stats, g.at(w).batch_stats
    assert set(found) == set(expected) == {"4.running_mean", "4.running_var"}
    for name in expected:
        same(found[name], expected[name])
