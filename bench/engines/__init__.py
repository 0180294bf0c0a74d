"""Engines: each computes the same works on the same problem, in the form that suits it best.

A work is a method that runs once and returns when its result is complete. It takes the number of the repetition,
because repetitions alternate between two points and two directions: an engine can reuse only what the work allows.

    grad         loss, ∇f                        at a fresh w
    hvp          H v                             for a fresh v at a fixed w, whose base pass may be kept
    hvp_block    H v for a block of 8 v          the same, together; times are per vector
    jet          loss, ∇f, H v, vᵀ∇H v           at a fresh w
    at_hvp_r2    the same by three calls         (rop only: f.at(w), .hvp(v), .r2(v))
    step         one step of Algorithm 1         from a fresh w and v, in compiled code where the engine can
    step_python  the same, the loop in Python    (rop only: f.at(w), ten .hvp(v), .r2(v))
    epoch        plain SGD over all rows         in a fresh order; only for problems that say how many rows they have
    penalised    steps of Algorithm 1 over rows  the same, 300 steps at most, each from the last u/‖u‖ of the one before

A step is, with μ, K and rate from `Step`: loss and g = ∇f(w); ten times u = H v, λ = uᵀv, each but the first after
v ← u/‖u‖; r = vᵀ∇H v with the v of the last product; p = g + μ·sign(λ)·1[|λ| > K]·r; w′ = w − rate·p. It gives
(loss, λ, w′, v). An epoch gives the mean loss of its steps and the last w, w′. Answers are compared by (w − w′)/rate
instead of w′, because a large ‖w‖ would hide an error in p.

A problem says whether batchnorm uses the statistics of the batch or running ones, which `Problem.running` draws.
Torch's own batchnorm has a wrong third derivative in training mode, so torch and JAX write it out there; in evaluation
mode torch does jets both ways.

An engine may have several ways to do a work; all of them are checked, and the one with the best median counts.

    parts.py         torch and JAX: vectors as lists of arrays
    layers.py        torch and JAX: the walk over a problem's layers
    *_layers.py      how each of them computes a layer
    jax_products.py  the functions that JAX compiles
    *_engine.py      the engines; cuda_engines.py has those for a GPU
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from rop.errors import ArgumentError

from ..problems import BLOCK, Data, Epoch, Problem

WORKS = {
    "grad": "loss+grad",
    "hvp": "Hv, base kept",
    "hvp_block": f"Hv, each of {BLOCK}",
    "jet": "loss+grad+Hv+R²",
    "at_hvp_r2": "the same as at, hvp, r2",
    "step": "step, 10 power iterations",
    "step_python": "the same, loop in Python",
    "epoch": "SGD epoch",
    "penalised": "epoch of such steps",
}
RETURNS = {  # the quantities of each work
    "grad": ("loss", "grad"),
    "hvp": ("hvp",),
    "hvp_block": ("block",),
    "jet": ("loss", "grad", "hvp", "r2"),
    "at_hvp_r2": ("loss", "grad", "hvp", "r2"),
    "step": ("loss", "eigenvalue", "p", "v"),
    "step_python": ("loss", "eigenvalue", "p", "v"),
    "epoch": ("loss", "p"),
    "penalised": ("loss", "p"),
}
EPOCHS = {"epoch": 0, "penalised": 300}  # works over many batches → the largest number of steps; 0: no limit
SAME = {"at_hvp_r2": "jet", "step_python": "step"}  # works that only rop has → works with the same results
UNITS = {"hvp_block": BLOCK}  # units of the work in a call; times are per unit
ENGINES = {  # name → class, and the module it needs
    "rop": ("rop_engine.Rop", "rop"),
    "torch": ("torch_engine.Torch", "torch"),
    "torch.func": ("torch_func_engine.TorchFunc", "torch"),
    "jax": ("jax_engine.Jax", "jax"),
}
ON_CUDA = {"rop": "cuda_engines.RopCuda", "torch": "cuda_engines.TorchCuda"}  # those that can use a GPU


Kept = TypeVar("Kept")


class Step:
    """The settings of `step` and `epoch`."""

    ITERATIONS = 10
    MU = 0.01
    K = 0.0
    RATE = 0.1


class Engine:
    """The interface that worker.py calls. A subclass has `prepare` and one method per way of doing a work."""

    #: work → the names of the methods that do it
    ways: dict[str, tuple[str, ...]] = {}

    #: the number of rows in the data of an epoch, and of steps over them
    rows, steps = 0, 0

    def __init__(self, threads: int):
        self.threads = threads
        self.kept: dict[str, Any] = {}

    @staticmethod
    def versions() -> dict[str, str]:
        raise NotImplementedError

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        self.problem, self.batch, self.dtype, self.given = problem, batch, dtype, data
        self.forget()

    def tune(self, work: str) -> None:
        """Measurements that an engine makes for itself, before the first call of a work is timed."""

    def run(self, way: str, repetition: int) -> Any:
        return getattr(self, way)(repetition)

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """The value that `make` returned at the first call with this name."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def forget(self) -> None:
        """Release everything that `keep` holds."""
        self.kept = {}

    def epoch_data(self) -> Epoch:
        return self.keep("epoch data", lambda: self.problem.epoch(self.rows, self.dtype))

    def order(self, repetition: int) -> np.ndarray:
        """The indices of the rows of an epoch in their order, without a last partial batch."""
        return self.epoch_data().orders[repetition % 2][: self.steps * self.batch]

    def flat(self, quantity: Any) -> np.ndarray:
        """One quantity of a result, as one flat float64 array."""
        return np.asarray(quantity, dtype=np.float64).ravel()

    def vectors(self, result: Any) -> np.ndarray:
        """The result of `hvp_block`, one vector after the other."""
        raise NotImplementedError

    def quantities(self, work: str, result: Any) -> dict[str, np.ndarray]:
        """Every quantity of the work, from a result at the first point and direction."""
        if work == "hvp_block":
            return {"block": self.vectors(result)}
        result = result if len(RETURNS[work]) > 1 else (result,)
        named = {name: self.flat(quantity) for name, quantity in zip(RETURNS[work], result, strict=True)}
        if "p" in named:
            named["p"] = (self.given.points[0].astype(np.float64) - named["p"]) / Step.RATE
        return named


def missing(name: str) -> str | None:
    """The module that an engine lacks, if any; nothing is imported."""
    module = ENGINES[name][1]
    return None if find_spec(module) else module


def make(name: str, threads: int, device: str = "cpu") -> Engine:
    known = {"cpu": {engine: kind for engine, (kind, _) in ENGINES.items()}, "cuda": ON_CUDA}
    if device not in known or name not in known[device]:
        there = "; ".join(f"{', '.join(engines)} on {place}" for place, engines in known.items())
        raise ArgumentError(f"bench: expected an engine and a device of these: {there}; got {name!r} on {device!r}")
    module, kind = known[device][name].split(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(threads)
