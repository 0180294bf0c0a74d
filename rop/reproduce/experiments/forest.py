"""Table "Forest Cover": ten models on forest cover types, and their accuracy under 1,000 covariate shifts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rop
from rop.experiments.settings import forest_sgd
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.measures import FULL_TOLERANCE, TOLERANCE, correct, rho_batch, rho_full
from rop.reproduce.methods import ENTROPY, KFAC, LOBPCG, PUBLISHED_ORDER, UNREGULARISED, VALLEY, method_of
from rop.reproduce.models import Recipe, Trained, trained
from rop.reproduce.records import Records
from rop.reproduce.shift import DRAWS, relative_accuracy
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.tables import Column, Plot, Table, table_of

NAME = "forest"
BATCH, EPOCHS = 128, 100
QUICK = {"limit": 8_000, "draws": 200, "epochs": 3}

PENALISED = {  # model: (mu, K)
    "mu=0.01 K=1": (0.01, 1.0),
    "mu=0.01 K=0": (0.01, 0.0),
    "mu=0.005 K=1": (0.005, 1.0),
    "mu=0.001 K=5": (0.001, 5.0),
    "mu=0.001 K=0": (0.001, 0.0),
}
PENALTIES = {**PENALISED, LOBPCG: (0.0028, 1.0)}
BASELINES = (VALLEY, ENTROPY, KFAC)
MODELS = (UNREGULARISED, *BASELINES, *PENALISED, LOBPCG)
STRICTEST = "mu=0.01 K=0"
COLLAPSED = 0.01  # no net that predicts more than one class has so small a rho_batch
PLAIN = (UNREGULARISED, VALLEY, STRICTEST, "mu=0.005 K=1", "mu=0.001 K=0")  # on the plain net

PAPER = {  # rho, test accuracy and relative accuracy under shift in %, and half of the printed interval's width
    UNREGULARISED: ("36.58", "71.74", "-2.80", "0.58"),
    VALLEY: ("23.28", "70.99", "-1.48", "0.48"),
    ENTROPY: ("6.82", "69.69", "-1.41", "0.49"),
    KFAC: ("58.55", "70.83", "-2.29", "0.57"),
    "mu=0.01 K=1": ("1.68", "69.71", "-1.61", "0.49"),
    "mu=0.01 K=0": ("2.16", "70.39", "-0.96", "0.35"),
    "mu=0.005 K=1": ("3.09", "70.97", "-1.50", "0.48"),
    "mu=0.001 K=5": ("7.15", "70.67", "-1.80", "0.48"),
    "mu=0.001 K=0": ("9.03", "70.87", "-1.96", "0.48"),
    LOBPCG: ("1.99", "69.49", "-2.87", "0.58"),
}
FIGURES = ("rho_batch", "test_accuracy", "shift_mean", "shift_half")
COLUMNS = (
    Column("rho_batch", "rho_batch"),
    Column("rho_full", "rho_full"),
    Column("test_accuracy", "test accuracy, %", 2, 100),
    Column("shift_mean", "relative accuracy under shift, %", 2, 100),
    Column("shift_half", "± 1.96 sd/√1000", 2, 100),
)
WEIGHTS = {UNREGULARISED: 1.0, VALLEY: 2.5, ENTROPY: 20.0, KFAC: 20.0, LOBPCG: 30.0}  # about, of time; penalised: 8

RULE = (
    "Model selection: the parameters of the epoch with the best validation accuracy, except for the corrected "
    "asymmetric valley, whose result is the average of its iterates."
)
DEVIATIONS = (
    "μ and K are the paper's; nothing was tuned here.",
    "The paper has one run of each model; here are several seeds: median [range] (95 % bootstrap interval of the "
    "median).",
    "rho_batch is what the paper calls ρ of the full training set: the mean of ρ over its batches of 128, weighted by "
    f"size. rho_full is ρ of the Hessian of the whole set. Residuals are at most {TOLERANCE:g} and {FULL_TOLERANCE:g} "
    "times the eigenvalue.",
    "Published: samples in a fixed order with the last partial batch, power iteration from the constant vector that "
    "also stops at a residual that hardly changes, no sign(λ) in ∇ρ, entropy-SGD without inner steps, the asymmetric "
    "valley's best iterate instead of its average.",
    "Corrected: shuffled, whole batches, ρ = |λ| and ∇ρ = sign(λ)·vᵀ∇Hv, no step takes more than half of ρ away to "
    "first order, entropy-SGD with 20 inner steps for a twentieth of the epochs, which is the same number of "
    "gradients, the valley's average of epochs 161 to 200.",
    "Algorithm 2 (LOBPCG) has K-FAC's damped inverse, damping 0.001, as its preconditioner; the published code has no "
    "damping.",
)


def recipe(
    model: str,
    variant: str,
    seed: int,
    *,
    epochs: int = EPOCHS,
    batch_size: int = BATCH,
    limit: int | None = None,
) -> Recipe:
    """How a model of the table is trained.

    >>> recipe("mu=0.01 K=0", "corrected", 0).regularizer.mu
    0.01
    """
    method = method_of(model, variant, epochs, forest_sgd(batch_size), PENALTIES)
    order: dict[str, Any] = PUBLISHED_ORDER if variant == "published" else {}
    return Recipe(
        "forest",
        method.optimizer,
        method.regularizer,
        method.epochs,
        batch_size,
        seed,
        setting="plain" if variant == "plain" else "paper",
        select=method.select,
        limit=limit,
        **order,
    )


def task(
    name: str,
    model: str,
    variant: str,
    seed: int,
    quick: bool,
    epochs: int | None,
    *,
    trains: str | None = None,
    batch_size: int = BATCH,
    **more: Any,
) -> Task:
    """A task that trains the forest net ``trains``, by default that of its row; ``more`` are settings of its own."""
    method = {
        "trains": trains or model,
        "budget": epochs or (QUICK["epochs"] if quick else EPOCHS),  # the recipe says what a method makes of it
        "batch_size": batch_size,
        "limit": QUICK["limit"] if quick else None,
    }
    settings = {**_recipe_of(method, variant, seed).settings(), **method, **more}
    return Task(name, model, seed, variant, settings, WEIGHTS.get(trains or model, 8.0))


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """All ten models as published and corrected, then some of them on the plain net."""
    return [
        task(NAME, model, variant, seed, quick, epochs, draws=QUICK["draws"] if quick else DRAWS)
        for variants, models in ((("published", "corrected"), MODELS), (("plain",), PLAIN))
        for seed in range(seeds)
        for variant in variants
        for model in models
    ]


def recipe_of(task: Task) -> Recipe:
    """The recipe of a task that ``task`` has made."""
    return _recipe_of(task.settings, task.variant, task.seed)


def _recipe_of(settings: Mapping[str, Any], variant: str, seed: int) -> Recipe:
    return recipe(
        settings["trains"],
        variant,
        seed,
        epochs=settings["budget"],
        batch_size=settings["batch_size"],
        limit=settings["limit"],
    )


def run(task: Task, context: Context) -> Figures:
    """Trains a model, and measures accuracy, both ρ, and the accuracy under shifts."""
    model = trained(recipe_of(task), context)
    return measured(task, model, context, task.settings["batch_size"])


def measured(task: Task, model: Trained, context: Context, batch_size: int) -> Figures:
    """The figures of a trained forest net; rho_batch over batches of this size."""
    data = context.dataset("forest", task.settings["limit"])
    loss, w, state = rop.CrossEntropy(), model.w, model.state
    right = correct(model.net, w, *data.test, state)
    return {
        "test_accuracy": float(right.mean()),
        "valid_accuracy": float(correct(model.net, w, *data.validation, state).mean()),
        "rho_batch": rho_batch(model.net, loss, w, *data.train, batch_size, state),
        "rho_full": rho_full(model.net, loss, w, *data.train, state),
        **relative_accuracy(data.test[0], right, task.settings["draws"]),
        **model.facts,
    }


# ------------------------------------------------------------------------------------------------------ what is shown
def tables(records: Records) -> list[Table]:
    """The paper's table, and some of the models on the plain net."""
    printed = {model: dict(zip(FIGURES, PAPER[model], strict=True)) for model in MODELS}
    common: dict[str, Any] = {"rule": RULE, "heading": "model", "columns": COLUMNS}
    plain = "Some of the models on the plain net: layers with weights of their own, and logits as outputs"
    return [
        table_of(
            records,
            name="forest-cover",
            title="Forest cover types: ten models",
            paper=printed,
            variants=("published", "corrected"),
            **common,
        ),
        table_of(
            records,
            name="forest-plain",
            title=plain,
            paper={model: {} for model in PLAIN},
            variants=("plain",),
            notes=("The paper has no such table.",),
            **common,
        ),
    ]


def plots(records: Records) -> list[Plot]:
    """Relative accuracy under shift over rho_batch, a point for each model and seed."""

    def draw(axes: Any) -> None:
        for variant, marker in (("published", "o"), ("corrected", "^")):
            for k, model in enumerate(MODELS):
                found = records.where(model=model, variant=variant)
                rho, drop = found.values("rho_batch"), found.values("shift_mean")
                label = model if variant == "published" else None
                shown = [max(value, COLLAPSED) for value in rho.values()]
                axes.scatter(shown, [100 * drop[s] for s in rho], marker=marker, color=f"C{k}", label=label, s=28)
        axes.set(xscale="log", xlabel="rho_batch", ylabel="relative accuracy under shift, %")
        axes.tick_params(axis="x", which="minor", labelbottom=False)  # their labels overlap
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))

    caption = (
        "Relative accuracy under covariate shift over rho_batch, a point for each seed: circles as published, "
        f"triangles corrected. Nets that have collapsed, with a rho_batch below {COLLAPSED:g}, are drawn there."
    )
    return [Plot("shift", caption, draw, (7.0, 4.0))]


SHIFT, RHO, ACCURACY = "shift_mean", "rho_batch", "test_accuracy"
TABLE = 'Table "Forest Cover"'
CLAIMS = (
    Claim(
        "Every model regularised by power iteration loses less accuracy under shift than the unregularised one.",
        f"Results, text to {TABLE}",
        claims.all_of([claims.higher(SHIFT, model, UNREGULARISED) for model in PENALISED]),
        "each of the five beats the unregularised model in relative accuracy under shift",
    ),
    Claim(
        "Asymmetric valley and entropy-SGD, too, lose less under shift than the unregularised model.",
        f"Results, text to {TABLE}",
        claims.all_of([claims.higher(SHIFT, model, UNREGULARISED) for model in (VALLEY, ENTROPY)]),
        "both beat the unregularised model in relative accuracy under shift",
    ),
    Claim(
        "K-FAC and LOBPCG do not do significantly better under shift than the unregularised model.",
        f"Results, text to {TABLE}",
        claims.all_of([claims.not_higher(SHIFT, model, UNREGULARISED) for model in (KFAC, LOBPCG)]),
        "neither beats it with an interval above one half",
    ),
    Claim(
        "The strictest model, μ = 0.01 and K = 0, loses the least accuracy under shift of all models.",
        f"Results, text to {TABLE}; abstract: better than the baselines",
        claims.all_of([claims.higher(SHIFT, STRICTEST, model) for model in MODELS if model != STRICTEST]),
        "it beats each of the nine others in relative accuracy under shift",
    ),
    Claim(
        "ρ mostly follows how strict the regularisation is.",
        f"Results, text to {TABLE}",
        claims.all_of(
            [
                claims.lower(RHO, "mu=0.01 K=0", "mu=0.001 K=0"),
                claims.lower(RHO, "mu=0.01 K=1", "mu=0.005 K=1"),
                claims.lower(RHO, "mu=0.001 K=0", UNREGULARISED),
            ]
        ),
        "a larger μ with the same K gives a smaller rho_batch",
    ),
    Claim(
        "Models with a smaller ρ lose less accuracy under shift.",
        "Introduction; Results: some delineation between lower and higher ρ",
        claims.correlated(RHO, SHIFT, -1),
        "rank correlation of rho_batch and relative accuracy under shift, over all models and seeds, is negative",
    ),
    Claim(
        "Models that do worse on shifted data also vary more from shift to shift.",
        f"Results, text to {TABLE}",
        claims.correlated(SHIFT, "shift_sd", -1),
        "rank correlation of mean and standard deviation over shifts is negative",
    ),
    Claim(
        "The unregularised model has the highest test accuracy.",
        TABLE,
        claims.all_of([claims.higher(ACCURACY, UNREGULARISED, model) for model in MODELS if model != UNREGULARISED]),
        "it beats each of the nine others in test accuracy",
    ),
    Claim(
        "LOBPCG has one of the two lowest ρ.",
        "Spectral Radius Computation",
        claims.all_of([claims.lower(RHO, LOBPCG, model) for model in MODELS if model not in (LOBPCG, "mu=0.01 K=1")]),
        "its rho_batch is lower than that of each model but μ = 0.01, K = 1",
    ),
    Claim(
        "The residual ‖Hv − λv‖ of LOBPCG is larger than that of power iteration.",
        "Spectral Radius Computation",
        claims.all_of([claims.higher("relative_residual", LOBPCG, model) for model in ("mu=0.01 K=1", "mu=0.005 K=1")]),
        "mean of ‖Hv − λv‖ over mean of |λ| in the last epoch's steps, against power iteration with the same K",
    ),
)

EXPERIMENT = Experiment(
    name=NAME,
    title="Forest cover types",
    about='Table "Forest Cover": ten models of a 54-20-20-20-7 net, accuracy, ρ and 1,000 covariate shifts; '
    "five of them on the plain net",
    cost="about 75 minutes a seed on two cores",
    tasks=tasks,
    run=run,
    tables=tables,
    plots=plots,
    claims=CLAIMS,
    deviations=DEVIATIONS,
    quick=f"3 epochs instead of 100, {QUICK['limit']:,} samples of each part, {QUICK['draws']} shifts, one seed",
)
