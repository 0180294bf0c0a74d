"""The interpreter: runs a table of instructions over the tiles of a batch, with Numba's threads if it is asked to.

An instruction is a row of int64: the address of its kernel, then for each operand a base, a step per unit and a step
per chunk; the kernel receives  base + unit·step + first·chunk_step.  A *unit* is the part of a stage that one thread
runs (a tile of the batch, a block of columns, a slice of the parameters); *first* is the position of the chunk's first
tile in the whole batch. So a kernel gets plain addresses and numbers, and only the interpreter knows tiles.

A stage is a range of instructions and a number of units; units of a stage run in parallel, stages one after another.
Every unit writes to memory of its own, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from rop.kernels.compile import LOOP_MATH, KernelCache
from rop.kernels.cpu.vector import I64, const, peek

# The words of what a run asks between instructions, in int64.
ASKED_WORDS = 5
(
    CANCELLED,  # not 0: the run ends at the next instruction
    SIGNALS,  # not 0: the thread that called should let Python handle signals
    ERROR,  # the exception that a handler of signals has raised: its type, …
    ERROR_VALUE,
    ERROR_TRACEBACK,
) = range(ASKED_WORDS)
OPERANDS = 24  # the largest number of words that the operands of an instruction take
ROW = 1 + 3 * OPERANDS  # int64 per instruction: kernel, bases, steps per unit, steps per chunk
STAGE = 3  # int64 per stage: first instruction, end, units (TILES: as many as the chunk has)
TILES = -1


def _operand_loader(sizes: Sequence[int]) -> Any:
    kinds = [types.int64 if size == 1 else types.containers.UniTuple(types.int64, size) for size in sizes]

    @intrinsic
    def operands(typingctx, row, unit, first):
        """The values of an instruction's operands, as a tuple of numbers and of tuples of numbers."""

        def codegen(context, builder, signature, args):
            row, unit, first = args

            def field(position: int) -> Any:
                return builder.load(builder.inttoptr(builder.add(row, const(8 * position)), I64.as_pointer()))

            def word(i: int) -> Any:
                steps = builder.add(
                    builder.mul(unit, field(1 + OPERANDS + i)), builder.mul(first, field(1 + 2 * OPERANDS + i))
                )
                return builder.add(field(1 + i), steps)

            words = iter([word(i) for i in range(sum(sizes))])
            values = [
                next(words) if size == 1 else context.make_tuple(builder, kind, [next(words) for _ in range(size)])
                for kind, size in zip(kinds, sizes, strict=True)
            ]
            return context.make_tuple(builder, signature.return_type, values)

        return types.containers.Tuple(kinds)(types.int64, types.int64, types.int64), codegen

    return operands


def entry(body: Callable[..., Any], sizes: Iterable[int], name: str) -> Callable[[int, int, int], None]:
    """The C function of a kernel, which loads its operands, of these numbers of words, and calls its body."""
    operands = _operand_loader(tuple(sizes))

    def call(row, unit, first):
        body(*operands(row, unit, first))

    call.__name__ = call.__qualname__ = name.replace(".", "_")
    return call


@intrinsic
def _call(typingctx, function, row, unit, first):
    """Calls a kernel by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def _handle_signals(typingctx, asked):
    """Lets Python's handlers of signals run, in the thread that called; an exception of theirs is put into ``asked``
    and cancels the run."""

    def codegen(context, builder, signature, args):
        def python(name: str, result: ir.Type, *given: ir.Value) -> ir.Value:
            kind = ir.FunctionType(result, [value.type for value in given])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)

        def word(i: int) -> ir.Value:
            return builder.inttoptr(builder.add(args[0], const(8 * i)), I64.as_pointer())

        i32 = ir.IntType(32)
        builder.store(const(0), word(SIGNALS))
        state = python("PyGILState_Ensure", i32)
        raised = python("PyErr_CheckSignals", i32)
        with builder.if_then(builder.icmp_signed("!=", raised, i32(0))):
            python("PyErr_Fetch", ir.VoidType(), *(word(i) for i in (ERROR, ERROR_VALUE, ERROR_TRACEBACK)))
            builder.store(const(1), word(CANCELLED))
        python("PyGILState_Release", ir.VoidType(), state)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@numba.njit(nogil=True, no_cfunc_wrapper=True)
def _execute(table, begin, end, unit, first, asked, calling):
    """Runs instructions begin … end − 1 of the table for one unit; ``calling`` says whether this is the thread that
    called."""
    for row in range(table + 8 * ROW * begin, table + 8 * ROW * end, 8 * ROW):
        if peek(asked + 8 * SIGNALS) != 0 and calling:
            _handle_signals(asked)
        if peek(asked + 8 * CANCELLED) != 0:
            return
        _call(peek(row), row, unit, first)


def _run_serial(table, stages, count, tiles, first, asked):
    """All stages in order; ``asked`` is the address of what is asked between instructions."""
    for stage in range(stages, stages + 8 * STAGE * count, 8 * STAGE):
        units = peek(stage + 16)
        for unit in range(tiles if units == TILES else units):
            _execute(table, peek(stage), peek(stage + 8), unit, first, asked, True)


def _run_parallel(table, stages, count, tiles, first, asked):
    """The same, with the units of a stage divided among Numba's threads."""
    for stage in range(stages, stages + 8 * STAGE * count, 8 * STAGE):
        begin = peek(stage)
        end = peek(stage + 8)
        units = peek(stage + 16)
        if units == TILES:
            units = tiles
        if units == 1:
            _execute(table, begin, end, 0, first, asked, True)
        else:
            for unit in prange(units):
                _execute(table, begin, end, types.int64(unit), first, asked, numba.get_thread_id() == 0)


def version(parallel: bool) -> Any:
    """A version of the interpreter to be compiled into other functions."""
    function = _run_parallel if parallel else _run_serial
    return numba.njit(parallel=parallel, nogil=True, fastmath=LOOP_MATH, no_cfunc_wrapper=True)(function)


def _cached(parallel: bool) -> Any:
    compiled = version(parallel)
    compiled._cache = KernelCache(entry_name(parallel))
    compiled.compile((types.int64,) * 6)
    compiled.disable_compile()
    return compiled


_runners: dict[bool, Any] = {}
SPINS = "10000"  # about a tenth of a millisecond: longer than the Python code between two calls


def load_threads() -> None:
    """Loads Numba's threading layer. If that is GNU OpenMP, its threads are told to sleep soon when they wait: by
    default they spin for milliseconds at a barrier, and on a busy machine they then occupy the core that the last
    thread needs. OpenMP reads the variable only now, and a value that the user has set is kept."""
    unset = [name for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ] == []
    if unset:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        numba.get_num_threads()
    finally:
        if unset:
            del os.environ["GOMP_SPINCOUNT"]


def entry_name(parallel: bool) -> str:
    """The name of a version's entry in the cache."""
    return f"interpreter.{'_run_parallel' if parallel else '_run_serial'}"


def runner(parallel: bool) -> Any:
    """run(table, stages, number of stages, tiles, first tile, what is asked), compiled at first use."""
    if parallel not in _runners:
        if parallel:
            load_threads()
        _runners[parallel] = _cached(parallel)
    return _runners[parallel]
