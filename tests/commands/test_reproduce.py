"""`rop reproduce`: its messages, its exit codes, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rop import cli
from rop.commands import FAILED, INTERRUPTED, OK, USAGE, reproduce
from rop.reproduce import study
from rop.reproduce.experiments import NAMES
from rop.reproduce.spec import Experiment, Task
from tests.helpers import made_up
from tests.helpers.processes import ROOT, environment


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The name forest stands for the made-up experiment, whose tasks run in this process."""
    found = made_up.EXPERIMENT
    for module, name in ((reproduce, "experiment"), (study, "experiment_named")):
        monkeypatch.setattr(module, name, lambda name: found)
    return found


def command(*arguments: object) -> int:
    return cli.main(["reproduce", *map(str, arguments)])


def test_the_list_says_what_each_runs_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == OK
    out = capsys.readouterr().out
    assert all(f"{name:16}" in out for name in NAMES) and out.count("cost: ") == out.count("--quick: ") == len(NAMES)


def test_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command("forrest")
    assert caught.value.code == USAGE and "forest-batch" in capsys.readouterr().err


def test_results_are_written_and_finished_tasks_are_skipped(
    made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("forest", "--seeds", 3, "--out", tmp_path, "--jobs", 1)
    assert command(*arguments) == OK
    first = capsys.readouterr()
    assert (
        "12 tasks, 0 finished, 12 to run in 1 process" in first.err and "[12/12] three, corrected, seed 2" in first.err
    )
    assert "left" in first.err and "ours, corrected: holds; three > one: P = 1.00" in first.out
    assert {path.name for path in tmp_path.iterdir()} == {
        "made-up", "made-up.md", "made-up.tex", "made-up-score.png"
    }  # fmt: skip
    assert not list((tmp_path / "made-up" / "work").iterdir())
    assert "Command: `rop reproduce forest --seeds 3`" in (tmp_path / "made-up.md").read_text("utf-8")
    assert command(*arguments) == OK
    again = capsys.readouterr()
    assert "12 tasks, 12 finished, 0 to run" in again.err and again.out == first.out


def test_rendering_alone_runs_nothing(made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("forest", "--out", tmp_path, "--render-only") == OK
    assert "0 records: nothing is run yet." in capsys.readouterr().out and not (tmp_path / "made-up").exists()


def test_other_epochs_are_recorded_apart(made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("forest", "--seeds", 1, "--out", tmp_path, "--jobs", 1) == OK
    assert command("forest", "--seeds", 1, "--epochs", 2, "--out", tmp_path, "--jobs", 1) == OK
    assert "4 records of other settings are in the folder and left out." in capsys.readouterr().out


def test_some_of_the_tasks(made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("forest", "--only", "three-*seed0", "--out", tmp_path, "--jobs", 1) == OK
    assert "2 tasks, 0 finished" in capsys.readouterr().err
    assert command("forest", "--only", "four", "--out", tmp_path) == FAILED
    assert "no task matches --only 'four'; keys are such as one-published-" in capsys.readouterr().err


def test_failed_tasks_are_named_and_the_others_run(
    made: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
        return [Task("made-up", model, 0, "published", {"fails": model == "one"}) for model in ("one", "three")]

    monkeypatch.setitem(made.__dict__, "tasks", tasks)
    assert command("forest", "--out", tmp_path, "--jobs", 1) == FAILED
    err = capsys.readouterr().err
    assert "rop reproduce: failed: one, published, seed 0\nmade-up: it was asked to fail" in err
    assert f"1 tasks failed; rop reproduce forest --jobs 1 --out {tmp_path} tries them again" in err
    assert [path.name[:5] for path in (tmp_path / "made-up" / "records").iterdir()] == ["three"]


def test_a_damaged_record(made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("forest", "--seeds", 1, "--out", tmp_path, "--jobs", 1)
    path = next((tmp_path / "made-up" / "records").iterdir())
    path.write_text("{}")
    capsys.readouterr()
    for arguments in ((), ("--render-only",)):
        assert command("forest", "--seeds", 1, "--out", tmp_path, *arguments) == FAILED
        assert f"rop reproduce: {path}: expected the record of a finished task" in capsys.readouterr().err


def test_a_wrong_folder(made: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert command("forest", "--out", tmp_path / "file") == FAILED
    assert "folder" in capsys.readouterr().err


def test_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("forest", "--quick", "--only", "unregularised-corrected*", "--out", tmp_path, "--data", tmp_path)
    assert command(*arguments) == FAILED
    assert "there is no file covtype.data.gz in the folder" in capsys.readouterr().err


def test_a_missing_package(
    made: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(made.__dict__, "packages", {"no_such_module": "Pillow"})
    assert command("forest", "--out", tmp_path) == FAILED
    assert (
        "Pillow is needed here (No module named 'no_such_module'): pip install 'rop[reproduce]'"
        in capsys.readouterr().err
    )


# ------------------------------------------------------------------------------------------------------------ stopping
START = """
import sys
from functools import partial
from rop.cli import main
from rop.reproduce import study
from tests.helpers import made_up

study.Study = partial(study.Study, load=made_up.load)
if __name__ == "__main__":
    sys.exit(main())
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`rop reproduce forest-batch-2` with made-up data, four of its tasks, in two processes."""
    script = folder / "start.py"
    script.write_text(START)
    options = ["reproduce", "forest-batch-2", "--seeds", "2", "--epochs", "40", "--only", "*corrected*", "--jobs", "2"]
    return subprocess.Popen(
        [sys.executable, str(script), *options, "--out", str(folder / "out"), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(), start_new_session=True,
    )  # fmt: skip


def figures(folder: Path) -> dict[str, dict[str, object]]:
    """What must be the same in two runs: everything that is measured but for the times."""
    found = {}
    for path in (folder / "out" / "forest-batch-2" / "records").glob("*.json"):
        content = json.loads(path.read_text())
        content["figures"].pop("training_seconds")
        found[path.name] = {"settings": content["settings"], "figures": content["figures"]}
    return found


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_to_the_same_records(tmp_path: Path, number: signal.Signals) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    process = start(stopped)
    end = time.monotonic() + 60
    while not list(stopped.glob("out/forest-batch-2/work/*/checkpoint.npz")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == INTERRUPTED, errors
        assert "of 4 tasks are finished, the others go on where they stopped: rop reproduce forest-batch-2" in errors
        assert "Traceback" not in errors, errors
    assert len(figures(stopped)) < 4
    for folder in (stopped, whole):
        process = start(folder)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == OK, errors
    assert figures(stopped) == figures(whole) and len(figures(whole)) == 4
