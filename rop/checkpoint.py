"""Checkpoints: one file with everything a run needs to go on, written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rop.errors import ArgumentError

FORMAT, VERSION = "rop checkpoint", 1
FILE = "checkpoint.npz"


def write_atomically(path: Path, write: Any) -> None:
    """``write(file)`` into a new file beside ``path``, which then takes its place: a reader sees the old one or the new
    one, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def save(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """One file with arrays and a JSON object."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **meta})
    named = {"meta": np.frombuffer(text.encode("utf-8"), np.uint8), **arrays}
    write_atomically(path, lambda file: np.savez(file, **named))  # type: ignore[arg-type]


def load(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What ``save`` wrote; a file that is damaged or something else is refused and left as it is."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(bytes(arrays.pop("meta")).decode("utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise ArgumentError(
            f"{path}: expected a checkpoint of rop, got a file that cannot be read ({_reason(error)}); it was left as "
            "it is. Move it away to start again, or bring back a copy"
        ) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ArgumentError(f"{path}: expected a checkpoint of rop, got something else; it was left as it is")
    if meta.get("version") != VERSION:
        raise ArgumentError(
            f"{path}: expected a checkpoint of version {VERSION}, got version {meta.get('version')}; use the version "
            "of rop that wrote it"
        )
    return meta, arrays


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
