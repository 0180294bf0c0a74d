"""The experiments but usps and usps-batch, in miniature on made-up data, from tasks to reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numba
import numpy as np
import pytest

import rop
from rop.reproduce import render
from rop.reproduce.experiments import chest, experiment, forest, gap
from rop.reproduce.experiments.forest_batch import SIZES
from rop.reproduce.measures import rho_batch
from rop.reproduce.methods import entropy_sgd, valley_optimizer
from rop.reproduce.models import trained
from rop.reproduce.records import Records
from rop.reproduce.spec import Context
from rop.reproduce.study import Study
from tests.helpers import made_up

NAMES = ("forest", "forest-batch", "forest-batch-2", "gap", "time", "chest", "gradcam")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Nets as small as these lose more to synchronisation than they gain, all the more beside other tests."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)


@cache
def out() -> Path:
    """One folder for all tests of this file: experiments share trained models in it."""
    return Path(mkdtemp(prefix="rop-reproduce-"))


@cache
def done(name: str) -> tuple[Study, Records]:
    """An experiment, run with one epoch for each model."""
    study = Study(experiment(name), out(), seeds=1, quick=True, epochs=1, load=made_up.load)
    failures = [outcome.error for outcome in study.run(study.left(), 1) if outcome.error]
    assert not failures, failures[0]
    return study, study.records()[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_of_every_table_is_filled(name: str, tmp_path: Path) -> None:
    study, records = done(name)
    assert len(records) == len(study.tasks) and not study.left()
    report = render.report_of(study.experiment, records, "rop reproduce", quick=True)
    text = render.markdown(report)
    assert text.count("not run") == text.count("“not run”"), "every cell has its figure"
    assert render.draw(report, tmp_path) is not None and render.latex(report)
    for _, verdicts in report.verdicts:
        assert {one.verdict for one in verdicts.values()} <= {"within the noise of seeds", "holds", "does not hold"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_settings_tell_tasks_apart_and_are_complete(name: str, quick: bool) -> None:
    tasks = experiment(name).checked_tasks(2, quick, None)
    assert len(tasks) == (1 if quick else 2) * len({(task.model, task.variant) for task in tasks})
    assert {task.key for task in tasks}.isdisjoint(task.key for task in experiment(name).checked_tasks(2, quick, 7))
    for task in tasks:
        assert json.loads(json.dumps(task.settings)) == task.settings


def test_the_paper_s_number_of_epochs_is_the_default() -> None:
    usual, given = (experiment("forest").checked_tasks(1, False, epochs) for epochs in (None, 100))
    assert [task.key for task in usual] == [task.key for task in given]


def test_the_published_variant_has_every_quirk_and_the_corrected_none() -> None:
    published, corrected = (
        {model: forest.recipe(model, variant, 0) for model in forest.MODELS} for variant in ("published", "corrected")
    )
    for one in published.values():
        assert (one.order, one.partial_batch, one.select) == ("fixed", True, True)
    for one in corrected.values():
        assert (one.order, one.partial_batch) == ("shuffled", False)
    old, new = (recipes["mu=0.01 K=0"].settings()["regularizer"] for recipes in (published, corrected))
    quirks = {"stop": "published", "start_vector": "constant", "signed": False, "limit": None}
    assert quirks.items() <= old.items() and not quirks.items() & new.items()
    assert published[forest.ENTROPY].settings()["optimizer"]["steps"] == 0
    assert corrected[forest.ENTROPY].settings()["optimizer"]["steps"] == 20
    assert published[forest.VALLEY].settings()["optimizer"]["is"] == "SGD"
    assert corrected[forest.VALLEY].settings()["optimizer"]["is"] == "SWA" and not corrected[forest.VALLEY].select


def test_the_asymmetric_valley_has_the_published_phases() -> None:
    base, epochs = valley_optimizer("published", 100)
    rate: Callable[[np.ndarray, int], float] = base.lr  # type: ignore[assignment]
    assert epochs == 250 and valley_optimizer("corrected", 100)[1] == 200
    found = [rate(np.arange(1), epoch) for epoch in (1, 80, 145, 161, 200, 201, 250)]
    assert found == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.05, 0.5, 0.5])
    halfway = 0.5 - 0.45 * (113 / 161 - 0.5) / 0.4
    assert rate(np.arange(1), 113) == pytest.approx(halfway)
    for budget in (1, 2, 3, 10):  # phases stay in order when they are scaled down
        swa, last = valley_optimizer("corrected", budget)
        assert 1 <= swa.first <= swa.last == last  # type: ignore[attr-defined]
    assert entropy_sgd("corrected", 100)[1] == 5


def test_ten_models_and_seven_seeds_are_seventy(tmp_path: Path) -> None:
    tasks = gap.EXPERIMENT.checked_tasks(None, False, None)
    assert len(tasks) == 70 and len({task.model for task in tasks}) == 10


def test_experiments_share_trained_models() -> None:
    done("forest")
    before = set((out() / "models").iterdir())
    done("forest-batch-2")
    assert set((out() / "models").iterdir()) == before, "forest has trained all of them"


def test_figures_are_those_of_the_trained_net() -> None:
    _, records = done("forest-batch-2")
    (record,) = records.where(model=forest.STRICTEST, variant="corrected")
    context = Context(out(), out() / "nowhere", load=made_up.load)
    model = trained(forest.recipe_of(record.task), context)
    train = context.dataset("forest").train
    for size in SIZES:
        expected = rho_batch(model.net, rop.CrossEntropy(), model.w, *train, size)
        assert record.figures["rho_batch"][str(size)] == expected
    (other,) = done("forest")[1].where(model=forest.STRICTEST, variant="corrected")
    assert other.figures["rho_batch"] == record.figures["rho_batch"]["128"]
    _, accuracy = rop.evaluate(model.net, rop.CrossEntropy(), model.w, *context.dataset("forest").test)
    assert other.figures["test_accuracy"] == accuracy


def test_the_gap_is_relative() -> None:
    for record in done("gap")[1]:
        figures = record.figures
        for name in gap.SETS:
            assert figures[f"gap_{name}"] == pytest.approx(figures[name] / figures["test"] - 1)


def test_the_parts_of_a_step_add_up() -> None:
    _, records = done("time")
    assert all(record.figures["epoch_seconds"] > 0 for record in records)
    (record,) = records.where(model="forest: power iteration", variant="corrected")
    share = record.figures["share"]
    assert sum(share.values()) == pytest.approx(1) and share["power"] > share["rest"]
    (valley,) = records.where(model="usps: asymmetric valley", variant="published")
    assert valley.figures["run_seconds"] == pytest.approx(250 * valley.figures["epoch_seconds"])


def test_chest_models_start_from_the_same_net() -> None:
    _, records = done("chest")
    tasks = {record.task.model: record.task for record in records}
    context = Context(out(), out() / "nowhere", load=made_up.load)
    start = trained(chest.recipe_of(tasks[chest.START]), context)
    near = trained(chest.recipe_of(tasks[chest.UNREGULARISED]), context)
    assert 0 < np.abs(near.w - start.w).max() < 1e-3, "a few steps of Adam with rate 1e-5"
    (record,) = records.where(model=chest.START)
    scores, targets = chest.scores_of(start, context.dataset("chest", source="nih").test)
    assert record.figures["auc_14"] == rop.metrics.mean_auc(scores, targets)
    (record,) = records.where(model=chest.pa(chest.START))
    assert record.figures["drop_AP"] == pytest.approx(record.figures["auc_AP"] - record.figures["auc_6"])


def test_the_overlap_of_two_models_does_not_depend_on_their_order() -> None:
    _, records = done("gradcam")
    (one,), (other,) = (records.where(model=model) for model in (chest.PENALISED, chest.KFAC))
    assert one.figures["test"]["K-FAC"] == other.figures["test"]["penalty"]
    assert one.figures["test"]["penalty"] in (0.0, 1.0), "a model and itself; 0 where all maps are empty"
