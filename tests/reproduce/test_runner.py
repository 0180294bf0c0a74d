"""Tasks in several processes: errors, interrupts, and a parent that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rop.reproduce.runner import run
from tests.helpers import made_up
from tests.helpers.processes import environment

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

PARENT = """
import sys
from tests.helpers import made_up
from rop.reproduce.runner import run
if __name__ == "__main__":
    for outcome in run([(folder, 60.0) for folder in sys.argv[1:]], made_up.note, 2):
        print(outcome)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_ends_its_own_task_only(jobs: int) -> None:
    outcomes = sorted(run([1, 2, 3], made_up.fail_at_two, jobs), key=lambda outcome: outcome.task)
    assert [outcome.value for outcome in outcomes] == [1, None, 3]
    assert "ValueError: two is too much" in (outcomes[1].error or "") and outcomes[0].error is None


def test_every_process_has_one_thread() -> None:
    assert [outcome.value for outcome in run([1, 1], made_up.threads_of, 2)] == [1, 1]


def test_no_tasks() -> None:
    assert list(run([], made_up.double, 4)) == []


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], list[Path]]:
    """A parent with two children that wait."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, folders)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: all((folder / "begun").exists() for folder in folders))
    return process, folders


def wait_for(condition: object, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@posix
def test_an_interrupt_reaches_every_task_once(tmp_path: Path) -> None:
    process, folders = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and errors.strip().endswith("KeyboardInterrupt"), errors
    assert errors.count("Traceback") == 1, errors  # the parent's own
    assert all((folder / "interrupted").exists() and not (folder / "ended").exists() for folder in folders)


@posix
def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    process, _ = started(tmp_path)
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    children = [int(pid) for pid in found.split()]
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(alive(pid) for pid in children))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
