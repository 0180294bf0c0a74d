"""The experiments, a file for each, which has an ``EXPERIMENT``. A hyphen of a name is an underscore in its file's."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from rop.arguments import check_choice
from rop.reproduce.spec import Experiment

# as `rop reproduce` lists them
ORDER = ("forest", "forest-batch", "forest-batch-2", "usps", "usps-batch", "gap", "time", "chest", "gradcam")


def _module(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


NAMES = tuple(name for name in ORDER if find_spec(_module(name)))


def experiment(name: str) -> Experiment:
    """The experiment of this name.

    >>> experiment("forest").name
    'forest'
    """
    found: Experiment = import_module(_module(check_choice("reproduce", "experiment", name, NAMES))).EXPERIMENT
    return found
