"""The host's part of a launch: arguments into memory, and the limits that are known before anything runs.

numba-cuda passes an array as its fields, each a parameter of the kernel: meminfo and parent (both null), the number of
elements, the size of one, the address of the data, then every extent and every stride. Tuples are passed as their
items, numbers as themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.helpers.ptx.arithmetic import DTYPES
from tests.helpers.ptx.memory import PAGE, Space
from tests.helpers.ptx.parse import Function, Instruction, PTXError, Variable
from tests.helpers.ptx.program import Program
from tests.helpers.ptx.report import Index3, Kind, Recorder, readable

Array = np.ndarray[Any, np.dtype[Any]]
Argument = Any  # np.ndarray, NumPy or Python number, or a tuple of these

# The limits of compute capability 7.5 that no launch attribute can lift.
MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)
MAX_STATIC_SHARED, MAX_SHARED = 48 * 1024, 64 * 1024
MAX_PARAMETER_BYTES = 4096


def index3(value: int | Sequence[int], what: str) -> Index3:
    """A grid or block size with all three extents."""
    sizes = (int(value),) if isinstance(value, (int, np.integer)) else tuple(int(size) for size in value)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ValueError(f"{what}: expected one to three positive sizes, got {value}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class Placed:
    """An array argument and where its copy lies in global memory."""

    array: Array
    first: int  # offset of the first element
    lowest: int  # offset of the lowest byte: another one if a stride is negative
    length: int

    def over(self, data: Array) -> Array:
        """An array of the same shape and strides over other bytes."""
        return np.ndarray(self.array.shape, self.array.dtype, data, self.first, self.array.strides)

    def granules(self, space: Space) -> Array:
        """Which granules of the space belong to elements of the array."""
        touched = np.zeros(len(space.data), bool)
        shape, strides = (*self.array.shape, self.array.itemsize), (*self.array.strides, 1)
        np.ndarray(shape, np.bool_, touched, self.first, strides)[...] = True
        return np.asarray(touched.reshape(-1, space.granule).any(axis=1))


class Arguments:
    """The arguments of a launch: their copies in global memory, and the values of the kernel's parameters."""

    def __init__(self, arguments: Sequence[Argument], memory: Space) -> None:
        self.memory = memory
        self.placed: list[Placed] = []
        self.values = [value for place, item in enumerate(arguments) for value in self._fields(item, str(place))]

    def _fields(self, item: Argument, place: str) -> Iterator[tuple[str, Any]]:
        """The parameters made of one argument, each with its description for error messages."""
        if isinstance(item, tuple):
            for number, part in enumerate(item):
                yield from self._fields(part, f"{place}[{number}]")
        elif isinstance(item, np.ndarray):
            what = f"argument {place} ({item.dtype} {item.shape})"
            fields = [0, 0, item.size, item.itemsize, self._address(item, what), *item.shape, *item.strides]
            yield from ((what, field) for field in fields)
        else:
            yield f"argument {place} ({item!r})", item

    def _address(self, array: Array, name: str) -> int:
        """Reserve memory for an array; the same array passed twice is one allocation."""
        for known in self.placed:
            if known.array is array:
                return self.memory.base + known.first
            if np.may_share_memory(known.array, array) and np.shares_memory(known.array, array):
                raise ValueError(f"{name} overlaps another argument; pass the same array twice, or disjoint ones")
        reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        below = -sum(distance for distance in reach if distance < 0)
        above = sum(distance for distance in reach if distance > 0)
        length = below + above + array.itemsize if array.size else 0
        lowest = self.memory.allocate(name, length, PAGE) - self.memory.base
        self.placed.append(Placed(array, lowest + below, lowest, length))
        return self.memory.base + lowest + below

    def copy_in(self, unwritten: Sequence[Array]) -> None:
        """Arguments into memory. Gaps between the elements of a strided array may not be touched."""
        space = self.memory
        for placed in self.placed:
            if not placed.array.size:
                continue
            placed.over(space.data)[...] = placed.array
            if not (placed.array.flags.c_contiguous or placed.array.flags.f_contiguous):
                span = slice(placed.lowest // space.granule, (placed.lowest + placed.length) // space.granule)
                space.usable[span] = placed.granules(space)[span]
            if any(placed.array is array for array in unwritten):
                space.written[placed.granules(space)] = False

    def copy_out(self) -> None:
        """What the kernel wrote, back into the arguments."""
        for placed in self.placed:
            if placed.array.size and placed.array.flags.writeable:
                placed.array[...] = placed.over(self.memory.data)

    def parameter_bytes(self, kernel: Function) -> dict[Variable, bytes]:
        """The content of every parameter of the kernel."""
        if len(self.values) != len(kernel.parameters):
            raise PTXError(
                f"{readable(kernel.name)} has {len(kernel.parameters)} parameters, and these arguments make "
                f"{len(self.values)} (an array makes 5 + 2·ndim)"
            )
        pairs = zip(kernel.parameters, self.values, strict=True)
        return {parameter: _encode(parameter, what, value) for parameter, (what, value) in pairs}


def _encode(parameter: Variable, what: str, value: Any) -> bytes:
    """A number as the parameter's type wants it."""
    dtype = DTYPES[parameter.type]
    if parameter.bytes != dtype.itemsize:
        raise PTXError(f"{what}: the parameter {parameter.name} is a structure, which is not supported")
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "biuf" or (number.dtype.kind == "f") != (dtype.kind == "f"):
        raise PTXError(f"{what} does not fit the parameter type .{parameter.type}")
    if isinstance(value, np.generic) and dtype.kind == "f" and value.dtype != dtype:
        raise PTXError(f"{what} is {value.dtype}, and the parameter type is .{parameter.type}")
    if dtype.kind == "f":
        return dtype.type(value).tobytes()
    return (int(value) % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")


def is_double_precision(arguments: Sequence[Argument]) -> bool:
    """Whether a kernel with these arguments has reason to compute in float64."""
    return any(
        is_double_precision(item) if isinstance(item, tuple) else np.asarray(item).dtype.itemsize == 8
        for item in arguments
        if isinstance(item, tuple) or (isinstance(item, (np.ndarray, np.generic)) and item.dtype.kind in "fc")
    )


def static_shared_bytes(variables: Sequence[Variable]) -> int:
    """How much shared memory the declared arrays take, without the guard zones of the machine."""
    size = 0
    for variable in variables:
        if variable.space == "shared":
            size = -(-size // variable.align) * variable.align + variable.bytes
    return size


def check_limits(program: Program, grid: Index3, block: Index3, shared: int, dynamic: int, recorder: Recorder) -> None:
    """Sizes that no GPU of the targeted generation accepts."""
    threads = block[0] * block[1] * block[2]
    allowed = min(program.kernel.max_threads or MAX_THREADS, MAX_THREADS)
    parameters = sum(parameter.bytes for parameter in program.kernel.parameters)
    for exceeded, detail in (
        (threads > allowed, f"{threads} threads in a block, {allowed} are allowed"),
        (any(a > b for a, b in zip(block, MAX_BLOCK, strict=True)), f"block {block}, at most {MAX_BLOCK}"),
        (any(a > b for a, b in zip(grid, MAX_GRID, strict=True)), f"grid {grid}, at most {MAX_GRID}"),
        (shared > MAX_STATIC_SHARED, f"{shared} bytes of static shared memory, {MAX_STATIC_SHARED} are allowed"),
        (shared + dynamic > MAX_SHARED, f"{shared + dynamic} bytes of shared memory, {MAX_SHARED} are allowed"),
        (parameters > MAX_PARAMETER_BYTES, f"{parameters} bytes of parameters, {MAX_PARAMETER_BYTES} are allowed"),
    ):
        if exceeded:
            recorder.add(Kind.LIMIT, detail)


def check_program(program: Program, double_precision: bool, recorder: Recorder) -> None:
    """What can be told from the text alone: local memory, and float64 where nobody asked for it."""
    code = list(zip(program.instructions, program.owners, strict=True))
    for function in program.functions:
        used = next((each for each, owner in code if owner is function and each.space == "local"), None)
        for variable in function.variables:
            if variable.space == "local":
                detail = f"{variable.bytes} bytes per thread for arrays of {readable(function.name)}"
                recorder.add(Kind.LOCAL, detail, used)
    if double_precision:
        return
    lines: dict[tuple[str | None, str], list[Instruction]] = {}  # told once per line of the source
    for instruction, owner in code:
        if "f64" in instruction.types:
            lines.setdefault((instruction.source, owner.name), []).append(instruction)
    for instructions in lines.values():
        opcodes = ", ".join(sorted({instruction.opcode for instruction in instructions}))
        recorder.add(Kind.FLOAT64, f"instructions: {opcodes}", instructions[0], count=len(instructions))
