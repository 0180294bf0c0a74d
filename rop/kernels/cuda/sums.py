"""Deterministic sums over blocks of threads and over vectors of parameters.

A sum is made in three steps whose order depends on the sizes alone: each thread adds up its own terms and compensates
the rounding errors (so that no float64 is needed for the sum of a million float32), a tree in shared memory adds the
threads of a block, and each block writes one number; the host or a second kernel adds these in the order of the blocks.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from rop.kernels.cuda.compile import (
    STRIPES,
    THREADS,
    WARP,
    Arguments,
    BoundNames,
    Matrix,
    Number,
    Vector,
    blocks_of,
    helper,
    kernel,
    real,
)

PER_THREAD = 8  # terms of a thread that amortise a further block
MOST_BLOCKS = 256  # the largest number of blocks


# ----------------------------------------------------------------------------------------------------------------- sums
@helper
def added(total, lost, term):
    """total + term, and the rounding error of all additions so far (Kahan's summation)."""
    wanted = term - lost
    result = total + wanted
    return result, (result - total) - wanted


@helper
def block_sum(buffer, thread, value):
    """The sum of the values of all threads, returned to each of them; buffer (THREADS,) is shared."""
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
def sum_of_two(a, b):
    return a + b


@helper
def larger_of_two(a, b):
    return b if b > a else a


@helper
def block_and_lane(lanes):
    """The number of the set of rows that this thread works for, and its lane, in a grid with a block for every set and
    warp of lanes."""
    warps = lanes // WARP
    one = cuda.blockIdx.x // warps
    return one, (cuda.blockIdx.x - one * warps) * WARP + cuda.threadIdx.x


combine: Any = None  # the operation of a reduction: bound below


def _over_stripes(buffer, stripe, lane, value):
    """The values of all stripes of a block combined, lane by lane; buffer (STRIPES, WARP) is shared."""
    buffer[stripe, lane] = value
    cuda.syncthreads()
    step = STRIPES // 2
    while step > 0:
        if stripe < step:
            buffer[stripe, lane] = combine(buffer[stripe, lane], buffer[stripe + step, lane])
        cuda.syncthreads()
        step //= 2
    total = buffer[0, lane]
    cuda.syncthreads()
    return total


stripe_sum = helper(_over_stripes, combine=sum_of_two)
stripe_largest = helper(_over_stripes, combine=larger_of_two)


def blocks(count: int) -> int:
    """The number of partial sums of ``count`` terms."""
    return min(MOST_BLOCKS, blocks_of(count, THREADS * PER_THREAD))


def _per_partial(names: BoundNames, given: Arguments) -> tuple[int, ...]:
    """A grid with a block for every partial sum."""
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
    """The number of places where u and v differ, block by block."""
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
    """0 for every block whose numbers are all finite, NaN for the others: NaN · 0 and Inf · 0 are NaN."""
    buffer = cuda.shared.array(THREADS, real)
    total = real(0)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * real(0)
    total = block_sum(buffer, cuda.threadIdx.x, total)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = total
