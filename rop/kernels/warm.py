"""Compiles every kernel of a precision ahead of use, in several processes that share the cache.

This happens once per machine and version: afterwards no network compiles anything, not even a new one. The process that
asks for the kernels compiles none itself but loads them from the cache: in a process that compiles several kernels a
helper may be optimised apart from its callers, and its sums may then differ in the last bit from those of all later
processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rop.kernels.compile import KERNELS, Kernel, KernelCache, announce, cache_folder
from rop.kernels.store import COMPLETE, remove_abandoned

PROCESSES = 4
_warm: set[str] = set()  # precisions whose kernels have been checked
_again: set[str] = set()  # precisions whose kernels have been checked a second time


def all_kernels() -> list[Kernel]:
    """Every kernel, including those of the activations, the slowest to compile first."""
    from rop.kernels.cpu import batchnorm, bilinear, elementwise, linear_maps, loss, memory, select, softmax  # noqa: F401
    from rop.layers.record import ACTIVATIONS, RECORDS

    layers = [layer for kind in ACTIVATIONS.values() for layer in RECORDS[kind].made()]
    activations = [elementwise.activation(layer.function, len(layer.parameters)) for layer in layers]
    kernels = {**KERNELS, **{kernel.name: kernel for kernel in activations}}
    slow = ("loss.cross", "bilinear.products", "softmax.softmax", "bilinear.w", "batchnorm")
    return sorted(kernels.values(), key=lambda kernel: (not kernel.name.startswith(slow), kernel.name))


def ensure_compiled(dtype: Any) -> None:
    """Compiles the kernels of a precision that the cache does not hold yet."""
    name = np.dtype(dtype).name
    if name in _warm:
        return
    _warm.add(name)
    if not _mark(name).exists():
        announce()
        _compile_aside(name)


def compiled_again() -> bool:
    """Lets children compile the entries that are missing or damaged in a cache that was complete; returns whether they
    ran. This is tried once: where nothing can be kept, a second time would not help."""
    names = sorted(_warm - _again)
    _again.update(names)
    names = [name for name in names if _mark(name).exists()]
    if names:
        announce()
    for name in names:
        _compile_aside(name)
    return bool(names)


def _mark(name: str) -> Path:
    """The file whose existence says that all kernels of a precision are in the cache."""
    return cache_folder() / f"{COMPLETE}{name}"


def _compile_aside(name: str) -> None:
    """Compiles missing kernels in children. Kernels that the children fail to compile are compiled here at first
    use."""
    remove_abandoned(cache_folder())
    try:
        _mark(name).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as claims, _children(name, claims) as children:
            codes = [child.wait() for child in children]
        if codes and not any(codes):
            _mark(name).touch()
    except OSError:  # a full disk or missing permissions cost the cache, not the result
        pass


@contextmanager
def _children(name: str, claims: str) -> Iterator[list[subprocess.Popen]]:
    """Processes that compile. None of them survives the block: they are killed at its end, and they exit by themselves
    when the pipe to this process closes, which also happens if this process is killed."""
    children: list[subprocess.Popen] = []
    try:
        with suppress(OSError):  # fewer processes are enough
            for _ in range(min(PROCESSES, os.cpu_count() or 1)):
                children.append(_start(name, claims))
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def compile_claimed(name: str, claims: Path) -> None:
    """Compiles the kernels that no other process has claimed by a folder in ``claims``, the slowest first."""
    from rop.kernels.cpu import training
    from rop.kernels.cpu.interpreter import runner
    from rop.kernels.cpu.transfer import Transfer

    dtype = np.dtype(name).type
    work: list[Callable[[], Any]] = [
        lambda: training.steps(dtype, True),
        lambda: (runner(True), runner(False)),
        lambda: Transfer(dtype),
    ]
    work += [partial(kernel.address, dtype) for kernel in all_kernels()]
    for number, compile_one in enumerate(work):
        try:
            (claims / str(number)).mkdir()
        except FileExistsError:
            continue
        compile_one()
        if KernelCache.unsaved:
            return  # code that cannot be kept need not be compiled ahead of use


def _start(name: str, claims: str) -> subprocess.Popen:
    """A process that runs ``compile_claimed``, with the cache and the modules of this one."""
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(map(str, sys.path)),
        ROP_QUIET="1",
        ROP_CACHE_DIR=str(cache_folder().parent),
    )
    command = [sys.executable, "-m", "rop.kernels.warm", name, claims]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end_with_parent() -> None:
    """Ends this process when its parent has ended: the pipe from the parent is closed then."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    compile_claimed(sys.argv[1], Path(sys.argv[2]))
    sys.exit(1 if KernelCache.unsaved else 0)
