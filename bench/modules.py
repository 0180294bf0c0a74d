"""A torch module of the user's as a problem: `path/to/file.py:function`.

The function takes no arguments and returns one of

    module                        whose first layer is linear, so that it says what shape a sample has
    module, x                     x (batch, ...): a batch of inputs
    module, x, y                  y: labels (batch,), or numbers of the shape of the outputs
    module, x, y, loss            an nn.CrossEntropyLoss, NLLLoss, MSELoss or BCEWithLogitsLoss

Without a loss it is cross-entropy for labels and the mean square for numbers; without y labels are drawn. rop runs the
net that rop.from_torch makes of the module, torch the module itself, both in the mode (train or eval) it comes in. The
random generators of Python, NumPy and torch are seeded before the function is called.
"""

from __future__ import annotations

import copy
import importlib.util
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rop
from rop.errors import missing_package

from .problems import Data, Problem, Running
from .vocabulary import Parameter, Shape

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise missing_package("bench --torch-module", "PyTorch", "bench", error) from error

from rop.torch.losses import loss_from_torch
from rop.torch.trace import Traced, trace

from .engines.torch_layers import written_out

USUAL_BATCH = 128
STEP = 0.01  # from the module's parameters to the second point, relative to their size
TorchLoss = Callable[[Tensor, Tensor], Tensor]  # a module, or a function of torch.nn.functional
RESULTS = "a module, (module, x), (module, x, y) or (module, x, y, loss)"


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleProblem(Problem):
    """The module with its data; arrays are float64, labels int64."""

    module: nn.Module
    traced: Traced
    x: np.ndarray
    y: np.ndarray
    torch_loss: TorchLoss

    alone = False  # the process of rop has torch loaded too, to read the module

    def network(self) -> rop.Graph:
        return self.traced.net

    def rop_loss(self) -> rop.Loss:
        return loss_from_torch(self.torch_loss)

    def state(self) -> dict[str, np.ndarray]:
        return self.traced.state()

    def running(self) -> list[Running]:
        return []  # the module has its own

    def left_out(self, engine: str) -> str:
        return "it is a torch module" if engine == "jax" else ""

    @property
    def output_shape(self) -> Shape:
        net = self.network()
        return net.shapes(self.input_shape)[net.output]

    def parameters(self) -> list[Parameter]:
        return [Parameter(slot.shape) for slot in self.network().slots]

    def data(self, batch: int, dtype: str) -> Data:
        """The rows that the function returned, repeated if there are too few; the first point is the module's own
        parameters, the second is near it."""
        rng = np.random.default_rng(20_240_501)
        rows = np.arange(batch) % len(self.x)
        y = self.y[rows] if self.y.dtype.kind == "i" else self.y[rows].astype(dtype)
        w = self.traced.vector().astype(np.float64)
        w_next = w + STEP * np.sqrt(np.mean(w**2)) * rng.standard_normal(w.size)
        return Data(self.x[rows].astype(dtype), y, (w.astype(dtype), w_next.astype(dtype)), self.directions(rng, dtype))

    def fingerprint(self) -> int:
        """A checksum of parameters and data."""
        return zlib.crc32(b"".join(part.tobytes() for part in (self.traced.vector(), self.x, self.y)))


# ------------------------------------------------------------------------------------------------------------- loading
def load(name: str) -> ModuleProblem:
    """The problem `path.py:function`; a ValueError says what is wrong with it."""
    function = _function(name)
    problem = _problem(name, _called(name, function))
    if _problem(name, _called(name, function)).fingerprint() != problem.fingerprint():
        raise ValueError(
            f"{name}: expected the same numbers whenever it is called, because every engine calls it in "
            "a process of its own, got others the second time; seed its random numbers"
        )
    return problem


def _function(name: str) -> Callable[[], Any]:
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{name}: there is no file {path}; expected path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(f"rop_bench_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.resolve().parent))  # for imports from its own folder
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path}: {type(error).__name__} while it was imported: {error}") from error
    finally:
        sys.path.pop(0)
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and value.__module__ == spec.name]
        raise ValueError(f"{name}: {path} has no function {attribute}; it has {', '.join(known) or 'none'}")
    return function


def _called(name: str, function: Callable[[], Any]) -> tuple[Any, ...]:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    try:
        result = function()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name}: {type(error).__name__} while it was called: {error}") from error
    parts = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(parts) <= 4 or not isinstance(parts[0], nn.Module):
        got = f"({', '.join(type(part).__name__ for part in parts)})"
        raise ValueError(f"{name}: expected it to return {RESULTS}, got {got}")
    return parts


def _problem(name: str, parts: tuple[Any, ...]) -> ModuleProblem:
    module, x, y, loss = (*parts, None, None, None)[:4]
    try:
        traced = trace(module)
        x = _example(traced) if x is None else _floats("x", x)
        shapes = traced.net.shapes(x.shape[1:])
        y, loss = _targets(y, loss, len(x), shapes[traced.net.output])
        problem = ModuleProblem(
            name,
            f"{type(module).__name__}, {traced.net.size} parameters",
            x.shape[1:],
            (),
            training=module.training,
            module=module,
            traced=traced,
            x=x,
            y=y,
            torch_loss=loss,
        )
        problem.rop_loss().targets(y, len(x), problem.output_shape, np.float64)
    except rop.RopError as error:
        raise ValueError(f"{name}: {error}") from error
    return problem


def _example(traced: Traced) -> np.ndarray:
    """Random inputs of the size that a linear first layer takes."""
    first = traced.net.nodes[1].layer
    if not isinstance(first, rop.Linear):
        raise rop.ArgumentError(
            "expected it to return (module, x), because only a first layer that is linear says "
            f"what shape a sample has, got a module that begins with {first!r}"
        )
    return np.random.default_rng(0).standard_normal((USUAL_BATCH, first.in_features))


def _floats(what: str, value: Any) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or len(array) == 0:
        raise rop.ArgumentError(
            f"expected {what} as a tensor (batch, ...) of numbers, got shape {array.shape} of {array.dtype}"
        )
    return array.astype(np.float64)


def _targets(y: Any, loss: Any, batch: int, output: Shape) -> tuple[np.ndarray, TorchLoss]:
    """The targets as an array, and the loss, each with its default where the function returned none."""
    if isinstance(loss, rop.Loss):
        raise rop.ArgumentError(f"expected a loss of torch, which torch can run as well, got {loss!r}")
    if y is None:
        if len(output) != 1 or output[0] < 2:
            raise rop.ArgumentError(
                f"expected it to return y and a loss, because outputs of shape {output} are no "
                "logits of classes to draw labels from"
            )
        return np.random.default_rng(1).integers(output[0], size=batch), nn.CrossEntropyLoss()
    array = np.asarray(y.detach().cpu().numpy() if isinstance(y, Tensor) else y)
    if len(array) != batch:
        raise rop.ArgumentError(f"expected as many targets as samples, got {batch} samples and {len(array)} targets")
    if array.dtype.kind in "iu":
        return array.astype(np.int64), loss or nn.CrossEntropyLoss()
    return array.astype(np.float64), loss or nn.MSELoss()


# --------------------------------------------------------------------------------------------------- how torch runs it
class Modules:
    """Copies of the module at both points, so that torch runs it in the usual way, by module(x).

    ``fused`` are copies without changes. In ``exact`` batchnorm is written out, because the third derivative of torch's
    own is wrong in training mode; both share their parameters.
    """

    def __init__(self, problem: ModuleProblem, points: list[list[Tensor]]):
        like = points[0][0]  # gives precision and device to buffers and to the loss's weights too
        names = {id(tensor): name for name, tensor in problem.module.named_parameters()}
        self.names = [names[id(tensor)] for tensor in problem.traced.parameters]
        self.loss = copy.deepcopy(problem.torch_loss)
        if isinstance(self.loss, nn.Module):
            self.loss.to(like)
        self.fused = [copy.deepcopy(problem.module).to(like) for _ in points]
        self.leaves = []
        for module, point in zip(self.fused, points, strict=True):
            named = dict(module.named_parameters())
            with torch.no_grad():
                self.leaves.append(
                    [named[name].requires_grad_().copy_(part) for name, part in zip(self.names, point, strict=True)]
                )
        self.exact = [_written_out(module) for module in self.fused]

    def outputs(self, parameters: Sequence[Tensor], x: Tensor, exact: bool) -> Tensor:
        """The outputs of the copy that owns the parameters, or of a functional call with others."""
        modules = self.exact if exact else self.fused
        for own, module in zip(self.leaves, modules, strict=True):
            if own is parameters:
                return module(x)
        return torch.func.functional_call(modules[0], dict(zip(self.names, parameters, strict=True)), (x,))


def _written_out(module: nn.Module) -> nn.Module:
    """The same module, sharing its parameters, with every batchnorm in primitives."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    result = copy.deepcopy(module, shared)
    for path, part in list(result.named_modules()):
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            if not path:
                return _Written(part)
            parent, _, name = path.rpartition(".")
            setattr(result.get_submodule(parent), name, _Written(part))
    return result


class _Written(nn.Module):
    """Batchnorm in primitives, with the parameters and running statistics of another one."""

    def __init__(self, like: nn.BatchNorm1d | nn.BatchNorm2d):
        super().__init__()
        self.weight, self.bias, self.eps = like.weight, like.bias, like.eps
        self.running = None if like.training else (like.running_mean, like.running_var)

    def forward(self, x: Tensor) -> Tensor:
        return written_out(x, self.weight, self.bias, self.eps, self.running)
