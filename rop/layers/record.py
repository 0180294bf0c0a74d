"""One record per layer and per loss: its family, and where to find everything that depends on its class.

The record stands on the class itself, in the layer's own file:

    @record.layer("bilinear")
    class Linear(Layer): ...

    @record.activation("torch:tanh")
    class Tanh(Builtin): ...

    @record.loss("mse_loss", "MSELoss", likelihood=normal_targets)
    class MSE(Loss): ...

The tables `LAYERS`, `LOSSES` and `ACTIVATIONS`, the public names of `rop` and `rop.layers`, the torch reference, the
subjects of `rop check`, the converters from and to torch and the cases of the tests all follow from the records.

What lives outside of the core is given by name, "package.module:attribute", and imported when it is first used: the
core imports neither torch nor Hypothesis. Names have defaults, made from the class's name in lower case: the reference
of Conv2d is "rop.check.reference:conv2d", its settings are "rop.check.subjects:conv2d", and its case in the tests is
"tests.helpers.cases.bilinear:conv2d".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from rop.errors import ArgumentError
from rop.layers.base import Immutable

FAMILIES = ("bilinear", "product", "linear", "select", "elementwise", "custom", "loss")

Kind = TypeVar("Kind", bound=type[Immutable])
Name = str  # "package.module:attribute"


@dataclass(frozen=True)
class Record:
    """What is known of one class of layers or losses. ``str | Callable`` is a function, or the name of one."""

    kind: type[Any]
    family: str
    reference: Name | Callable[..., Any]  # the same in torch: (layer, use, *inputs), or (loss, outputs, targets)
    checks: Name | Callable[..., Any]  # kind ↦ the stands at which `rop check` looks
    case: Name  # how the tests draw it, and what it must refuse
    module: Name | None = None  # the module of torch that computes the same and takes arguments of the same names
    function: Name | None = None  # the function of torch that does: f(x, *parameters), or loss(z, y, **arguments)
    only_torch: Mapping[str, Any] = field(default_factory=dict)  # what the module takes beside: the only value allowed
    examples: tuple[tuple[Any, ...], ...] = ((),)  # constructor arguments that together use all its scalar functions
    likelihood: Callable[..., Any] | None = None  # (outputs, rng) ↦ targets, if the loss is −log of a probability

    @property
    def name(self) -> str:
        return self.kind.__name__

    def made(self) -> Iterator[Any]:
        """A layer for each of the examples."""
        return (self.kind(*arguments) for arguments in self.examples)

    def find(self, what: str) -> Any:
        """The reference, checks, case, module or function itself; an error that names the place where it is missing.

        >>> from rop.layers import Linear
        >>> RECORDS[Linear].find("checks").__name__
        'linear'
        """
        value = getattr(self, what)
        if not isinstance(value, str):
            return value
        try:
            return resolve(value)
        except AttributeError:
            module, _, attribute = value.partition(":")
            raise ArgumentError(
                f"{self.name}: its record names {value} as its {what}, but there is no {attribute!r} in {module}; "
                "write it there, or give the record another name"
            ) from None


RECORDS: dict[type[Any], Record] = {}
LAYERS: dict[str, type[Any]] = {}  # every public layer, losses aside, by name
LOSSES: dict[str, type[Any]] = {}
ACTIVATIONS: dict[str, type[Any]] = {}  # the elementwise layers that have a scalar function of their own


@cache
def resolve(name: Name) -> Any:
    """What "package.module:attribute" names.

    >>> resolve("math:tau") == 2 * resolve("math:pi")
    True
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def layer(
    family: str,
    *,
    reference: Name | None = None,
    checks: Name | None = None,
    case: Name | None = None,
    module: Name | None = None,
    function: Name | None = None,
    only_torch: Mapping[str, Any] | None = None,
    examples: tuple[tuple[Any, ...], ...] = ((),),
) -> Callable[[Kind], Kind]:
    """Decorates a layer with its record; what is left out has the default names."""

    def decorate(kind: Kind) -> Kind:
        name = kind.__name__.lower()
        return _register(
            LAYERS,
            Record(
                kind,
                family,
                reference or f"rop.check.reference:{name}",
                checks or f"rop.check.subjects:{name}",
                case or f"tests.helpers.cases.{family}:{name}",
                module or f"torch.nn:{kind.__name__}",
                function,
                only_torch or {},
                examples,
            ),
        )

    return decorate


def activation(
    function: Name | None = None,
    *,
    expression: Callable[..., Any] | None = None,
    reference: Name | None = None,
    checks: Name | None = None,
    case: Name | None = None,
    examples: tuple[tuple[Any, ...], ...] = ((),),
) -> Callable[[Kind], Kind]:
    """Decorates an activation. ``function`` names the function of torch that computes the same from x and the layer's
    parameters; where torch has none, ``expression`` says it: ``lambda torch, x: x * torch.exp(-x * x)``. ``examples``
    are constructor arguments: `rop check` looks at the first on vectors and on images, at the others on vectors."""
    if function is None and expression is None and reference is None:
        raise ArgumentError(
            "activation: a record needs a function of torch, or an expression in torch, to compare with"
        )

    def decorate(kind: Kind) -> Kind:
        name = kind.__name__.lower()
        ACTIVATIONS[kind.__name__] = kind
        return _register(
            LAYERS,
            Record(
                kind,
                "elementwise",
                reference or (_in_torch(expression) if expression else "rop.check.reference:by_function"),
                checks or "rop.check.subjects:on_vectors_and_images",
                case or f"tests.helpers.cases.elementwise:{name}",
                f"torch.nn:{kind.__name__}",
                function,
                examples=examples,
            ),
        )

    return decorate


def loss(
    function: str | None = None,
    module: str | None = None,
    *,
    likelihood: Callable[..., Any] | None = None,
    only_torch: Mapping[str, Any] | None = None,
    reference: Name | None = None,
    checks: Name | None = None,
    case: Name | None = None,
) -> Callable[[Kind], Kind]:
    """Decorates a loss. ``function`` and ``module`` are its names in torch.nn.functional and torch.nn, where it takes
    arguments of the same names; a loss that torch does not have needs a reference. ``likelihood`` draws targets from
    the distribution whose negative log-likelihood the loss is, for K-FAC."""

    def decorate(kind: Kind) -> Kind:
        name = kind.__name__.lower()
        return _register(
            LOSSES,
            Record(
                kind,
                "loss",
                reference or f"rop.check.reference:{'loss_by_function' if function else name}",
                checks or f"rop.check.subjects:{name}",
                case or f"tests.helpers.cases.loss:{name}",
                module and f"torch.nn:{module}",
                function and f"torch.nn.functional:{function}",
                only_torch or {},
                likelihood=likelihood,
            ),
        )

    return decorate


def _register(table: dict[str, type[Any]], record: Record) -> Any:
    if record.family not in FAMILIES:
        raise ArgumentError(f"{record.name}: expected a family among {', '.join(FAMILIES)}, got {record.family!r}")
    RECORDS[record.kind] = record
    table[record.name] = record.kind
    return record.kind


def sort() -> None:
    """Puts the layers in the order of the families, whatever files they come from."""
    kinds = sorted(LAYERS.items(), key=lambda item: FAMILIES.index(RECORDS[item[1]].family))
    LAYERS.clear()
    LAYERS.update(kinds)


def _in_torch(expression: Callable[..., Any]) -> Callable[..., Any]:
    """The reference of an activation that is given as an expression (torch, x, *parameters)."""
    return lambda layer, use, x: expression(import_module("torch"), x, *layer.parameters)
