"""Trained models, which experiments share: the same recipe is trained once in a folder of results.

A ``Recipe`` is everything that decides what a trained net is. Its description is JSON-able and stands in the settings
of tasks; its digest names the file of the weights in the folder ``models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import rop
from rop import optim
from rop.datasets import DataSet
from rop.experiments import EXPERIMENTS
from rop.graph import Graph
from rop.layers.loss import Loss
from rop.optim import Optimizer, Penalty
from rop.reproduce.densenet import densenet
from rop.reproduce.shared import made_once
from rop.reproduce.spec import Context, digest
from rop.training import checkpoint as files
from rop.training.run import train

__all__ = ["Recipe", "Trained", "trained"]


@dataclass(frozen=True)
class Recipe:
    """How a net is trained.

    Args:
        dataset: its name in rop.datasets, which also says the net.
        setting: of the net, "paper" or "plain"; see rop/experiments/nets.py.
        optimizer, regularizer, epochs, batch_size, seed, order, partial_batch: as for rop.train.
        select: keep the parameters of the epoch with the best validation accuracy, not those of the last epoch.
        limit: train on so many samples only; None: on all.
        options: of the data set; None: those of rop.experiments.
        start: the net to start from, by its own recipe; None: initial weights by the seed.
        densenet: arguments of densenet(), for chest X-rays only.
    """

    dataset: str
    optimizer: Optimizer
    regularizer: Penalty | None
    epochs: int
    batch_size: int
    seed: int
    setting: str = "paper"
    order: str = "shuffled"
    partial_batch: bool = False
    select: bool = True
    limit: int | None = None
    options: Mapping[str, Any] | None = None
    start: Recipe | None = None
    densenet: Mapping[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """Everything but the seed, for the settings of a task."""
        later = {  # named where they are used: digests of other recipes stay what they were
            "options": None if self.options is None else dict(self.options),
            "start": None if self.start is None else self.start.settings(),
            "densenet": None if self.densenet is None else dict(self.densenet),
        }
        return {
            "dataset": self.dataset,
            "setting": self.setting,
            "optimizer": optim.describe(self.optimizer),
            "regularizer": optim.describe(self.regularizer),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "order": self.order,
            "partial_batch": self.partial_batch,
            "select": self.select,
            "limit": self.limit,
            **{name: value for name, value in later.items() if value is not None},
        }

    @property
    def net(self) -> Graph:
        if self.dataset == "chest":
            return densenet(**self.densenet or {})
        return EXPERIMENTS[self.dataset].net(self.setting)

    @property
    def loss(self) -> Loss:
        return rop.BCEWithLogits() if self.dataset == "chest" else rop.CrossEntropy()

    def data(self, context: Context) -> DataSet:
        """What it is trained on."""
        usual = {} if self.dataset == "chest" else EXPERIMENTS[self.dataset].options
        return context.dataset(self.dataset, self.limit, **(usual if self.options is None else self.options))


@dataclass(frozen=True)
class Trained:
    """A trained net, and what its training took."""

    net: Graph
    w: np.ndarray
    state: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]  # best_epoch, epochs, collapsed, hvps, training_seconds, relative_residual


def trained(recipe: Recipe, context: Context) -> Trained:
    """The net of a recipe: from the folder of models, or trained now, going on from the checkpoint in ``context.work``
    if there is one."""
    net = recipe.net
    path = context.out / "models" / f"{recipe.dataset}-{digest([recipe.settings(), recipe.seed, rop.__version__])}.npz"
    forms = {"w": ((net.size,), "float32")}
    forms |= {f"state/{name}": (value.shape, "float32") for name, value in net.init_state().items()}
    made_once(path, lambda: _make(recipe, net, path, context))
    facts, arrays = files.load(path, lambda meta: forms)
    return Trained(net, arrays["w"], _state(arrays), facts["facts"])


def _make(recipe: Recipe, net: Graph, path: Path, context: Context) -> None:
    """Trains a net and keeps it."""
    start = None
    if recipe.start is not None:
        start = trained(recipe.start, replace(context, work=context.work / "start"))
    found = _train(recipe, net, recipe.data(context), context.work, start)
    arrays = {"w": found.w, **{f"state/{name}": value for name, value in found.state.items()}}
    files.save(path, {"facts": dict(found.facts)}, arrays)


def _train(recipe: Recipe, net: Graph, data: DataSet, work: Path, start: Trained | None) -> Trained:
    fit = train(
        net,
        recipe.loss,
        data.train,
        w=None if start is None else start.w,
        state=None if start is None else start.state,
        validation=data.validation if recipe.select else None,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        optimizer=recipe.optimizer,
        regularizer=recipe.regularizer,
        checkpoint=work,
        resume=True,
        **_order(recipe),
    )
    facts = {
        "best_epoch": fit.best_epoch,
        "epochs": len(fit.history),
        "collapsed": bool(fit.collapsed),
        "hvps": sum(int(row.get("hvps", 0)) for row in fit.history),
        "training_seconds": round(sum(row["seconds"] for row in fit.history), 3),
    }
    last = fit.history[-1]
    if last.get("rho"):
        facts["relative_residual"] = last["residual"] / last["rho"]
    return Trained(net, fit.w, fit.state, facts)


def _order(recipe: Recipe) -> dict[str, Any]:
    """The order of samples, named where it is not the usual one."""
    usual = recipe.order == "shuffled" and not recipe.partial_batch
    return {} if usual else {"order": recipe.order, "partial_batch": recipe.partial_batch}


def _state(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("state/"): value for name, value in arrays.items() if name.startswith("state/")}
