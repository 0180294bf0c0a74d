"""K-FAC's direction as a pass of the interpreter: its blocks, their memory and their instructions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rop.devices.cpu.code import Bound, Code, Operand, Ref, Region
from rop.devices.cpu.regions import Regions
from rop.devices.cpu.vectors import aligned
from rop.kernels import warm
from rop.kernels.cpu import preconditioner as kernels
from rop.kernels.cpu.gemm import PANEL
from rop.kernels.cpu.vector import BLOCK

SLICES = 8  # of the rows or lanes of every block, for threads to share, …
WORTH_SHARING = 1 << 20  # … if all blocks together have at least so many multiplications
ZEROS, SCALE, SUMS, RATE = "zeros", "scale", "sums", "rate"  # memory of all blocks


class Place(NamedTuple):
    """Where a block [W b] of the parameters stands."""

    outputs: int
    inputs: int  # columns of W
    weight: int  # position of W in the parameters,
    bias: int | None  # and that of b

    @property
    def columns(self) -> int:
        """Columns of [W b]."""
        return self.inputs + (self.bias is not None)

    @property
    def multiplications(self) -> int:
        """Of the four products of a block."""
        return 2 * self.outputs * self.columns * (self.outputs + self.columns)


class Preconditioner:
    """The pass that replaces blocks G of the gradient by ν S (W ∘ (Sᵀ G A)) Aᵀ; other parameters stay as they are.

    Args:
        memory: of the workspace whose gradient "out0" it is.
        dtype: precision.
        places: of the blocks.
        clip: the largest rate² Σ U ∘ G over all blocks; 0: any.

    ``rate`` is the learning rate, (1,), which has to be there before the pass runs.
    """

    def __init__(self, memory: Regions, dtype: Any, places: list[Place], clip: float):
        self._memory, self._dtype, self._places = memory, np.dtype(dtype), places
        self._regions = {"number": Region(0), "out0": memory.table["out0"]}
        self._arrays: dict[str, np.ndarray] = {}
        self._parts = SLICES if sum(place.multiplications for place in places) >= WORTH_SHARING else 1
        self._segments = np.array([[0, 0, n] for place in places for n in (place.columns, place.outputs)], np.int64)
        self._add(ZEROS, PANEL)
        self._add(SCALE, 1)
        self._add(SUMS, self._parts * len(places), np.float64)
        self.rate = self._add(RATE, 1, np.float64)
        for i, place in enumerate(places):
            self._add_block(i, place)
        code = self._emitted(clip)
        warm.ensure(dtype, code.functions(dtype))
        self.bound = Bound(code, self._regions, dtype)

    def put(self, i: int, S: np.ndarray, A: np.ndarray, weights: np.ndarray) -> None:
        """The matrices S (outputs, outputs), A (columns, columns) and W (outputs, columns) of block i."""
        for name, matrix in (("S", S), ("St", S.T), ("A", A), ("At", A.T), ("W", weights)):
            self._arrays[f"{name}{i}"].reshape(len(matrix), -1)[:, : matrix.shape[1]] = matrix

    # ---- memory --------------------------------------------------------------------------------------------------
    def _add(self, name: str, count: int, dtype: Any = None) -> np.ndarray:
        array = aligned(count, dtype or self._dtype)
        self._memory.watch(f"{name} of K-FAC", array)
        self._arrays[name], self._regions[name] = array, Region(int(array.ctypes.data))
        return array

    def _lane_bytes(self, place: Place) -> int:
        """Bytes of a row of a block, in whole blocks of lanes."""
        return -(-place.columns * self._dtype.itemsize // BLOCK) * BLOCK

    def _row_bytes(self, place: Place) -> int:
        """From a row to the next: an odd number of blocks of lanes, so that rows do not share cache sets."""
        return (self._lane_bytes(place) // BLOCK | 1) * BLOCK

    def _add_block(self, i: int, place: Place) -> None:
        row = self._row_bytes(place) // self._dtype.itemsize
        sizes = dict.fromkeys(("G", "T", "U", "W"), place.outputs * row)
        sizes |= dict.fromkeys(("A", "At"), place.columns * row)
        sizes |= dict.fromkeys(("S", "St"), place.outputs * place.outputs)
        for name, count in sizes.items():
            self._add(f"{name}{i}", count)

    # ---- instructions --------------------------------------------------------------------------------------------
    def _emitted(self, clip: float) -> Code:
        """Products with A take slices of the rows, those with S slices of the lanes: each is made of what the same
        slice has made before, so that a pass has three stages, however many blocks there are."""
        code = Code(slices=True)
        for emit in (self._emit_inputs, self._emit_outputs, self._emit_back):
            for i, place in enumerate(self._places):
                emit(code, i, place)
            code.barrier()
        count = self._parts * len(self._places)
        code.once(kernels.shorten, scale=Ref(SCALE), sums=Ref(SUMS), count=count, rate=Ref(RATE), clip=float(clip))
        for i, place in enumerate(self._places):
            self._on_rows(code, kernels.put_block, place, u=Ref(f"U{i}"), scale=Ref(SCALE), **self._parameters(place))
        return code

    def _emit_inputs(self, code: Code, i: int, place: Place) -> None:
        """T = G A."""
        self._on_rows(code, kernels.take_block, place, g=Ref(f"G{i}"), **self._parameters(place))
        self._product(code, i, place, c="T", a="G", b="A", of_rows=self._slice)

    def _emit_outputs(self, code: Code, i: int, place: Place) -> None:
        """U = W ∘ (Sᵀ T), then T = S U."""
        self._product(code, i, place, c="U", a="St", b="T", of_lanes=self._slice)
        rows, lanes = self._row_bytes(place), self._lane_bytes(place)
        self._add_to(
            code,
            kernels.weigh,
            y=Ref(f"U{i}"),
            weights=Ref(f"W{i}"),
            rows=place.outputs,
            row_bytes=rows,
            lane_bytes=lanes,
            of_lanes=self._slice,
        )
        self._product(code, i, place, c="T", a="S", b="U", of_lanes=self._slice)

    def _emit_back(self, code: Code, i: int, place: Place) -> None:
        """U = T Aᵀ, and Σ U ∘ G."""
        self._product(code, i, place, c="U", a="T", b="At", of_rows=self._slice)
        sums = Ref(SUMS, 8 * self._parts * i)
        self._on_rows(code, kernels.agreement, place, sums=sums, u=Ref(f"U{i}"), g=Ref(f"G{i}"), columns=place.columns)

    @property
    def _slice(self) -> tuple[Any, int]:
        return (Ref("number", 0, 1), self._parts) if self._parts > 1 else (0, 1)

    def _parameters(self, place: Place) -> dict[str, Operand]:
        size = self._dtype.itemsize
        bias: Operand = 0 if place.bias is None else Ref("out0", place.bias * size)
        return {"weight": Ref("out0", place.weight * size), "bias": bias, "columns": place.inputs}

    def _on_rows(self, code: Code, kernel: Any, place: Place, **operands: Operand) -> None:
        self._add_to(
            code, kernel, rows=place.outputs, row_bytes=self._row_bytes(place), of_rows=self._slice, **operands
        )

    def _product(self, code: Code, i: int, place: Place, c: str, a: str, b: str, **slices: Operand) -> None:
        by_outputs = a in ("S", "St")
        row = self._row_bytes(place)
        segment = int(self._segments.ctypes.data) + 24 * (2 * i + by_outputs)
        self._add_to(
            code,
            kernels.product,
            c=Ref(f"{c}{i}"),
            a=Ref(f"{a}{i}"),
            a_row=place.outputs * self._dtype.itemsize if by_outputs else row,
            b=Ref(f"{b}{i}"),
            row_bytes=row,
            rows=place.outputs,
            lane_bytes=self._lane_bytes(place),
            segment=segment,
            zeros=Ref(ZEROS),
            **{"of_rows": (0, 1), "of_lanes": (0, 1), **slices},
        )

    def _add_to(self, code: Code, kernel: Any, **operands: Operand) -> None:
        if self._parts == 1:
            code.once(kernel, **operands)
        else:
            code.split(self._parts, kernel, **operands)
