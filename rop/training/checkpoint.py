"""Checkpoints: one file with everything a run needs to continue, written atomically, read without pickle.

Files are not trusted: before an array is read, its name, shape and type must be what the reader expects, and its size
what the file can hold. Arrays are stored as they are, so nothing unpacks to more than the file itself.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from rop.errors import ArgumentError, FileError, RopError

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "rop checkpoint", 2
FILE = "checkpoint.npz"

Form = tuple[tuple[int, ...], DTypeLike]  # shape and dtype of an array
Forms = Mapping[str, Form]


# ------------------------------------------------------------------------------------------------------------- writing
def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """``write(file)`` into a new file beside ``path``, which is then renamed to ``path``: a reader sees the old file or
    the new one, even after a crash. A FileError gives the reason of a failure, such as a full disk."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(new, "xb") as file:
                with suppress(OSError):  # a file system without locks
                    _lock(file)
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileError(
            f"{path}: cannot be written ({error.strerror or error}); what was there before is as it was"
        ) from error
    _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Removes files that ``write_atomically`` left beside ``path`` when its process was killed, unless they are locked
    because another process is writing them."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}")
    with suppress(OSError):
        for found in path.parent.iterdir():
            if pattern.fullmatch(found.name):
                with suppress(OSError), open(found, "rb") as file:
                    _lock(file)
                    found.unlink()


def _lock(file: IO[bytes]) -> None:
    """Locks a file until it is closed; raises OSError if another process holds the lock."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder: Path) -> None:
    """Flushes the folder's entries to the disk, so that the new name survives a power cut as the data do."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def save(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """One file with arrays and a JSON object."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **meta})
    named = {"meta": np.frombuffer(text.encode("utf-8"), np.uint8), **arrays}
    write_atomically(path, lambda file: np.savez(file, **named))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- reading
def load(
    path: Path, expected: Callable[[dict[str, Any]], Forms] | None = None, part: str = ""
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON object and the arrays that ``save`` wrote; a file that is damaged or of another kind is refused.

    Only arrays whose names begin with ``part`` are read. ``expected(meta)`` checks the JSON object and returns the
    forms that these arrays must have; without it they may have any."""
    with _opened(path, "a checkpoint of rop", "Move it away to start again, or bring back a copy") as archive:
        meta = json.loads(archive.read("meta").tobytes().decode("utf-8")) if "meta" in archive.forms else None
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ArgumentError(f"{path}: expected a checkpoint of rop, got something else; it was left as it is")
        if meta.get("version") != VERSION:
            raise ArgumentError(
                f"{path}: expected a checkpoint of version {VERSION}, got version {meta.get('version')}; use the "
                "version of rop that wrote it"
            )
        archive.forms = {name: form for name, form in archive.forms.items() if name != "meta" and name.startswith(part)}
        if expected is not None:
            archive.check(expected(meta))
        return meta, {name: archive.read(name) for name in archive.forms}


def load_arrays(path: Path, what: str, forms: Forms) -> dict[str, np.ndarray]:
    """The arrays of a file that np.savez wrote, which must have these names, shapes and types."""
    with _opened(path, what, "Bring back a copy") as archive:
        archive.check(forms)
        return {name: archive.read(name) for name in forms}


class _opened:
    """A file of np.savez, open for reading: every error in it becomes an ArgumentError that names the file. ``forms``
    are the forms of its arrays."""

    def __init__(self, path: Path, what: str, remedy: str):
        self._path, self._what, self._remedy = path, what, remedy
        self.forms: dict[str, Form] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> _opened:
        try:
            self._file = open(self._path, "rb")
            self._archive = zipfile.ZipFile(self._file)
            self._members = _members(self._archive, os.fstat(self._file.fileno()).st_size)
            for name, member in self._members.items():
                with self._archive.open(member) as file:
                    self.forms[name] = _form(file, name, member.file_size)
        except Exception as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None = None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if isinstance(error, Exception) and not isinstance(error, (RopError, FileNotFoundError)):
            # zipfile, json and NumPy raise many classes of errors when bytes are wrong
            raise ArgumentError(
                f"{self._path}: expected {self._what}, got a file that cannot be read ({_reason(error)}); it was left "
                f"as it is. {self._remedy}"
            ) from error

    def check(self, forms: Forms) -> None:
        """Refuses a file that has not exactly these arrays."""
        for name in [*forms, *self.forms]:
            wanted, found = (_shown(of.get(name)) for of in (forms, self.forms))
            if wanted != found:
                raise ArgumentError(
                    f"{self._path}: expected {self._what} with {wanted} for {name!r}, got {found}; it "
                    f"was left as it is. {self._remedy}"
                )

    def read(self, name: str) -> np.ndarray:
        shape, dtype = self.forms[name]
        with self._archive.open(self._members[name]) as file:
            _form(file, name, self._members[name].file_size)
            return np.frombuffer(file.read(), dtype).reshape(shape).copy()


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members of a zip file of this size by the names of their arrays, if its headers are consistent with it."""
    members = archive.infolist()
    named = {member.filename.removesuffix(".npy"): member for member in members}
    if len(named) != len(members) or not all(member.filename.endswith(".npy") for member in members):
        raise ValueError("it does not hold arrays, each with a name of its own")
    if any(
        member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size for member in members
    ):
        raise ValueError("it is compressed, as rop does not write it")
    if sum(member.file_size for member in members) > size:
        raise ValueError("its headers ask for more than it holds")
    return named


def _form(file: IO[bytes], name: str, size: int) -> Form:
    """Shape and type of an array from the header of its file of ``size`` bytes, which must hold that array alone."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name!r} is an array of an unknown format")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a header that NumPy warns about is damaged
        shape, fortran, dtype = reader(file)
    if fortran or dtype.kind not in "biuf" or any(axis < 0 for axis in shape):
        raise ValueError(f"{name!r} is not an array of numbers as rop writes it")
    count = 1
    for axis in shape:
        count *= axis
    if file.tell() + count * dtype.itemsize != size:
        raise ValueError(f"the header of {name!r} asks for other than what is there")
    return tuple(shape), dtype


def _shown(form: Form | None) -> str:
    return "nothing" if form is None else f"shape {tuple(form[0])} of {np.dtype(form[1])}"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


# ------------------------------------------------------------------------------------------------------- JSON objects
class Values:
    """Reads the values of a JSON object from a file, and refuses values of a wrong type or out of range.

    >>> Values("run.json", {"step": -5}).whole("step", 0, 10)
    Traceback (most recent call last):
    rop.errors.ArgumentError: run.json: expected a whole number from 0 to 10 for 'step', got -5; it was left as it is
    """

    def __init__(self, source: Path | str, values: Mapping[str, Any]):
        self._source, self._values = source, values

    def refuse(self, name: str, expected: str, got: Any) -> ArgumentError:
        return ArgumentError(
            f"{self._source}: expected {expected} for {name!r}, got {_short(got)}; it was left as it is"
        )

    def whole(self, name: str, low: int, high: int) -> int:
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            bounds = f"from {low} to {high}" if low < high else str(low)
            raise self.refuse(name, f"a whole number {bounds}" if low < high else bounds, value)
        return value

    def seconds(self, name: str) -> float:
        value = self._values.get(name)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):  # type: ignore[operator]
            raise self.refuse(name, "a number of seconds", value)
        return float(value)  # type: ignore[arg-type]

    def rows(self, name: str, columns: set[str]) -> list[dict[str, float]]:
        """A list of objects that hold numbers, each with these columns at least."""
        rows = self._values.get(name)
        if not isinstance(rows, list):
            raise self.refuse(name, "a list of rows", rows)
        for i, row in enumerate(rows):
            if not isinstance(row, dict) or not columns <= row.keys():
                raise self.refuse(f"{name}[{i}]", f"an object with {', '.join(sorted(columns))}", row)
            for column, value in row.items():
                if not isinstance(value, (int, float)):
                    raise self.refuse(f"{name}[{i}].{column}", "a number", value)
        return rows


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
