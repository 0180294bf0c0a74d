"""Weights in panels, as the micro-kernels read them: [column][row in the panel], in vectors.

A panel has at most PANEL rows, which fill one vector or two.
"""

from __future__ import annotations

from rop.kernels.compile import PerPrecision
from rop.kernels.cpu.gemm import PANEL
from rop.kernels.cpu.vector import VECTOR, Value, VectorBuilder, const, vector_function


def panel_columns(e: VectorBuilder, w: Value, row_step: Value, rows: Value, there: Value) -> list[list[Value]]:
    """As many columns of a panel as a vector has lanes, each as its vectors of rows; ``there`` says which columns
    exist. Rows are ``row_step`` bytes apart."""
    groups = []
    for first in range(0, PANEL, e.lanes):
        loaded = []
        for i in range(first, first + e.lanes):
            row = e.b.select(e.b.icmp_signed("<", const(i), rows), const(i), e.at(rows, -1))
            known = i < PANEL
            loaded.append(e.load_some(e.at(w, e.b.mul(row, row_step)), there) if known else e.number(0))
        groups.append(e.transposed(loaded))
    return [list(column) for column in zip(*groups, strict=True)]


def row_masks(e: VectorBuilder, rows: Value) -> list[Value]:
    """Which lanes of a column's vectors are rows of the panel."""
    return [e.first_lanes(e.b.sub(rows, const(first))) for first in range(0, PANEL, e.lanes)]


def store_column(e: VectorBuilder, column: list[Value], place: Value, masks: list[Value]) -> None:
    """Stores the rows of a column side by side."""
    for i, (vector, mask) in enumerate(zip(column, masks, strict=True)):
        e.store_some(vector, e.at(place, VECTOR * i), mask)


def _emit_turn_rows(e: VectorBuilder, y, w, row_step, rows, count) -> None:
    """y [column][row] from w (row, column), whose ``count`` columns lie side by side."""
    masks, column_bytes = row_masks(e, rows), e.b.mul(rows, const(e.size))

    def block(i, carried):
        source, target = carried
        left = e.b.sub(count, e.b.mul(i, const(e.lanes)))
        columns = panel_columns(e, source, row_step, rows, e.first_lanes(left))
        places = [e.at(target, e.b.mul(column_bytes, const(j))) for j in range(e.lanes)]
        with e.b.if_else(e.b.icmp_signed(">=", left, const(e.lanes))) as (whole, some):
            with whole:
                for column, place in zip(columns, places, strict=True):
                    store_column(e, column, place, masks)
            with some:
                for j, (column, place) in enumerate(zip(columns, places, strict=True)):
                    with e.b.if_then(e.b.icmp_signed("<", const(j), left)):
                        store_column(e, column, place, masks)
        return [e.at(source, VECTOR), e.at(target, e.b.mul(column_bytes, const(e.lanes)))]

    e.loop(e.b.sdiv(e.at(count, e.lanes - 1), const(e.lanes)), [w, y], block)


def _emit_copy_columns(e: VectorBuilder, y, w, column_step, rows, count) -> None:
    """y [column][row] from w (column, row), whose rows lie side by side."""
    masks, column_bytes = row_masks(e, rows), e.b.mul(rows, const(e.size))

    def column(i, carried):
        source, target = carried
        store_column(e, [e.load_some(e.at(source, VECTOR * v), mask) for v, mask in enumerate(masks)], target, masks)
        return [e.at(source, column_step), e.at(target, column_bytes)]

    e.loop(count, [w, y], column)


turn_rows = PerPrecision(vector_function(_emit_turn_rows))
copy_columns = PerPrecision(vector_function(_emit_copy_columns))
