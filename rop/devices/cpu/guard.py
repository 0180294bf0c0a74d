"""Guard zones: a debug mode in which every kernel that writes outside its own memory is caught and named.

With ``ROP_GUARD=1`` in the environment there are *gaps* around every space of a workspace, between the pieces of a
space that belong to different operations, and around results. Gaps are filled with canaries: NaNs, so that a read of
one spoils the result as well, whose bits are different in each gap, because arithmetic hands a NaN's bits on. After
each pass the canaries are compared; if one has changed, the pass is run again instruction by instruction to find the
kernel. Without the variable there are no gaps and nothing is compared.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.errors import RopError

ACTIVE = os.environ.get("ROP_GUARD", "0") not in ("", "0")
BYTES = 128 if ACTIVE else 0  # of a gap around a space or after a buffer; whole cache lines keep the alignment
NUMBERS = 16 if ACTIVE else 0  # of a gap between the pieces of any other space

QUIET_NAN = {"f4": 0x7FC0_0000, "f8": 0x7FF8_0000_0000_0000, "i8": -(1 << 62)}  # for integers a wild number
_numbers = itertools.count(1)


class GuardError(RopError, AssertionError):
    """A kernel has written outside its own memory: a mistake in rop, not in its use."""


@dataclass(eq=False)
class Zone:
    """Numbers that nothing may change, as integers."""

    name: str
    bits: np.ndarray
    value: int

    def fill(self) -> None:
        self.bits[...] = self.value

    @property
    def intact(self) -> bool:
        return bool((self.bits == self.value).all())


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"i{array.dtype.itemsize}")


def edges(name: str, array: np.ndarray) -> list[Zone]:
    """The gaps before and after an array that was allocated with gaps around it."""
    start, kind = int(array.ctypes.data), f"i{array.dtype.itemsize}"
    places = {f"before {name}": start - BYTES, f"after {name}": start + array.nbytes}
    return [
        Zone(where, np.frombuffer(memoryview((ctypes.c_char * BYTES).from_address(place)), kind), _canary(array.dtype))
        for where, place in places.items()
    ]


def _canary(dtype: Any) -> int:
    """Bits that no other gap has (of the last four million)."""
    return QUIET_NAN[np.dtype(dtype).str[1:]] + next(_numbers) % (1 << 22)


class Guards:
    """The guard zones of one workspace."""

    def __init__(self) -> None:
        self._zones: list[Zone] = []

    def watch(self, zones: Iterable[Zone]) -> None:
        """Fills zones with canaries and compares them in every check from now on."""
        for zone in zones:
            zone.fill()
            self._zones.append(zone)

    def gap(self, name: str, array: np.ndarray) -> None:
        """Numbers of an array, a view, that nothing may change."""
        self.watch([Zone(name, _bits(array), _canary(array.dtype))])

    def constant(self, name: str, array: np.ndarray) -> None:
        """An array of zeros that is only read."""
        self.watch([Zone(name, _bits(array), 0)])

    def arm(self) -> None:
        """Puts all canaries back."""
        for zone in self._zones:
            zone.fill()

    def check(self, names: list[str], run_one: Callable[[int], None], results: Iterable[Zone] = ()) -> None:
        """Compares all canaries after a pass whose instruction i is ``names[i]`` and can be run by ``run_one(i)``."""
        zones = [*self._zones, *results]
        touched = [zone.name for zone in zones if not zone.intact]
        if not touched:
            return
        culprit = "something outside this pass"
        for i, name in enumerate(names):
            for zone in zones:
                zone.fill()
            run_one(i)
            again = [zone.name for zone in zones if not zone.intact]
            if again:
                culprit, touched = f"kernel {name}, instruction {i} of {len(names)},", again
                break
        for zone in zones:
            zone.fill()
        raise GuardError(f"{culprit} has written outside its own memory: {', '.join(touched)}")
