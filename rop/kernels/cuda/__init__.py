"""The kernels of the CUDA engine, file by file as in rop/kernels/cpu.

Files that exist only there belong to a CPU (vector code, mathematics, the interpreter); files that exist only here make
sums over threads and launches of kernels.

Values are stored as (row, lane): a row is one feature of all samples of the batch, contiguous, so that neighbouring
threads access neighbouring numbers. Rows of an image are (pixel, channel). There is one array per order of the jet, and
a kernel computes all requested orders in one launch, so that it reads its inputs once. Parameters of a kernel are the
outputs first, then the inputs, then the sizes. Formulas are not written here but compiled from rop/layers.

This package imports numba.cuda, which `import rop` never does: only ``device="cuda"`` loads it.
"""
