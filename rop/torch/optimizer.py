"""Training steps for PyTorch loops with the spectral-radius penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.optim import Optimizer

from rop import optim
from rop.arguments import check_int
from rop.eigen import Eigen
from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.kernels.rules import averaged
from rop.layers.batchnorm import BatchNorm
from rop.layers.loss import Loss
from rop.objective import Objective, Point
from rop.torch.losses import loss_from_torch, numbers
from rop.torch.taught import Layers
from rop.torch.trace import Traced, trace
from rop.training.penalty import StandalonePenalty

if TYPE_CHECKING:
    from rop.kfac import Kfac


class SpectralRadius:
    """Steps on f(w) + μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of the batch's loss.

    The module keeps its parameters. A step gathers them into one vector, lets rop compute f, ∇f, ρ and
    ∇ρ = sign(λ)·vᵀ∇Hv, leaves ∇f + μ∇ρ in the parameters' ``grad`` (views of one vector), updates batchnorm's running
    statistics as a forward pass in training mode would, and calls the step of the optimizer it was given. That one may
    be any of torch's, with weight decay, momentum, parameter groups; schedulers of learning rates work on it. H is that
    of f as a function of the parameters that require a gradient.

    Args:
        module: any nn.Module that rop.from_torch understands, on the CPU.
        loss: nn.CrossEntropyLoss, NLLLoss, MSELoss, BCEWithLogitsLoss, L1Loss, SmoothL1Loss, HuberLoss,
            PoissonNLLLoss or KLDivLoss, the functions of torch.nn.functional for them, or a loss of rop.
        base_optimizer: a torch optimizer of (some of) the module's parameters.
        mu, K, **options: as for rop.SpectralRadius: solver, tol, stop, maxiter, warm_start, clip, limit, products,
            refresh. A schedule of mu or tol is given the number of the step and ``opt.epoch``.
        seed: of the first direction.
        memory_limit: as for rop.Objective.
        layers: as for rop.from_torch.

    Attributes:
        rho, penalised: of the last step: ρ of its batch, and whether ∇ρ took part (not if ρ ≤ K).
        found: of the last step: its Eigen, None if μ was 0.
        steps: number of steps so far.
        epoch: 1; increase it yourself if a schedule of yours depends on it.

    >>> import torch, rop
    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> opt = rop.torch.SpectralRadius(module, torch.nn.CrossEntropyLoss(),
    ...                                torch.optim.SGD(module.parameters(), lr=0.5), mu=0.01)
    >>> x = torch.randn(64, 2)
    >>> y = (x[:, 0] * x[:, 1] > 0).long()
    >>> losses = [opt.step(x, y) for _ in range(100)]
    >>> losses[-1] < 0.3 < losses[0], opt.rho > 0
    (True, True)
    """

    def __init__(
        self,
        module: nn.Module,
        loss: nn.Module | Callable[..., Tensor] | Loss,
        base_optimizer: Optimizer,
        *,
        mu: optim.Schedule = 0.01,
        K: float = 0.0,
        seed: int = 0,
        memory_limit: int | None = None,
        layers: Layers | None = None,
        **options: Any,
    ):
        if not isinstance(module, nn.Module):
            raise ArgumentTypeError(f"SpectralRadius: expected module as an nn.Module, got {type(module).__name__}")
        if not isinstance(base_optimizer, Optimizer):
            raise ArgumentTypeError(
                "SpectralRadius: expected base_optimizer as an optimizer of torch, such as "
                f"torch.optim.SGD(module.parameters(), lr=0.1), got {base_optimizer!r}"
            )
        regularizer = optim.SpectralRadius(mu=mu, K=K, **options)
        self.module, self.loss, self.base_optimizer = module, loss_from_torch(loss), base_optimizer
        self._memory_limit, self._layers = memory_limit, layers
        self._bound: dict[bool, _Bound] = {}  # by the module's mode
        first = self._bind()
        _check_optimizer(base_optimizer, module)
        size, dtype = first.traced.net.size, first.traced.dtype
        seed = check_int("SpectralRadius", "seed", seed, minimum=0)
        self._penalty = StandalonePenalty(regularizer, size, dtype, seed)
        self._preconditioner: Kfac | None = None
        self.steps, self.epoch = 0, 1
        self.rho, self.penalised = float("nan"), False
        self.found: Eigen | None = None

    # --------------------------------------------------------------------------------------------------------- stepping
    def step(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> float:
        """One step on a batch (tensors or arrays, y as the loss wants it); returns the loss before the step."""
        loss = self.backward(x, y)
        self.base_optimizer.step()
        return loss

    def backward(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike) -> float:
        """A step without that of the base optimizer, so that gradients can be changed in between, clipped for example;
        returns the loss."""
        bound = self._bind()
        bound.gather()
        p = bound.objective(numbers("x", x), numbers("y", y)).at(bound.w)
        gradient = p.grad
        mu, tol = (
            float(optim.values(schedule, np.array([self.steps + 1]), self.epoch, f"SpectralRadius {name}")[0])
            for name, schedule in (("mu", self.regularizer.mu), ("tol", self.regularizer.tol))
        )
        self.found, added = None, None
        if mu:
            rate = max(float(group.get("lr", 0.0)) for group in self.param_groups)
            self.found, added = self._penalty.at(
                p, self.steps, mu=mu, tol=tol, rate=rate, free=bound.free(), preconditioner=self._refreshed(p)
            )
            self.rho = self.found.rho
        self.penalised = added is not None
        if not np.isfinite(p.loss) or (mu and not np.isfinite(self.rho)):
            what = "loss" if not np.isfinite(p.loss) else "spectral radius"
            raise RopError(
                f"SpectralRadius: the {what} is not finite in step {self.steps + 1}; the parameters are "
                "those before it. A smaller learning rate or mu, or clip=..., may help"
            )
        bound.scatter(gradient if added is None else gradient + added)
        if bound.training:
            bound.average(p.batch_stats)
        self.steps += 1
        return p.loss

    def _refreshed(self, p: Point) -> Kfac | None:
        """The K-FAC preconditioner if the solver needs one: a new one every ``refresh`` steps."""
        if self.regularizer.solver != "paper_lobpcg":
            return None
        if self._preconditioner is None or self.steps % self.regularizer.refresh == 0:
            from rop.kfac import kfac  # one solver alone needs it

            self._preconditioner = kfac(p, seed=self._penalty.seed)
        return self._preconditioner

    def _bind(self) -> _Bound:
        """The module in its present mode; it is traced once in each mode."""
        mode = self.module.training
        if mode not in self._bound:
            self._bound[mode] = _Bound(self.module, self.loss, self._memory_limit, self._layers)
        return self._bound[mode]

    # -------------------------------------------------------------------------------------- the interface of optimizers
    @property
    def regularizer(self) -> optim.SpectralRadius:
        """The penalty's settings. To change one between steps: opt.regularizer = replace(opt.regularizer, mu=0.02),
        with dataclasses.replace."""
        return self._penalty.regularizer

    @regularizer.setter
    def regularizer(self, value: optim.SpectralRadius) -> None:
        if not isinstance(value, optim.SpectralRadius):
            raise ArgumentTypeError(f"SpectralRadius: expected regularizer as a rop.SpectralRadius, got {value!r}")
        self._penalty.regularizer = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the base optimizer."""
        return self.base_optimizer.param_groups

    @property
    def state(self) -> dict[Tensor, Any]:
        """The state of the base optimizer."""
        return self.base_optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; not needed, because a step overwrites them and does not add to them."""
        self.base_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs, beside the module's own state_dict, to continue to the same bits. The preconditioner of
        solver "paper_lobpcg" is not saved: there the bits are the same only if the next step refreshes it anyway."""
        return {
            "base_optimizer": self.base_optimizer.state_dict(),
            "v": torch.from_numpy(self._penalty.v.copy()),
            "seed": self._penalty.seed,
            "steps": self.steps,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what state_dict returned; the module loads its own parameters."""
        expected = {"base_optimizer", "v", "seed", "steps", "epoch"}
        if not isinstance(state_dict, dict) or set(state_dict) != expected:
            got = sorted(state_dict) if isinstance(state_dict, dict) else type(state_dict).__name__
            raise ArgumentError(f"SpectralRadius: expected a state_dict with the keys {sorted(expected)}, got {got}")
        v = numbers("v", state_dict["v"])
        if v.shape != self._penalty.v.shape:
            raise ArgumentError(
                "SpectralRadius: expected the state of a module with as many parameters, v of shape "
                f"{self._penalty.v.shape}, got {v.shape}"
            )
        self.base_optimizer.load_state_dict(state_dict["base_optimizer"])
        self._penalty.v[:], self._penalty.seed, self._preconditioner = v, state_dict["seed"], None
        self.steps, self.epoch = state_dict["steps"], state_dict["epoch"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regularizer!r}, {self.base_optimizer!r})"


class _Bound:
    """A module in one mode with its net; its parameters and gradients are gathered in one vector each."""

    def __init__(self, module: nn.Module, loss: Loss, memory_limit: int | None, layers: Layers | None):
        self.traced: Traced = trace(module, layers)
        self.loss, self.memory_limit = loss, memory_limit
        self._batchnorms = [m for m in module.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
        self._momentum = _momenta(self.traced)
        _check_device(self.traced)
        size = self.traced.net.size
        self.w, self._gradient = np.empty(size, self.traced.dtype), np.empty(size, self.traced.dtype)
        self._w_views, self._gradient_views = self._views(self.w), self._views(self._gradient)
        self._objective: Objective | None = None
        self._state: dict[str, np.ndarray] = {}  # running statistics of the objective, in evaluation mode

    def _views(self, vector: np.ndarray) -> list[Tensor]:
        flat, slots = torch.from_numpy(vector), self.traced.net.slots
        return [flat[slot.offset : slot.offset + slot.size].view(slot.shape) for slot in slots]

    @property
    def training(self) -> bool:
        """Whether batchnorm uses the batch's statistics."""
        modes = {batchnorm.training for batchnorm in self._batchnorms} or {True}
        if len(modes) > 1:
            raise ArgumentError(
                "SpectralRadius: expected all batchnorm layers in one mode, got some in training and "
                "some in evaluation mode; call module.train() or module.eval()"
            )
        return modes.pop()

    def objective(self, x: np.ndarray, y: np.ndarray) -> Objective:
        """f on this batch; its buffers are reused as long as the running statistics it reads are unchanged."""
        traced, training = self.traced, self.training
        state = {} if training else traced.state()
        same = (
            self._objective is not None
            and set(state) == set(self._state)
            and all(np.array_equal(self._state[name], state[name]) for name in state)
        )
        if same and self._objective is not None and self._objective.training == training:
            self._objective = self._objective.with_data(x, y)
        else:
            self._objective = Objective(
                traced.net,
                self.loss,
                x,
                y,
                dtype=traced.dtype,
                training=training,
                state=state or None,
                memory_limit=self.memory_limit,
                hold_fixed=False,
            )
            self._state = state
        return self._objective

    def gather(self) -> None:
        """Copy the module's parameters into w."""
        with torch.no_grad():
            torch._foreach_copy_(self._w_views, list(self.traced.parameters))

    def scatter(self, gradient: np.ndarray) -> None:
        """Give the parameters that require a gradient their part of it."""
        self._gradient[:] = gradient
        for parameter, view in zip(self.traced.parameters, self._gradient_views, strict=True):
            parameter.grad = view if parameter.requires_grad else None

    def free(self) -> np.ndarray | None:
        """1 for parameters that require a gradient, 0 for others; None if all do."""
        if all(parameter.requires_grad for parameter in self.traced.parameters):
            return None
        parts = zip(self.traced.net.slots, self.traced.parameters, strict=True)
        return np.concatenate([np.full(slot.size, p.requires_grad, self.traced.dtype) for slot, p in parts])

    def average(self, stats: dict[str, np.ndarray]) -> None:
        """Update the running statistics with those of the batch."""
        with torch.no_grad():
            for name, running in self.traced.buffers.items():
                running.copy_(averaged(running, torch.from_numpy(stats[name]), self._momentum[name]))
            for counter in self.traced.counters:
                counter += 1


def _momenta(traced: Traced) -> dict[str, float]:
    """The weight of the batch's statistics in each running average."""
    uses = [node.layer for node in traced.net.nodes if isinstance(node.layer, BatchNorm)]
    for layer in uses:
        if uses.count(layer) > 1:
            raise ArgumentError(
                f"SpectralRadius: layer {traced.net.name_of(layer)} ({layer.describe()}) is used "
                f"{uses.count(layer)} times, so its running statistics would be averaged as often; use "
                "a batchnorm for each place"
            )
    keys = ("running_mean", "running_var")
    return {f"{traced.net.name_of(layer)}.{key}": layer.momentum for layer in uses for key in keys}


def _check_device(traced: Traced) -> None:
    for slot, parameter in zip(traced.net.slots, traced.parameters, strict=True):
        if parameter.device.type != "cpu":
            raise ArgumentError(
                f"SpectralRadius: expected parameters on the CPU, got {slot.name} on "
                f"{parameter.device}; use module.cpu()"
            )


def _check_optimizer(base_optimizer: Optimizer, module: nn.Module) -> None:
    if isinstance(base_optimizer, torch.optim.LBFGS):
        raise ArgumentError(
            "SpectralRadius: LBFGS evaluates the loss by itself, several times a step; expected a "
            "base_optimizer that takes one gradient, such as SGD or Adam"
        )
    known = {id(parameter) for parameter in module.parameters()}
    for group in base_optimizer.param_groups:
        if any(id(parameter) not in known for parameter in group["params"]):
            raise ArgumentError(
                "SpectralRadius: base_optimizer has parameters that are not the module's; make it with "
                "module.parameters()"
            )
