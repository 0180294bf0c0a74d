"""Compiles every kernel of a precision ahead of use, in several processes that meet in the cache.

Done once per machine and version: afterwards no network, however new, compiles anything. Even the process that asks for
it loads what the others have made: a function that a process has compiled itself may be another copy, optimised apart
from its callers, and its sums may differ in the last bit from those of all later processes.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rop.kernels.compile import KERNELS, Kernel, announce, cache_folder

PROCESSES = 4
_warm: set[str] = set()


def all_kernels() -> list[Kernel]:
    """Every kernel there is, activations included, the slow ones to compile first."""
    from rop.kernels.cpu import batchnorm, bilinear, elementwise, linear_maps, loss, memory, select, softmax  # noqa: F401
    from rop.layers import ACTIVATIONS
    from rop.layers.elementwise import GELU

    layers = [activation() for activation in ACTIVATIONS.values()] + [GELU("tanh")]
    activations = [elementwise.activation(layer.function, len(layer.parameters)) for layer in layers]
    kernels = {**KERNELS, **{kernel.name: kernel for kernel in activations}}
    slow = ("loss.cross", "bilinear.products", "softmax.softmax", "bilinear.w", "batchnorm")
    return sorted(kernels.values(), key=lambda kernel: (not kernel.name.startswith(slow), kernel.name))


def ensure_compiled(dtype: Any) -> None:
    """Compiles what the cache does not hold yet."""
    name = np.dtype(dtype).name
    if name in _warm:
        return
    _warm.add(name)
    done = cache_folder() / f"complete-{name}"
    if done.exists():
        return
    announce()
    with tempfile.TemporaryDirectory() as claims:
        children = [_start(name, claims) for _ in range(min(PROCESSES, os.cpu_count() or 1))]
        for child in children:
            if child is not None:
                child.wait()            # whatever a child did not manage is compiled here at first use
    if all(child is not None and child.returncode == 0 for child in children):
        done.touch()


def compile_claimed(name: str, claims: Path) -> None:
    """Compiles what no other process has claimed by a folder in ``claims``, the slowest things first."""
    from rop.kernels.cpu import descent
    from rop.kernels.cpu.interpreter import runner
    from rop.kernels.cpu.transfer import Transfer

    dtype = np.dtype(name).type
    work: list[Callable[[], Any]] = [lambda: descent.steps(dtype, True), lambda: (runner(True), runner(False)),
                                     lambda: Transfer(dtype)]
    work += [partial(kernel.address, dtype) for kernel in all_kernels()]
    for number, compile_one in enumerate(work):
        try:
            (claims / str(number)).mkdir()
        except FileExistsError:
            continue
        compile_one()


def _start(name: str, claims: str) -> subprocess.Popen | None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, sys.path)), ROP_QUIET="1",
                       ROP_CACHE_DIR=os.environ.get("ROP_CACHE_DIR", str(cache_folder().parent)))
    command = [sys.executable, "-m", "rop.kernels.warm", name, claims]
    try:
        return subprocess.Popen(command, env=environment, cwd=Path(__file__).parent, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None


if __name__ == "__main__":
    compile_claimed(sys.argv[1], Path(sys.argv[2]))
