"""Transfer of parameter vectors into and out of the engine: they are scaled and added."""

from __future__ import annotations

from numba import cuda

from rop.kernels.cuda.compile import Number, Vector, kernel, per_number


@kernel(per_number("y"))
def scale(y: Vector, x: Vector, factor: Number):
    """y = factor·x; y may be x."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] = factor * x[i]


@kernel(per_number("y"))
def axpy(y: Vector, x: Vector, factor: Number):
    """y += factor·x."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] += factor * x[i]
