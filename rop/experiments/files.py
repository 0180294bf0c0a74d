"""Files of data sets: finding, reading and downloading them, and checks that they are the published ones."""

from __future__ import annotations

import gzip
import math
import os
import warnings
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.experiments.dataset import Part, scikit_learn

Folder = str | os.PathLike[str] | None
Content = TypeVar("Content")

PLENTY = 4  # a file that unpacks to this many times its published size is another file


def folder_of(owner: str, data: Folder) -> Path | None:
    """The folder to read from: the argument, else $ROP_DATA, else None."""
    given = "data"
    if data is None:
        given, data = "$ROP_DATA", os.environ.get("ROP_DATA") or None
    if data is None:
        return None
    if not isinstance(data, (str, os.PathLike)):
        raise ArgumentTypeError(f"{owner}: data must be the path of a folder, got {data!r} ({type(data).__name__})")
    try:
        folder = Path(data).expanduser()
    except (RuntimeError, TypeError) as error:  # the home of an unknown user; bytes
        raise ArgumentError(
            f"{owner}: {given} must be the folder that holds the data files, got {data!r}: {error}; "
            "name the folder with --data DIR or $ROP_DATA"
        ) from error
    if not os.fspath(data) or not os.path.isdir(folder):
        found = "a file" if os.path.isfile(folder) else "no such folder"
        raise ArgumentError(
            f"{owner}: {given} must be the folder that holds the data files, got {os.fspath(data)!r}: {found}; "
            "name the folder with --data DIR or $ROP_DATA"
        )
    return folder


def file_in(owner: str, folder: Path, name: str) -> Path:
    """The file of this name, or the same unpacked."""
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if os.path.isfile(path):
            return path
    raise ArgumentError(
        f"{owner}: there is no file {name} in the folder {folder}; put it there, or name the folder that holds it with "
        "--data DIR or $ROP_DATA"
    )


def damaged(owner: str, source: Path | str, expected: str, found: str) -> ArgumentError:
    return ArgumentError(
        f"{owner}: {source} is damaged or another file: expected {expected}, found {found}; get it again"
    )


def read(owner: str, path: Path, reader: Callable[[Path], Content], expected: str) -> Content:
    """Calls a reader on a file, and turns all its errors into an ArgumentError."""
    try:
        return reader(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(owner, path, "a complete gzip file", f"{path.stat().st_size:,} bytes ({error})") from error
    except OSError as error:
        raise ArgumentError(f"{owner}: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, Warning) as error:
        raise damaged(owner, path, expected, str(error).split(";")[0]) from error


def opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def unpacked(path: Path, size: int, keep: bool = True) -> bytes:
    """The content of a file, unpacked, of which ``size`` bytes are expected; PLENTY times as many are refused."""
    content, count, most = [], 0, PLENTY * size
    with opened(path) as file:
        while piece := file.read(min(2**20, most + 1 - count)):
            count += len(piece)
            if count > most:
                raise ValueError(f"more than {most:,} bytes unpacked, where {size:,} belong")
            if keep:
                content.append(piece)
    return b"".join(content)


def read_text(owner: str, path: Path, size: int, dtype: DTypeLike, delimiter: str | None = None) -> np.ndarray:
    """The numbers of a text file of which ``size`` bytes are expected, a row per line.

    loadtxt checks that all rows have the same number of columns and that the numbers are of the right kind.
    """

    def table(path: Path) -> np.ndarray:
        unpacked(path, size, keep=False)  # before a table grows without bound
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty table or a fraction for an integer may be a mere warning
            return np.loadtxt(path, dtype=dtype, delimiter=delimiter, comments=None, ndmin=2)

    return read(owner, path, table, "lines with equally many numbers")


def read_idx(owner: str, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of an idx file, which must have this shape."""
    magic = bytes((0, 0, 8, len(shape)))  # 8 stands for unsigned bytes
    start = len(magic) + 4 * len(shape)
    content = read(owner, path, lambda path: unpacked(path, start + math.prod(shape)), "an idx file")
    if content[:4] != magic:
        raise damaged(owner, path, f"an idx file that starts with {magic.hex()}", content[:4].hex() or "nothing")
    sizes = tuple(int.from_bytes(content[k : k + 4], "big") for k in range(4, start, 4))
    if sizes != shape:
        raise damaged(owner, path, f"the shape {shape}", f"{sizes}")
    if len(content) != start + math.prod(shape):
        raise damaged(owner, path, f"{start + math.prod(shape):,} bytes unpacked", f"{len(content):,}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def check_shape(owner: str, source: Path | str, table: np.ndarray, rows: int, columns: int) -> None:
    if table.shape != (rows, columns):
        found = " × ".join(f"{size:,}" for size in table.shape)
        raise damaged(owner, source, f"{rows:,} rows × {columns} columns", found)


def check_range(owner: str, source: Path | str, what: str, values: np.ndarray, low: int, high: int) -> None:
    smallest, largest = values.min(), values.max()
    if not (low <= smallest and largest <= high):  # written so that NaN is refused
        raise damaged(owner, source, f"{what} in [{low}, {high}]", f"{smallest:g} … {largest:g}")


def download(owner: str, fetcher: str, files: str, **options: Any) -> Part:
    """x and y from scikit-learn's fetcher, which caches its downloads."""
    fetch = getattr(scikit_learn("datasets"), fetcher)
    try:
        return fetch(return_X_y=True, **options)
    except (OSError, EOFError, ValueError, HTTPException, zlib.error) as error:
        raise RopError(
            f"{owner}: no folder with the data was given, and scikit-learn's {fetcher} could not download it "
            f"({type(error).__name__}: {error}); name a folder that holds {files} with --data DIR or $ROP_DATA"
        ) from error


def download_openml(owner: str, files: str, name: str, version: int) -> Part:
    # as_frame and parser: the defaults need pandas
    return download(owner, "fetch_openml", files, name=name, version=version, as_frame=False, parser="liac-arff")
