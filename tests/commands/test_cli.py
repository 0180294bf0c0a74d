"""The command: exit codes, messages for wrong input, the demo."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import rop
from rop import cli
from rop.commands import bench, demo
from rop.commands.common import FAILED, INTERRUPTED, OK, USAGE


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "rop", *arguments], capture_output=True, text=True, encoding="utf-8")


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"rop {rop.__version__}\n", "")


def test_help_names_the_commands_and_exit_codes():
    for arguments in (["--help"], ["demo", "--help"], ["bench", "--help"]):
        done = run(*arguments)
        assert done.returncode == 0
        assert "exit codes:" in done.stdout and "wrong usage" in done.stdout
    assert "'rop[bench]'" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: command"),
        (["demmo"], "invalid choice"),
        (["demo", "--batch", "0"], "expected a whole number from 1 up, got '0'"),
        (["demo", "--batch", "many"], "got 'many'"),
        (["demo", "--seed", "x"], "invalid int"),
        (["bench", "--batch", "-3"], "--batch"),
        (["bench", "--dtype", "float16"], "float16"),
        (["bench", "--what"], "--what"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "forrest"], "unknown problem 'forrest'; known: forest"),
        (["--engines", "tensorflow"], "unknown engine 'tensorflow'; known: rop, torch"),
        (["--works", "r3"], "unknown work 'r3'; known: grad, hvp"),
        (["--threads", "100000"], "there are only"),
        (["--json", "/"], "takes a file"),
        (["--out", "/dev/null/x"], "cannot write"),
    ],
)
def test_wrong_bench_options(arguments: list[str], message: str, capsys):
    assert cli.main(["bench", *arguments]) == USAGE
    assert message in capsys.readouterr().err


def test_bench_list(capsys):
    assert cli.main(["bench", "--list"]) == OK
    assert "forest" in capsys.readouterr().out


@pytest.mark.thorough
def test_bench_saves_what_it_measured(tmp_path, capsys):
    options = "--problems mlp:5-4-3 --engines rop torch --batch 4 --dtype float32 --works grad --threads 1 --rounds 1"
    assert cli.main(["bench", *options.split(), "--out", str(tmp_path), "--json", str(tmp_path / "b.json")]) == OK
    out = capsys.readouterr()
    assert "loss+grad" in out.out and "loss+grad: rop" in out.err
    assert (tmp_path / "b.json").read_text("utf-8") == (tmp_path / "results.json").read_text("utf-8")


def test_bench_without_its_package(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_spec", {}.get)
    assert cli.main(["bench"]) == FAILED
    assert "pip install -e '.[bench]'" in capsys.readouterr().err


def test_demo():
    done = run("demo", "--batch", "40", "--seed", "3", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    for part in ("40 images", "loss", "∇f", "H v", "vᵀ∇H v", "all three agree", "μ = 0 ", "μ = 0.01"):
        assert part in done.stdout


def test_demo_fails_if_the_check_does(monkeypatch, capsys):
    monkeypatch.setattr(demo, "TOLERANCE", 0.0)
    assert cli.main(["demo", "--batch", "8"]) == FAILED
    assert "NOT all of them agree" in capsys.readouterr().out


def test_demo_without_scikit_learn(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    x, y, source = demo.digits(12)
    assert x.shape == (12, 1, 8, 8) and y.shape == (12,) and "made-up" in source
    assert np.isfinite(x).all() and 0 <= y.min() <= y.max() < 10


def test_errors_of_the_package_are_one_line(monkeypatch, capsys):
    def fail(count: int):
        raise rop.ArgumentError("x: expected this, got that")

    monkeypatch.setattr(demo, "digits", fail)
    assert cli.main(["demo"]) == FAILED
    assert capsys.readouterr().err == "rop demo: x: expected this, got that\n"


def test_interrupt(monkeypatch, capsys):
    def interrupt(count: int):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "digits", interrupt)
    assert cli.main(["demo"]) == INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
