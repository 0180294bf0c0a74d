"""Threads move through the program: groups, divergence, barriers, calls. `run` is the way in.

The threads of a block that stand at the same instruction are executed together, and of several groups the one that is
furthest behind goes first; since the compiler lays out code so that paths that part come together further down, groups
meet again where they can. Blocks run one after another, in any order that the caller likes: a sound kernel cannot
tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tests.helpers.ptx.bind import BINDERS, Step, Where, bind
from tests.helpers.ptx.launch import (
    Argument,
    Arguments,
    check_limits,
    check_program,
    index3,
    is_double_precision,
    static_shared_bytes,
)
from tests.helpers.ptx.memory import Memory, Space, granule_of
from tests.helpers.ptx.parse import Immediate, Instruction, Module, PTXError, Variable, parse
from tests.helpers.ptx.program import RETURNED, Program, link
from tests.helpers.ptx.races import WARP
from tests.helpers.ptx.registers import Registers
from tests.helpers.ptx.report import Index3, Kind, Recorder, Report, readable

Array = np.ndarray[Any, np.dtype[Any]]

READY, AT_BARRIER, PARKED, EXITED = range(4)  # parked: waits for other lanes of its warp
WARP_SYNCHRONOUS = ("shfl", "vote")


def run(
    ptx: str | Module,
    kernel_name: str | None = None,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 1,
    args: Sequence[Argument] = (),
    *,
    block_order: Sequence[int] | None = None,
    dynamic_shared: int = 0,
    unwritten: Sequence[Array] = (),
    allow: Collection[Kind] = (),
    max_steps: int = 10_000_000,
) -> Report:
    """Launch a kernel; arrays among `args` are changed in place.

    `kernel_name` may be a part of the mangled name. `block_order` lists the linear numbers of blocks in the order in
    which they shall run; `dynamic_shared` is the size of shared memory that the launch would ask for; `unwritten` names
    arguments whose content may not be read before it is written. Violations of the kinds in `allow` are kept apart.
    More than `max_steps` steps of a group of threads are taken for an endless loop.

    Raises `PTXError` for what cannot be read or run; what a sound kernel would not do is in the report.
    """
    module = parse(ptx) if isinstance(ptx, str) else ptx
    program = link(module, module.kernel(kernel_name))
    recorder = Recorder(readable(program.kernel.name), allow)
    machine = Machine(module, program, index3(grid, "grid"), index3(block, "block"), args, dynamic_shared, recorder)
    machine.budget = max_steps
    machine.arguments.copy_in(unwritten)
    check_program(program, is_double_precision(args), recorder)
    blocks = int(np.prod(machine.grid))
    order = range(blocks) if block_order is None else block_order
    if sorted(order) != list(range(blocks)):
        raise ValueError(f"block_order is not a permutation of {blocks} blocks")
    with np.errstate(all="ignore"):
        for number in order:
            machine.run_block(number)
    machine.arguments.copy_out()
    return machine.report()


class Machine:
    """A launch: the program bound to registers and memory, and the position of every thread of the current block."""

    def __init__(
        self,
        module: Module,
        program: Program,
        grid: Index3,
        block: Index3,
        args: Sequence[Argument],
        dynamic_shared: int,
        recorder: Recorder,
    ) -> None:
        self.program, self.grid, self.block, self.recorder = program, grid, block, recorder
        self.count = block[0] * block[1] * block[2]
        self.number = 0  # of the current block
        self.budget = 0
        self.dynamic_shared = dynamic_shared
        self._lay_out_memory(module, args)
        self._bind()

    # -- setting up -----------------------------------------------------------------------------------------------

    def _lay_out_memory(self, module: Module, args: Sequence[Argument]) -> None:
        code = self.program.instructions
        spaces = {name: Space(name, granule_of(name, code)) for name in ("global", "shared", "local")}
        self.arguments = Arguments(args, spaces["global"])
        addresses: dict[Variable, int] = {}
        for variable in [*module.variables, *(v for f in self.program.functions for v in f.variables)]:
            if variable.space != "param":
                space = spaces["global" if variable.space == "const" else variable.space]
                size = variable.bytes or (self.dynamic_shared if variable.space == "shared" else 0)
                addresses[variable] = space.allocate(variable.name, size, variable.align, variable.space == "const")
        for name, space in spaces.items():
            space.create(self.count if name == "local" else 1, initialised=name == "global")
        for variable in module.variables:
            if variable.initial is not None:
                start = addresses[variable] - spaces["global"].base
                spaces["global"].data[start : start + variable.bytes] = np.frombuffer(variable.initial, np.uint8)
        self.registers = Registers(module.registers, self.grid, self.block, addresses)
        self.memory = Memory(spaces, code, self.recorder, self.thread_index, self.block_index)
        self.parameters = self._parameters()
        self.static_shared = static_shared_bytes(module.variables)
        check_limits(self.program, self.grid, self.block, self.static_shared, self.dynamic_shared, self.recorder)

    def _parameters(self) -> dict[Variable, Array]:
        """The bytes of all parameters, a row per thread; those of the kernel are the same for all."""
        content = {
            variable: np.zeros((self.count, variable.bytes), np.uint8)
            for function in self.program.functions
            for variable in [*function.parameters, *function.results, *function.variables]
            if variable.space == "param"
        }
        for variable, given in self.arguments.parameter_bytes(self.program.kernel).items():
            content[variable][:] = np.frombuffer(given, np.uint8)
        return content

    def _bind(self) -> None:
        """Resolve every instruction, so that what is unknown is told before anything runs."""
        code = self.program.instructions
        self.steps: list[Step | None] = []
        self.controls: list[Callable[[int, Array, Array], int | None] | None] = []
        self.predicates: list[tuple[Any, bool] | None] = []
        for place, instruction in enumerate(code):
            control = self._control(instruction)
            pure = control is not None and instruction.opcode not in BINDERS
            self.controls.append(control)
            self.steps.append(None if pure or self._is_block_barrier(instruction) else self._step(place, instruction))
            guard = instruction.predicate
            self.predicates.append(
                None if guard is None else (self.registers.source(guard, "pred", instruction), instruction.negated)
            )
        self.executed = [0] * len(code)
        self.returns = {function.name: np.zeros(self.count, np.int64) for function in self.program.functions}

    def _step(self, place: int, instruction: Instruction) -> Step:
        if instruction.opcode == RETURNED:
            return lambda where: self._copy(self.program.calls[place].results, where)
        return bind(self, place, instruction)

    def _control(self, instruction: Instruction) -> Callable[[int, Array, Array], int | None] | None:
        if instruction.opcode in CONTROLS:
            handler = CONTROLS[instruction.opcode]
            return lambda place, group, active: handler(self, place, group, active)
        if self._is_block_barrier(instruction):
            return self._arrive
        if instruction.opcode in WARP_SYNCHRONOUS or (instruction.opcode == "bar" and instruction.has("warp")):
            if not instruction.has("sync"):
                raise instruction.error("only the .sync form is supported")
            return self._meet
        return None

    def _is_block_barrier(self, instruction: Instruction) -> bool:
        """bar.sync 0 and its newer spellings; other barriers and counts of threads are refused."""
        if instruction.opcode not in ("bar", "barrier") or instruction.has("warp"):
            return False
        if instruction.operands != (Immediate("0"),) or not instruction.has("sync"):
            raise instruction.error("only barrier 0 for all threads of the block is supported")
        return True

    # -- what the steps ask for -----------------------------------------------------------------------------------

    def threads(self, where: Where) -> Array:
        """The numbers of the threads in a mask."""
        return np.arange(self.count) if where is True else np.flatnonzero(where)

    def mask(self, where: Where) -> Array:
        """A mask as an array."""
        return np.ones(self.count, bool) if where is True else where

    def by_warp(self, values: Array) -> Array:
        """One row per warp; lanes that do not exist are False."""
        rows = -(-self.count // WARP)
        padded = np.zeros(rows * WARP, values.dtype)
        padded[: self.count] = values
        return padded.reshape(rows, WARP)

    def alive(self) -> Array:
        """Which threads have not exited."""
        return self.state != EXITED

    def thread_index(self, number: int) -> Index3:
        """threadIdx of a thread."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)

    def block_index(self, number: int) -> Index3:
        """blockIdx of a block."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def tell_threads(self, kind: Kind, detail: str, place: int, threads: Array) -> None:
        """Record a violation of some threads, if there are any."""
        if len(threads):
            instruction, block = self.program.instructions[place], self.block_index(self.number)
            self.recorder.add(kind, detail, instruction, block, self.thread_index(int(threads[0])), len(threads))

    # -- running --------------------------------------------------------------------------------------------------

    def run_block(self, number: int) -> None:
        """Run all threads of a block to their end."""
        self.number = number
        self.pc = np.full(self.count, self.program.entry, np.int64)
        self.state = np.full(self.count, READY, np.int8)
        self.forced = False
        self.memory.begin_block(number, self.count)
        self.registers.begin_block(self.block_index(number))
        while self._choose():
            place: int | None = self.place
            while place is not None:
                place = self._advance(place)
        self.memory.end_epoch()

    def _choose(self) -> bool:
        """Make the group that is furthest behind the current one; False if all threads have exited."""
        while True:
            ready = self.state == READY
            if ready.any():
                self.place = int(self.pc[ready].min())
                self.group = ready & (self.pc == self.place)
                self.size = int(self.group.sum())
                self.alone = self.size == int(ready.sum())
                self.where: Where = True if self.size == self.count else self.group
                return True
            if (self.state == PARKED).any():
                self._release_parked()
            elif (self.state == AT_BARRIER).any():
                self._open_barrier()
            else:
                return False

    def _advance(self, place: int) -> int | None:
        """Run the current group from `place` to the next instruction that moves threads, and execute that.

        Gives the place where the whole group goes on, or None if a new group must be chosen.
        """
        meeting_points = () if self.alone else self.program.meeting_points
        while True:
            self.budget -= 1
            if self.budget < 0:
                raise self.program.instructions[place].error("too many steps; is this an endless loop?")
            control, step, guard = self.controls[place], self.steps[place], self.predicates[place]
            where, active, size = self.where, self.group, self.size
            if guard is not None:
                predicate, negated = guard
                where = active = self.group & (~predicate if negated else predicate)
                size = int(active.sum())
            self.executed[place] += size
            if control is not None:
                return control(place, self.group, active)
            if size and step is not None:
                step(where)
            place += 1
            if place in meeting_points:
                self.pc[self.group] = place
                return None

    def _go(self, group: Array, active: Array, place: int, target: int | Array) -> int | None:
        """Active threads go to `target`, the others of the group to the next instruction."""
        if self.alone and isinstance(target, int):
            number = int(active.sum())
            if number == self.size:
                return target
            if number == 0:
                return place + 1
        self.pc[group & ~active] = place + 1
        self.pc[active] = target if isinstance(target, int) else target[active]
        return None

    def _branch(self, place: int, group: Array, active: Array) -> int | None:
        return self._go(group, active, place, self.program.targets[place])

    def _call(self, place: int, group: Array, active: Array) -> int | None:
        call = self.program.calls[place]
        self._copy(call.arguments, active)
        self.returns[call.function][active] = place + 1
        return self._go(group, active, place, call.start)

    def _copy(self, pairs: list[tuple[Variable, Variable]], where: Where) -> None:
        """Hand parameters over, in the threads of the mask."""
        rows = self.threads(where)
        for origin, target in pairs:
            self.parameters[target][rows] = self.parameters[origin][rows]

    def _return(self, place: int, group: Array, active: Array) -> int | None:
        owner = self.program.owners[place]
        if owner.entry:
            return self._exit(place, group, active)
        return self._go(group, active, place, self.returns[owner.name])

    def _exit(self, place: int, group: Array, active: Array) -> int | None:
        self.state[active] = EXITED
        self.pc[group & ~active] = place + 1
        return None

    def _trap(self, place: int, group: Array, active: Array) -> int | None:
        self.tell_threads(Kind.TRAP, "the kernel gave up", place, np.flatnonzero(active))
        return self._exit(place, group, active)

    # -- barriers -------------------------------------------------------------------------------------------------

    def _arrive(self, place: int, group: Array, active: Array) -> int | None:
        self.state[active] = AT_BARRIER
        self.pc[group & ~active] = place + 1
        self.pc[active] = place
        return None

    def _open_barrier(self) -> None:
        """Nobody can move but by opening the barrier: check that all threads are here, and let them go on."""
        waiting = self.state == AT_BARRIER
        places = np.unique(self.pc[waiting])
        missing = np.flatnonzero(self.state == EXITED)
        first = int(places[0])
        if len(places) > 1:
            lines = ", ".join(str(self.program.instructions[place].line) for place in places)
            elsewhere = np.flatnonzero(waiting & (self.pc != first))
            self.tell_threads(Kind.BARRIER, f"threads wait at different barriers, PTX lines {lines}", first, elsewhere)
        self.tell_threads(Kind.BARRIER, "these threads exited and never arrive", first, missing)
        self.memory.end_epoch()
        self.pc[waiting] += 1
        self.state[waiting] = READY

    def _meet(self, place: int, group: Array, active: Array) -> int | None:
        """A warp operation: executed by the warps whose lanes have all arrived, the others wait."""
        instruction = self.program.instructions[place]
        here = active | ((self.state == PARKED) & (self.pc == place))
        members = self.registers.source(instruction.operands[-1], "u32", instruction)
        asked = self.by_warp(np.where(here, members, np.uint32(0)))
        named = (asked[:, :, None] >> np.arange(WARP, dtype=np.uint32)) & 1
        missing = named.any(axis=1) & self.by_warp(self.alive() & ~here)
        complete = np.repeat(~missing.any(axis=1), WARP)[: self.count]
        if self.forced:
            detail = "waits for lanes that never arrive"
            self.tell_threads(Kind.WARP, detail, place, np.flatnonzero(here & ~complete))
            complete[:] = True
        self.forced = False
        self.pc[group & ~active] = place + 1
        going, staying = here & complete, here & ~complete
        self.state[staying], self.pc[staying] = PARKED, place
        self.state[going], self.pc[going] = READY, place + 1
        step = self.steps[place]
        if going.any() and step is not None:
            step(going)
        return None

    def _release_parked(self) -> None:
        """Lanes wait for others that cannot come any more: execute with those that are here, and say so."""
        parked = self.state == PARKED
        self.state[parked & (self.pc == self.pc[parked].min())] = READY
        self.forced = True

    # -- the end --------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Counts and violations of the whole launch."""
        violations, accepted = self.recorder.split()
        counts: Counter[str] = Counter()
        for instruction, number in zip(self.program.instructions, self.executed, strict=True):
            if number and instruction.opcode != RETURNED:
                counts[short_name(instruction)] += number
        shared = self.static_shared + self.dynamic_shared
        local = sum(v.bytes for f in self.program.functions for v in f.variables if v.space == "local")
        return Report(self.recorder.kernel, violations, accepted, counts, shared, local)


def short_name(instruction: Instruction) -> str:
    """The name under which an instruction is counted: opcode, space, vector width and type."""
    kept = [m for m in instruction.modifiers if m in ("global", "shared", "local", "param", "const", "v2", "v4")]
    return ".".join([instruction.opcode, *kept, *instruction.types])


CONTROLS: dict[str, Callable[[Machine, int, Array, Array], int | None]] = {
    "bra": Machine._branch,
    "call": Machine._call,
    "ret": Machine._return,
    "exit": Machine._exit,
    "trap": Machine._trap,
}

__all__ = ["run", "Machine", "PTXError"]
