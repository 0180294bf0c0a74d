"""The runner's end of the workers: a process for each engine, with the same number of threads."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Variables that say how threads wait. They are removed, so that every engine uses its own default.
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_PROC_BIND", "OMP_DYNAMIC")


class WorkerError(RuntimeError):
    """A worker reported an error or died."""


class Client:
    """The runner's end of a worker."""

    def __init__(self, engine: str, threads: int, scratch: Path, device: str = "cpu"):
        self.engine = engine
        self.log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", engine, "--threads", str(threads), "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment_for(threads),
            text=True,
            encoding="utf-8",
        )

    def send(self, do: str, **command: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # receive() reports why
            self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(f"{self.engine}: its process ended ({self.process.wait()}) {' '.join(last)}".rstrip())
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.engine}: {reply['error']}")
        return reply

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        self.send(do, **command)
        return self.receive()

    def hang_up(self) -> None:
        """Close the worker's standard input, which ends it when it is idle."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self, patience: float = 2.0) -> None:
        assert self.process.stdout is not None
        self.hang_up()
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()


def environment_for(threads: int) -> dict[str, str]:
    """The environment of a worker: all variables for the number of threads are set; worker.py limits the cores too.

    Each engine chooses how its threads wait: OMP_WAIT_POLICY=passive makes torch several times slower on small nets.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {
        **{name: value for name, value in os.environ.items() if name not in WAITING},
        **dict.fromkeys(names, str(threads)),
        "XLA_FLAGS": flags.strip(),
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_THREAD_TIMEOUT": "20",  # 2^20 cycles: idle BLAS threads give the core back within a millisecond
    }


def close(clients: Iterable[Client]) -> None:
    """End all of them together; those that are still busy after two seconds are killed."""
    clients, until = list(clients), time.monotonic() + 2
    for client in clients:
        client.hang_up()
    for client in clients:
        client.close(max(0.05, until - time.monotonic()))
