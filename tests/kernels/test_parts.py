"""Parts of kernels: linked into what calls them, and no machine code of their own."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from rop.kernels.compile import OPTIONS, PART
from rop.kernels.parts import PartLibrary, TunedCompiler, TunedLibrary


@pytest.fixture
def translated(monkeypatch: Any) -> list[str]:
    """The names of the modules of which machine code is made."""
    names: list[str] = []
    usual = JITCPUCodegen._add_module

    def add(self: Any, module: Any) -> Any:
        names.append(module.name)
        return usual(self, module)

    monkeypatch.setattr(JITCPUCodegen, "_add_module", add)
    return names


def _inner(x):
    return 2 * x + 1


@pytest.mark.parametrize("compiler", [PART["pipeline_class"], TunedCompiler])
def test_only_what_is_called_from_outside_becomes_machine_code(compiler: Any, translated: list[str]) -> None:
    part = numba.njit(**{**PART, "pipeline_class": compiler})
    inner = part(_inner)

    def _middle(x):
        return inner(x) + inner(float(x))

    middle = part(_middle)

    def outer(x):
        return middle(x) * 10

    called = numba.njit(**OPTIONS)(outer)
    assert called(3) == 140.0 and called(3.0) == 140.0
    assert len(translated) == 2 and all("outer" in name for name in translated)
    libraries = [result.library for function in (inner, middle) for result in function.overloads.values()]
    assert len(libraries) == 4 and all(isinstance(library, PartLibrary) for library in libraries)
    assert all(isinstance(library, TunedLibrary) == (compiler is TunedCompiler) for library in libraries)


def test_a_part_with_a_parallel_loop_is_compiled_as_usual() -> None:
    def _sums(x):
        total = 0.0
        for i in numba.prange(x.size):
            total += x[i]
        return total

    sums = numba.njit(parallel=True, **PART)(_sums)

    def outer(x):
        return sums(x) + 1

    assert numba.njit(**OPTIONS)(outer)(np.ones(100)) == 101.0


def test_a_tuned_part_is_optimised_before_it_is_linked() -> None:
    def _eight(x):
        total = 0.0
        for i in range(8):
            total += x * i
        return total

    sizes = {}
    for compiler in (PART["pipeline_class"], TunedCompiler):
        part = numba.njit(**{**PART, "pipeline_class": compiler, "fastmath": True})(_eight)
        part.compile((numba.float64,))
        (result,) = part.overloads.values()
        with global_compiler_lock:
            sizes[compiler] = len(str(result.library._get_module_for_linking()))
    assert sizes[TunedCompiler] < sizes[PART["pipeline_class"]]
