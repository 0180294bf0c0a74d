"""The group `medium` of the benchmark: known architectures, with their own batch sizes and modes of batchnorm."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rop import cli
from rop.bench import architectures, comparison, engines, flops, modules, problems, runner, settings
from rop.bench.architectures import densenet121, mobilenet, resnet18, vgg11
from rop.bench.problems import Problem
from rop.bench.vocabulary import BatchNorm, Conv, Flatten, Layer, Linear, Pool, norms_of, parameters_of, shape_after
from rop.commands.bench import bench_settings
from tests.bench.test_bench import answers

BY_NAME = problems.BY_NAME
RESNET18, DENSENET121 = BY_NAME["resnet18-32"], BY_NAME["densenet121-64"]


# ---------------------------------------------------------------------------------------------------- the architectures
def size(layers: tuple[Layer, ...]) -> int:
    return sum(math.prod(parameter.shape) for parameter in parameters_of(layers))


@pytest.mark.parametrize(
    ("build", "published"), [(resnet18, 11_689_512), (densenet121, 7_978_856), (mobilenet, 4_231_976)]
)
def test_parameters_are_as_many_as_published(build: Callable[[int], tuple[Layer, ...]], published: int) -> None:
    assert size(build(1000)) == published
    assert shape_after(build(1000), (3, 224, 224)) == (1000,)


def test_parameters_of_vgg_11() -> None:
    """The published net has 132,863,336: these convolutions, and linear layers 512·7·7 → 4096 → 4096 → 1000."""
    wide_head = size((Linear(512 * 49, 4096), Linear(4096, 4096), Linear(4096, 1000)))
    convolutions = vgg11(1000)[:-1]
    assert size(convolutions) + wide_head == 132_863_336
    assert size(vgg11(10)) == 9_220_480 + 512 * 10 + 10
    assert shape_after(convolutions, (3, 224, 224)) == (512 * 49,)


def test_the_problems_are_those_of_the_group() -> None:
    assert [(p.name, p.input_shape, p.batch, p.training, p.size) for p in problems.find("medium")] == [
        ("resnet18-32", (3, 32, 32), 32, False, 11_173_962),
        ("vgg11-32", (3, 32, 32), 32, False, 9_225_610),
        ("mobilenet-32", (3, 32, 32), 32, False, 3_217_226),
        ("densenet121-64", (3, 64, 64), 4, False, 6_968_206),
        ("resnet18-224", (3, 224, 224), 4, False, 11_181_642),
        ("densenet121-224", (3, 224, 224), 4, False, 6_968_206),
        ("densenet121-64-train", (3, 64, 64), 4, True, 6_968_206),
    ]
    assert not set(problems.GROUPS["all"]) & set(problems.MEDIUM)
    assert runner.left_out(["rop", "torch", "torch.func", "jax"], problems.MEDIUM) == [
        "jax was left out of densenet121-64, densenet121-224, densenet121-64-train: "
        "compiling it takes more than about a minute"
    ]


@pytest.mark.parametrize(
    ("problem", "pixels"),
    [(RESNET18, 4), (BY_NAME["mobilenet-32"], 2), (DENSENET121, 2), (BY_NAME["resnet18-224"], 7)],
    ids=lambda value: getattr(value, "name", None),
)
def test_images_are_as_small_at_the_end_as_described(problem: Problem, pixels: int) -> None:
    assert shape_after(problem.layers[:-3], problem.input_shape)[1:] == (pixels, pixels)


def test_doctests() -> None:
    outcome = doctest.testmod(architectures)
    assert outcome.attempted and not outcome.failed


# ------------------------------------------------------------------------------ small versions, compared across engines
SMALL = (
    Problem("resnet18-small-images", "", (3, 8, 8), resnet18(4, small_images=True, width=3), batch=3, training=False),
    Problem("resnet18", "", (3, 32, 32), resnet18(4, width=2), batch=3, training=False),
    Problem("vgg11", "", (3, 32, 32), vgg11(4, width=4), batch=3, training=False),
    Problem("mobilenet", "", (3, 16, 16), mobilenet(4, small_images=True, width=2), batch=3, training=False),
    Problem("densenet", "", (3, 16, 16), densenet121(5, growth=3, blocks=(2, 1, 2)), batch=3, training=False),
    Problem("densenet-train", "", (3, 16, 16), densenet121(5, growth=3, blocks=(2, 1, 2)), batch=5),
    Problem(
        "pools", "", (3, 9, 7), (Conv(3, 4, 1), Pool("max", 3, 2, 1), Pool("avg", 3, 1, 1), Flatten(), Linear(80, 4))
    ),
)
WORKS = ("grad", "hvp", "jet")


def by_parameter(problem: Problem, flat: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([math.prod(parameter.shape) for parameter in problem.parameters()])
    return np.split(flat, ends[:-1]) if flat.size == problem.size else [flat]


def compare_by_parameter(problem: Problem, answer: dict[str, Any], expected: dict[str, Any], who: str) -> None:
    """Each parameter's part alone: a small one that is wrong does not show in the norm of the whole."""
    for name in expected:
        parts = zip(by_parameter(problem, answer[name]), by_parameter(problem, expected[name]), strict=True)
        for k, (got, wanted) in enumerate(parts):
            assert np.linalg.norm(wanted) > 0, f"{name} of parameter {k} is zero, which would hide an error"
            comparison.compare({name: got}, {name: wanted}, "float64", f"{who}, parameter {k}")


@pytest.mark.parametrize("name", ["rop", "torch.func", pytest.param("jax", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("problem", SMALL, ids=lambda p: p.name)
def test_engines_agree_at_every_order(problem: Problem, name: str) -> None:
    pytest.importorskip(engines.ENGINES[name][1])
    batch = problem.batch or 3
    works = ("jet",) if name == "jax" else WORKS  # JAX compiles every work for many seconds, and a jet has all orders
    reference, given = answers("torch", problem, batch, works=works), answers(name, problem, batch, works=works)
    for work in works:
        expected = reference[work]["jet" if work == "jet" else next(iter(reference[work]))]
        for way, answer in [*given[work].items(), *reference[work].items()]:
            compare_by_parameter(problem, answer, expected, f"{name} ({way})")


@pytest.mark.parametrize("problem", SMALL, ids=lambda p: p.name)
def test_torch_has_its_own_batchnorm_as_a_way_in_evaluation_mode(problem: Problem) -> None:
    engine = engines.make("torch", 2)
    engine.prepare(problem, 3, "float32", problem.data(3, "float32"))
    frozen = not problem.training and any(norms_of(problem.layers))
    assert ("jet_fused" in engine.ways["jet"], "jet_fused@1" in engine.ways["jet"]) == (frozen, frozen)
    engine.prepare(SMALL[-1], 3, "float32", SMALL[-1].data(3, "float32"))
    assert engine.ways["jet"] == ("jet", "jet@1")


def test_torch_does_not_try_one_thread_for_large_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    from rop.bench.engines import torch_engine

    monkeypatch.setattr(torch_engine, "LARGE", SMALL[0].size)
    engine = engines.make("torch", 2)
    engine.prepare(SMALL[0], 3, "float32", SMALL[0].data(3, "float32"))
    assert engine.ways["grad"] == ("grad",) and engine.ways["jet"] == ("jet", "jet_fused")


# ------------------------------------------------------------------------------------------------ the mode of batchnorm
NORMS: tuple[Layer, ...] = (BatchNorm(6), Linear(6, 3))


def test_running_statistics_are_neither_0_nor_1_and_the_same_in_every_engine() -> None:
    problem = SMALL[0]
    statistics, state = problem.running(), problem.state()
    assert state is not None and len(statistics) == len(list(norms_of(problem.layers))) == 20
    names = problem.network().init_state()
    assert [value.shape for value in state.values()] == [value.shape for value in names.values()]
    for k, (name, value) in enumerate(state.items()):
        assert name.endswith(("running_mean", "running_var")[k % 2])
        np.testing.assert_array_equal(value, statistics[k // 2][k % 2])
        assert not np.any((value == 0) | (value == 1)) and len(set(value)) == value.size
        assert name.endswith("mean") or value.min() > 0
    assert (replace(problem, training=True).running(), replace(problem, training=True).state()) == ([], None)


@pytest.mark.parametrize("name", ["torch", "torch.func", "rop", "jax"])
def test_the_mode_changes_what_engines_compute(name: str) -> None:
    pytest.importorskip(engines.ENGINES[name][1])
    trains = Problem("norms", "", (6,), NORMS)
    evaluates = replace(trains, training=False)
    data = trains.data(5, "float64")
    losses = []
    for problem in (trains, evaluates):
        engine = engines.make(name, 1)
        engine.prepare(problem, 5, "float64", data)
        losses.append(float(engine.quantities("grad", engine.run("grad", 0))["loss"][0]))
    w, (mean, variance) = data.points[0], evaluates.running()[0]
    for loss, (m, v) in zip(losses, [(data.x.mean(0), data.x.var(0)), (mean, variance)], strict=True):
        z = ((data.x - m) / np.sqrt(v + 1e-5) * w[:6] + w[6:12]) @ w[12:30].reshape(3, 6).T + w[30:]
        by_hand = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(5), data.y])
        assert loss == pytest.approx(by_hand, rel=1e-12)


def test_a_module_brings_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n"
        "def f(): return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n"
        "def g(): return f().eval()\n"
    )
    assert modules.load(f"{file}:f").training is True
    assert modules.load(f"{file}:g").training is False


def test_frozen_batchnorm_bends_nothing() -> None:
    """On data it gives orders 0 and 1; with the statistics of the batch it would be the same, but not on x¹."""
    trains = Problem("", "", (6,), (Linear(6, 6), *NORMS), "mse")
    evaluates = replace(trains, training=False)
    # the first layer's output has orders 0 and 1, the norm's 0, 1, 2 in both modes: γ¹·x¹ in evaluation mode
    assert [c.products for c in flops.count(evaluates)] == [c.products for c in flops.count(trains)]
    first = Problem("", "", (6,), (BatchNorm(6), Linear(6, 3)), "mse", training=False)
    assert [c.products for c in flops.count(first)] == [[3, 6, 5]]


# ---------------------------------------------------------------------------------------------- batch, works, precision
def chosen(options: str) -> settings.Settings:
    return bench_settings(cli.parser().parse_args(["bench", *options.split()]))


def test_a_problem_has_its_own_batch_size() -> None:
    usual = settings.Settings()
    assert usual.batches_of(RESNET18) == (32,) and usual.batches_of(BY_NAME["forest"]) == (32, 128, 512)
    assert chosen("--problems medium --batch 7").batches_of(DENSENET121) == (4,)


@pytest.mark.parametrize(
    ("options", "float32", "float64"),
    [
        ("", ("grad", "jet"), ()),
        ("--quick", ("grad", "jet"), ()),
        ("--batch 8", ("grad", "jet"), ()),
        ("--works hvp jet", ("hvp", "jet"), ()),
        ("--dtype float64", ("grad", "jet"), ("grad", "jet")),
    ],
)
def test_works_and_precisions_of_a_problem(options: str, float32: tuple[str, ...], float64: tuple[str, ...]) -> None:
    named = chosen(f"--problems densenet121-64 {options}")
    assert named.works_at(DENSENET121, 4, "float32") == float32
    assert named.works_at(DENSENET121, 4, "float64") == float64


def test_a_run_measures_every_problem_at_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(runner.Run, "references", lambda self, *given: {})
    monkeypatch.setattr(runner.Run, "group", lambda self, label, *given: measured.append((label, given[3])))
    options = replace(
        chosen("--problems forest densenet121-64 resnet18-32 --batch 8 16 --works grad jet"), engines=("rop",)
    )
    run = runner.Run(replace(options, dtypes=("float32",)))
    run.problems(Path())
    both = ("grad", "jet")
    assert measured == [
        ("forest, batch 8, float32", both),
        ("forest, batch 16, float32", both),
        ("densenet121-64, batch 4, float32", both),
        ("resnet18-32, batch 32, float32", both),
    ]
    assert any("--batch is not that of densenet121-64, resnet18-32" in note for note in run.notes)
    assert not any("--batch" in note for note in runner.Run(chosen("--problems medium")).notes)


def test_an_engine_that_compiles_too_long_is_left_out_with_a_note() -> None:
    slow = replace(SMALL[0], too_slow=("jax",))
    assert (slow.left_out("jax"), slow.left_out("rop")) == ("compiling it takes more than about a minute", "")
    assert runner.left_out(["rop", "jax"], (slow, SMALL[1], replace(slow, name="other"))) == [
        "jax was left out of resnet18-small-images, other: compiling it takes more than about a minute"
    ]


def test_list_shows_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("densenet121-64 ") and "batch 4, evaluation mode" in line for line in lines)
    assert any(line.startswith("densenet121-64-train ") and "batch 4, training mode" in line for line in lines)
    (group,) = [line for line in lines if line.startswith("group medium")]
    assert group.endswith(", ".join(problem.name for problem in problems.MEDIUM))
