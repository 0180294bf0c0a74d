"""Kernels that move rows: data in, partial sums into the gradient."""

from __future__ import annotations

from numba import cuda

from rop.kernels.cuda.compile import (
    ROW_BLOCK,
    STRIPES,
    THREADS,
    WARP,
    Count,
    Indices,
    Jet,
    Matrix,
    VectorJet,
    add_to,
    blocks_of,
    by_order,
    helper,
    kernel,
    real,
    wants_0,
    wants_1,
    wants_2,
)

PADDED = WARP + 1  # columns of a tile that is written by rows and read by columns, without bank conflicts


@kernel(lambda names, given: (blocks_of(given["y"].shape[0], WARP), blocks_of(given["y"].shape[1], WARP)), ROW_BLOCK)
def load(y: Matrix, x: Matrix, samples: Indices, feature: Indices):
    """The data: y (row, lane) = x[sample of the lane, feature[row]], with x (sample, feature). A negative sample ~i is
    a copy of sample i that the loss does not count; feature −1 gives a row of zeros. Tiles go through shared memory, so
    that x is read along features and y is written along lanes."""
    tile = cuda.shared.array((WARP, PADDED), real)
    row_0 = cuda.blockIdx.x * WARP
    lane_0 = cuda.blockIdx.y * WARP
    row = row_0 + cuda.threadIdx.x
    for i in range(cuda.threadIdx.y, WARP, STRIPES):
        sample = samples[lane_0 + i]
        if sample < 0:
            sample = ~sample
        there = feature[row] if row < y.shape[0] else -1
        tile[i, cuda.threadIdx.x] = x[sample, there] if there >= 0 else real(0)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.y, WARP, STRIPES):
        if row_0 + i < y.shape[0]:
            y[row_0 + i, lane_0 + cuda.threadIdx.x] = tile[cuda.threadIdx.x, i]


@helper
def slice_total(partial, i):
    """Σ_slices partial[slice, i], in the order of the slices."""
    total = real(0)
    for number in range(partial.shape[0]):
        total += partial[number, i]
    return total


@kernel(lambda names, given: (blocks_of(given["partial"][0].shape[1], THREADS),), names=by_order)
def collect(out: VectorJet, partial: Jet, base: Count, add: Count):
    """out[base + i] (+)= Σ_slices partial[slice, i], in the order of the slices."""
    i = cuda.grid(1)
    if i < partial[0].shape[1]:
        if wants_0:
            add_to(out[0], base + i, slice_total(partial[0], i), add)
        if wants_1:
            add_to(out[1], base + i, slice_total(partial[1], i), add)
        if wants_2:
            add_to(out[2], base + i, slice_total(partial[2], i), add)
