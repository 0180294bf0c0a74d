"""Runs the PTX of CUDA kernels on a machine without a GPU, and checks every access and barrier on the way.

    ptx = compile_ptx(kernel, "void(float32[:, ::1], float32[:, ::1])")
    report = run(ptx, grid=(2, 2), block=(16, 16), args=[x, y])         # y is changed in place
    report.raise_for_violations()

The text that is run is what the CUDA compiler emits for the GPU, after inlining, unrolling and typing: a literal that
became float64, an array that fell into local memory or a barrier that some threads never reach are seen here, while a
simulator that runs the Python source sees none of them. It is no model of speed.

`parse` reads the text, `arithmetic` knows what instructions compute, `memory` the state spaces and who touched which
bytes, `machine` how threads move through the program, and `report` what is told about it.
"""

from tests.helpers.ptx.compile import compile_ptx
from tests.helpers.ptx.machine import run
from tests.helpers.ptx.parse import PTXError, parse
from tests.helpers.ptx.report import Kind, Report, Violation

__all__ = ["run", "compile_ptx", "parse", "Report", "Violation", "Kind", "PTXError"]
