"""USPS, 9,298 digits of 16×16 pixels that were scanned from envelopes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rop.arguments import check_bool
from rop.experiments.dataset import DataSet, Part, part
from rop.experiments.files import (
    Folder,
    check_range,
    check_shape,
    damaged,
    download_openml,
    file_in,
    folder_of,
    read_text,
)
from rop.experiments.nets import usps_net
from rop.experiments.settings import Experiment, adam

__all__ = ["usps"]

EXPERIMENT = Experiment(usps_net, adam, mu=0.005)

TRAIN_BYTES, TEST_BYTES = 14_512_253, 2_029_542  # of the publishers' files, unpacked
TRAIN_ROWS, TEST_ROWS = 7291, 2007
TRAIN_DIGITS = (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)  # how often each digit is in the training file
SIDE = 16
MEAN, STD = 0.2451, 0.2981
GREY_MEAN, GREY_STD = 0.24510024, 0.29806136  # of the paper's published code, for pixels of 8 bits


def usps(data: Folder = None, eight_bits: bool = False) -> DataSet:
    """USPS: 9,298 digits scanned from envelopes, as images (1, 16, 16).

    Read from ``zip.train.gz`` and ``zip.test.gz``, the split of the publishers. The first seventh of the training file
    is the validation part. Pixels are scaled from [-1, 1] to [0, 1], then by mean 0.2451 and standard deviation 0.2981.

    With ``eight_bits`` they are what the paper's published code trains on: pixels are cut off to grey levels of 8 bits
    first, and then scaled by mean 0.24510024 and standard deviation 0.29806136.
    """
    folder = folder_of("usps", data)
    eight_bits = check_bool("usps", "eight_bits", eight_bits)
    train, test = _downloaded() if folder is None else _from_files(folder)

    def normalised(table: np.ndarray) -> Part:
        pixels = table[:, 1:].reshape(-1, 1, SIDE, SIDE)
        if eight_bits:
            return part(from_grey_levels(grey_levels(pixels)), table[:, 0])
        return part(((pixels + 1) / 2 - MEAN) / STD, table[:, 0])

    held_out = len(train) // 7
    return DataSet("usps", normalised(train[held_out:]), normalised(train[:held_out]), normalised(test), classes=10)


def grey_levels(pixels: np.ndarray) -> np.ndarray:
    """Pixels in [-1, 1] as levels 0 to 255, cut off as torchvision does.

    >>> grey_levels(np.array([-1.0, 0.0, 1.0]))
    array([  0, 127, 255], dtype=uint8)
    """
    return ((pixels.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)


def from_grey_levels(levels: np.ndarray) -> np.ndarray:
    """Levels 0 to 255 as the inputs of the paper's nets: (level / 255 − 0.24510024) / 0.29806136, float32.

    >>> from_grey_levels(np.array([0, 255], np.uint8)).round(3)
    array([-0.822,  2.533], dtype=float32)
    """
    # a table of the 256 levels: as exact as float64, without a copy of all images in float64
    return ((np.arange(256) / 255 - GREY_MEAN) / GREY_STD).astype(np.float32)[levels]


def to_grey_levels(inputs: np.ndarray) -> np.ndarray:
    """The levels from which ``from_grey_levels`` made these inputs.

    >>> to_grey_levels(from_grey_levels(np.arange(256, dtype=np.uint8))).tolist() == list(range(256))
    True
    """
    return np.rint((inputs.astype(np.float64) * GREY_STD + GREY_MEAN) * 255).clip(0, 255).astype(np.uint8)


def _from_files(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    paths = [file_in("usps", folder, name) for name in ("zip.train.gz", "zip.test.gz")]
    sizes = TRAIN_BYTES, TEST_BYTES
    train, test = (read_text("usps", path, size, np.float64) for path, size in zip(paths, sizes, strict=True))
    _check(paths[0], train, TRAIN_ROWS)
    _check(paths[1], test, TEST_ROWS)
    return train, test


def _downloaded() -> tuple[np.ndarray, np.ndarray]:
    """OpenML has one table, its labels counted from 1; the training part comes first."""
    source = "the download of OpenML's usps"
    x, y = download_openml("usps", "zip.train.gz and zip.test.gz", "usps", version=2)
    table = np.column_stack((y.astype(np.int64) - 1, x))
    _check(source, table, TRAIN_ROWS + TEST_ROWS)
    train, test = table[:TRAIN_ROWS], table[TRAIN_ROWS:]
    found = tuple(np.bincount(train[:, 0].astype(np.int64), minlength=10).tolist())
    if found != TRAIN_DIGITS:
        raise damaged("usps", source, f"first the training part, with {TRAIN_DIGITS} of each digit", f"{found}")
    return train, test


def _check(source: Path | str, table: np.ndarray, rows: int) -> None:
    check_shape("usps", source, table, rows, 1 + SIDE**2)
    check_range("usps", source, "labels", table[:, 0], 0, 9)
    check_range("usps", source, "pixels", table[:, 1:], -1, 1)
    broken = table[table[:, 0] % 1 != 0, 0]
    if broken.size:
        raise damaged("usps", source, "whole numbers as labels", f"{broken[0]:g}")
