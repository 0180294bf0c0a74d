"""A new data set costs one file and one line: proved by adding one to a copy of the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import ROOT, environment
from tests.helpers.recipes import recipe

ASK = """
import json, rop
from rop import datasets
from rop.experiments import EXPERIMENTS
from rop.experiments.runs import Run, new_config

def refusal(call):
    try:
        call()
    except rop.RopError as error:
        return str(error)

run = Run(new_config("clouds", mu=0), None)
print(json.dumps({
    "file": rop.__file__,
    "listed": list(datasets.DATASETS),
    "experiments": list(EXPERIMENTS),
    "public": "clouds" in dir(datasets) and "clouds" in datasets.__all__,
    "function": datasets.clouds(far=3.0).input_shape,
    "loaded": repr(datasets.load("clouds", far=3.0)),
    "option": refusal(lambda: datasets.load("clouds", near=3.0)),
    "unknown": refusal(lambda: datasets.load("cloud")),
    "no experiment": refusal(lambda: new_config("cloud")),
    "run": [run.title(), run.net.size, len(run.data().train[1])],
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, to which one file and one line were added."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "rop", folder / "rop", ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    data = folder / "rop" / "experiments" / "data"
    (file,) = recipe("A data set")
    file.edit(folder)
    table = (data / "__init__.py").read_text()
    line = 'NAMES = ("digits", "forest", "usps", "mnist", "chest")\n'
    assert table.count(line) == 1
    (data / "__init__.py").write_text(
        table.replace(line, 'NAMES = ("digits", "forest", "usps", "mnist", "chest", "clouds")\n')
    )
    return folder


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = environment(PYTHONPATH=str(copy), COLUMNS="120")
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=copy, env=variables, text=True, capture_output=True, timeout=600)


def test_the_package_knows_the_new_data_set(copy: Path) -> None:
    done = python(copy, "-c", ASK)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(copy), "the copy was asked, not the package itself"
    assert found["listed"] == ["digits", "forest", "usps", "mnist", "chest", "clouds"]
    assert found["experiments"] == ["digits", "forest", "usps", "mnist", "clouds"]
    assert found["public"] and found["function"] == [2] and "clouds" in found["loaded"]
    assert "its options: far" in found["option"]
    for error, names in (
        ("unknown", "'usps', 'mnist', 'chest', 'clouds'"),
        ("no experiment", "'usps', 'mnist', 'clouds'"),
    ):
        assert names in found[error] and "'cloud'" in found[error]
    assert found["run"] == ["clouds, no penalty", 6, 16]


@pytest.mark.parametrize("command", ["train", "eval"])
def test_the_command_line_offers_it(command: str, copy: Path) -> None:
    done = python(copy, "-m", "rop", command, "--help")
    assert done.returncode == 0 and "clouds" in done.stdout, done.stdout + done.stderr
    wrong = {"train": ["cloud"], "eval": ["RUN", "--on", "cloud"]}[command]
    refused = python(copy, "-m", "rop", command, *wrong)
    assert refused.returncode == 2 and "clouds" in refused.stderr and "'cloud'" in refused.stderr


def test_it_can_be_trained_on(copy: Path) -> None:
    done = python(copy, "-m", "rop", "train", "clouds", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 1
