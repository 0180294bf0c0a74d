"""The test sets of the USPS experiments: digits that differ from those of training, each in its own way.

AT1, AT2         the test images, moved and rotated a little and more; one draw for all models and seeds
MNIST            all 70,000 images, the whole 28×28 brought to 16×16
GAN1, GAN2       10,000 images each, drawn by the two conditional GANs
Const1, Const2   chosen from AT1 and AT2 by their nearness to the test images
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rop.datasets import DataSet
from rop.experiments.data import mnist, usps
from rop.experiments.dataset import Part, part
from rop.reproduce import gan
from rop.reproduce.augment import AT1, AT2, augmented, resized
from rop.reproduce.constructed import constructed
from rop.reproduce.gan import GAN1, GAN2, Drawn
from rop.reproduce.shared import made_once
from rop.reproduce.spec import Context, digest

__all__ = ["SEED", "SETS", "augmented_sets", "constructed_sets", "drawn", "gans", "mnist_set", "usps_data"]

SETS = ("test", "AT1", "AT2", "MNIST", "GAN1", "GAN2", "Const1", "Const2")
SEED = 1226  # of everything that is drawn once for all models: augmentations, bins, the GANs
OPTIONS = {"eight_bits": True}  # of rop.datasets.usps: pixels as in the published code


def usps_data(context: Context, limit: int | None) -> DataSet:
    """USPS as the published code prepares it."""
    return context.dataset("usps", limit, **OPTIONS)


def augmented_sets(test: Part) -> dict[str, Part]:
    """AT1 and AT2 of a test part.

    >>> x, y = np.zeros((2, 1, 16, 16), np.float32), np.array([3, 4])
    >>> {name: x.shape for name, (x, y) in augmented_sets((x, y)).items()}
    {'AT1': (2, 1, 16, 16), 'AT2': (2, 1, 16, 16)}
    """
    levels = usps.to_grey_levels(test[0])[:, 0]
    settings = {"AT1": AT1, "AT2": AT2}
    moved = {
        name: augmented(levels, int(s["padding"]), s["degrees"], SEED + k)
        for k, (name, s) in enumerate(settings.items())
    }
    return {name: part(usps.from_grey_levels(x)[:, np.newaxis], test[1]) for name, x in moved.items()}


def constructed_sets(test: Part, at1: Part, at2: Part) -> dict[str, Part]:
    """Const1 and Const2. A set without images, as it can come of few, is left out."""
    measures = {"Const1": "distance", "Const2": "cosine"}
    made = {name: constructed(at1, at2, test[0], measure, SEED) for name, measure in measures.items()}
    return {name: part(one.images, one.labels) for name, one in made.items() if len(one.labels)}


def mnist_set(context: Context, limit: int | None) -> Part:
    """MNIST, all parts together, in the frame and the scale of USPS."""
    data = context.dataset("mnist", limit)
    x, y = (np.concatenate(arrays) for arrays in zip(data.train, data.validation, data.test, strict=True))
    small = resized(mnist.to_grey_levels(x)[:, 0], usps.SIDE)
    return part(usps.from_grey_levels(small)[:, np.newaxis], y)


# ---------------------------------------------------------------------------------------------------------------- GANs
def gans(variant: str, quick: bool) -> dict[str, GAN1 | GAN2]:
    """The two GANs with the slips of the published code, or without.

    >>> gans("published", quick=False)["GAN1"].output, gans("corrected", quick=False)["GAN1"].output
    ('tanh', 'scaled')
    """
    slips = variant == "published"
    one: dict[str, Any] = (
        {"output": "tanh", "sampling": "train"} if slips else {"output": "scaled", "sampling": "evaluation"}
    )
    two: dict[str, Any] = {"eight_bits": "wrap" if slips else "scaled"}
    short: list[dict[str, Any]] = [{"epochs": 5, "images": 500}, {"epochs": 1, "images": 500}] if quick else [{}, {}]
    return {"GAN1": GAN1(seed=SEED, **one, **short[0]), "GAN2": GAN2(seed=SEED, **two, **short[1])}


def drawn(settings: GAN1 | GAN2, context: Context, limit: int | None) -> Drawn:
    """The images of a GAN, which are drawn once in a folder of results; training goes on from its checkpoint."""
    name = type(settings).__name__
    code = digest([gan.describe(settings), limit])
    path = context.out / "gans" / f"{name}-{code}.npz"
    checkpoint = path.with_suffix(".state")

    def make() -> None:
        data = usps_data(context, limit)
        x, y = (np.concatenate(arrays) for arrays in zip(data.validation, data.train, strict=True))  # as in the file
        gan.save(path, gan.draw(settings, usps.to_grey_levels(x)[:, 0], y, checkpoint))
        Path(checkpoint).unlink()

    return gan.load(made_once(path, make))
