"""Optimizers and penalties, those of a user's own above all: they train, they are saved, and a method is one file and
one line. tests/training/test_baselines.py compares those of rop.optim with references."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.devices import obstacle
from rop.optim import Epoch, Memory, Problem, Schedule, Step
from rop.training import checkpoint as files
from tests.helpers.processes import ROOT, run_python
from tests.helpers.recipes import recipe
from tests.training.test_trainer import fit, moons, same


@dataclass(frozen=True)
class SignSGD:
    """The smallest optimizer there is."""

    lr: Schedule = 0.01

    def step(self, now: Step, memory: Memory) -> None:
        now.w -= now.w.dtype.type(now.rate) * np.sign(now.gradient)


@dataclass(frozen=True)
class HeavyBall:
    """SGD with momentum, written anew."""

    lr: Schedule = 0.1
    momentum: float = 0.9

    def start(self, problem: Problem) -> Memory:
        return {"ball": problem.zeros(), "count": np.zeros(1, np.int64)}

    def step(self, now: Step, memory: Memory) -> None:
        memory["ball"] *= np.float32(self.momentum)
        memory["ball"] += now.gradient
        memory["count"] += 1
        now.w -= np.float32(now.rate) * memory["ball"]


@dataclass(frozen=True)
class Sharp:
    """The gradient at w + ρ·g/‖g‖, as in sharpness-aware minimisation, with a little noise of its own."""

    lr: Schedule = 0.1
    rho: float = 0.05
    noise: float = 0.0

    def step(self, now: Step, memory: Memory) -> None:
        g = now.gradient
        other = now.w + (self.rho / np.linalg.norm(g)) * g
        moved = now.gradient_at(other.astype(now.w.dtype)) + self.noise * now.rng.standard_normal(now.w.size)
        now.w -= (now.rate * moved).astype(now.w.dtype)


@dataclass(frozen=True)
class Averaged:
    """SGD whose result is the mean of w over epochs, as in stochastic weight averaging."""

    lr: Schedule = 0.1

    def start(self, problem: Problem) -> Memory:
        return {"mean": problem.zeros(), "epochs": np.zeros(1, np.int64)}

    def step(self, now: Step, memory: Memory) -> None:
        now.w -= np.float32(now.rate) * now.gradient

    def end_epoch(self, epoch: Epoch, memory: Memory) -> None:
        memory["epochs"] += 1
        memory["mean"] += (epoch.w - memory["mean"]) / np.float32(memory["epochs"][0])

    def result(self, memory: Memory) -> np.ndarray | None:
        return memory["mean"] if memory["epochs"][0] else None


@dataclass(frozen=True)
class Ridge:
    """½μ‖w‖², which SGD knows as weight decay."""

    mu: Schedule = 0.01

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, Mapping[str, float]]:
        return 0.5 * now.mu * float(now.w @ now.w), np.float32(now.mu) * now.w, {}


@dataclass(frozen=True)
class Counting(Ridge):
    """A penalty with a memory: every second step goes without it."""

    def start(self, problem: Problem) -> Memory:
        return {"asked": np.zeros(1, np.int64)}

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, Mapping[str, float]]:
        memory["asked"] += 1
        value, gradient, _ = super().value_and_gradient(now, memory)
        return value, gradient if memory["asked"][0] % 2 else None, {"hvps": 1.0}


class Factors:
    """Looks at K-FAC's factors of the step's point; no dataclass."""

    lr = 0.05

    def step(self, now: Step, memory: Memory) -> None:
        now.w -= (now.rate * rop.kfac.kfac(now.point, seed=now.seed).solve(now.gradient)).astype(now.w.dtype)


NORMALISED = rop.Sequential(rop.Linear(2, 6), rop.BatchNorm1d(6), rop.Tanh(), rop.Linear(6, 2))
RUNS: dict[str, dict[str, Any]] = {
    "sign": {"optimizer": SignSGD(rop.inverse_epoch(0.05)), "regularizer": None},
    "memory": {"optimizer": HeavyBall(lr=0.05)},
    "another point": {"optimizer": Sharp(noise=1e-3)},
    "end of an epoch": {"optimizer": Averaged(), "regularizer": None, "net": NORMALISED},
    "penalty": {"optimizer": rop.Adam(lr=0.01), "regularizer": Ridge()},
    "penalty with a memory": {"regularizer": Counting(), "net": NORMALISED},
    "both": {"optimizer": HeavyBall(lr=0.05), "regularizer": Counting()},
    "factors": {"optimizer": Factors(), "regularizer": None},
    "sam": {"optimizer": rop.SAM(rop.SGD(lr=0.3, momentum=0.5)), "net": NORMALISED},
    "adaptive sam": {"optimizer": rop.SAM(rop.Adam(lr=0.01), radius=0.5, adaptive=True)},
    "swa": {"optimizer": rop.SWA(rop.SGD(lr=0.1, momentum=0.5), first=2), "net": NORMALISED},
    "swa of sam": {"optimizer": rop.SWA(rop.SAM(rop.Adam(lr=0.01)), last=3, every=2)},
    "entropy-sgd": {"optimizer": rop.EntropySGD(steps=3, noise=1e-2), "regularizer": None, "net": NORMALISED},
    "sgd in entropy-sgd": {"optimizer": rop.EntropySGD(lr=0.05, steps=0)},
    "kfac": {"optimizer": rop.KFAC(lr=0.05, covariance_every=4, inverse_every=5), "net": NORMALISED},
}


# ------------------------------------------------------------------------------------------------------------ training
@pytest.mark.parametrize("name", RUNS)
def test_methods_train_and_resume_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """Stopped after an epoch, in the middle of one, and begun as two fits."""
    given = {"epochs": 4, **RUNS[name]}
    whole = fit(**given)
    assert whole.history[-1]["loss"] < whole.history[0]["loss"]
    fit(checkpoint=tmp_path / "epoch", **{**given, "epochs": 2})
    same(fit(checkpoint=tmp_path / "epoch", resume=True, **given), whole)
    halves = fit(start=fit(**{**given, "epochs": 3}), **{**given, "epochs": 1})
    np.testing.assert_array_equal(halves.w_last, whole.w_last)


def test_kfac_resumes_beside_a_penalty_that_has_factors_of_its_own(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "optimizer": rop.KFAC(lr=0.05, covariance_every=4, inverse_every=5),
        "regularizer": rop.SpectralRadius(mu=0.01, solver="paper_lobpcg", maxiter=5),
    }
    fit(checkpoint=tmp_path, **{**given, "epochs": 2})
    same(fit(checkpoint=tmp_path, resume=True, **given), fit(**given))


@pytest.mark.parametrize("name", ["both", "end of an epoch", "adaptive sam", "swa", "entropy-sgd", "kfac"])
def test_stopped_in_the_middle_of_an_epoch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rop.training.run.SLICE", 0.0)
    monkeypatch.setattr("rop.training.run.SAVE_EVERY", 0.0)
    saves: list[Any] = []

    def save(path: Path, meta: Any, arrays: Any) -> None:
        write(path, meta, arrays)
        saves.append((meta["epoch"], meta["step"]))
        if saves[-1] == (3, 4):
            raise KeyboardInterrupt

    write = files.save
    monkeypatch.setattr(files, "save", save)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path, **RUNS[name])
    monkeypatch.undo()
    same(fit(checkpoint=tmp_path, resume=True, **RUNS[name]), fit(**RUNS[name]))


def test_ones_own_momentum_is_that_of_sgd() -> None:
    given = {"regularizer": rop.SpectralRadius(mu=0.05, solver="lanczos")}
    own, ours = fit(optimizer=HeavyBall(lr=0.1), **given), fit(optimizer=rop.SGD(lr=0.1, momentum=0.9), **given)
    np.testing.assert_array_equal(own.w, ours.w)
    np.testing.assert_array_equal(own.memory["ball"], ours.memory["velocity"])


def test_ones_own_penalty_is_weight_decay() -> None:
    own = fit(regularizer=Ridge(0.05), optimizer=rop.SGD(lr=0.3))
    ours = fit(regularizer=None, optimizer=rop.SGD(lr=0.3, weight_decay=0.05))
    np.testing.assert_allclose(own.w, ours.w, rtol=1e-4, atol=1e-5)
    row = own.history[0]
    assert row["rho"] > 0 and row["skipped"] == 0 and row["hvps"] == 0
    half = fit(regularizer=Counting(0.05))
    assert half.history[0]["skipped"] == 4 and half.history[0]["hvps"] == 9


def test_a_subclass_of_sgd_is_not_taken_for_sgd() -> None:
    class Still(rop.SGD):
        def step(self, now: Step, memory: Memory) -> None:
            pass

    net = rop.Sequential(rop.Linear(2, 2))
    np.testing.assert_array_equal(fit(optimizer=Still(), net=net, regularizer=None).w, net.init(0))


def test_the_gradient_at_another_point_has_the_penalty_in_it() -> None:
    seen = []

    @dataclass(frozen=True)
    class Looking:
        lr: Schedule = 0.1

        def step(self, now: Step, memory: Memory) -> None:
            seen.append((now.gradient_at(now.w), now.gradient, now.objective.at(now.w).grad, now.rate, now.number))

    fit(optimizer=Looking(), epochs=1, regularizer=rop.SpectralRadius(mu=1.0))
    for again, gradient, without, rate, _ in seen:
        np.testing.assert_array_equal(again, gradient)
        assert np.abs(gradient - without).max() > 0 and rate == 0.1
    assert [one[-1] for one in seen] == list(range(1, 10))


def test_the_result_of_averaging_is_validated_and_returned() -> None:
    ends: list[np.ndarray] = []
    found = fit(
        **RUNS["end of an epoch"],
        validation=moons(100, seed=1),
        callbacks=[lambda row, so_far: ends.append(so_far.w_last)],
    )
    means = [np.mean(ends[: i + 1], axis=0) for i in range(4)]
    np.testing.assert_allclose(found.w, means[found.best_epoch - 1], rtol=1e-5, atol=1e-6)
    _, accuracy = rop.evaluate(NORMALISED, rop.CrossEntropy(), found.w, *moons(100, seed=1), state=found.state)
    assert accuracy == found.history[found.best_epoch - 1]["valid_accuracy"]
    x, y = moons()
    batches = [rop.Objective(NORMALISED, rop.CrossEntropy(), x[i : i + 64], y[i : i + 64]) for i in range(0, 537, 64)]
    statistics = [f.at(found.w).batch_stats["1.running_mean"] for f in batches]
    np.testing.assert_allclose(found.state["1.running_mean"], np.mean(statistics, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(obstacle() is not None, reason=f"{obstacle()} (test_paths.py runs this in the simulator)")
@pytest.mark.parametrize(
    "optimizer",
    [Sharp(), rop.SAM(radius=0.1), rop.SWA(), rop.EntropySGD(steps=2), rop.KFAC(lr=0.05, inverse_every=1)],
    ids=lambda one: type(one).__name__,
)
def test_methods_run_on_cuda(optimizer: Any) -> None:
    net = rop.Sequential(rop.Linear(2, 3), rop.Tanh(), rop.Linear(3, 2))
    given = {"optimizer": optimizer, "net": net, "epochs": 1, "batch_size": 4, "data": moons(8)}
    given["regularizer"] = None if isinstance(optimizer, rop.EntropySGD) else Ridge()
    found, expected = fit(device="cuda", **given), fit(**given)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------- what is said and saved
def test_settings_of_ones_own_are_in_the_checkpoint(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path, **RUNS["both"])
    meta, arrays = files.load(tmp_path / files.FILE)
    assert meta["settings"]["optimizer"] == {"is": f"{__name__}.HeavyBall", "lr": 0.05, "momentum": 0.9}
    assert meta["settings"]["regularizer"] == {"is": f"{__name__}.Counting", "mu": 0.01}
    assert arrays["count"].tolist() == [36] and arrays["asked"].tolist() == [36]
    with pytest.raises(rop.ArgumentError, match="other settings: optimizer"):
        fit(checkpoint=tmp_path, resume=True, **{**RUNS["both"], "optimizer": HeavyBall(lr=0.05, momentum=0.8)})


class Wrong:
    """An optimizer whose parts are wrong in a way that a test chooses."""

    lr: Any = 0.1

    def __init__(self, memory: Any = None, w: float = 0.0):
        self.memory, self.w = memory or {}, w

    def start(self, problem: Problem) -> Any:
        return self.memory

    def step(self, now: Step, memory: Memory) -> None: ...

    def end_epoch(self, epoch: Epoch, memory: Memory) -> None:
        epoch.w[:] = self.w


class WrongGradient:
    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, Mapping[str, float]]:
        return 0.0, np.zeros(3), {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": object()}, r"an object with lr and step\(now, memory\), see rop.optim.Optimizer, got object"),
        ({"optimizer": SignSGD}, "got the class SignSGD"),
        ({"optimizer": HeavyBall(lr=-1.0)}, "HeavyBall: expected finite numbers of at least 0"),
        (
            {"regularizer": object()},
            r"an object with value_and_gradient\(now, memory\), see rop.optim.Penalty, got obj",
        ),
        ({"optimizer": Wrong([1])}, "Wrong: expected start to return a dict of NumPy arrays"),
        ({"optimizer": Wrong({"w": np.zeros(1)})}, "Wrong: expected arrays .* other than w, .*got 'w'"),
        ({"optimizer": Wrong({"a/b": np.zeros(1)})}, "named by identifiers"),
        ({"optimizer": Wrong({"a": np.array(["x"])})}, "arrays of numbers"),
        ({"optimizer": Wrong({"v": np.zeros(1)})}, "names .* that SpectralRadius does not use, got 'v'"),
        ({"optimizer": Wrong(w=np.nan)}, "Wrong: expected finite parameters .* after end_epoch, got NaN .* epoch 1"),
        ({"regularizer": WrongGradient()}, r"WrongGradient: expected a gradient of shape \(62,\).*got shape \(3,\)"),
    ],
)
def test_what_does_not_follow_the_protocol_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(rop.RopError, match=message):
        fit(**given)


# ----------------------------------------------------------------------------------------------- one file and one line
USE = """
import json
from pathlib import Path
import rop
from rop import cli, optim
from tests.training.test_trainer import fit, same
assert rop.__file__.startswith({folder!r})
given = dict(optimizer=optim.Signum(lr=rop.cosine(0.02, 8)), regularizer=rop.SpectralRadius(mu=0.05, solver="track"))
assert optim.revive(json.loads(json.dumps(optim.describe(given["optimizer"])))) == given["optimizer"]
whole = fit(**given)
assert whole.history[-1]["loss"] < whole.history[0]["loss"]
fit(checkpoint="run", **{{**given, "epochs": 2}})
same(fit(checkpoint="run", resume=True, **given), whole)

command = "train digits --optimizer signum --solver track --epochs 1 --quiet --out digits".split()
assert cli.main(command) == 0
assert json.loads(Path("digits/config.json").read_text())["optimizer"] == {{"is": "Signum", "lr": 0.02, "beta": 0.9}}
assert cli.main("resume digits --epochs 2 --quiet".split()) == 0
assert len(Path("digits/history.csv").read_text().splitlines()) == 3
assert cli.main([*command, "--momentum", "0.5"]) == 1  # a setting that it does not have
"""


def test_a_training_method_is_one_file_and_one_line(tmp_path: Path) -> None:
    """In a copy of the package, by rop.train and by `rop train`. The kernels are the same, so nothing is compiled."""
    for folder in ("rop", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    file, line = recipe("A training method")
    assert file.is_new and not line.is_new and len(line.text.splitlines()) == 1
    for place in (file, line):
        place.edit(tmp_path)
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(tmp_path)!r})\n"
    done = run_python(code + USE.format(folder=str(tmp_path)))
    assert "rop train: --momentum belongs to --method entropy-sgd or kfac or sgd, got signum" in done.stderr
