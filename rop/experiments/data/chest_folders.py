"""Chest X-rays in the folders in which NIH, Stanford (CheXpert) and MIT (MIMIC-CXR) publish them, read with Pillow.

    NIH         Data_Entry_2017_v2020.csv, train_val_list.txt, test_list.txt, and the images below any folders
    CheXpert    train.csv, valid.csv, and the images where the column Path says, below a folder of any name
    MIMIC-CXR   mimic-cxr-2.0.0-chexpert.csv.gz, -split.csv.gz, -metadata.csv.gz, and files/p10/p10000032/s50414267/…

Only frontal images are read. Each is brought to grey and to size × size pixels by Pillow's BOX filter, which takes
means over areas; its aspect is not kept. CheXpert and MIMIC-CXR write 1 for present, 0 for absent, −1 for uncertain
and nothing for a finding that the report does not mention: uncertain ones are unknown (NaN), and ``blank`` says what
nothing means.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from rop.errors import ArgumentError, missing_package
from rop.experiments.data.chest import FINDINGS, TEST, TRAIN, VALIDATION, VALIDATION_SHARE, Table
from rop.experiments.files import damaged, file_in, read

Row = dict[str, str]
NIH_VALIDATION = 8  # every eighth patient of train_val_list.txt: 12.5 %, as in CheXNet's lists
IN_CHEXPERT = {  # the columns of CheXpert and MIMIC-CXR that NIH has, too
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
    "effusion": "Pleural Effusion",
    "pneumonia": "Pneumonia",
    "pneumothorax": "Pneumothorax",
    "consolidation": "Consolidation",
    "edema": "Edema",
}
MIMIC_PARTS = {"train": TRAIN, "validate": VALIDATION, "test": TEST}


def nih(folder: Path, size: int) -> Table:
    """NIH ChestX-ray14. Every eighth patient of train_val_list.txt is in the validation part."""
    path = file_in("chest", folder, "Data_Entry_2017_v2020.csv")
    rows = _rows(path, ("Image Index", "Finding Labels", "Patient ID", "View Position"))
    lists = {name: set(_lines(file_in("chest", folder, name))) for name in ("train_val_list.txt", "test_list.txt")}
    patients = sorted({int(row["Patient ID"]) for row in rows if row["Image Index"] in lists["train_val_list.txt"]})
    validation = set(patients[::NIH_VALIDATION])
    places = {one.name: one for one in folder.rglob("*.png")}
    kept, parts = [], []
    for row in rows:
        name = row["Image Index"]
        if name in lists["test_list.txt"]:
            parts.append(TEST)
        elif name in lists["train_val_list.txt"]:
            parts.append(VALIDATION if int(row["Patient ID"]) in validation else TRAIN)
        else:
            continue
        kept.append(row)
    images = _images((places.get(row["Image Index"], folder / row["Image Index"]) for row in kept), size)
    targets = np.array([_named_findings(path, row["Finding Labels"]) for row in kept], np.float32)
    return _table(path, images, targets, parts, [row["View Position"] for row in kept])


def chexpert(folder: Path, size: int, blank: str) -> Table:
    """CheXpert. valid.csv is the test part; every tenth patient of train.csv is in the validation part."""
    images, targets, parts, views = [], [], [], []
    for name in ("train.csv", "valid.csv"):
        path = file_in("chest", folder, name)
        rows = _rows(path, ("Path", "Frontal/Lateral", "AP/PA", *IN_CHEXPERT.values()))
        rows = [row for row in rows if row["Frontal/Lateral"] == "Frontal"]
        patients = sorted({_patient(row["Path"]) for row in rows})
        validation = set(patients[::VALIDATION_SHARE]) if name == "train.csv" else set()
        for row in rows:
            held_out = VALIDATION if _patient(row["Path"]) in validation else TRAIN
            parts.append(held_out if name == "train.csv" else TEST)
            images.append(folder.joinpath(*Path(row["Path"]).parts[1:]))  # the first part is the publishers' folder
            targets.append(_marked_findings(path, row, blank))
            views.append(row["AP/PA"])
    return _table(folder, _images(images, size), np.array(targets, np.float32), parts, views)


def mimic(folder: Path, size: int, blank: str) -> Table:
    """MIMIC-CXR-JPG, with the publishers' three parts. Images whose study has no labels are left out."""
    start = "mimic-cxr-2.0.0-"
    files = {name: file_in("chest", folder, f"{start}{name}.csv.gz") for name in ("chexpert", "split", "metadata")}
    labels = {row["study_id"]: row for row in _rows(files["chexpert"], ("study_id", *IN_CHEXPERT.values()))}
    views = {row["dicom_id"]: row["ViewPosition"] for row in _rows(files["metadata"], ("dicom_id", "ViewPosition"))}
    rows = [
        row
        for row in _rows(files["split"], ("dicom_id", "study_id", "subject_id", "split"))
        if views.get(row["dicom_id"]) in ("PA", "AP") and row["study_id"] in labels
    ]
    for row in rows:
        if row["split"] not in MIMIC_PARTS:
            raise damaged("chest", files["split"], f"split as {', '.join(MIMIC_PARTS)}", repr(row["split"]))
    places = [
        folder / "files" / f"p{row['subject_id'][:2]}" / f"p{row['subject_id']}" / f"s{row['study_id']}"
        / f"{row['dicom_id']}.jpg"
        for row in rows
    ]  # fmt: skip
    targets = [_marked_findings(files["chexpert"], labels[row["study_id"]], blank) for row in rows]
    parts = [MIMIC_PARTS[row["split"]] for row in rows]
    seen = [views[row["dicom_id"]] for row in rows]
    return _table(folder, _images(places, size), np.array(targets, np.float32), parts, seen)


# ------------------------------------------------------------------------------------------------------------- findings
def _named_findings(path: Path, text: str) -> np.ndarray:
    """Findings of NIH, which names those that are present: "Effusion|Pleural_Thickening" or "No Finding"."""
    target = np.zeros(len(FINDINGS), np.float32)
    for name in text.split("|"):
        if name == "No Finding":
            continue
        known = name.replace("_", " ").lower()
        if known not in FINDINGS:
            raise damaged("chest", path, f"findings among {', '.join(FINDINGS)}", repr(name))
        target[FINDINGS.index(known)] = 1
    return target


def _marked_findings(path: Path, row: Mapping[str, str], blank: str) -> np.ndarray:
    """Findings of CheXpert and MIMIC-CXR, which have a column for each; unknown where there is none."""
    target = np.full(len(FINDINGS), np.nan, np.float32)
    for name, column in IN_CHEXPERT.items():
        text = row[column].strip()
        marks = {"": 0.0 if blank == "absent" else np.nan, "1": 1.0, "0": 0.0, "-1": np.nan}
        mark = text.removesuffix(".0")
        if mark not in marks:
            raise damaged("chest", path, f"1, 0, -1 or nothing for {column}", repr(text))
        target[FINDINGS.index(name)] = marks[mark]
    return target


def _patient(path: str) -> str:
    """The patient of a CheXpert image: CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg."""
    return Path(path).parts[-3]


# --------------------------------------------------------------------------------------------------------------- files
def _text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")


def _lines(path: Path) -> list[str]:
    return read("chest", path, lambda path: _text(path).split(), "a list of file names")


def _rows(path: Path, columns: Iterable[str]) -> list[Row]:
    """The rows of a CSV file, which must have these columns."""
    rows = read("chest", path, lambda path: list(csv.DictReader(io.StringIO(_text(path)))), "a CSV file")
    for column in columns:
        if not rows or rows[0].get(column) is None:
            found = ", ".join(map(str, rows[0])) if rows else "no rows"
            raise damaged("chest", path, f"a column {column!r}", found)
    return rows


def _images(paths: Iterable[Path], size: int) -> np.ndarray:
    """Grey images (N, size, size), uint8."""
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package("chest", "Pillow", "reproduce", error) from error

    def grey(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("L").resize((size, size), Image.Resampling.BOX))

    images = []
    for path in paths:
        if not path.is_file():
            raise ArgumentError(
                f"chest: there is no image {path}, which the tables name; unpack all archives of images"
            )
        images.append(read("chest", path, grey, "an image"))
    return np.array(images, np.uint8).reshape(-1, size, size)


def _table(source: Path, images: np.ndarray, targets: np.ndarray, parts: list[int], views: list[str]) -> Table:
    numbers = np.array(parts, np.int64)
    for number, name in enumerate(("training", "validation", "test")):
        if not (numbers == number).any():
            raise damaged("chest", source, f"frontal images of the {name} part", "none")
    return Table(images, targets.reshape(-1, len(FINDINGS)), numbers, np.array(views) == "PA")
