"""Mistakes of users get a clear error of the package's own at every entry point, and none from inside.

tests/test_errors.py has objectives, points and directions; here are training, settings, files, torch and the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rop
from rop import cli, optim
from rop.commands import FAILED, USAGE
from rop.sklearn import RopClassifier
from tests.helpers.processes import environment
from tests.test_errors import BAD_VECTORS, N, assert_refused, network

X, Y = np.linspace(-1, 1, 32).reshape(8, 4), np.arange(8) % 3
W = np.ones(N)
NO_ALPHA: dict[str, Any] = {"preconditioner": lambda block: block, "alpha": lambda: 1.0}
MASKED = np.ma.masked_less(X, 0)


def train(**changes: Any) -> rop.Fit:
    """A short training that works, but for the changes."""
    given: dict[str, Any] = {"data": (X, Y), "epochs": 1, "batch_size": 4, **changes}
    return rop.train(network(), rop.CrossEntropy(), given.pop("data"), **given)


def test_the_training_is_good() -> None:
    """So each change below is refused for itself."""
    assert train(w=W, validation=(X, Y), callbacks=[lambda row, fit: None]).epochs == 1
    assert train(w=[1] * N, optimizer=rop.SGD(lr=np.float32(0.1)), callbacks=(print,)).epochs == 1


def point() -> Any:
    return rop.Objective(network(), rop.CrossEntropy(), X, Y, dtype=np.float64).at(W)


# ----------------------------------------------------------------------------------------------------- arrays and data
# None is the default; whole numbers and float16 are numbers, and training has a precision of its own
@pytest.mark.parametrize("name", [name for name in BAD_VECTORS if name not in ("none", "integer", "half")])
def test_training_refuses_a_start(name: str) -> None:
    bad, error, says = BAD_VECTORS[name]
    assert_refused(lambda: train(w=bad), error, "w", *(word for word in says if word not in ("float", "nan", "inf")))


NOT_DATA: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "nothing": (None, TypeError, ("pair (x, y)",)),
    "nothing twice": ((None, None), TypeError, ("pair (x, y)", "NoneType")),
    "no targets": ((X, None), TypeError, ("pair (x, y)", "y", "NoneType")),
    "numbers": ((1.0, 2.0), TypeError, ("pair (x, y)", "float")),
    "words": (("abc", "def"), TypeError, ("pair (x, y)", "str")),
    "three": ((X, Y, Y), TypeError, ("pair (x, y)", "tuple")),
    "ragged": (([[1.0], [1.0, 2.0]], Y), TypeError, ("x", "ragged")),
    "masked x": ((MASKED, Y), TypeError, ("x", "masked", "x.filled(")),
    "masked y": ((X, np.ma.masked_less(Y, 1)), TypeError, ("y", "masked", "y.filled(")),
    "x with grad": ((torch.tensor(X, requires_grad=True), Y), TypeError, ("x", "x.detach()")),
    "objects": ((X.astype(object), Y), TypeError, ("x",)),
    "lengths": ((X, Y[:7]), ValueError, ("8 samples", "7 targets")),
    "labels": ((X, Y + 1), ValueError, ("labels", "3")),
    "shape": ((X[:, :3], Y), ValueError, ("Linear", "(batch, 4)")),
}


@pytest.mark.parametrize("part", ["data", "validation"])
@pytest.mark.parametrize("name", NOT_DATA)
def test_training_refuses_data(name: str, part: str) -> None:
    bad, error, says = NOT_DATA[name]
    if (name, part) != ("nothing", "validation"):  # which is the default
        assert_refused(lambda: train(**{part: bad}), error, *says)


ARRAYS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "evaluate: no net": (lambda: rop.evaluate(None, rop.MSE(), W, X, Y), ("evaluate", "net", "NoneType")),  # type: ignore[arg-type]
    "evaluate: no loss": (lambda: rop.evaluate(network(), None, W, X, Y), ("evaluate", "loss")),  # type: ignore[arg-type]
    "evaluate: masked x": (lambda: rop.evaluate(network(), rop.CrossEntropy(), W, MASKED, Y), ("x", ".filled(")),
    "evaluate: masked y": (
        lambda: rop.evaluate(network(), rop.CrossEntropy(), W, X, np.ma.masked_less(Y, 1)),
        ("y", ".filled("),
    ),
    "value: masked": (lambda: rop.MSE().value(MASKED, X), ("outputs", ".filled(")),
    "value: words": (lambda: rop.MSE().value("abc", X), ("outputs",)),  # type: ignore[arg-type]
    "params: masked": (lambda: network().params(np.ma.masked_array(W)), ("w", "MaskedArray")),
    "class weights: masked": (lambda: rop.CrossEntropy(weight=np.ma.masked_array(np.ones(3))), ("weight", ".filled(")),
    "power: masked v0": (lambda: rop.eigen.power(point(), v0=np.ma.masked_array(W)), ("v0", ".filled(")),
    "lanczos: ragged v0": (lambda: rop.eigen.lanczos(point(), v0=[[1.0], [1.0, 2.0]]), ("v0", "ragged")),
    "power: masked matrix": (lambda: rop.eigen.power(np.ma.masked_array(np.eye(2))), ("p", "masked")),
    "lobpcg: a preconditioner of words": (
        lambda: rop.eigen.lobpcg(point(), preconditioner=lambda block: "abc"),
        ("preconditioner",),
    ),
    "paper_lobpcg: alpha": (lambda: rop.eigen.paper_lobpcg(np.eye(2), **NO_ALPHA), ("alpha", "iteration")),
    "kfac: masked": (lambda: rop.kfac.kfac(point()).solve(np.ma.masked_array(W)), ("v", ".filled(")),
    "point by hand": (lambda: rop.Point(None, W), ("Point", "objective.at(w)")),  # type: ignore[arg-type]
    "check: masked x": (lambda: rop.check.network(network(), rop.CrossEntropy(), MASKED, Y), ("x", ".filled(")),
    "check: complex w": (lambda: rop.check.network(network(), rop.CrossEntropy(), X, Y, w=W + 1j), ("w", "complex")),
    "check: one dtype": (lambda: rop.check.layer(rop.Tanh(), dtypes="float64"), ("dtypes", "list")),
    "check: one order": (lambda: rop.check.layer(rop.Tanh(), orders=1), ("orders", "list")),  # type: ignore[arg-type]
    "check: a number for a shape": (lambda: rop.check.layer(rop.Tanh(), shape=5), ("shape", "5")),  # type: ignore[arg-type]
    "check: words for x": (lambda: rop.check.layer(rop.Tanh(), x="abc"), ("x",)),
    "to_torch: masked": (lambda: rop.to_torch(network(), np.ma.masked_array(W)), ("w", ".filled(")),
    "activation that ends Python": (lambda: rop.Elementwise(lambda x: sys.exit(3)), ("SystemExit",)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_refused(name: str) -> None:
    call, says = ARRAYS[name]
    assert_refused(call, Exception, *says)


def test_arrays_of_the_other_byte_order_are_understood() -> None:
    swapped = W.astype(W.dtype.newbyteorder())
    np.testing.assert_array_equal(network().predict(swapped, X), network().predict(W, X))
    np.testing.assert_array_equal(point().hvp(swapped), point().hvp(W))


# ------------------------------------------------------------------------------------------------------------ settings
SETTINGS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "momentum 1": (lambda: rop.SGD(momentum=1.0), ValueError, ("momentum", "[0, 1)", "1.0")),
    "momentum above 1": (lambda: rop.SGD(momentum=1.5), ValueError, ("momentum", "1.5")),
    "momentum below 0": (lambda: rop.SGD(momentum=-0.5), ValueError, ("momentum", "-0.5")),
    "decay of SGD": (lambda: rop.SGD(weight_decay=-1e-4), ValueError, ("weight_decay", "-0.0001")),
    "decay of Adam": (lambda: rop.Adam(weight_decay=-1e-4), ValueError, ("weight_decay", "-0.0001")),
    "rate of SGD": (lambda: rop.SGD(lr=-0.1), ValueError, ("lr", "-0.1")),
    "rate of Adam": (lambda: rop.Adam(lr=-0.1), ValueError, ("lr", "-0.1")),
    "mu": (lambda: rop.SpectralRadius(mu=-0.1), ValueError, ("mu", "-0.1")),
    "no mu": (lambda: rop.SpectralRadius(None), TypeError, ("mu", "None")),  # type: ignore[arg-type]
    "tol": (lambda: rop.SpectralRadius(tol=-0.1), ValueError, ("tol", "-0.1")),
    "rate of hundreds of digits": (lambda: rop.SGD(lr=10**400), ValueError, ("lr", "finite")),
    "cosine of no epochs": (lambda: rop.cosine(1, 0), ValueError, ("cosine", "epochs", "0")),
    "cosine of half an epoch": (lambda: rop.cosine(1, 0.5), TypeError, ("cosine", "epochs", "0.5")),  # type: ignore[arg-type]
    "cosine from a word": (lambda: rop.cosine("a", 3), TypeError, ("cosine", "start", "'a'")),  # type: ignore[arg-type]
    "inverse_epoch of a word": (lambda: rop.inverse_epoch("a"), TypeError, ("inverse_epoch", "'a'")),  # type: ignore[arg-type]
    "inverse_epoch below 0": (lambda: rop.inverse_epoch(-1.0), ValueError, ("inverse_epoch", "-1")),
    "power_law of a word": (lambda: rop.power_law("a", 1), TypeError, ("power_law", "start")),  # type: ignore[arg-type]
    "power_law below 0": (lambda: rop.power_law(-1.0, 1), ValueError, ("power_law", "start", "-1")),
    "power_law, power": (lambda: rop.power_law(1, None), TypeError, ("power_law", "power")),  # type: ignore[arg-type]
    "power_law, scale": (lambda: rop.power_law(1, 1, 0), ValueError, ("power_law", "scale", "0")),
    "convergent": (lambda: rop.convergent("a", 1), TypeError, ("start", "'a'")),  # type: ignore[arg-type]
    "convergent, p": (lambda: rop.convergent(1, 1, p="a"), TypeError, ("convergent", "p", "'a'")),  # type: ignore[arg-type]
    "convergent, q": (lambda: rop.convergent(1, 1, q=None), TypeError, ("convergent", "q")),  # type: ignore[arg-type]
    "schedule of nothing": (lambda: rop.SGD(lr=lambda: 0.1), TypeError, ("lr", "k and epoch")),  # type: ignore[arg-type, misc]
    "schedule not made": (lambda: rop.SGD(lr=rop.inverse_epoch), TypeError, ("lr", "inverse_epoch")),  # type: ignore[arg-type]
    "schedule of text": (lambda: train(optimizer=rop.SGD(lr=lambda k, e: "slow")), TypeError, ("SGD", "'slow'")),
    "schedule of None": (lambda: train(optimizer=rop.SGD(lr=lambda k, e: None)), TypeError, ("SGD", "None")),
    "schedule of complex": (lambda: train(optimizer=rop.SGD(lr=lambda k, e: 1j)), TypeError, ("SGD", "complex")),
    "schedule of ragged": (lambda: train(optimizer=rop.SGD(lr=lambda k, e: [[1], [1, 2]])), TypeError, ("ragged",)),
    "schedule below 0": (lambda: train(optimizer=rop.SGD(lr=lambda k, e: -1.0)), ValueError, ("SGD", "-1")),
    "schedule of mu": (lambda: train(regularizer=rop.SpectralRadius(mu=lambda k, e: "a")), TypeError, ("mu", "'a'")),
    "callback": (lambda: train(callbacks=[3]), TypeError, ("callbacks[0]", "3")),
    "callback of nothing": (lambda: train(callbacks=[lambda: None]), TypeError, ("callbacks[0]", "row")),
    "callbacks: a function": (lambda: train(callbacks=print), TypeError, ("callbacks", "[function]")),
    "callbacks: nothing": (lambda: train(callbacks=None), TypeError, ("callbacks", "None")),
    "resume": (lambda: train(resume="yes"), TypeError, ("resume", "yes")),
    "profile": (lambda: train(profile=1), TypeError, ("profile", "1")),
    "progress": (lambda: train(progress="bar"), TypeError, ("progress", "bar")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_refused(name: str) -> None:
    call, error, says = SETTINGS[name]
    assert_refused(call, error, *says)


def test_settings_of_numpy_numbers_can_be_written() -> None:
    assert optim.describe(rop.SGD(lr=np.float32(0.5)))["lr"] == 0.5
    assert type(optim.describe(rop.SGD(lr=np.float32(0.5)))["lr"]) is float


# --------------------------------------------------------------------------------------------------------------- paths
PATHS: dict[str, tuple[Any, type[Exception], str]] = {
    "number": (5, TypeError, "5"),
    "bytes": (b"runs", TypeError, "bytes"),
    "list": (["runs"], TypeError, "list"),
    "empty": ("", ValueError, "empty"),
    "NUL": ("a\0b", ValueError, "null"),
    "300 characters": ("a" * 300, ValueError, "too long"),
    "no encoding": ("\ud800", ValueError, "encode"),
    "a file": (__file__, ValueError, "file"),
    "below a file": (__file__ + "/runs", ValueError, "file"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_checkpoint_path_is_refused(name: str) -> None:
    bad, error, word = PATHS[name]
    assert_refused(lambda: train(checkpoint=bad), error, "train", "checkpoint", word)


@pytest.mark.parametrize("name", [name for name, (bad, _, _) in PATHS.items() if isinstance(bad, str) and bad])
@pytest.mark.parametrize("command", [["train", "digits"], ["bench", "--problems", "forest"]])
def test_an_output_folder_is_refused_in_a_line(
    command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--out", PATHS[name][0]]) in (FAILED, USAGE)
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith(f"rop {command[0]}: ") and not captured.out


@pytest.mark.parametrize("command", ["resume", "eval", "spectrum"])
@pytest.mark.parametrize("bad", ["a\0b", "a" * 300, __file__])
def test_no_folder_of_a_run(command: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, bad]) == FAILED
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and not captured.out


def test_names_of_a_benchmark_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before it runs for minutes."""
    assert cli.main(["bench", "--out", str(tmp_path), "--name", "n" * 300]) == USAGE
    assert "too long" in capsys.readouterr().err


@pytest.mark.parametrize("data", ["~nobody/x", "a\0b", "a" * 300, "", b"x", 5])
def test_a_folder_of_data_is_refused(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(lambda: rop.datasets.load("usps", data), Exception, "usps", "data")
    if isinstance(data, str) and data and "\0" not in data:
        monkeypatch.setenv("ROP_DATA", data)
        assert_refused(lambda: rop.datasets.load("usps"), Exception, "usps", "$ROP_DATA")


# --------------------------------------------------------------------------------------------------------------- torch
def sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_modules_without_numbers_are_refused() -> None:
    empty = torch.nn.Linear(2, 2, device="meta")
    assert_refused(lambda: rop.from_torch(empty), ValueError, "weight", "meta", "to_empty")
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module[1].running_mean = module[1].running_mean.to("meta")
    assert_refused(lambda: rop.from_torch(module), ValueError, "1.running_mean", "meta")
    sparse = torch.nn.Linear(2, 2)
    sparse.weight = torch.nn.Parameter(torch.eye(2).to_sparse())
    assert_refused(lambda: rop.from_torch(sparse), ValueError, "weight", "dense")


def test_training_steps_for_torch_refuse() -> None:
    module, loss = torch.nn.Linear(2, 2), torch.nn.MSELoss()
    make: Any = rop.torch.SpectralRadius
    assert_refused(lambda: make(None, loss, sgd(module)), TypeError, "SpectralRadius", "nn.Module", "NoneType")
    assert_refused(lambda: make(module, loss, None), TypeError, "base_optimizer", "None")
    step = make(module, loss, sgd(module)).step
    assert_refused(lambda: step(torch.ones(3, 2, device="meta"), torch.ones(3, 2)), TypeError, "x", "meta")
    assert_refused(lambda: step(torch.ones(3, 2), "abc"), TypeError, "MSE")
    assert_refused(lambda: step(np.ma.masked_array(np.ones((3, 2))), torch.ones(3, 2)), TypeError, "x", ".filled(")
    assert np.isfinite(step(torch.ones(3, 2, requires_grad=True), torch.ones(3, 2)))  # there gradients are torch's own


def test_a_loss_with_weights_without_numbers_is_refused() -> None:
    loss = torch.nn.CrossEntropyLoss(weight=torch.ones(2, device="meta"))
    assert_refused(lambda: rop.torch.loss_from_torch(loss), TypeError, "weight", "meta")


# -------------------------------------------------------------------------------------------------------- scikit-learn
@pytest.mark.parametrize(
    "changes, word",
    [
        ({"input_shape": 4}, "input_shape"),
        ({"input_shape": ("a",)}, "input_shape"),
        ({"solver_options": 5}, "solver_options"),
        ({"lr": "a"}, "lr"),
    ],
)
def test_a_classifier_refuses(changes: dict[str, Any], word: str) -> None:
    assert_refused(lambda: RopClassifier((), epochs=1, **changes).fit(X, Y), Exception, word)


def test_a_classifier_refuses_masked_arrays() -> None:
    model = RopClassifier((), epochs=1)
    assert_refused(lambda: model.fit(MASKED, Y), TypeError, "X", ".filled(")
    assert_refused(lambda: model.fit(X, np.ma.masked_less(Y, 1)), TypeError, "y", ".filled(")
    assert_refused(lambda: model.fit(X, Y).predict(MASKED), TypeError, "X", ".filled(")


# ------------------------------------------------------------------------------------------------ files that end Python
ENDING = {
    "at once": "import sys\nsys.exit(7)\n",
    "with a message": "raise SystemExit('goodbye')\n",
    "by a parser": "import argparse\nargparse.ArgumentParser().parse_args(['--no-such-option'])\n",
    "when called": "import sys\ndef f(x):\n    sys.exit(0)\n",
}


@pytest.mark.parametrize("name", ENDING)
def test_check_survives_a_file_that_ends_python(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"ending_{len(name)}.py"
    file.write_text(ENDING[name], "utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.main(["check", f"{file}:f"]) == FAILED
    captured = capsys.readouterr()
    (line,) = (line for line in captured.err.splitlines() if line.startswith("rop check: "))
    assert "SystemExit" in line and not captured.out


@pytest.mark.parametrize("name", ENDING)
def test_the_benchmark_survives_a_file_that_ends_python(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ending.py"
    file.write_text(ENDING[name].replace("f(x)", "f()"), "utf-8")
    assert cli.main(["bench", "--torch-module", f"{file}:f"]) == USAGE
    assert "SystemExit" in capsys.readouterr().err


def test_check_survives_sys_exit_as_a_command(tmp_path: Path) -> None:
    file = tmp_path / "ending.py"
    file.write_text("import sys\nsys.exit(0)\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "rop", "check", f"{file}:f"],
        capture_output=True,
        text=True,
        env={**environment(), "NO_COLOR": "1"},
        cwd=os.fspath(tmp_path),
    )
    assert done.returncode == FAILED and done.stderr.count("\n") == 1 and "SystemExit: 0" in done.stderr, done.stderr
