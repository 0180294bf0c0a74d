"""Vector code that Numba would not generate from loops: the building blocks of the micro-kernels, as LLVM instructions.

``UNIT`` is the vector unit that the kernels assume. A vector fills one of its registers; LLVM splits vectors where the
machine's registers are shorter, so that each unit gives right results on every machine. A *block* of lanes is 64 bytes,
a cache line.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import DTypeLike

from rop.errors import ArgumentError, DeviceError

BLOCK = 64  # bytes of lanes: rows are whole blocks


@dataclass(frozen=True)
class VectorUnit:
    """The geometry of the micro-kernels: everything that depends on the kind of CPU follows from this one record."""

    name: str
    vector: int  # bytes of a register
    panel: int  # rows of a panel: panel × 2 sums, 2 vectors of B and 1 of A fit in the registers
    dot_columns: int  # DOT_ROWS × dot_columns sums, dot_columns resident vectors and 1 streamed vector fit as well
    l1: int  # bytes of L1 cache in which the blocks of a lane dot must stay resident

    @property
    def span(self) -> int:
        """Bytes of lanes that a panel handles at a time, if the tile has that many."""
        return 2 * self.vector


UNITS = {
    unit.name: unit
    for unit in (
        VectorUnit("avx512", vector=64, panel=12, dot_columns=6, l1=49152),  # 32 registers
        VectorUnit("avx2", vector=32, panel=6, dot_columns=3, l1=32768),  # 16 registers; also for all other CPUs
    )
}


def target_cpu() -> tuple[str, str]:
    """Name and features of the CPU that Numba compiles for: those of the host, or those in NUMBA_CPU_NAME and
    NUMBA_CPU_FEATURES."""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return name, features


# Kinds of CPU that many machines are, by LLVM's names, and a feature without which a machine is none of them.
LEVELS = {"x86-64-v2": "sse4.2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}


def check_host(cpu: str) -> None:
    """Refuses to compile for a kind of CPU whose code this machine cannot run."""
    feature = LEVELS.get(cpu)
    if feature and not binding.get_host_cpu_features().get(feature, False):
        raise DeviceError(
            f"NUMBA_CPU_NAME={cpu} asks for code with {feature}, which this machine's CPU does not have: "
            "name a lower kind, or unset it together with NUMBA_CPU_FEATURES"
        )


def choose_unit(asked: str | None, cpu: str, features: str) -> VectorUnit:
    """The unit with the name ``asked``, or the one that suits the CPU if there is no name."""
    if asked:
        if asked not in UNITS:
            raise ArgumentError(
                f"ROP_VECTOR_UNIT: expected one of {', '.join(UNITS)}, got {asked!r}; unset it to use "
                "what suits the machine"
            )
        return UNITS[asked]
    return UNITS["avx512" if "+avx512f" in features.split(",") or cpu == "x86-64-v4" else "avx2"]


UNIT = choose_unit(os.environ.get("ROP_VECTOR_UNIT"), *target_cpu())
VECTOR = UNIT.vector
CACHE_LINE = 64  # bytes

Value: TypeAlias = ir.Value
I64 = ir.IntType(64)
I32 = ir.IntType(32)


def const(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


class VectorBuilder:
    """Writes vector instructions of one precision through an LLVM builder; a vector has ``vector`` bytes."""

    def __init__(self, builder: ir.IRBuilder, dtype: DTypeLike, vector: int = VECTOR):
        self.b = builder
        self.size = np.dtype(dtype).itemsize
        self.scalar = ir.FloatType() if self.size == 4 else ir.DoubleType()
        self.lanes = vector // self.size
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.suffix = f"v{self.lanes}f{8 * self.size}"

    # -------------------------------------------------------------------------------------------- memory
    def at(self, address: Value, *offsets: Value | int) -> Value:
        for offset in offsets:
            address = self.b.add(address, const(offset) if isinstance(offset, int) else offset)
        return address

    def load_as(self, kind: ir.Type, address: Value) -> Value:
        value = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        value.align = self.size if kind is not I64 else 8
        return value

    def load(self, address: Value) -> Value:
        return self.load_as(self.vector, address)

    def load_int(self, address: Value) -> Value:
        return self.load_as(I64, address)

    def load_scalar(self, address: Value) -> Value:
        return self.load_as(self.scalar, address)

    def broadcast(self, address: Value) -> Value:
        return self.splat(self.load_scalar(address))

    def store(self, value: Value, address: Value) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer())).align = self.size

    def first_lanes(self, count: Value) -> Value:
        """A truth value for every lane: whether its number is below ``count``."""
        kind = ir.VectorType(I64, self.lanes)
        several = self.b.insert_element(ir.Constant(kind, ir.Undefined), count, ir.Constant(I32, 0))
        several = self.shuffle(several, several, [0] * self.lanes)
        return self.b.icmp_signed("<", ir.Constant(kind, list(range(self.lanes))), several)

    def load_some(self, address: Value, lanes: Value) -> Value:
        """A vector of which only the chosen lanes are loaded; the others are zero and their memory is not touched."""
        place = self.b.inttoptr(address, self.vector.as_pointer())
        function = self._function(
            f"llvm.masked.load.{self.suffix}.p0", self.vector, [place.type, I32, lanes.type, self.vector]
        )
        return self.b.call(function, [place, ir.Constant(I32, self.size), lanes, self.number(0)])

    def gather(self, address: Value, offsets: Value, lanes: Value) -> Value:
        """A vector from places at the given offsets, in bytes, of which only the chosen lanes are loaded; the others
        are zero."""
        first = self.b.insert_element(ir.Constant(offsets.type, ir.Undefined), address, ir.Constant(I32, 0))
        addresses = self.b.add(self.shuffle(first, first, [0] * self.lanes), offsets)
        places = self.b.inttoptr(addresses, ir.VectorType(self.scalar.as_pointer(), self.lanes))
        function = self._function(
            f"llvm.masked.gather.{self.suffix}.v{self.lanes}p0",
            self.vector,
            [places.type, I32, lanes.type, self.vector],
        )
        return self.b.call(function, [places, ir.Constant(I32, self.size), lanes, self.number(0)])

    def store_some(self, value: Value, address: Value, lanes: Value) -> None:
        place = self.b.inttoptr(address, self.vector.as_pointer())
        function = self._function(
            f"llvm.masked.store.{self.suffix}.p0", ir.VoidType(), [self.vector, place.type, I32, lanes.type]
        )
        self.b.call(function, [value, place, ir.Constant(I32, self.size), lanes])

    # ---------------------------------------------------------------------------------------- arithmetic
    def splat(self, scalar: Value) -> Value:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes))

    def number(self, value: float) -> ir.Constant:
        return ir.Constant(self.vector, [float(value)] * self.lanes)

    def bit(self, value: bool) -> ir.Constant:
        return ir.Constant(ir.IntType(1), int(value))

    def truth(self, bit: Value) -> Value:
        """A truth value for every lane."""
        kind = ir.VectorType(ir.IntType(1), self.lanes)
        return self.b.select(bit, ir.Constant(kind, [1] * self.lanes), ir.Constant(kind, [0] * self.lanes))

    def _function(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
        return cgutils.get_or_insert_function(self.b.module, ir.FunctionType(result, arguments), name)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a·b + c, in one instruction where the machine has one, else in two."""
        return self.b.call(self._function(f"llvm.fmuladd.{self.suffix}", self.vector, [self.vector] * 3), [a, b, c])

    def sum(self, vector: Value) -> Value:
        reduce = self._function(f"llvm.vector.reduce.fadd.{self.suffix}", self.scalar, [self.scalar, self.vector])
        return self.b.call(reduce, [ir.Constant(self.scalar, -0.0), vector], fastmath=("reassoc",))

    def shuffle(self, a: Value, b: Value, order: list[int]) -> Value:
        return self.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))

    def transposed(self, rows: list[Value]) -> list[Value]:
        """As many vectors as a vector has lanes, transposed: ever larger off-diagonal blocks are swapped."""
        rows, n, width = list(rows), self.lanes, 1
        while width < n:
            upper = [lane if not lane & width else n + lane - width for lane in range(n)]
            lower = [lane + width if not lane & width else n + lane for lane in range(n)]
            for i in range(n):
                if not i & width:
                    a, b = rows[i], rows[i + width]
                    rows[i], rows[i + width] = self.shuffle(a, b, upper), self.shuffle(a, b, lower)
            width *= 2
        return rows

    # ------------------------------------------------------------------------------------------- control
    def loop(
        self, count: Value, carried: list[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """for i in range(count): carried = body(i, carried); the carried values stay in registers."""
        b, before = self.b, self.b.block
        head, inside, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(const(0), before)
        held = [b.phi(value.type) for value in carried]
        for phi, value in zip(held, carried, strict=True):
            phi.add_incoming(value, before)
        b.cbranch(b.icmp_signed("<", index, count), inside, after)
        b.position_at_end(inside)
        new = body(index, held)
        index.add_incoming(b.add(index, const(1)), b.block)
        for phi, value in zip(held, new, strict=True):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(after)
        return list(held)

    def switch(self, key: Value, cases: dict[int, Callable[[], None]]) -> None:
        b = self.b
        after = b.append_basic_block("after")
        choice = b.switch(key, after)
        for value, emit in cases.items():
            block = b.append_basic_block("case")
            choice.add_case(const(value), block)
            b.position_at_end(block)
            emit()
            b.branch(after)
        b.position_at_end(after)


def vector_function(emit: Callable[..., None], **sizes: int) -> Callable[[Any], Any]:
    """Makes, per dtype, an intrinsic with the parameters of ``emit(builder, …)``, which writes its instructions. Each
    parameter is an int64, or a tuple of int64 if its size is given."""
    names = list(inspect.signature(emit).parameters)[1:]
    kinds = [types.containers.UniTuple(types.int64, sizes[name]) if name in sizes else types.int64 for name in names]

    def make(dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = zip(names, args, strict=True)
            values = [cgutils.unpack_tuple(builder, value) if name in sizes else value for name, value in given]
            emit(VectorBuilder(builder, dtype), *values)
            return context.get_dummy_value()

        scope = {"signature": types.void(*kinds), "codegen": codegen}  # intrinsics have a fixed number of parameters
        return intrinsic(eval(f"lambda typingctx, {', '.join(names)}: (signature, codegen)", scope))

    return make


@intrinsic
def as_pointer(typingctx, address):
    """An integer address as a pointer, for carray."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def address_of(typingctx, array):
    """The address of an array's data."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, args[0]).data, I64)

    return types.int64(array), codegen


@intrinsic
def peek(typingctx, address):
    """The int64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], I64.as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Prefetches the cache line at an address into the second level."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data = ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)
        builder.call(function, [builder.inttoptr(args[0], byte), read, second_level, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def number_in(typingctx, bits):
    """The float64 whose bits an int64 operand carries."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen
