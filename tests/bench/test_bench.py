"""The benchmark: its flop counts by hand, its refusal of wrong answers, and one tiny run from end to end."""

from __future__ import annotations

import doctest
import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest

import rop
from rop import cli
from rop.bench import (
    comparison,
    engines,
    flops,
    growth,
    plots,
    problems,
    processes,
    report,
    runner,
    settings,
    timing,
    worker,
)
from rop.bench.engines import Step
from rop.bench.problems import Problem
from rop.bench.vocabulary import Linear, Product, Residual
from rop.commands.bench import bench_settings

FOREST, USPS = problems.BY_NAME["forest"], problems.BY_NAME["usps"]
DTYPES = ("float32", "float64")
TINY = problems.find("mlp:6-5-3:tanh")
SETTINGS = settings.Settings(
    problems=TINY,
    batches=(8,),
    dtypes=("float64",),
    engines=("rop", "torch"),
    threads=1,
    rounds=1,
    burst=0.002,
    epoch_steps=20,
)


# ------------------------------------------------------------------------------------------------------ what is counted
def test_forest_by_hand():
    """54·20, 20·20, 20·20, 20·7 multiplications a product; x² = 0 after the first layer and its ReLU."""
    counts = flops.count(FOREST)
    assert [c.multiplications for c in counts] == [1080, 400, 400, 140]
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 5], [3, 6, 7], [3, 6, 7]]
    assert flops.flops(FOREST, 128, "grad") == 2 * 128 * (2 * 1080 + 3 * (400 + 400 + 140))
    assert flops.flops(FOREST, 128, "hvp") == 2 * 128 * (2 * 1080 + 6 * (400 + 400 + 140))
    assert flops.flops(FOREST, 1, "jet") == 2 * (4980 + 7800 + 1080 + 5 * 400 + 7 * 400 + 7 * 140)
    assert flops.flops(FOREST, 1, "jet") == flops.flops(FOREST, 1, "at_hvp_r2")


def test_longer_works_by_hand():
    """A step is a gradient, ten products and one order 2; a vector of a block is one product."""
    grad, hvp, jet = (flops.flops(FOREST, 128, work) for work in ("grad", "hvp", "jet"))
    assert flops.flops(FOREST, 128, "step") == flops.flops(FOREST, 128, "step_python") == jet + 9 * hvp
    assert flops.flops(FOREST, 128, "hvp_block") == hvp
    assert flops.flops(FOREST, 128, "epoch", steps=2905) == 2905 * grad
    assert set(flops.ORDERS) == set(engines.WORKS) == set(engines.RETURNS)


def test_curved_activation_leaves_no_zero_behind():
    counts = flops.count(problems.BY_NAME["forest-tanh"])
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 7], [3, 6, 7], [3, 6, 7]]


def test_convolutions_count_taps_inside_the_image_only():
    """With padding 1, 3 taps a pixel less one at each end: 3n − 2 along an axis."""
    assert [c.multiplications for c in flops.count(USPS)][:3] == [8 * 46**2, 8 * 16 * 22**2, 16 * 32 * 10**2]
    assert [c.products for c in flops.count(USPS)] == [[2, 2, 1], [3, 6, 5], [3, 6, 7], [3, 6, 7], [3, 6, 7]]


@pytest.mark.parametrize(
    "conv",
    [
        rop.Conv2d(4, 6, 3, 2, 1),
        rop.Conv2d(4, 6, 3, 1, 2, 2),
        rop.Conv2d(4, 6, (5, 2), 3, 0),
        rop.Conv2d(4, 6, 2, 2, 3, 3, 2),
    ],
)
def test_multiplications_of_a_convolution_by_force(conv: rop.Conv2d):
    """Count the non-zero entries that a convolution of ones meets: the sum of its output."""
    import torch

    x = torch.ones(1, conv.in_channels, 11, 9)
    weight = torch.ones(conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size)
    y = torch.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    assert flops.multiplications(conv, (conv.in_channels, 11, 9)) == int(y.sum())


def test_residual_counts_both_branches():
    counts = flops.count(problems.BY_NAME["layer-add"])
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 5], [3, 6, 7]]  # convolution, the body, the last layer


def test_a_product_of_two_linear_layers_has_a_third_derivative():
    """Each order of the product goes back to either factor with the orders of the other; a sum has no order 2."""
    branches = (Linear(4, 3),), (Linear(4, 3),)
    product, total = (Problem("", "", (4,), (join(*branches),), "mse") for join in (Product, Residual))
    assert [c.products for c in flops.count(product)] == [[2, 2, 1]] * 2
    assert [c.products for c in flops.count(total)] == [[2, 2, 0]] * 2


def test_least_squares_of_a_linear_layer_has_no_third_derivative():
    problem = Problem("", "", (4,), (Linear(4, 3),), "mse")
    assert [c.products for c in flops.count(problem)] == [[2, 2, 0]]


# -------------------------------------------------------------------------------------------------------- the problems
@pytest.mark.parametrize("problem", problems.MAIN + problems.LAYERS, ids=lambda p: p.name)
def test_problem_is_sound(problem: Problem):
    data = problem.data(4, "float64")
    again = problem.data(4, "float32")
    np.testing.assert_allclose(data.points[0], again.points[0], rtol=1e-6)
    assert data.points[0].shape == data.directions[1].shape == (problem.size,)
    assert not np.array_equal(data.points[0], data.points[1])
    assert problem.output_shape == (7 if "forest" in problem.name else 10,)
    assert data.y.max() < problem.output_shape[0]


def test_main_problems_are_the_published_ones():
    assert [c.layer.parameter_shapes()["bias"] for c in flops.count(USPS)] == [(8,), (16,), (32,), (64,), (10,)]
    assert USPS.size == 80 + 1168 + 4640 + 8256 + 650
    assert FOREST.size == 1100 + 420 + 420 + 147


def test_forest_epoch_has_2905_steps():
    assert (FOREST.rows, settings.Settings().steps(FOREST, 128)) == (371_847, 2905)
    assert [p.name for p in problems.MAIN if p.rows] == ["forest"]
    data, again = FOREST.epoch(1000, "float32"), FOREST.epoch(1000, "float64")
    assert data.x.shape == (1000, 54) and data.x.dtype == np.float32
    np.testing.assert_array_equal(data.x, again.x)
    assert all(sorted(order) == list(range(1000)) for order in data.orders)
    assert not np.array_equal(*data.orders)


@pytest.mark.parametrize("name", ["", "forrest", "mlp:3", "mlp:3-0-2", "mlp:3-2:sine", "mlp:-3-2"])
def test_unknown_problem_is_refused_with_the_known_ones(name: str):
    with pytest.raises(ValueError, match="known: forest"):
        problems.find(name)


def test_doctests():
    for module in (problems, report, growth):
        outcome = doctest.testmod(module)
        assert outcome.attempted and not outcome.failed


# ------------------------------------------------------------------------------------------------------ the comparison
ANSWER = {"loss": np.array([2.0]), "grad": np.arange(1.0, 5), "hvp": np.ones(4), "r2": -np.ones(4)}


@pytest.mark.parametrize(("dtype", "harmless", "wrong"), [("float64", 1e-12, 1e-6), ("float32", 1e-5, 1e-2)])
@pytest.mark.parametrize("name", list(ANSWER))
def test_planted_wrong_answer_is_refused(name: str, dtype: str, harmless: float, wrong: float):
    errors = comparison.compare({**ANSWER, name: ANSWER[name] * (1 + harmless)}, ANSWER, dtype, "engine")
    assert errors[name] == pytest.approx(harmless, rel=1e-3)
    with pytest.raises(comparison.Mismatch, match=f"engine: {name} is off by"):
        comparison.compare({**ANSWER, name: ANSWER[name] * (1 + wrong)}, ANSWER, dtype, "engine")


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (np.full(4, np.nan), "grad is off by nan"),
        (np.ones(3), "grad has 3 entries where the reference has 4"),
        (None, "gave no grad"),
    ],
)
def test_answers_that_are_no_answers(grad: np.ndarray | None, message: str):
    answer = {**ANSWER, "grad": grad}
    with pytest.raises(comparison.Mismatch, match=message):
        comparison.compare(answer, ANSWER, "float64", "engine")


def test_zero_reference():
    zero = {"r2": np.zeros(3)}
    assert comparison.compare(zero, zero, "float64", "engine") == {"r2": 0.0}
    with pytest.raises(comparison.Mismatch):
        comparison.compare({"r2": np.full(3, 1e-3)}, zero, "float64", "engine")


def answers(
    name: str, problem: Problem, batch: int, steps: int = 0, works: tuple[str, ...] = tuple(engines.WORKS)
) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """work → way → what an engine gives, in this process and in float64."""
    engine = engines.make(name, 1)
    engine.prepare(problem, batch, "float64", problem.data(batch, "float64"))
    engine.rows, engine.steps = problem.rows, steps
    given: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for work, ways in engine.ways.items():
        if work in works and (work not in engines.EPOCHS or steps):
            engine.tune(work)
            given[work] = {way: engine.quantities(work, engine.run(way, 0)) for way in ways}
            for answer in given[work].values():
                assert tuple(answer) == engines.RETURNS[work]
    return given


def expected_of(reference: dict[str, dict[str, dict[str, np.ndarray]]], work: str) -> dict[str, np.ndarray]:
    return next(iter(reference[engines.SAME.get(work, work)].values()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        "usps-bn",
        "layer-mul",
        "layer-excitation",
        "layer-concat",
        "layer-softmax",
        "layer-gelu-tanh",
        "layer-conv-groups",
    ],
)
def test_engines_agree(name: str):
    """torch, torch.func and rop, to float64's precision, at every work."""
    problem = problems.BY_NAME[name]
    reference = answers("torch", problem, 3)
    for engine in ("torch", "torch.func", "rop"):
        for work, ways in answers(engine, problem, 3).items():
            for way, answer in ways.items():
                comparison.compare(answer, expected_of(reference, work), "float64", f"{engine} ({way})")


def by_definition(problem: Problem, batch: int) -> dict[str, np.ndarray]:
    """A step with the whole Hessian, and r from differences of it."""
    import torch

    data = problem.data(batch, "float64")
    engine = engines.make("torch", 1)
    engine.prepare(problem, batch, "float64", data)

    def f(w: torch.Tensor) -> torch.Tensor:
        return engine.loss(engine.parts(w))

    def hessian(at: np.ndarray) -> np.ndarray:
        return torch.autograd.functional.hessian(f, torch.from_numpy(at)).numpy()

    w, v = data.points[0], data.directions[0]
    (g,) = torch.autograd.functional.jacobian(f, (torch.from_numpy(w),))
    h = hessian(w)
    for _ in range(9):
        v = h @ v / np.linalg.norm(h @ v)
    eigenvalue, epsilon = v @ h @ v, 1e-4
    r = (hessian(w + epsilon * v) - hessian(w - epsilon * v)) @ v / (2 * epsilon)
    p = g.numpy() + Step.MU * np.sign(eigenvalue) * r
    return {"loss": np.array([f(torch.from_numpy(w)).item()]), "eigenvalue": np.array([eigenvalue]), "p": p, "v": v}


@pytest.mark.parametrize("engine", list(engines.ENGINES))
def test_step_by_definition_and_epoch_by_torch(engine: str):
    pytest.importorskip(engines.ENGINES[engine][1])
    given, step = answers(engine, TINY[0], 8, steps=30), by_definition(TINY[0], 8)
    reference = answers("torch", TINY[0], 8, steps=30)
    for work, ways in given.items():
        expected = step if work in ("step", "step_python") else expected_of(reference, work)
        for way, answer in ways.items():
            comparison.compare(answer, expected, "float64", f"{engine} ({way})")
    assert ("epoch" in given) == (engine != "torch.func")


def test_penalty_follows_the_sign_of_the_eigenvalue():
    """ρ is |λ|: at a negative λ the sign of r turns. tanh on targets far away gives such points."""
    problem = problems.find("mlp:4-3-3:tanh")[0]
    data = problem.data(6, "float64")
    found = set()
    for scale in (1.0, 3.0, 6.0, 10.0, 15.0):
        moved = data._replace(points=(scale * data.points[0], data.points[1]))
        by_engine = {}
        for name in ("torch", "rop"):
            engine = engines.make(name, 1)
            engine.prepare(problem, 6, "float64", moved)
            by_engine[name] = engine.quantities("step", engine.run("step", 0))
        comparison.compare(by_engine["rop"], by_engine["torch"], "float64", "rop", looser=100)
        found.add(float(np.sign(by_engine["torch"]["eigenvalue"][0])))
    assert found == {-1.0, 1.0}


def test_what_is_compared_is_the_update():
    """An error in p shows, however large w is."""
    engine = engines.make("torch", 1)
    data = TINY[0].data(8, "float64")
    engine.prepare(TINY[0], 8, "float64", data)
    loss, eigenvalue, w, v = engine.run("step", 0)
    right = engine.quantities("step", (loss, eigenvalue, w, v))
    np.testing.assert_allclose(right["p"], (data.points[0] - engine.flat(w)) / Step.RATE)
    wrong = engine.quantities("step", (loss, eigenvalue, [part + 1e-6 for part in w], v))
    with pytest.raises(comparison.Mismatch, match="p is off"):
        comparison.compare(wrong, right, "float64", "engine")


# ---------------------------------------------------------------------------------------------------------- tiny runs
@pytest.fixture(scope="module")
def result() -> dict:
    return runner.Run(replace(SETTINGS, dtypes=DTYPES)).run()


def test_tiny_run(result: dict):
    assert [(row["dtype"], row["work"]) for row in result["rows"]] == [
        (dtype, work) for dtype in DTYPES for work in engines.WORKS
    ]
    for row in result["rows"]:
        assert row["status"] == "ok", row
        assert set(row["engines"]) == ({"rop"} if row["work"] in engines.SAME else {"rop", "torch"})
        assert row["flops"] == flops.flops(TINY[0], 8, row["work"], 20)
        if row["work"] in engines.EPOCHS:
            assert (row["steps"], row["all_steps"]) == (20, 800)
            assert row["checked_steps"] == (20 if row["work"] == "epoch" else 10)
        assert row["limit_s"] == pytest.approx(row["flops"] / result["gemm_flops_per_s"][row["dtype"]])
        for measured in row["engines"].values():
            assert 0 < measured["min_s"] <= measured["median_s"]
            assert measured["calls"] >= SETTINGS.rounds
            assert measured["peak_bytes"] > 0
            assert measured["of_limit"] == pytest.approx(row["limit_s"] / measured["median_s"])
            assert set(measured["error"]) == set(engines.RETURNS[row["work"]])
            assert measured["way"] in measured["first_call_s"]


def test_json_schema(result: dict, tmp_path):
    path = tmp_path / "new" / "results.json"
    report.save_json(result, path)
    saved = json.loads(path.read_text("utf-8"))
    assert saved["schema"] == runner.SCHEMA
    about = {"cpu", "architecture", "cores", "memory_bytes", "system", "threads", "load_at_start"}
    assert about == set(saved["environment"])
    assert {"python", "numpy", "numba", "torch", "rop"} <= set(saved["versions"])
    assert saved["settings"]["problems"] == ["mlp:6-5-3:tanh"]
    assert {entry["engine"] for entry in saved["processes"]} == {"rop", "torch"}
    assert {"import_s", "prepare_s", "import_bytes"} <= set(saved["processes"][0])
    assert saved["failures"] == []
    assert saved["reference"] == "torch, float64"
    assert (saved["growth"], saved["slopes"]) == ([], [])
    assert saved == {**json.loads(json.dumps(result)), "goals": [], "ratios": []}


@pytest.mark.parametrize("rich", [True, False])
def test_tables(result: dict, rich: bool, monkeypatch):
    if not rich:
        monkeypatch.setattr(report, "find_spec", lambda name: None)
    out = io.StringIO()
    report.show(result, out)
    text = out.getvalue()
    assert "loss+grad+Hv+R²" in text and "×" in text and "reached" in text and "MiB" in text
    assert "compared with torch, float64" in text
    assert "SGD epoch, 20 of its 800 steps" in text
    assert "peak memory of rop below torch's" in text and "one Hv of a block, in single ones (rop): mlp" in text


def test_works_of_rop_alone_stand_beside_those_that_give_the_same(result: dict):
    rows = [row for row in result["rows"] if row["dtype"] == "float64"]
    by_work = {row["work"]: row for row in rows}
    for ours, theirs in engines.SAME.items():
        beside = report.measured(by_work[ours], "torch", rows)
        assert beside is not None and beside is by_work[theirs]["engines"]["torch"]
    assert report.measured(by_work["at_hvp_r2"], "jax", rows) is None


def test_plots(result: dict, tmp_path):
    pytest.importorskip("matplotlib")
    written = plots.plots(result, tmp_path)
    assert {path.name for path in written} == {f"{plot}-{d}.png" for plot in ("time", "relative") for d in DTYPES}
    assert all(path.stat().st_size > 5000 for path in written)


class Planted(runner.Run):
    """A run whose reference has one wrong number in R²."""

    def references(self, *arguments):
        references = super().references(*arguments)
        references["jet"]["r2"] = references["jet"]["r2"] + 1e-3 * np.eye(1, references["jet"]["r2"].size)[0]
        return references


@pytest.mark.thorough
def test_row_with_a_wrong_answer_is_not_timed():
    lines = []
    chosen = replace(SETTINGS, engines=("torch",), works=("grad", "jet"))
    result = Planted(chosen, row_done=lambda row: lines.append(report.line(row))).run()
    good, bad = result["rows"]
    assert good["status"] == "ok"
    assert bad["status"] == "refused" and bad["engines"] == {} and "torch: r2 is off by" in bad["message"]
    assert "REFUSED, torch: r2 is off by" in lines[1]
    out = io.StringIO()
    report.show(result, out)
    assert "FAILED: mlp:6-5-3:tanh, batch 8, float64, loss+grad+Hv+R²: torch: r2 is off by" in out.getvalue()


@pytest.mark.thorough
def test_engine_that_cannot_start_fails_the_run(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "absent", ("absent_engine.Absent", "rop"))
    result = runner.Run(replace(SETTINGS, engines=("torch", "absent"), works=("grad",))).run()
    assert set(result["rows"][0]["engines"]) == {"torch"}
    assert "absent: its process ended" in result["failures"][0]


def test_missing_engines_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(runner, "missing", lambda name: None if name == "rop" else name)
    run = runner.Run(settings.Settings())
    assert run.engines == ["rop"]
    assert any("jax is not installed (pip install 'rop[bench]')" in note for note in run.notes)
    assert any("its own reference" in note for note in run.notes)


def test_worker_reports_errors_and_lives_on(tmp_path):
    client = processes.Client("gemm", 1, tmp_path)
    try:
        with pytest.raises(processes.WorkerError, match=r"gemm: .*'no_such_command'"):
            client.ask("no_such_command")
        assert client.ask("gemm", dtype="float32")["rate"] > 1e6
    finally:
        client.close()


def test_a_vector_in_the_shapes_of_the_parameters_has_no_more_memory_than_before():
    """A copy of all that follows each parameter took 17 GiB for ResNet-18."""
    problem = problems.find("mlp:40-30-20-10")[0]
    engine = engines.make("torch", 1)
    engine.prepare(problem, 4, "float32", problem.data(4, "float32"))
    parts = engine.split(np.arange(problem.size, dtype=np.float32))
    assert sum(part.untyped_storage().nbytes() for part in parts) == 4 * problem.size
    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), np.arange(problem.size))


def test_the_process_of_the_reference_has_ended_when_engines_start(monkeypatch):
    """So its memory, more than that of any engine for a large net, is free again."""
    alive: list[int] = []
    started: list[processes.Client] = []

    class Watched(processes.Client):
        def __init__(self, *arguments):
            alive.append(sum(other.process.poll() is None for other in started))
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr(runner, "Client", Watched)
    chosen = replace(SETTINGS, engines=("rop",), works=("grad",), dtypes=("float64",), rounds=1)
    result = runner.Run(chosen).run()
    assert result["rows"][0]["status"] == "ok"
    assert [client.engine for client in started] == ["gemm", "torch", "rop"]
    assert alive == [0, 1, 1], "beside the engine only the matrix product runs"


def test_dead_worker_is_reported(tmp_path):
    client = processes.Client("no such engine", 1, tmp_path)
    try:
        with pytest.raises(processes.WorkerError, match="its process ended"):
            client.ask("hello")
    finally:
        client.close()


def test_quick_keeps_what_was_asked_for():
    quick = settings.quick(settings.Settings())
    assert [p.name for p in quick.problems] == ["forest", "usps", "wide"]
    assert (quick.batches, quick.dtypes) == ((128,), ("float32",))
    assert quick.engines == ("rop", "torch", "jax")
    assert quick.works == ("grad", "hvp", "jet", "step", "epoch", "penalised") and quick.steps(FOREST, 128) == 100
    asked = replace(settings.Settings(), problems=TINY, batches=(8, 16), dtypes=("float64",), works=("jet",))
    shorter = settings.quick(asked)
    assert (shorter.problems, shorter.batches) == (TINY, (8, 16))
    assert (shorter.dtypes, shorter.works) == (("float64",), ("jet",))


def test_thin_run():
    """The shorter works everywhere in float32, everything at batch 128, float64 there too."""
    thin = settings.Settings(thin=True)
    assert thin.works_at(FOREST, 128, "float32") == tuple(engines.WORKS)
    assert thin.works_at(USPS, 128, "float32") == tuple(work for work in engines.WORKS if work not in engines.EPOCHS)
    assert thin.works_at(FOREST, 512, "float32") == thin.works_at(FOREST, 128, "float64") == settings.EVERYWHERE
    assert thin.works_at(FOREST, 32, "float64") == ()
    assert settings.Settings().works_at(FOREST, 32, "float64") == tuple(engines.WORKS)
    assert (settings.middle([32, 128, 512]), settings.middle([8]), settings.middle([1, 4, 2])) == (128, 8, 2)


@pytest.mark.parametrize(
    ("options", "problems_left", "grows", "thin"),
    [
        ("", 6, False, True),
        ("--full", 6, True, True),
        ("--growth", 0, True, True),
        ("--growth --problems forest", 1, True, True),
        ("--quick", 3, False, True),
        ("--batch 32", 6, False, False),
        ("--works step", 6, False, False),
    ],
)
def test_options(options: str, problems_left: int, grows: bool, thin: bool):
    parsed = cli.parser().parse_args(["bench", *options.split()])
    chosen = bench_settings(parsed)
    assert (len(chosen.problems), chosen.growth, chosen.thin) == (problems_left, grows, thin)


@pytest.mark.parametrize("options", ["--name x", "--out results --name a/b"])
def test_name_needs_a_folder_and_is_none(options: str):
    parsed = cli.parser().parse_args(["bench", *options.split()])
    with pytest.raises(ValueError, match="--name"):
        bench_settings(parsed)


# ------------------------------------------------------------------------------------------------------------- growth
@pytest.mark.thorough
def test_growth(monkeypatch, tmp_path):
    points = tuple((width, f"mlp:4-{width}-3", 4) for width in (2, 4, 8))
    axis = growth.Axis("width", "MLP 4-w-3", "parameters", points, (2, 8))
    monkeypatch.setattr(growth, "AXES", (axis,))
    lines = []
    chosen = replace(SETTINGS, problems=(), growth=True)
    result = runner.Run(chosen, row_done=lambda row: lines.append(report.line(row))).run()
    assert result["failures"] == [] and result["rows"] == []
    assert [row["value"] for row in result["growth"]] == [2, 4, 8]
    assert [set(row["engines"]) for row in result["growth"]] == [{"rop", "torch"}, {"rop"}, {"rop", "torch"}]
    assert all(row["limit_s"] > 0 and row["dtype"] == "float32" for row in result["growth"])
    assert {(entry["engine"], entry["points"]) for entry in result["slopes"]} == {("rop", 3), ("torch", 2)}
    assert lines[0].startswith("loss+grad+Hv+R², width 2: rop ")
    out = io.StringIO()
    report.show(result, out)
    assert "slope of its time" in out.getvalue() and "Medians" not in out.getvalue()
    pytest.importorskip("matplotlib")
    (path,) = plots.plots(result, tmp_path, "name")
    assert path.name == "name-growth.png" and path.stat().st_size > 5000


def test_axes_of_growth():
    for axis in growth.AXES:
        values = [value for value, _, _ in axis.points]
        assert values == sorted(values) and set(axis.rivals) <= set(values)
        sizes = [axis.problem(value)[0].size for value in values]
        assert sizes == sorted(sizes)
    width, depth, batch = growth.AXES
    assert (width.points[0][0], width.points[-1][0]) == (1, 512)
    assert [len(flops.count(depth.problem(n)[0])) for n in (2, 16)] == [4, 18]  # with the first and the last one
    assert (batch.points[0][0], batch.points[-1][0]) == (32, 4096)
    assert [batch.problem(value)[1] for value in (32, 4096)] == [32, 4096]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_slope_is_that_of_the_upper_half(power: float):
    x = [1.0, 2, 4, 8, 16, 32]
    assert growth.slope(x, [100.0, 100, 100, 8**power, 16**power, 32**power]) == pytest.approx(power)
    assert growth.slope([1.0], [1.0]) is None


# -------------------------------------------------------------------------------------------------- what was aimed at
def made_up(problem: str, work: str, peak: int = 100, **seconds: float) -> dict:
    measured = {
        name.replace("_", "."): {"median_s": s, "of_limit": 0.5 / s, "peak_bytes": peak + 50 * (name != "rop")}
        for name, s in seconds.items()
    }
    extra = {"steps": 100, "all_steps": 2905} if work == "epoch" else {}
    return {
        "problem": problem,
        "batch": 128,
        "dtype": "float32",
        "work": work,
        "status": "ok",
        "engines": measured,
        **extra,
    }


def test_goals_are_those_of_the_contract():
    assert [tuple(goal) for goal in report.GOALS] == [
        ("forest", "jet", 28, 6, 0.4),
        ("usps", "jet", 6.5, 4.5, 0.65),
        ("wide", "jet", 1.7, 1.1, 0.75),
        ("forest", "step", 22, 3, None),
        ("usps", "step", 5, 6, None),
        ("wide", "step", 1.4, 1.0, None),
        ("forest", "epoch", 10, 2, None),
        ("forest", "penalised", 10, 3, None),
    ]


def test_measured_beside_wanted():
    rows = [
        made_up("forest", "jet", rop=1.0, torch=30.0, torch_func=40.0, jax=5.0),
        made_up("usps", "step", rop=1.0, torch=9.0, torch_func=4.0),
        made_up("forest", "epoch", rop=1.0, torch=10.0, jax=2.5),
        made_up("wide", "jet", torch=1.0),
        {**made_up("wide", "step", rop=1.0, torch=1.0, jax=1.0), "batch": 32},
    ]
    _, body = report.goals_table({"rows": rows})
    assert body == [
        ["forest, loss+grad+Hv+R²", "30.0 / 28 ✓", "5.00 / 6 ✗", "0.50 / 0.4 ✓"],
        ["usps, step, 10 power iterations", "4.00 / 5 ✗", "– / 6", ""],
        ["forest, SGD epoch, 100 of its 2905 steps", "10.0 / 10 ✓", "2.50 / 2 ✓", ""],
    ]


def test_remarks_on_memory_and_blocks():
    rows = [
        made_up("forest", "jet", rop=1.0, torch=2.0),
        made_up("usps", "jet", rop=1.0, torch=2.0),
        made_up("forest", "hvp", rop=1.0),
        made_up("forest", "hvp_block", rop=0.5),
        made_up("usps", "hvp", rop=1.0),
        made_up("usps", "hvp_block", rop=1.5),
    ]
    rows[1]["engines"]["torch"]["peak_bytes"] = 90
    memory, blocks = report.remarks({"rows": rows})
    assert memory.endswith("NOT for usps 128 float32")
    assert blocks.endswith("forest 128 float32 0.50 ✓, usps 128 float32 1.50 ✗")
    assert report.remarks({"rows": rows[:1]}) == [
        "peak memory of rop below torch's for loss+grad+Hv+R²: in all 1 cases"
    ]


def test_torch_may_use_fewer_threads():
    """On small nets one thread is often its best; with several to its name both are tried."""
    import torch

    assert engines.make("torch", 1).ways["jet"] == ("jet",)
    engine = engines.make("torch", 2)
    assert engine.ways["jet"] == ("jet", "jet@1") and len(engine.ways["epoch"]) == 4
    assert engines.make("torch.func", 2).ways["jet"] == ("jet",)
    engine.prepare(TINY[0], 8, "float64", TINY[0].data(8, "float64"))
    before = torch.get_num_threads()
    try:
        both = [engine.quantities("jet", engine.run(way, 0)) for way in engine.ways["jet"]]
        assert torch.get_num_threads() == 1
        comparison.compare(*both, "float64", "torch")
        engine.run("jet", 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_equal_thread_counts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert "OMP_WAIT_POLICY" not in processes.environment_for(2)
    environment = processes.environment_for(2)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")
    assert {environment[name] for name in names} == {"2"}


def test_bursts_fit_their_budget():
    assert worker.fitting(0.01, 0.05) == 5
    assert worker.fitting(1.0, 0.05) == 1
    assert worker.fitting(0.0, 0.05) == 2000
    assert len(worker.timed(lambda k: None, 7)) == 7


@pytest.mark.parametrize(("warm", "made"), [(True, 5), (False, 2)])
def test_calls_that_do_not_count(warm: bool, made: int):
    calls: list[int] = []
    assert len(worker.timed(calls.append, 2, warm)) == 2
    assert len(calls) == made


class Fake(engines.Engine):
    """Two quick ways and a slow one."""

    ways = {"jet": ("quick", "also_quick", "slow")}

    def __init__(self):
        super().__init__(1)
        self.calls = dict.fromkeys(self.ways["jet"], 0)

    def run(self, way: str, repetition: int) -> None:
        self.calls[way] += 1
        time.sleep(0.06 if way == "slow" else 0.001)


def test_ways_are_tried_out_in_proportion():
    made = worker.Worker("gemm", 1)
    made.engine = fake = Fake()
    seconds = made.try_out("jet")["seconds"]
    assert list(seconds) == list(fake.calls) and seconds["slow"] >= 0.06
    assert fake.calls["slow"] == 2 and fake.calls["quick"] > 5  # the first of them to warm up


def test_hopeless_ways_are_not_timed_and_the_best_median_counts():
    fake = Fake()
    tried = {"quick": 0.0010, "also_quick": 0.0012, "slow": 0.06}
    timings = {"quick": [3.0, 3.0, 1.0], "also_quick": [2.0, 2.0, 2.0]}

    class Scripted:
        def ask(self, do: str, **command):
            if do == "time":
                fake.calls[command["way"]] += 1
                return {"seconds": timings[command["way"]]}
            return {"try_out": {"seconds": tried}, "memory": {"peak_bytes": 1}, "gemm": {"rate": 1e9}}.get(do, {})

    run = runner.Run(replace(SETTINGS, engines=("rop",), rounds=4))
    row = run.row(TINY[0], 8, "float64", "jet")
    row["engines"]["rop"] = {"error": {way: {} for way in tried}}
    timing.time_in_turns(row, {"rop": Scripted()}, Scripted(), run.rates, run.settings)
    measured = row["engines"]["rop"]
    assert fake.calls == {"quick": 4, "also_quick": 4 + 1, "slow": 0}  # once more for the peak of memory
    assert (measured["way"], measured["median_s"], measured["calls"]) == ("also_quick", 2.0, 12)
    assert measured["tried_s"] == {"quick": 3.0, "also_quick": 2.0, "slow": 0.06}
