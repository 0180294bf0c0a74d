"""The data sets, a file for each.

A new one is a file in this folder and its name in ``NAMES``. The file has a function of the same name, which takes the
folder of the data and options of its own and returns a ``DataSet``, and an ``EXPERIMENT``: the net and the settings by
which ``rop train`` trains on it. A set with several labels per sample has none, as ``rop train`` knows classes only.
``rop/experiments/files.py`` reads and checks files, ``nets.py`` has nets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rop.arguments import check_choice
from rop.errors import ArgumentTypeError
from rop.experiments.dataset import DataSet
from rop.experiments.files import Folder
from rop.experiments.settings import Experiment

NAMES = ("digits", "forest", "usps", "mnist", "chest")

_MODULES = {name: import_module(f"{__name__}.{name}") for name in NAMES}
DATASETS: dict[str, Callable[..., DataSet]] = {name: getattr(module, name) for name, module in _MODULES.items()}
EXPERIMENTS: dict[str, Experiment] = {
    name: module.EXPERIMENT for name, module in _MODULES.items() if hasattr(module, "EXPERIMENT")
}


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


def experiment(dataset: str) -> Experiment:
    """The defaults for a data set.

    >>> experiment("forest").batch_size
    128
    """
    return EXPERIMENTS[check_choice("experiment", "dataset", dataset, tuple(EXPERIMENTS))]
