"""Training: what it promises about results, checkpoints and interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.optim import describe, revive, values
from rop.training import checkpoint as files
from rop.training.run import TrainingInterrupted, TrainingStopped, evaluate


def moons(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that a line does not separate."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    angle = np.pi * rng.random(n)
    x = np.stack([np.cos(angle) * (1 - 2 * y) + y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], axis=1)
    return (x + 0.1 * rng.standard_normal((n, 2))).astype(np.float32), y


def net() -> rop.Graph:
    return rop.Sequential(rop.Linear(2, 12), rop.Tanh(), rop.Linear(12, 2))


def fit(**options: Any) -> Any:
    given: dict[str, Any] = {
        "epochs": 4,
        "batch_size": 64,
        "optimizer": rop.SGD(lr=0.3),
        "regularizer": rop.SpectralRadius(mu=0.05, maxiter=10),
        **options,
    }
    model, loss = given.pop("net", net()), given.pop("loss", rop.CrossEntropy())
    return rop.train(model, loss, given.pop("data", moons()), **given)


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a.w, b.w)
    np.testing.assert_array_equal(a.w_last, b.w_last)
    for one, other in zip(a.history, b.history, strict=True):
        np.testing.assert_equal({**one, "seconds": 0}, {**other, "seconds": 0})


# ------------------------------------------------------------------------------------------------- going on from a fit
@pytest.mark.parametrize("optimizer", [rop.SGD(lr=rop.inverse_epoch(0.3), momentum=0.9), rop.Adam(lr=0.01)])
@pytest.mark.parametrize("solver", ["track", "lanczos"])
def test_two_halves_are_a_whole(optimizer: Any, solver: str) -> None:
    """A fit that goes on from another one on the same data ends with the bits of one run."""
    given = {"optimizer": optimizer, "regularizer": rop.SpectralRadius(mu=0.05, solver=solver), "net": net()}
    whole = fit(epochs=4, **given)
    first = fit(epochs=3, **given)
    last = fit(epochs=1, start=first, **given)
    np.testing.assert_array_equal(last.w, whole.w)
    assert last.history[0]["loss"] == whole.history[-1]["loss"] and last.history[0]["epoch"] == 4
    assert (last.epochs, last.steps) == (whole.epochs, whole.steps) == (4, 36)
    assert not np.array_equal(fit(epochs=1, w=first.w, **given).w, whole.w), "the optimizer's averages matter"


def test_a_fit_goes_on_with_other_data_and_batches() -> None:
    first = fit(epochs=2)
    then = fit(epochs=2, data=moons(96, seed=5), batch_size=32, start=first)
    assert (then.epochs, then.steps) == (4, 2 * 9 + 2 * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": np.zeros(62)}, "expected start as the Fit"),
        ({"w": np.zeros(62)}, "got both"),
        ({"optimizer": rop.Adam()}, r"expected optimizer=rop\.SGD"),
        ({"net": rop.Sequential(rop.Linear(2, 2))}, r"expected w of shape \(6,\)"),
    ],
)
def test_a_start_that_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rop.RopError, match=message):
        fit(**{"start": fit(epochs=1), **options})


def test_a_start_goes_through_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``arrays`` gives may be copies, as on a GPU: writing into them changes nothing."""
    from rop.training.compiled import CompiledSteps

    given = {"optimizer": rop.Adam(lr=0.01), "net": net()}
    whole, first = fit(epochs=4, **given), fit(epochs=3, **given)
    views: Any = vars(CompiledSteps)["arrays"].fget

    def restore(self: Any, arrays: Any) -> None:
        for name, view in views(self).items():
            view[...] = arrays[name]

    copies = property(lambda self: {name: view.copy() for name, view in views(self).items()})
    monkeypatch.setattr(CompiledSteps, "arrays", copies)
    monkeypatch.setattr(CompiledSteps, "restore", restore)
    np.testing.assert_array_equal(fit(epochs=1, start=first, **given).w, whole.w)


# ------------------------------------------------------------------------------------------------------------- results
def test_training_learns_and_the_penalty_flattens() -> None:
    results = {}
    for mu in (0.0, 0.2):
        regularizer = rop.SpectralRadius(mu=mu, solver="track") if mu else None
        found = fit(epochs=60, validation=moons(300, seed=1), regularizer=regularizer)
        x, y = moons()
        rho = rop.spectral_radius(rop.Objective(net(), rop.CrossEntropy(), x, y).at(found.w_last)).rho
        results[mu] = found.column("valid_accuracy").max(), rho
    assert results[0.0][0] > 0.9 and results[0.2][0] > 0.85
    assert results[0.2][1] < 0.7 * results[0.0][1]


def test_history() -> None:
    found = fit(validation=moons(100, seed=1))
    names = "epoch loss accuracy rho residual hvps skipped valid_loss valid_accuracy seconds"
    assert [" ".join(row) for row in found.history] == [names] * 4
    assert found.column("epoch").tolist() == [1, 2, 3, 4]
    assert 9 <= found.history[0]["hvps"] <= 90 and found.history[0]["rho"] > 0
    assert 0 < found.history[-1]["accuracy"] <= 1 and found.history[-1]["loss"] < found.history[0]["loss"]
    plain = fit(regularizer=None)
    assert list(plain.history[0]) == ["epoch", "loss", "accuracy", "seconds"]


def test_the_best_parameters_on_validation_data_are_kept() -> None:
    validation = moons(100, seed=1)
    found = fit(epochs=8, validation=validation, optimizer=rop.SGD(lr=2.0))
    accuracy = found.column("valid_accuracy")
    assert found.best_epoch == 1 + int(accuracy.argmax())
    assert evaluate(net(), rop.CrossEntropy(), found.w, *validation)[1] == accuracy.max()
    assert evaluate(net(), rop.CrossEntropy(), found.w_last, *validation)[1] == accuracy[-1]


def test_runs_are_reproducible_and_seeds_matter() -> None:
    same(fit(), fit())
    assert not np.array_equal(fit().w, fit(seed=1).w)
    assert not np.array_equal(fit(regularizer=None).w, fit().w)


def test_mu_0_is_plain_training() -> None:
    np.testing.assert_array_equal(fit(regularizer=rop.SpectralRadius(mu=0.0)).w, fit(regularizer=None).w)


def test_start_and_precision() -> None:
    start = net().init(seed=7, dtype=np.float64)
    found = fit(w=start, epochs=1, optimizer=rop.SGD(lr=0.0), dtype=np.float64)
    np.testing.assert_array_equal(found.w, start)
    assert found.w.dtype == np.float64


def test_batchnorm() -> None:
    normalised = rop.Sequential(rop.Linear(2, 12), rop.BatchNorm1d(12), rop.Tanh(), rop.Linear(12, 2))
    found = fit(net=normalised, epochs=20, validation=moons(300, seed=1))
    assert set(found.state) == set(normalised.init_state()) and found.column("valid_accuracy").max() > 0.9
    assert not np.array_equal(
        found.state["1.running_mean"] if "1.running_mean" in found.state else next(iter(found.state.values())),
        np.zeros(12),
    )


@pytest.mark.parametrize("solver", ["lanczos", "lobpcg", "paper_lobpcg", "track"])
def test_every_solver_trains(solver: str) -> None:
    """On this problem all of them find the same eigenpair, so they flatten alike."""
    found = fit(epochs=10, regularizer=rop.SpectralRadius(mu=0.05, solver=solver, maxiter=30))
    reference = fit(epochs=10, regularizer=rop.SpectralRadius(mu=0.05, tol=1e-4, stop="relative", maxiter=300))
    assert found.history[-1]["loss"] == pytest.approx(reference.history[-1]["loss"], rel=0.1)
    if solver != "paper_lobpcg":
        assert found.history[-1]["rho"] == pytest.approx(reference.history[-1]["rho"], rel=0.15)


def test_other_targets() -> None:
    x, y = moons()
    one_hot = np.eye(2, dtype=np.float32)[y]
    found = fit(loss=rop.MSE(), data=(x, one_hot), validation=(x, one_hot), epochs=20)
    assert found.column("valid_loss")[-1] < found.column("valid_loss")[0]
    assert found.best_epoch == 1 + int(found.column("valid_loss").argmin())


# ----------------------------------------------------------------------------------------------------------- schedules
def test_schedules_see_step_and_epoch() -> None:
    seen: list[tuple[list[int], int]] = []

    def rate(k: np.ndarray, epoch: int) -> float:
        seen.append((k.tolist(), epoch))
        return 0.0

    fit(epochs=2, optimizer=rop.SGD(lr=rate))
    assert seen == [(list(range(1, 10)), 1), (list(range(10, 19)), 2)]


def test_mu_and_tol_may_be_schedules() -> None:
    late = rop.SpectralRadius(mu=lambda k, epoch: 0.0 if epoch < 3 else 0.05, tol=rop.power_law(0.1, 0.5))
    found = fit(regularizer=late)
    assert [row["hvps"] > 0 for row in found.history] == [False, False, True, True]


@pytest.mark.parametrize("bad", [lambda k, e: -1.0, lambda k, e: float("nan"), lambda k, e: np.ones(3)])
def test_bad_schedules_are_refused(bad: Any) -> None:
    with pytest.raises(rop.ArgumentError, match="SGD"):
        fit(optimizer=rop.SGD(lr=bad))


def test_the_gradient_of_the_penalised_loss_vanishes() -> None:
    """With α_k and ε_k as the theorem wants them ‖∇g‖ → 0, for the whole data set as batch. The tolerance is what
    limits it: with one that stays, the gradient stays too."""
    x, y = moons(64)
    x, small, mu = x.astype(np.float64), rop.Sequential(rop.Linear(2, 4), rop.Tanh(), rop.Linear(4, 2)), 0.1
    rate, tol = rop.convergent(1.0, 1e-2, p=0.6, q=0.5, scale=100)
    found = fit(
        net=small,
        data=(x, y),
        batch_size=64,
        epochs=6000,
        dtype=np.float64,
        optimizer=rop.SGD(lr=rate, weight_decay=0.02),
        regularizer=rop.SpectralRadius(mu=mu, tol=tol, stop="relative", maxiter=2000),
    )
    p = rop.Objective(small, rop.CrossEntropy(), x, y, dtype=np.float64).at(found.w_last)
    pair = rop.eigen.lanczos(p, tol=1e-9)
    gradient = p.grad + 0.02 * found.w_last + mu * np.sign(pair.value) * p.r2(pair.vector)
    first = rop.Objective(small, rop.CrossEntropy(), x, y, dtype=np.float64).at(small.init(0, np.float64))
    assert np.linalg.norm(gradient) < 5e-4 < 1e-2 < np.linalg.norm(first.grad)


def test_convergent_refuses_what_does_not_converge() -> None:
    for p, q in ((0.5, 1.0), (1.1, 1.0), (0.6, 0.4)):
        with pytest.raises(rop.ArgumentError, match="convergent"):
            rop.convergent(0.1, 0.1, p=p, q=q)


def test_settings_survive_json() -> None:
    for value in (
        rop.SGD(lr=rop.inverse_epoch(0.5)),
        rop.Adam(betas=(0.8, 0.9)),
        rop.SpectralRadius(mu=0.1, clip=2.0),
        rop.SGD(lr=rop.power_law(1.0, 0.5)),
        rop.SGD(lr=rop.cosine(1.0, 9)),
        None,
    ):
        assert revive(json.loads(json.dumps(describe(value)))) == value


def test_values_of_a_number() -> None:
    assert values(0.5, np.arange(1, 4), 1, "x").tolist() == [0.5] * 3


# ----------------------------------------------------------------------------------------------------------- callbacks
def test_callbacks_see_every_epoch_and_may_end_the_run() -> None:
    rows: list[Any] = []
    found = fit(
        callbacks=[
            lambda row, so_far: rows.append((row["epoch"], len(so_far.history))),
            lambda row, so_far: row["epoch"] == 2,
        ]
    )
    assert rows == [(1, 1), (2, 2)] and len(found.history) == 2


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fit(progress=True)
    shown = capsys.readouterr().err
    assert "epoch 4/4" in shown and "loss" in shown and "ρ" in shown


# --------------------------------------------------------------------------------------------------------- checkpoints
STOP_AFTER = """
import sys, numpy as np
sys.path.insert(0, {root!r})
from tests.training.test_trainer import fit, net
from rop.training import run as trainer
import rop
trainer.SAVE_EVERY = trainer.SLICE = 0.0
print("ready", flush=True)
fit(epochs={epochs}, checkpoint={folder!r}, resume=True, **eval({options!r}))
print("done", flush=True)
"""
RUNS: dict[str, str] = {
    "power, momentum": "dict(optimizer=rop.SGD(lr=0.1, momentum=0.9))",
    "track, adam": "dict(optimizer=rop.Adam(), regularizer=rop.SpectralRadius(mu=0.05, solver='track'))",
    "cold starts": "dict(regularizer=rop.SpectralRadius(mu=0.05, maxiter=5, warm_start=False))",
    "paper_lobpcg": "dict(regularizer=rop.SpectralRadius(mu=0.05, solver='paper_lobpcg', maxiter=3, refresh=4))",
    "batchnorm": "dict(net=rop.Sequential(rop.Linear(2, 12), rop.BatchNorm1d(12), rop.Tanh(), rop.Linear(12, 2)))",
}


def start(folder: Path, options: str, epochs: int) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    code = STOP_AFTER.format(root=root, folder=str(folder), options=options, epochs=epochs)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "batchnorm" else pytest.mark.thorough) for name in RUNS]
)
def test_a_run_that_is_killed_resumes_and_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    epochs = 12 if name == "paper_lobpcg" else 60
    seconds = iter((0.3, 0.05, 0.15, 0.4))
    for pause in seconds:
        process = start(tmp_path, RUNS[name], epochs)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    options = eval(RUNS[name])
    same(fit(epochs=epochs, checkpoint=tmp_path, resume=True, **options), fit(epochs=epochs, **options))


def test_ctrl_c_ends_a_run_within_a_second_with_a_checkpoint(tmp_path: Path) -> None:
    process = start(tmp_path, "dict()", 10**6)
    while not (tmp_path / files.FILE).exists():
        time.sleep(0.05)
    time.sleep(1.0)
    before = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert time.monotonic() - before < 2.5  # a second for training, the rest for Python to end
    assert process.returncode != 0 and "TrainingInterrupted: interrupted in epoch" in errors
    meta, _ = files.load(tmp_path / files.FILE)
    assert meta["epoch"] > 1


def test_interrupted_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Also there the run goes on where it was."""
    from rop.training import run as trainer

    calls: list[int] = []

    def interrupt(k: np.ndarray, epoch: int) -> float:
        if epoch == 2 and not calls:
            calls.append(epoch)
            os.kill(os.getpid(), signal.SIGINT)
        return 0.3

    with pytest.raises(TrainingInterrupted, match=r"epoch 2 after [1-8] of 9 steps; saved in") as stop:
        fit(checkpoint=tmp_path, optimizer=rop.SGD(lr=interrupt))
    assert len(stop.value.fit.history) == 1 and trainer.SLICE > 0
    same(fit(checkpoint=tmp_path, resume=True, optimizer=rop.SGD(lr=interrupt)), fit(optimizer=rop.SGD(lr=interrupt)))


def test_a_finished_run_resumes_to_itself_and_may_be_lengthened(tmp_path: Path) -> None:
    first = fit(checkpoint=tmp_path)
    same(first, fit(checkpoint=tmp_path, resume=True))
    same(fit(checkpoint=tmp_path, resume=True, epochs=6), fit(epochs=6))


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path)
    before = (tmp_path / files.FILE).read_bytes()
    with pytest.raises(rop.ArgumentError, match="checkpoint of an earlier run; give resume=True"):
        fit(checkpoint=tmp_path)
    with pytest.raises(rop.ArgumentError, match="other settings: optimizer, seed, start"):
        fit(checkpoint=tmp_path, resume=True, seed=3, optimizer=rop.Adam())
    with pytest.raises(rop.ArgumentError, match="other settings: net, start"):
        fit(checkpoint=tmp_path, resume=True, net=rop.Sequential(rop.Linear(2, 2)))
    assert (tmp_path / files.FILE).read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pickle", "foreign", "version"])
def test_damaged_and_foreign_checkpoints_are_refused_and_left_alone(damage: str, tmp_path: Path) -> None:
    path = tmp_path / files.FILE
    fit(checkpoint=tmp_path, epochs=1)
    whole = path.read_bytes()
    if damage == "pickle":
        np.savez(path, meta=np.array([{"a": 1}], dtype=object))
    elif damage == "foreign":
        np.savez(path, a=np.ones(3))
    elif damage == "version":
        files.save(path, {"version": 99}, {})
    else:
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello"}[damage])
    before = path.read_bytes()
    with pytest.raises(rop.ArgumentError, match=r"checkpoint\.npz: expected a checkpoint"):
        fit(checkpoint=tmp_path, resume=True)
    assert path.read_bytes() == before


def test_no_half_written_files_are_left(tmp_path: Path) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    path = tmp_path / "a"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="disk full"):
        files.write_atomically(path, fail)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_divergence_stops_the_run_at_the_last_good_step(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingStopped,
        match=r"not finite in epoch .*, step .*: a smaller learning rate.*last good"
        r" step is in .*checkpoint\.npz",
    ) as stop:
        fit(
            net=rop.Sequential(rop.Linear(2, 12), rop.Linear(12, 2)),
            loss=rop.MSE(),
            epochs=50,
            data=(moons()[0], np.eye(2, dtype=np.float32)[moons()[1]]),
            checkpoint=tmp_path,
            optimizer=rop.SGD(lr=1e3),
            regularizer=None,
        )
    _, arrays = files.load(tmp_path / files.FILE)
    assert np.isfinite(arrays["w"]).all()
    np.testing.assert_array_equal(arrays["w"], stop.value.fit.w_last)


SOLVERS = {"plain": None, "power": rop.SpectralRadius(mu=0.05), "lanczos": rop.SpectralRadius(solver="lanczos")}


def sudden(lr: float, at: int) -> Any:
    """A learning rate of 0.1 but for one step."""
    return lambda k, epoch: np.where(k == at, lr, 0.1)


@pytest.mark.parametrize("validation", [None, moons(100, seed=1)], ids=["alone", "validation"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("at", [1, 9, 13])
def test_parameters_stay_finite(at: int, solver: str, validation: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Infinite after the first step, after the last one of an epoch, and within a slice of the second: the fit and the
    checkpoint hold what was before that step, as a run has it that ends there."""
    monkeypatch.setattr("rop.training.run.SLICE", 1e3)  # slices of 1, 4 and 4 steps, however slow the machine is
    given = {"regularizer": SOLVERS[solver], "validation": validation, "net": net(), "epochs": 2}
    with pytest.raises(TrainingStopped, match=f"parameters are not finite after epoch {1 + at // 10}, step") as stop:
        fit(optimizer=rop.SGD(lr=sudden(1e39, at), momentum=0.9), checkpoint=tmp_path, **given)
    stopped = stop.value.fit
    assert stopped.steps == at - 1 and len(stopped.history) == at // 10 and stopped.collapsed is None
    meta, arrays = files.load(tmp_path / files.FILE)
    assert all(np.isfinite(array).all() for name, array in arrays.items() if name != "reports")
    np.testing.assert_array_equal(arrays["w"], stopped.w_last)
    assert (meta["epoch"], meta["step"]) == (1 + at // 10, (at - 1) % 9)
    # what stopped it is 0 from that step on here, so nothing moves any more
    rest = fit(optimizer=rop.SGD(lr=lambda k, epoch: np.where(k < at, 0.1, 0.0), momentum=0.9), **given)
    np.testing.assert_array_equal(stopped.w_last, rest.w_last)


def test_an_infinite_bias_that_no_loss_shows() -> None:
    """A ReLU behind it is 0, so every loss is finite."""
    dead = rop.Sequential(rop.Linear(2, 3), rop.ReLU(), rop.Linear(3, 2))
    w = dead.init()
    w[:9] = -1e38
    x, y = moons()
    with pytest.raises(TrainingStopped, match="parameters are not finite after epoch 1, step 1") as stop:
        fit(net=dead, w=w, data=(np.abs(x), y), regularizer=None, optimizer=rop.SGD(lr=0.5, weight_decay=1e38))
    np.testing.assert_array_equal(stop.value.fit.w, w)


# ------------------------------------------------------------------------------------------------------------ collapse
def steep() -> dict[str, Any]:
    """Forest's net in miniature, on data that are large enough for ∇ρ to be huge."""
    inner = rop.Linear(12, 12)
    layers = [rop.Linear(2, 12), rop.ReLU(), inner, rop.ReLU(), inner, rop.ReLU(), rop.Linear(12, 2), rop.Softmax(1)]
    x, y = moons()
    return {
        "net": rop.Sequential(*layers),
        "data": (10 * x, y),
        "epochs": 5,
        "batch_size": 32,
        "optimizer": rop.SGD(lr=0.5),
    }


def test_algorithm_1_to_the_letter_collapses_and_the_limit_keeps_it_from_that() -> None:
    def trained(seed: int, **options: Any) -> Any:
        return fit(seed=seed, regularizer=rop.SpectralRadius(mu=0.1, maxiter=20, **options), **steep())

    seed, dead = next((seed, found) for seed in range(12) if (found := trained(seed, limit=None)).collapsed)
    predicted = steep()["net"].predict(dead.w_last, steep()["data"][0]).argmax(axis=1)
    assert len(set(predicted)) == 1 and dead.history[-1]["rho"] < 1e-3
    for same_or_later in (seed, seed + 1, seed + 2):
        found = trained(same_or_later)
        assert found.collapsed is False and found.history[-1]["accuracy"] > 0.8


def test_what_is_no_collapse() -> None:
    """A net that knows nothing yet, one that is right about the only class there is, and one that is no classifier."""
    x, y = moons()
    saturated = rop.Sequential(rop.Linear(2, 2), rop.Softmax(1))
    dead, still = np.array([0, 0, 0, 0, 99, -99.0]), {"optimizer": rop.SGD(lr=0.0), "regularizer": None, "epochs": 1}
    assert fit(net=saturated, w=dead, **still).collapsed is True
    assert fit(net=saturated, w=0 * dead, **still).collapsed is False, "one class, but it would learn"
    assert fit(net=saturated, w=dead, data=(x, 0 * y), **still).collapsed is False, "right"
    one_hot = np.eye(2, dtype=np.float32)[y]
    assert fit(net=saturated, w=dead, data=(x, one_hot), **still).collapsed is True
    assert fit(net=saturated, w=dead, data=(x, one_hot), loss=rop.MSE(), **still).collapsed is False
    late = np.r_[x[:500] * 0 + 1, -np.ones((100, 2))].astype(np.float32)
    split = np.array([0, 0, 99, 99, 99, 0.0])  # class 1 wherever x is positive, and what differs comes late
    assert fit(net=saturated, w=split, data=(late, 0 * y), **still).collapsed is False


# -------------------------------------------------------------------------------------------------------- wrong input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"net": 3}, "expected net to be a rop.Sequential"),
        ({"loss": "mse"}, "expected a loss"),
        ({"optimizer": "sgd"}, "optimizer=rop.SGD"),
        ({"regularizer": 0.1}, "regularizer=rop.SpectralRadius"),
        ({"data": moons()[0]}, r"pair \(x, y\)"),
        ({"data": (moons()[0], moons()[1][:5])}, "600 samples and 5 targets"),
        ({"batch_size": 601}, "batch_size=600"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"w": np.ones(3)}, r"w of shape \(62,\)"),
        ({"resume": True}, "needs the folder"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((rop.ArgumentError, rop.ArgumentTypeError), match=message):
        fit(**options)


def wrong_type(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rop.SGD(lr=float("nan")),
        lambda: rop.SGD(momentum=1.5),
        lambda: rop.SGD(nesterov=True),
        lambda: rop.Adam(betas=(0.9, 1.0)),
        lambda: rop.Adam(betas=wrong_type(0.9)),
        lambda: rop.Adam(eps=0.0),
        lambda: rop.SpectralRadius(solver="newton"),
        lambda: rop.SpectralRadius(stop="never"),
        lambda: rop.SpectralRadius(maxiter=0),
        lambda: rop.SpectralRadius(clip=0.0),
        lambda: rop.SpectralRadius(limit=0.0),
        lambda: rop.SpectralRadius(limit=float("inf")),
        lambda: rop.SpectralRadius(limit=-0.5),
        lambda: rop.SpectralRadius(limit=wrong_type("none")),
        lambda: rop.SpectralRadius(solver="track", warm_start=False),
        lambda: rop.SpectralRadius(mu=wrong_type("big")),
    ],
)
def test_wrong_settings(wrong: Any) -> None:
    with pytest.raises((rop.ArgumentError, rop.ArgumentTypeError)):
        wrong()


def test_loss_values_are_those_of_the_engine() -> None:
    x, y = moons(50)
    model, w = net(), net().init(seed=1, dtype=np.float64)
    dense = np.random.default_rng(0).random((50, 2))
    cases: list[tuple[Any, Any]] = [
        (rop.CrossEntropy(), y),
        (rop.CrossEntropy(weight=[1.0, 3.0], label_smoothing=0.1), y),
        (rop.CrossEntropy(reduction="sum", ignore_index=1), y),
        (rop.CrossEntropy(), dense / dense.sum(1, keepdims=True)),
        (rop.MSE(), dense),
        (rop.BCEWithLogits(reduction="sum"), dense),
    ]
    for loss, targets in cases:
        expected = rop.Objective(model, loss, x.astype(np.float64), targets, dtype=np.float64).at(w).loss
        assert loss.value(model.predict(w, x.astype(np.float64)), targets) == pytest.approx(expected, rel=1e-12)
    logs = rop.Sequential(rop.Linear(2, 3), rop.LogSoftmax(1))
    w = logs.init(dtype=np.float64)
    expected = rop.Objective(logs, rop.NLL(), x.astype(np.float64), y, dtype=np.float64).at(w).loss
    assert rop.NLL().value(logs.predict(w, x.astype(np.float64)), y) == pytest.approx(expected, rel=1e-12)
