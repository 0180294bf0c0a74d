"""Chest X-rays with 14 findings each, from several hospitals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rop.arguments import check_choice, check_int
from rop.errors import ArgumentError
from rop.experiments.dataset import DataSet, part
from rop.experiments.files import Folder, damaged, file_in, folder_of, read

__all__ = ["chest"]

FINDINGS = (
    "atelectasis",
    "cardiomegaly",
    "effusion",
    "infiltration",
    "mass",
    "nodule",
    "pneumonia",
    "pneumothorax",
    "consolidation",
    "edema",
    "emphysema",
    "fibrosis",
    "pleural thickening",
    "hernia",
)
COMMON = ("atelectasis", "cardiomegaly", "consolidation", "edema", "pneumonia", "pneumothorax")  # the paper's six
SIDE = 64  # of the images in the npz files
MEAN, STD = 0.5164, 0.2490  # of the training pixels of nih_chest_64.npz, in [0, 1]
TRAIN, VALIDATION, TEST = range(3)
VALIDATION_SHARE = 10  # where a publisher has no validation part, every tenth row (or patient) of training is in it


class Table(NamedTuple):
    """Images and findings in the order of the files, before the parts are taken from them."""

    images: np.ndarray  # (N, side, side) uint8
    targets: np.ndarray  # (N, 14) float32: 1, 0, or NaN for unknown
    part: np.ndarray  # (N,): TRAIN, VALIDATION or TEST
    pa: np.ndarray  # (N,) bool: view PA, else AP


def common_columns() -> list[int]:
    """The columns of the paper's six findings, in the order of ``COMMON``.

    >>> common_columns()
    [0, 1, 8, 9, 6, 7]
    """
    return [FINDINGS.index(name) for name in COMMON]


def chest(
    data: Folder = None, source: str = "nih", view: str | None = None, size: int = SIDE, blank: str = "absent"
) -> DataSet:
    """Frontal chest X-rays (1, size, size) with a target for each of 14 findings, float32: 1 for present, 0 for absent,
    NaN for unknown. The columns are ``labels`` of the data set, the same for every source; findings that a source does
    not know are NaN. ``rop.BCEWithLogits`` and ``rop.metrics.mean_auc`` leave NaN out.

    Sources:
        "nih": nih_chest_64.npz, 4,999 images of NIH ChestX-ray14 with its own three parts.
        "kermany": kermany_chest_64.npz, children of another hospital; pneumonia only. Every tenth image of the
            publishers' training folder is in the validation part. All views are AP.
        "nih-folder", "chexpert", "mimic": the publishers' own folders, with Pillow, at any size; see
            rop/experiments/data/chest_folders.py.

    Pixels are scaled to [0, 1], then, for every source, by the mean 0.5164 and the standard deviation 0.2490 of the
    training part of "nih", so that a net sees all sources alike.

    Args:
        data: the folder of the files, else $ROP_DATA.
        source: see above.
        view: "PA" or "AP" keeps the images of that view only, in all parts.
        size: side of the images; 64 for the npz files.
        blank: of "chexpert" and "mimic": whether a finding that a report does not mention is "absent" (0) or "unknown".
    """
    from rop.experiments.data import chest_folders

    sources: Mapping[str, Callable[[Path], Table]] = {
        "nih": _nih,
        "kermany": _kermany,
        "nih-folder": lambda folder: chest_folders.nih(folder, size),
        "chexpert": lambda folder: chest_folders.chexpert(folder, size, blank),
        "mimic": lambda folder: chest_folders.mimic(folder, size, blank),
    }
    check_choice("chest", "source", source, tuple(sources))
    check_choice("chest", "view", view, (None, "PA", "AP"))
    check_choice("chest", "blank", blank, ("absent", "unknown"))
    check_int("chest", "size", size)
    if source in ("nih", "kermany") and size != SIDE:
        raise ArgumentError(f"chest: images of {source!r} have size {SIDE}, got size {size}; read a publisher's folder")
    folder = folder_of("chest", data)
    if folder is None:
        raise ArgumentError("chest: these images cannot be downloaded; name their folder with --data DIR or $ROP_DATA")
    return _data_set(sources[source](folder), view)


def _data_set(table: Table, view: str | None) -> DataSet:
    """The parts of a table, standardised."""
    grey = ((np.arange(256) / 255 - MEAN) / STD).astype(np.float32)
    kept = np.ones(len(table.pa), bool) if view is None else table.pa == (view == "PA")
    rows = [np.flatnonzero(kept & (table.part == number)) for number in (TRAIN, VALIDATION, TEST)]
    train, validation, test = (part(grey[table.images[one]][:, np.newaxis], table.targets[one]) for one in rows)
    return DataSet("chest", train, validation, test, classes=len(FINDINGS), labels=FINDINGS)


def _arrays(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Arrays of an npz file, whose shapes must be these after the first axis."""

    def load(path: Path) -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in shapes if name not in file]
            if missing:
                raise ValueError(f"no array {missing[0]!r}")
            return {name: file[name] for name in shapes}

    arrays = read("chest", path, load, "an npz file with " + ", ".join(shapes))
    count = len(arrays["images"])
    for name, shape in shapes.items():
        if arrays[name].shape != (count, *shape) or arrays[name].dtype != np.uint8:
            found = f"{arrays[name].shape} of {arrays[name].dtype}"
            raise damaged("chest", path, f"{name!r} as {(count, *shape)} of uint8", found)
    return arrays


def _nih(folder: Path) -> Table:
    shapes = {"images": (SIDE, SIDE), "labels": (len(FINDINGS),), "part": (), "pa": ()}
    found = _arrays(file_in("chest", folder, "nih_chest_64.npz"), shapes)
    return Table(found["images"], found["labels"].astype(np.float32), found["part"], found["pa"] == 1)


def _kermany(folder: Path) -> Table:
    shapes = {"images": (SIDE, SIDE), "pneumonia": (), "test": ()}
    found = _arrays(file_in("chest", folder, "kermany_chest_64.npz"), shapes)
    targets = np.full((len(found["images"]), len(FINDINGS)), np.nan, np.float32)
    targets[:, FINDINGS.index("pneumonia")] = found["pneumonia"]
    parts = np.where(found["test"] == 1, TEST, TRAIN)
    parts[np.flatnonzero(parts == TRAIN)[::VALIDATION_SHARE]] = VALIDATION
    return Table(found["images"], targets, parts, np.zeros(len(targets), bool))
