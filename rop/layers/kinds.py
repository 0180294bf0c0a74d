"""As which class of the package a layer or loss of a user's own class is computed.

The engine knows formulas by class and reads a layer's arguments; it calls no method of a layer while it computes. So a
subclass is computed as the class of the package that it derives from, if it leaves alone what the formulas stand for.
One that does not would silently be computed as its parent, and is refused, as is a class that derives from none of the
known ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import NoReturn

from rop.errors import ArgumentTypeError
from rop.layers.base import Immutable, Layer
from rop.layers.elementwise import Elementwise
from rop.layers.loss import Loss
from rop.layers.record import LAYERS, LOSSES, RECORDS, Record

PACKAGE = __name__.partition(".")[0]
HARMLESS = {"describe", "initial_parameters"}  # how it is shown, and where it starts
READ = {"function", "parameters"}  # what the engine itself reads of an Elementwise
MEANINGFUL = {"forward", "backward", "__eq__", "__hash__"}  # torch's names; layers are known by identity
REMEDIES = {
    Layer: "an activation of your own is rop.Elementwise(function), a composition a rop.Graph; CONTRIBUTING.md says "
    "how to add a layer",
    Loss: "a loss of your own is one of these behind layers of your own, or one more in the package",
}


def kind_of(thing: Immutable, known: Collection[type], where: str) -> type:
    """The class among ``known`` as which a layer or loss is computed; ``where`` names it in the error if there is none.

    >>> from rop.layers import LAYERS, Linear
    >>> class Wide(Linear):
    ...     def __init__(self, width):
    ...         super().__init__(width, 4 * width)
    >>> kind_of(Wide(3), LAYERS.values(), "layer 0").__name__
    'Linear'
    """
    family = type(thing).__mro__
    kind = next((one for one in family if one in known), None)
    if kind is None:
        _refuse_unknown(thing, known, where)
    for one in family:
        for name in inspect.get_annotations(one) if _is_ours(one) else ():
            getattr(thing, name)  # says what a constructor has forgotten
    changed = _changed(family)
    if changed:
        parent = next(one for one in family if _is_ours(one)).__name__
        raise ArgumentTypeError(
            f"{where}: {type(thing).__name__} is a rop.{parent} with {', '.join(changed)} of its own, which the engine "
            f"would not use: it would compute a plain {parent}. A subclass may change the constructor, "
            f"{' and '.join(sorted(HARMLESS))}; {_remedy(thing)}"
        )
    return kind


def _changed(family: tuple[type, ...]) -> list[str]:
    """What classes that are not the package's change of the class of the package that they derive from."""
    parent = next(one for one in family if _is_ours(one))
    fixed = {name for name in dir(parent) if not name.startswith("__")} | MEANINGFUL
    for one in parent.__mro__:
        fixed |= set(inspect.get_annotations(one))
    fixed -= HARMLESS | (READ if parent is Elementwise else set())
    foreign = [one for one in family if not _is_ours(one) and one.__module__ not in ("builtins", "abc", "typing")]
    return sorted({name for one in foreign for name in vars(one) if name in fixed})


def record_of(thing: Immutable, where: str) -> Record:
    """The record of the class as which a layer or loss is computed; ``where`` names it in the error if there is none.

    >>> from rop.layers import MSE
    >>> record_of(MSE(), "loss").family
    'loss'
    """
    table = LOSSES if isinstance(thing, Loss) else LAYERS
    return RECORDS[kind_of(thing, table.values(), where)]


def _is_ours(kind: type) -> bool:
    """Whether a class is the package's, or has a record like those of the package."""
    return kind in RECORDS or kind.__module__.partition(".")[0] == PACKAGE


def _remedy(thing: Immutable) -> str:
    return next(text for kind, text in REMEDIES.items() if isinstance(thing, kind))


def _refuse_unknown(thing: Immutable, known: Collection[type], where: str) -> NoReturn:
    names = ", ".join(kind.__name__ for kind in known)
    raise ArgumentTypeError(
        f"{where}: expected one of {names}, or a subclass of one, got {type(thing).__name__}, for which rop has no "
        f"formulas; {_remedy(thing)}"
    )
