"""Figure "USPS Gen Gap": the generalisation gap of 70 USPS models over their spectral radius."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import rop
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.digits import SEED, augmented_sets, usps_data
from rop.reproduce.experiments import usps
from rop.reproduce.measures import correct, rho_batch, rho_full
from rop.reproduce.methods import penalty
from rop.reproduce.models import Recipe, trained
from rop.reproduce.records import Records
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.statistics import rank_correlation, trend
from rop.reproduce.tables import Column, Plot, Table, table_of

NAME = "gap"
VARIANT = "corrected"
PENALISED = {  # the seven of usps, and two between them, so that ρ has no large holes
    "mu=0.0005 K=0": (0.0005, 0.0),
    "mu=0.001 K=0": (0.001, 0.0),
    "mu=0.002 K=0": (0.002, 0.0),
    **{model: pair for model, pair in usps.PENALISED.items() if model != "mu=0.001 K=0"},
}
MODELS = (usps.UNREGULARISED, *PENALISED)  # ten
SETS = ("AT1", "AT2")
COLUMNS = (
    Column("rho_batch", "rho_batch"),
    Column("rho_full", "rho_full"),
    Column("test", "test, %", 2, 100),
    *(Column(name, f"{name}, %", 2, 100) for name in SETS),
    *(Column(f"gap_{name}", f"gap on {name}, %", 2, 100) for name in SETS),
)


def recipe(model: str, seed: int, *, epochs: int = usps.EPOCHS, limit: int | None = None) -> Recipe:
    """How a model is trained: as in usps, with the μ and K of its row. Models of both are trained once.

    >>> recipe("mu=0.002 K=0", 0).regularizer.mu
    0.002
    """
    plain = usps.recipe(usps.UNREGULARISED, VARIANT, seed, epochs=epochs, limit=limit)
    return plain if model not in PENALISED else replace(plain, regularizer=penalty(VARIANT, *PENALISED[model]))


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """Ten pairs of μ and K with every seed."""
    limit: int | None = usps.QUICK["limit"] if quick else None
    budget: int = epochs or (usps.QUICK["epochs"] if quick else usps.EPOCHS)
    return [
        Task(
            NAME,
            model,
            seed,
            VARIANT,
            {**recipe(model, seed, epochs=budget, limit=limit).settings(), "budget": budget, "draw": SEED},
            1.0 if model == usps.UNREGULARISED else 8.0,
        )
        for seed in range(seeds)
        for model in MODELS
    ]


def run(task: Task, context: Context) -> Figures:
    """Trains a model and measures both ρ and the gap: accuracy on augmented over accuracy on test images, minus 1."""
    limit = task.settings["limit"]
    model = trained(recipe(task.model, task.seed, epochs=task.settings["budget"], limit=limit), context)
    data = usps_data(context, limit)
    problem = model.net, rop.CrossEntropy(), model.w, *data.train
    parts = {"test": data.test, **augmented_sets(data.test)}
    found = {name: float(correct(model.net, model.w, *part, model.state).mean()) for name, part in parts.items()}
    return {
        "rho_batch": rho_batch(*problem, usps.BATCH, model.state),
        "rho_full": rho_full(*problem, model.state),
        **found,
        **{f"gap_{name}": found[name] / found["test"] - 1 for name in SETS},
        **model.facts,
    }


# ------------------------------------------------------------------------------------------------------ what is shown
def pairs(records: Records, rho: str, gap: str) -> tuple[list[float], list[float]]:
    """ρ and gap of every model, in the same order."""
    return [record.figures[rho] for record in records], [record.figures[gap] for record in records]


def tables(records: Records) -> list[Table]:
    """The models by μ and K, with the rank correlations and the trend lines of all of them below."""
    notes = []
    for rho in ("rho_batch", "rho_full"):
        for name in SETS:
            x, y = pairs(records, rho, f"gap_{name}")
            if len(x) < 3:
                continue
            found, (slope, start) = rank_correlation(x, y), trend(x, y)
            low, high = found.interval
            notes.append(
                f"{rho} and the gap on {name}, over {len(x)} models: rank correlation {found.value:.2f} (95 % "
                f"bootstrap interval {low:.2f}, {high:.2f}); trend line {100 * start:.2f} % {100 * slope:+.3f} %·{rho}."
            )
    return [
        table_of(
            records,
            name=NAME,
            title="USPS digits: the generalisation gap of 70 models",
            rule="Model selection: the parameters of the epoch with the best validation accuracy.",
            heading="model",
            columns=COLUMNS,
            paper={model: {} for model in MODELS},
            variants=(VARIANT,),
            notes=notes,
        )
    ]


def plots(records: Records) -> list[Plot]:
    """The gap over ρ, a point for each model, with the trend line, as in the paper's figure."""

    def scatter(rho: str, gap: str) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            for k, model in enumerate(MODELS):
                x, y = pairs(records.where(model=model), rho, gap)
                axes.scatter(x, [100 * value for value in y], color=f"C{k}", s=22, label=model)
            x, y = pairs(records, rho, gap)
            if len(set(x)) > 1:
                slope, start = trend(x, y)
                ends = [min(x), max(x)]
                axes.plot(ends, [100 * (start + slope * end) for end in ends], "k:", label="trend")
            axes.set(xlabel=rho, ylabel=f"gap on {gap.removeprefix('gap_')}, %")
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))

        return draw

    return [
        Plot(
            f"{name}-{rho}".lower().replace("_", "-"),
            f"Accuracy on {name} over accuracy on the test set, minus 1, over {rho}: a point for each model and seed, "
            "and the least-squares line.",
            scatter(rho, f"gap_{name}"),
            (7.0, 4.0),
        )
        for rho in ("rho_batch", "rho_full")
        for name in SETS
    ]


WHERE = 'Results, Figure "USPS Gen Gap"'
CLAIMS = (
    *(
        Claim(
            f"Models with a larger ρ have a larger generalisation gap, here on {name} and by {rho}.",
            WHERE,
            claims.correlated(rho, f"gap_{name}", -1),
            f"over all models, the rank correlation of {rho} and the (negative) gap is negative",
        )
        for rho in ("rho_batch", "rho_full")
        for name in SETS
    ),
    Claim(
        "The larger μ, the smaller ρ.",
        'Results, text to Figure "USPS"',
        claims.all_of(
            [
                claims.lower("rho_batch", "mu=0.03 K=0", "mu=0.01 K=0"),
                claims.lower("rho_batch", "mu=0.01 K=0", "mu=0.005 K=0"),
                claims.lower("rho_batch", "mu=0.005 K=0", "mu=0.001 K=0"),
                claims.lower("rho_batch", "mu=0.001 K=0", usps.UNREGULARISED),
            ]
        ),
        "rho_batch falls from each of these μ to the next",
    ),
)

EXPERIMENT = Experiment(
    name=NAME,
    title="USPS digits: generalisation gap and spectral radius",
    about='Figure "USPS Gen Gap": ten pairs of μ and K with seven seeds, 70 models; gap on augmented images over ρ',
    cost="about 13 minutes a seed on two cores; models that usps has trained are taken from it",
    tasks=tasks,
    run=run,
    tables=tables,
    plots=plots,
    claims=CLAIMS,
    deviations=(
        "Which 70 models the paper used is not known, and there is no code for them: here are ten pairs of μ and K "
        "with seven seeds each. So there is no variant with the quirks of published code either.",
        "The paper does not say which augmented test set its figure uses; both are shown.",
        "AT1 and AT2 are one draw each, shared by all models.",
        "rho_batch is what the paper calls ρ of the full training set: the mean of ρ over its batches of 128, weighted "
        "by size. rho_full is ρ of the Hessian of the whole set.",
    ),
    quick=f"{usps.QUICK['epochs']} epochs instead of 100, {usps.QUICK['limit']} samples of each part, one seed",
    packages={"PIL": "Pillow"},
    seeds=7,
    variants=(VARIANT,),
)
