"""`rop train`, `resume`, `eval`, `spectrum`: run folders and the command line."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rop
from rop import cli
from rop.commands.common import FAILED, INTERRUPTED, OK, USAGE
from rop.commands.train import chosen_optimizer
from rop.experiments import EXPERIMENTS, SETTINGS, runs
from rop.experiments.runs import Run, new_config, one_line
from rop.training import checkpoint as files
from tests.helpers.processes import environment
from tests.training.test_checkpoint import full_disk

SHORT = ["train", "digits", "--epochs", "2", "--quiet", "--json"]


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def result(out: str) -> dict[str, Any]:
    return json.loads(out.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert cli.main([*SHORT, "--out", str(folder)]) == OK
    return folder


def test_a_run_folder_holds_everything(trained: Path) -> None:
    names = {"config.json", "history.csv", "weights.npz", "checkpoint.npz", "curves.png"}
    assert {path.name for path in trained.iterdir()} == names
    rows = list(csv.DictReader((trained / "history.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2"] and float(rows[0]["rho"]) > 0
    with np.load(trained / "weights.npz", allow_pickle=False) as weights:
        assert weights["w"].shape == (EXPERIMENTS["digits"].net("paper").size,)
    assert (trained / "curves.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((trained / "config.json").read_text())
    assert config["regularizer"]["mu"] == 0.01 and config["optimizer"]["is"] == "Adam"


def test_json_is_the_last_line(capsys: Any) -> None:
    code, out, err = run(capsys, *SHORT)
    found = result(out)
    assert code == OK and err == "" and len(out.splitlines()) == 1
    assert {"test_accuracy", "valid_accuracy", "test_loss", "rho", "epochs", "hvps", "seconds"} <= set(found)
    assert found["epochs"] == 2 and found["hvps"] > 0 and found["rho"] > 0 and found["batch_rho"] > 0
    code, out, err = run(capsys, "train", "digits", "--epochs", "1", "--mu", "0", "--json")
    assert result(out)["hvps"] == 0 and "test accuracy" in out and "digits, no penalty" in err
    assert result(out)["batch_rho"] is None and "last epoch's batches" not in out


def test_profile(capsys: Any) -> None:
    code, out, _ = run(capsys, "train", "digits", "--epochs", "1", "--profile", "--quiet")
    assert code == OK and "eigenpair (H·v)" in out and "gradient of ρ (R²)" in out


def test_options_reach_the_run(tmp_path: Path, capsys: Any) -> None:
    options = """--setting plain --mu 0.02 --K 1.5 --solver track --tol 0.01 --maxiter 7 --products 3 --clip 2
                 --epochs 1 --batch-size 64 --optimizer sgd --lr 0.2 --schedule cosine --momentum 0.9 --nesterov
                 --weight-decay 1e-4 --seed 5 --dtype float64 --stop relative --limit 0.2"""
    code, _, err = run(capsys, "train", "digits", *options.split(), "--quiet", "--out", str(tmp_path / "r"))
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert code == OK, err
    assert config["regularizer"] == {
        "is": "SpectralRadius",
        "mu": 0.02,
        "K": 1.5,
        "solver": "track",
        "tol": 0.01,
        "stop": "relative",
        "maxiter": 7,
        "warm_start": True,
        "clip": 2.0,
        "products": 3,
        "refresh": 4,
        "limit": 0.2,
        "signed": True,
        "start_vector": "random",
    }
    assert config["optimizer"] == {
        "is": "SGD",
        "lr": {"is": "cosine", "start": 0.2, "epochs": 1},
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 1e-4,
    }
    assert (config["setting"], config["batch_size"], config["seed"], config["dtype"]) == ("plain", 64, 5, "float64")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("digits", rop.Adam(lr=1e-3)),
        ("digits --lr 0.5 --weight-decay 0.1", rop.Adam(lr=0.5, weight_decay=0.1)),
        ("digits --optimizer sgd", rop.SGD(lr=0.1)),
        ("digits --optimizer adam --momentum 0", rop.Adam(lr=1e-3)),
        ("forest", rop.SGD(lr=rop.inverse_epoch(0.5))),
        ("forest --lr 0.3 --batch-size 64", rop.SGD(lr=rop.inverse_epoch(0.3))),
        ("forest --schedule constant --momentum 0.9", rop.SGD(lr=0.5, momentum=0.9)),
        ("forest --optimizer adam --schedule cosine --epochs 7", rop.Adam(lr=rop.cosine(1e-3, 7))),
        ("forest --method sam --radius 0.1", rop.SAM(rop.SGD(lr=rop.inverse_epoch(0.5)), radius=0.1)),
        ("digits --method sam --adaptive --lr 0.2", rop.SAM(rop.Adam(lr=0.2), adaptive=True)),
        ("digits --method sam --base sgd --momentum 0.9", rop.SAM(rop.SGD(lr=0.1, momentum=0.9))),
        ("digits --method swa --first 3 --last 9 --every 2", rop.SWA(rop.Adam(), first=3, last=9, every=2)),
        ("digits --method swa --base sam --radius 0.2", rop.SWA(rop.SAM(rop.Adam(), radius=0.2))),
        ("digits --method entropy-sgd --steps 0", rop.EntropySGD(steps=0)),
        (
            "digits --method entropy-sgd --steps 5 --gamma 0.1 --scoping 0 --noise 0 --inner-lr 0.2 --beta 0.5",
            rop.EntropySGD(steps=5, gamma=0.1, scoping=0.0, noise=0.0, inner_lr=0.2, beta=0.5),
        ),
        ("digits --method entropy-sgd --momentum 0 --no-nesterov", rop.EntropySGD(momentum=0.0, nesterov=False)),
        (
            "forest --method kfac --lr 0.01 --decay 0.9 --damping 0.1 --kl-clip 0.1 --covariance-every 2 "
            "--inverse-every 4",
            rop.KFAC(0.01, decay=0.9, damping=0.1, kl_clip=0.1, covariance_every=2, inverse_every=4),
        ),
    ],
)
def test_the_optimizer_of_the_options(options: str, expected: Any) -> None:
    assert chosen_optimizer(cli.parser().parse_args(["train", *options.split()])) == expected


@pytest.mark.parametrize("option", ["--momentum 0.9", "--nesterov"])
def test_settings_of_another_optimizer_are_refused(option: str, capsys: Any) -> None:
    code, _, err = run(capsys, "train", "digits", *option.split())
    more = " or kfac" if "momentum" in option else ""
    assert (
        code == FAILED
        and err == f"rop train: {option.split()[0]} belongs to --method entropy-sgd{more} or sgd, got adam\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--method adam --radius 0.1", "--radius belongs to --method sam, got adam"),
        ("--method sam --first 2", "--first belongs to --method swa, got sam of adam"),
        ("--method swa --steps 3", "--steps belongs to --method entropy-sgd, got swa of adam"),
        ("--method sgd --damping 1", "--damping belongs to --method kfac, got sgd"),
        ("--method kfac --base sgd", "--base belongs to --method sam or swa, got kfac"),
        ("--method sam --base kfac", "SAM: expected base=rop.SGD(...) or rop.Adam(...), got KFAC"),
        ("--method entropy-sgd --mu 0.01 --epochs 1", "EntropySGD: expected no penalty with steps = 20"),
    ],
)
def test_settings_of_another_method_are_refused(options: str, message: str, capsys: Any) -> None:
    code, _, err = run(capsys, "train", "digits", *options.split(), "--quiet")
    assert code == FAILED and err.startswith(f"rop train: {message}")


METHODS = {
    "sam": "--radius 0.02",
    "swa": "--first 2",
    "entropy-sgd": "--steps 2 --mu 0",
    "kfac": "--lr 0.01 --inverse-every 10",
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_resume_to_the_same_weights(method: str, tmp_path: Path, capsys: Any) -> None:
    options = ["--method", method, *METHODS[method].split(), "--solver", "track", "--quiet"]
    for name, epochs in (("whole", "3"), ("parts", "1")):
        code, _, err = run(capsys, "train", "digits", *options, "--epochs", epochs, "--out", str(tmp_path / name))
        assert code == OK, err
    code, _, err = run(capsys, "resume", str(tmp_path / "parts"), "--epochs", "3", "--quiet")
    assert code == OK, err
    whole, parts = (np.load(tmp_path / name / "weights.npz")["w"] for name in ("whole", "parts"))
    np.testing.assert_array_equal(parts, whole)


def test_forest_has_the_papers_learning_rate() -> None:
    assert new_config("forest")["optimizer"]["lr"] == {"is": "inverse_epoch", "start": 0.5}
    assert new_config("forest", batch_size=64)["optimizer"]["lr"] == {"is": "inverse_epoch", "start": 0.1}
    assert new_config("usps")["regularizer"]["mu"] == 0.005 and new_config("usps")["epochs"] == 100


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nets(name: str, setting: str) -> None:
    shape = {"digits": (1, 8, 8), "forest": (54,), "usps": (1, 16, 16), "mnist": (1, 16, 16)}[name]
    net = EXPERIMENTS[name].net(setting)
    sizes = {"forest": {"paper": 1667, "plain": 2087}, "usps": {"paper": 14794, "plain": 14794}}  # 54·20+20 + …
    if name in sizes:
        assert net.size == sizes[name][setting]
    out = net.predict(net.init(), np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32))
    assert np.allclose(out.sum(axis=1), 1) == (setting == "paper")


# ----------------------------------------------------------------------------------------------- resume, eval, spectrum
def test_resuming_a_finished_run(trained: Path, capsys: Any) -> None:
    before = (trained / "history.csv").read_text()
    code, out, _ = run(capsys, "resume", str(trained), "--quiet", "--json")
    assert code == OK and result(out)["epochs"] == 2 and (trained / "history.csv").read_text() == before


def test_a_folder_with_nothing_but_its_configuration_can_be_resumed(tmp_path: Path, trained: Path, capsys: Any) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / "config.json").write_bytes((trained / "config.json").read_bytes())
    code, _, _ = run(capsys, "eval", str(new))
    assert code == FAILED
    assert run(capsys, "resume", str(new), "--quiet")[0] == OK
    np.testing.assert_array_equal(Run.open(new).weights()[0], Run.open(trained).weights()[0])


def test_ctrl_c_then_resume(tmp_path: Path, trained: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "rop", "train", "digits", "--epochs", "100000", "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    while not (folder / files.FILE).exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == INTERRUPTED, errors
    assert f"rop resume {folder} goes on" in errors.replace("\n", " ") and "Traceback" not in errors
    done = files.load(folder / files.FILE)[0]["epoch"]
    code, out, _ = run(capsys, "resume", str(folder), "--epochs", str(done + 1), "--quiet", "--json")
    assert code == OK and result(out)["epochs"] == done + 1
    first = files.load(trained / files.FILE)[0]["history"][0]
    assert files.load(folder / files.FILE)[0]["history"][0]["loss"] == first["loss"]


def test_eval(trained: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "eval", str(trained), "--json")
    assert code == OK and result(out)["dataset"] == "digits" and 0 < result(out)["test_accuracy"] <= 1
    assert "360 test samples of digits" in out


def test_eval_on_data_that_do_not_fit(trained: Path, capsys: Any, monkeypatch: Any) -> None:
    from rop import datasets

    wrong = np.zeros((3, 1, 16, 16), np.float32), np.zeros(3, np.int64)
    monkeypatch.setattr(datasets, "load", lambda *a, **k: datasets.DataSet("usps", wrong, wrong, wrong, 10))
    code, _, err = run(capsys, "eval", str(trained), "--on", "usps")
    assert code == FAILED and "does not fit the data set usps" in err


def test_spectrum(trained: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "spectrum", str(trained), "--k", "2", "--probes", "1", "--steps", "10", "--json")
    found = result(out)
    assert code == OK, err
    assert len(found["largest"]) == 2 and found["largest"][0] >= found["largest"][1] >= found["smallest"][0]
    assert found["rho"] == pytest.approx(max(found["largest"][0], -found["smallest"][0]))
    assert (trained / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    (trained / "spectrum.png").unlink()


# --------------------------------------------------------------------------------------------------------- wrong input
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cifar"], "invalid choice: 'cifar'"),
        (["train", "digits", "--mu", "-1"], "expected a number from 0 up, got '-1'"),
        (["train", "digits", "--lr", "nan"], "got 'nan'"),
        (["train", "digits", "--solver", "newton"], "invalid choice: 'newton'"),
        (["train", "digits", "--epochs", "0"], "from 1 up"),
        (["train", "digits", "--limit", "0"], "expected a number above 0, or none, got '0'"),
        (["train", "digits", "--limit", "half"], "expected a number above 0, or none, got 'half'"),
        (["resume"], "RUN"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == USAGE and message in capsys.readouterr().err


def test_mu_0_goes_with_every_option_of_the_penalty(tmp_path: Path, capsys: Any) -> None:
    """A sweep over μ includes 0; what the penalty would refuse is refused all the same."""
    options = "--K 0.5 --solver track --tol 0.01 --stop relative --maxiter 9 --products 3 --clip 2 --limit none"
    plain, swept = tmp_path / "plain", tmp_path / "swept"
    assert run(capsys, "train", "digits", "--epochs", "1", "--mu", "0", "--quiet", "--out", str(plain))[0] == OK
    code, out, err = run(capsys, *SHORT, "--epochs", "1", "--mu", "0", *options.split(), "--out", str(swept))
    assert code == OK and err == "" and result(out)["hvps"] == 0
    np.testing.assert_array_equal(Run.open(swept).weights()[0], Run.open(plain).weights()[0])
    code, _, err = run(capsys, "train", "digits", "--mu", "0", "--clip", "0")
    assert code == FAILED and "clip must be above 0" in err


@pytest.mark.parametrize(("given", "limit"), [([], 0.5), (["--limit", "0.25"], 0.25), (["--limit", "none"], None)])
def test_limit(given: list[str], limit: float | None, tmp_path: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, *SHORT, "--epochs", "1", *given, "--out", str(tmp_path / "r"))
    assert code == OK and result(out)["collapsed"] is False
    assert Run.open(tmp_path / "r").regularizer.limit == limit


def test_a_run_of_an_earlier_version_keeps_its_rule(trained: Path, tmp_path: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    del config["regularizer"]["limit"], config["digest"]
    config["version"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Run.open(tmp_path).regularizer.limit is None


def test_a_collapse_is_said(capsys: Any, tmp_path: Path) -> None:
    """The first step of such a rate saturates the softmax: all of it is for real."""
    options = ["--optimizer", "sgd", "--lr", "1e4", "--mu", "0"]
    code, out, err = run(capsys, *SHORT, *options, "--out", str(tmp_path / "r"))
    assert code == OK and result(out)["collapsed"] is True and result(out)["test_accuracy"] < 0.2
    assert len(err.splitlines()) == 1 and "has collapsed" in err
    code, out, err = run(capsys, "resume", str(tmp_path / "r"), "--quiet", "--json")
    assert code == OK and result(out)["collapsed"] is True and "has collapsed" in err


def test_wrong_paths(trained: Path, tmp_path: Path, capsys: Any) -> None:
    code, _, err = run(capsys, *SHORT, "--out", str(trained))
    assert code == FAILED and f"rop resume {trained} goes on with it" in err
    for command in ("resume", "eval", "spectrum"):
        code, _, err = run(capsys, command, str(tmp_path / "none"))
        assert code == FAILED and "expected the folder of a run" in err
    code, _, err = run(capsys, "train", "digits", "--out", "/dev/null/x", "--quiet")
    assert code == FAILED and "out must be a folder" in err
    code, _, err = run(capsys, "train", "forest", "--data", str(tmp_path), "--out", str(tmp_path / "r"))
    assert code == FAILED and "covtype.data.gz" in err and not (tmp_path / "r").exists()


def test_foreign_files(trained: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "of a run of this version" in run(capsys, "eval", str(tmp_path))[2]
    (tmp_path / "config.json").write_text("{nonsense")
    assert "expected the configuration" in run(capsys, "eval", str(tmp_path))[2]
    (tmp_path / "config.json").write_bytes((trained / "config.json").read_bytes())
    (tmp_path / "weights.npz").write_bytes(b"no weights")
    code, _, err = run(capsys, "eval", str(tmp_path))
    assert code == FAILED and "expected weights, got a file that cannot be read" in err


# ------------------------------------------------------------------------------------------------ damaged run folders
def flipped(place: float) -> Callable[[bytes], bytes]:
    """One bit, at this part of the file."""

    def flip(content: bytes) -> bytes:
        at = int(place * (len(content) - 1))
        return content[:at] + bytes([content[at] ^ (1 << at % 7)]) + content[at + 1 :]

    return flip


def cut(part: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(part * len(content))]


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "text": lambda content: b"something else",
    "number": lambda content: b"1",
    "object": lambda content: b"{}",
    "nested": lambda content: b"[" * 100_000,
    "zip": lambda content: b"PK\x05\x06" + bytes(18),
    "bytes": lambda content: bytes(range(256)) * 4,
    **{f"cut {part}": cut(part) for part in (0.1, 0.5, 0.9, 0.99)},
    **{f"flipped {place:.2f}": flipped(place) for place in np.linspace(0, 1, 12)},
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("resume", "config.json"),
        ("resume", "checkpoint.npz"),
        ("eval", "config.json"),
        ("eval", "weights.npz"),
        ("eval", "checkpoint.npz"),
        ("spectrum", "config.json"),
        ("spectrum", "weights.npz"),
    ],
)
def test_a_damaged_folder_gives_one_line_or_the_right_result(
    command: str, file: str, damage: str, trained: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    if (command, file) == ("eval", "checkpoint.npz"):
        (folder / "weights.npz").unlink()
    content = DAMAGES[damage]((folder / file).read_bytes())
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    monkeypatch.setattr(
        rop.eigen,
        "lanczos",
        lambda *a, **k: SimpleNamespace(  # what is not asked here takes long
            rho=1.0, values=np.ones(1), value=1.0, converged=True
        ),
    )
    small = ["--steps", "2", "--probes", "1"] if command == "spectrum" else []
    code, out, err = run(capsys, command, str(folder), "--json", "--quiet", *small)
    if code == OK:
        expected = run(capsys, command, str(trained), "--json", "--quiet", *small)[1]
        different = {"seconds", "evaluation_seconds"}
        got, right = ({k: v for k, v in result(text).items() if k not in different} for text in (out, expected))
        assert got == right and (damage.startswith("flipped") or (file, damage) == ("weights.npz", "missing"))
    else:
        assert code == FAILED and err.count("\n") == 1 and str(folder) in err and "Traceback" not in err, err
    (trained / "spectrum.png").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", "cifar"),
        ("dataset", 3),
        ("setting", "other"),
        ("epochs", 0),
        ("epochs", "2"),
        ("epochs", 2.5),
        ("batch_size", -1),
        ("seed", -1),
        ("seed", None),
        ("dtype", "float16"),
        ("device", "tpu"),
        ("data", 5),
        ("optimizer", None),
        ("optimizer", {"is": "Newton"}),
        ("optimizer", {"is": "SGD", "lr": "fast"}),
        ("optimizer", {"lr": 0.1}),
        ("optimizer", [1]),
        ("regularizer", {"is": "SpectralRadius", "mu": -float("inf")}),
        ("regularizer", {"is": "SGD"}),
        ("regularizer", 1),
        ("format", "other"),
        ("version", 3),
        ("version", [2]),
        ("digest", 1),
    ],
)
def test_a_configuration_that_no_command_writes(
    name: str, value: Any, trained: Path, tmp_path: Path, capsys: Any
) -> None:
    config = json.loads((trained / "config.json").read_text())
    config.pop("digest")
    config[name] = value
    config.setdefault("digest", runs._digest(config))
    (tmp_path / "config.json").write_text(json.dumps(config))
    for command in ("resume", "eval", "spectrum"):
        code, _, err = run(capsys, command, str(tmp_path))
        assert code == FAILED and err.count("\n") == 1 and "config.json: expected the configuration" in err, err


def test_every_change_of_a_configuration_is_noticed(trained: Path, tmp_path: Path) -> None:
    """Also one that leaves it valid, such as another number of epochs; a run of an earlier version has no digest."""
    content = (trained / "config.json").read_bytes()
    expected, path = json.loads(content), tmp_path / "config.json"
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found = Run.open(tmp_path).config
        except rop.ArgumentError:
            continue
        assert found == {k: v for k, v in expected.items() if k != "digest"}
    path.write_text(json.dumps({**{k: v for k, v in expected.items() if k != "digest"}, "version": 1}))
    assert Run.open(tmp_path).config["epochs"] == 2


def test_weights_of_another_net_or_with_nan_are_refused(trained: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "weights.npz"
    w = np.load(path)["w"]
    for wrong in ({"w": w[:-1]}, {"w": w.astype(np.float64)}, {"w": w * np.nan}, {"w": w, "more": w}, {"v": w}, {}):
        np.savez(path, **wrong)
        code, _, err = run(capsys, "eval", str(tmp_path / "run"))
        assert code == FAILED and err.count("\n") == 1 and f"{path}: expected" in err
    np.savez_compressed(path, w=w)
    assert "it is compressed" in run(capsys, "eval", str(tmp_path / "run"))[2]


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_a_full_disk_gives_one_line_and_the_run_goes_on_later(
    after: int, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """The files are: configuration, checkpoint at the start, history, checkpoint of the first epoch, of the second."""
    from rop.training import run as trainer

    folder, whole = tmp_path / "run", tmp_path / "whole"
    monkeypatch.setattr(trainer, "SAVE_EVERY", 0.0)
    calls = full_disk(monkeypatch, after)
    code, _, err = run(capsys, *SHORT, "--mu", "0", "--out", str(folder))
    assert code == FAILED and err.count("\n") == 1 and "No space left on device" in err, err
    assert len(calls) == after + 1
    monkeypatch.undo()
    if after == 0:
        assert not list(folder.iterdir())
        return
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert run(capsys, "resume", str(folder), "--quiet")[0] == OK
    assert run(capsys, *SHORT, "--mu", "0", "--out", str(whole))[0] == OK
    np.testing.assert_array_equal(Run.open(folder).weights()[0], Run.open(whole).weights()[0])


def test_what_is_not_a_number_is_null() -> None:
    assert json.loads(one_line({"a": float("nan"), "b": 1.5, "c": "x"})) == {"a": None, "b": 1.5, "c": "x"}


# ---------------------------------------------------------------------------------------------------------- real data
@pytest.mark.skipif(not os.environ.get("ROP_DATA"), reason="ROP_DATA is not set: there are no real files to read")
@pytest.mark.parametrize(("name", "least"), [("usps", 0.5), ("forest", 0.55)])
def test_training_on_real_data(name: str, least: float, capsys: Any) -> None:
    code, out, err = run(capsys, "train", name, "--epochs", "2", "--solver", "track", "--quiet", "--json")
    found = result(out)
    assert code == OK, err
    assert found["test_accuracy"] > least and found["hvps"] > 0


@pytest.mark.skipif(not os.environ.get("ROP_DATA"), reason="ROP_DATA is not set: there are no real files to read")
def test_a_net_trained_on_usps_is_tested_on_mnist(tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "u")
    assert run(capsys, "train", "usps", "--mu", "0", "--epochs", "5", "--quiet", "--out", folder)[0] == OK
    code, out, err = run(capsys, "eval", folder, "--on", "mnist", "--json", "--quiet")
    assert code == OK, err
    assert result(out)["samples"] == 10_000 and result(out)["test_accuracy"] > 0.4


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("radius", {"clip": 2.0}, rop.SpectralRadius(mu=0.1, clip=2.0)),
        ("top-k", {"k": 2, "solver": "track"}, rop.TopEigenvalues(mu=0.1, k=2, solver="track")),
        ("trace", {"samples": 3}, rop.Trace(mu=0.1, samples=3)),
    ],
)
def test_configurations_name_any_penalty(kind: str, options: dict[str, Any], expected: Any) -> None:
    config = runs.new_config("digits", mu=0.1, penalty=kind, **options)
    assert runs.Run(config, None).regularizer == expected
    assert runs.new_config("digits", mu=0, penalty=kind, **options)["regularizer"] is None


def test_settings_of_another_penalty_are_refused() -> None:
    with pytest.raises(
        rop.ArgumentError, match="penalty: trace has the settings mu, K, samples, clip, limit, got solver"
    ):
        runs.new_config("digits", penalty="trace", solver="track")
