"""From the operations of a network to the CPU's instructions.

The operations, their values, orders and gradients are those of rop/lowering; an *emitter* for each of them adds
instructions with kernels of rop/kernels/cpu, order by order. Files are named as there, and as in
rop/devices/cuda/emit. ``Lowered`` puts the instructions of all operations together to passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.devices.cpu.emit.base import REGISTRY, SLICES, Emitter
from rop.devices.cpu.emit.batchnorm import EmitBatchNorm
from rop.devices.cpu.emit.linear_maps import add_uses
from rop.devices.cpu.emit.rectified import rectify_gradient
from rop.devices.cpu.memory import PIECE_KINDS, Layout, PieceKind, TilePiece
from rop.devices.emission import BaseLowered
from rop.kernels.cpu import memory
from rop.lowering.plan import Plan

__all__ = ["Lowered", "result_region"]

SMALL = 6000  # numbers that are not worth dividing among threads


def result_region(orders: Sequence[tuple[int, int]], i: int) -> str:
    """The region of the parameter gradient of entry i of a pass: one for each order and direction."""
    k, direction = orders[i]
    return f"out{k}" if direction == 0 else f"out{k}.{direction}"


class Lowered(BaseLowered[Layout, Emitter]):
    """A network on tiles of a known number of lanes: its emitters, the memory they need, and its passes."""

    def __init__(self, plan: Plan, lanes: int, images: int):
        super().__init__(Layout(plan, lanes, images), REGISTRY)

    @cached_property
    def normalisations(self) -> list[EmitBatchNorm]:
        """The emitters of batch normalisation."""
        return [emitter for emitter in self.emitters if isinstance(emitter, EmitBatchNorm)]

    @property
    def collects_at_once(self) -> bool:
        """Whether each result of a pass is collected before the next order starts, because sums over the whole batch
        are made on the way. Then one set of partial sums is enough."""
        return self.plan.coupled or self.plan.pixel_lanes or any(emitter.is_wide for emitter in self.emitters)

    def emit_pass(self, orders: Sequence[tuple[int, int]], results: Collection[int]) -> Code:
        """The code of one pass: ``orders`` lists (order, direction) as they run, ``results`` the positions in that list
        whose parameter gradient is wanted; each goes to the region that ``result_region`` names.

        Without batch-wide sums on the way, all orders of a tile run while it is warm in cache, and results are
        collected at the end, from a set of partial sums each. Otherwise each is collected at once, and all use set 0.
        """
        code = Code(slices=self.plan.pixel_lanes)
        for k, direction in orders:
            self._prepare(code, k, direction)
        code.barrier()
        if self.plan.channel_maps:
            code.tile(memory.lane_mask, mask=Ref("mask"), samples=Ref("samples"), lanes=self.layout.lanes)
        at_once = self.collects_at_once
        for i, (k, direction) in enumerate(orders):
            code.wanted, code.sums = i in results, 0 if at_once else sorted(results).index(i) if i in results else 0
            code.out = Ref(result_region(orders, i), 0, 0)
            for emitter in code.for_each(self.emitters):
                emitter.forward(code, k, direction)
            for emitter in code.for_each(self.backwards() if self.plan.gradients else ()):
                add_uses(self.layout, code, emitter.operation, k)
                rectify_gradient(self.layout, code, emitter.operation, k)
                emitter.backward(code, k, direction)
            if code.wanted and at_once:
                self._collect(code, k, direction, 0, code.out)
        for sums, i in enumerate(sorted(results)):
            if not at_once:
                self._collect(code, *orders[i], sums, Ref(result_region(orders, i), 0, 0))
        return code

    def emit_outputs(self) -> Code:
        """The forward pass alone, its outputs written in the user's order."""
        code = self.emit_pass([(0, 0)], ())
        plan, layout = self.plan, self.layout
        shape = plan.shapes[plan.graph.output]
        order = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), 0, -1).ravel()
        code.tile(
            memory.store,
            y=Ref("outputs"),
            x=layout.rows(plan.output.buffer, 0),
            samples=Ref("samples"),
            order=layout.tables.put(order),
            rows=plan.output.rows,
            lanes=layout.lanes,
        )
        return code

    def _prepare(self, code: Code, k: int, direction: int) -> None:
        """Packs the weights (order 0: w, order 1: v), and whatever else comes before the tiles."""
        layout = self.layout
        index, count = layout.packing
        if k < 2 and count:
            parts = SLICES if count > SMALL else 1
            code.split(
                parts,
                memory.gather,
                y=layout.panel("packed", k, direction, 0),
                x=layout.parameter(k, direction, 0),
                index=index,
                count=count,
                part=Ref("number", 0, 1),
                parts=parts,
            )
        for emitter in code.for_each(self.emitters):
            emitter.prepare(code, k, direction)

    def _collect(self, code: Code, k: int, direction: int, sums: int, out: Ref) -> None:
        """The parameters' gradient of order k from one set of partial sums: wide layers, then the sums over tiles, tied
        parameters last."""
        layout = self.layout
        for emitter in code.for_each(self.emitters):
            emitter.wide(code, k, direction, out)
        code.barrier()
        one = layout.tables.put([1])
        for kind in PIECE_KINDS:
            for piece in layout.batch_pieces:
                if piece.kind == kind:
                    place = layout.batch("batch", piece.at)
                    self._collect_pieces(code, kind, piece.index, out=out, partial=place, step=0, tiles=one)
            if layout.tile_index[kind]:
                share = layout.share(TilePiece(0, kind), sums)
                self._collect_pieces(
                    code,
                    kind,
                    np.concatenate(layout.tile_index[kind]),
                    out=out,
                    partial=Ref(share.region, share.offset, 0),
                    step=Ref("partial_step", 0, 0),
                    tiles=Ref("tile_count", 0, 0),
                )
        code.barrier()

    def _collect_pieces(self, code: Code, kind: PieceKind, index: np.ndarray, **places: Operand) -> None:
        """Sums over tiles to their places in w."""
        layout = self.layout
        parts = SLICES if index.size > SMALL and not kind.add else 1
        common: dict[str, Operand] = {**places, "add": int(kind.add), "part": Ref("number", 0, 1), "parts": parts}
        if kind.in_runs:
            runs = layout.runs(index)
            code.split(parts, memory.collect_runs, runs=layout.tables.put(runs), count=len(runs), **common)
        else:
            code.split(parts, memory.collect, index=layout.tables.put(index), count=index.size, **common)
