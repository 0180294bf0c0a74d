"""Data sets to train on, read from the publishers' own files and split the same way every time.

>>> from rop import datasets
>>> digits = datasets.load("digits")
>>> digits.input_shape, digits.classes
((1, 8, 8), 10)

A set whose files do not come with scikit-learn is looked for in the folder ``data``, else in the folder that the
variable ``ROP_DATA`` names. If neither is given, scikit-learn downloads it; a folder that is given is never left for
the network, so what was asked for is what is used.

A new data set is a function that returns a ``DataSet``, and its line in ``DATASETS``.
"""

from __future__ import annotations

import gzip
import inspect
import math
import os
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rop.arguments import check_choice
from rop.errors import ArgumentError, ArgumentTypeError, RopError, missing_package

__all__ = ["DATASETS", "DataSet", "load", "digits", "forest", "usps", "mnist"]

Part = tuple[np.ndarray, np.ndarray]
Folder = str | os.PathLike[str] | None

SPLIT_SEED = 1226

# What the publishers' text files unpack to, in bytes; one that unpacks to PLENTY times as much is another file.
FOREST_BYTES, USPS_TRAIN_BYTES, USPS_TEST_BYTES = 75_169_317, 14_512_253, 2_029_542
PLENTY = 4

FOREST_ROWS = 581_012
FOREST_FEATURES = 54
FOREST_CLASSES = 7
FOREST_ONE_HOT = (slice(10, 14), slice(14, 54))  # wilderness area, soil type

USPS_TRAIN_ROWS, USPS_TEST_ROWS = 7291, 2007
USPS_TRAIN_DIGITS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)
USPS_SIDE = 16
USPS_MEAN, USPS_STD = 0.2451, 0.2981

MNIST_TRAIN_ROWS, MNIST_TEST_ROWS = 60_000, 10_000
MNIST_SIDE = 28
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
MNIST_BOX = 20  # each digit was fitted into a box of this side before it was centred in its image


@dataclass(frozen=True, eq=False)
class DataSet:
    """Three parts, each ``(x, y)``: samples as contiguous float32 and their class numbers from 0 as int64."""

    name: str
    train: Part = field(repr=False)
    validation: Part = field(repr=False)
    test: Part = field(repr=False)
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train[0].shape[1:]


def load(name: str, data: Folder = None, **options: Any) -> DataSet:
    """The data set of this name (a key of ``DATASETS``); options are those of its function.

    >>> load("digits")
    DataSet(name='digits', classes=10)
    """
    function = DATASETS[check_choice("load", "name", name, tuple(DATASETS))]
    known = [option for option in inspect.signature(function).parameters if option != "data"]
    for option in options:
        if option not in known:
            raise ArgumentTypeError(
                f"load: the data set {name!r} has no option {option!r}; its options: {', '.join(known) or 'none'}"
            )
    return function(data, **options)


# ------------------------------------------------------------------------------------------------------ the data sets
def digits(data: Folder = None) -> DataSet:
    """1,797 handwritten digits of 8×8 pixels in [0, 1], as images (1, 8, 8). They come with scikit-learn, so ``data``
    is not used.

    A fifth is the test part and a fifth of the rest the validation part, with equal shares of every digit.

    >>> x, y = digits().train
    >>> x.shape, y.shape
    ((1149, 1, 8, 8), (1149,))
    """
    x, y = _scikit_learn("datasets").load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8) / 16
    train, validation, test = (_part(x[rows], y[rows]) for rows in _split(len(y), stratify=y))
    return DataSet("digits", train, validation, test, classes=10)


def forest(data: Folder = None) -> DataSet:
    """Forest cover type: 581,012 cells of 30 m × 30 m with 54 features, and which of 7 kinds of trees grows there.

    Read from ``covtype.data.gz``. A fifth is the test part and a fifth of the rest the validation part. Every feature
    has mean 0 and standard deviation 1 over the training part, or is 0 there if it is constant there.
    """
    folder = _folder("forest", data)
    x, y = _download_forest() if folder is None else _forest_file(folder)
    rows = _split(len(y))
    measured = x[rows[0]]
    mean, std = measured.mean(axis=0, dtype=np.float64), measured.std(axis=0, dtype=np.float64)
    std[std == 0] = 1
    train, validation, test = (_part((x[part] - mean) / std, y[part]) for part in rows)
    return DataSet("forest", train, validation, test, classes=FOREST_CLASSES)


def usps(data: Folder = None) -> DataSet:
    """USPS: 9,298 digits scanned from envelopes, as images (1, 16, 16).

    Read from ``zip.train.gz`` and ``zip.test.gz``, the split of the publishers. The first seventh of the training file
    is the validation part. Pixels are scaled from [-1, 1] to [0, 1], then by mean 0.2451 and standard deviation 0.2981.
    """
    folder = _folder("usps", data)
    train, test = _download_usps() if folder is None else _usps_files(folder)

    def normalised(table: np.ndarray) -> Part:
        pixels = table[:, 1:].reshape(-1, 1, USPS_SIDE, USPS_SIDE)
        return _part(((pixels + 1) / 2 - USPS_MEAN) / USPS_STD, table[:, 0])

    held_out = len(train) // 7
    return DataSet("usps", normalised(train[held_out:]), normalised(train[:held_out]), normalised(test), classes=10)


def mnist(data: Folder = None, size: int = 28) -> DataSet:
    """MNIST: 70,000 handwritten digits, as images (1, 28, 28) or, with size 16, (1, 16, 16).

    Read from the four idx files (``train-images-idx3-ubyte.gz`` and so on), the split of the publishers. The last sixth
    of the training file is the validation part. Pixels are scaled to [0, 1], then by mean 0.1307 and standard deviation
    0.3081.

    Size 16 is for networks trained on USPS, whose digits leave no margin: the middle 20×20 pixels are cut out, brought
    to 16×16 by area averaging, and scaled like ``usps``. Digits are centred by their mass, so some reach beyond the
    cut: 3.5 % of the ink is lost.
    """
    size = check_choice("mnist", "size", size, (28, 16))
    folder = _folder("mnist", data)
    (images, labels), test = _download_mnist() if folder is None else _mnist_files(folder)

    def normalised(images: np.ndarray, labels: np.ndarray) -> Part:
        if size == USPS_SIDE:
            pixels = (_without_margin(images) - USPS_MEAN) / USPS_STD
        else:
            # a table of the 256 grey values: as exact as float64, without a copy of all images in float64
            pixels = ((np.arange(256) / 255 - MNIST_MEAN) / MNIST_STD).astype(np.float32)[images]
        return _part(pixels[:, np.newaxis], labels)

    kept = len(labels) - len(labels) // 6
    train, validation = normalised(images[:kept], labels[:kept]), normalised(images[kept:], labels[kept:])
    return DataSet("mnist", train, validation, normalised(*test), classes=10)


DATASETS: dict[str, Callable[..., DataSet]] = {"digits": digits, "forest": forest, "usps": usps, "mnist": mnist}


# -------------------------------------------------------------------------------------------------- parts and pixels
def _part(x: np.ndarray, y: np.ndarray) -> Part:
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)


def _split(count: int, stratify: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row numbers of the training, validation and test part."""
    divide = _scikit_learn("model_selection").train_test_split
    share = {"test_size": 1 / 5, "random_state": SPLIT_SEED}
    rest, test = divide(np.arange(count), stratify=stratify, **share)
    train, validation = divide(rest, stratify=None if stratify is None else stratify[rest], **share)
    return train, validation, test


def _without_margin(images: np.ndarray) -> np.ndarray:
    """The middle 20×20 of each image, averaged over areas to 16×16, in [0, 1]."""
    margin = (MNIST_SIDE - MNIST_BOX) // 2
    box = images[:, margin:-margin, margin:-margin].reshape(len(images), -1)
    # On a grid of 80×80 cells an old pixel has 4×4 cells and a new one 5×5. The weight of an old pixel in a new one is
    # the number of cells they share: whole numbers, so the sums below are exact in float32 in any order.
    old, new = np.repeat(np.eye(MNIST_BOX), 4, axis=1), np.repeat(np.eye(USPS_SIDE), 5, axis=1)
    weights = np.kron(new @ old.T, new @ old.T).astype(np.float32)
    sums = box.astype(np.float32) @ weights.T
    return (sums / np.float32(255 * 25)).reshape(-1, USPS_SIDE, USPS_SIDE)


# ------------------------------------------------------------------------------------------------- files in a folder
def _folder(owner: str, data: Folder) -> Path | None:
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
    except (RuntimeError, TypeError) as error:  # the home of a user who is not there; bytes
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


def _file(owner: str, folder: Path, name: str) -> Path:
    """The file of this name, or the same unpacked."""
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if os.path.isfile(path):
            return path
    raise ArgumentError(
        f"{owner}: there is no file {name} in the folder {folder}; put it there, or name the folder that holds it with "
        "--data DIR or $ROP_DATA"
    )


def _damaged(owner: str, source: Path | str, expected: str, found: str) -> ArgumentError:
    return ArgumentError(
        f"{owner}: {source} is damaged or another file: expected {expected}, found {found}; get it again"
    )


def _read(owner: str, path: Path, reader: Callable[[Path], Any], expected: str) -> Any:
    """What the reader makes of the file, with one kind of error for all that can be wrong with it."""
    try:
        return reader(path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(owner, path, "a complete gzip file", f"{path.stat().st_size:,} bytes ({error})") from error
    except OSError as error:
        raise ArgumentError(f"{owner}: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, Warning) as error:
        raise _damaged(owner, path, expected, str(error).split(";")[0]) from error


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _bytes(path: Path, size: int, keep: bool = True) -> bytes:
    """What a file holds, unpacked, which should be so many bytes; read no further than to PLENTY times as many."""
    content, count, most = [], 0, PLENTY * size
    with _opened(path) as file:
        while piece := file.read(min(2**20, most + 1 - count)):
            count += len(piece)
            if count > most:
                raise ValueError(f"more than {most:,} bytes unpacked, where {size:,} belong")
            if keep:
                content.append(piece)
    return b"".join(content)


def _text(owner: str, path: Path, size: int, dtype: Any, delimiter: str | None = None) -> np.ndarray:
    """The numbers of a text file that should have so many bytes, a row per line. (Columns and kind of number are
    checked by loadtxt.)"""

    def table(path: Path) -> np.ndarray:
        _bytes(path, size, keep=False)  # before there is a table that grows and grows
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no rows at all, or a fraction for an integer, may be but a warning
            return np.loadtxt(path, dtype=dtype, delimiter=delimiter, comments=None, ndmin=2)

    return _read(owner, path, table, "lines with equally many numbers")


def _idx(owner: str, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The bytes of an idx file, which must have this shape."""
    magic = bytes((0, 0, 8, len(shape)))  # 8 stands for unsigned bytes
    start = len(magic) + 4 * len(shape)
    content = _read(owner, path, lambda path: _bytes(path, start + math.prod(shape)), "an idx file")
    if content[:4] != magic:
        raise _damaged(owner, path, f"an idx file that starts with {magic.hex()}", content[:4].hex() or "nothing")
    sizes = tuple(int.from_bytes(content[k : k + 4], "big") for k in range(4, start, 4))
    if sizes != shape:
        raise _damaged(owner, path, f"the shape {shape}", f"{sizes}")
    if len(content) != start + math.prod(shape):
        raise _damaged(owner, path, f"{start + math.prod(shape):,} bytes unpacked", f"{len(content):,}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _forest_file(folder: Path) -> Part:
    path = _file("forest", folder, "covtype.data.gz")
    return _forest_columns(path, _text("forest", path, FOREST_BYTES, np.int32, ","))


def _usps_files(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    paths = [_file("usps", folder, name) for name in ("zip.train.gz", "zip.test.gz")]
    sizes = USPS_TRAIN_BYTES, USPS_TEST_BYTES
    train, test = (_text("usps", path, size, np.float64) for path, size in zip(paths, sizes, strict=True))
    _check_usps(paths[0], train, USPS_TRAIN_ROWS)
    _check_usps(paths[1], test, USPS_TEST_ROWS)
    return train, test


def _mnist_files(folder: Path) -> tuple[Part, Part]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    train_images, train_labels, test_images, test_labels = (_file("mnist", folder, name) for name in names)
    return (
        _mnist_part(train_images, train_labels, MNIST_TRAIN_ROWS),
        _mnist_part(test_images, test_labels, MNIST_TEST_ROWS),
    )


def _mnist_part(images: Path, labels: Path, rows: int) -> Part:
    x, y = _idx("mnist", images, (rows, MNIST_SIDE, MNIST_SIDE)), _idx("mnist", labels, (rows,))
    _check_range("mnist", labels, "labels", y, 0, 9)
    return x, y


# -------------------------------------------------------------------------------------- is it what was published?
def _check_shape(owner: str, source: Path | str, table: np.ndarray, rows: int, columns: int) -> None:
    if table.shape != (rows, columns):
        found = " × ".join(f"{size:,}" for size in table.shape)
        raise _damaged(owner, source, f"{rows:,} rows × {columns} columns", found)


def _check_range(owner: str, source: Path | str, what: str, values: np.ndarray, low: int, high: int) -> None:
    smallest, largest = values.min(), values.max()
    if not (low <= smallest and largest <= high):  # written so that NaN is refused
        raise _damaged(owner, source, f"{what} in [{low}, {high}]", f"{smallest:g} … {largest:g}")


def _forest_columns(source: Path | str, table: np.ndarray) -> Part:
    """The features and the class numbers from 0, after a look at what can be known of them."""
    _check_shape("forest", source, table, FOREST_ROWS, FOREST_FEATURES + 1)
    _check_range("forest", source, "labels", table[:, FOREST_FEATURES], 1, FOREST_CLASSES)
    for columns in FOREST_ONE_HOT:
        chosen = f"exactly one 1 and else 0 in columns {columns.start} to {columns.stop - 1}"
        _check_range("forest", source, chosen + ", so values", table[:, columns], 0, 1)
        wrong = np.flatnonzero(table[:, columns].sum(axis=1) != 1)
        if wrong.size:
            raise _damaged("forest", source, chosen, f"another number of 1 in row {wrong[0]}")
    return table[:, :FOREST_FEATURES], table[:, FOREST_FEATURES] - 1


def _check_usps(source: Path | str, table: np.ndarray, rows: int) -> None:
    _check_shape("usps", source, table, rows, 1 + USPS_SIDE**2)
    _check_range("usps", source, "labels", table[:, 0], 0, 9)
    _check_range("usps", source, "pixels", table[:, 1:], -1, 1)
    broken = table[table[:, 0] % 1 != 0, 0]
    if broken.size:
        raise _damaged("usps", source, "whole numbers as labels", f"{broken[0]:g}")


# ------------------------------------------------------------------------------------------------------ scikit-learn
def _scikit_learn(module: str) -> Any:
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise missing_package("datasets", "scikit-learn", "train", error) from error


def _download(owner: str, fetcher: str, files: str, **options: Any) -> Part:
    """x and y as scikit-learn's fetcher gives them; it keeps what it has downloaded."""
    fetch = getattr(_scikit_learn("datasets"), fetcher)
    try:
        return fetch(return_X_y=True, **options)
    except (OSError, EOFError, ValueError, HTTPException, zlib.error) as error:
        raise RopError(
            f"{owner}: no folder with the data was given, and scikit-learn's {fetcher} could not download it "
            f"({type(error).__name__}: {error}); name a folder that holds {files} with --data DIR or $ROP_DATA"
        ) from error


def _download_openml(owner: str, files: str, name: str, version: int) -> Part:
    # as_frame and parser: the defaults need pandas
    return _download(owner, "fetch_openml", files, name=name, version=version, as_frame=False, parser="liac-arff")


def _download_forest() -> Part:
    x, y = _download("forest", "fetch_covtype", "covtype.data.gz")
    return _forest_columns("the download of fetch_covtype", np.column_stack((x, y)).astype(np.int32))


def _download_usps() -> tuple[np.ndarray, np.ndarray]:
    """OpenML has one table, its labels counted from 1; the training part comes first."""
    source = "the download of OpenML's usps"
    x, y = _download_openml("usps", "zip.train.gz and zip.test.gz", "usps", version=2)
    table = np.column_stack((y.astype(np.int64) - 1, x))
    _check_usps(source, table, USPS_TRAIN_ROWS + USPS_TEST_ROWS)
    train, test = table[:USPS_TRAIN_ROWS], table[USPS_TRAIN_ROWS:]
    found = tuple(np.bincount(train[:, 0].astype(np.int64), minlength=10).tolist())
    if found != USPS_TRAIN_DIGITS:
        raise _damaged("usps", source, f"first the training part, with {USPS_TRAIN_DIGITS} of each digit", f"{found}")
    return train, test


def _download_mnist() -> tuple[Part, Part]:
    """OpenML has one table; the training part comes first."""
    source = "the download of OpenML's mnist_784"
    x, y = _download_openml("mnist", "the four MNIST files (train-images-idx3-ubyte.gz …)", "mnist_784", version=1)
    labels = y.astype(np.int64)
    _check_shape("mnist", source, x, MNIST_TRAIN_ROWS + MNIST_TEST_ROWS, MNIST_SIDE**2)
    _check_range("mnist", source, "pixels", x, 0, 255)
    _check_range("mnist", source, "labels", labels, 0, 9)
    images = x.astype(np.uint8).reshape(-1, MNIST_SIDE, MNIST_SIDE)
    test = MNIST_TRAIN_ROWS
    return (images[:test], labels[:test]), (images[test:], labels[test:])
