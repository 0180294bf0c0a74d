"""torch.fx's record of a module's forward, with the line of the source of each operation, and its problems."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from rop.errors import ArgumentError
from rop.torch.functions import Argument
from rop.torch.problems import Problem, caller, raised_at
from rop.torch.taught import Taught

SOURCE, LOST = "rop_source", "rop_lost"  # of an operation: its line in the source, and whether its value is unknown


class _Proxy(fx.Proxy):
    """Records x += y and x *= y as they are, where fx would record x + y: other names of x see the change."""

    def __iadd__(self, other: Argument) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __imul__(self, other: Argument) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})


class Tracer(fx.Tracer):
    """torch.fx's tracer, which also remembers the source line of each operation, and goes on after a module whose
    forward it could not trace: that one becomes an operation of unknown value."""

    def __init__(self, taught: Taught) -> None:
        super().__init__()
        self.problems: list[Problem] = []
        self._taught = taught

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self._taught or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta[SOURCE] = caller(sys._getframe(1), record.__code__)
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path, before, depth = self.path_of_module(m), len(self.graph.nodes), len(self.module_stack)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # forward may raise anything when it gets fx's proxy for its input
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            self.give_up(m, path, before, error)
            proxy = self.create_proxy("call_module", path, args, kwargs)
            proxy.node.meta[LOST] = True
            return proxy

    def give_up(self, module: nn.Module, path: str, before: int, error: Exception) -> None:
        """Forget the operations that forward has recorded until it failed (what a branch depends on is no problem by
        itself), and report it, if it has not failed because of a module inside."""
        for node in list(self.graph.nodes)[before:]:
            if node.op != "call_module":
                node.meta[LOST] = True
        if any(not path or problem.place.startswith(f"{path}.") for problem in self.problems):
            return
        message = (
            f"torch.fx cannot trace its forward: {error}; it must be a fixed sequence of operations, without branches "
            f"or loops that depend on values, or say what computes it: layers={{{type(module).__name__}: convert}}"
        )
        name, source = type(module).__name__, raised_at(error, record.__code__)
        self.problems.append(Problem(path or name, name if path else "", source, message))


def record(module: nn.Module, taught: Taught) -> Tracer:
    """The operations of forward as torch.fx records them, with the defaults of all arguments but the first."""
    arguments = inspect.signature(module.forward).parameters.values()
    defaults = {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}
    required = [argument for argument in arguments if argument.name not in defaults]
    if len(required) != 1 or required[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise ArgumentError(
            f"from_torch: expected {type(module).__name__}.forward with one input, got the arguments "
            f"({', '.join(map(str, arguments))}); a rop net has no second one"
        )
    tracer = Tracer(taught)
    try:
        tracer.graph = tracer.trace(module, concrete_args=defaults or None)
    except Exception as error:  # as above
        tracer.give_up(module, "", 0, error)
    return tracer
