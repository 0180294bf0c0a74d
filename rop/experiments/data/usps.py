"""USPS, 9,298 digits of 16×16 pixels that were scanned from envelopes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

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


def usps(data: Folder = None) -> DataSet:
    """USPS: 9,298 digits scanned from envelopes, as images (1, 16, 16).

    Read from ``zip.train.gz`` and ``zip.test.gz``, the split of the publishers. The first seventh of the training file
    is the validation part. Pixels are scaled from [-1, 1] to [0, 1], then by mean 0.2451 and standard deviation 0.2981.
    """
    folder = folder_of("usps", data)
    train, test = _downloaded() if folder is None else _from_files(folder)

    def normalised(table: np.ndarray) -> Part:
        pixels = table[:, 1:].reshape(-1, 1, SIDE, SIDE)
        return part(((pixels + 1) / 2 - MEAN) / STD, table[:, 0])

    held_out = len(train) // 7
    return DataSet("usps", normalised(train[held_out:]), normalised(train[:held_out]), normalised(test), classes=10)


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
