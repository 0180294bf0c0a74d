"""SAM, SWA, entropy-SGD and K-FAC, each against an independent reference: torch code, NumPy or a closed form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import rop
from rop.kernels import draws
from rop.kernels.cpu.transfer import LONG
from rop.optim import Epoch, Memory, Step, describe, revive
from rop.optim.entropy_sgd import draws_of
from rop.training.compiled import CompiledSteps
from rop.training.report import Report
from rop.training.steps import Steps
from rop.training.stepwise import StepwiseSteps
from tests.training.test_trainer import fit, moons, wrong_type

BATCH, COUNT, SEED = 8, 40, 5  # samples of a step and of all data, and the seed
ROWS = [np.arange(first, first + BATCH) for first in range(0, COUNT, BATCH)]
NETS: dict[str, Callable[[], rop.Graph]] = {
    "mlp": lambda: rop.Sequential(rop.Linear(3, 6), rop.Tanh(), rop.Linear(6, 3)),
    "batchnorm": lambda: rop.Sequential(rop.Linear(3, 6), rop.BatchNorm1d(6), rop.Tanh(), rop.Linear(6, 3)),
}
MLP = NETS["mlp"]()
WAYS: list[type[Steps]] = [CompiledSteps, StepwiseSteps]


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((COUNT, 3)), rng.integers(3, size=COUNT)


def objective(net: rop.Graph, rows: np.ndarray, loss: Any = None, y: np.ndarray | None = None) -> rop.Objective:
    x, labels = data()
    return rop.Objective(net, loss or rop.CrossEntropy(), x[rows], (labels if y is None else y)[rows], dtype=np.float64)


def path(
    optimizer: Any, net: rop.Graph = MLP, penalty: Any = None, by: type[Steps] = StepwiseSteps, **given: Any
) -> list[np.ndarray]:
    """w after each step through the data in their order."""
    x, y = data()
    options = {"loss": rop.CrossEntropy(), "y": y, "w": net.init(3, np.float64), "seed": SEED, **given}
    steps = by(net, x=x, batch_size=BATCH, dtype=np.float64, optimizer=optimizer, regularizer=penalty, **options)
    schedules = {} if penalty is None else {"mu": penalty.mu, "tol": penalty.tol}
    found = []
    for i in range(steps.begin(np.arange(COUNT))):
        steps.run(i, 1, rate=optimizer.lr, **schedules)
        found.append(steps.w)
    return found


def closely(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10, err_msg=f"step {step}")


# ------------------------------------------------------------------------------------------------------------ in torch
class Torch:
    """The same net in torch, in training mode."""

    def __init__(self, net: rop.Graph):
        self.module = rop.to_torch(net, net.init(3, np.float64), net.init_state(np.float64)).train()
        x, y = data()
        self.x, self.y = torch.tensor(x), torch.tensor(y)

    @property
    def w(self) -> np.ndarray:
        return parameters_to_vector(self.module.parameters()).detach().numpy().copy()

    def gradient(self, rows: np.ndarray) -> torch.Tensor:
        """The gradient of a batch, also left in .grad."""
        self.module.zero_grad()
        torch.nn.functional.cross_entropy(self.module(self.x[rows]), self.y[rows]).backward()
        return torch.cat([p.grad.reshape(-1) for p in self.module.parameters()])

    def move(self, w: torch.Tensor) -> None:
        vector_to_parameters(w, self.module.parameters())

    def sam_step(self, rows: np.ndarray, base: torch.optim.Optimizer, radius: float, adaptive: bool) -> None:
        w = parameters_to_vector(self.module.parameters()).detach()
        g = self.gradient(rows)
        up = radius * (w**2 * g / torch.linalg.norm(w.abs() * g) if adaptive else g / torch.linalg.norm(g))
        self.move(w + up)
        self.gradient(rows)
        self.move(w)
        base.step()


BASES: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (rop.SGD(lr=0.2), lambda p: torch.optim.SGD(p, lr=0.2)),
    "nesterov": (
        rop.SGD(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.05),
    ),
    "adam": (rop.Adam(lr=0.02, weight_decay=0.05), lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.05)),
}


# ----------------------------------------------------------------------------------------------------------------- SAM
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("adaptive", "radius"), [(False, 0.1), (True, 1.0)], ids=["sam", "asam"])
@pytest.mark.parametrize("by", WAYS)
def test_sam_is_that_of_torch_step_by_step(by: type[Steps], adaptive: bool, radius: float, base: str, net: str) -> None:
    ours, theirs = BASES[base]
    reference = Torch(NETS[net]())
    optimizer, expected = theirs(reference.module.parameters()), []
    for rows in ROWS:
        reference.sam_step(rows, optimizer, radius, adaptive)
        expected.append(reference.w)
    closely(path(rop.SAM(ours, radius=radius, adaptive=adaptive), NETS[net](), by=by), expected)


def test_sam_takes_batchnorms_statistics_at_w() -> None:
    net, (x, y) = NETS["batchnorm"](), data()
    given: dict[str, Any] = {"epochs": 1, "batch_size": COUNT, "dtype": np.float64, "seed": 3}
    far, near = (
        rop.train(net, rop.CrossEntropy(), (x, y), optimizer=optimizer, **given).state
        for optimizer in (rop.SAM(radius=3.0), rop.SGD())
    )
    for name, array in near.items():
        np.testing.assert_allclose(far[name], array, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("by", WAYS)
def test_sam_without_a_radius_or_without_a_gradient_is_its_base(by: type[Steps]) -> None:
    closely(path(rop.SAM(rop.SGD(lr=0.2), radius=0.0), by=by), path(rop.SGD(lr=0.2)))
    zero: dict[str, Any] = {"loss": rop.MSE(), "y": np.zeros((COUNT, 3)), "w": np.zeros(MLP.size)}
    assert not np.any(path(rop.SAM(), by=by, **zero)[-1])


@pytest.mark.parametrize("by", WAYS)
def test_the_penalty_of_sam_is_that_of_w_and_leaves_the_ascent_alone(by: type[Steps]) -> None:
    penalty = rop.SpectralRadius(mu=0.3, tol=1e-12, maxiter=2000, limit=None)
    found = path(rop.SAM(rop.SGD(lr=0.2), radius=0.1), penalty=penalty, by=by)[0]
    w, f = MLP.init(3, np.float64), objective(MLP, ROWS[0])
    p = f.at(w)
    e = rop.spectral_radius(p, tol=1e-12, maxiter=5000)
    slope = np.sign(e.values[0]) * p.r2(e.vectors[:, 0])  # ∇ρ
    expected = w - 0.2 * (f.at(w + 0.1 * p.grad / np.linalg.norm(p.grad)).grad + 0.3 * slope)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


# ----------------------------------------------------------------------------------------------------------------- SWA
@pytest.mark.parametrize("base", [*BASES, "sam"])
def test_swa_is_that_of_torch(base: str) -> None:
    """Three epochs of torch's optimizer, and torch's own average of the last two."""
    ours, theirs = BASES["nesterov" if base == "sam" else base]
    reference, net = Torch(MLP), MLP
    optimizer = theirs(reference.module.parameters())
    average = torch.optim.swa_utils.AveragedModel(reference.module)
    for epoch in (1, 2, 3):
        order = np.random.default_rng([SEED, epoch]).permutation(COUNT)
        for rows in order.reshape(-1, BATCH):
            if base == "sam":
                reference.sam_step(rows, optimizer, 0.05, False)
            else:
                reference.gradient(rows)
                optimizer.step()
        if epoch >= 2:
            average.update_parameters(reference.module)
    optimizer_of_ours = rop.SWA(rop.SAM(ours) if base == "sam" else ours, first=2)
    given: dict[str, Any] = {"epochs": 3, "batch_size": BATCH, "dtype": np.float64, "seed": SEED}
    found = rop.train(net, rop.CrossEntropy(), data(), optimizer=optimizer_of_ours, w=net.init(3, np.float64), **given)
    closely([found.w_last], [reference.w])
    closely([found.w], [parameters_to_vector(average.module.parameters()).detach().numpy()])


def test_the_average_has_batchnorm_statistics_of_its_own() -> None:
    """Those over the training data at the averaged parameters, which validation uses as well."""
    net, (x, y), ends = NETS["batchnorm"](), data(), list[np.ndarray]()
    found = rop.train(
        net,
        rop.CrossEntropy(),
        (x, y),
        validation=(x, y),
        epochs=5,
        batch_size=BATCH,
        dtype=np.float64,
        optimizer=rop.SWA(rop.SGD(lr=0.3), first=2, every=2, last=4),
        callbacks=[lambda row, so_far: ends.append(so_far.w_last)],
    )
    mean = (ends[1] + ends[3]) / 2
    statistics = [objective(net, rows).at(mean).batch_stats for rows in ROWS]
    state = {name: np.mean([one[name] for one in statistics], axis=0) for name in found.state}
    loss, accuracy = rop.evaluate(net, rop.CrossEntropy(), mean, x, y, state=state)
    assert found.history[4]["valid_loss"] == pytest.approx(loss, abs=1e-10)
    assert found.history[4]["valid_accuracy"] == accuracy == found.history[3]["valid_accuracy"]
    assert found.history[1]["valid_loss"] != found.history[0]["valid_loss"]


def test_without_validation_the_last_average_is_the_result() -> None:
    ends: list[np.ndarray] = []
    found = fit(
        optimizer=rop.SWA(rop.SGD(lr=0.3), first=3),
        regularizer=None,
        callbacks=[lambda row, so_far: ends.append(so_far.w_last)],
    )
    np.testing.assert_allclose(found.w, np.mean(ends[2:], axis=0), atol=1e-6)
    assert found.memory["swa_count"].tolist() == [2]


def test_swa_calls_the_end_of_an_epoch_of_its_base() -> None:
    class Ending(rop.SGD):
        def end_epoch(self, epoch: Epoch, memory: Memory) -> None:
            epoch.w[:] = epoch.number

    found = fit(optimizer=rop.SWA(Ending(), first=2, last=3), regularizer=None)
    assert set(found.w) == {2.5}


def test_the_schedule_of_the_asymmetric_valley() -> None:
    lr = rop.piecewise_linear(((80.5, 0.5), (144.9, 0.05), (200, 0.05), (201, 0.5)))
    rates = {epoch: lr(np.arange(3), epoch) for epoch in (1, 80, 113, 145, 161, 200, 201, 250)}
    assert [rates[epoch] for epoch in (1, 80, 145, 161, 200, 201, 250)] == [0.5, 0.5, 0.05, 0.05, 0.05, 0.5, 0.5]
    assert rates[113] == pytest.approx(0.5 - 0.45 * (113 / 161 - 0.5) / 0.4)


# --------------------------------------------------------------------------------------------------------- entropy-SGD
def langevin_path(optimizer: rop.EntropySGD) -> Iterator[np.ndarray]:
    """Algorithm 1 of Chaudhari et al., with the random numbers of the step."""
    o, x = optimizer, MLP.init(3, np.float64)
    velocity = np.zeros_like(x)
    for t, own in enumerate(ROWS):
        gamma = min(o.gamma * (1 + o.scoping) ** t, 1 / o.inner_lr)
        inner = mean = x
        for i in range(o.steps):
            batch, of_noise = draws_of(SEED, t + 1, i)
            rows = np.array(draws.distinct(BATCH, COUNT, batch)) if i else own
            gradient = objective(MLP, rows).at(inner).grad + o.weight_decay * inner
            noise = draws.normals(x.size, of_noise)
            inner = inner - o.inner_lr * (gradient - gamma * (x - inner)) + np.sqrt(o.inner_lr) * o.noise * noise
            mean = o.beta * mean + (1 - o.beta) * inner
        velocity = o.momentum * velocity + (x - mean)
        x = x - o.lr * ((x - mean) + o.momentum * velocity if o.nesterov else velocity)
        yield x


ENTROPY = {
    "defaults": rop.EntropySGD(),
    "noise and pull": rop.EntropySGD(lr=0.5, steps=4, gamma=0.5, scoping=0.3, noise=0.1, beta=0.6),
    "capped": rop.EntropySGD(lr=0.5, steps=4, gamma=3.0, scoping=1.0, inner_lr=0.2, weight_decay=0.1),
    "plain momentum": rop.EntropySGD(lr=0.5, momentum=0.5, nesterov=False, steps=1),
    "no momentum, no pull": rop.EntropySGD(lr=1.0, momentum=0.0, nesterov=False, steps=3, gamma=0.0),
}


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("name", ENTROPY)
def test_entropy_sgd_is_its_algorithm(name: str, by: type[Steps]) -> None:
    closely(path(ENTROPY[name], by=by), list(langevin_path(ENTROPY[name])))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_entropy_sgd_is_that_in_python_with_a_partial_batch_too(net: str, dtype: Any) -> None:
    (x, y), made, ways = data(), NETS[net](), []
    for by in WAYS:
        optimizer = rop.EntropySGD(lr=0.5, steps=3, noise=0.1)
        options: dict[str, Any] = {"batch_size": 12, "w": made.init(3, np.float64), "seed": SEED, "dtype": dtype}
        steps = by(made, rop.CrossEntropy(), x, y, optimizer=optimizer, **options)
        count = steps.begin(np.arange(COUNT), partial_batch=True)
        reports = steps.run(0, count, rate=0.5)
        ways.append((steps.w, *steps.state.values(), reports[:, Report.LOSS]))
    for one, other in zip(*ways, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 if dtype == np.float64 else 2e-4)


def test_entropy_sgd_of_many_parameters_has_the_same_bits_with_any_number_of_threads() -> None:
    net, found = rop.Sequential(rop.Linear(3, LONG // 3), rop.Tanh(), rop.Linear(LONG // 3, 3)), []
    for threads in (1, 2):
        before = numba.get_num_threads()
        numba.set_num_threads(min(threads, before))
        try:
            found.append(path(rop.EntropySGD(steps=2), net, by=CompiledSteps))
        finally:
            numba.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[1])


def test_entropy_sgd_without_inner_steps_is_sgd() -> None:
    """To the bit, with a penalty too."""
    sgd = rop.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for penalty in (None, rop.SpectralRadius(mu=0.1)):
        found = path(rop.EntropySGD(lr=0.1, steps=0, weight_decay=0.01), penalty=penalty)
        np.testing.assert_array_equal(found, path(sgd, penalty=penalty))


def test_scoping_grows_up_to_the_inverse_of_the_inner_rate() -> None:
    o = rop.EntropySGD(gamma=0.5, scoping=0.1, inner_lr=0.25)
    assert o.scope(0) == 0.5 and o.scope(3) == pytest.approx(0.5 * 1.1**3) and o.scope(10**9) == pytest.approx(4.0)
    assert rop.EntropySGD(gamma=0.0).scope(5) == 0.0 and rop.EntropySGD(gamma=50.0).scope(0) == 10.0


# --------------------------------------------------------------------------------------------------------------- K-FAC
TIED = rop.Linear(5, 5)
KFAC_NETS: dict[str, rop.Graph] = {
    "mlp": MLP,
    "no bias": rop.Sequential(rop.Linear(3, 6, bias=False), rop.Tanh(), rop.Linear(6, 3)),
    "tied": rop.Sequential(rop.Linear(3, 5), rop.Tanh(), TIED, rop.Tanh(), TIED, rop.Tanh(), rop.Linear(5, 3)),
}
KFAC: dict[str, rop.KFAC] = {
    "defaults": rop.KFAC(),
    "clipped": rop.KFAC(lr=0.5, damping=0.1, covariance_every=1, inverse_every=2, kl_clip=1e-2, weight_decay=0.05),
    "not clipped": rop.KFAC(lr=0.05, momentum=0.5, kl_clip=None, covariance_every=2, inverse_every=3, decay=0.5),
    "as in the paper": rop.KFAC(lr=0.05, initial="batch", covariance_every=1, inverse_every=1, decay=0.6),
    "empirical": rop.KFAC(lr=0.05, fisher="empirical", covariance_every=1, inverse_every=1),
}


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


class Dense:
    """K-FAC on a net of Linear and Tanh layers with matrices of Kronecker products, in NumPy alone."""

    def __init__(self, optimizer: rop.KFAC, net: rop.Graph):
        self.o, self.net, self.rate = optimizer, net, float(optimizer.lr)  # type: ignore[arg-type]
        self.layers = [node.layer for node in net.nodes if isinstance(node.layer, rop.Linear)]  # in the order of use
        self.linear = list(dict.fromkeys(self.layers))
        self.w, self.velocity = net.init(3, np.float64), np.zeros(net.size)
        self.A = {one: np.eye(one.in_features + one.bias) for one in self.linear}
        self.G = {one: np.eye(one.out_features) for one in self.linear}
        self.taken = 0

    def place(self, layer: rop.Linear) -> np.ndarray:
        """Where [W b] stands in w."""
        size = layer.out_features, layer.in_features
        index = self.net.offset(layer, "weight") + np.arange(size[0] * size[1]).reshape(size)
        if layer.bias:
            index = np.column_stack([index, self.net.offset(layer, "bias") + np.arange(layer.out_features)])
        return index

    def passes(self, x: np.ndarray, y: np.ndarray) -> list[tuple[Any, ...]]:
        """(layer, ā, δ of single samples) of every use."""
        inputs, a = [], x
        for i, layer in enumerate(self.layers):
            bar = np.column_stack([a, np.ones(len(a))]) if layer.bias else a
            inputs.append(bar)
            z = bar @ self.w[self.place(layer)].T
            a = np.tanh(z) if i < len(self.layers) - 1 else z
        delta, found = softmax(a) - np.eye(3)[y], []
        for i in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[i]
            found.append((layer, inputs[i], delta))
            if i:
                outputs = inputs[i][:, : layer.in_features]
                delta = (delta @ self.w[self.place(layer)][:, : layer.in_features]) * (1 - outputs**2)
        return found

    def step(self, t: int, drawn: list[np.ndarray]) -> np.ndarray:
        o, (x, y), rows = self.o, data(), ROWS[t]
        gradient = np.zeros(self.net.size)
        for layer, a, delta in self.passes(x[rows], y[rows]):
            np.add.at(gradient, self.place(layer), delta.T @ a / BATCH)
        if t % o.covariance_every == 0:
            self.take_in(self.passes(x[rows], drawn[t] if o.fisher == "model" else y[rows]))
        if t % o.inverse_every == 0:
            self.inverses = {
                one: np.linalg.inv(np.kron(self.G[one], self.A[one]) + o.damping * np.eye(self.place(one).size))
                for one in self.linear
            }
        u, total = gradient.copy(), 0.0
        for one in self.linear:
            index = self.place(one).reshape(-1)
            u[index] = self.inverses[one] @ gradient[index]
            total += self.rate**2 * u[index] @ gradient[index]
        if o.kl_clip is not None:
            u *= min(1.0, np.sqrt(o.kl_clip / total))
        self.velocity = o.momentum * self.velocity + u + o.weight_decay * self.w
        self.w = self.w - self.rate * self.velocity
        return self.w

    def take_in(self, uses: list[tuple[Any, ...]]) -> None:
        self.taken += 1
        keep = self.o.decay if self.o.initial == "identity" else min(1 - 1 / self.taken, self.o.decay)
        for one in self.linear:
            own = [(a, delta) for layer, a, delta in uses if layer is one]
            A = sum(a.T @ a for a, _ in own) / BATCH
            G = sum(delta.T @ delta for _, delta in own) / (BATCH * len(own))
            self.A[one] = keep * self.A[one] + (1 - keep) * A
            self.G[one] = keep * self.G[one] + (1 - keep) * G


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("net", KFAC_NETS)
@pytest.mark.parametrize("name", KFAC)
def test_kfac_is_the_dense_computation(name: str, net: str, by: type[Steps], monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawn targets are recorded and given to the reference."""
    from rop.curvature import kfac

    drawn: dict[int, np.ndarray] = {}
    draw = kfac._draw

    def recorded(loss: Any, z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn[len(drawn) * KFAC[name].covariance_every] = found = draw(loss, z, rng)
        return found

    monkeypatch.setattr(kfac, "_draw", recorded)
    found = path(KFAC[name], KFAC_NETS[net], by=by)
    dense = Dense(KFAC[name], KFAC_NETS[net])
    labels = [drawn.get(t, np.zeros(BATCH, int)) for t in range(len(ROWS))]
    closely(found, [dense.step(t, labels) for t in range(len(ROWS))])


CONVOLUTIONS = rop.Sequential(
    rop.Conv2d(2, 6, 3, padding=1), rop.BatchNorm2d(6), rop.ReLU(), rop.MaxPool2d(2),
    rop.Conv2d(6, 40, 2, groups=2, bias=False), rop.ReLU(), rop.Flatten(), rop.Linear(160, 70), rop.Tanh(),
    rop.Linear(70, 3),
)  # fmt: skip


def of_images(
    by: type[Steps], dtype: Any, optimizer: Any, runs: tuple[int, ...] = (12,), **given: Any
) -> dict[str, np.ndarray]:
    """What convolutions come to after twelve steps, of which the last of each epoch of four has fewer samples, made
    some at a time: all arrays by name, and the losses."""
    rng = np.random.default_rng(0)
    x, y, net = rng.standard_normal((COUNT, 2, 6, 6)), rng.integers(3, size=COUNT), CONVOLUTIONS
    options: dict[str, Any] = {"w": net.init(3, np.float64), "seed": SEED, "dtype": dtype, "batch_size": 11, **given}
    steps, losses = by(net, rop.CrossEntropy(), x.astype(dtype), y, optimizer=optimizer, **options), list[float]()
    for epoch in range(3):
        count, at = steps.begin(np.random.default_rng(epoch).permutation(COUNT), epoch + 1, partial_batch=True), 0
        for many in (*runs, count):
            losses += steps.run(at, many, rate=optimizer.lr, mu=0.1, before=4 * epoch)[:, Report.LOSS].tolist()
            at = min(at + many, count)
    assert len(losses) == 12
    return {name: array.copy() for name, array in steps.arrays.items()} | {"losses": np.array(losses)}


IMAGE_KFAC = rop.KFAC(lr=0.05, damping=0.05, covariance_every=3, inverse_every=5, weight_decay=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("optimizer", [IMAGE_KFAC, rop.SWA(rop.KFAC(lr=0.05, fisher="empirical", kl_clip=None))])
def test_compiled_kfac_is_that_in_python(optimizer: Any, dtype: Any) -> None:
    compiled, in_python = (of_images(by, dtype, optimizer) for by in WAYS)
    assert compiled.keys() - in_python.keys() == {"u", "v"}  # of the penalty that there is not
    for name, array in in_python.items():
        if not name.endswith("_vectors"):  # which have any sign
            tol = 1e-9 if dtype == np.float64 else 1e-4
            np.testing.assert_allclose(compiled[name], array, rtol=tol, atol=tol, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_kfac_has_the_same_bits_however_it_is_run(dtype: Any) -> None:
    """With any number of threads, and in any number of calls; the layers are large enough for threads to share."""
    found, threads = [of_images(CompiledSteps, dtype, IMAGE_KFAC, runs=(1, 2))], numba.get_num_threads()
    for count in (1, 2):
        numba.set_num_threads(min(count, threads))
        try:
            found.append(of_images(CompiledSteps, dtype, IMAGE_KFAC))
        finally:
            numba.set_num_threads(threads)
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_kfac_with_the_penalty_is_the_same_both_ways() -> None:
    """The gradient of the penalty comes before the preconditioner."""
    penalty = rop.SpectralRadius(mu=0.5, tol=1e-12, maxiter=2000, limit=None)
    optimizer = rop.KFAC(lr=0.05, damping=0.1, kl_clip=None)
    compiled, in_python, without = (
        path(optimizer, penalty=given, by=by)
        for given, by in ((penalty, CompiledSteps), (penalty, StepwiseSteps), (None, CompiledSteps))
    )
    np.testing.assert_allclose(compiled, in_python, rtol=0, atol=1e-7)
    assert np.abs(compiled[-1] - without[-1]).max() > 1e-3


def linear_steps(x: np.ndarray) -> CompiledSteps:
    """Steps of K-FAC from zero that takes in the factors of each batch."""
    net, (_, y) = rop.Sequential(rop.Linear(3, 3)), data()
    options: dict[str, Any] = {"batch_size": BATCH, "w": np.zeros(net.size), "regularizer": rop.SpectralRadius()}
    optimizer = rop.KFAC(covariance_every=1, momentum=0.0, kl_clip=None)
    steps = CompiledSteps(net, rop.CrossEntropy(), x.astype("f4"), y, optimizer=optimizer, **options)
    steps.begin(np.arange(COUNT))
    return steps


def test_a_step_that_is_not_made_leaves_kfacs_factors_alone() -> None:
    """Else they would be taken in twice when it is made again."""
    x, _ = data()
    x[12] = 1e25  # the Hessian of the second batch is infinite
    steps = linear_steps(x)
    steps.run(0, 1, rate=0.0)
    before = {name: array.copy() for name, array in steps.arrays.items() if name.startswith("kfac")}
    assert before["kfac_count"].tolist() == [1]
    (report,) = steps.run(1, 2, rate=0.0, mu=0.1)
    assert np.isfinite(report[Report.LOSS]) and not np.isfinite(report[Report.RHO])
    for name, array in before.items():
        np.testing.assert_array_equal(array, steps.arrays[name])


def test_parameters_of_kfac_that_are_not_finite_end_the_steps() -> None:
    """Within a call, before factors are taken in there; the trainer then returns to the last good step."""
    steps = linear_steps(data()[0])
    reports = steps.run(0, 4, rate=[0.0, 1e39, 0.0, 0.0])
    assert np.isfinite(reports[:2, Report.LOSS]).all() and np.isnan(reports[2, Report.LOSS]) and len(reports) == 3
    assert not steps.finite() and steps.arrays["kfac_count"].tolist() == [2]


def test_one_step_of_kfac_solves_least_squares() -> None:
    """A linear net with MSE has S = (mean of drawn δδᵀ) ⊗ A = E[āāᵀ]: with S known, a step with a rate of S/2 and the
    exact A is Newton's, and leads to the solution from anywhere."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((64, 4)), rng.standard_normal((64, 1))
    net, seen = rop.Sequential(rop.Linear(4, 1)), list[float]()

    class Newton(rop.KFAC):
        def step(self, now: Step, memory: Memory) -> None:
            super().step(now, memory)
            seen.append(float(memory["kfac_outputs_0"][0, 0, 0]))

    given: dict[str, Any] = {"epochs": 1, "batch_size": 64, "dtype": np.float64, "w": rng.standard_normal(5)}
    exact: dict[str, Any] = {"damping": 1e-12, "kl_clip": None, "momentum": 0.0, "initial": "batch"}
    rop.train(net, rop.MSE(), (x, y), optimizer=Newton(lr=0.0, **exact), **given)
    found = rop.train(net, rop.MSE(), (x, y), optimizer=rop.KFAC(lr=seen[0] / 2, **exact), **given)
    solution, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(64)]), y[:, 0], rcond=None)
    np.testing.assert_allclose(found.w, solution, rtol=0, atol=1e-8)


def test_parameters_without_factors_move_by_their_gradient() -> None:
    """Batchnorm's: not preconditioned, and not shortened by the clip."""
    net = NETS["batchnorm"]()
    w, gradient = net.init(3, np.float64), objective(net, ROWS[0]).at(net.init(3, np.float64)).grad
    moved = w - path(rop.KFAC(lr=0.5, kl_clip=1e-9), net)[0]
    affine = slice(net.offset(net.layers[1], "weight"), net.offset(net.layers[3], "weight"))
    np.testing.assert_allclose(moved[affine], 0.5 * gradient[affine], rtol=1e-12)
    assert np.linalg.norm(np.delete(moved, np.r_[affine])) < 1e-3 * np.linalg.norm(gradient)


def test_kfac_of_a_convolution_with_groups() -> None:
    """Block by block the damped inverse of rop.kfac, from the first batch alone."""
    net = rop.Sequential(rop.Conv2d(4, 6, 3, groups=2, padding=1), rop.Tanh(), rop.Flatten(), rop.Linear(54, 3))
    rng = np.random.default_rng(0)
    x, y, w = rng.standard_normal((BATCH, 4, 3, 3)), rng.integers(3, size=BATCH), net.init(3, np.float64)
    optimizer = rop.KFAC(lr=1.0, damping=0.1, kl_clip=None, momentum=0.0, initial="batch")
    given: dict[str, Any] = {"epochs": 1, "batch_size": BATCH, "dtype": np.float64, "w": w, "seed": SEED}
    found = rop.train(net, rop.CrossEntropy(), (x, y), optimizer=optimizer, **given)
    order = np.random.default_rng([SEED, 1]).permutation(BATCH)
    p = rop.Objective(net, rop.CrossEntropy(), x[order], y[order], dtype=np.float64).at(w)
    K = rop.kfac.kfac(p, damping=0.1, seed=[SEED, 1])
    np.testing.assert_allclose(found.w, w - K.solve(p.grad), rtol=0, atol=1e-10)


def test_kfac_goes_on_from_a_fit_of_another_method() -> None:
    """Its averages begin with the first step that it makes, whatever the number of that step."""
    first = fit(optimizer=rop.SGD(lr=0.3), regularizer=None, epochs=1)
    then = fit(optimizer=rop.KFAC(lr=0.05, initial="batch"), regularizer=None, epochs=1, start=first)
    assert then.memory["kfac_count"].tolist() == [2]  # of steps 10 to 18, the first and step 11
    assert not np.array_equal(then.memory["kfac_inputs_0_vectors"][0], np.eye(3))


# ------------------------------------------------------------------------------------- settings, refusals and penalties
METHODS: list[Any] = [
    rop.SAM(rop.Adam(lr=rop.cosine(0.1, 5)), radius=0.1, adaptive=True),
    rop.SWA(rop.SAM(rop.SGD(lr=rop.piecewise_linear(((1, 0.5), (9, 0.05))))), first=2, last=9, every=3),
    rop.EntropySGD(steps=3),
    rop.KFAC(kl_clip=None, initial="batch"),
]


@pytest.mark.parametrize("optimizer", METHODS, ids=lambda one: type(one).__name__)
def test_settings_survive_json(optimizer: Any) -> None:
    assert revive(json.loads(json.dumps(describe(optimizer)))) == optimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rop.SAM(wrong_type(rop.KFAC())), r"SAM: expected base=rop.SGD\(...\) or rop.Adam\(...\), got KFAC"),
        (lambda: rop.SAM(wrong_type(rop.SGD)), "got SGD"),
        (lambda: rop.SAM(radius=-1.0), "SAM: radius"),
        (lambda: rop.SAM(adaptive=wrong_type(1)), "SAM: adaptive"),
        (lambda: rop.SWA(rop.SWA()), "SWA: expected a base whose result is w, got SWA"),
        (lambda: rop.SWA(wrong_type("sgd")), "SWA: expected base=rop.SGD.* or another optimizer, got str"),
        (lambda: rop.SWA(first=0), "SWA: first must be at least 1"),
        (lambda: rop.SWA(first=5, last=4), "SWA: expected last of at least first = 5, got 4"),
        (lambda: rop.SWA(every=0), "SWA: every"),
        (lambda: rop.EntropySGD(steps=-1), "EntropySGD: steps"),
        (lambda: rop.EntropySGD(inner_lr=0.0), "EntropySGD: inner_lr"),
        (lambda: rop.EntropySGD(beta=1.0), r"EntropySGD: beta must lie in \[0, 1\)"),
        (lambda: rop.EntropySGD(momentum=0.0), "EntropySGD: nesterov needs momentum"),
        (lambda: rop.EntropySGD(gamma=-1.0), "EntropySGD: gamma"),
        (lambda: rop.KFAC(damping=0.0), "KFAC: damping"),
        (lambda: rop.KFAC(kl_clip=0.0), "KFAC: kl_clip"),
        (lambda: rop.KFAC(decay=1.0), r"KFAC: decay must lie in \[0, 1\)"),
        (lambda: rop.KFAC(inverse_every=0), "KFAC: inverse_every"),
        (lambda: rop.KFAC(initial="zero"), "KFAC: initial must be one of 'identity', 'batch'"),
        (lambda: rop.KFAC(fisher="exact"), "KFAC: fisher"),
        (lambda: rop.piecewise_linear(()), "piecewise_linear: expected points as a tuple of pairs"),
        (lambda: rop.piecewise_linear(((1, 0.5), (1, 0.1))), "expected points with rising epochs"),
        (lambda: rop.piecewise_linear(((1, -0.5),)), "piecewise_linear: value"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(rop.RopError, match=message):
        make()


@pytest.mark.parametrize("optimizer", [rop.EntropySGD(), rop.SWA(rop.EntropySGD())], ids=["itself", "in swa"])
def test_a_penalty_on_inner_steps_is_refused(optimizer: Any) -> None:
    with pytest.raises(rop.ArgumentError, match="EntropySGD: expected no penalty with steps = 20, got SpectralRadius"):
        fit(optimizer=optimizer)
    assert fit(optimizer=optimizer, regularizer=None, epochs=1).history[0]["loss"] > 0


@pytest.mark.parametrize(
    "optimizer",
    [rop.SAM(rop.SGD(lr=0.3)), rop.SWA(rop.SGD(lr=0.3)), rop.EntropySGD(steps=0), rop.KFAC(lr=0.05)],
    ids=lambda one: type(one).__name__,
)
def test_the_penalty_lowers_the_spectral_radius(optimizer: Any) -> None:
    x, y = moons()
    rho = []
    for mu in (0.0, 1.0):
        penalty = rop.SpectralRadius(mu=mu, solver="track") if mu else None
        found = fit(optimizer=optimizer, regularizer=penalty, epochs=15)
        f = rop.Objective(rop.Sequential(rop.Linear(2, 12), rop.Tanh(), rop.Linear(12, 2)), rop.CrossEntropy(), x, y)
        rho.append(rop.spectral_radius(f.at(found.w)).rho)
    assert rho[1] < 0.8 * rho[0]


def test_a_method_sees_how_many_samples_there_are() -> None:
    seen = set()

    class Looking(rop.SGD):
        def step(self, now: Step, memory: Memory) -> None:
            seen.add((now.samples, now.batch.size))

    fit(optimizer=Looking(), regularizer=None, epochs=1)
    assert seen == {(600, 64)}
