"""Made-up data sets in the form of the real ones, and a made-up experiment, for the tests of `rop reproduce`. Functions
stand in this module because other processes import them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from rop.datasets import DataSet
from rop.errors import ArgumentError
from rop.experiments.data.chest import FINDINGS
from rop.experiments.dataset import part
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.records import Record, Records
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.tables import Column, Plot, Table, table_of


def load(name: str, data: Any = None, **options: Any) -> DataSet:
    """A small data set with the shapes of the real one, whose classes can be learned."""
    rng = np.random.default_rng(len(name))
    if name == "chest":
        return chest(rng, 40 if options.get("source") == "nih" else 12)
    shape, classes = {"forest": ((54,), 7), "usps": ((1, 16, 16), 10), "mnist": ((1, 16, 16), 10)}[name]
    directions = rng.standard_normal((int(np.prod(shape)), classes))

    def made(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((count, *shape))
        return part(x, (x.reshape(count, -1) @ directions).argmax(axis=1))

    train = 520 if name == "forest" else 140  # forest is also trained with batches of 512
    return DataSet(name, made(train), made(130), made(150), classes)


def chest(rng: np.random.Generator, count: int) -> DataSet:
    """Images with 14 findings, each of which is present in some image of every part, absent or unknown in others."""

    def made() -> tuple[np.ndarray, np.ndarray]:
        y = (rng.random((count, 14)) < 0.4).astype(np.float32)
        y[:3] = np.array([[1.0], [0.0], [np.nan]])
        return part(rng.standard_normal((count, 1, 64, 64)), y)

    return DataSet("chest", made(), made(), made(), 14, FINDINGS)


def record(model: str, seed: int, variant: str = "corrected", **figures: Any) -> Record:
    """A record of a task that was never run."""
    return Record(Task("made-up", model, seed, variant), figures, 1.0, {"rop": "0"}, "a CPU")


def records(variant: str = "corrected", **models: list[float]) -> Records:
    """Records of a figure ``score``, a list over seeds for each model."""
    return Records(
        record(model, seed, variant, score=value)
        for model, values in models.items()
        for seed, value in enumerate(values)
    )


def run(task: Task, context: Context) -> Figures:
    """A task that takes as long as its settings say, or fails."""
    if task.settings.get("fails"):
        raise ArgumentError("made-up: it was asked to fail")
    context.work.mkdir(parents=True, exist_ok=True)
    time.sleep(task.settings.get("seconds", 0.0))
    return {"score": len(task.model) + 0.1 * task.seed}


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    return [
        Task("made-up", model, seed, variant, {"epochs": epochs, "quick": quick})
        for seed in range(seeds)
        for variant in ("published", "corrected")
        for model in ("one", "three")
    ]


def tables(records: Records) -> list[Table]:
    paper = {"one": {"score": "3.14"}, "three": {}}
    return [
        table_of(
            records,
            name="scores",
            title="Scores & more",
            rule="Model selection: none.",
            heading="model",
            columns=[Column("score", "score, %", 1)],
            paper=paper,
            variants=("published", "corrected"),
        )
    ]


def plots(records: Records) -> list[Plot]:
    return [Plot("score", "Scores by seed.", lambda axes: axes.plot(sorted(records.values("score").values())))]


EXPERIMENT = Experiment(
    name="made-up",
    title="A made-up experiment",
    about="nothing",
    cost="nothing",
    tasks=tasks,
    run=run,
    tables=tables,
    plots=plots,
    claims=(Claim("Three is more than one.", "nowhere", claims.higher("score", "three", "one"), "it beats it"),),
    deviations=("It is made up, by 100 %.",),
    quick="it is quick anyway",
)


# ------------------------------------------------------------------------------------------- functions for the runner
def double(number: int) -> int:
    return 2 * number


def fail_at_two(number: int) -> int:
    if number == 2:
        raise ValueError("two is too much")
    return number


def threads_of(number: int) -> int:
    import numba

    return numba.get_num_threads() if number else 0


def note(task: tuple[str, float]) -> str:
    """Writes a file when it begins, waits, and writes another when it was interrupted or has ended."""
    folder, seconds = Path(task[0]), task[1]
    (folder / "begun").touch()
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
        raise
    (folder / "ended").touch()
    return folder.name
