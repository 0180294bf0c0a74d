"""Compiles kernels ahead of use, in several processes that share the cache.

A network asks for the kernels of its passes before it runs: those that the cache does not hold are compiled, once per
machine and version. The rest is compiled when a network needs it, or all at once by `rop warm`. The process that asks
for kernels compiles none itself but loads them from the cache: in a process that compiles several kernels a helper may
be optimised apart from its callers, and its sums may then differ in the last bit from those of all later processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

from rop.errors import say
from rop.kernels.compile import KERNELS, Kernel, KernelCache, cache_folder
from rop.kernels.store import COMPLETE, names_in, remove_abandoned

PROCESSES = 4
# Seconds that one core takes to compile a function; all others take about a quarter of a second each.
SECONDS = {
    "training.steps": 5.7,
    "bilinear.products": 3.2,
    "linear_weight_gradient": 2.5,
    "conv_weight_gradient": 2.3,
    "loss.cross_entropy": 1.9,
    "preconditioner.product": 2.7,
    "factors.gram": 2.0,
    "gradient_points": 3.4,
    "winograd_products": 3.0,
    "pack_points": 0.8,
    "collect_points": 0.8,
    "softmax.": 0.5,
    "batchnorm.": 0.5,
}
USUAL, STARTING = 0.25, 1.5  # seconds for any other function, and until a process begins to compile

_ready: set[str] = set()  # functions that the cache holds, or that children have failed to compile
_complete: set[str] = set()  # precisions of which the cache holds everything
_retried: set[str] = set()  # functions whose entry was there, but could not be loaded
_aside = True  # whether children may be asked


def compile_here() -> None:
    """From now on this process asks no children: what the cache does not hold it compiles itself at first use."""
    global _aside
    _aside = False


# ------------------------------------------------------------------------------------------------------ what there is
def all_kernels() -> list[Kernel]:
    """Every kernel, including those of the activations."""
    from rop.kernels import cpu
    from rop.kernels.cpu import elementwise
    from rop.layers.record import ACTIVATIONS, RECORDS

    for file in iter_modules(cpu.__path__):
        import_module(f"{cpu.__name__}.{file.name}")
    layers = [layer for kind in ACTIVATIONS.values() for layer in RECORDS[kind].made()]
    activations = [elementwise.activation(layer.function, len(layer.parameters)) for layer in layers]
    kernels = {**KERNELS, **{kernel.name: kernel for kernel in activations}}
    return sorted(kernels.values(), key=lambda kernel: kernel.name)


def work(dtype: Any) -> dict[str, Callable[[], Any]]:
    """All compiled functions that a precision needs, by the name of their entry in the cache: what compiles each."""
    from rop.kernels.cpu import interpreter, training, transfer

    dtype = np.dtype(dtype).type
    return {
        training.entry_name(dtype, True): lambda: training.steps(dtype, True),
        **{interpreter.entry_name(parallel): partial(interpreter.runner, parallel) for parallel in (True, False)},
        **{name: partial(made.made, dtype) for name, made in transfer.functions(dtype).items()},
        **{kernel.entry_name(dtype): partial(kernel.address, dtype) for kernel in all_kernels()},
    }


def seconds(name: str) -> float:
    """About how long one core compiles a function.

    >>> seconds("loss.cross_entropy_float32"), seconds("memory.load_float64")
    (1.9, 0.25)
    """
    return next((cost for part, cost in SECONDS.items() if part in name), USUAL)


# ---------------------------------------------------------------------------------------------------- asking for them
def ensure(dtype: Any, names: Iterable[str], reason: str = "this network needs") -> None:
    """Lets children compile those of these functions of a precision that the cache does not hold yet."""
    wanted = set() if complete(dtype) else set(names) - _ready
    missing = wanted - names_in(cache_folder()) if wanted else wanted
    if missing:
        _compile_aside(dtype, missing, reason)
    _ready.update(wanted)


def complete(dtype: Any) -> bool:
    """Whether no child is needed for any function of a precision: the cache holds them all, or none may be asked."""
    name = np.dtype(dtype).name
    if name not in _complete and (not _aside or _mark(dtype).exists()):
        _complete.add(name)
    return name in _complete


def ensure_compiled(dtype: Any) -> None:
    """The same for everything that a precision may need."""
    if not complete(dtype):
        ensure(dtype, work(dtype), "rop has")


def compiled_again(name: str) -> bool:
    """Lets a child compile a function whose entry in the cache is missing or damaged, although it had been asked for;
    returns whether it has tried. This is done once: where nothing can be kept, a second time would not help."""
    if not _aside or name in _retried or (name in _ready and name not in names_in(cache_folder())):
        return False
    _retried.add(name)
    dtype = "float64" if "float64" in name else "float32"
    if name not in work(dtype):  # a version for special cases, which children do not know
        return False
    _compile_aside(dtype, {name}, "the cache does not hold")
    return True


def _mark(dtype: Any) -> Path:
    """The file whose existence says that all kernels of a precision are in the cache."""
    return cache_folder() / f"{COMPLETE}{np.dtype(dtype).name}"


def _compile_aside(dtype: Any, names: set[str], reason: str) -> None:
    """Compiles functions in children. Those that the children fail to compile are compiled here at first use, and so
    is everything from then on."""
    _announce(dtype, names, reason)
    folder = cache_folder()
    remove_abandoned(folder)
    try:
        with tempfile.TemporaryDirectory() as claims, _children(dtype, names, claims) as children:
            codes = [child.wait() for child in children]
        if any(codes):
            compile_here()
        elif codes and names_in(folder) >= set(work(dtype)):
            _mark(dtype).touch()
    except OSError:  # a full disk or missing permissions cost the cache, not the result
        pass


def _announce(dtype: Any, names: set[str], reason: str) -> None:
    """Say what is being compiled: otherwise the first call looks like a hang."""
    if os.environ.get("ROP_QUIET"):
        return
    costs = [seconds(name) for name in names]
    about = STARTING + max(max(costs), sum(costs) / _processes(names))
    functions = f"{len(names)} functions" if len(names) > 1 else "a function"
    say(
        f"compiling {functions} that {reason} ({np.dtype(dtype).name}), about {about:.0f} s; "
        "they are kept, and later starts load them"
    )


def _processes(names: set[str]) -> int:
    return min(PROCESSES, os.cpu_count() or 1, len(names))


@contextmanager
def _children(dtype: Any, names: set[str], claims: str) -> Iterator[list[subprocess.Popen]]:
    """Processes that compile. None of them survives the block: they are killed at its end, and they exit by themselves
    when the pipe to this process closes, which also happens if this process is killed."""
    children: list[subprocess.Popen] = []
    try:
        with suppress(OSError):  # fewer processes are enough
            for _ in range(_processes(names)):
                children.append(_start(dtype, names, claims))
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _start(dtype: Any, names: set[str], claims: str) -> subprocess.Popen:
    """A process that runs ``compile_claimed``, with the cache and the modules of this one."""
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(map(str, sys.path)),
        ROP_QUIET="1",
        ROP_CACHE_DIR=str(cache_folder().parent),
    )
    code = "from rop.kernels import warm; warm.main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, np.dtype(dtype).name, claims, *sorted(names)],
        env=environment,
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# ----------------------------------------------------------------------------------------------- the processes they are
def compile_claimed(dtype: Any, names: Iterable[str], claims: Path) -> None:
    """Compiles the functions that no other process has claimed by a folder in ``claims``, the slowest first."""
    known = work(dtype)
    for name in sorted(known.keys() & set(names), key=lambda name: (-seconds(name), name)):
        try:
            (claims / name).mkdir()
        except FileExistsError:
            continue
        known[name]()
        if KernelCache.unsaved:
            return  # code that cannot be kept need not be compiled ahead of use


def main() -> None:
    """What a child does: sys.argv has the precision, the folder of claims and the names of functions."""
    _end_with_parent()
    compile_here()
    compile_claimed(sys.argv[1], sys.argv[3:], Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(1 if KernelCache.unsaved else 0)  # at once: there is nothing to tidy up


def _end_with_parent() -> None:
    """Ends this process when its parent has ended: the pipe from the parent is closed then."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
