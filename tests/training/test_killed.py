"""Kill -9 at random moments: resumed runs end with the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.training import checkpoint as files
from tests.helpers.processes import environment
from tests.training.test_trainer import fit, same

# A run that saves after every slice of steps. With "slow" a save takes its time: bytes go to the disk in many small
# portions, and a line says when it begins, so that it can be killed in the middle.
CHILD = """
import os, sys, time
from tests.training.test_trainer import fit
from tests.training.test_killed import OPTIONS
from rop.training import checkpoint
from rop.training import run as trainer
trainer.SAVE_EVERY = trainer.SLICE = 0.0
if sys.argv[3] == "slow":
    write, fsync = checkpoint.write_atomically, os.fsync
    def slow_fsync(handle):
        time.sleep(0.02)
        fsync(handle)
    def slowly(path, content):
        def portions(file):
            import io
            whole = io.BytesIO()
            content(whole)
            print("saving", flush=True)
            for start in range(0, len(whole.getvalue()), 256):
                file.write(whole.getvalue()[start:start + 256])
                file.flush()
                time.sleep(0.002)
        write(path, portions)
    os.fsync, checkpoint.write_atomically = slow_fsync, slowly
print("ready", flush=True)
fit(checkpoint=sys.argv[1], epochs=int(sys.argv[2]), resume=True, **OPTIONS)
print("done", flush=True)
"""
OPTIONS: dict[str, Any] = {
    "net": rop.Sequential(rop.Linear(2, 6), rop.BatchNorm1d(6), rop.Tanh(), rop.Linear(6, 2)),
    "optimizer": rop.SGD(lr=0.05, momentum=0.9),
    "regularizer": rop.SpectralRadius(mu=0.02, maxiter=5),
}
EPOCHS = 40


class Runs:
    """Runs that are killed again and again, each in a folder of its own until it is through."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.random = folder, random.Random(seed)
        self.number = self.killed = self.in_a_save = 0

    @property
    def current(self) -> Path:
        return self.folder / str(self.number)

    def kill_one(self, slow: bool) -> None:
        """Starts the current run and kills it at some moment; if it was through before that, the next one is begun."""
        command = [sys.executable, "-c", CHILD, str(self.current), str(EPOCHS), "slow" if slow else "fast"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline()]
            assert lines == ["ready\n"]
            for _ in range(self.random.randint(1, 5) if slow else 0):
                lines.append(process.stdout.readline())
            time.sleep(self.random.uniform(0, 0.04 if slow else 0.4))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if "done\n" in [*lines, *process.stdout]:
            self.number += 1
            return
        self.killed += 1
        self.in_a_save += bool(list(self.current.glob(f".{files.FILE}.*")))


def check(folder: Path, seed: int, kills: int) -> None:
    runs = Runs(folder, seed)
    while runs.killed < kills:
        runs.kill_one(slow=runs.killed % 3 == 0)
    assert runs.in_a_save >= kills // 4, "about a third of them in the middle of a save"
    expected = fit(epochs=EPOCHS, **OPTIONS)
    for number in range(runs.number + 1):
        path = folder / str(number)
        same(fit(checkpoint=path, epochs=EPOCHS, resume=True, **OPTIONS), expected)
        assert [found.name for found in path.iterdir()] == [files.FILE]
        assert np.isfinite(files.load(path / files.FILE)[1]["w"]).all()


def test_killed_a_few_times(tmp_path: Path) -> None:
    check(tmp_path, seed=1, kills=6)


@pytest.mark.thorough
def test_killed_at_fifty_random_moments(tmp_path: Path) -> None:
    check(tmp_path, seed=2, kills=50)
