"""Engines: each computes the same works on the same problem, in the form that suits it best.

A work is a method that runs once and returns when the result is there. It takes the number of the repetition, because
repetitions alternate between two points and two directions: what an engine may keep is said by the work, not by luck.

    grad        loss, ∇f                        at a fresh w
    hvp         H v                             for a fresh v at a fixed w, whatever can be kept of w being kept
    jet         loss, ∇f, H v, vᵀ∇H v           at a fresh w
    at_hvp_r2   the same by three calls         (rop only: f.at(w), .hvp(v), .r2(v))

An engine may have several ways to do a work; all of them are checked and the fastest one counts.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..problems import Data, Problem

WORKS = {
    "grad": "loss+grad",
    "hvp": "Hv, base kept",
    "jet": "loss+grad+Hv+R²",
    "at_hvp_r2": "the same as at, hvp, r2",
}
RETURNS = {  # the quantities of each work
    "grad": ("loss", "grad"),
    "hvp": ("hvp",),
    "jet": ("loss", "grad", "hvp", "r2"),
    "at_hvp_r2": ("loss", "grad", "hvp", "r2"),
}
ENGINES = {  # name → class, and the module it needs
    "rop": ("rop_engine.Rop", "rop"),
    "torch": ("torch_engine.Torch", "torch"),
    "torch.func": ("torch_func_engine.TorchFunc", "torch"),
    "jax": ("jax_engine.Jax", "jax"),
}


class Engine:
    """What worker.py asks of an engine. A subclass has `prepare` and one method per way of doing a work."""

    #: work → the names of the methods that do it
    ways: dict[str, tuple[str, ...]] = {"grad": ("grad",), "hvp": ("hvp",), "jet": ("jet",)}

    #: what `hvp` keeps of its point
    kept: Any = None

    def __init__(self, threads: int):
        self.threads = threads

    @staticmethod
    def versions() -> dict[str, str]:
        raise NotImplementedError

    def prepare(self, problem: Problem, batch: int, dtype: str, data: Data) -> None:
        raise NotImplementedError

    def run(self, way: str, repetition: int) -> Any:
        return getattr(self, way)(repetition)

    def forget(self) -> None:
        """Let go of what is kept between calls."""
        self.kept = None

    def flat(self, quantity: Any) -> np.ndarray:
        """One quantity of a result, as one flat float64 array."""
        return np.asarray(quantity, dtype=np.float64).ravel()

    def answer(self, work: str, way: str) -> dict[str, np.ndarray]:
        """Every quantity of the work, at the first point and direction."""
        result = self.run(way, 0)
        result = result if len(RETURNS[work]) > 1 else (result,)
        return {name: self.flat(quantity) for name, quantity in zip(RETURNS[work], result, strict=True)}


def missing(name: str) -> str | None:
    """The module that an engine lacks, if any; nothing is imported."""
    module = ENGINES[name][1]
    return None if find_spec(module) else module


def make(name: str, threads: int) -> Engine:
    module, kind = ENGINES[name][0].split(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(threads)
