"""The benchmark: its flop counts by hand, its refusal of wrong answers, and one tiny run from end to end."""

from __future__ import annotations

import doctest
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from rop.bench import engines, flops, problems, report, runner, worker
from rop.bench.problems import Conv, Linear, Problem

FOREST, USPS = problems.BY_NAME["forest"], problems.BY_NAME["usps"]
DTYPES = ("float32", "float64")
TINY = problems.find("mlp:6-5-3:tanh")
SETTINGS = runner.Settings(
    problems=TINY, batches=(8,), dtypes=("float64",), engines=("rop", "torch"), threads=1, rounds=2, burst=0.002
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


def test_curved_activation_leaves_no_zero_behind():
    counts = flops.count(problems.BY_NAME["forest-tanh"])
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 7], [3, 6, 7], [3, 6, 7]]


def test_convolutions_count_taps_inside_the_image_only():
    """With padding 1, 3 taps a pixel less one at each end: 3n − 2 along an axis."""
    assert [c.multiplications for c in flops.count(USPS)][:3] == [8 * 46**2, 8 * 16 * 22**2, 16 * 32 * 10**2]
    assert [c.products for c in flops.count(USPS)] == [[2, 2, 1], [3, 6, 5], [3, 6, 7], [3, 6, 7], [3, 6, 7]]


@pytest.mark.parametrize(
    "conv", [Conv(4, 6, 3, 2, 1), Conv(4, 6, 3, 1, 2, 2), Conv(4, 6, 5, 3, 0), Conv(4, 6, 2, 2, 3, 3, 2)]
)
def test_multiplications_of_a_convolution_by_force(conv: Conv):
    """Count the non-zero entries that a convolution of ones meets: the sum of its output."""
    import torch

    x = torch.ones(1, conv.inputs, 11, 9)
    weight = torch.ones(conv.outputs, conv.inputs // conv.groups, conv.kernel, conv.kernel)
    y = torch.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    assert flops.multiplications(conv, (conv.inputs, 11, 9)) == int(y.sum())


def test_residual_counts_both_branches():
    counts = flops.count(problems.BY_NAME["layer-add"])
    assert [c.products for c in counts] == [[2, 2, 1], [3, 6, 5], [3, 6, 7]]  # convolution, the body, the last layer


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
    assert [c.layer.outputs for c in flops.count(USPS)] == [8, 16, 32, 64, 10]
    assert USPS.size == 80 + 1168 + 4640 + 8256 + 650
    assert FOREST.size == 1100 + 420 + 420 + 147


@pytest.mark.parametrize("name", ["", "forrest", "mlp:3", "mlp:3-0-2", "mlp:3-2:sine", "mlp:-3-2"])
def test_unknown_problem_is_refused_with_the_known_ones(name: str):
    with pytest.raises(ValueError, match="known: forest"):
        problems.find(name)


def test_doctests():
    for module in (problems, report):
        outcome = doctest.testmod(module)
        assert outcome.attempted and not outcome.failed


# ------------------------------------------------------------------------------------------------------ the comparison
ANSWER = {"loss": np.array([2.0]), "grad": np.arange(1.0, 5), "hvp": np.ones(4), "r2": -np.ones(4)}


@pytest.mark.parametrize(("dtype", "harmless", "wrong"), [("float64", 1e-12, 1e-6), ("float32", 1e-5, 1e-2)])
@pytest.mark.parametrize("name", list(ANSWER))
def test_planted_wrong_answer_is_refused(name: str, dtype: str, harmless: float, wrong: float):
    errors = runner.compare({**ANSWER, name: ANSWER[name] * (1 + harmless)}, ANSWER, dtype, "engine")
    assert errors[name] == pytest.approx(harmless, rel=1e-3)
    with pytest.raises(runner.Mismatch, match=f"engine: {name} is off by"):
        runner.compare({**ANSWER, name: ANSWER[name] * (1 + wrong)}, ANSWER, dtype, "engine")


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
    with pytest.raises(runner.Mismatch, match=message):
        runner.compare(answer, ANSWER, "float64", "engine")


def test_zero_reference():
    zero = {"r2": np.zeros(3)}
    assert runner.compare(zero, zero, "float64", "engine") == {"r2": 0.0}
    with pytest.raises(runner.Mismatch):
        runner.compare({"r2": np.full(3, 1e-3)}, zero, "float64", "engine")


@pytest.mark.parametrize(
    "name", ["resnet", "usps-bn", "layer-concat", "layer-softmax", "layer-gelu-tanh", "layer-conv-groups"]
)
def test_engines_agree(name: str):
    """Every engine that is installed, in this process, to float64's precision."""
    problem = problems.BY_NAME[name]
    data = problem.data(3, "float64")
    reference = None
    for engine_name in ("torch", "torch.func", "rop"):
        engine = engines.make(engine_name, 1)
        engine.prepare(problem, 3, "float64", data)
        for work, ways in engine.ways.items():
            for way in ways:
                answer = engine.answer(work, way)
                assert tuple(answer) == engines.RETURNS[work]
                if reference is None and work == "jet":
                    reference = answer
        assert reference is not None
        for work, ways in engine.ways.items():
            expected = {quantity: reference[quantity] for quantity in engines.RETURNS[work]}
            for way in ways:
                runner.compare(engine.answer(work, way), expected, "float64", engine_name)


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
        assert set(row["engines"]) == ({"rop"} if row["work"] == "at_hvp_r2" else {"rop", "torch"})
        assert row["flops"] == flops.flops(TINY[0], 8, row["work"])
        assert row["limit_s"] == pytest.approx(row["flops"] / result["gemm_flops_per_s"][row["dtype"]])
        for measured in row["engines"].values():
            assert 0 < measured["min_s"] <= measured["median_s"]
            assert measured["calls"] >= 2 * SETTINGS.rounds
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
    assert saved == json.loads(json.dumps(result))


@pytest.mark.parametrize("rich", [True, False])
def test_tables(result: dict, rich: bool, monkeypatch):
    if not rich:
        monkeypatch.setattr(report, "find_spec", lambda name: None)
    out = io.StringIO()
    report.show(result, out)
    text = out.getvalue()
    assert "loss+grad+Hv+R²" in text and "×" in text and "reached" in text and "MiB" in text
    assert "compared with torch, float64" in text


def test_plots(result: dict, tmp_path):
    pytest.importorskip("matplotlib")
    written = report.plots(result, tmp_path)
    assert {path.name for path in written} == {f"{plot}-{d}.png" for plot in ("time", "relative") for d in DTYPES}
    assert all(path.stat().st_size > 5000 for path in written)


class Planted(runner.Run):
    """A run whose reference has one wrong number in R²."""

    def references(self, *arguments):
        references = super().references(*arguments)
        references["jet"]["r2"] = references["jet"]["r2"] + 1e-3 * np.eye(1, references["jet"]["r2"].size)[0]
        return references


def test_row_with_a_wrong_answer_is_not_timed():
    lines = []
    settings = replace(SETTINGS, engines=("torch",), works=("grad", "jet"))
    result = Planted(settings, row_done=lambda row: lines.append(report.line(row))).run()
    good, bad = result["rows"]
    assert good["status"] == "ok"
    assert bad["status"] == "refused" and bad["engines"] == {} and "torch: r2 is off by" in bad["message"]
    assert "REFUSED, torch: r2 is off by" in lines[1]
    out = io.StringIO()
    report.show(result, out)
    assert "FAILED: mlp:6-5-3:tanh, batch 8, float64, loss+grad+Hv+R²: torch: r2 is off by" in out.getvalue()


def test_engine_that_cannot_start_fails_the_run(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "absent", ("absent_engine.Absent", "rop"))
    result = runner.Run(replace(SETTINGS, engines=("torch", "absent"), works=("grad",))).run()
    assert set(result["rows"][0]["engines"]) == {"torch"}
    assert "absent: its process ended" in result["failures"][0]


def test_missing_engines_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(runner, "missing", lambda name: None if name == "rop" else name)
    run = runner.Run(runner.Settings())
    assert run.engines == ["rop"]
    assert any("jax is not installed (pip install 'rop[bench]')" in note for note in run.notes)
    assert any("its own reference" in note for note in run.notes)


def test_worker_reports_errors_and_lives_on(tmp_path):
    client = runner.Client("gemm", 1, tmp_path)
    try:
        with pytest.raises(runner.WorkerError, match=r"gemm: .*'no_such_command'"):
            client.ask("no_such_command")
        assert client.ask("gemm", dtype="float32")["rate"] > 1e6
    finally:
        client.close()


def test_dead_worker_is_reported(tmp_path):
    client = runner.Client("no such engine", 1, tmp_path)
    try:
        with pytest.raises(runner.WorkerError, match="its process ended"):
            client.ask("hello")
    finally:
        client.close()


def test_quick_keeps_what_was_asked_for():
    quick = runner.quick(runner.Settings())
    assert [p.name for p in quick.problems] == ["forest", "usps"]
    assert (quick.batches, quick.dtypes) == ((128,), ("float32",))
    asked = replace(runner.Settings(), problems=TINY, batches=(8, 16), dtypes=("float64",))
    assert runner.quick(asked) == replace(asked, rounds=quick.rounds, patience=quick.patience)


def test_equal_thread_counts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    environment = runner.environment_for(2)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")
    assert {environment[name] for name in names} == {"2"}


def test_bursts_fit_their_budget():
    assert worker.fitting(0.01, 0.05) == 5
    assert worker.fitting(1.0, 0.05) == 2
    assert worker.fitting(0.0, 0.05) == 2000
    assert len(worker.timed(lambda k: None, 7)) == 7
