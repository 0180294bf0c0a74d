"""The code of a pass: operations forward and backward, order by order, and their results."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from rop.devices.cpu.code import Code, Operand, Ref
from rop.kernels.cpu import memory
from rop.lowering.bilinear import SLICES
from rop.lowering.loss import LossOperation
from rop.lowering.plan import FAMILIES, Family, Partial, Plan

SMALL = 6000  # numbers that are not worth dividing among threads


def result_space(orders: Sequence[tuple[int, int]], i: int) -> str:
    """Where the parameter gradient of entry i of a pass goes: a place for each order and direction."""
    k, direction = orders[i]
    return f"out{k}" if direction == 0 else f"out{k}.{direction}"


def emit_pass(plan: Plan, orders: Sequence[tuple[int, int]], results: Collection[int]) -> Code:
    """The code of one pass: ``orders`` lists (order, direction) as they run, ``results`` the positions in that list
    whose parameter gradient is wanted; each goes to the space that ``result_space`` names.

    Without batch-wide sums on the way, all orders of a tile run while it is warm in cache, and results are collected at
    the end, from a slot of partial sums each. Otherwise each is collected at once, and all use slot 0."""
    code = Code()
    for k, direction in orders:
        _emit_preparation(plan, code, k, direction)
    code.barrier()
    at_once = plan.coupled or plan.has_wide
    for i, (k, direction) in enumerate(orders):
        code.wanted, code.slot = i in results, 0 if at_once else sorted(results).index(i) if i in results else 0
        for operation in plan.operations:
            operation.forward(plan, code, k, direction)
        if plan.gradients:
            _emit_backward(plan, code, k, direction)
        if code.wanted and at_once:
            _emit_results(plan, code, k, direction, 0, Ref(result_space(orders, i), 0, 0))
    for slot, i in enumerate(sorted(results)):
        if not at_once:
            _emit_results(plan, code, *orders[i], slot, Ref(result_space(orders, i), 0, 0))
    return code


def emit_outputs(plan: Plan) -> Code:
    """The forward pass alone, its outputs written in the user's order."""
    code = emit_pass(plan, [(0, 0)], ())
    shape = plan.shapes[plan.graph.output]
    order = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), 0, -1).ravel()
    code.tile(
        memory.store,
        y=Ref("outputs"),
        x=plan.at(plan.output.buffer, 0),
        samples=Ref("samples"),
        order=plan.tables.put(order),
        rows=plan.output.rows,
        lanes=plan.lanes,
    )
    return code


def _emit_preparation(plan: Plan, code: Code, k: int, direction: int) -> None:
    """Weights into panels (order 0: w, order 1: v)."""
    index, count = plan.packing()
    if k < 2 and count:
        parts = SLICES if count > SMALL else 1
        code.split(
            parts,
            memory.gather,
            y=plan.panel("packed", k, direction, 0),
            x=plan.parameter(k, direction, 0),
            index=index,
            count=count,
            part=Ref("number", 0, 1),
            parts=parts,
        )
    for operation in plan.operations:
        operation.prepare(plan, code, k, direction)


def _emit_backward(plan: Plan, code: Code, k: int, direction: int) -> None:
    for operation in reversed(plan.operations):
        if operation.y.needs_gradient and not isinstance(operation, LossOperation):
            operation.add_uses(plan, code, k)
            operation.backward(plan, code, k, direction)


def _emit_results(plan: Plan, code: Code, k: int, direction: int, slot: int, out: Ref) -> None:
    """The parameters' gradient of order k: wide layers, then the sums over tiles, tied parameters last."""
    for operation in plan.operations:
        operation.wide(plan, code, k, direction, out)
    code.barrier()
    one = plan.tables.put([1])
    for family in FAMILIES:
        for piece in plan.slots:
            if piece.family == family:
                _collect(
                    plan,
                    code,
                    family,
                    piece.index,
                    out=out,
                    partial=Ref("batch", piece.at * plan.itemsize, 0),
                    step=0,
                    tiles=one,
                )
        if plan.partial_index[family]:
            share = plan.share(Partial(0, family), slot)
            _collect(
                plan,
                code,
                family,
                np.concatenate(plan.partial_index[family]),
                out=out,
                partial=Ref(share.space, share.offset, 0),
                step=Ref("partial_step", 0, 0),
                tiles=Ref("tile_count", 0, 0),
            )
    code.barrier()


def _collect(plan: Plan, code: Code, family: Family, index: np.ndarray, **places: Operand) -> None:
    """Sums over tiles to their places in w."""
    parts = SLICES if index.size > SMALL and not family.add else 1
    common: dict[str, Operand] = {**places, "add": int(family.add), "part": Ref("number", 0, 1), "parts": parts}
    if family.in_runs:
        runs = plan.runs(index)
        code.split(parts, memory.collect_runs, runs=plan.tables.put(runs), count=len(runs), **common)
    else:
        code.split(parts, memory.collect, index=plan.tables.put(index), count=index.size, **common)
