"""Compiled training steps do what the same steps written with the public interface and torch.optim do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

import rop
from rop.kernels.cpu.transfer import LONG
from rop.kernels.rules import SENSE
from rop.optim.start import first_direction
from rop.training.compiled import CompiledSteps
from rop.training.report import COLUMNS, TIMES, Report
from rop.training.stepwise import StepwiseSteps
from tests.helpers.zoo import normal

SAMPLES, BATCH, RATE = 100, 24, 0.2  # 24 is no multiple of a tile: every step has padding
LOSS, CORRECT, RHO, RESIDUAL, HVPS, PENALTY = list(Report)[:6]


def network() -> rop.Graph:
    """Small, with curvature of either sign."""
    return rop.Sequential(rop.Linear(6, 8), rop.Tanh(), rop.Linear(8, 3))


def data() -> tuple[np.ndarray, np.ndarray]:
    return normal(0, (SAMPLES, 6)), np.random.default_rng(1).integers(3, size=SAMPLES)


def penalty(mu: float = 0.3, **options: Any) -> rop.SpectralRadius:
    """A fixed number of power iterations unless a test says otherwise."""
    return rop.SpectralRadius(**{"mu": mu, "tol": 0.0, "stop": "relative", "maxiter": 6, **options})


def by_hand(net: Any, loss: Any, batches: Any, w: np.ndarray, v: np.ndarray, optimizer: Any, regularizer: Any) -> Any:
    """Algorithm 1 in a few lines of Python, with the update by torch; R² is taken at the v of the last product."""
    reports, parameters, hv = [], torch.tensor(w), v  # a step goes on where the one before would have
    torch_optimizer = optimizer([parameters])
    for x, y in batches:
        p = rop.Objective(net, loss, x, y, dtype=np.float64).at(parameters.numpy())
        step = p.grad
        value: Any = 0.0
        residual: Any = 0.0
        if regularizer is not None:
            for _ in range(regularizer.maxiter):
                v = hv / np.linalg.norm(hv)
                hv = p.hvp(v)
                value = v @ hv / (v @ v)
            residual = np.linalg.norm(hv - value * v)
            gradient = (np.sign(value) if regularizer.signed else 1) * p.r2(v)
            if regularizer.clip is not None:
                gradient *= min(1.0, regularizer.clip / np.linalg.norm(gradient))
            if regularizer.limit is not None:
                taken = RATE * regularizer.mu * (gradient @ gradient)
                gradient *= min(1.0, regularizer.limit * abs(value) / taken)
            step = step + regularizer.mu * gradient
        reports.append((p.loss, abs(value), residual))
        parameters.grad = torch.tensor(step)
        torch_optimizer.step()
    return parameters.numpy(), v, np.array(reports)


def compare(loss: Any, y: Any, optimizer: Any, torch_optimizer: Any, regularizer: Any, dtype: Any = np.float64) -> None:
    net, (x, _) = network(), data()
    w, order = net.init(seed=3, dtype=np.float64), np.random.default_rng(2).permutation(SAMPLES)
    d = CompiledSteps(net, loss, x, y, batch_size=BATCH, w=w, dtype=dtype, optimizer=optimizer, regularizer=regularizer)
    batches = [(x[order[i : i + BATCH]], y[order[i : i + BATCH]]) for i in range(0, SAMPLES - BATCH + 1, BATCH)]
    v = d.arrays["v"].astype(np.float64)
    expected_w, expected_v, expected = by_hand(net, loss, batches, w.copy(), v, torch_optimizer, regularizer)
    steps = d.begin(order)
    mu = 0.0 if regularizer is None else regularizer.mu
    reports = np.concatenate([d.run(i, 1, rate=optimizer.lr, mu=mu) for i in range(steps)])
    close: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-9} if dtype == np.float64 else {"rtol": 3e-3, "atol": 3e-4}
    np.testing.assert_allclose(d.w, expected_w, **close)
    np.testing.assert_allclose(reports[:, [LOSS, RHO, RESIDUAL]], expected, **close)
    if regularizer is not None:
        np.testing.assert_allclose(d.arrays["v"], expected_v, **close)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=RATE)


def targets(kind: str) -> Any:
    rng = np.random.default_rng(5)
    if kind == "labels":
        return data()[1]
    raw = rng.random((SAMPLES, 3))
    return raw / raw.sum(axis=1, keepdims=True) if kind == "probabilities" else raw


LOSSES = {
    "mean": (rop.CrossEntropy(), "labels"),
    "weighted": (rop.CrossEntropy(weight=[1.0, 5.0, 0.5]), "labels"),
    "smoothed": (rop.CrossEntropy(weight=[1.0, 5.0, 0.5], label_smoothing=0.2), "labels"),
    "ignored": (rop.CrossEntropy(ignore_index=1), "labels"),
    "sum": (rop.CrossEntropy(reduction="sum"), "labels"),
    "probabilities": (rop.CrossEntropy(weight=[1.0, 5.0, 0.5]), "probabilities"),
    "mse": (rop.MSE(), "dense"),
    "bce": (rop.BCEWithLogits(), "dense"),
}


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("name", LOSSES)
def test_an_epoch_equals_the_same_steps_by_hand(name: str, mu: float) -> None:
    loss, kind = LOSSES[name]
    rate = RATE / BATCH if name == "sum" else RATE
    compare(loss, targets(kind), rop.SGD(lr=rate), lambda p: torch.optim.SGD(p, lr=rate), penalty(mu) if mu else None)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_float32(mu: float) -> None:
    compare(rop.CrossEntropy(), targets("labels"), rop.SGD(lr=RATE), sgd, penalty(mu) if mu else None, np.float32)


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "momentum": (rop.SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (
        rop.SGD(lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "decay": (rop.SGD(lr=0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05)),
    "adam": (rop.Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam, all settings": (
        rop.Adam(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_torch(name: str, mu: float) -> None:
    compare(rop.CrossEntropy(), targets("labels"), *OPTIMIZERS[name], penalty(mu) if mu else None)


def test_the_published_gradient_of_a_negative_eigenvalue() -> None:
    """The authors' code leaves out sign(λ): where the dominant λ is negative, ∇ρ has the other direction."""
    net, x = rop.Sequential(rop.Linear(6, 8), rop.Tanh(), rop.Linear(8, 3)), normal(0, (BATCH, 6))
    y, w = 10 * normal(1, (BATCH, 3)), 3.0 * net.init(seed=1, dtype=np.float64)
    loss = rop.MSE()
    p = rop.Objective(net, loss, x, y, dtype=np.float64).at(w)
    values, vectors = np.linalg.eigh(p.hessian() @ np.eye(net.size))
    assert abs(values[0]) > 1.3 * values[-1], "the dominant eigenvalue must be negative"
    gradient, rate, mu = p.r2(vectors[:, 0]), 1e-3, 0.5
    for signed, sign in ((True, -1.0), (False, 1.0)):
        r = rop.SpectralRadius(mu=mu, tol=1e-12, stop="relative", maxiter=500, limit=None, signed=signed)
        d = CompiledSteps(net, loss, x, y, batch_size=BATCH, w=w, dtype=np.float64, regularizer=r)
        d.begin(np.arange(BATCH))
        report = d.run(0, 1, rate=rate, mu=mu, tol=1e-12)
        np.testing.assert_allclose(report[0, RHO], -values[0], rtol=1e-10)
        np.testing.assert_allclose(d.w, w - rate * (p.grad + mu * sign * gradient), rtol=1e-9, atol=1e-12)


STALLED = np.diag([1.0, 0.9999, 0.5])  # its two largest eigenvalues are so close that the residual hardly changes


def test_the_published_stop_rule_is_the_papers_and_a_stalled_residual() -> None:
    v, residuals, values = np.full(3, 3**-0.5), [], []
    for count in range(1, 100):
        u = STALLED @ v
        values.append(u @ v)
        residuals.append(np.linalg.norm(u - values[-1] * v))
        if count > 1 and abs(residuals[-1] - residuals[-2]) < 1e-3 * residuals[-2]:
            break
        v = u / np.linalg.norm(u)
    found = rop.spectral_radius(STALLED, tol=1e-12, stop="published", v0=np.full(3, 3**-0.5), maxiter=100)
    assert 2 < found.iterations == count < 100
    assert found.value == pytest.approx(values[-1], rel=1e-12)
    assert rop.spectral_radius(STALLED, tol=1e-12, stop="paper", v0=np.full(3, 3**-0.5), maxiter=100).iterations == 100


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("batchnorm", [False, True])
def test_a_fixed_order_with_a_partial_batch_equals_torch(batchnorm: bool, mu: float) -> None:
    """100 samples in batches of 24: the fifth step of an epoch has four samples."""
    norm = [rop.BatchNorm1d(8)] if batchnorm else []
    net, (x, y) = rop.Sequential(rop.Linear(6, 8), *norm, rop.Tanh(), rop.Linear(8, 3)), data()
    w = net.init(seed=3, dtype=np.float64)
    settings: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "w": w, "dtype": np.float64, "order": "fixed"}
    settings |= {"optimizer": rop.SGD(lr=RATE), "regularizer": penalty(mu) if mu else None, "partial_batch": True}
    fit = rop.train(net, rop.CrossEntropy(), (x, y), **settings)
    assert fit.steps == 10
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, SAMPLES, BATCH)]
    v = first_direction(net.size, np.float64, 0)
    expected, _, reports = by_hand(net, rop.CrossEntropy(), 2 * batches, w.copy(), v, sgd, settings["regularizer"])
    np.testing.assert_allclose(fit.w_last, expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose([row["loss"] for row in fit.history], reports[:, 0].reshape(2, 5).mean(axis=1))
    p = rop.Objective(net, rop.CrossEntropy(), *batches[-1], dtype=np.float64).at(w)
    assert p.loss > 0 and fit.history[-1]["accuracy"] <= 1
    stepwise = rop.train(net, rop.CrossEntropy(), (x, y), **{**settings, "optimizer": _OwnSGD(lr=RATE)})
    np.testing.assert_allclose(fit.w_last, stepwise.w_last, rtol=1e-8, atol=1e-9)
    for name, running in fit.state_last.items():
        np.testing.assert_allclose(running, stepwise.state_last[name], rtol=1e-8)


class _OwnSGD(rop.SGD):
    """Its steps are made in Python, because only SGD itself has a compiled form."""


def test_a_partial_batch_of_one_sample_has_no_statistics() -> None:
    net, (x, y) = rop.Sequential(rop.Linear(6, 8), rop.BatchNorm1d(8), rop.Linear(8, 3)), data()
    with pytest.raises(rop.ArgumentError, match="more than one"):
        rop.train(net, rop.CrossEntropy(), (x, y), batch_size=33, epochs=1, partial_batch=True)


def test_training_in_either_layout_and_without_winograd() -> None:
    convolutions = rop.Conv2d(1, 32, 3, padding=1), rop.ReLU(), rop.Conv2d(32, 32, 3, padding=1), rop.ReLU()
    net = rop.Sequential(*convolutions, rop.AdaptiveAvgPool2d(1), rop.Flatten(), rop.Linear(32, 3))
    x, y = normal(0, (8, 1, 16, 16)), np.arange(8) % 3
    fits = [
        rop.train(net, rop.CrossEntropy(), (x, y), batch_size=4, epochs=2, dtype=np.float64, **given).w_last
        for given in ({"layout": "samples"}, {"layout": "pixels"}, {"layout": "pixels", "winograd": False})
    ]
    for other in fits[1:]:
        np.testing.assert_allclose(other, fits[0], rtol=1e-9, atol=1e-12)
        assert (other != fits[0]).any(), "another layout adds up in another order"
    assert (fits[1] != fits[2]).any(), "Winograd's algorithm rounds differently"


def test_clipping() -> None:
    compare(rop.CrossEntropy(), targets("labels"), rop.SGD(lr=RATE), sgd, penalty(clip=0.01))


@pytest.mark.parametrize("limit", [0.5, 0.03, None])
def test_limited_steps_and_algorithm_1_to_the_letter(limit: float | None) -> None:
    """With this μ every step would take away more than half of ρ; None lets it."""
    compare(rop.CrossEntropy(), targets("labels"), rop.SGD(lr=RATE), sgd, penalty(20.0, limit=limit))


def descent(**options: Any) -> CompiledSteps:
    net, (x, y) = network(), data()
    given = {"batch_size": SAMPLES, "w": net.init(dtype=np.float64), "dtype": np.float64, **options}
    made = CompiledSteps(net, rop.CrossEntropy(), x, y, **given)
    made.begin(np.arange(SAMPLES))
    return made


def test_power_iteration_stops_at_the_tolerance() -> None:
    settings = {"regularizer": penalty(1e-9, maxiter=500)}
    rough = descent(**settings).run(0, 1, rate=0.0, mu=1e-9, tol=1e-3)[0]
    assert rough[HVPS] < 500 and rough[RESIDUAL] <= 1e-3 * rough[RHO]
    exact = descent(**settings).run(0, 1, rate=0.0, mu=1e-9, tol=1e-9)[0]
    assert exact[HVPS] > rough[HVPS] and abs(exact[RHO] - rough[RHO]) < 1e-3 * exact[RHO]
    assert exact[RESIDUAL] <= 1e-9 * exact[RHO]  # not spoilt by cancellation


def test_the_papers_stop() -> None:
    """The relative change of λ is met long before the residual is."""
    paper = descent(regularizer=penalty(1e-9, maxiter=500, stop="paper")).run(0, 1, rate=0.0, mu=1e-9, tol=1e-4)[0]
    strict = descent(regularizer=penalty(1e-9, maxiter=500)).run(0, 1, rate=0.0, mu=1e-9, tol=1e-4)[0]
    assert 1 < paper[HVPS] < strict[HVPS]


def test_no_penalty_below_the_target() -> None:
    """With ρ below K the update is plain SGD, bit for bit."""
    plain, below = descent(), descent(regularizer=penalty(1.0, K=1e6))
    plain.run(0, 1, rate=RATE)
    report = below.run(0, 1, rate=RATE, mu=1.0)
    np.testing.assert_array_equal(plain.w, below.w)
    assert report[0, PENALTY] == 0 and report[0, RHO] > 0


def test_tracking_uses_few_products_once_it_follows() -> None:
    """Even one product a step comes to the eigenvector, if w stays where it is."""
    for products in (1, 2):
        d = descent(regularizer=rop.SpectralRadius(mu=0.01, solver="track", products=products))
        reports = np.concatenate([d.run(0, 1, rate=0.0, mu=0.01) for _ in range(60)])
        assert (reports[:, HVPS] == products).all() and reports[-1, PENALTY] == 1
        assert reports[-1, RESIDUAL] <= 0.1 * reports[-1, RHO] < reports[0, RESIDUAL]


def test_tracking_leaves_the_penalty_out_while_the_direction_makes_no_sense() -> None:
    d = descent(regularizer=rop.SpectralRadius(mu=1e6, solver="track", products=1))
    before = descent()
    report = d.run(0, 1, rate=RATE, mu=1e6)[0]
    before.run(0, 1, rate=RATE)
    assert report[RESIDUAL] > SENSE * report[RHO] and report[PENALTY] == 0
    np.testing.assert_array_equal(d.w, before.w)


@pytest.mark.parametrize("solver", ["power", "track"])
@pytest.mark.parametrize("limit", [0.5, 0.1, None])
def test_no_step_leaps(solver: str, limit: float | None) -> None:
    """A step may take away half of ρ to first order, or what ``limit`` says, however large μ is."""
    d = descent(regularizer=rop.SpectralRadius(mu=1e4, solver=solver, products=40, limit=limit))
    plain = descent()
    plain.run(0, 1, rate=RATE)
    report = d.run(0, 1, rate=RATE, mu=1e4)[0]
    p = rop.Objective(network(), rop.CrossEntropy(), *data(), dtype=np.float64).at(descent().w)
    gradient = np.sign(d.arrays["v"] @ d.arrays["u"]) * p.r2(d.arrays["v"])
    expected = RATE * 1e4 * (gradient @ gradient) if limit is None else limit * report[RHO]
    assert report[PENALTY] == 1
    np.testing.assert_allclose((plain.w - d.w) @ gradient, expected, rtol=1e-9)


@pytest.mark.parametrize("solver", ["power", "track"])
@pytest.mark.parametrize(
    "options", [{}, {"limit": 0.1}, {"limit": None}, {"clip": 0.01}, {"clip": 0.2, "limit": 0.03}], ids=str
)
def test_python_shortens_as_compiled_code_does(solver: str, options: dict[str, Any]) -> None:
    net, (x, y) = network(), data()
    regularizer = rop.SpectralRadius(mu=20.0, solver=solver, products=6, maxiter=6, tol=0.0, **options)
    given: dict[str, Any] = {
        "batch_size": BATCH,
        "w": net.init(dtype=np.float64),
        "dtype": np.float64,
        "optimizer": rop.SGD(lr=RATE),
        "regularizer": regularizer,
    }
    compiled, python = (kind(net, rop.CrossEntropy(), x, y, **given) for kind in (CompiledSteps, StepwiseSteps))
    reports = []
    for steps in (compiled, python):
        steps.begin(np.arange(SAMPLES))
        reports.append(steps.run(0, 4, rate=RATE, mu=20.0))
    columns = [LOSS, RHO, PENALTY]
    np.testing.assert_allclose(reports[1][:, columns], reports[0][:, columns], rtol=1e-7)
    np.testing.assert_allclose(python.arrays["w"], compiled.arrays["w"], rtol=1e-7, atol=1e-9)
    assert reports[0][:, PENALTY].any()


def test_cold_starts_depend_on_seed_and_step_only() -> None:
    def rho(seed: int, before: int) -> float:
        d = descent(regularizer=penalty(1e-9, maxiter=1, warm_start=False), seed=seed)
        d.arrays["v"][:] = d.arrays["u"][:] = 0.1  # is not used
        return d.run(0, 1, rate=0.0, mu=1e-9, before=before)[0, RHO]

    assert rho(0, 0) == rho(0, 0) and len({rho(0, 0), rho(0, 1), rho(1, 0)}) == 3


def test_random_directions_are_normal_and_of_unit_length() -> None:
    net = rop.Sequential(rop.Linear(60, 50))
    x, y = normal(0, (8, 60)), np.arange(8)
    d = CompiledSteps(
        net,
        rop.CrossEntropy(),
        x,
        y,
        batch_size=8,
        w=net.init(),
        dtype=np.float64,
        regularizer=penalty(1e-9, maxiter=1, warm_start=False),
    )
    d.begin(np.arange(8))
    d.run(0, 1, rate=0.0, mu=1e-9)
    v = d.arrays["v"] * np.sqrt(net.size)
    assert abs(np.linalg.norm(d.arrays["v"]) - 1) < 1e-12
    assert abs(v.mean()) < 0.06 and abs((v**2).mean() - 1) < 1e-9 and abs((v**4).mean() - 3) < 0.4


def test_correct_answers_are_counted() -> None:
    d = descent(batch_size=BATCH)
    d.begin(np.arange(SAMPLES))
    net, (x, y) = network(), data()
    expected = (net.predict(d.w, x[:BATCH]).argmax(axis=1) == y[:BATCH]).sum()
    assert d.run(0, 1, rate=0.0)[0, CORRECT] == expected


def test_the_first_of_equal_outputs_is_the_answer() -> None:
    net = rop.Sequential(rop.Linear(2, 3))
    d = CompiledSteps(net, rop.CrossEntropy(), np.ones((3, 2)), np.arange(3), batch_size=3, w=np.zeros(net.size))
    d.begin(np.arange(3))
    assert d.run(0, 1, rate=0.0)[0, CORRECT] == 1  # as NumPy's argmax has it


def test_running_averages_are_updated_once_per_step() -> None:
    net = rop.Sequential(rop.Linear(6, 8), rop.BatchNorm1d(8, momentum=0.3), rop.Tanh(), rop.Linear(8, 3))
    (x, y), w = data(), net.init(seed=1, dtype=np.float64)
    d = CompiledSteps(net, rop.CrossEntropy(), x, y, batch_size=BATCH, w=w, dtype=np.float64, regularizer=penalty(0.1))
    expected = net.init_state(np.float64)
    for i in range(d.begin(np.arange(SAMPLES))):
        stats = (
            rop.Objective(net, rop.CrossEntropy(), x[i * BATCH :][:BATCH], y[i * BATCH :][:BATCH], dtype=np.float64)
            .at(d.w)
            .batch_stats
        )
        expected = {name: 0.7 * old + 0.3 * stats[name] for name, old in expected.items()}
        d.run(i, 1, rate=RATE, mu=0.1)
    for name, value in expected.items():
        np.testing.assert_allclose(d.state[name], value, rtol=1e-12)


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    d = descent(batch_size=BATCH)
    steps = d.begin(np.arange(SAMPLES))
    good = d.run(0, 1, rate=RATE)
    before = d.w
    d.arrays["w"][:] = np.finfo(np.float64).max
    huge = d.w
    reports = d.run(1, steps, rate=RATE)
    assert len(reports) == 1 and not np.isfinite(reports[0, LOSS])
    np.testing.assert_array_equal(d.w, huge)
    assert np.isfinite(good).all() and np.isfinite(before).all()


def test_back_to_the_mark() -> None:
    """Steps that are made again from a mark have the same bits; the mark itself is no view."""
    d = descent(batch_size=BATCH, optimizer=rop.Adam(), regularizer=penalty(0.1))
    d.begin(np.arange(SAMPLES))
    d.run(0, 1, rate=RATE, mu=0.1)
    d.mark()
    first = d.run(1, 2, rate=RATE, mu=0.1), d.w
    d.back()
    second = d.run(1, 2, rate=RATE, mu=0.1), d.w
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["w", "state/1.running_var"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_finite_looks_at_parameters_and_running_statistics(name: str, bad: float) -> None:
    net = rop.Sequential(rop.Linear(6, 8), rop.BatchNorm1d(8), rop.Tanh(), rop.Linear(8, 3))
    d = CompiledSteps(net, rop.CrossEntropy(), *data(), batch_size=BATCH, w=net.init())
    assert d.finite()
    d.arrays[name][-1] = bad
    assert not d.finite()


def long_net() -> tuple[rop.Graph, np.ndarray, np.ndarray]:
    net = rop.Sequential(rop.Linear(300, 250), rop.Tanh(), rop.Linear(250, 3))
    assert net.size >= LONG
    return net, normal(0, (64, 300)), np.random.default_rng(1).integers(3, size=64)


@pytest.mark.parametrize(
    "optimizer", [rop.SGD(lr=0.1), rop.SGD(lr=0.1, momentum=0.9), rop.Adam()], ids=["plain", "momentum", "adam"]
)
def test_threads_do_not_change_a_bit(optimizer: Any) -> None:
    net, x, y = long_net()
    results = []
    threads = numba.get_num_threads()
    try:
        for count in {1, threads}:
            numba.set_num_threads(count)
            d = CompiledSteps(
                net,
                rop.CrossEntropy(),
                x,
                y,
                batch_size=16,
                w=net.init(),
                optimizer=optimizer,
                regularizer=penalty(0.05),
            )
            d.begin(np.arange(64))
            results.append((d.run(0, 4, rate=0.1, mu=0.05)[:, :6], d.w))
    finally:
        numba.set_num_threads(threads)
    for report, w in results[1:]:
        np.testing.assert_array_equal(report, results[0][0])
        np.testing.assert_array_equal(w, results[0][1])


def test_batches_of_many_tiles() -> None:
    """Larger than the chunks in which an Objective goes through its data."""
    net = network()
    x, y = normal(0, (6000, 6)), np.random.default_rng(1).integers(3, size=6000)
    w = net.init(dtype=np.float64)
    d = CompiledSteps(net, rop.CrossEntropy(), x, y, batch_size=6000, w=w, dtype=np.float64, regularizer=penalty(0.1))
    d.begin(np.arange(6000))
    report = d.run(0, 1, rate=1.0, mu=0.0)
    p = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64).at(w)
    np.testing.assert_allclose(report[0, LOSS], p.loss, rtol=1e-12)
    np.testing.assert_allclose(w - d.w, p.grad, rtol=1e-9, atol=1e-15)


def test_a_profile_says_where_the_time_went() -> None:
    d = descent(regularizer=penalty(0.1), profile=True)
    begin = time.perf_counter_ns()
    report = dict(zip(COLUMNS, d.run(0, 1, rate=0.1, mu=0.1)[0], strict=True))
    elapsed = time.perf_counter_ns() - begin
    parts = [report[name] for name in ("gradient_ns", "power_ns", "r2_ns", "rest_ns")]
    assert min(parts) > 0 and sum(parts) <= elapsed
    assert (descent().run(0, 1, rate=0.1)[0, TIMES] == 0).all()


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(rop.ArgumentError, match="at least one batch of 101"):
        descent(batch_size=101)


def test_solvers_that_are_not_compiled_are_refused() -> None:
    with pytest.raises(rop.ArgumentError, match="'power' or 'track', got 'lanczos'"):
        descent(regularizer=rop.SpectralRadius(solver="lanczos"))


def test_the_preconditioner_of_algorithm_2_is_made_of_a_partial_batch(tmp_path: Path) -> None:
    """With refresh=1 the last, smaller batch makes one too, also in a run that is resumed right after it."""
    x = np.random.default_rng(3).standard_normal((22, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    net = rop.Sequential(rop.Linear(2, 4), rop.Tanh(), rop.Linear(4, 2))
    options: dict[str, Any] = {
        "optimizer": rop.SGD(lr=0.1),
        "regularizer": rop.SpectralRadius(mu=0.01, solver="paper_lobpcg", maxiter=3, refresh=4),
        "batch_size": 8,
        "partial_batch": True,
    }
    whole = rop.train(net, rop.CrossEntropy(), (x, y), epochs=4, **options)
    rop.train(net, rop.CrossEntropy(), (x, y), epochs=3, checkpoint=tmp_path, **options)
    assert np.isfinite(whole.w).all() and all(row["hvps"] > 0 for row in whole.history)
    again = rop.train(net, rop.CrossEntropy(), (x, y), epochs=4, checkpoint=tmp_path, resume=True, **options)
    np.testing.assert_array_equal(again.w, whole.w)
