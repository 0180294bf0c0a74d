"""Tests of device="cuda", against the CPU engine. They run on a GPU, or in Numba's simulator: see conftest.py."""
