"""`rop warm`: its options become the environment of the process that compiles."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rop import cli
from rop.commands.common import FAILED, OK, USAGE
from rop.kernels import ship


@pytest.fixture
def started(monkeypatch: Any) -> list[tuple[list[str], dict[str, str]]]:
    runs: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str]) -> Any:
        runs.append((command, env))
        return SimpleNamespace(returncode=len(runs) - 1)

    monkeypatch.setattr(ship.subprocess, "run", run)
    return runs


def test_options_reach_the_process_that_compiles(started: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROP_VECTOR_UNIT", "avx512")
    monkeypatch.setenv("ROP_CACHE_DIR", "before")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["warm"]) == OK
    assert cli.main(["warm", "--dtype", "float64", "--for", "x86-64-v3", "--out", "kernels"]) == FAILED
    (usual, environment), (special, changed) = started
    assert usual == [sys.executable, "-m", "rop.kernels.ship", "", "float32", "float64"]
    assert environment["ROP_CACHE_DIR"] == "before" and environment["ROP_VECTOR_UNIT"] == "avx512"
    assert special[3:] == [str(tmp_path / "kernels"), "float64"]
    assert changed["ROP_CACHE_DIR"] == str(tmp_path / "kernels") and "ROP_VECTOR_UNIT" not in changed
    assert (changed["NUMBA_CPU_NAME"], changed["NUMBA_CPU_FEATURES"]) == ("x86-64-v3", "")


@pytest.mark.parametrize("arguments", [["--for", "z80"], ["--dtype", "float16"], ["--dtype"]])
def test_wrong_options(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["warm", *arguments])
    assert stop.value.code == USAGE and arguments[0] in capsys.readouterr().err


def test_help_says_how_another_machine_uses_the_folder(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["warm", "--help"])
    assert "ROP_CACHE_DIR=DIR NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES= python" in capsys.readouterr().out


def test_errors_of_the_process_are_one_line(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(ship, "cache_folder", lambda: tmp_path / "elsewhere" / "version")
    assert ship.main([str(tmp_path / "out"), "float32"]) == FAILED
    said = capsys.readouterr().err
    assert said.startswith("rop warm: ") and said.count("\n") == 1 and "only you can write to" in said
