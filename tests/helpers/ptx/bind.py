"""From an instruction to a function that executes it for the threads of a mask.

`BINDERS` is the table of everything that is neither elementwise (that table is in arithmetic.py) nor moves threads
through the program (machine.py). A binder looks at modifiers and operands once; the function it returns is called every
time the instruction is executed, with True for "all threads" or a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.helpers.ptx.arithmetic import DTYPES, OPERATIONS, with_carry
from tests.helpers.ptx.parse import SIZES, Address, Group, Instruction, Operand, Symbol, Variable
from tests.helpers.ptx.races import WARP
from tests.helpers.ptx.report import Kind

if TYPE_CHECKING:
    from tests.helpers.ptx.machine import Machine

Array = np.ndarray[Any, np.dtype[Any]]
Where = Any  # True or a mask
Step = Callable[[Where], None]
Binder = Callable[["Machine", int, Instruction], Step]


def bind(machine: Machine, place: int, instruction: Instruction) -> Step:
    """The function that executes an instruction; an unknown one is an error that names it."""
    if instruction.has("cc") or instruction.opcode in ("addc", "subc", "madc"):
        return _carrying(machine, place, instruction)
    if instruction.opcode in BINDERS:
        return BINDERS[instruction.opcode](machine, place, instruction)
    if instruction.opcode in OPERATIONS:
        return _elementwise(machine, place, instruction)
    raise instruction.error("unknown instruction")


def _items(operand: Operand | None) -> tuple[Operand | None, ...]:
    return operand.items if isinstance(operand, Group) else (operand,)


def _elementwise(machine: Machine, place: int, instruction: Instruction) -> Step:
    operation, registers = OPERATIONS[instruction.opcode], machine.registers
    kinds, result = operation.kinds(instruction)
    pairs = zip(instruction.operands[1:], kinds, strict=True)
    sources = [registers.source(operand, kind, instruction) for operand, kind in pairs]
    targets = [registers.target(item, result, instruction) for item in _items(instruction.operands[0])]
    compute = operation.compute(instruction)

    if instruction.opcode != "setp":
        (target,) = targets
        if target is None:
            return _nothing(machine, place, instruction)
        found = target

        def step(where: Where) -> None:
            np.copyto(found, compute(*sources), where=where)

        return step

    def set_predicates(where: Where) -> None:
        for each, value in zip(targets, compute(*sources), strict=False):
            if each is not None:
                np.copyto(each, value, where=where)

    return set_predicates


def _carrying(machine: Machine, place: int, instruction: Instruction) -> Step:
    """Extended-precision arithmetic: .cc sets the carry flag, addc, subc and madc read it."""
    opcode, registers = instruction.opcode, machine.registers
    kind = f"u{8 * SIZES[instruction.type]}"
    target = registers.target(instruction.operands[0], kind, instruction)
    sources = [registers.source(operand, kind, instruction) for operand in instruction.operands[1:]]
    a, b, c = (*sources, None)[:3]
    high, sets, reads = instruction.has("hi"), instruction.has("cc"), opcode.endswith("c")
    nothing = np.zeros(1, np.bool_)
    if opcode not in ("add", "addc", "sub", "subc", "mad", "madc") or target is None:
        raise instruction.error("unknown instruction")

    def step(where: Where) -> None:
        result, carry = with_carry(opcode, high, a, b, c, registers.carry if reads else nothing)
        np.copyto(target, result, where=where)
        if sets:
            np.copyto(registers.carry, carry, where=where)

    return step


def _nothing(machine: Machine, place: int, instruction: Instruction) -> Step:
    """Fences order accesses that this machine executes in order anyway; races are judged by barriers alone."""
    return lambda where: None


def _move(machine: Machine, place: int, instruction: Instruction) -> Step:
    """mov, which also packs {low, high} into a wider register and unpacks it."""
    destination, origin = instruction.operands
    kind, registers = instruction.type, machine.registers
    parts = max(len(_items(destination)), len(_items(origin)))
    part = kind if parts == 1 else f"b{8 * SIZES[kind] // parts}"

    def pieces(array: Array) -> list[Array]:
        return [array.view(DTYPES[part])[number::parts] for number in range(parts)] if parts > 1 else [array]

    if isinstance(origin, Group):
        whole = registers.target(destination, kind, instruction)
        targets: list[Array | None] = list(pieces(whole)) if whole is not None else []
        sources = [registers.source(item, part, instruction) for item in origin.items]
    else:
        targets = [registers.target(item, part, instruction) for item in _items(destination)]
        sources = pieces(np.atleast_1d(registers.source(origin, kind, instruction)))

    def step(where: Where) -> None:
        values = [source.copy() for source in sources]  # a part may be source and target at once
        for target, value in zip(targets, values, strict=True):
            if target is not None:
                np.copyto(target, value, where=where)

    return step


# -----------------------------------------------------------------------------------------------------------------
# memory
# -----------------------------------------------------------------------------------------------------------------


def _address(instruction: Instruction, operand: Operand | None) -> Address:
    if not isinstance(operand, Address):
        raise instruction.error("an address was expected")
    return operand


def _parameter(instruction: Instruction, address: Address) -> Variable:
    if not isinstance(address.base, Symbol):
        raise instruction.error("parameters can only be accessed by name")
    return address.base.variable


def _pointers(machine: Machine, instruction: Instruction, address: Address) -> Callable[[Array], Array]:
    """A function that gives the addresses of some threads."""
    base, offset = machine.registers.pointer(address.base, instruction), address.offset
    if np.ndim(base) == 0:
        return lambda threads: np.full(len(threads), int(base) + offset, np.int64)
    return lambda threads: base[threads].astype(np.int64) + offset


def _load(machine: Machine, place: int, instruction: Instruction) -> Step:
    address = _address(instruction, instruction.operands[1])
    kind, width, space = instruction.type, instruction.width, instruction.space
    items = _items(instruction.operands[0])
    targets = [machine.registers.target(item, kind, instruction) for item in items]
    if len(items) != width:
        raise instruction.error(f"{width} registers were expected")
    if space == "param":
        return _load_parameter(machine, _parameter(instruction, address), address.offset, targets, DTYPES[kind])
    pointers, dtype = _pointers(machine, instruction, address), DTYPES[kind]

    def step(where: Where) -> None:
        threads = machine.threads(where)
        values = machine.memory.load(place, space, threads, pointers(threads), dtype, width)
        for column, target in enumerate(targets):
            if target is not None:
                target[threads] = values[:, column]

    return step


def _load_parameter(
    machine: Machine, variable: Variable, offset: int, targets: list[Array | None], dtype: np.dtype[Any]
) -> Step:
    content, size = machine.parameters[variable], dtype.itemsize

    def step(where: Where) -> None:
        for number, target in enumerate(targets):
            start = offset + number * size
            value = np.ascontiguousarray(content[:, start : start + size]).view(dtype)[:, 0]
            if target is not None:
                np.copyto(target, value, where=where)

    return step


def _store(machine: Machine, place: int, instruction: Instruction) -> Step:
    address = _address(instruction, instruction.operands[0])
    kind, space = instruction.type, instruction.space
    items = _items(instruction.operands[1])
    sources = [machine.registers.source(item, kind, instruction) for item in items]
    if len(items) != instruction.width:
        raise instruction.error(f"{instruction.width} registers were expected")

    def values(threads: Array) -> Array:
        rows = [np.broadcast_to(source, machine.count)[threads] for source in sources]
        return np.stack(rows, axis=1)

    if space == "param":
        content = machine.parameters[_parameter(instruction, address)]
        span = slice(address.offset, address.offset + SIZES[kind] * len(items))

        def store_parameter(where: Where) -> None:
            threads = machine.threads(where)
            content[threads, span] = values(threads).view(np.uint8)

        return store_parameter
    pointers = _pointers(machine, instruction, address)

    def step(where: Where) -> None:
        threads = machine.threads(where)
        machine.memory.store(place, space, threads, pointers(threads), values(threads))

    return step


def _wrapping_increment(old: Any, limit: Any) -> Any:
    return old.dtype.type(0) if old >= limit else old + old.dtype.type(1)


def _wrapping_decrement(old: Any, limit: Any) -> Any:
    return limit if old == 0 or old > limit else old - old.dtype.type(1)


UPDATES: dict[str, Callable[..., Any]] = {
    "add": lambda old, value: old + value,
    "min": lambda old, value: min(old, value),
    "max": lambda old, value: max(old, value),
    "exch": lambda old, value: value,
    "cas": lambda old, expected, value: value if old == expected else old,
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": _wrapping_increment,
    "dec": _wrapping_decrement,
}


def _atomic(machine: Machine, place: int, instruction: Instruction) -> Step:
    """atom gives the old value, red does not."""
    returns = instruction.opcode == "atom"
    destination = instruction.operands[0] if returns else None
    address = _address(instruction, instruction.operands[1 if returns else 0])
    kind, space, registers = instruction.type, instruction.space, machine.registers
    update = next((UPDATES[name] for name in instruction.modifiers if name in UPDATES), None)
    if update is None or instruction.width > 1:
        raise instruction.error("unknown atomic update")
    change = update
    operands = instruction.operands[2 if returns else 1 :]
    sources = [registers.source(operand, kind, instruction) for operand in operands]
    target = registers.target(destination, kind, instruction)
    pointers, dtype = _pointers(machine, instruction, address), DTYPES[kind]

    def step(where: Where) -> None:
        threads = machine.threads(where)
        rows = [np.broadcast_to(source, machine.count)[threads] for source in sources]
        old = machine.memory.update(
            place, space, threads, pointers(threads), dtype, lambda old, row: change(old, *(x[row] for x in rows))
        )
        if target is not None:
            target[threads] = old

    return step


# -----------------------------------------------------------------------------------------------------------------
# warps; the machine calls these when all lanes that the mask names have arrived
# -----------------------------------------------------------------------------------------------------------------


def _shuffle(machine: Machine, place: int, instruction: Instruction) -> Step:
    """shfl.sync: each lane reads a register of another one, within segments given by the fourth operand."""
    registers = machine.registers
    destination, origin, step_operand, clamp_operand, _ = instruction.operands
    items = (*_items(destination), None)
    target = registers.target(items[0], "b32", instruction)
    inside = registers.target(items[1], "pred", instruction)
    source = registers.source(origin, "b32", instruction)
    amount = registers.source(step_operand, "s32", instruction)
    clamp = registers.source(clamp_operand, "s32", instruction)
    mode = next((name for name in ("up", "down", "bfly", "idx") if instruction.has(name)), "")
    if not mode:
        raise instruction.error("unknown shuffle")

    def step(where: Where) -> None:
        threads, taking_part = machine.threads(where), machine.mask(where)
        lane = threads % WARP
        by, c = (np.broadcast_to(x, machine.count)[threads] & 0x1F1F for x in (amount, clamp))
        by, last, segment = by & 31, c & 31, c >> 8
        first, limit = lane & segment, (lane & segment) | (last & ~segment)
        wanted = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | (by & ~segment)}[mode]
        valid = wanted >= limit if mode == "up" else wanted <= limit
        partner = threads - lane + np.where(valid, wanted, lane)
        there = (partner < machine.count) & taking_part[np.minimum(partner, machine.count - 1)]
        machine.tell_threads(Kind.WARP, "reads a register of a lane that takes no part", place, threads[~there])
        values = np.broadcast_to(source, machine.count)[np.minimum(partner, machine.count - 1)]
        if target is not None:
            target[threads] = np.where(there, values, 0)
        if inside is not None:
            inside[threads] = valid

    return step


def _vote(machine: Machine, place: int, instruction: Instruction) -> Step:
    """vote.sync: all, any, uni or ballot of a predicate over the lanes that take part."""
    registers = machine.registers
    predicate = registers.source(instruction.operands[1], "pred", instruction)
    mode = next((name for name in ("all", "any", "uni", "ballot") if instruction.has(name)), "")
    if not mode:
        raise instruction.error("unknown vote")
    target = registers.target(instruction.operands[0], "b32" if mode == "ballot" else "pred", instruction)

    def step(where: Where) -> None:
        there = machine.by_warp(machine.mask(where))
        yes = there & machine.by_warp(np.broadcast_to(predicate, machine.count))
        every, some = (yes == there).all(axis=1), yes.any(axis=1)
        result = {"all": every, "any": some, "uni": every | ~some, "ballot": lane_bits(yes)}[mode]
        if target is not None:
            np.copyto(target, np.repeat(result, WARP)[: machine.count], where=where)

    return step


def _active_mask(machine: Machine, place: int, instruction: Instruction) -> Step:
    target = machine.registers.target(instruction.operands[0], "b32", instruction)

    def step(where: Where) -> None:
        there = lane_bits(machine.by_warp(machine.mask(where)))
        if target is not None:
            np.copyto(target, np.repeat(there, WARP)[: machine.count], where=where)

    return step


def lane_bits(lanes: Array) -> Array:
    """A row of 32 truth values as a number, for every warp."""
    return (lanes.astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)


def _warp_barrier(machine: Machine, place: int, instruction: Instruction) -> Step:
    """bar.warp.sync orders the accesses of a warp, if none of its lanes is left out."""
    if not instruction.has("warp"):
        raise instruction.error("unknown instruction")

    def step(where: Where) -> None:
        there = machine.by_warp(machine.mask(where))
        whole = (there | ~machine.by_warp(machine.alive())).all(axis=1)
        machine.memory.phase += np.repeat(whole & there.any(axis=1), WARP)[: machine.count]

    return step


BINDERS: dict[str, Binder] = {
    "mov": _move,
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "shfl": _shuffle,
    "vote": _vote,
    "activemask": _active_mask,
    "bar": _warp_barrier,
    "membar": _nothing,
    "fence": _nothing,
}
