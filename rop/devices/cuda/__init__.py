"""The engine on a GPU: memory and passes (workspace.py), vectors on the device (vectors.py), training (descent.py).

Imported only when device="cuda" is used; kernels are in rop/kernels/cuda, their launches in rop/devices/cuda/emit.
"""
