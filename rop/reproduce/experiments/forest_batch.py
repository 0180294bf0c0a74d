"""Table "Forest Batch": the forest net with μ = 0.01 and K = 0, trained with batches of 32 to 512."""

from __future__ import annotations

from itertools import pairwise

import rop
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.experiments import forest
from rop.reproduce.measures import rho_batch
from rop.reproduce.models import trained
from rop.reproduce.records import Records
from rop.reproduce.shift import DRAWS
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.tables import Column, Table, table_of

NAME = "forest-batch"
SIZES = (32, 64, 128, 256, 512)
COMMON = 128
MODELS = {f"batch {size}": size for size in SIZES}
PAPER = {  # rho, test accuracy and relative accuracy under shift in %, and half of the printed interval's width
    "batch 32": ("5.25", "69.39", "-2.88", "0.59"),
    "batch 64": ("4.05", "68.84", "-3.10", "0.59"),
    "batch 128": ("2.16", "70.39", "-0.96", "0.35"),
    "batch 256": ("1.32", "69.30", "-1.52", "0.49"),
    "batch 512": ("1.24", "69.16", "-1.49", "0.49"),
}
COLUMNS = (
    Column("rho_batch", "rho_batch, own batch size"),
    Column("rho_batch_common", f"rho_batch, batches of {COMMON}"),
    *forest.COLUMNS[1:],
)


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """A net for each batch size, as published and corrected."""
    draws = forest.QUICK["draws"] if quick else DRAWS
    return [
        forest.task(NAME, model, variant, seed, quick, epochs, trains=forest.STRICTEST, batch_size=size, draws=draws)
        for seed in range(seeds)
        for variant in ("published", "corrected")
        for model, size in MODELS.items()
    ]


def run(task: Task, context: Context) -> Figures:
    """Trains with the batch size of the row; ρ is measured over batches of that size, and of a common one."""
    size, limit = task.settings["batch_size"], task.settings["limit"]
    model = trained(forest.recipe_of(task), context)
    figures = forest.measured(task, model, context, size)
    train = context.dataset("forest", limit).train
    same = size == COMMON
    return {
        **figures,
        "rho_batch_common": figures["rho_batch"]
        if same
        else rho_batch(model.net, rop.CrossEntropy(), model.w, *train, COMMON, model.state),
    }


def tables(records: Records) -> list[Table]:
    """The paper's table, and ρ measured over batches of one size."""
    return [
        table_of(
            records,
            name=NAME,
            title="Forest cover types, μ = 0.01 and K = 0: the batch size of training",
            rule=forest.RULE.partition(", except")[0] + ".",
            heading="batch size",
            columns=COLUMNS,
            paper={model: dict(zip(forest.FIGURES, PAPER[model], strict=True)) for model in MODELS},
            variants=("published", "corrected"),
        )
    ]


ORIGINAL = "batch 128"
OTHERS = [model for model in MODELS if model != ORIGINAL]
CLAIMS = (
    Claim(
        "Models trained with smaller batches have a larger ρ.",
        'Batch Size, text to Table "Forest Batch"',
        claims.all_of([claims.higher("rho_batch", small, large) for small, large in pairwise(MODELS)]),
        "rho_batch, over batches of the size of training, is larger for each smaller size than for the next",
    ),
    Claim(
        "The same, with ρ of the whole training set, which does not depend on a batch size.",
        "Batch Size, read as a claim about the models",
        claims.all_of([claims.higher("rho_full", small, large) for small, large in pairwise(MODELS)]),
        "rho_full is larger for each smaller size than for the next",
    ),
    Claim(
        "The model with the original batch size, 128, has the best test accuracy.",
        'Table "Forest Batch"',
        claims.all_of([claims.higher("test_accuracy", ORIGINAL, model) for model in OTHERS]),
        "it beats each of the four others in test accuracy",
    ),
    Claim(
        "The model with the original batch size, 128, loses the least accuracy under shift.",
        'Table "Forest Batch"; Batch Size: it generally performed best',
        claims.all_of([claims.higher("shift_mean", ORIGINAL, model) for model in OTHERS]),
        "it beats each of the four others in relative accuracy under shift",
    ),
)

EXPERIMENT = Experiment(
    name=NAME,
    title="Forest cover types: batch size",
    about='Table "Forest Batch": μ = 0.01, K = 0, trained with batches of 32, 64, 128, 256 and 512',
    cost="about 25 minutes a seed on two cores; the net of batch 128 is shared with forest",
    tasks=tasks,
    run=run,
    tables=tables,
    claims=CLAIMS,
    deviations=(
        *forest.DEVIATIONS[:3],
        "Batches of 32 and 64 have the learning rate 0.1/epoch, as in the paper, the others 0.5/epoch.",
        f"The second column measures ρ of every model over batches of {COMMON}, which the paper does not.",
        *forest.DEVIATIONS[3:5],
    ),
    quick=forest.EXPERIMENT.quick,
)
