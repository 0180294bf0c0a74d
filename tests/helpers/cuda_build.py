"""CUDA kernels on a machine without a GPU: compiled, assembled and executed.

``examine`` does all of it for one specialisation: numba-cuda makes PTX for its compute capabilities, ptxas turns it
into machine code and tells registers, shared memory and spills, and the machine of ``tests/helpers/ptx`` runs it on the
arguments of ``cuda_cases``. ``start`` hands the specialisations of a session to one process per core, because each
takes about a second and there are hundreds; ``examined`` waits for one of them.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.helpers.cuda_cases import Case, case_of
from tests.helpers.cuda_requests import EVERY, factories, is_listed, specialisations, told
from tests.helpers.ptx import Report, run

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (12, 0))
PRECISIONS = ("float32", "float64")
# The largest error of a result, relative to the largest number of the array.
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}


@dataclass(frozen=True)
class Spec:
    """One kernel to examine, in a form that another process understands."""

    kernel: str
    precision: str
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return "-".join([self.kernel, self.precision, *told(self.options)])

    def made(self) -> Any:
        """The kernel itself."""
        return factories()[self.kernel](self.precision, **dict(self.options))

    def case(self) -> Case:
        return case_of(self.kernel, self.precision, dict(self.options))

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """For which it is compiled: the oldest and the newest, and all of them if the documentation lists it."""
        return CAPABILITIES if is_listed(dict(self.options)) else (CAPABILITIES[0], CAPABILITIES[-1])


def specs() -> list[Spec]:
    """All that the engine asks for, in both precisions."""
    return [
        Spec(kernel, precision, tuple(options.items()))
        for kernel, list_of_options in specialisations().items()
        for options in list_of_options
        for precision in PRECISIONS
    ]


# ------------------------------------------------------------------------------------------------------------------
# tools
# ------------------------------------------------------------------------------------------------------------------
@cache
def ptxas() -> str | None:
    """The assembler: of the compiler packages that numba-cuda's extras install, or of an installed toolkit."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (nvidia.submodule_search_locations or [])] if nvidia else []
    for folder in folders:
        for found in sorted(folder.glob("*/bin/ptxas*")):
            return str(found)
    return shutil.which("ptxas")


def missing() -> str | None:
    """Why kernels cannot be examined here, or None if they can."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "NUMBA_ENABLE_CUDASIM is set: there is no compiler in Numba's simulator"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed: pip install 'rop[cuda12]' (no GPU is needed)"
    if ptxas() is None:
        return "there is no ptxas: pip install 'rop[cuda12]' brings it (no GPU is needed)"
    return None


class _Device:
    """Stands in for the current device, of which the compiler of device functions asks one thing only."""

    compute_capability = CAPABILITIES[0]


def library(kernel: Any) -> Any:
    """A kernel in the compiler's own form, from which PTX can be made for any capability. (The public function does
    everything again for each of them, and the part that does not depend on it takes longest.)"""
    from numba.cuda import compiler, dispatcher

    with mock.patch.object(dispatcher, "get_current_device", _Device):
        made, _ = compiler._compile_pyfunc_with_fixup(
            kernel.function,
            kernel.signature,
            device=False,
            cc=CAPABILITIES[0],
            abi="numba",
            launch_bounds=kernel.launch_bounds,
        )
    return made


def ptx_of(kernel: Any, capability: tuple[int, int] = CAPABILITIES[0]) -> str:
    return str(library(kernel).get_asm_str(cc=capability))


@dataclass(frozen=True)
class Resources:
    """The resources that a kernel needs on a device."""

    registers: int
    shared: int
    stack: int
    spills: int
    doubles: tuple[str, ...]  # instructions on float64, at most three of them
    atomics: tuple[str, ...]  # updates whose order is a matter of chance, likewise


def assembled(ptx: str, capability: tuple[int, int]) -> Resources:
    """The resources that ptxas reports; an error if it does not accept the text."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, "utf-8")
        command = [str(ptxas()), "-v", f"-arch=sm_{capability[0]}{capability[1]}", str(source), "-o", os.devnull]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise AssertionError(f"ptxas: {answer.stderr}")

    def number(pattern: str) -> int:
        found = re.search(pattern, answer.stderr)
        return int(found[1]) if found else 0

    spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return Resources(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes smem"),
        number(r"(\d+) bytes stack frame"),
        spills,
        instructions(ptx, r"[\w.]*\.f64\b"),
        instructions(ptx, r"(atom|red)\."),
    )


def instructions(ptx: str, pattern: str) -> tuple[str, ...]:
    """The first three instructions of a kind."""
    found = [line.strip() for line in ptx.splitlines() if re.match(rf"\s*(@\S+\s+)?(?=[a-z]){pattern}", line)]
    return tuple(found[:3])


# ------------------------------------------------------------------------------------------------------------------
# execution
# ------------------------------------------------------------------------------------------------------------------
def packed(kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a case as a kernel takes them: the arrays y0, y1, y2 as one jet y, strides and rows as one
    tuple."""
    from rop.kernels.cuda.bilinear import Strides
    from rop.kernels.cuda.compile import JETS
    from rop.kernels.cuda.product import Rows

    tuples: dict[str, Any] = {"Strides": Strides, "Rows": Rows}
    rest, made = dict(arguments), {}
    for name, kind in kernel.factory.parameters.items():
        if kind in JETS:
            made[name] = tuple(rest.pop(f"{name}{k}", None) for k in EVERY)
        elif kind in tuples:
            made[name] = tuples[kind](*(rest.pop(field) for field in tuples[kind]._fields))
    return {**rest, **made}


def executed(ptx: str, kernel: Any, case: Case) -> tuple[Report, list[str]]:
    """The report of a launch on a case, and a line for every output that is not what it must be."""
    launch = kernel.bind(**packed(kernel, case.arguments))
    empty = [case.arguments[name] for name in case.expected if name not in case.grown]
    report = run(ptx, None, launch.grid, launch.block, launch.arguments, unwritten=empty)
    tolerance = 0.0 if case.exact else TOLERANCE[np.dtype(kernel.dtype).name]
    return report, [line for name in case.expected for line in _difference(name, case, tolerance)]


def _difference(name: str, case: Case, tolerance: float) -> list[str]:
    found = case.arguments[name].astype(np.float64)
    wanted = np.asarray(case.expected[name], np.float64)
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        wrong = ~(same | (np.abs(found - wanted) <= tolerance * largest))
    if not wrong.any():
        return []
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return [
        f"{name}: {int(wrong.sum())} of {wrong.size} numbers are wrong; at {place} expected {wanted[place]}, "
        f"got {found[place]}"
    ]


@dataclass
class Examined:
    """All that is known about one kernel."""

    threads: int
    resources: dict[tuple[int, int], Resources] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    multiplications_per_load: float = 0.0  # from shared memory


def examine(spec: Spec) -> Examined:
    """Compile, assemble and execute one kernel."""
    kernel = spec.made()
    made = library(kernel)
    result = Examined(kernel.threads)
    ptx = {capability: str(made.get_asm_str(cc=capability)) for capability in spec.capabilities}
    result.resources = {capability: assembled(text, capability) for capability, text in ptx.items()}
    report, result.wrong = executed(ptx[CAPABILITIES[0]], kernel, spec.case())
    result.violations = [str(violation) for violation in report.violations]
    result.multiplications_per_load = report.fma_per_shared_load
    return result


_futures: dict[Spec, Future[Examined]] = {}


def start(wanted: Iterable[Spec]) -> None:
    """Have these examined in the background. Where tests are divided among processes anyway, each does its own."""
    new = [spec for spec in dict.fromkeys(wanted) if spec not in _futures]
    if not new or missing() is not None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    pool = ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"))
    _futures.update((spec, pool.submit(examine, spec)) for spec in new)
    pool.shutdown(wait=False)


def start_session(session: pytest.Session) -> None:
    """The kernels that the tests of this session ask for; with pytest-xdist each of its processes makes what it needs,
    because all tests of a kernel are in the same one (see conftest.py)."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    calls = [getattr(item, "callspec", None) for item in session.items]
    wanted = [call.params.get("spec") for call in calls if call is not None]
    start(spec for spec in wanted if isinstance(spec, Spec))


def examined(spec: Spec) -> Examined:
    """The findings on one kernel; a session without a pool makes them here and keeps them."""
    if spec not in _futures:
        future: Future[Examined] = Future()
        future.set_result(examine(spec))
        _futures[spec] = future
    return _futures[spec].result()
