"""Checkpoints: which run they belong to, what is looked at before they are used, and how they are written."""

from __future__ import annotations

import dataclasses
import errno
import functools
import inspect
import io
import json
import os
import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.training import checkpoint as files
from rop.training import resume
from rop.training import run as trainer
from rop.training.fingerprint import described, digest
from tests.training.test_trainer import fit, moons, same

# ------------------------------------------------------------------------------------------------------- fingerprints


def line(x: float) -> tuple[float, float, float, float]:
    return 2 * x, 2.0, 0.0, 0.0


def other_line(x: float) -> tuple[float, float, float, float]:
    return 3 * x, 3.0, 0.0, 0.0


KINDS: dict[str, Any] = {**rop.layers.LAYERS, **rop.layers.LOSSES}
# For every argument that a layer or loss has, two values, or the only one; a new argument needs a line here.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "in_features": (4, 5),
    "out_features": (4, 5),
    "in_channels": (4, 8),
    "out_channels": (4, 8),
    "kernel_size": (4, (4, 3)),
    "stride": (1, (1, 2)),
    "padding": (1, 0),
    "dilation": (1, 2),
    "groups": (2, 4),
    "bias": (True, False),
    "ceil_mode": (False, True),
    "count_include_pad": (True, False),
    "output_size": (2, 3),
    "start_dim": (1,),
    "end_dim": (-1,),
    "negative_slope": (0.01, np.nextafter(0.01, 1)),
    "beta": (1.0, 2.0),
    "alpha": (1.0, 2.0),
    "min_val": (-1.0, -2.0),
    "max_val": (1.0, 2.0),
    "delta": (1.0, 2.0),
    "log_target": (False, True),
    "threshold": (20.0, 19.0),
    "approximate": ("none", "tanh"),
    "dim": (1, -1),
    "num_features": (4, 5),
    "num_channels": (4, 8),
    "num_groups": (2, 4),
    "normalized_shape": (4, 5),
    "elementwise_affine": (True, False),
    "eps": (1e-5, 1e-6),
    "momentum": (0.1, 0.2),
    "affine": (True, False),
    "function": (line, other_line),
    "weight": ([1.0, 2.0], [1.0, 2.5]),
    "pos_weight": ([1.0, 2.0], [1.0, 2.5]),
    "reduction": ("mean", "sum"),
    "label_smoothing": (0.0, 0.1),
    "ignore_index": (-100, -1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_argument_of_every_layer_and_loss_counts(kind: str) -> None:
    names = [name for name in inspect.signature(KINDS[kind]).parameters if name != "parameters"]
    first = {name: ARGUMENTS[name][0] for name in names}
    assert digest(KINDS[kind](**first)) == digest(KINDS[kind](**first))
    json.dumps(described(KINDS[kind](**first)))
    for name in names:
        for other in ARGUMENTS[name][1:]:
            assert digest(KINDS[kind](**first)) != digest(KINDS[kind](**{**first, name: other})), name


def test_layers_of_other_classes_and_parameters_differ() -> None:
    def scaled(x: float, a: float) -> tuple[float, float, float, float]:
        return a * x, a, 0.0, 0.0

    different = [
        rop.Tanh(),
        rop.Sigmoid(),
        rop.SiLU(),
        rop.ReLU(),
        rop.Identity(),
        rop.BatchNorm1d(4),
        rop.BatchNorm2d(4),
        rop.Softmax(1),
        rop.LogSoftmax(1),
        rop.Elementwise(scaled, 1.0),
        rop.Elementwise(scaled, 2.0),
    ]
    assert len({digest(layer) for layer in different}) == len(different)


def joined(order: tuple[int, int], shared: bool = False) -> rop.Graph:
    x, first, second = rop.Input(), rop.Linear(2, 2), rop.Linear(2, 2)
    branches = first(x), (first if shared else second)(x)
    return rop.Graph(x, rop.Linear(4, 2)(rop.Concat()(*(branches[i] for i in order))))


def skipping(over: int) -> rop.Graph:
    x = rop.Input()
    h = [x]
    for _ in range(3):
        h.append(rop.Linear(2, 2)(h[-1]))
    return rop.Graph(x, rop.Add()(h[over], h[3]))


def test_the_wiring_counts() -> None:
    assert digest(skipping(0)) == digest(skipping(0))
    nets = [skipping(0), skipping(1), skipping(2), joined((0, 1)), joined((1, 0)), joined((0, 1), shared=True)]
    assert len({digest(one) for one in nets}) == len(nets)
    assert len({skipping(over).summary_text() for over in (0, 1, 2)}) == 1, "the table of layers does not tell"


def schedule(scale: float) -> Callable[..., float]:
    return lambda k, epoch: scale / epoch


class Falling:
    def __init__(self, start: float):
        self.start, self.notes = start, [start]

    def __call__(self, k: Any, epoch: int) -> float:
        self.notes.append(epoch)
        return self.start / epoch


def parts(k: Any, epoch: int, start: float) -> float:
    return start / epoch


@pytest.mark.parametrize(
    "make",
    [
        schedule,
        Falling,
        lambda a: functools.partial(parts, start=a),
        lambda a: Falling(a).__call__,
        rop.inverse_epoch,
        lambda a: lambda k, epoch, start=a: start,
        float,
    ],
)
def test_schedules_are_known_by_what_they_do(make: Any) -> None:
    one, again, other = (rop.SGD(lr=make(rate)) for rate in (0.1, 0.1, 0.2))
    if callable(one.lr):
        one.lr(np.arange(3), 1)
    assert described(one) == described(again) != described(other)


Y = np.arange(600) % 2
BASE: dict[str, Any] = {
    "epochs": 1,
    "net": rop.Sequential(rop.Linear(2, 4), rop.BatchNorm1d(4), rop.LeakyReLU(0.01), rop.Linear(4, 2)),
    "validation": moons(40, seed=1),
    "loss": rop.CrossEntropy(weight=[1.0, 2.0]),
    "regularizer": None,
}


def layers(*middle: Any) -> rop.Graph:
    return rop.Sequential(rop.Linear(2, 4), *middle, rop.Linear(4, 2))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"net": layers(rop.BatchNorm1d(4), rop.LeakyReLU(0.02))}, "net"),
        ({"net": layers(rop.BatchNorm1d(4, eps=1e-4), rop.LeakyReLU(0.01))}, "net"),
        ({"net": layers(rop.BatchNorm1d(4, momentum=0.2), rop.LeakyReLU(0.01))}, "net"),
        ({"loss": rop.CrossEntropy(weight=[1.0, 2.5])}, "loss"),
        ({"loss": rop.CrossEntropy(weight=[1.0, 2.0], label_smoothing=0.1)}, "loss"),
        ({"optimizer": rop.SGD(lr=lambda k, epoch: 0.3)}, "optimizer"),
        ({"regularizer": rop.SpectralRadius()}, "regularizer"),
        ({"data": (moons()[0], 1 - moons()[1])}, "data"),
        ({"data": (2 * moons()[0], moons()[1])}, "data"),
        ({"validation": (moons(40, seed=1)[0], 1 - moons(40, seed=1)[1])}, "validation"),
        ({"validation": moons(40, seed=2)}, "validation"),
        ({"validation": None}, "validation"),
        ({"state": {"1.running_mean": np.ones(4), "1.running_var": np.ones(4)}}, "start"),
    ],
)
def test_a_checkpoint_goes_on_in_its_own_run_only(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    fit(checkpoint=tmp_path, **BASE)
    with pytest.raises(rop.ArgumentError, match=rf"with other settings: {named}; it was left as it is"):
        fit(checkpoint=tmp_path, resume=True, **{**BASE, **change})
    equal = layers(rop.BatchNorm1d(4), rop.LeakyReLU(0.01))
    fit(checkpoint=tmp_path, resume=True, **{**BASE, "net": equal, "epochs": 2})


@pytest.mark.parametrize(("solver", "limit"), [("power", None), ("lanczos", None), ("track", 0.5)])
def test_a_checkpoint_from_before_there_was_a_limit_goes_on(solver: str, limit: float | None, tmp_path: Path) -> None:
    """Then "track" alone had a limit, of 0.5; a run with another one is another run."""
    penalty = rop.SpectralRadius(mu=0.05, maxiter=10, solver=solver, limit=limit)
    fit(checkpoint=tmp_path, epochs=1, regularizer=penalty)
    meta, arrays = files.load(tmp_path / files.FILE)
    del meta["settings"]["regularizer"]["limit"]
    files.save(tmp_path / files.FILE, meta, arrays)
    with pytest.raises(rop.ArgumentError, match="with other settings: regularizer"):
        fit(checkpoint=tmp_path, resume=True, epochs=2, regularizer=dataclasses.replace(penalty, limit=0.3))
    same(fit(checkpoint=tmp_path, resume=True, epochs=2, regularizer=penalty), fit(epochs=2, regularizer=penalty))


def test_labels_of_any_integer_type_are_the_same(tmp_path: Path) -> None:
    x, y = moons()
    fit(checkpoint=tmp_path, epochs=1, data=(x, y.astype(np.int32)))
    fit(checkpoint=tmp_path, epochs=1, data=(x, y.astype(np.int64)), resume=True)


def test_another_kind_of_cpu_goes_on_with_a_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(resume, "machine", lambda device: {"device": device, "cpu": "an earlier one"})
    fit(checkpoint=tmp_path, epochs=2)
    monkeypatch.undo()
    capsys.readouterr()
    same(fit(checkpoint=tmp_path, epochs=4, resume=True), fit(epochs=4))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cpu an earlier one, now" in said and "last bits will differ" in said
    fit(checkpoint=tmp_path, epochs=4, resume=True)
    assert capsys.readouterr().err == "", "what has gone on here was saved here"


# ------------------------------------------------------------------------------------------- what is in a checkpoint
OPTIONS: dict[str, Any] = {
    "epochs": 2,
    "validation": moons(40, seed=1),
    "optimizer": rop.Adam(),
    "net": rop.Sequential(rop.Linear(2, 4), rop.BatchNorm1d(4), rop.Tanh(), rop.Linear(4, 2)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The checkpoint of a run of two epochs."""
    folder = tmp_path_factory.mktemp("whole")
    fit(checkpoint=folder, **OPTIONS)
    return (folder / files.FILE).read_bytes()


def refused(folder: Path, *says: str, **options: Any) -> None:
    path = folder / files.FILE
    before = path.read_bytes()
    with pytest.raises(rop.ArgumentError) as error:
        fit(checkpoint=folder, resume=True, **{**OPTIONS, **options})
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    for words in says:
        assert words in str(error.value)
    assert path.read_bytes() == before


def changed(folder: Path, whole: bytes, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> None:
    path = folder / files.FILE
    path.write_bytes(whole)
    meta, arrays = files.load(path)
    change(meta, arrays)
    files.save(path, meta, arrays)


META: list[tuple[str, Any, str]] = [
    ("step", -5, "'step', got -5"),
    ("step", 10, "from 0 to 9"),
    ("step", 3, "shape (3, 10) of float64 for 'reports'"),
    ("step", 1.0, "'step'"),
    ("step", True, "'step'"),
    ("step", None, "'step'"),
    ("step", 2**70, "'step'"),
    ("epoch", 0, "expected 3 for 'epoch', got 0"),
    ("epoch", 4, "'epoch'"),
    ("epoch", "3", "'epoch'"),
    ("best_epoch", 0, "from 1 to 2 for 'best_epoch'"),
    ("best_epoch", 3, "'best_epoch'"),
    ("best_epoch", -1, "'best_epoch'"),
    ("seconds", -1.0, "'seconds'"),
    ("seconds", float("nan"), "'seconds'"),
    ("seconds", "1", "'seconds'"),
    ("history", {}, "a list of rows"),
    ("history", [], "'epoch'"),
    ("history", [{"epoch": 1}, {"epoch": 2}], "'history[0]'"),
    ("history", [1, 2], "'history[0]'"),
    ("settings", None, "other settings: net"),
    ("settings", [], "other settings: net"),
]


@pytest.mark.parametrize(("name", "value", "says"), META)
def test_numbers_that_lead_nowhere_are_refused(name: str, value: Any, says: str, whole: bytes, tmp_path: Path) -> None:
    changed(tmp_path, whole, lambda meta, arrays: meta.update({name: value}))
    refused(tmp_path, says)
    changed(tmp_path, whole, lambda meta, arrays: meta.pop(name))
    refused(tmp_path)


@pytest.mark.parametrize("column", ["epoch", "loss", "accuracy", "rho", "hvps", "valid_loss", "seconds"])
def test_rows_of_the_history_are_looked_at(column: str, whole: bytes, tmp_path: Path) -> None:
    changed(tmp_path, whole, lambda meta, arrays: meta["history"][1].update({column: "x"}))
    refused(tmp_path, column)
    changed(tmp_path, whole, lambda meta, arrays: meta["history"][1].pop(column))
    refused(tmp_path, column)


ARRAYS: list[tuple[str, Callable[[np.ndarray], Any], str]] = [
    ("w", lambda a: a[:-1], "of float32 for 'w'"),
    ("w", lambda a: a.astype(np.float64), "of float64"),
    ("w", lambda a: a * np.nan, "'w'"),
    ("w", lambda a: a.reshape(2, -1), "'w'"),
    ("v", lambda a: a[:3], "'v'"),
    ("best/w", lambda a: a * np.inf, "'best/w'"),
    ("squares", lambda a: a - 1, "'squares'"),
    ("squares", lambda a: None, "got nothing"),
    ("state/1.running_var", lambda a: -a, "running_var"),
    ("state/1.running_mean", lambda a: a * np.nan, "running_mean"),
    ("best/state/1.running_mean", lambda a: np.zeros(5, np.float32), "running_mean"),
    ("reports", lambda a: np.zeros((3, 10)), "'reports'"),
    ("reports", lambda a: np.zeros((0, 9)), "'reports'"),
    ("profiled", lambda a: a[:2], "'profiled'"),
    ("more", lambda a: np.ones(2), "nothing for 'more'"),
    ("w", lambda a: a.astype(complex), "not an array of numbers"),
]


@pytest.mark.parametrize(("name", "change", "says"), ARRAYS)
def test_arrays_that_do_not_belong_are_refused(name: str, change: Any, says: str, whole: bytes, tmp_path: Path) -> None:
    def apply(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        value = change(arrays.get(name))
        arrays.pop(name, None)
        if value is not None:
            arrays[name] = value

    changed(tmp_path, whole, apply)
    refused(tmp_path, says)


def test_rows_of_the_data_are_within_it(tmp_path: Path) -> None:
    """K-FAC's factors are made again from samples that the checkpoint names."""
    options = {"regularizer": rop.SpectralRadius(mu=0.05, solver="paper_lobpcg", maxiter=2), "epochs": 1}
    fit(checkpoint=tmp_path, **options)
    path = tmp_path / files.FILE
    for wrong in (600, -2):
        changed(tmp_path, path.read_bytes(), lambda meta, arrays: arrays["kfac/batch"].fill(wrong))  # noqa: B023
        with pytest.raises(rop.ArgumentError, match="kfac/batch"):
            fit(checkpoint=tmp_path, resume=True, **options)


# --------------------------------------------------------------------------------------------------- damage and bombs
def test_a_checkpoint_that_is_cut_or_flipped_is_refused_or_the_same(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / files.FILE
    path.write_bytes(whole)
    meta, arrays = files.load(path)
    forms = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    harmless = 0
    for length in range(0, len(whole), 11):
        path.write_bytes(whole[:length])
        with pytest.raises(rop.ArgumentError, match=r"cannot be read|got something else"):
            files.load(path)
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            found = files.load(path, lambda meta: forms)
        except rop.ArgumentError as error:
            assert "\n" not in str(error)
            continue
        harmless += 1
        assert found[0] == meta
        np.testing.assert_equal(found[1], arrays)
    assert harmless < len(whole) / 5 / 4


def npy(shape: tuple[int, ...], content: bytes, descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("bomb", ["compressed", "header", "overlap", "object"])
def test_what_would_fill_the_memory_is_refused_before(bomb: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / files.FILE
    size, method = 2**27, zipfile.ZIP_DEFLATED if bomb == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        if bomb == "compressed":
            archive.writestr("w.npy", npy((size // 4,), bytes(size)))
        elif bomb == "object":
            archive.writestr("w.npy", npy((2,), bytes(16), "|O"))
        else:
            archive.writestr("w.npy", npy((10**13,), bytes(64)))
    if bomb == "overlap":  # a directory that promises more than the file has
        content = bytearray(path.read_bytes())
        at = content.rindex(b"PK\x01\x02")
        content[at + 20 : at + 28] = (size).to_bytes(4, "little") * 2
        path.write_bytes(bytes(content))
    tracemalloc.start()
    try:
        with pytest.raises(rop.ArgumentError, match="cannot be read"):
            files.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_checkpoint_of_the_version_before_is_named_as_such(whole: bytes, tmp_path: Path) -> None:
    changed(tmp_path, whole, lambda meta, arrays: meta.update(version=1))
    refused(tmp_path, "expected a checkpoint of version 2, got version 1; use the version of rop that wrote it")


# ------------------------------------------------------------------------------------------------------------- writing
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_get_the_permissions_that_the_umask_says(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        files.write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask


def test_leftovers_of_a_killed_save_are_removed_at_the_next_start(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path, epochs=1)
    left = [tmp_path / f".{files.FILE}.{end}" for end in ("abcd0123", "a_b_c_d_")]
    others = [
        tmp_path / name
        for name in (
            ".checkpoint.npz",
            ".checkpoint.npz.1",
            ".config.json.abcd0123",
            "x.checkpoint.npz.abcd0123",
            ".checkpoint.npz.abcd0123.bak",
        )
    ]
    for path in left + others:
        path.write_bytes(b"half")
    fit(checkpoint=tmp_path, epochs=1, resume=True)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / files.FILE, *others])


def test_what_is_just_being_written_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write(file: Any) -> None:
        file.write(b"new")
        files.remove_leftovers(path)

    files.write_atomically(path, write)
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def full_disk(monkeypatch: Any, after: int) -> list[int]:
    """Lets so many files be written, then none."""
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            calls.append(handle)
            if len(calls) > after:
                raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


@pytest.mark.parametrize("after", [1, 3])
def test_a_full_disk_stops_training_and_the_run_can_go_on(after: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trainer, "SAVE_EVERY", 0.0)
    full_disk(monkeypatch, after)
    with pytest.raises(trainer.TrainingStopped, match=r"No space left on device.*can be resumed") as stop:
        fit(checkpoint=tmp_path)
    assert "\n" not in str(stop.value) and np.isfinite(stop.value.fit.w_last).all()
    assert [path.name for path in tmp_path.iterdir()] == [files.FILE]
    monkeypatch.undo()
    same(fit(checkpoint=tmp_path, resume=True), fit())


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: Any) -> None:
    full_disk(monkeypatch, 0)
    with pytest.raises(trainer.TrainingStopped, match=r"No space left on device.*make room"):
        fit(checkpoint=tmp_path)
    assert list(tmp_path.iterdir()) == []
