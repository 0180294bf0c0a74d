"""Devices: where an objective is computed, and what the engine asks of each of them.

The engine knows which orders a question needs; a *workspace* holds a network's memory on one device and runs passes of
those orders. ``rop/devices/cpu/workspace.py`` is the CPU's, ``rop/devices/cuda/workspace.py`` a GPU's; both offer
what ``Space`` lists. Nothing here imports numba.cuda before a GPU is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rop.errors import DeviceError
from rop.graph import Graph
from rop.layers._arguments import check_choice
from rop.layers.base import Shape
from rop.layers.loss import Loss

if TYPE_CHECKING:
    from rop.lowering import Plan

DEVICES = ("cpu", "cuda", "auto")
INSTALL = "pip install 'rop[cuda12]' (or 'rop[cuda13]' where the driver is of CUDA 13)"

Vector = Any  # (n,): a NumPy array, or an array on the device
Block = Any  # (n, k), likewise
Orders = tuple[tuple[int, int], ...]  # what a pass computes: (order, direction), in the order in which they run


class Space(Protocol):
    """The memory of a network on batches of one size. At most one point's activations are in it at a time.

    Vectors that ``run`` returns are the workspace's own; ``given`` makes of them what the user gets.
    """

    plan: Plan
    batch: int
    lanes: int  # samples of a tile, padding included
    tiles: int
    kept: int  # orders that are kept between passes, from 0 on: 3, 1 or 0
    owner: object  # token of the point whose order 0 is kept
    has_direction: bool  # whether order 1 of the direction in v0 is kept

    @property
    def together(self) -> int:
        """How many directions go through the network in one pass."""

    def bind(self, data: Any) -> None:
        """Makes this batch the one that passes read."""

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Running statistics for evaluation mode."""

    def forget(self) -> None:
        """What is kept belongs to no point any more."""

    def ensure_direction(self, index: int) -> None:
        """Room for direction number ``index``."""

    def adopt(self, name: str, vector: Vector, check: bool) -> bool:
        """Copies a vector into "w", "v0", "v1", …; returns whether it is finite, as far as ``check`` asks for it."""

    def borrow(self, name: str, vector: Vector, check: bool) -> bool:
        """Like ``adopt`` for the next passes, but the vector may be read where it is, so it must not change until it
        is settled or released, or another one takes its place."""

    def settle(self, name: str, copy: Vector | None = None) -> None:
        """Copies a vector that was borrowed, or borrows this copy of it instead."""

    def release(self, name: str) -> None:
        """Lets go of a vector that was borrowed; another one must take its place before the next pass."""

    def holds(self, name: str, vector: Vector) -> bool:
        """Whether the vector that was adopted last under this name is equal to this one."""

    def run(self, orders: Orders, results: tuple[int, ...], into: list[Vector] | None = None) -> list[Vector]:
        """Runs (order, direction) pairs over the batch; returns the parameter gradients of the positions ``results``
        in Taylor coefficients, or writes them ``into`` places of ``new_block``."""

    def energy(self, k: int) -> float:
        """Order k of the loss in the last pass, a Taylor coefficient."""

    def scale(self, vector: Vector, factor: float) -> None:
        """Multiplies a result by a number."""

    def statistics(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Name, mean, variance and number of values per channel of every batchnorm layer."""

    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Number of the first tile, and order 0 of a number of tiles (tiles, words) in the layout of the plan."""

    def keep(self, w: Vector) -> Vector:
        """A copy of w where it is, for a point to hold."""

    def vector(self, name: str, value: Any) -> Vector:
        """A vector on the device as this workspace takes it."""

    def given(self, result: Vector, like: Vector) -> Vector:
        """A result for the user, on the same side as ``like``."""

    def rows_of(self, columns: Block) -> Any:
        """The columns of a block as a sequence, each contiguous."""

    def new_block(self, k: int, like: Block) -> tuple[Block, list[Vector]]:
        """A block (n, k) for the user on the same side as ``like``, and a place for each of its columns."""


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

    >>> on_device(np.zeros(3))
    False
    """
    return hasattr(value, "__cuda_array_interface__") or getattr(value, "__cuda_ndarray__", False) is True


def workspace(
    device: str, net: Graph, shape: Shape, training: bool, loss: Loss, dtype: Any, batch: int, memory_limit: int
) -> Space:
    """The memory of a network on batches of this size, on a device."""
    if check_choice("workspace", "device", device, ("cpu", "cuda")) == "cuda":
        from rop.devices.cuda.workspace import CudaWorkspace

        return CudaWorkspace.of(net, shape, training, loss, dtype, batch, memory_limit)
    from rop.devices.cpu.workspace import Workspace

    return Workspace.of(net, shape, training, loss, dtype, batch, memory_limit)
