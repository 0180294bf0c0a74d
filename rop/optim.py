"""Optimizers, schedules and the spectral-radius penalty: what a training run is told, as plain data.

A schedule is a number, or a function of k and epoch: k (an array) numbers the steps of that epoch, counted from 1 since
the beginning of the run. It returns an array like k, or one number for the whole epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rop.arguments import as_array, check_bool, check_choice, check_float, check_function, check_int
from rop.errors import ArgumentError, ArgumentTypeError

Schedule = float | Callable[[np.ndarray, int], Any]


@dataclass(frozen=True)
class inverse_epoch:
    """start / epoch, the paper's learning rate for forest.

    >>> inverse_epoch(0.5)(np.arange(1, 4), epoch=5)
    0.1
    """

    start: float

    def __post_init__(self) -> None:
        check_float("inverse_epoch", "start", self.start, minimum=0)

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        return self.start / epoch


@dataclass(frozen=True)
class power_law:
    """start / (1 + (k − 1) / scale)^power at step k.

    >>> power_law(1.0, power=0.5)(np.array([1, 4, 100]), epoch=1).tolist()
    [1.0, 0.5, 0.1]
    """

    start: float
    power: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_float("power_law", "start", self.start, minimum=0)
        check_float("power_law", "power", self.power)
        check_float("power_law", "scale", self.scale, positive=True)

    def __call__(self, k: np.ndarray, epoch: int) -> np.ndarray:
        return self.start / (1 + (k - 1) / self.scale) ** self.power


@dataclass(frozen=True)
class cosine:
    """From start down to 0 after so many epochs, along half a cosine; one value per epoch.

    >>> cosine(1.0, epochs=4)(np.arange(1, 9), epoch=3)
    0.5
    """

    start: float
    epochs: int

    def __post_init__(self) -> None:
        check_float("cosine", "start", self.start, minimum=0)
        check_int("cosine", "epochs", self.epochs)

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        return round(self.start * (1 + math.cos(math.pi * min(1.0, (epoch - 1) / self.epochs))) / 2, 15)


def convergent(
    lr: float, tol: float, p: float = 0.75, q: float = 0.5, scale: float = 1.0
) -> tuple[power_law, power_law]:
    """Schedules α_k ~ lr·k^(−p) and ε_k ~ tol·k^(−q) of learning rate and tolerance (see power_law) under which the
    paper's theorem promises ‖∇g‖ → 0: Σ α_k = ∞, Σ α_k² < ∞ and Σ ε_k α_k < ∞, that is ½ < p ≤ 1 and p + q > 1.

    >>> rate, tolerance = convergent(0.1, 0.01)
    >>> float(rate(np.array([16]), 1)[0]), float(tolerance(np.array([16]), 1)[0])
    (0.0125, 0.0025)
    """
    if not 0.5 < check_float("convergent", "p", p) <= 1:
        raise ArgumentError(
            f"convergent: expected 1/2 < p <= 1, so that the sum of the learning rates diverges and "
            f"that of their squares does not, got p = {p}"
        )
    if not p + check_float("convergent", "q", q) > 1:
        raise ArgumentError(
            f"convergent: expected p + q > 1, so that tolerance times learning rate can be summed, got p = {p}, q = {q}"
        )
    return power_law(lr, p, scale), power_law(tol, q, scale)


SCHEDULES = {schedule.__name__: schedule for schedule in (inverse_epoch, power_law, cosine)}


def values(schedule: Schedule, k: np.ndarray, epoch: int, owner: str) -> np.ndarray:
    """A schedule at the steps k of an epoch, as float64, checked."""
    result = as_array(owner, schedule(k, epoch) if callable(schedule) else schedule, "numbers from its schedule")
    if result.dtype.kind not in "fiu":
        raise ArgumentTypeError(
            f"{owner}: expected a schedule that returns numbers, got {result[()]!r:.60} "
            f"({result.dtype}) in epoch {epoch}"
        )
    result = result.astype(np.float64)
    if result.shape not in ((), k.shape):
        raise ArgumentError(
            f"{owner}: expected a schedule that returns one number, or one for each of the {k.size} "
            f"steps it is given, got shape {result.shape}"
        )
    if not (np.isfinite(result).all() and (result >= 0).all()):
        raise ArgumentError(
            f"{owner}: expected finite numbers of at least 0 from its schedule, got "
            f"{result.min():g} to {result.max():g} in epoch {epoch}"
        )
    return np.broadcast_to(result, k.shape)


def describe(value: Any) -> Any:
    """Settings as JSON: dataclasses become {"is": name, ...}; a function of the user's becomes its name."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) or not hasattr(value, "__dataclass_fields__"):
        return getattr(value, "__qualname__", repr(value)) if callable(value) else value
    return {"is": type(value).__name__, **{f.name: describe(getattr(value, f.name)) for f in fields(value)}}


def completed(value: Any) -> Any:
    """What describe said, with what an earlier version had no name for: before SpectralRadius had a ``limit``, only
    "track" kept to one, of 0.5. A run that was begun like that goes on like that.

    >>> completed({"is": "SpectralRadius", "mu": 0.1, "solver": "power"})["limit"] is None
    True
    """
    if isinstance(value, dict) and value.get("is") == "SpectralRadius" and "limit" not in value:
        return {**value, "limit": 0.5 if value.get("solver") == "track" else None}
    return value


def revive(value: Any) -> Any:
    """The opposite of describe, for optimizers, regularizers and schedules of this file."""
    if not isinstance(value, dict):
        return value
    value = completed(value)
    kinds: dict[str, Any] = {**SCHEDULES, "SGD": SGD, "Adam": Adam, "SpectralRadius": SpectralRadius}
    if value.get("is") not in tuple(kinds):
        raise ArgumentError(f'settings: expected one of {", ".join(kinds)} as "is", got {value.get("is")!r}')
    given = {name: revive(part) for name, part in value.items() if name != "is"}
    if isinstance(given.get("betas"), list):
        given["betas"] = tuple(given["betas"])
    try:
        return kinds[value["is"]](**given)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        names = ", ".join(f.name for f in fields(kinds[value["is"]]))
        raise ArgumentError(f"settings: {value['is']} has the settings {names}, got {', '.join(given)}") from error


def _check_schedule(owner: str, name: str, value: Any) -> None:
    """A number from 0 up, or a function of k and epoch, whose results are checked when it is called."""
    if callable(value):
        check_function(owner, name, value, "k and epoch", 2)
    else:
        check_float(owner, name, value, minimum=0)


@dataclass(frozen=True)
class SGD:
    """w ← w − lr·(p, or its momentum), with torch's meaning of the settings; p = ∇f + μ∇ρ + weight_decay·w.

    >>> SGD(lr=0.1, momentum=0.9, nesterov=True).momentum
    0.9
    """

    lr: Schedule = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_schedule("SGD", "lr", self.lr)
        if not 0 <= check_float("SGD", "momentum", self.momentum) < 1:
            raise ArgumentError(
                f"SGD: momentum must lie in [0, 1), got {self.momentum}; with 1 no step is ever forgotten, 0.9 is usual"
            )
        check_float("SGD", "weight_decay", self.weight_decay, minimum=0)
        if check_bool("SGD", "nesterov", self.nesterov) and self.momentum == 0:
            raise ArgumentError("SGD: nesterov needs momentum, got momentum = 0; give momentum=0.9, say")


@dataclass(frozen=True)
class Adam:
    """Adam with torch's meaning of the settings.

    >>> Adam().lr
    0.001
    """

    lr: Schedule = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_schedule("Adam", "lr", self.lr)
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2):
            raise ArgumentTypeError(f"Adam: expected betas as a pair of numbers, got {self.betas!r}")
        for beta in self.betas:
            if not 0 <= check_float("Adam", "betas", beta) < 1:
                raise ArgumentError(f"Adam: expected betas in [0, 1), got {self.betas}")
        check_float("Adam", "eps", self.eps, positive=True)
        check_float("Adam", "weight_decay", self.weight_decay, minimum=0)


Optimizer = SGD | Adam
SOLVERS = ("power", "track", "lanczos", "lobpcg", "paper_lobpcg")


@dataclass(frozen=True)
class SpectralRadius:
    """The penalty μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of the batch's loss.

    Args:
        mu: its weight, a number or a schedule.
        K: what ρ may be for free.
        solver: how the dominant eigenpair is found. "power": Algorithm 1. "track": the eigenvector of the step before,
            improved by just ``products`` products. Where it makes no sense, ‖Hv − λv‖ > |λ|, the step goes without the
            penalty. "lanczos", "lobpcg", "paper_lobpcg" (Algorithm 2): see rop.eigen; their steps return to Python.
        tol: tolerance, a number or a schedule; see ``stop``.
        stop: "relative": ‖Hv − λv‖ ≤ tol·|λ|; "paper": ‖Hv − λv‖ ≤ tol, or |λ| changed by less than tol·|λ|.
        maxiter: most iterations per step.
        warm_start: start from the eigenvector of the step before, not from a random one.
        clip: longest ∇ρ; None for any length.
        limit: the part of ρ that one step may take away, to first order: ∇ρ is shortened to α μ ‖∇ρ‖² ≤ limit·ρ, α the
            learning rate, lest a sudden ρ throw w into a corner where all gradients vanish. None: no such limit, which
            is Algorithm 1 to the letter.
        products: number of products per step of "track".
        refresh: steps after which "paper_lobpcg" makes its K-FAC preconditioner anew (the paper's b).

    >>> SpectralRadius(mu=0.01).solver
    'power'
    """

    mu: Schedule = 0.01
    K: float = 0.0
    solver: str = "power"
    tol: Schedule = 1e-3
    stop: str = "paper"
    maxiter: int = 100
    warm_start: bool = True
    clip: float | None = None
    products: int = 2
    refresh: int = 4
    limit: float | None = 0.5

    def __post_init__(self) -> None:
        owner = "SpectralRadius"
        _check_schedule(owner, "mu", self.mu)
        check_float(owner, "K", self.K)
        check_choice(owner, "solver", self.solver, SOLVERS)
        _check_schedule(owner, "tol", self.tol)
        check_choice(owner, "stop", self.stop, ("paper", "relative"))
        check_int(owner, "maxiter", self.maxiter)
        check_bool(owner, "warm_start", self.warm_start)
        if self.clip is not None:
            check_float(owner, "clip", self.clip, positive=True)
        if self.limit is not None:
            check_float(owner, "limit", self.limit, positive=True)
        check_int(owner, "products", self.products)
        check_int(owner, "refresh", self.refresh)
        if self.solver == "track" and not self.warm_start:
            raise ArgumentError(
                "SpectralRadius: solver 'track' follows the eigenvector from step to step, got "
                "warm_start=False; use solver='power'"
            )

    @property
    def compiled(self) -> bool:
        """Whether whole epochs can run in compiled code."""
        return self.solver in ("power", "track")


def check_settings(owner: str, optimizer: Any, regularizer: Any) -> None:
    """An optimizer and a penalty, or none, of this file. They are plain data: a subclass would be taken for its parent.

    >>> check_settings("train", SGD(), None)
    """
    for value, kinds, name in (
        (optimizer, (SGD, Adam), "optimizer=rop.SGD(...) or rop.Adam(...)"),
        (regularizer, (SpectralRadius, type(None)), "regularizer=rop.SpectralRadius(...)"),
    ):
        if type(value) not in kinds:
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            if isinstance(value, kinds):
                got += ", a subclass, whose changes no step would see"
            raise ArgumentTypeError(f"{owner}: expected {name}, got {got}")
