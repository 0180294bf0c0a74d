"""Every CUDA kernel compiles for the generations of devices, and needs no more than they have.

Nothing here needs a GPU: PTX comes from numba-cuda, machine code from ptxas. docs/cuda-kernels.md lists the
resources that they report, and these tests compare it with what they report now.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import cuda_table
from tests.helpers.cuda_build import (
    CAPABILITIES,
    PRECISIONS,
    Spec,
    examined,
    instructions,
    missing,
    specs,
    start_session,
)

if missing() is not None:
    pytest.skip(str(missing()), allow_module_level=True)

REGISTERS = 255  # of a thread
REGISTER_FILE = 65536  # of a multiprocessor: a block must fit into it
STATIC_SHARED = 48 * 1024  # of a block
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.fixture(scope="module", autouse=True)
def workers(request: pytest.FixtureRequest) -> None:
    start_session(request.session)


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_resources(spec: Spec) -> None:
    found = examined(spec)
    assert set(found.resources) == set(spec.capabilities) >= {CAPABILITIES[0], CAPABILITIES[-1]}
    for capability, needs in found.resources.items():
        assert (needs.stack, needs.spills) == (0, 0), f"local memory on {capability}: {needs}"
        assert needs.registers <= REGISTERS
        assert needs.registers * found.threads <= REGISTER_FILE
        assert needs.shared <= STATIC_SHARED
        assert not needs.atomics, f"a result that depends on chance: {needs.atomics}"
        if spec.precision == "float32":
            assert not needs.doubles, f"float64 in a float32 kernel on {capability}: {needs.doubles}"


def test_what_is_forbidden_is_recognised() -> None:
    """In a line of its own, behind a predicate, with whatever comes after; not in names of registers."""
    ptx = "\tadd.f32 \t%f64, %f1;\n\t@%p1 atom.global.add.f32 %f1, [%rd1], %f2;\n red.shared.add.u32 [%r1], 1;\n"
    assert [line.split()[-5:] for line in instructions(ptx, r"(atom|red)\.")] == [
        ["@%p1", "atom.global.add.f32", "%f1,", "[%rd1],", "%f2;"],
        ["red.shared.add.u32", "[%r1],", "1;"],
    ]
    assert not instructions(ptx, r"[\w.]*\.f64\b")
    assert instructions(ptx + "\tcvt.rn.f64.s64 \t%fd1, %rd1;", r"[\w.]*\.f64\b") == ("cvt.rn.f64.s64 \t%fd1, %rd1;",)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_load_each_number_once(precision: str) -> None:
    """With 4 × 4 outputs of three orders a thread makes 16 · 5 multiply-adds of 5 · 4 numbers, which are five loads
    of 16 bytes in float32 and ten in float64."""
    for kernel, terms in (("bilinear.products", 5), ("bilinear.weight_gradient", 6)):
        (spec,) = (
            one
            for one in cuda_table.rows()
            if one.kernel == kernel
            and one.precision == precision
            and dict(one.options).get("tile") == "large"
            and not dict(one.options).get("adjoint")
        )
        loads = terms if precision == "float32" else 2 * terms
        assert examined(spec).multiplications_per_load == pytest.approx(16 * terms / loads)


def test_the_table_in_the_documentation_is_what_is_found() -> None:
    committed = (Path(__file__).parents[3] / "docs" / "cuda-kernels.md").read_text("utf-8")
    if cuda_table.tools() not in committed:
        pytest.skip(f"the table was made with other compilers than these: {cuda_table.tools()}")
    made = cuda_table.document()
    again = "make it again with: python -m tests.helpers.cuda_table docs/cuda-kernels.md"
    assert NUMBER.sub("#", made) == NUMBER.sub("#", committed), again
    # the compiler does not always come to the same code: a few registers, or occupancy of the next step, may differ
    now, then = ([float(number) for number in NUMBER.findall(text)] for text in (made, committed))
    differing = sum(abs(a - b) > 0.1 * max(a, b) for a, b in zip(now, then, strict=True))
    assert differing <= 0.03 * len(now), again
