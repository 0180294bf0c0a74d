"""From the functions of a module to one program: what a kernel can reach, laid out in a row.

Functions that are called stand before their callers. The machine always runs the threads that are furthest behind, so
threads inside of a call come back before the others go on, and all go on together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.helpers.ptx.parse import Function, Group, Instruction, Module, Name, PTXError, Variable

RETURNED = "returned"  # stands behind every call: copies the results to the caller


@dataclass(frozen=True)
class Call:
    """What a call needs: where to go, and which variables are copied there and back."""

    function: str
    start: int
    arguments: list[tuple[Variable, Variable]]  # from, to
    results: list[tuple[Variable, Variable]]


@dataclass
class Program:
    """All instructions that a kernel can reach."""

    kernel: Function
    functions: list[Function]
    instructions: list[Instruction] = field(default_factory=list)
    owners: list[Function] = field(default_factory=list)  # the function of every instruction
    starts: dict[str, int] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)  # of branches
    calls: dict[int, Call] = field(default_factory=dict)  # at the call, and once more at what stands behind it
    meeting_points: set[int] = field(default_factory=set)  # where threads that went apart can come together

    @property
    def entry(self) -> int:
        return self.starts[self.kernel.name]


def link(module: Module, kernel: Function) -> Program:
    """Lay out a kernel and everything that it calls."""
    program = Program(kernel, _callees_first(module, kernel, ()))
    for function in program.functions:
        _append(program, module, function)
    return program


def _callees_first(module: Module, function: Function, callers: tuple[str, ...]) -> list[Function]:
    if function.name in callers:
        raise PTXError(f"{function.name} calls itself; recursion is not supported")
    found: list[Function] = []
    for instruction in function.instructions:
        if instruction.opcode == "call":
            callee = _callee(module, instruction)
            for reached in _callees_first(module, callee, (*callers, function.name)):
                if reached not in found:
                    found.append(reached)
    return [*found, function]


def _callee(module: Module, instruction: Instruction) -> Function:
    names = [operand.text for operand in instruction.operands if isinstance(operand, Name)]
    if len(names) != 1 or names[0] not in module.functions:
        raise instruction.error("calls a function that is not in the module")
    return module.functions[names[0]]


def _append(program: Program, module: Module, function: Function) -> None:
    """Add a function; a place for its results is added behind every call, which moves what follows."""
    start = len(program.instructions)
    program.starts[function.name] = start
    moved: list[int] = []
    for instruction in function.instructions:
        moved.append(len(program.instructions))
        program.instructions.append(instruction)
        if instruction.opcode == "call":
            call = _call(program, module, instruction)
            program.calls[len(program.instructions) - 1] = program.calls[len(program.instructions)] = call
            program.instructions.append(replace(instruction, opcode=RETURNED, predicate=None))
    moved.append(len(program.instructions))
    program.instructions.append(Instruction("ret", (), (), None, False, function.line, f"end of {function.name}", None))
    program.owners.extend([function] * (len(program.instructions) - start))
    program.meeting_points.update(moved[place] for place in function.labels.values())
    program.meeting_points.update(place for place in program.calls if place >= start)
    for instruction, place in zip(function.instructions, moved, strict=False):
        if instruction.opcode == "bra":
            program.targets[place] = moved[function.labels[_label(instruction)]]


def _label(instruction: Instruction) -> str:
    (target,) = instruction.operands
    if not isinstance(target, Name):
        raise instruction.error("only branches to labels are supported")
    return target.text


def _call(program: Program, module: Module, instruction: Instruction) -> Call:
    """Pair the variables of the caller with those of the function."""
    callee = _callee(module, instruction)
    position = next(place for place, operand in enumerate(instruction.operands) if isinstance(operand, Name))
    given = [list(_variables(operand, instruction)) for operand in instruction.operands if isinstance(operand, Group)]
    results = given.pop(0) if position > 0 else []
    arguments = given.pop(0) if given else []
    if len(arguments) != len(callee.parameters) or len(results) != len(callee.results):
        raise instruction.error("the arguments do not fit the function")
    return Call(
        callee.name,
        program.starts[callee.name],
        list(zip(arguments, callee.parameters, strict=True)),
        list(zip(callee.results, results, strict=True)),
    )


def _variables(group: Group, instruction: Instruction) -> Iterator[Variable]:
    for item in group.items:
        variable = getattr(item, "variable", None)
        if variable is None:
            raise instruction.error("only variables can be passed to a function")
        yield variable
