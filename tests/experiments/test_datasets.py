"""Data sets: how the publishers' files become arrays, the splits, and what is said of files that are not right.

Most tests write small files in the publishers' formats. Those of the real files run where $ROP_DATA names their folder.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets

from rop import ArgumentError, ArgumentTypeError, RopError, datasets
from rop.datasets import DataSet
from rop.experiments.data import forest, mnist, usps
from rop.experiments.dataset import split

needs_files = pytest.mark.skipif(not os.environ.get("ROP_DATA"), reason="$ROP_DATA names no folder with the real files")


def assert_parts(found: DataSet, counts: tuple[int, int, int], shape: tuple[int, ...], classes: int) -> None:
    """Every part has its size, contiguous arrays of the promised kinds, finite values, labels below ``classes``."""
    assert (found.classes, found.input_shape) == (classes, shape)
    for (x, y), count in zip((found.train, found.validation, found.test), counts, strict=True):
        assert (x.shape, x.dtype.name, x.flags.c_contiguous) == ((count, *shape), "float32", True)
        assert (y.shape, y.dtype.name, y.flags.c_contiguous) == ((count,), "int64", True)
        assert np.isfinite(x).all() and y.min() >= 0 and y.max() < classes


def assert_equal(one: DataSet, other: DataSet) -> None:
    for part in ("train", "validation", "test"):
        for a, b in zip(getattr(one, part), getattr(other, part), strict=True):
            np.testing.assert_array_equal(a, b)


def refused(load: Callable[[], Any], *says: object, error: type[Exception] = ArgumentError) -> None:
    """The call raises this error, whose message contains all the words."""
    with pytest.raises(error) as caught:
        load()
    missing = [str(word) for word in says if str(word) not in str(caught.value)]
    assert not missing, f"the message {str(caught.value)!r} does not say {missing}"


# ------------------------------------------------------------------------------------------- small files to read
@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """The files of these tests are small; those of the real files lift this."""
    monkeypatch.setattr(forest, "ROWS", 100)
    monkeypatch.setattr(usps, "TRAIN_ROWS", 23)
    monkeypatch.setattr(usps, "TEST_ROWS", 4)
    monkeypatch.setattr(usps, "TRAIN_DIGITS", (3, 3, 3, 2, 2, 2, 2, 2, 2, 2))
    monkeypatch.setattr(mnist, "TRAIN_ROWS", 13)
    monkeypatch.setattr(mnist, "TEST_ROWS", 5)


def forest_table(rng: np.random.Generator, rows: int = 100) -> np.ndarray:
    table = np.zeros((rows, 55), np.int64)
    table[:, :10] = rng.integers(-170, 7000, (rows, 10))
    table[np.arange(rows), rng.integers(10, 14, rows)] = 1
    table[np.arange(rows), rng.integers(14, 50, rows)] = 1  # so the last soil types are constant
    table[:, 54] = rng.integers(1, 8, rows)
    return table


def write_forest(folder: Path, table: np.ndarray) -> Path:
    lines = "".join(",".join(map(str, row)) + "\n" for row in table.tolist())
    path = folder / "covtype.data.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    return path


def usps_tables(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.round(rng.uniform(-1, 1, (27, 256)), 3)
    table = np.column_stack((np.arange(27) % 10, pixels))
    return table[:23], table[23:]


def write_usps(folder: Path, train: np.ndarray, test: np.ndarray) -> None:
    """The training file ends its lines with a blank, the test file does not."""
    blank_ended = "".join("".join(f"{value:.4f} " for value in row) + "\n" for row in train)
    plain = "".join(" ".join(f"{value:g}" for value in row) + "\n" for row in test)
    (folder / "zip.train.gz").write_bytes(gzip.compress(blank_ended.encode()))
    (folder / "zip.test.gz").write_bytes(gzip.compress(plain.encode()))


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def mnist_arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By the names of their files, unpacked."""
    return {
        "train-images-idx3-ubyte": rng.integers(0, 256, (13, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(13) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (5, 28, 28)),
        "t10k-labels-idx1-ubyte": np.arange(5),
    }


def write_mnist(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A folder with the files of all sets."""
    write_forest(tmp_path, forest_table(rng))
    write_usps(tmp_path, *usps_tables(rng))
    write_mnist(tmp_path, mnist_arrays(rng))
    return tmp_path


FILES = {
    "forest": ["covtype.data.gz"],
    "usps": ["zip.train.gz", "zip.test.gz"],
    "mnist": [f"{name}.gz" for name in mnist_arrays(np.random.default_rng())],
}
EACH_FILE = [(name, file) for name, files in FILES.items() for file in files]


# ------------------------------------------------------------------------------------------------- load and DataSet
def test_load_is_the_function_of_that_name(folder: Path):
    assert list(datasets.DATASETS) == ["digits", "forest", "usps", "mnist", "chest"]  # for chest see test_chest.py
    for name, function in list(datasets.DATASETS.items())[:-1]:
        found = datasets.load(name, folder)
        assert found.name == name
        assert_equal(found, function(folder))
    assert datasets.load("mnist", folder, size=16).input_shape == (1, 16, 16)


def test_wrong_arguments_of_load(folder: Path):
    refused(lambda: datasets.load("forrest"), "'digits', 'forest', 'usps', 'mnist'", "got 'forrest'")
    refused(lambda: datasets.load("digits", size=16), "'digits'", "'size'", "none", error=ArgumentTypeError)
    refused(lambda: datasets.load("mnist", folder, sise=16), "'sise'", "options: size", error=ArgumentTypeError)
    refused(lambda: datasets.load("mnist", folder, size=17), "size must be one of 28, 16, got 17")


def test_a_data_set_is_frozen_and_short_to_print():
    found = datasets.digits()
    assert repr(found) == "DataSet(name='digits', classes=10)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "other"  # type: ignore[misc]


def test_rop_data_is_the_folder_if_none_is_given(folder: Path, monkeypatch):
    monkeypatch.setenv("ROP_DATA", str(folder))
    assert_equal(datasets.usps(), datasets.usps(folder))


# ------------------------------------------------------------------------------------------------------------ digits
def test_digits():
    found = datasets.digits()
    assert_parts(found, (1149, 288, 360), (1, 8, 8), 10)
    assert_equal(found, datasets.digits())
    everything = np.concatenate([x for x, _ in (found.train, found.validation, found.test)])
    assert (everything.min(), everything.max()) == (0, 1)
    published = sklearn.datasets.load_digits().data / 16
    np.testing.assert_array_equal(np.sort(everything.reshape(-1, 64), axis=0), np.sort(published, axis=0))
    for _, y in (found.train, found.validation, found.test):
        assert abs(np.bincount(y) / len(y) - 0.1).max() < 0.01, "each digit has its share"


@pytest.mark.parametrize("labels", [None, np.arange(200) % 3])
def test_parts_share_no_row(labels: np.ndarray | None):
    parts = split(200, stratify=labels)
    assert [len(rows) for rows in parts] == [128, 32, 40]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(200))


def test_without_scikit_learn(folder: Path, monkeypatch):
    monkeypatch.delenv("ROP_DATA", raising=False)
    for module in ("sklearn.datasets", "sklearn.model_selection"):
        monkeypatch.setitem(sys.modules, module, None)
    for load in (datasets.digits, lambda: datasets.forest(folder), datasets.mnist):
        refused(load, "scikit-learn", "pip install 'rop[train]'", error=RopError)
    assert datasets.usps(folder).classes == datasets.mnist(folder).classes == 10, "files alone need no scikit-learn"


# ------------------------------------------------------------------------------------------------------------ forest
def test_forest(tmp_path: Path, rng: np.random.Generator):
    table = forest_table(rng)
    write_forest(tmp_path, table)
    found = datasets.forest(tmp_path)
    assert_parts(found, (64, 16, 20), (54,), 7)
    train, _, test = split(100)
    np.testing.assert_array_equal(found.train[1], table[train, 54] - 1)
    mean, std = table[train, :54].mean(axis=0), table[train, :54].std(axis=0)
    assert std[53] == 0
    expected = (table[test, :54] - mean) / np.where(std == 0, 1, std)
    np.testing.assert_allclose(found.test[0], expected, rtol=1e-6, atol=1e-6)


def test_only_the_training_part_of_forest_sets_the_scale(tmp_path: Path, rng: np.random.Generator):
    table = forest_table(rng)
    write_forest(tmp_path, table)
    before = datasets.forest(tmp_path)
    _, validation, test = split(100)
    table[np.concatenate((validation, test)), :10] *= 100
    write_forest(tmp_path, table)
    after = datasets.forest(tmp_path)
    np.testing.assert_array_equal(before.train[0], after.train[0])
    assert np.abs(after.test[0]).max() > 10 * np.abs(before.test[0]).max()


def change(row: int, column: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def changed(table: np.ndarray) -> np.ndarray:
        table[row, column] = value
        return table

    return changed


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda table: table[:-1], ["100 rows × 55 columns", "99 × 55"]),
        (lambda table: table[:, 1:], ["100 rows × 55 columns", "100 × 54"]),
        (change(7, 54, 8), ["labels in [1, 7]", "1 … 8"]),
        (change(7, 54, 0), ["labels in [1, 7]", "0 … 7"]),
        (change(7, 20, 2), ["columns 14 to 53", "0 … 2"]),
        (change(7, slice(10, 14), 1), ["exactly one 1", "columns 10 to 13", "row 7"]),  # type: ignore[arg-type]
        (lambda table: table[:0], ["no data"]),
        (lambda table: table + 0.5, ["could not convert", "row 0"]),
    ],
)
def test_a_wrong_forest_file(wrong: Callable, says: list[str], tmp_path: Path, rng: np.random.Generator):
    path = write_forest(tmp_path, wrong(forest_table(rng)))
    refused(lambda: datasets.forest(tmp_path), path, *says)


def test_a_forest_line_that_is_cut_short(folder: Path):
    lines = gzip.decompress((folder / "covtype.data.gz").read_bytes())
    (folder / "covtype.data.gz").write_bytes(gzip.compress(lines[:-10]))
    refused(lambda: datasets.forest(folder), "covtype.data.gz", "equally many numbers", "changed from 55")


# -------------------------------------------------------------------------------------------------------------- usps
def test_usps(tmp_path: Path, rng: np.random.Generator):
    train, test = usps_tables(rng)
    write_usps(tmp_path, train, test)
    found = datasets.usps(tmp_path)
    assert_parts(found, (20, 3, 4), (1, 16, 16), 10)
    for part, table in ((found.validation, train[:3]), (found.train, train[3:]), (found.test, test)):
        np.testing.assert_array_equal(part[1], table[:, 0])
        expected = ((table[:, 1:] + 1) / 2 - 0.2451) / 0.2981
        np.testing.assert_allclose(part[0].reshape(-1, 256), expected, rtol=1e-6, atol=1e-7)


def test_usps_of_eight_bits(tmp_path: Path, rng: np.random.Generator):
    """Pixels are cut off to 8 bits, as torchvision does, and the levels can be had back."""
    train, test = usps_tables(rng)
    write_usps(tmp_path, train, test)
    x, y = datasets.usps(tmp_path, eight_bits=True).test
    levels = np.floor((test[:, 1:].astype(np.float32) + 1) / 2 * 255)
    np.testing.assert_allclose(x.reshape(-1, 256), (levels / 255 - 0.24510024) / 0.29806136, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(usps.to_grey_levels(x).reshape(-1, 256), levels)
    np.testing.assert_array_equal(y, test[:, 0])
    with pytest.raises(ArgumentTypeError, match="eight_bits"):
        datasets.usps(tmp_path, eight_bits=8)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda table: table[:-1], ["23 rows × 257 columns", "22 × 257"]),
        (lambda table: table[:, :-1], ["23 rows × 257 columns", "23 × 256"]),
        (lambda table: table + np.eye(1, 257) * 5, ["labels in [0, 9]", "5 … 14"]),
        (lambda table: np.abs(table) + np.eye(1, 257, 256), ["pixels in [-1, 1]"]),
        (lambda table: table * np.where(np.arange(257) == 9, np.nan, 1), ["pixels in [-1, 1]", "nan"]),
    ],
)
def test_a_wrong_usps_file(wrong: Callable, says: list[str], tmp_path: Path, rng: np.random.Generator):
    train, test = usps_tables(rng)
    write_usps(tmp_path, wrong(train), test)
    refused(lambda: datasets.usps(tmp_path), tmp_path / "zip.train.gz", *says)


def test_usps_labels_are_whole_numbers(tmp_path: Path, rng: np.random.Generator):
    train, test = usps_tables(rng)
    test[2, 0] = 4.5
    write_usps(tmp_path, train, test)
    refused(lambda: datasets.usps(tmp_path), tmp_path / "zip.test.gz", "whole numbers", "4.5")


# ------------------------------------------------------------------------------------------------------------- mnist
def test_mnist(tmp_path: Path, rng: np.random.Generator):
    arrays = mnist_arrays(rng)
    write_mnist(tmp_path, arrays)
    found = datasets.mnist(tmp_path)
    assert_parts(found, (11, 2, 5), (1, 28, 28), 10)
    images, labels, test_images, test_labels = arrays.values()
    for part, x, y in (
        (found.train, images[:11], labels[:11]),
        (found.validation, images[11:], labels[11:]),
        (found.test, test_images, test_labels),
    ):
        np.testing.assert_array_equal(part[1], y)
        np.testing.assert_allclose(part[0][:, 0], (x / 255 - 0.1307) / 0.3081, rtol=1e-6, atol=1e-7)


def test_mnist_in_the_frame_of_usps(tmp_path: Path, rng: np.random.Generator):
    """Size 16 is the mean over 5×5 of the middle 20×20 pixels, each repeated 4×4 times."""
    arrays = mnist_arrays(rng)
    write_mnist(tmp_path, arrays)
    found = datasets.mnist(tmp_path, size=16)
    assert_parts(found, (11, 2, 5), (1, 16, 16), 10)
    fine = np.kron(arrays["t10k-images-idx3-ubyte"][:, 4:24, 4:24], np.ones((1, 4, 4)))
    averaged = fine.reshape(5, 16, 5, 16, 5).mean(axis=(2, 4)) / 255
    np.testing.assert_allclose(found.test[0][:, 0], (averaged - 0.2451) / 0.2981, rtol=1e-5, atol=1e-6)


def test_unpacked_files_will_do(folder: Path):
    expected = {name: datasets.load(name, folder) for name in FILES}
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    for name, found in expected.items():
        assert_equal(datasets.load(name, folder), found)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("train-images-idx3-ubyte", b"\0\0\x08\x01" + bytes(12), ["starts with 00000803", "00000801"]),
        ("train-labels-idx1-ubyte", b"", ["starts with 00000801", "nothing"]),
        ("t10k-images-idx3-ubyte", idx(np.zeros((6, 28, 28))), ["the shape (5, 28, 28)", "(6, 28, 28)"]),
        ("t10k-images-idx3-ubyte", idx(np.zeros((5, 28, 28)))[:-1], ["3,936 bytes", "3,935"]),
        ("t10k-images-idx3-ubyte", b"\0\0\x08\x03", ["the shape (5, 28, 28)", "(0, 0, 0)"]),
        ("t10k-labels-idx1-ubyte", idx(np.array([0, 1, 2, 3, 10])), ["labels in [0, 9]", "0 … 10"]),
        ("t10k-labels-idx1-ubyte", idx(np.arange(5)) + b"?", ["13 bytes", "14"]),
    ],
)
def test_a_wrong_mnist_file(file: str, content: bytes, says: list[str], folder: Path):
    (folder / f"{file}.gz").write_bytes(gzip.compress(content))
    refused(lambda: datasets.mnist(folder), folder / f"{file}.gz", *says)


# ------------------------------------------------------------------------------------------- all files, all folders
@pytest.mark.parametrize(("name", "file"), EACH_FILE)
def test_a_missing_file_is_not_downloaded(name: str, file: str, folder: Path, monkeypatch):
    for fetcher in ("fetch_covtype", "fetch_openml"):
        monkeypatch.setattr(sklearn.datasets, fetcher, lambda **options: pytest.fail("asked the network"))
    (folder / file).unlink()
    says = [f"no file {file}", folder, "put it there", "--data DIR", "$ROP_DATA"]
    refused(lambda: datasets.load(name, folder), *says)
    monkeypatch.setenv("ROP_DATA", str(folder))
    refused(lambda: datasets.load(name), *says)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda packed: packed[: len(packed) // 2], id="truncated"),
        pytest.param(lambda packed: b"not gzip" + packed, id="another format"),
        pytest.param(lambda packed: packed[:-8] + bytes(8), id="wrong checksum"),
        pytest.param(lambda packed: packed[:12] + bytes(20) + packed[32:], id="overwritten"),
    ],
)
@pytest.mark.parametrize(("name", "file"), EACH_FILE)
def test_a_damaged_file(name: str, file: str, damage: Callable[[bytes], bytes], folder: Path):
    path = folder / file
    path.write_bytes(damage(path.read_bytes()))
    size = f"{path.stat().st_size:,} bytes"
    refused(lambda: datasets.load(name, folder), name, path, "a complete gzip file", size, "get it again")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read(name: str, folder: Path, monkeypatch):
    def forbidden(path: Path, *args: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(gzip, "open", forbidden)
    refused(lambda: datasets.load(name, folder), f"cannot read {folder / FILES[name][0]}: Permission denied")


@pytest.mark.parametrize(
    ("name", "number", "bound"),
    [(name, i, None) for name in ("usps", "mnist") for i in (0, 1)] + [("forest", 0, None), ("forest", 0, "unpacked")],
)
def test_a_file_that_unpacks_to_far_too_much(name: str, number: int, bound: str | None, folder: Path, monkeypatch):
    """It is refused at four times what belongs there: neither unpacked to its end nor made an array of."""
    for module, size in ((forest, "BYTES"), (usps, "TRAIN_BYTES"), (usps, "TEST_BYTES")):
        monkeypatch.setattr(module, size, 10_000)
    path = folder / FILES[name][number]
    content = b"0 " * 2**25 if name != "mnist" else b"\0\0\x08\x03" + b"\xff" * 2**26
    path.write_bytes(gzip.compress(content, 1))
    if bound:
        path.with_suffix("").write_bytes(content)
        path.unlink()
    tracemalloc.start()
    try:
        refused(lambda: datasets.load(name, folder), "damaged or another file", "more than", "bytes unpacked")
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_folder(name: str, folder: Path, monkeypatch):
    absent, file = str(folder / "nowhere"), str(folder / "zip.test.gz")
    refused(lambda: datasets.load(name, absent), "data must be the folder", absent, "no such folder", "--data DIR")
    refused(lambda: datasets.load(name, file), "data must be the folder", file, "a file")
    refused(lambda: datasets.load(name, ""), "data must be the folder", "got ''")
    refused(lambda: datasets.load(name, 3), "got 3 (int)", error=ArgumentTypeError)  # type: ignore[arg-type]
    monkeypatch.setenv("ROP_DATA", absent)
    refused(lambda: datasets.load(name), "$ROP_DATA must be the folder", absent)


# --------------------------------------------------------------------------------------------------------- downloads
@pytest.fixture
def downloads(monkeypatch, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What scikit-learn's fetchers give here instead of asking the network: floats, and OpenML's labels as text."""
    monkeypatch.delenv("ROP_DATA", raising=False)
    cells = forest_table(rng)
    scans = np.concatenate(usps_tables(rng))
    images, labels, test_images, test_labels = mnist_arrays(rng).values()
    texts = [str(label) for label in np.concatenate((labels, test_labels))]
    pixels = np.concatenate((images, test_images)).reshape(-1, 784).astype(np.float64)
    given = {
        "covtype": (cells[:, :54].astype(np.float64), cells[:, 54].astype(np.int32)),
        "usps": (scans[:, 1:], np.array([str(int(label) + 1) for label in scans[:, 0]], object)),
        "mnist_784": (pixels, np.array(texts, object)),
    }

    def fetch_openml(name: str, *, version: int, return_X_y: bool, as_frame: bool, parser: str) -> Any:
        assert (return_X_y, as_frame, parser) == (True, False, "liac-arff")
        assert version == {"usps": 2, "mnist_784": 1}[name]
        return given[name]

    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", lambda *, return_X_y: given["covtype"])
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    return given


def test_a_download_is_what_the_files_hold(downloads: dict, tmp_path: Path):
    x, y = downloads["covtype"]
    write_forest(tmp_path, np.column_stack((x, y)).astype(np.int64))
    x, y = downloads["usps"]
    write_usps(tmp_path, *np.split(np.column_stack((y.astype(int) - 1, x)), [23]))
    x, y = downloads["mnist_784"]
    arrays = [part for whole in (x.reshape(-1, 28, 28), y.astype(int)) for part in np.split(whole, [13])]
    order = ("train-images-idx3", "t10k-images-idx3", "train-labels-idx1", "t10k-labels-idx1")
    write_mnist(tmp_path, {f"{name}-ubyte": array for name, array in zip(order, arrays, strict=True)})
    for name in FILES:
        assert_equal(datasets.load(name), datasets.load(name, tmp_path))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("failure", [URLError("no route"), TimeoutError("no route"), ValueError("no route")])
def test_no_network(name: str, failure: Exception, monkeypatch):
    def fetch(**options: Any) -> None:
        raise failure

    monkeypatch.delenv("ROP_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", fetch)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    first_file = FILES[name][0]
    says = [name, "could not download", "no route", first_file, "--data DIR", "$ROP_DATA"]
    refused(lambda: datasets.load(name), *says, error=RopError)


def test_a_download_in_another_order_or_form(downloads: dict):
    x, y = downloads["usps"]
    downloads["usps"] = x[::-1], y[::-1]
    refused(datasets.usps, "OpenML", "first the training part")
    downloads["usps"] = x[:20], y[:20]
    refused(datasets.usps, "OpenML", "27 rows × 257 columns", "20 × 257")
    x, y = downloads["mnist_784"]
    downloads["mnist_784"] = x[:, :-1], y
    refused(datasets.mnist, "OpenML", "18 rows × 784 columns", "18 × 783")
    downloads["mnist_784"] = x * 2, y
    refused(datasets.mnist, "OpenML", "pixels in [0, 255]")
    x, y = downloads["covtype"]
    downloads["covtype"] = x, y - 1
    refused(datasets.forest, "fetch_covtype", "labels in [1, 7]")


# ---------------------------------------------------------------------------------------------------- the real files
@pytest.fixture
def real_sizes(small: None, monkeypatch) -> None:
    monkeypatch.undo()


def counts(*parts: tuple[np.ndarray, np.ndarray]) -> list[int]:
    return np.bincount(np.concatenate([y for _, y in parts])).tolist()


@needs_files
def test_the_real_forest(real_sizes: None):
    found = datasets.forest()
    assert_parts(found, (371_847, 92_962, 116_203), (54,), 7)
    everything = counts(found.train, found.validation, found.test)
    assert everything == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    x = found.train[0]
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean, 0, atol=1e-6)
    np.testing.assert_allclose(std, np.where(std == 0, 0, 1), atol=1e-5)
    assert 1e-4 < np.abs(found.test[0].mean(axis=0, dtype=np.float64)).max() < 0.1, "scaled by the training part"


@needs_files
def test_the_real_usps(real_sizes: None):
    found = datasets.usps()
    assert_parts(found, (6250, 1041, 2007), (1, 16, 16), 10)
    assert counts(found.train, found.validation) == list(usps.TRAIN_DIGITS)
    assert counts(found.test) == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    pixels = found.train[0] * usps.STD + usps.MEAN
    np.testing.assert_allclose([pixels.min(), pixels.max()], [0, 1], atol=1e-6)


@needs_files
@pytest.mark.parametrize("size", [28, 16])
def test_the_real_mnist(size: int, real_sizes: None):
    found = datasets.mnist(size=size)
    assert_parts(found, (50_000, 10_000, 10_000), (1, size, size), 10)
    everything = counts(found.train, found.validation)
    assert everything == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(found.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    mean, std = found.train[0].mean(dtype=np.float64), found.train[0].std(dtype=np.float64)
    if size == 28:
        np.testing.assert_allclose([mean, std], [0, 1], atol=0.01)
    else:  # as much ink as a digit of USPS has; with the margin the mean would be -0.38
        assert abs(mean) < 0.02
