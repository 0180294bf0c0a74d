"""Which function lowers which kind of layer.

A family of layers says it where its operations are defined:

    @lowers(Softmax, LogSoftmax)
    def softmax(plan, node, layer, inputs):
        return plan.add(SoftmaxOperation(plan, layer, inputs[0]))

``outline`` imports every file of rop/lowering, so a new file is found without being listed anywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

from rop.graph import Node
from rop.layers.base import Layer
from rop.lowering.plan import Plan
from rop.lowering.values import Value

Lowering = Callable[[Plan, Node, Any, list[Value]], Value]  # plan, node, its layer, its inputs -> its value
Lowers = TypeVar("Lowers", bound=Lowering)

LOWERINGS: dict[type[Layer], Lowering] = {}  # filled by ``lowers``


def lowers(*kinds: type[Layer]) -> Callable[[Lowers], Lowers]:
    """Registers a function as the lowering of these kinds of layers and of the classes that derive from them."""

    def register(lowering: Lowers) -> Lowers:
        LOWERINGS.update(dict.fromkeys(kinds, lowering))
        return lowering

    return register


def import_families(package: str) -> None:
    """Imports every file of a package, so that what they register is known."""
    for file in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{file.name}")
