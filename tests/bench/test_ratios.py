"""How the benchmark shows problems with a batch size of their own: ratios beside goals, the limit, plots."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from rop.bench import plots, problems, report, runner, settings


def made_up(problem: str, work: str, rop: float, peak: int, **rivals: float) -> dict[str, Any]:
    def measured(seconds: float, bytes: int) -> dict[str, Any]:
        return {
            "median_s": seconds,
            "min_s": seconds,
            "way": work,
            "first_call_s": {work: seconds},
            "peak_bytes": bytes,
            "of_limit": 0.5,
        }

    known = problems.BY_NAME[problem]
    return {
        "problem": problem,
        "batch": known.batch or 128,
        "own_batch": bool(known.batch),
        "training": known.training,
        "dtype": "float32",
        "work": work,
        "status": "ok",
        "limit_s": 0.5 * rop,
        "engines": {"rop": measured(rop, peak)}
        | {name.replace("_", "."): measured(seconds, 100) for name, seconds in rivals.items()},
    }


ROWS = [
    made_up("forest", "jet", 1.0, 80, torch=9.0),
    made_up("resnet18-32", "grad", 1.0, 95, torch=1.6, torch_func=1.4, jax=2.0),
    made_up("resnet18-32", "jet", 1.0, 80, torch=3.0, jax=0.9),
    made_up("densenet121-64-train", "grad", 1.0, 90, torch=1.2),
    made_up("densenet121-64-train", "jet", 1.0, 101, torch=3.5),
    made_up("vgg11-32", "jet", 1.0, 101, torch=3.5),
]


def test_there_is_a_goal_for_each_problem() -> None:
    assert set(report.WANTED) == {problem.name for problem in problems.MEDIUM}


def test_ratios_beside_what_is_wanted() -> None:
    """torch counts by the faster of its engines, memory by the larger peak of the two works."""
    _, body = report.ratios_table({"rows": ROWS})
    assert [" ".join(cells) for cells in body] == [
        "resnet18-32 32 float32 evaluation 1.40 / 1.5 ✗ 3.00 / 3 ✓ 2.00 / 1 ✓ 0.90 / 1 ✗ 0.95 / 0.9 ✗",
        "densenet121-64-train 4 float32 training 1.20 / 1.2 ✓ 3.50 / 3 ✓ – / 1 – / 1 1.01 / 1 ✗",
        "vgg11-32 32 float32 evaluation – / 1.7 3.50 / 3 ✓ – / 1 – / 1 – / 0.9",
    ]
    assert report.ratios_table({"rows": ROWS[:1]})[1] == []


def result_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    run = runner.Run(settings.Settings(problems=problems.MEDIUM, engines=("rop",)))
    run.rates["float32"] = 1e9
    return {**run.result(), "rows": rows}


def test_the_report_says_which_algorithm_the_limit_counts() -> None:
    out = io.StringIO()
    report.show(result_of(ROWS), out)
    assert "limit: flops the recursion needs (direct convolution) ÷ rate" in out.getvalue()
    assert "memory over torch's" in out.getvalue() and "1.40 / 1.5 ✗" in out.getvalue()


def test_plots_show_every_problem_whatever_its_batch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = plots.plots(result_of(ROWS), tmp_path)
    assert {path.name for path in written} == {"time-float32.png", "ratios-float32.png"}
    time, ratios = plots._time(ROWS), plots._ratios(ROWS)
    assert time is not None and ratios is not None
    (axes,) = time.axes
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["forest", "resnet18-32\nbatch 32", "densenet121-64-train\nbatch 4", "vgg11-32\nbatch 32"]
    gradient, jet, memory = ratios.axes
    assert [label.get_text() for label in gradient.get_yticklabels()] == [
        "resnet18-32, batch 32",
        "densenet121-64-train, batch 4",
        "vgg11-32, batch 32",
    ]
    assert sorted(bar.get_width() for bar in gradient.patches) == [1.2, 1.4, 2.0]
    assert sorted(bar.get_width() for bar in jet.patches) == [0.9, 3.0, 3.5, 3.5]
    assert sorted(bar.get_width() for bar in memory.patches) == [0.95, 1.01]
