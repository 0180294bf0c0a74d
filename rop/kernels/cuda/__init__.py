"""The kernels of the CUDA engine, file by file as in rop/kernels/cpu.

Files that exist only there are about a CPU (vector code, mathematics, the interpreter); files that exist only here are
about sums over threads (sums.py) and about compilation and launches (compile.py).

Values are stored as (row, lane): a row is one feature of all samples of the batch, contiguous, so that neighbouring
threads access neighbouring numbers. Rows of an image are (pixel, channel). A jet has one array per order and is one
parameter, a tuple; a kernel computes all requested orders in one launch, so that it reads its inputs once. Parameters
of a kernel are the outputs first, then the inputs, then the sizes. Formulas are not written here but compiled from
rop/layers.

This package imports numba.cuda, which `import rop` never does: only ``device="cuda"`` loads it.
"""
