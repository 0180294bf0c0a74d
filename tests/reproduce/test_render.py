"""Reports in all their forms, from records made for the purpose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rop.reproduce import render
from rop.reproduce.experiments import NAMES, experiment
from rop.reproduce.records import Records
from tests.helpers import made_up

COMMAND = "rop reproduce made-up --seeds 3"


def report(**options: bool | int) -> render.Report:
    found = [made_up.record("one", seed, "published", score=1.0 + seed) for seed in range(3)]
    found += [made_up.record("three", 0, "corrected", score=-5.25)]
    return render.report_of(made_up.EXPERIMENT, Records(found), COMMAND, **options)  # type: ignore[arg-type]


def test_markdown() -> None:
    text = render.markdown(report(others=2))
    assert (
        """\
| model | source | score, % |
|---|---|---:|
| one | paper | 3.14 |
|  | ours, as published | 2.0 [1.0, 3.0] (1.0, 3.0) |
|  | ours, corrected | not run |
| three | ours, as published | not run |
|  | ours, corrected | -5.2 |
"""
        in text
    )
    rows = text.splitlines()
    above, below = rows.index("Model selection: none."), rows.index("- It is made up, by 100 %.")
    assert above < rows.index("| model | source | score, % |") < below < rows.index(f"Command: `{COMMAND}`")
    assert "![Scores by seed.](made-up-score.png)" in text
    assert "| Three is more than one. | nowhere | it beats it | **not run**: three or one: no records |" in text
    assert "4 records, seeds 0, 1, 2." in text and "2 records of other settings are in the folder and left out." in text


def test_latex() -> None:
    text = render.latex(report())
    assert r"\caption{Scores \& more. Model selection: none.}" in text
    assert "one & paper & 3.14 \\\\\n & ours, as published & 2.0 [1.0, 3.0] (1.0, 3.0) \\\\" in text
    assert r"\hline three & ours, as published & not run \\" in text and "& ours, corrected & $-$5.2 \\\\" in text
    assert r"by 100 \%. Command: \texttt{rop reproduce made-up --seeds 3}" in text
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 2
    assert len(set(re.findall(r"\\label\{(.+)\}", text))) == 2


@pytest.mark.parametrize("rich", [True, False])
def test_terminal(rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(render.terminal, "find_spec", lambda name: rich or None)
    render.show(report(quick=True))
    out = capsys.readouterr().out
    for text in (
        "2.0 [1.0, 3.0] (1.0, 3.0)",
        "not run",
        "3.14",
        "Model selection: none.",
        COMMAND,
        "made up, by 100 %",
    ):
        assert text in out
    assert "- Three is more than one. (nowhere)\n    ours, as published: not run; three or one: no records" in out
    assert "not a reproduction: it is quick anyway." in out


def test_plots(tmp_path: Path) -> None:
    (path,) = render.draw(report(), tmp_path) or []
    assert path.name == "made-up-score.png" and path.read_bytes().startswith(b"\x89PNG")
    assert report(quick=True).name == "made-up-quick"


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_renders_without_a_record(name: str, tmp_path: Path) -> None:
    found = render.report_of(experiment(name), Records([]), f"rop reproduce {name}")
    text = render.markdown(found)
    assert "not run" in text and "0 records: nothing is run yet." in text
    assert not re.search(r"[^\x00-\x7f]", re.sub(r"[’é]", "", render.latex(found))), "LaTeX knows every sign"
    render.draw(found, tmp_path)
    for table in found.tables:
        assert table.rule and all(len(line) == len(table.headings()) for line in table.lines())
        assert found.deviations and all(text.endswith(".") for text in found.deviations)
