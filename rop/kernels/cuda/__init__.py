"""The kernels of the CUDA engine, file by file as in rop/kernels/cpu.

What is only there belongs to a CPU (panels, vector code, the interpreter); what is only here are sums over threads, and
how kernels become launches.

Values lie as (row, lane): a row is one feature of all samples of the batch, contiguous, so that neighbouring threads
touch neighbouring numbers. Rows of an image are (pixel, channel). There is one array per order of the jet, and a kernel
computes all orders that are asked for in one launch: everything it reads is read once.

This package imports numba.cuda, which `import rop` never does: only ``device="cuda"`` loads it.
"""
