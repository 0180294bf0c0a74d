"""Data sets to train on, read from the publishers' own files and split the same way every time.

>>> from rop import datasets
>>> digits = datasets.load("digits")
>>> digits.input_shape, digits.classes
((1, 8, 8), 10)

A set whose files do not come with scikit-learn is looked for in the folder ``data``, else in the folder that the
variable ``ROP_DATA`` names. If neither is given, scikit-learn downloads it; if one is, nothing is
downloaded.

Each data set is a function here as well: ``datasets.digits()``, ``datasets.mnist(size=16)``. A new one costs a file in
rop/experiments/data and its name in that folder's ``__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from rop.experiments.data import DATASETS, load
from rop.experiments.dataset import DataSet

__all__ = ["DATASETS", "DataSet", "load", *DATASETS]


def __getattr__(name: str) -> Callable[..., DataSet]:
    if name in DATASETS:
        return DATASETS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *DATASETS})
