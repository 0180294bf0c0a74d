"""Compiles everything ahead of use, for this machine or for a folder that other machines of a kind can use.

    python -m rop.kernels.ship FOLDER float32 float64

A folder is for one version of rop, Numba and Python, which its name says. It is sealed at the end (store.py). An empty
name of the folder stands for the cache of this user, which is not sealed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rop.errors import FileError, RopError
from rop.kernels import store, warm
from rop.kernels.compile import cache_folder


def fill(folder: Path | None, dtypes: Sequence[str]) -> str:
    """Compiles all functions of these precisions into a folder, and says in a line where they are."""
    found = cache_folder()
    if folder is not None and found.parent != folder.absolute():
        raise FileError(f"{folder}: expected a folder that only you can write to, with nothing damaged in it")
    for dtype in dtypes:
        warm.ensure_compiled(dtype)
        missing = set(warm.work(dtype)) - store.names_in(found)
        if missing:
            raise FileError(f"{found}: {len(missing)} functions are not there, among them {min(missing)}: is it full?")
    size = sum(path.stat().st_size for path in found.iterdir())
    said = f"{', '.join(dtypes)}: {len(store.names_in(found))} functions, {size / 1e6:.1f} MB, in {found}"
    return said if folder is None else f"{said}\nSHA-256 of its {store.MANIFEST}: {store.seal(found)}"


def run_for(kind: str | None, folder: Path | None, dtypes: Sequence[str]) -> int:
    """``fill`` in a process that compiles for a kind of CPU, None for that of this machine; returns its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    if kind is not None:
        environment.update(NUMBA_CPU_NAME=kind, NUMBA_CPU_FEATURES="")
        environment.pop("ROP_VECTOR_UNIT", None)
    if folder is not None:
        environment["ROP_CACHE_DIR"] = str(folder.absolute())
    named = "" if folder is None else str(folder.absolute())
    return subprocess.run([sys.executable, "-m", "rop.kernels.ship", named, *dtypes], env=environment).returncode


def main(arguments: Sequence[str]) -> int:
    """The process that ``run_for`` starts."""
    named, *dtypes = arguments
    try:
        print(fill(Path(named) if named else None, dtypes), flush=True)
    except RopError as error:
        print(f"rop warm: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
