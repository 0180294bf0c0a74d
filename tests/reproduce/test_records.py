"""Records: what is written comes back, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rop
from rop.reproduce.records import read_record, read_records, record_path, unfinished, versions, write_record
from rop.reproduce.spec import Context, Task
from tests.helpers import made_up

TASK = Task("made-up", "one", 0, "published", {"epochs": 3, "sizes": (1, 2)})


def test_a_record_comes_back(tmp_path: Path) -> None:
    write_record(tmp_path, TASK, {"score": 0.5, "by": {"32": 1.0}}, 1.25)
    record = read_record(record_path(tmp_path, TASK))
    assert record.task == TASK and record.figures == {"score": 0.5, "by": {"32": 1.0}} and record.seconds == 1.25
    assert (
        record.versions == versions() and {"rop", "numpy", "numba", "torch"} <= set(record.versions) and record.machine
    )


def test_records_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    other = Task("made-up", "one", 0, "published", {"epochs": 4, "sizes": (1, 2)})
    later = Task("made-up", "one", 7, "published", TASK.settings)
    for task in (TASK, other, later):
        write_record(tmp_path, task, {"score": task.settings["epochs"]}, 0.0)
    records, others = read_records(tmp_path, [TASK])
    assert records.values("score") == {0: 3.0, 7: 3.0} and others == 1
    assert unfinished(tmp_path, [TASK, other]) == []


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "no JSON"),
        (lambda path: path.write_text("[]"), "another file"),
        (lambda path: change(path, format="x"), "another file"),
        (lambda path: change(path, settings={"epochs": 100}), "changed settings"),
        (lambda path: change(path, seed=-1), "seed"),
        (lambda path: change(path, figures=None), "got"),
        (lambda path: path.rename(path.with_name("one-published-00000000-seed0.json")), "the record of another task"),
    ],
)
def test_a_damaged_or_foreign_record_is_named(tmp_path: Path, damage: Any, expected: str) -> None:
    write_record(tmp_path, TASK, {"score": 0.5}, 0.0)
    damage(record_path(tmp_path, TASK))
    (path,) = (tmp_path / "records").glob("*.json")
    with pytest.raises(rop.ArgumentError, match=expected) as caught:
        read_records(tmp_path, [TASK])
    assert str(path) in str(caught.value) and "remove the file, and the task runs again" in str(caught.value)


def test_figures_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    for figures in ({"score": float("nan")}, {"score": object()}):
        with pytest.raises(rop.RopError, match="JSON-able and finite"):
            write_record(tmp_path, TASK, figures, 0.0)
    assert not record_path(tmp_path, TASK).exists()


def test_a_half_written_record_is_removed_and_its_task_runs_again(tmp_path: Path) -> None:
    path = record_path(tmp_path, TASK)
    path.parent.mkdir()
    leftover = path.with_name(f".{path.name}.0123abcd")
    leftover.write_text("{")
    assert unfinished(tmp_path, [TASK]) == [TASK] and not leftover.exists()


def test_tasks_are_plain_data() -> None:
    assert TASK.settings["sizes"] == [1, 2]
    with pytest.raises(rop.ArgumentTypeError, match="JSON-able"):
        Task("made-up", "one", 0, "published", {"net": object()})
    with pytest.raises(rop.ArgumentError, match="variant"):
        Task("made-up", "one", 0, "improved")


def test_a_limit_cuts_every_part_of_a_data_set(tmp_path: Path) -> None:
    context = Context(tmp_path, tmp_path, load=made_up.load)
    whole, cut = context.dataset("forest"), context.dataset("forest", 100)
    assert [len(y) for _, y in (cut.train, cut.validation, cut.test)] == [100, 100, 100] and len(whole.train[1]) == 520
    assert (cut.test[0] == whole.test[0][:100]).all()
