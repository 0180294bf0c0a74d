"""A data set: its three parts, and how they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

import numpy as np

from rop.errors import missing_package

Part = tuple[np.ndarray, np.ndarray]  # samples (count, ...), class numbers (count,)

SPLIT_SEED = 1226


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


def part(x: np.ndarray, y: np.ndarray) -> Part:
    """A part in the promised precision and layout."""
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)


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
