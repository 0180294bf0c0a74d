"""The engine on a GPU, file by file as in rop/devices/cpu.

It is imported only when device="cuda" is used; its kernels are in rop/kernels/cuda, and training on a GPU is in
rop/training/cuda.py.
"""
