"""Figures "Run Time" and "Time Breakdown": how long each method trains, and what a step of Algorithm 1 spends it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import rop
from rop.experiments import experiment
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.methods import (
    ENTROPY,
    KFAC,
    LOBPCG,
    PUBLISHED_ORDER,
    UNREGULARISED,
    VALLEY,
    Method,
    method_of,
    penalty,
)
from rop.reproduce.records import Records
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.statistics import summary
from rop.reproduce.tables import Column, Plot, Table, table_of
from rop.training.run import train

NAME = "time"
DATASETS = {"forest": 3, "usps": 10}  # measured epochs
QUICK_EPOCHS, QUICK_LIMIT = 2, 2_000
PAPER_EPOCHS = 100
POWER, TRACK = "power iteration", "power iteration, tracked"
METHODS = (UNREGULARISED, VALLEY, ENTROPY, KFAC, POWER, LOBPCG, TRACK)
PENALTIES = {
    "forest": {POWER: (0.01, 0.0), LOBPCG: (0.0028, 1.0)},
    "usps": {POWER: (0.005, 0.0), LOBPCG: (0.005, 0.0)},
}
PARTS = {  # of a step: (heading, what the paper prints)
    "power": ("power iteration, %", "75"),
    "r2": ("∇ρ, %", "15"),
    "gradient": ("∇f, %", None),
    "rest": ("update, %", None),
    "tests": ("validation, %", "5 to 10"),
}


def row(dataset: str, method: str) -> str:
    """The name of a model: the data set and the method.

    >>> row("usps", "K-FAC")
    'usps: K-FAC'
    """
    return f"{dataset}: {method}"


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """Each method on both data sets."""
    return [
        Task(
            NAME,
            row(dataset, method),
            seed,
            variant,
            {
                "dataset": dataset,
                "method": method,
                "epochs": epochs or (QUICK_EPOCHS if quick else measured),
                "limit": QUICK_LIMIT if quick else None,
            },
        )
        for seed in range(seeds)
        for variant in ("published", "corrected")
        for dataset, measured in DATASETS.items()
        for method in METHODS
    ]


def chosen(dataset: str, name: str, variant: str) -> Method:
    """A method with the settings of the paper's runs, where the unregularised one has 100 epochs.

    >>> chosen("forest", "asymmetric valley", "published").epochs, chosen("forest", "entropy-SGD", "corrected").epochs
    (250, 5)
    """
    penalties = PENALTIES[dataset]
    found = method_of(name, variant, PAPER_EPOCHS, experiment(dataset).optimizer(128), penalties)
    if name == TRACK:
        return replace(found, regularizer=penalty("corrected", *penalties[POWER], solver="track"))
    if (dataset, name, variant) == ("usps", KFAC, "published"):
        # a μ that changes nothing, but with which ρ and ∇ρ are computed in every step; with μ = 0 rop leaves them out
        return replace(found, regularizer=penalty("published", 1e-30, 0.0))
    return found


def run(task: Task, context: Context) -> Figures:
    """Trains a few epochs and takes the median time of an epoch, times the paper's number of epochs."""
    settings = task.settings
    dataset = settings["dataset"]
    data = context.dataset(dataset, settings["limit"])
    method = chosen(dataset, settings["method"], task.variant)
    order: dict[str, Any] = PUBLISHED_ORDER if (task.variant, dataset) == ("published", "forest") else {}
    fit = train(
        experiment(dataset).net("paper"),
        rop.CrossEntropy(),
        data.train,
        validation=data.validation,
        epochs=settings["epochs"],
        seed=task.seed,
        optimizer=method.optimizer,
        regularizer=method.regularizer,
        checkpoint=context.work,
        resume=True,
        profile=True,
        **order,
    )
    seconds = np.array([one["seconds"] for one in fit.history])
    epoch = float(np.median(seconds))
    parts = {**fit.profile, "tests": max(0.0, float(seconds.sum()) - sum(fit.profile.values()))}
    figures: Figures = {
        "epoch_seconds": epoch,
        "run_seconds": epoch * method.epochs,
        "hvps_per_epoch": float(np.mean([one.get("hvps", 0.0) for one in fit.history])),
    }
    if sum(fit.profile.values()) > 0:
        figures["share"] = {name: value / sum(parts.values()) for name, value in parts.items()}
    return figures


# ------------------------------------------------------------------------------------------------------ what is shown
def tables(records: Records) -> list[Table]:
    """Run times by method, and the parts of Algorithm 1's steps."""
    rule = "No model is selected: the median epoch of each run is timed."
    rows = [row(dataset, method) for dataset in DATASETS for method in METHODS]
    columns = (
        Column("epoch_seconds", "an epoch, s", 3),
        Column("run_seconds", "all epochs of the paper, s", 1),
        Column("hvps_per_epoch", "H·v products an epoch", 0),
    )
    common: dict[str, Any] = {"rule": rule, "heading": "method", "variants": ("published", "corrected")}
    printed = {f"share.{part}": text for part, (_, text) in PARTS.items() if text}
    return [
        table_of(
            records, name="run-time", title="Run time by method", columns=columns, paper={r: {} for r in rows}, **common
        ),
        table_of(
            records,
            name="time-breakdown",
            title="Where the time of Algorithm 1 goes",
            columns=[Column(f"share.{part}", heading, 1, 100) for part, (heading, _) in PARTS.items()],
            paper={row(dataset, POWER): printed for dataset in DATASETS},
            **common,
        ),
    ]


def plots(records: Records) -> list[Plot]:
    """Bars of run times on each data set."""

    def bars(dataset: str) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for shift, variant in ((-0.2, "published"), (0.2, "corrected")):
                for k, method in enumerate(METHODS):
                    values = records.where(model=row(dataset, method), variant=variant).values("run_seconds")
                    found = summary(values.values())
                    if found is not None:
                        label = variant if method == UNREGULARISED else None
                        color = "C0" if variant == "published" else "C1"
                        axes.barh(k + shift, found.median, 0.38, color=color, label=label)
            axes.set_yticks(range(len(METHODS)), METHODS)
            axes.invert_yaxis()
            axes.set(xlabel="seconds for all epochs of the paper", title=dataset)
            axes.grid(axis="x", alpha=0.3)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(frameon=False)

        return draw

    return [Plot(name, f"Run time of each method on {name}, median over runs.", bars(name)) for name in DATASETS]


def faster(dataset: str, method: str, others: tuple[str, ...]) -> list[claims.Test]:
    """The method takes less time than each of the others."""
    return [claims.lower("run_seconds", row(dataset, method), row(dataset, other)) for other in others]


PAPERS = (UNREGULARISED, VALLEY, ENTROPY, KFAC, POWER, LOBPCG)
WHERE = 'Computational Time Breakdown, Figure "Run Time"'
CLAIMS = (
    Claim(
        "The unregularised model is the fastest to train, on both data sets.",
        WHERE,
        claims.all_of([test for d in DATASETS for test in faster(d, UNREGULARISED, PAPERS[1:])]),
        "it takes less time than each of the five other methods",
    ),
    Claim(
        "Asymmetric valley is second.",
        WHERE,
        claims.all_of([test for d in DATASETS for test in faster(d, VALLEY, PAPERS[2:])]),
        "it takes less time than each of the four methods after it",
    ),
    Claim(
        "Power iteration takes the longest on forest.",
        WHERE,
        claims.all_of(
            [claims.higher("run_seconds", row("forest", POWER), row("forest", m)) for m in PAPERS if m != POWER]
        ),
        "it takes more time than each of the five other methods",
    ),
    Claim(
        "K-FAC takes the longest on USPS.",
        WHERE,
        claims.all_of([claims.higher("run_seconds", row("usps", KFAC), row("usps", m)) for m in PAPERS if m != KFAC]),
        "it takes more time than each of the five other methods",
    ),
    Claim(
        "LOBPCG trains faster than power iteration, on forest so much that it is third.",
        WHERE,
        claims.all_of(
            [
                *(claims.lower("run_seconds", row(d, LOBPCG), row(d, POWER)) for d in DATASETS),
                *faster("forest", LOBPCG, (ENTROPY, KFAC)),
            ]
        ),
        "it takes less time than power iteration on both, and than entropy-SGD and K-FAC on forest",
    ),
    Claim(
        "Three quarters of the time of Algorithm 1 go into power iteration.",
        'Computational Time Breakdown, Figure "Time Breakdown"',
        claims.all_of([claims.within("share.power", row(d, POWER), 0.70, 0.80) for d in DATASETS]),
        "the share of power iteration is between 70 and 80 % on both data sets",
    ),
    Claim(
        "About 15 % go into ∇ρ.",
        'Computational Time Breakdown, Figure "Time Breakdown"',
        claims.all_of([claims.within("share.r2", row(d, POWER), 0.10, 0.20) for d in DATASETS]),
        "the share of ∇ρ is between 10 and 20 % on both data sets",
    ),
)

EXPERIMENT = Experiment(
    name=NAME,
    title="Computational time",
    about='Figures "Run Time" and "Time Breakdown": seconds of each method on forest and USPS, and the parts of a step',
    cost="about 8 minutes a repetition, in one process; it needs a machine that is otherwise idle",
    tasks=tasks,
    run=run,
    tables=tables,
    plots=plots,
    claims=CLAIMS,
    deviations=(
        "Times are those of this implementation on this machine; only their order and their parts can be compared. The "
        "paper shows its times as bars, without numbers.",
        f"{DATASETS['forest']} epochs of forest and {DATASETS['usps']} of USPS are timed; the time of the median epoch "
        "is multiplied by 100; for the asymmetric valley by 250, or 200 without the epochs after its average; for "
        "entropy-SGD with 20 inner steps by 5.",
        "Seeds are repetitions. An epoch includes its validation.",
        "As published, K-FAC on USPS runs power iteration in every step although μ = 0; here μ is 1e-30, since "
        "rop leaves out a penalty with μ = 0.",
        "“tracked”: rop's solver that improves the eigenvector of the step before by two products; the paper has none.",
    ),
    quick=f"{QUICK_EPOCHS} epochs of {QUICK_LIMIT:,} samples, one repetition",
    seeds=3,
    jobs=1,
)
