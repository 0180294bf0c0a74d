"""How layers are computed. ``cpu/`` (Numba) and ``cuda/`` (numba.cuda) hold the same file names, one per family."""
