"""What a run tells: violations, each with its place in the program and the thread, and counts of instructions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from tests.helpers.ptx.parse import Instruction

Index3 = tuple[int, int, int]


def readable(name: str) -> str:
    """module.function out of a name that Numba mangled; any other name as it is."""
    parts, rest = [], name.removeprefix("_ZN")
    while rest != name and (match := re.match(r"(\d+)", rest)):
        end = len(match[1]) + int(match[1])
        parts.append(rest[len(match[1]) : end])
        rest = rest[end:]
    return ".".join(parts).replace("_3clocals_3e.", "") if parts else name


class Kind(Enum):
    """What can go wrong. The value is the phrase used in messages."""

    OUT_OF_BOUNDS = "access out of bounds"
    MISALIGNED = "misaligned access"
    READ_ONLY = "store to constant memory"
    UNWRITTEN = "read of memory never written"
    RACE = "data race"
    SAME_VALUE = "several threads write the same value"  # harmless on today's hardware, undefined by the model
    BARRIER = "divergent barrier"
    WARP = "warp operation without all its lanes"
    TRAP = "trap"
    LOCAL = "local memory"
    FLOAT64 = "float64 in a float32 kernel"
    LIMIT = "launch limit"


@dataclass(frozen=True)
class Violation:
    """One kind of mistake at one place; `count` says how often it happened, the rest describes the first time."""

    kind: Kind
    detail: str
    kernel: str
    line: int | None = None  # in the PTX text
    text: str = ""  # the instruction
    source: str | None = None  # file:line of the Python source, if the PTX knows it
    block: Index3 | None = None
    thread: Index3 | None = None
    count: int = 1

    def __str__(self) -> str:
        place = f", PTX line {self.line}: {self.text}" if self.line is not None else ""
        source = f" ({self.source})" if self.source else ""
        who = f", block {self.block}" if self.block is not None else ""
        who += f", thread {self.thread}" if self.thread is not None else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kind.value}: {self.detail}{times}\n    in {self.kernel}{place}{source}{who}"


class ViolationError(AssertionError):
    """Raised by `Report.raise_for_violations`; the message lists every violation."""


@dataclass
class Report:
    """The outcome of a launch."""

    kernel: str
    violations: list[Violation] = field(default_factory=list)
    accepted: list[Violation] = field(default_factory=list)  # of the kinds that the caller allows
    instructions: Counter[str] = field(default_factory=Counter)  # executed, summed over threads: "fma.f32" → 4096
    shared_bytes: int = 0
    local_bytes: int = 0  # per thread

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of violation that occurred."""
        return {violation.kind for violation in self.violations}

    def count(self, *prefixes: str) -> int:
        """How many instructions were executed whose name begins with one of the prefixes."""
        return sum(number for name, number in self.instructions.items() if name.startswith(prefixes))

    @property
    def fma_per_shared_load(self) -> float:
        """Multiply-adds per load instruction from shared memory, what a tiled product must make large.

        A vector load (ld.shared.v4) counts once, as it does in the machine.
        """
        return self.count("fma.") / max(1, self.count("ld.shared"))

    def raise_for_violations(self) -> None:
        """Raise `ViolationError` with a readable list, unless there is nothing to tell."""
        if self.violations:
            listed = "\n".join(f"  {violation}" for violation in self.violations)
            raise ViolationError(f"{self.kernel}: {len(self.violations)} violation(s)\n{listed}")


class Recorder:
    """Collects violations, one entry per kind and place: a loop that goes wrong is told once, with a count."""

    def __init__(self, kernel: str, allow: Collection[Kind]) -> None:
        self.kernel = kernel
        self.allow = frozenset(allow)
        self.found: dict[tuple[Kind, int | None, str], Violation] = {}

    def add(
        self,
        kind: Kind,
        detail: str,
        instruction: Instruction | None = None,
        block: Index3 | None = None,
        thread: Index3 | None = None,
        count: int = 1,
    ) -> None:
        """Record a violation, or count it if the same was seen at the same instruction before."""
        line = instruction.line if instruction else None
        key = (kind, line, "" if instruction else detail)
        known = self.found.get(key)
        if known is not None:
            self.found[key] = replace(known, count=known.count + count)
            return
        text, source = (instruction.text, instruction.source) if instruction else ("", None)
        self.found[key] = Violation(kind, detail, self.kernel, line, text, source, block, thread, count)

    def split(self) -> tuple[list[Violation], list[Violation]]:
        """The violations that count, and those whose kind the caller accepts."""
        every: Iterable[Violation] = self.found.values()
        return [v for v in every if v.kind not in self.allow], [v for v in every if v.kind in self.allow]
