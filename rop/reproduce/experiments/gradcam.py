"""Tables "Jaccard Score of Overlap": whether the chest models look at the same pixels, by Grad-CAM."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from rop.prediction import predict
from rop.reproduce import claims
from rop.reproduce.claims import Claim
from rop.reproduce.experiments import chest
from rop.reproduce.gradcam import TOP, enlarged, gradcam, jaccard, top
from rop.reproduce.models import Trained, trained
from rop.reproduce.records import Records
from rop.reproduce.spec import Context, Experiment, Figures, Task, slug
from rop.reproduce.tables import Column, Table, table_of

NAME, VARIANT = "gradcam", chest.VARIANT
IMAGES, SIDE = 400, 64
SETS = {"kermany": "Kermany's images", "test": "the test part of NIH"}
SHORT = {  # of column headings and figures, in the order of the paper's tables
    chest.PENALISED: "penalty",
    chest.ENTROPY: "entropy-SGD",
    chest.UNREGULARISED: "unregularised",
    chest.KFAC: "K-FAC",
    chest.VALLEY: "valley",
}
MODELS = tuple(SHORT)
PAPER = (  # Table "CheXpert Validation Jaccard", the nearest to ours
    ("1.000", "0.508", "0.192", "0.294", "0.374"),
    ("0.508", "1.000", "0.181", "0.280", "0.435"),
    ("0.192", "0.181", "1.000", "0.283", "0.152"),
    ("0.294", "0.280", "0.283", "1.000", "0.261"),
    ("0.374", "0.435", "0.152", "0.261", "1.000"),
)


def tasks(seeds: int, quick: bool, epochs: int | None) -> list[Task]:
    """A task for each model: its maps against those of the four others."""
    found = []
    for seed in range(seeds):
        every = {model: chest.task(model, None, seed, quick, epochs).settings for model in MODELS}
        for model in MODELS:
            settings = {"nets": every, "images": 40 if quick else IMAGES}
            found.append(Task(NAME, model, seed, VARIANT, settings))
    return found


def run(task: Task, context: Context) -> Figures:
    """The mean Jaccard index of the model's maps and those of every model, on both sets."""
    figures: Figures = {}
    nets = {model: _trained(task, model, context) for model in MODELS}
    for name, images in _sets(task, context).items():
        own = masks(nets[task.model], images)
        overlap = {SHORT[model]: _mean(jaccard(own, masks(net, images))) for model, net in nets.items()}
        others = [value for model, value in overlap.items() if model != SHORT[task.model]]
        figures[name] = {**overlap, "mean": float(np.mean(others))}
    return figures


def _trained(task: Task, model: str, context: Context) -> Trained:
    """A net of chest, trained now, in a folder of its own, if it is not there."""
    settings = task.settings["nets"][model]
    recipe = chest.recipe(settings["method"], task.seed, settings["view"], settings)
    return trained(recipe, replace(context, work=context.work / slug(model)))


def _sets(task: Task, context: Context) -> dict[str, np.ndarray]:
    """Images of another hospital, and of the test part."""
    settings = next(iter(task.settings["nets"].values()))
    count, limit = task.settings["images"], settings["limit"]
    x, _ = chest.whole(context, limit, {"source": "kermany"})
    spread = np.linspace(0, len(x) - 1, min(count, len(x))).astype(int)  # with and without pneumonia
    test, _ = context.dataset("chest", limit, source="nih").test
    return {"kermany": x[spread], "test": test[:count]}


def masks(model: Trained, images: np.ndarray) -> np.ndarray:
    """The top pixels of the maps (count, 64, 64) for the finding with the highest logit of each image."""
    scores = predict(model.net, model.w, images, model.state).argmax(axis=1)
    return top(enlarged(gradcam(model.net, model.w, images, scores, state=model.state), SIDE))


def _mean(values: np.ndarray) -> float:
    """The mean over images where at least one of the models looks at anything; 0 if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else 0.0


# ------------------------------------------------------------------------------------------------------ what is shown
def tables(records: Records) -> list[Table]:
    """The overlap of each model with each other one, a table for each set."""
    found = []
    for name, where in SETS.items():
        columns = [Column(f"{name}.{short}", short, 3) for short in SHORT.values()]
        printed: dict[str, dict[str, str]] = {
            model: {column.figure: text for column, text in zip(columns, row, strict=True)} if name == "kermany" else {}
            for model, row in zip(MODELS, PAPER, strict=True)
        }
        found.append(
            table_of(
                records,
                name=f"gradcam-{name}",
                title=f"Mean Jaccard index of the top {TOP:.0%} of the pixels on {where}",
                rule=chest.RULE,
                heading="model",
                columns=(*columns, Column(f"{name}.mean", "mean of the others", 3)),
                paper=printed,
                variants=(VARIANT,),
                notes=("The paper's figures are those on CheXpert's validation part.",) if name == "kermany" else (),
            )
        )
    return found


def _overlaps_most(name: str, pair: tuple[str, str]) -> claims.Test:
    """Each of two models overlaps more with the other than with every third."""
    third = [model for model in MODELS if model not in pair]
    return claims.all_of(
        [
            claims.falling(one, [f"{name}.{SHORT[other]}", f"{name}.{SHORT[model]}"])
            for one, other in permutations(pair)
            for model in third
        ]
    )


CLAIMS: tuple[Claim, ...] = tuple(
    Claim(
        f"The model with the penalty and entropy-SGD look at the same pixels more than other pairs do, on {where}.",
        "Appendix Grad-CAM",
        _overlaps_most(name, (chest.PENALISED, chest.ENTROPY)),
        "the Jaccard index of the two is higher than that of either with each third model",
    )
    for name, where in SETS.items()
)

EXPERIMENT = Experiment(
    name=NAME,
    title="Grad-CAM of the chest models",
    about='Tables "Jaccard Score of Overlap": whether the chest models look at the same pixels',
    cost="about 3 minutes a seed on two cores, after chest, whose nets it takes",
    tasks=tasks,
    run=run,
    tables=tables,
    claims=CLAIMS,
    deviations=(
        *chest.EXPERIMENT.deviations,
        f"{IMAGES} images of each set; the map is that of the finding with the highest logit, at the last batchnorm, "
        "2×2 pixels at this size of images, enlarged to 64×64: it can only tell quarters of an image apart.",
    ),
    quick="as chest --quick, 40 images",
    seeds=3,
    variants=(VARIANT,),
)
