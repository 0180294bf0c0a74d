"""Sums that do not depend on chance, over blocks of threads and over vectors of parameters.

A sum is made in three steps whose order is fixed by the sizes alone: each thread adds up its own terms and carries the
rounding errors along (so that no float64 is needed for the sum of a million float32), a tree in shared memory adds the
threads of a block, and blocks leave one number each, which the host or a second kernel adds up in their order.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from rop.kernels.cuda.compile import (
    STRIPES,
    THREADS,
    Matrix,
    Number,
    Vector,
    blocks_of,
    helper,
    kernel,
    real,
)

PER_THREAD = 8  # terms of a sum for which a further block is worth while …
MOST_BLOCKS = 256  # … and how many there are at most


# ----------------------------------------------------------------------------------------------------------------- sums
@helper
def added(total, lost, term):
    """total + term, and the rounding error of all additions so far (Kahan)."""
    wanted = term - lost
    result = total + wanted
    return result, (result - total) - wanted


@helper
def block_sum(buffer, thread, value):
    """The sum of all threads' values, known to all of them; buffer is shared and has a place for each."""
    buffer[thread] = value
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if thread < step:
            buffer[thread] += buffer[thread + step]
        cuda.syncthreads()
        step //= 2
    total = buffer[0]
    cuda.syncthreads()
    return total


@helper
def stripe_sum(buffer, stripe, lane, value):
    """The sum over the stripes of a block, lane by lane; buffer (STRIPES, WARP) is shared."""
    buffer[stripe, lane] = value
    cuda.syncthreads()
    step = STRIPES // 2
    while step > 0:
        if stripe < step:
            buffer[stripe, lane] += buffer[stripe + step, lane]
        cuda.syncthreads()
        step //= 2
    total = buffer[0, lane]
    cuda.syncthreads()
    return total


@helper
def stripe_largest(buffer, stripe, lane, value):
    """The largest over the stripes of a block, lane by lane."""
    buffer[stripe, lane] = value
    cuda.syncthreads()
    step = STRIPES // 2
    while step > 0:
        if stripe < step and buffer[stripe + step, lane] > buffer[stripe, lane]:
            buffer[stripe, lane] = buffer[stripe + step, lane]
        cuda.syncthreads()
        step //= 2
    best = buffer[0, lane]
    cuda.syncthreads()
    return best


def blocks(count: int) -> int:
    """How many partial sums there are of so many terms."""
    return min(MOST_BLOCKS, blocks_of(count, THREADS * PER_THREAD))


def _per_partial(names: dict[str, Any], given: dict[str, Any]) -> tuple[int, ...]:
    return (given["partial"].shape[0],)


@kernel(_per_partial)
def moments(u: Vector, v: Vector, partial: Matrix):
    """Partial sums (block, 3) of uᵀu, uᵀv and vᵀv."""
    buffer = cuda.shared.array(THREADS, real)
    thread = cuda.threadIdx.x
    uu = uv = vv = real(0)
    lost_uu = lost_uv = lost_vv = real(0)
    for i in range(cuda.grid(1), u.size, cuda.gridsize(1)):
        a = u[i]
        b = v[i]
        uu, lost_uu = added(uu, lost_uu, a * a)
        uv, lost_uv = added(uv, lost_uv, a * b)
        vv, lost_vv = added(vv, lost_vv, b * b)
    uu = block_sum(buffer, thread, uu)
    uv = block_sum(buffer, thread, uv)
    vv = block_sum(buffer, thread, vv)
    if thread == 0:
        partial[cuda.blockIdx.x, 0] = uu
        partial[cuda.blockIdx.x, 1] = uv
        partial[cuda.blockIdx.x, 2] = vv


@kernel(_per_partial)
def distance(u: Vector, v: Vector, factor: Number, partial: Vector):
    """Partial sums of ‖u − factor·v‖²."""
    buffer = cuda.shared.array(THREADS, real)
    total = lost = real(0)
    for i in range(cuda.grid(1), u.size, cuda.gridsize(1)):
        apart = u[i] - factor * v[i]
        total, lost = added(total, lost, apart * apart)
    total = block_sum(buffer, cuda.threadIdx.x, total)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total


@kernel(_per_partial)
def differences(u: Vector, v: Vector, partial: Vector):
    """How many numbers of u and v differ, block by block."""
    buffer = cuda.shared.array(THREADS, real)
    total = real(0)
    for i in range(cuda.grid(1), u.size, cuda.gridsize(1)):
        if u[i] != v[i]:
            total += real(1)
    total = block_sum(buffer, cuda.threadIdx.x, total)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total


@kernel(_per_partial)
def finite(x: Vector, partial: Vector):
    """0 for every block whose numbers are all finite, NaN for the others: NaN and Inf make the product with 0 NaN."""
    buffer = cuda.shared.array(THREADS, real)
    total = real(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * real(0)
    total = block_sum(buffer, cuda.threadIdx.x, total)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total
