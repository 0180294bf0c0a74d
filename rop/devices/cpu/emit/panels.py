"""Tables for products with weights: how W is packed into panels, and which rows a product reads."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.memory import Layout
from rop.kernels.cpu.gemm import PANEL
from rop.lowering.bilinear import Products
from rop.lowering.geometry import Geometry


def panels(rows: int) -> list[tuple[int, int]]:
    """First row and number of rows of each panel, as rop/kernels/cpu/gemm.py divides them.

    >>> panels(5)
    [(0, 5)]
    """
    count = -(-rows // PANEL)
    sizes = [rows // count + (i < rows % count) for i in range(count)]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def packed(index: np.ndarray) -> np.ndarray:
    """Positions (row, j) -> panels [j][row in the panel], flat."""
    return np.concatenate([index[first : first + m].T.ravel() for first, m in panels(len(index))])


def reversed_tap(geometry: Geometry, tap: np.ndarray) -> np.ndarray:
    """Taps numbered with columns from right to left: then output pixels ascend with the tap."""
    a, b = np.divmod(tap, geometry.kernel[1])
    return a * geometry.kernel[1] + geometry.kernel[1] - 1 - b


def forward_panels(op: Products) -> list[np.ndarray]:
    """Positions in w of the panels for y = W x, group by group."""
    return [packed(one.reshape(len(one), -1)) for one in op.weight_index()]


def backward_panels(op: Products) -> list[np.ndarray]:
    """Positions in w of the panels for Wᵀ δ, group by group."""
    back = op.weight_index()[:, :, reversed_tap(op.geometry, np.arange(op.geometry.taps))]
    return [packed(one.transpose(2, 1, 0).reshape(op.group_inputs, -1)) for one in back]


def segments(
    first: np.ndarray, offset: np.ndarray, owner: np.ndarray, length: int, row_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Runs of ``length`` rows (first j, byte offset), sorted by owner -> segments (first j, offset, length) and their
    owners; runs that follow each other in both are joined."""
    joined = np.zeros(first.size, bool)
    joined[1:] = (
        (owner[1:] == owner[:-1])
        & (first[1:] == first[:-1] + length)
        & (offset[1:] == offset[:-1] + length * row_bytes)
    )
    starts = np.flatnonzero(~joined)
    lengths = np.diff(np.append(starts, first.size)) * length
    return np.stack([first[starts], offset[starts], lengths], axis=1), owner[starts]


def forward_segments(op: Products, layout: Layout) -> int:
    """The rows of x that each output pixel reads, as a table by output pixel."""
    pixel_in, pixel_out, tap = op.geometry.triples()
    rows, owner = _segments_of_pixels(op, layout, tap, pixel_in, pixel_out, op.inputs)
    return layout.tables.bounded(rows, owner, op.pixels)


def backward_segments(op: Products, layout: Layout) -> int:
    """The rows of δ that each input pixel reads, as a table by input pixel."""
    pixel_in, pixel_out, tap = op.geometry.triples()
    tap = reversed_tap(op.geometry, tap)
    order = np.lexsort((tap, pixel_in))
    rows, owner = _segments_of_pixels(op, layout, tap[order], pixel_out[order], pixel_in[order], op.rows)
    return layout.tables.bounded(rows, owner, op.image_pixels)


def _segments_of_pixels(
    op: Products, layout: Layout, tap: np.ndarray, pixel: np.ndarray, owner: np.ndarray, channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Segments of the pixels, of this many channels each, that owners read through taps. With several groups, pixels
    do not follow each other."""
    length, size = channels // op.groups, layout.lane_bytes
    return segments(tap * length, pixel * channels * size, owner, length, size if op.groups == 1 else -1)
