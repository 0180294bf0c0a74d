"""The command `rop check`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rop
from rop import cli
from rop.commands import check as command
from rop.commands.common import FAILED, OK, USAGE
from tests.check.test_check import tanh_with

MINE = """
import math, rop

def right(x):
    s, c = math.sin(x), math.cos(x)
    return s, c, -s, -c

def wrong(x):
    s, c = math.sin(x), math.cos(x)
    return s, c, s, -c

layer = rop.Elementwise(right)
loss = rop.MSE()
net = rop.Sequential(rop.Linear(3, 4), layer, rop.Linear(4, 2))
images = rop.Sequential(rop.Conv2d(1, 2, 3), layer)
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "mine_to_check.py"
    path.write_text(MINE, "utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return str(path)


def test_the_command_narrows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "conv2d", "--order", "2", "--dtype", "float64"]) == OK
    out = capsys.readouterr().out
    assert "Conv2d" in out and "float32" not in out and "3 rows in" in out and "Conv2d: all right" in out
    assert "\x1b" not in out, "no colours in a pipe"


def test_the_command_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "Tanh", "MSE", "--json"]) == OK
    data = json.loads(capsys.readouterr().out)
    (result,) = data["results"]
    assert data["ok"] and {row["subject"] for row in result["rows"]} == {"Tanh", "MSE"}
    assert set(result["rows"][0]) >= {"dtype", "direction", "order", "error", "difference", "slope", "identity", "ok"}


@pytest.mark.parametrize(
    ("name", "arguments", "code", "words"),
    [
        ("right", [], OK, "right: all right"),
        ("wrong", [], FAILED, "wrong: f″ is wrong: at x = "),
        ("layer", [], OK, "right: all right"),
        ("loss", [], OK, "MSE: all right"),
        ("net", [], OK, "network of 26 parameters: all right"),
        ("images", ["--shape", "1", "4", "4"], OK, "all right"),
        ("images", [], FAILED, "--shape 1 28 28"),
        ("number", [], FAILED, "must be a Python function"),
        ("nothing", [], USAGE, "to choose from: right, wrong, layer, loss, net, images"),
    ],
)
def test_the_command_on_ones_own_file(
    name: str, arguments: list[str], code: int, words: str, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", f"{mine}:{name}", "--dtype", "float64", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_wrong_usage_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "Tanhh"]) == USAGE
    assert "no layer or loss 'Tanhh'; known: Linear, Conv2d" in capsys.readouterr().err
    assert cli.main(["check", "nowhere.py:f"]) == USAGE
    assert "there is no file 'nowhere.py'" in capsys.readouterr().err
    broken = tmp_path / "broken_to_check.py"
    broken.write_text("1 / 0", "utf-8")
    assert cli.main(["check", f"{broken}:f"]) == FAILED
    assert "cannot be run: ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["check", "--order", "3"])
    assert stop.value.code == USAGE


def test_the_exit_code_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rop.Tanh, "function", staticmethod(tanh_with(3, -1.0)))
    assert cli.main(["check", "Tanh", "--dtype", "float64"]) == FAILED
    out = capsys.readouterr().out
    assert "WRONG" in out and "the first is Tanh float64, to input, order 2" in out


def test_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.painter()("ok", "green") == "ok"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert command.painter()("ok", "green") == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert command.painter()("ok", "green") == "ok"
