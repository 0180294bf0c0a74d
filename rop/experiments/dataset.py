"""A data set: its three parts, and how they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

import numpy as np

from rop.errors import missing_package

Part = tuple[np.ndarray, np.ndarray]  # samples (count, ...), targets: class numbers (count,) or (count, labels)

SPLIT_SEED = 1226


@dataclass(frozen=True, eq=False)
class DataSet:
    """Three parts, each ``(x, y)``: samples as contiguous float32, and their targets.

    Targets are class numbers from 0, (count,) int64. A set with several labels per sample names them in ``labels``, and
    has a float32 for each, (count, labels): 1, 0, or NaN for unknown. ``classes`` is then the number of labels.
    """

    name: str
    train: Part = field(repr=False)
    validation: Part = field(repr=False)
    test: Part = field(repr=False)
    classes: int
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train[0].shape[1:]


def part(x: np.ndarray, y: np.ndarray) -> Part:
    """A part in the promised precision and layout."""
    kind = np.float32 if y.dtype.kind == "f" and y.ndim == 2 else np.int64
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, kind)


def split(count: int, stratify: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row numbers of the training, validation and test part: 64, 16 and 20 % of all rows."""
    divide = scikit_learn("model_selection").train_test_split
    share = {"test_size": 1 / 5, "random_state": SPLIT_SEED}
    rest, test = divide(np.arange(count), stratify=stratify, **share)
    train, validation = divide(rest, stratify=None if stratify is None else stratify[rest], **share)
    return train, validation, test


def scikit_learn(module: str) -> ModuleType:
    """A module of scikit-learn, which is not needed for data sets that are read from files and come with a split."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise missing_package("datasets", "scikit-learn", "train", error) from error
