"""Exact loss, gradient, Hessian-vector product and third-order product vᵀ∇H(w)v of a neural network.

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(4, 8), rop.Tanh(), rop.Linear(8, 3))
>>> w = net.init(seed=0)
>>> w.shape, w.dtype
((67,), dtype('float32'))
"""

# ruff: noqa: F401, F403
from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    from rop import check, datasets, eigen, kfac
    from rop.eigen import spectral_radius
    from rop.errors import ArgumentError, ArgumentTypeError, DeviceError, FileError, MissingPackageError, RopError
    from rop.graph import Graph, Input, Sequential
    from rop.layers import *
    from rop.objective import Jet, Objective, Point
    from rop.optim import KFAC, SAM, SGD, SWA, Adam, EntropySGD, SpectralRadius
    from rop.optim import convergent, cosine, inverse_epoch, piecewise_linear, power_law
    from rop.torch.export import to_torch as to_torch
    from rop.torch.trace import from_torch as from_torch
    from rop.training.run import Fit, TrainingInterrupted, TrainingStopped, evaluate, train

__version__ = "0.1.0"

# The public names by the module that has them; layers and losses, which are public too, are named by their records
# (rop/layers/record.py). Everything is loaded when it is first asked for: Numba and SciPy are slow to import, NumPy is
# not quick, and the command `rop` must be there to hear Ctrl-C before they are.
_NAMES = {
    "rop.graph": ("Input", "Graph", "Sequential"),
    "rop.layers": ("Layer", "Loss"),
    "rop.objective": ("Objective", "Point", "Jet"),
    "rop.eigen": ("spectral_radius",),
    "rop.optim": (
        *("SGD", "Adam", "SAM", "SWA", "EntropySGD", "KFAC", "SpectralRadius"),
        *("inverse_epoch", "power_law", "cosine", "piecewise_linear", "convergent"),
    ),
    "rop.training.run": ("train", "evaluate", "Fit", "TrainingStopped", "TrainingInterrupted"),
    "rop.errors": (
        "RopError",
        "ArgumentError",
        "ArgumentTypeError",
        "DeviceError",
        "FileError",
        "MissingPackageError",
    ),
}
# These need another library: `from rop import *` must not, so they are not in __all__.
_OPTIONAL = {"rop.torch": ("from_torch", "to_torch")}
_MODULES = ("check", "datasets", "eigen", "kfac")  # in __all__, too
_MORE_MODULES = ("curvature", "errors", "experiments", "graph", "layers", "optim", "sklearn", "torch", "training")
_HOMES = {name: home for table in (_NAMES, _OPTIONAL) for home, names in table.items() for name in names}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES or name in _MORE_MODULES:
        return import_module(f"rop.{name}")
    if name == "__all__":
        return [*(one for names in _NAMES.values() for one in names), *_layers(), *_MODULES, "__version__"]
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and name in _layers():
        value = getattr(import_module("rop.layers"), name)
    else:
        raise AttributeError(f"module 'rop' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES, *_MORE_MODULES, *_layers()})


def _layers() -> list[str]:
    """The names of all layers and losses."""
    from rop.layers import LAYERS, LOSSES

    return [*LAYERS, *LOSSES]
