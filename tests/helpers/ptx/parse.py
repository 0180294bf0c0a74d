"""Reads PTX as the CUDA compiler writes it: modules, functions, variables and instructions.

Names are resolved here. A register becomes a slot number, unique in the module (functions have frames of their own, and
a `{ ... }` inside a body opens a scope); the machine then needs no names at all. What is not understood is refused
with its line: a checker that skips what it does not know would be worse than none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SIZES = {"pred": 1} | {f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)} | {"f32": 4, "f64": 8}
SPACES = ("global", "shared", "local", "const", "param")

LINE_DIRECTIVE = re.compile(r"\.(?:version|target|address_size|file|loc)\s")  # ends with its line, not at a semicolon
SKIPPED_STATEMENTS = (".pragma",)
SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"] + ["%laneid", "%warpid"]
)


class PTXError(Exception):
    """The text cannot be read or run: it is not PTX, or uses something that the machine does not know."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A declared piece of memory in one of the state spaces."""

    name: str
    space: str
    type: str
    align: int
    bytes: int  # 0 for arrays of open size (dynamic shared memory)
    initial: Any = None  # its bytes, if they are given


@dataclass(frozen=True)
class Register:
    """A register: its slot in the register file and its declared type."""

    slot: int
    type: str


@dataclass(frozen=True)
class Special:
    """A register that the hardware fills, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal as written; its value depends on the type of the instruction."""

    text: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable."""

    variable: Variable


@dataclass(frozen=True)
class Name:
    """A label or a function."""

    text: str


@dataclass(frozen=True)
class Address:
    """[base + offset]."""

    base: Operand
    offset: int


@dataclass(frozen=True)
class Group:
    """Operands that stand together: a vector {a, b}, a pair a|b, or the arguments (a, b) of a call."""

    items: tuple[Operand | None, ...]  # None is the sink "_"


Operand = Register | Special | Immediate | Symbol | Name | Address | Group


@dataclass(frozen=True)
class Instruction:
    """One instruction, with the place it comes from."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand | None, ...]
    predicate: Register | None
    negated: bool
    line: int
    text: str
    source: str | None

    @property
    def types(self) -> tuple[str, ...]:
        """The type modifiers, in order: cvt.rn.f32.f64 has two."""
        return tuple(modifier for modifier in self.modifiers if modifier in SIZES)

    @property
    def type(self) -> str:
        """The only or last type."""
        if not self.types:
            raise self.error("no type that the machine knows")
        return self.types[-1]

    @property
    def space(self) -> str | None:
        """The state space of a memory access; None for a generic address."""
        return next((modifier for modifier in self.modifiers if modifier in SPACES), None)

    @property
    def width(self) -> int:
        """How many elements a vector access moves."""
        return 4 if "v4" in self.modifiers else 2 if "v2" in self.modifiers else 1

    def has(self, *names: str) -> bool:
        """Whether one of the modifiers is there."""
        return any(name in self.modifiers for name in names)

    def error(self, problem: str) -> PTXError:
        """The exception that names this instruction and its line."""
        return PTXError(f"PTX line {self.line}: {self.text}: {problem}")


@dataclass
class Function:
    """A kernel (.entry) or a device function (.func)."""

    name: str
    entry: bool
    parameters: list[Variable]
    results: list[Variable]
    line: int
    max_threads: int | None = None
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)  # .local and .param declared in the body


@dataclass
class Module:
    """Everything in one PTX text."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)  # .global, .const and .shared, wherever declared
    registers: list[str] = field(default_factory=list)  # the type of every slot

    def kernel(self, name: str | None = None) -> Function:
        """The kernel whose (mangled) name is or contains `name`; without a name, the only one."""
        entries = [function for function in self.functions.values() if function.entry]
        exact = [function for function in entries if function.name == name]
        chosen = exact or [function for function in entries if name is None or name in function.name]
        if len(chosen) != 1:
            known = ", ".join(function.name for function in entries) or "none"
            raise PTXError(f"{len(chosen)} kernels match {name!r}; the module has: {known}")
        return chosen[0]


class _Scope:
    """The names declared between two braces."""

    def __init__(self) -> None:
        self.registers: dict[str, Register] = {}
        self.ranges: dict[str, tuple[int, int, str]] = {}  # prefix → first slot, count, type
        self.variables: dict[str, Variable] = {}

    def register(self, name: str) -> Register | None:
        """The register of that name, whether declared alone or in a range such as %r<11>."""
        if name in self.registers:
            return self.registers[name]
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match and match[1] in self.ranges:
            first, count, kind = self.ranges[match[1]]
            if int(match[2]) < count:
                return Register(first + int(match[2]), kind)
        return None


@dataclass(frozen=True)
class _Statement:
    text: str  # "{" and "}" for scopes, "label:" for labels
    line: int
    has_body: bool = False  # the header of a function whose body follows


WORD = re.compile(r"\S")
LABEL = re.compile(r"[\w$]+:(?!:)")
HEADER = re.compile(r"[.\w\s]*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?\s*([^)]*)")
DECLARATION = re.compile(
    r"(?:\.(?:visible|extern|common|weak|internal)\s+)*\.(global|shared|local|const|param)\s+"
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+)?(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?"
    r"([\w$]+)\s*(?:\[(\d*)\])?(?:\s*=\s*(.*))?"
)
INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][a-z0-9]*)((?:\.\w+|::\w+)*)\s*(.*)")
ADDRESS = re.compile(r"\[\s*([^+\-\s\]]+)\s*\+?\s*(-?\s*\w+)?\s*\]")
LITERAL = re.compile(
    r"[+-]?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?|\d*\.\d+(?:[eE]-?\d+)?)"
)


def parse(text: str) -> Module:
    """Read a PTX module."""
    return _Parser(text).module()


def _split(text: str) -> list[str]:
    """Cut at the commas that stand outside of brackets of any kind."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            items.append(text[start:position].strip())
            start = position + 1
    items.append(text[start:].strip())
    return [item for item in items if item]


class _Parser:
    def __init__(self, text: str) -> None:
        # comments become blanks, so that every line stays where it was
        self.text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.S)
        self.newlines = [match.start() for match in re.finditer("\n", self.text)]
        self.files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M))
        self.result = Module()
        self.scopes = [_Scope()]  # of the module, the parameters, the body, ...
        self.function: Function | None = None
        self.source: str | None = None
        self.line = 0

    def module(self) -> Module:
        for statement in self.statements():
            self.line = statement.line
            self.accept(statement)
        if self.function is not None:
            raise PTXError(f"the body of {self.function.name} has no end")
        return self.result

    def error(self, problem: str) -> PTXError:
        return PTXError(f"PTX line {self.line}: {problem}")

    # -- from text to statements ----------------------------------------------------------------------------------

    def statements(self) -> Iterator[_Statement]:
        """Cut the text at semicolons, scope braces, labels and directives that end with their line."""
        position, text, has_body = 0, self.text, False
        while match := WORD.search(text, position):
            start = match.start()
            self.line = bisect_right(self.newlines, start - 1) + 1
            if text[start] in "{};":
                end = start + 1
            elif label := LABEL.match(text, start):
                end = label.end()
            elif LINE_DIRECTIVE.match(text, start):
                end = next((newline for newline in self.newlines if newline > start), len(text))
            elif text.startswith(".section", start):
                end = text.index("}", start) + 1
            else:
                end = self.end_of_statement(start)
                has_body = text[end - 1] != ";"
            yield _Statement(" ".join(text[start:end].rstrip(";").split()), self.line, has_body)
            position = end

    def end_of_statement(self, start: int) -> int:
        """Past the semicolon; but the header of a function ends before the brace that opens its body."""
        depth = 0
        for match in re.compile(r"[;{}]").finditer(self.text, start):
            if match[0] == "{" and re.search(r"\.(entry|func)\b", self.text[start : match.start()]):
                return match.start()
            depth += {"{": 1, "}": -1, ";": 0}[match[0]]
            if match[0] == ";" and depth == 0:
                return match.end()
        raise self.error(f"a statement without end: {self.text[start : start + 60]!r}")

    # -- statements -----------------------------------------------------------------------------------------------

    def accept(self, statement: _Statement) -> None:
        """Act on one statement."""
        text = statement.text
        if not text or text.startswith((*SKIPPED_STATEMENTS, ".section")):
            return
        if LINE_DIRECTIVE.match(text):
            directive, *words = text.split()
            if directive == ".loc":
                self.source = f"{self.files.get(words[0], '?')}:{words[1]}"
        elif text == "{":
            self.scopes.append(_Scope())
        elif text == "}":
            self.close()
        elif re.search(r"(^|\s)\.(entry|func)\b", text):
            if statement.has_body:  # else a declaration of what comes later
                self.open(text)
        elif text.startswith(".reg "):
            self.declare_registers(text)
        elif text.startswith("."):
            self.declare(text)
        elif self.function is None:
            raise self.error(f"{text!r} outside of a function")
        elif text.endswith(":"):
            self.function.labels[text[:-1]] = len(self.function.instructions)
        else:
            self.function.instructions.append(self.instruction(text))

    def open(self, text: str) -> None:
        """The header of a function."""
        match = HEADER.fullmatch(text)
        if not match:
            raise self.error(f"cannot read the header {text!r}")
        kind, results, name, parameters, directives = match.groups()
        self.scopes = [self.scopes[0], _Scope()]
        self.source = None
        self.function = Function(name, kind == "entry", [], [], self.line)
        self.function.results = [self.variable(item) for item in _split(results or "")]
        self.function.parameters = [self.variable(item) for item in _split(parameters or "")]
        if limit := re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives):
            x, y, z = (int(size or 1) for size in limit.groups())
            self.function.max_threads = x * y * z

    def close(self) -> None:
        """The end of a scope, or of the function."""
        self.scopes.pop()
        if len(self.scopes) > 2:
            return
        if self.function is None:
            raise self.error("a closing brace without an opening one")
        for instruction in self.function.instructions:
            target = instruction.operands[0] if instruction.opcode == "bra" else None
            if isinstance(target, Name) and target.text not in self.function.labels:
                raise instruction.error("no such label")
        self.result.functions[self.function.name] = self.function
        self.function, self.scopes = None, self.scopes[:1]

    # -- declarations ---------------------------------------------------------------------------------------------

    def declare_registers(self, text: str) -> None:
        """`.reg .b32 %r<11>` or `.reg .u32 a, b`."""
        _, kind, names = text.split(None, 2)
        kind = kind.lstrip(".")
        if kind not in SIZES:
            raise self.error(f"registers of type .{kind} are not supported")
        scope, slots = self.scopes[-1], self.result.registers
        for name in _split(names):
            if match := re.fullmatch(r"(.+)<(\d+)>", name):
                scope.ranges[match[1]] = (len(slots), int(match[2]), kind)
                slots.extend([kind] * int(match[2]))
            else:
                scope.registers[name] = Register(len(slots), kind)
                slots.append(kind)

    def declare(self, text: str) -> None:
        """A variable of the module, or one declared in a body."""
        variable = self.variable(text)
        if variable.space in ("local", "param") and self.function is not None:
            self.function.variables.append(variable)
        else:
            self.result.variables.append(variable)

    def variable(self, text: str) -> Variable:
        """Read a declaration and make its name known in the innermost scope."""
        match = DECLARATION.fullmatch(text)
        if not match or match[3] not in SIZES:
            raise self.error(f"cannot read the declaration {text!r}")
        space, align, kind, name, count, values = match.groups()
        size = SIZES[kind]
        length = size * (int(count or 0) if count is not None else 1)
        initial = self.initial(values, size, length) if values else None
        variable = Variable(name, space, kind, int(align or size), length, initial)
        self.scopes[-1].variables[name] = variable
        return variable

    def initial(self, values: str, size: int, length: int) -> bytes:
        """The bytes of an initialiser, filled up with zeros."""
        items = _split(values.strip().removeprefix("{").removesuffix("}"))
        try:
            numbers = [int(item.rstrip("U"), 0) for item in items]
        except ValueError:
            raise self.error(f"cannot read the initial values {values[:60]!r}") from None
        return b"".join((number % 256**size).to_bytes(size, "little") for number in numbers).ljust(length, b"\0")

    # -- instructions ---------------------------------------------------------------------------------------------

    def instruction(self, text: str) -> Instruction:
        match = INSTRUCTION.fullmatch(text)
        if not match:
            raise self.error(f"cannot read {text!r}")
        negated, guard, opcode, modifiers, rest = match.groups()
        predicate = self.operand(guard) if guard else None
        if predicate is not None and not isinstance(predicate, Register):
            raise self.error(f"{guard} is not a predicate")
        return Instruction(
            opcode,
            tuple(modifiers.replace("::", ".").split(".")[1:]),
            tuple(self.operand(item) for item in _split(rest)),
            predicate,
            bool(negated),
            self.line,
            text,
            self.source,
        )

    def operand(self, text: str) -> Operand | None:
        """Read one operand; None is the sink "_"."""
        if text == "_":
            return None
        if text[0] == "[":
            match = ADDRESS.fullmatch(text)
            base = self.operand(match[1]) if match else None
            if match is None or base is None:
                raise self.error(f"cannot read the address {text}")
            return Address(base, int((match[2] or "").replace(" ", "") or "0", 0))
        if text[0] in "{(":
            return Group(tuple(self.operand(item) for item in _split(text[1:-1])))
        if "|" in text:
            return Group(tuple(self.operand(item) for item in text.split("|")))
        if text in SPECIAL_REGISTERS:
            return Special(text)
        if LITERAL.fullmatch(text):
            return Immediate(text)
        for scope in reversed(self.scopes):
            if register := scope.register(text):
                return register
            if text in scope.variables:
                return Symbol(scope.variables[text])
        if text[0] in "%!":
            raise self.error(f"unknown register {text}")
        return Name(text)
