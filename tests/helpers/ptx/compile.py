"""From a Python function to PTX with numba-cuda, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest


class _Device:
    """Stands in for the current device, of which the compiler of device functions asks one thing only."""

    def __init__(self, cc: tuple[int, int]) -> None:
        self.compute_capability = cc


def compile_ptx(
    function: Callable[..., None], signature: Any, cc: tuple[int, int] = (7, 5), *, fastmath: bool = False
) -> str:
    """The PTX of a kernel, given as a plain Python function, for a compute capability.

    `signature` is a tuple of Numba types or a string such as "void(float32[:, ::1], int32)". The calling test is
    skipped where numba-cuda or its compiler packages are missing. Line information is included; it changes no
    instruction, and violations can then name the line of the Python source.

    Device functions (`@cuda.jit(device=True)`) called by the kernel would ask the driver for the current device, so a
    stand-in answers. They stay compiled for the first `cc` they were used with.
    """
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from numba import cuda
    from numba.core import sigutils
    from numba.cuda import dispatcher

    types, _ = sigutils.normalize_signature(signature)
    with mock.patch.object(dispatcher, "get_current_device", lambda: _Device(cc)):
        try:
            ptx, _ = cuda.compile_ptx(function, types, cc=cc, lineinfo=True, fastmath=fastmath)
        except (ImportError, OSError) as error:  # numba-cuda's "support errors" are ImportErrors
            pytest.skip(f"the CUDA compiler packages are not installed: {error}")
    return str(ptx)
