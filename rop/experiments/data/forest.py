"""Forest cover type, 581,012 cells of land with 54 features and 7 classes (UCI, Blackard and Dean)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rop.experiments.dataset import DataSet, Part, part, split
from rop.experiments.files import Folder, check_range, check_shape, damaged, download, file_in, folder_of, read_text
from rop.experiments.nets import forest_net
from rop.experiments.settings import Experiment, forest_sgd

__all__ = ["forest"]

EXPERIMENT = Experiment(forest_net, forest_sgd, mu=0.01)

BYTES = 75_169_317  # of the publisher's file, unpacked
ROWS, FEATURES, CLASSES = 581_012, 54, 7
ONE_HOT = (slice(10, 14), slice(14, 54))  # wilderness area, soil type


def forest(data: Folder = None) -> DataSet:
    """Forest cover type: 581,012 cells of 30 m × 30 m with 54 features, and which of 7 kinds of trees grows there.

    Read from ``covtype.data.gz``. A fifth is the test part and a fifth of the rest the validation part. Every feature
    has mean 0 and standard deviation 1 over the training part, or is 0 there if it is constant there.
    """
    folder = folder_of("forest", data)
    x, y = _downloaded() if folder is None else _from_file(folder)
    rows = split(len(y))
    measured = x[rows[0]]
    mean, std = measured.mean(axis=0, dtype=np.float64), measured.std(axis=0, dtype=np.float64)
    std[std == 0] = 1
    train, validation, test = (part((x[chosen] - mean) / std, y[chosen]) for chosen in rows)
    return DataSet("forest", train, validation, test, classes=CLASSES)


def _from_file(folder: Path) -> Part:
    path = file_in("forest", folder, "covtype.data.gz")
    return _columns(path, read_text("forest", path, BYTES, np.int32, ","))


def _downloaded() -> Part:
    x, y = download("forest", "fetch_covtype", "covtype.data.gz")
    return _columns("the download of fetch_covtype", np.column_stack((x, y)).astype(np.int32))


def _columns(source: Path | str, table: np.ndarray) -> Part:
    """The features and the class numbers from 0, after a check of their ranges."""
    check_shape("forest", source, table, ROWS, FEATURES + 1)
    check_range("forest", source, "labels", table[:, FEATURES], 1, CLASSES)
    for columns in ONE_HOT:
        chosen = f"exactly one 1 and else 0 in columns {columns.start} to {columns.stop - 1}"
        check_range("forest", source, chosen + ", so values", table[:, columns], 0, 1)
        wrong = np.flatnonzero(table[:, columns].sum(axis=1) != 1)
        if wrong.size:
            raise damaged("forest", source, chosen, f"another number of 1 in row {wrong[0]}")
    return table[:, :FEATURES], table[:, FEATURES] - 1
