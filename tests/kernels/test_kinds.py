"""A representative part of the numeric tests, with kernels compiled for other kinds of CPU: see tests/kinds.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import rop
from rop.kernels.cpu.vector import UNITS, choose_unit
from tests.helpers.processes import ROOT, environment, run_python
from tests.kinds import KINDS, NUMERIC, OTHERS, REPRESENTATIVE, obstacle


@pytest.mark.parametrize("kind", OTHERS)
def test_the_numbers_of_another_kind_of_cpu(kind: str) -> None:
    """In float64, so that few kernels have to be compiled."""
    why = obstacle(kind)
    if why is not None:
        pytest.skip(why)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-k",
        "float64",
        *REPRESENTATIVE,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**KINDS[kind], ROP_TEST_LAZY="1"), capture_output=True, text=True
    )
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("kind, unit", [("avx2", "avx2"), ("no-avx", "avx2"), ("avx512-geometry", "avx512")])
def test_a_kind_has_its_vector_unit_and_its_own_cache(kind: str, unit: str) -> None:
    code = "from rop.kernels.compile import kind; from rop.kernels.cpu.vector import UNIT; print(UNIT.name, kind())"
    name, folder = run_python(code, 300.0, **KINDS[kind]).stdout.split()
    assert name == unit and folder.startswith(KINDS[kind]["NUMBA_CPU_NAME"]) and folder.endswith(unit)


@pytest.mark.parametrize(
    "cpu, features, unit",
    [
        ("znver4", "+avx,+avx2,+avx512f,+fma", "avx512"),
        ("haswell", "+avx,+avx2,-avx512f,+fma", "avx2"),
        ("x86-64-v4", "", "avx512"),
        ("x86-64-v3", "", "avx2"),
        ("apple-m1", "+neon", "avx2"),
    ],
)
def test_the_vector_unit_suits_the_cpu(cpu: str, features: str, unit: str) -> None:
    assert choose_unit(None, cpu, features) is UNITS[unit]
    assert choose_unit("avx512", cpu, features) is UNITS["avx512"]


def test_an_unknown_vector_unit_is_refused() -> None:
    with pytest.raises(rop.ArgumentError, match=r"ROP_VECTOR_UNIT.*avx512, avx2.*'sve'"):
        choose_unit("sve", "generic", "")


def test_the_files_of_the_numeric_suite_exist() -> None:
    files: list[Any] = [ROOT / name for name in (*NUMERIC, *(one.split("::")[0] for one in REPRESENTATIVE))]
    assert all(file.is_file() for file in files)
