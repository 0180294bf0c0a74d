"""Chest X-rays: the npz files, and the publishers' folders, all made up here."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rop
from rop import datasets
from rop.experiments.data.chest import COMMON, FINDINGS, MEAN, STD, common_columns

NAN = np.nan
COLUMNS = ("Atelectasis", "Cardiomegaly", "Pleural Effusion", "Pneumonia", "Pneumothorax", "Consolidation", "Edema")


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-6)  # NaN equals NaN


def row(**present: float) -> np.ndarray:
    """A target in which these findings are set and all others are NaN."""
    return np.array([present.get(name, NAN) for name in FINDINGS], np.float32)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_image(path: Path, grey: int, mode: str = "L") -> None:
    """A picture of 6×4 pixels of one grey value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 4), grey).convert(mode).save(path)


def grey_of(x: np.ndarray) -> list[int]:
    """The grey value of each image, from its first pixel."""
    return np.round((x[:, 0, 0, 0] * STD + MEAN) * 255).astype(int).tolist()


# ----------------------------------------------------------------------------------------------------------- npz files
@pytest.fixture
def packed(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 64, 64), dtype=np.uint8)
    labels = rng.integers(0, 2, (12, 14)).astype(np.uint8)
    parts, pa = np.repeat([0, 1, 2], 4).astype(np.uint8), np.tile([1, 0], 6).astype(np.uint8)
    np.savez(tmp_path / "nih_chest_64.npz", images=images, labels=labels, part=parts, pa=pa)
    test, pneumonia = np.repeat([1, 0], [2, 10]).astype(np.uint8), np.tile([0, 1], 6).astype(np.uint8)
    np.savez(tmp_path / "kermany_chest_64.npz", images=images, pneumonia=pneumonia, test=test)
    return tmp_path


def test_parts_labels_and_scaling_of_nih(packed: Path) -> None:
    found, raw = datasets.chest(packed), np.load(packed / "nih_chest_64.npz")
    assert found.labels == FINDINGS and found.classes == 14 and found.input_shape == (1, 64, 64)
    for number, (x, y) in enumerate((found.train, found.validation, found.test)):
        assert x.dtype == y.dtype == np.float32 and x.flags.c_contiguous
        same(x[:, 0], (raw["images"][raw["part"] == number] / 255 - MEAN) / STD)
        same(y, raw["labels"][raw["part"] == number])


def test_views(packed: Path) -> None:
    whole, pa, ap = (datasets.load("chest", packed, view=view) for view in (None, "PA", "AP"))
    same(pa.train[0], whole.train[0][::2])
    same(ap.test[1], whole.test[1][1::2])


def test_kermany_knows_pneumonia_only(packed: Path) -> None:
    found = datasets.chest(packed, source="kermany")
    assert [len(y) for _, y in (found.train, found.validation, found.test)] == [9, 1, 2]
    same(found.test[1], [row(pneumonia=0), row(pneumonia=1)])
    assert rop.metrics.mean_auc(np.tile([[0.0], [1.0]], 14), found.test[1]) == 1


def test_the_common_findings_have_one_order() -> None:
    assert [FINDINGS[i] for i in common_columns()] == list(COMMON) and len(set(COMMON)) == 6


def test_a_net_trains_on_several_labels(packed: Path) -> None:
    found = datasets.chest(packed)
    net = rop.Sequential(rop.AvgPool2d(32), rop.Flatten(), rop.Linear(4, 14))
    fit = rop.train(net, rop.BCEWithLogits(), found.train, validation=found.validation, epochs=2, batch_size=2)
    assert np.isfinite(fit.column("valid_loss")).all() and fit.w.shape == (net.size,)


# -------------------------------------------------------------------------------------------------- publishers' folders
@pytest.fixture
def nih(tmp_path: Path) -> Path:
    names = [f"0000000{i}_000.png" for i in range(1, 6)]
    findings = ["Cardiomegaly|Pleural_Thickening", "No Finding", "Hernia", "No Finding", "Effusion"]
    table = [
        {"Image Index": name, "Finding Labels": text, "Patient ID": i, "View Position": "PA" if i % 2 else "AP"}
        for i, (name, text) in enumerate(zip(names, findings, strict=True), 1)
    ]
    write_csv(tmp_path / "Data_Entry_2017_v2020.csv", table)
    (tmp_path / "train_val_list.txt").write_text("\n".join(names[:3]) + "\n")
    (tmp_path / "test_list.txt").write_text(names[3] + "\n")  # the fifth image is in no list
    for i, name in enumerate(names[:4]):
        write_image(tmp_path / f"images_00{1 + i // 2}" / "images" / name, 10 * i, "RGBA" if i == 1 else "L")
    return tmp_path


def test_the_folder_of_nih(nih: Path) -> None:
    found = datasets.chest(nih, source="nih-folder", size=5)
    assert found.input_shape == (1, 5, 5)
    assert [grey_of(x) for x, _ in (found.train, found.validation, found.test)] == [[10, 20], [0], [30]]
    expected = np.zeros(14)
    expected[[FINDINGS.index("cardiomegaly"), FINDINGS.index("pleural thickening")]] = 1
    same(found.validation[1], [expected])
    assert found.train[1][:, FINDINGS.index("hernia")].tolist() == [0, 1] and not found.test[1].any()


def marks(*texts: str) -> dict[str, str]:
    return dict(zip(COLUMNS, (*texts, *[""] * len(COLUMNS)), strict=False))


@pytest.fixture
def chexpert(tmp_path: Path) -> Path:
    def line(part: str, patient: int, view: str, **texts: str) -> dict[str, str]:
        path = f"CheXpert-v1.0-small/{part}/patient0000{patient}/study1/view1_{view.lower()}.jpg"
        write_image(tmp_path.joinpath(*path.split("/")[1:]), 20 * patient)
        return {"Path": path, "Frontal/Lateral": view, "AP/PA": "PA" if patient == 2 else "AP", **texts}

    train = [
        line("train", 1, "Frontal", **marks("1.0", "0.0", "-1.0")),
        line("train", 2, "Frontal", **marks("", "1.0")),
        line("train", 2, "Lateral", **marks("1.0")),
    ]
    write_csv(tmp_path / "train.csv", train)
    write_csv(tmp_path / "valid.csv", [line("valid", 3, "Frontal", **marks(*["1"] * 7))])
    return tmp_path


def test_the_folder_of_chexpert(chexpert: Path) -> None:
    found = datasets.chest(chexpert, source="chexpert", size=4)
    assert [grey_of(x) for x, _ in (found.train, found.validation, found.test)] == [[40], [20], [60]]
    rest = dict.fromkeys(("pneumonia", "pneumothorax", "consolidation", "edema"), 0.0)
    same(found.validation[1], [row(atelectasis=1, cardiomegaly=0, effusion=NAN, **rest)])  # −1 is unknown
    same(found.train[1], [row(atelectasis=0, cardiomegaly=1, effusion=0, **rest)])
    same(found.test[1][:, common_columns()], np.ones((1, 6)))
    unknown = datasets.chest(chexpert, source="chexpert", size=4, blank="unknown")
    same(unknown.train[1], [row(cardiomegaly=1)])


@pytest.fixture
def mimic(tmp_path: Path) -> Path:
    seen = [
        ("a", 10000032, 50, "PA", "train"),
        ("b", 10000032, 50, "LATERAL", "train"),
        ("c", 11000011, 51, "AP", "train"),
        ("d", 10000764, 52, "AP", "validate"),
        ("e", 10000980, 53, "PA", "test"),
        ("f", 10000980, 99, "PA", "test"),  # this study has no labels
    ]
    names = ("dicom_id", "subject_id", "study_id", "ViewPosition", "split")
    rows = [dict(zip(names, one, strict=True)) for one in seen]
    start = "mimic-cxr-2.0.0-"
    write_csv(tmp_path / f"{start}metadata.csv.gz", [{k: one[k] for k in names[:4]} for one in rows])
    write_csv(tmp_path / f"{start}split.csv.gz", [{k: one[k] for k in names if k != "ViewPosition"} for one in rows])
    labels = [{"subject_id": 0, "study_id": study, **marks("1.0", "-1.0")} for study in (50, 51, 52, 53)]
    write_csv(tmp_path / f"{start}chexpert.csv.gz", labels)
    for number, (dicom, subject, study, _, _) in enumerate(seen):
        write_image(tmp_path / "files" / f"p{subject}"[:3] / f"p{subject}" / f"s{study}" / f"{dicom}.jpg", 20 * number)
    return tmp_path


def test_the_folder_of_mimic(mimic: Path) -> None:
    found = datasets.chest(mimic, source="mimic", size=4)
    assert [grey_of(x) for x, _ in (found.train, found.validation, found.test)] == [[0, 40], [60], [80]]
    rest = dict.fromkeys(("effusion", "pneumonia", "pneumothorax", "consolidation", "edema"), 0.0)
    same(found.test[1], [row(atelectasis=1, **rest)])
    assert grey_of(datasets.chest(mimic, source="mimic", size=4, view="PA").train[0]) == [0]


# ------------------------------------------------------------------------------------------------------------- refusals
def refused(call: Any, *words: str) -> None:
    with pytest.raises(rop.RopError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_wrong_arguments(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(lambda: datasets.chest(packed, source="padchest"), "chest: source", "'kermany'", "'padchest'")
    refused(lambda: datasets.chest(packed, view="lateral"), "view", "'PA'", "'lateral'")
    refused(lambda: datasets.chest(packed, size=128), "size 64", "128")
    refused(lambda: datasets.chest(packed, source="mimic"), "mimic-cxr-2.0.0-chexpert.csv.gz", str(packed))
    monkeypatch.delenv("ROP_DATA", raising=False)
    refused(lambda: datasets.chest(), "cannot be downloaded", "$ROP_DATA")


def test_damaged_files_are_named(packed: Path, nih: Path, chexpert: Path) -> None:
    path = packed / "nih_chest_64.npz"
    np.savez(path, images=np.zeros((3, 64, 64), np.uint8))
    refused(lambda: datasets.chest(packed), str(path), "damaged", "no array 'labels'")
    path.write_bytes(b"no archive")
    refused(lambda: datasets.chest(packed), str(path), "damaged")
    table = nih / "Data_Entry_2017_v2020.csv"
    whole = table.read_text()
    table.write_text(whole.replace("Hernia", "Headache"))
    refused(lambda: datasets.chest(nih, source="nih-folder"), str(table), "'Headache'")
    table.write_text(whole.replace("Patient ID", "Patient"))
    refused(lambda: datasets.chest(nih, source="nih-folder"), str(table), "a column 'Patient ID'")
    table.write_text(whole)
    image = nih / "images_001" / "images" / "00000001_000.png"
    image.write_bytes(b"no picture")
    refused(lambda: datasets.chest(nih, source="nih-folder"), str(image))
    image.unlink()
    refused(lambda: datasets.chest(nih, source="nih-folder"), "no image", "00000001_000.png")
    marked = chexpert / "train.csv"
    marked.write_text(marked.read_text().replace("-1.0", "maybe"))
    refused(lambda: datasets.chest(chexpert, source="chexpert"), str(marked), "Pleural Effusion", "'maybe'")


def test_without_pillow_the_extra_is_named(nih: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(lambda: datasets.chest(nih, source="nih-folder"), "chest: Pillow", "rop[reproduce]")
