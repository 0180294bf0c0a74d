"""Devices: where an objective is computed, and what keeps a device from being used.

A *workspace* (``rop/devices/workspace.py``) holds a network's memory on one device and answers an objective's question;
``rop/devices/cpu`` and ``rop/devices/cuda`` implement it with the same files: ``emit/<family>.py`` turns operations
into instructions or launches, ``code.py`` has their symbolic operands, ``memory.py`` their layout, ``regions.py``
allocates it, ``execution.py`` runs passes over it, ``vectors.py`` has the vectors of users, and ``workspace.py`` puts
all of it together. Nothing here imports numba.cuda before a GPU is asked for.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rop.arguments import check_choice
from rop.errors import DeviceError
from rop.graph import Graph
from rop.layers.base import Shape
from rop.layers.loss import Loss

if TYPE_CHECKING:
    from rop.devices.workspace import Workspace

DEVICES = ("cpu", "cuda", "auto")
LAYOUTS = ("samples", "pixels")  # what lies side by side in a row of the CPU's memory; see rop/devices/cpu/choice.py
INSTALL = "pip install 'rop[cuda12]' (or 'rop[cuda13]' where the driver is of CUDA 13)"


def obstacle() -> str | None:
    """What keeps a GPU from being used, and the remedy; None if nothing does."""
    if find_spec("numba_cuda") is None:
        return f"the package numba-cuda is not installed; {INSTALL}"
    from numba import cuda
    from numba.core import config

    if getattr(config, "ENABLE_CUDASIM", False) or os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return None
    usable, error = cuda.is_available(), str(cuda.cuda_error() or "")
    if usable and len(cuda.gpus):
        return None
    if usable or "NO_DEVICE" in error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "see nvidia-smi" if visible is None else f"CUDA_VISIBLE_DEVICES is {visible!r}"
        return f"the NVIDIA driver finds no GPU; {hint}"
    if error:
        reason = " ".join(error.split()).split(". ")[0].rstrip(".")
        return f"there is no usable NVIDIA driver ({reason}); install the driver of your GPU and check it by nvidia-smi"
    return f"the CUDA compiler (NVVM) is not installed; {INSTALL}"


def check_device(owner: str, device: Any) -> str:
    """ "cpu" or "cuda"; "auto" is a GPU if one can be used."""
    check_choice(owner, "device", device, DEVICES)
    if device == "cpu":
        return "cpu"
    missing = obstacle()
    if missing is None:
        return "cuda"
    if device == "auto":
        return "cpu"
    raise DeviceError(f"{owner}: device 'cuda' cannot be used: {missing}. Everything also runs with device='cpu'")


def on_device(value: Any) -> bool:
    """Whether a value is an array in a GPU's memory, of whichever package.

    >>> import numpy as np
    >>> on_device(np.zeros(3))
    False
    """
    return hasattr(value, "__cuda_array_interface__") or getattr(value, "__cuda_ndarray__", False) is True


def make_workspace(
    device: str,
    net: Graph,
    shape: Shape,
    training: bool | None,
    loss: Loss,
    dtype: Any,
    batch: int,
    memory_limit: int | None,
    layout: str | None = None,
    winograd: bool = True,
) -> Workspace:
    """The memory of a network on batches of this size, on a device; a GPU has one layout, and direct sums."""
    if check_choice("make_workspace", "device", device, ("cpu", "cuda")) == "cuda":
        from rop.devices.cuda.workspace import CudaWorkspace

        return CudaWorkspace.of(net, shape, training, loss, dtype, batch, memory_limit)
    from rop.devices.cpu.workspace import CpuWorkspace

    return CpuWorkspace.of(net, shape, training, loss, dtype, batch, memory_limit, layout=layout, winograd=winograd)
