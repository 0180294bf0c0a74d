"""Figure "USPS": twelve models on USPS digits, and their accuracy on eight test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import rop
from rop import optim
from rop.reproduce import claims, gan
from rop.reproduce.claims import Claim, Test
from rop.reproduce.digits import (
    OPTIONS,
    SEED,
    SETS,
    augmented_sets,
    constructed_sets,
    drawn,
    gans,
    mnist_set,
    usps_data,
)
from rop.reproduce.measures import FULL_TOLERANCE, TOLERANCE, correct, rho_batch, rho_full
from rop.reproduce.methods import ENTROPY, KFAC, LOBPCG, UNREGULARISED, VALLEY, method_of
from rop.reproduce.models import Recipe, Trained, trained
from rop.reproduce.records import Records
from rop.reproduce.spec import Context, Experiment, Figures, Task
from rop.reproduce.statistics import summary
from rop.reproduce.tables import Column, Plot, Table, table_of

NAME = "usps"
BATCH, EPOCHS = 128, 100
QUICK = {"limit": 512, "epochs": 2}

PENALISED = {  # model: (mu, K)
    "mu=0.001 K=0": (0.001, 0.0),
    "mu=0.005 K=0": (0.005, 0.0),
    "mu=0.01 K=0": (0.01, 0.0),
    "mu=0.02 K=0": (0.02, 0.0),
    "mu=0.03 K=0": (0.03, 0.0),
    "mu=0.05 K=1": (0.05, 1.0),
    "mu=0.1 K=2": (0.1, 2.0),
}
PENALTIES = {**PENALISED, LOBPCG: (0.005, 0.0)}
BASELINES = (UNREGULARISED, VALLEY, ENTROPY, KFAC)
REGULARISED = (*PENALISED, LOBPCG)
MODELS = (*BASELINES, *REGULARISED)
BEST, FLATTEST = "mu=0.005 K=0", "mu=0.05 K=1"
PLAIN = (UNREGULARISED, VALLEY, "mu=0.001 K=0", BEST, FLATTEST)  # on the plain net
GAN_TASKS = {"GAN1": "images of GAN1", "GAN2": "images of GAN2"}

# What the text prints; the figure itself has no numbers. The row of the best model is complete, in Table "USPS Batch".
PAPER: dict[str, dict[str, str]] = {
    UNREGULARISED: {"AT1": "86.20", "AT2": "63.03"},
    VALLEY: {},
    ENTROPY: {"MNIST": "67.12"},
    KFAC: {},
    "mu=0.001 K=0": {},
    BEST: {
        "test": "95.91",
        "AT1": "91.08",
        "AT2": "69.06",
        "MNIST": "59.80",
        "GAN1": "70.44",
        "GAN2": "88.15",
        "Const1": "78.20",
        "Const2": "78.54",
        "rho_batch": "2.69",
    },
    "mu=0.01 K=0": {},
    "mu=0.02 K=0": {},
    "mu=0.03 K=0": {"GAN1": "99.82", "rho_batch": "≈1.51"},
    FLATTEST: {"rho_batch": "1.16"},
    "mu=0.1 K=2": {"GAN2": "91.35", "rho_batch": "≈1.51"},
    LOBPCG: {},
}
COLUMNS = (
    *(Column(name, f"{name}, %", 2, 100) for name in SETS),
    Column("rho_batch", "rho_batch"),
    Column("rho_full", "rho_full"),
)
WEIGHTS = {UNREGULARISED: 1.0, VALLEY: 2.5, ENTROPY: 15.0, KFAC: 15.0, LOBPCG: 30.0, "GAN1": 10.0, "GAN2": 200.0}

RULE = (
    "Model selection: the parameters of the epoch with the best validation accuracy, except for the corrected "
    "asymmetric valley, whose result is the average of its iterates."
)
DEVIATIONS = (
    "μ and K are the paper's; nothing was tuned here.",
    "The paper has one run of each model, and prints figures of most models in bar charts only, which we do not read "
    "off; here are several seeds: median [range] (95 % bootstrap interval of the median).",
    "AT1, AT2, Const1, Const2 and the images of the GANs are one draw each, shared by all models and seeds, as in the "
    "paper; it is another draw than the paper's, and the GANs are other nets.",
    "rho_batch is what the paper calls ρ of the full training set: the mean of ρ over its batches, weighted by size. "
    f"rho_full is ρ of the Hessian of the whole set. Residuals are at most {TOLERANCE:g} and {FULL_TOLERANCE:g} times "
    "the eigenvalue.",
    "Published: the last partial batch is used, power iteration from the constant vector that also stops at a residual "
    "that hardly changes, no sign(λ) in ∇ρ, entropy-SGD without inner steps, the asymmetric valley's best iterate "
    "instead of its average; GAN1 with tanh outputs for pixels in [−0.82, 2.53] and batchnorm in training mode when "
    "images are drawn; GAN2's images through 8 bits that wrap.",
    "Corrected: whole batches, ρ = |λ| and ∇ρ = sign(λ)·vᵀ∇Hv, no step takes more than half of ρ away to first order, "
    "entropy-SGD with 20 inner steps for a twentieth of the epochs, "
    "the valley's average of epochs 161 to 200; GAN1's outputs scaled to the range of "
    "the pixels, batchnorm with its running statistics; GAN2's images scaled to 8 bits.",
    "Images of GAN1 as published are kept as 8 bits over [−1, 1], a rounding of at most 1/255 of normalised pixels.",
    "Algorithm 2 (LOBPCG) has the paper's step sizes for forest, exp(−4j − 2), where it has exp(−4j) for USPS, and "
    "K-FAC's inverse with damping 0.001, where the published code has none.",
    "The last bin of Const2 includes a cosine of 1, so that images that augmentation has left unchanged count.",
)


# ------------------------------------------------------------------------------------------------------------ training
def recipe(
    model: str, variant: str, seed: int, *, epochs: int = EPOCHS, batch_size: int = BATCH, limit: int | None = None
) -> Recipe:
    """How a model of the figure is trained.

    >>> recipe("mu=0.05 K=1", "corrected", 0).regularizer.K
    1.0
    """
    method = method_of(model, variant, epochs, optim.Adam(lr=1e-3), PENALTIES)
    return Recipe(
        "usps",
        method.optimizer,
        method.regularizer,
        method.epochs,
        batch_size,
        seed,
        setting="plain" if variant == "plain" else "paper",
        partial_batch=variant == "published",
        select=method.select,
        limit=limit,
        options=OPTIONS,
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
) -> Task:
    """A task that trains the USPS net ``trains``, by default that of its row, and tries it on all sets."""
    method = {
        "trains": trains or model,
        "budget": epochs or (QUICK["epochs"] if quick else EPOCHS),  # epochs of all models but the asymmetric valley
        "batch_size": batch_size,
        "limit": QUICK["limit"] if quick else None,
        "quick": quick,
        "draw": SEED,
        "gans": [gan.describe(one) for one in gans(variant, quick).values()],
    }
    settings = {**_recipe_of(method, variant, seed).settings(), **method}
    return Task(name, model, seed, variant, settings, WEIGHTS.get(trains or model, 8.0))


def gan_tasks(name: str, quick: bool, variants: Sequence[str] = ("published", "corrected")) -> list[Task]:
    """Tasks that draw the images of the GANs, which all models share; the slow one first."""
    limit = QUICK["limit"] if quick else None
    return [
        Task(
            name,
            GAN_TASKS[which],
            0,
            variant,
            {"limit": limit, "quick": quick, "gan": gan.describe(gans(variant, quick)[which])},
            WEIGHTS[which],
        )
        for which in ("GAN2", "GAN1")
        for variant in variants
    ]


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """The GANs, all twelve models as published and corrected, then some of them on the plain net."""
    return gan_tasks(NAME, quick) + [
        task(NAME, model, variant, seed, quick, epochs)
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
    """Draws the images of a GAN, or trains a model and measures its accuracy on all sets and both ρ."""
    if "gan" in task.settings:
        return _draw(task, context)
    return measured(task, trained(recipe_of(task), context), context, task.settings["batch_size"])


def _draw(task: Task, context: Context) -> Figures:
    (which,) = (name for name, model in GAN_TASKS.items() if model == task.model)
    made = drawn(gans(task.variant, task.settings["quick"])[which], context, task.settings["limit"])
    losses = {name: float(value) for name, value in zip(("discriminator", "generator"), made.losses[-1], strict=True)}
    return {"images": len(made.labels), "last_losses": losses}


def measured(task: Task, model: Trained, context: Context, batch_size: int) -> Figures:
    """The figures of a trained USPS net; rho_batch over batches of this size."""
    limit, quick = task.settings["limit"], task.settings["quick"]
    data = usps_data(context, limit)
    problem = model.net, rop.CrossEntropy(), model.w, *data.train
    figures: Figures = {
        "rho_batch": rho_batch(*problem, batch_size, model.state),
        "rho_full": rho_full(*problem, model.state),
        "valid_accuracy": float(correct(model.net, model.w, *data.validation, model.state).mean()),
        **model.facts,
    }
    moved = augmented_sets(data.test)
    sets = {"test": data.test, **moved, **constructed_sets(data.test, moved["AT1"], moved["AT2"])}
    sets |= {name: drawn(one, context, limit).part for name, one in gans(task.variant, quick).items()}
    sets["MNIST"] = mnist_set(context, limit)  # last, since a process keeps one data set at a time
    return figures | {
        name: float(correct(model.net, model.w, *part, model.state).mean()) for name, part in sets.items()
    }


# ------------------------------------------------------------------------------------------------------ what is shown
def tables(records: Records) -> list[Table]:
    """All models and sets, and some of the models on the plain net."""
    common: dict[str, Any] = {"rule": RULE, "heading": "model", "columns": COLUMNS}
    return [
        table_of(
            records,
            name="usps",
            title="USPS digits: twelve models on eight test sets",
            paper=PAPER,
            variants=("published", "corrected"),
            **common,
        ),
        table_of(
            records,
            name="usps-plain",
            title="Some of the models on the plain net, with logits as outputs",
            paper={model: {} for model in PLAIN},
            variants=("plain",),
            **common,
        ),
    ]


def plots(records: Records) -> list[Plot]:
    """Median accuracy on every set, as published and corrected, and accuracy on AT2 over rho_batch."""

    def accuracies(variant: str) -> Any:
        def draw(axes: Any) -> None:
            for k, model in enumerate(MODELS):
                chosen = records.where(model=model, variant=variant)
                found = {name: summary(chosen.values(name).values()) for name in SETS}
                known = [(i, one.median) for i, one in enumerate(found.values()) if one is not None]
                look = {"color": f"C{k % 10}", "marker": "o" if k < 10 else "s", "label": model}
                axes.plot([i for i, _ in known], [100 * value for _, value in known], lw=0.7, ms=4, **look)
            axes.set_xticks(range(len(SETS)), SETS)
            axes.set_ylabel("accuracy, %")
            _finish(axes)

        return draw

    def over_rho(axes: Any) -> None:
        for k, model in enumerate(MODELS):
            for variant, marker in (("published", "o"), ("corrected", "^")):
                found = records.where(model=model, variant=variant)
                rho, accuracy = found.values("rho_batch"), found.values("AT2")
                label = model if variant == "published" else None
                look = {"color": f"C{k % 10}", "marker": marker, "label": label, "s": 28}
                axes.scatter(list(rho.values()), [100 * accuracy[s] for s in rho], **look)
        axes.set(xscale="log", xlabel="rho_batch", ylabel="accuracy on AT2, %")
        _finish(axes)

    def _finish(axes: Any) -> None:
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))

    names = {"published": "as published", "corrected": "corrected"}
    made = [
        Plot(f"accuracy-{variant}", f"Median accuracy on every test set, {text}.", accuracies(variant), (8.0, 4.0))
        for variant, text in names.items()
    ]
    caption = "Accuracy on AT2 over rho_batch, a point for each seed: circles as published, triangles corrected."
    return [*made, Plot("at2-rho", caption, over_rho, (7.0, 4.0))]


def best(figure: str, model: str, others: Sequence[str]) -> Test:
    """The figure of a model is higher than that of each other one."""
    return claims.all_of([claims.higher(figure, model, other) for other in others if other != model])


TEXT = 'Results, text to Figure "USPS"'
AUGMENTED = ("AT1", "AT2")
RISING = ["mu=0.001 K=0", "mu=0.005 K=0", "mu=0.01 K=0", "mu=0.02 K=0", "mu=0.03 K=0"]  # μ with the same K
CLAIMS = (
    Claim(
        "All models are about equally good on the test set, between 94.47 and 95.91 %.",
        TEXT,
        claims.all_of([claims.within("test", model, 0.9447, 0.9591) for model in MODELS]),
        "the test accuracy of each of the twelve models lies in this range",
    ),
    Claim(
        "Every regularised model, by power iteration or LOBPCG, beats the unregularised one on both augmented sets.",
        TEXT,
        claims.all_of([claims.higher(name, model, UNREGULARISED) for name in AUGMENTED for model in REGULARISED]),
        "each of the eight beats the unregularised model on AT1 and on AT2",
    ),
    Claim(
        "The model with μ = 0.005 and K = 0 is the best of all on the test set and on both augmented sets.",
        TEXT,
        claims.all_of([best(name, BEST, MODELS) for name in ("test", *AUGMENTED)]),
        "it beats each of the eleven others on test, AT1 and AT2",
    ),
    Claim(
        "The model with μ = 0.05 and K = 1 has the lowest ρ.",
        TEXT,
        claims.all_of([claims.lower("rho_batch", FLATTEST, model) for model in MODELS if model != FLATTEST]),
        "its rho_batch is lower than that of each other model",
    ),
    Claim(
        "The model with the lowest ρ is the second best on the augmented sets.",
        TEXT,
        claims.all_of([best(name, FLATTEST, [m for m in MODELS if m != BEST]) for name in AUGMENTED]),
        "it beats each model but μ = 0.005, K = 0 on AT1 and on AT2",
    ),
    Claim(
        "The asymmetric valley is the best of the baselines on the augmented sets, but worse than μ = 0.005, K = 0.",
        TEXT,
        claims.all_of(
            [best(name, VALLEY, BASELINES) for name in AUGMENTED]
            + [claims.higher(name, BEST, VALLEY) for name in AUGMENTED]
        ),
        "it beats the other baselines on AT1 and AT2, and μ = 0.005, K = 0 beats it",
    ),
    Claim(
        "ρ falls as μ grows.",
        TEXT,
        claims.all_of([claims.higher("rho_batch", small, large) for small, large in pairwise(RISING)]),
        "rho_batch is higher for each μ than for the next larger one, all with K = 0",
    ),
    Claim(
        "On GAN1 the model with μ = 0.03 and K = 0 is the best, and μ = 0.005, K = 0 does poorly.",
        TEXT,
        claims.all_of([best("GAN1", "mu=0.03 K=0", MODELS), claims.lower("GAN1", BEST, UNREGULARISED)]),
        "μ = 0.03 beats each other model on GAN1, and μ = 0.005 is below the unregularised model",
    ),
    Claim(
        "On GAN2 the model with μ = 0.1 and K = 2 is the best.",
        TEXT,
        best("GAN2", "mu=0.1 K=2", MODELS),
        "it beats each other model on GAN2",
    ),
    Claim(
        "On MNIST entropy-SGD is the best.",
        TEXT,
        best("MNIST", ENTROPY, MODELS),
        "it beats each other model on MNIST",
    ),
    Claim(
        "On the constructed sets the model with μ = 0.005 and K = 0 is the best, so that its result on GAN1 is a "
        "coincidence.",
        f"{TEXT}; appendix Constructed Data Sets",
        claims.all_of([best(name, BEST, MODELS) for name in ("Const1", "Const2")]),
        "it beats each other model on Const1 and on Const2",
    ),
    Claim(
        "Models with a smaller ρ are better on the augmented sets.",
        'Results; Figure "USPS Gen Gap" has more models',
        claims.all_of([claims.correlated("rho_batch", name, -1) for name in AUGMENTED]),
        "rank correlation of rho_batch and accuracy on AT1 and AT2, over all models and seeds, is negative",
    ),
)

EXPERIMENT = Experiment(
    name=NAME,
    title="USPS digits",
    about='Figure "USPS": twelve models of a small convolutional net on test, AT1, AT2, MNIST, GAN1, GAN2, Const1 and '
    "Const2, and their ρ; five of them on the plain net",
    cost="about an hour a seed on two cores, and once an hour for the images of the GANs",
    tasks=tasks,
    run=run,
    tables=tables,
    plots=plots,
    claims=CLAIMS,
    deviations=DEVIATIONS,
    quick=f"{QUICK['epochs']} epochs instead of 100, {QUICK['limit']} samples of each part, GANs of 5 and 1 epochs, "
    "one seed",
    packages={"torch": "torch", "PIL": "Pillow"},
)
