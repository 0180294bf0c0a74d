"""What an experiment is: its tasks, how one of them is run, and what is made of the records.

A *task* is one trained model: an experiment, a model (a row of its tables), a variant, a seed, and the settings that
decide its outcome. It is plain data, so its *digest* tells it apart from the same model with other settings, and its
*key* names its record and its working folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rop import datasets
from rop.arguments import check_choice, check_int
from rop.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from rop.reproduce.claims import Claim
    from rop.reproduce.records import Records
    from rop.reproduce.tables import Plot, Table

__all__ = ["Context", "Experiment", "Task", "VARIANTS"]

# published: with the quirks of the published code; corrected: what the paper describes; plain: as corrected, on the net
# with untied layers and logits as outputs
VARIANTS = ("published", "corrected", "plain")

Figures = dict[str, Any]  # JSON-able: numbers, and lists and dicts of numbers


@dataclass(frozen=True)
class Task:
    """One model of an experiment with one seed.

    Args:
        experiment: its name.
        model: the row of the tables, such as "mu=0.01 K=0".
        seed: of the initial weights, the order of the samples and whatever else is drawn.
        variant: one of VARIANTS.
        settings: everything else that decides the outcome, JSON-able: epochs, batch size, subset of the data, …
        weight: about how long it takes, relative to other tasks; it is used for the time left only.

    >>> task = Task("forest", "mu=0.01 K=0", 3, "published", {"epochs": 100})
    >>> task.key
    'mu-0.01-k-0-published-9ca4947f-seed3'
    >>> task.key == Task("forest", "mu=0.01 K=0", 3, "published", {"epochs": 20}).key
    False
    """

    experiment: str
    model: str
    seed: int
    variant: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight: float = field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        check_int("Task", "seed", self.seed, minimum=0)
        check_choice("Task", "variant", self.variant, VARIANTS)
        try:
            plain = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(f"Task: settings must be JSON-able, got {self.settings!r}: {error}") from error
        object.__setattr__(self, "settings", plain)  # tuples become lists, as they come back from a record

    @cached_property
    def digest(self) -> str:
        """A digest of everything but the seed: records with the same digest may be compared with each other."""
        return digest([self.experiment, self.model, self.variant, self.settings])

    @property
    def key(self) -> str:
        """The name of the record and of the working folder."""
        return f"{slug(self.model)}-{self.variant}-{self.digest}-seed{self.seed}"

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.model}, {self.variant}, seed {self.seed}"


def digest(value: Any) -> str:
    """A short digest of JSON-able data that does not depend on the order of its names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def slug(text: str) -> str:
    """A text as a part of a file name.

    >>> slug("Asym. valley (SWA)")
    'asym.-valley-swa'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True)
class Context:
    """What a running task may use of the world.

    Args:
        out: the folder of the whole reproduction; experiments share trained models in it.
        work: the folder of this task alone, in which its checkpoint is kept until it is finished.
        data: the folder with the publishers' files; None for $ROP_DATA.
        load: the function that loads a data set by name, ``rop.datasets.load``; tests give another one. It is sent to
            other processes, so it must be a function of a module.
    """

    out: Path
    work: Path
    data: str | None = None
    load: Callable[..., Any] = datasets.load

    def dataset(self, name: str, limit: int | None = None, **options: Any) -> datasets.DataSet:
        """A data set, with at most ``limit`` samples in each part, its first ones. A process loads it once."""
        key = (self.load, name, self.data, json.dumps(options, sort_keys=True))
        if key not in _LOADED:
            _LOADED.clear()  # one at a time: some are large
            _LOADED[key] = self.load(name, self.data, **options)
        found = _LOADED[key]
        if limit is None:
            return found
        train, validation, test = ((x[:limit], y[:limit]) for x, y in (found.train, found.validation, found.test))
        return datasets.DataSet(found.name, train, validation, test, found.classes, found.labels)


_LOADED: dict[Any, datasets.DataSet] = {}


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, or several that share their models.

    Args:
        name: as ``rop reproduce`` takes it.
        title: for headings.
        about: what it runs, in a sentence.
        cost: about how long one seed takes, in words, and on which machine.
        tasks: tasks(seeds, quick, epochs) -> all tasks; epochs None stands for the paper's. ``quick`` tasks take two
            minutes together and have one seed.
        run: run(task, context) -> figures, a JSON-able dict; it may be stopped and started again at any moment.
        tables, plots: made of records.
        claims: what the paper says about it, each with the test that decides it.
        deviations: differences from the paper, a sentence each; every table ends with them.
        quick: what --quick leaves out, a sentence.
        packages: what it needs besides the core, as {module: name on PyPI}.
        seeds: how many by default.
        variants: those for which claims are decided.
        jobs: processes by default; None: one for each core. Timings need a quiet machine: 1.
    """

    name: str
    title: str
    about: str
    cost: str
    tasks: Callable[[int, bool, int | None], list[Task]]
    run: Callable[[Task, Context], Figures]
    tables: Callable[[Records], list[Table]]
    claims: tuple[Claim, ...]
    deviations: tuple[str, ...]
    quick: str
    plots: Callable[[Records], list[Plot]] | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 5
    variants: tuple[str, ...] = ("published", "corrected")
    jobs: int | None = None

    def checked_tasks(self, seeds: int | None, quick: bool, epochs: int | None) -> list[Task]:
        """The tasks, refused if two of them would write the same record."""
        found = self.tasks(1 if quick else check_int(self.name, "seeds", seeds or self.seeds), quick, epochs)
        if len({task.key for task in found}) != len(found):
            raise ArgumentError(f"{self.name}: expected tasks with keys of their own, got the same key twice")
        return found


def tasks_for(
    experiment: str, models: Sequence[str], variants: Sequence[str], seeds: int, settings: Mapping[str, Any]
) -> list[Task]:
    """All models in all variants, seed by seed, so that tables fill evenly.

    >>> [task.label for task in tasks_for("gap", ["a", "b"], ["corrected"], 2, {})][:3]
    ['a, corrected, seed 0', 'b, corrected, seed 0', 'a, corrected, seed 1']
    """
    return [
        Task(experiment, model, seed, variant, settings)
        for seed in range(seeds)
        for variant in variants
        for model in models
    ]
