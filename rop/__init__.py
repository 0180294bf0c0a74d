"""Exact loss, gradient, Hessian-vector product and third-order product vᵀ∇H(w)v of a neural network.

>>> import numpy as np, rop
>>> net = rop.Sequential(rop.Linear(4, 8), rop.Tanh(), rop.Linear(8, 3))
>>> w = net.init(seed=0)
>>> w.shape, w.dtype
((67,), dtype('float32'))
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which is slow to import
if TYPE_CHECKING:
    from typing import Any

    from rop import check, datasets, eigen, kfac
    from rop.eigen import spectral_radius
    from rop.errors import ArgumentError, ArgumentTypeError, DeviceError, FileError, MissingPackageError, RopError
    from rop.graph import Graph, Input, Sequential
    from rop.layers import (
        GELU,
        MSE,
        NLL,
        AdaptiveAvgPool2d,
        Add,
        AvgPool2d,
        BatchNorm1d,
        BatchNorm2d,
        BCEWithLogits,
        Concat,
        Conv2d,
        CrossEntropy,
        Elementwise,
        Flatten,
        Identity,
        Layer,
        LeakyReLU,
        Linear,
        LogSoftmax,
        Loss,
        MaxPool2d,
        ReLU,
        Sigmoid,
        SiLU,
        Softmax,
        Softplus,
        Tanh,
    )
    from rop.objective import Jet, Objective, Point
    from rop.optim import SGD, Adam, SpectralRadius, convergent, cosine, inverse_epoch, power_law
    from rop.torch.export import to_torch as to_torch
    from rop.torch.trace import from_torch as from_torch
    from rop.training.run import Fit, TrainingInterrupted, TrainingStopped, evaluate, train

__version__ = "0.1.0"

__all__ = [
    # a network
    "Input",
    "Graph",
    "Sequential",
    "Layer",
    "Linear",
    "Conv2d",
    "MaxPool2d",
    "AvgPool2d",
    "AdaptiveAvgPool2d",
    "Flatten",
    "Identity",
    "Add",
    "Concat",
    "ReLU",
    "LeakyReLU",
    "Tanh",
    "Sigmoid",
    "Softplus",
    "SiLU",
    "GELU",
    "Elementwise",
    "Softmax",
    "LogSoftmax",
    "BatchNorm1d",
    "BatchNorm2d",
    # a loss
    "Loss",
    "CrossEntropy",
    "NLL",
    "MSE",
    "BCEWithLogits",
    # its derivatives
    "Objective",
    "Point",
    "Jet",
    # its curvature
    "eigen",
    "kfac",
    "spectral_radius",
    # its derivatives, checked
    "check",
    # training
    "train",
    "evaluate",
    "Fit",
    "SGD",
    "Adam",
    "SpectralRadius",
    "inverse_epoch",
    "power_law",
    "cosine",
    "convergent",
    "TrainingStopped",
    "TrainingInterrupted",
    "datasets",
    # what can go wrong
    "RopError",
    "ArgumentError",
    "ArgumentTypeError",
    "DeviceError",
    "FileError",
    "MissingPackageError",
    "__version__",
]

# Everything is loaded when it is first asked for: Numba and SciPy are slow to import, NumPy is not quick, and the
# command `rop` must be there to hear Ctrl-C before they are. What is not named here is looked for among the layers, so
# that a new line in their registry of activations is public at once.
_ON_FIRST_USE = {
    **dict.fromkeys(("Input", "Graph", "Sequential"), "rop.graph"),
    **dict.fromkeys(("Objective", "Point", "Jet"), "rop.objective"),
    **dict.fromkeys(("SGD", "Adam", "SpectralRadius"), "rop.optim"),
    **dict.fromkeys(("inverse_epoch", "power_law", "cosine", "convergent"), "rop.optim"),
    **dict.fromkeys(("train", "evaluate", "Fit", "TrainingStopped", "TrainingInterrupted"), "rop.training.run"),
    **dict.fromkeys(("RopError", "ArgumentError", "ArgumentTypeError", "DeviceError", "FileError"), "rop.errors"),
    **dict.fromkeys(("from_torch", "to_torch"), "rop.torch"),
    "MissingPackageError": "rop.errors",
    "spectral_radius": "rop.eigen",
}
_MODULES = ("check", "curvature", "datasets", "eigen", "errors", "graph", "kfac", "layers", "sklearn", "torch")
# Other libraries are not in __all__: `from rop import *` must not need them.
_OPTIONAL = ("from_torch", "to_torch", "sklearn", "torch")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"rop.{name}")
    if name in _ON_FIRST_USE:
        value = getattr(import_module(_ON_FIRST_USE[name]), name)
    elif not name.startswith("_") and name in (layers := import_module("rop.layers")).__all__:
        value = getattr(layers, name)
    else:
        raise AttributeError(f"module 'rop' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from rop.layers import ACTIVATIONS

    return sorted({*globals(), *__all__, *_OPTIONAL, *_MODULES, *ACTIVATIONS})
