"""Training steps for PyTorch loops with the spectral-radius penalty."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.optim import Optimizer

from rop import optim
from rop.arguments import check_float, check_int
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


class SpectralRadius(Optimizer):
    """Steps on f(w) + μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of the batch's loss.

    An optimizer of torch around another one. The module keeps its parameters. A step gathers them into one vector, lets
    rop compute f, ∇f, ρ and ∇ρ = sign(λ)·vᵀ∇Hv, adds ∇f + μ∇ρ to the parameters' ``grad``, updates batchnorm's running
    statistics as a forward pass would, and calls the step of the optimizer it was given. That one may be any of
    torch's, with weight decay, momentum, parameter groups, which are this one's, too: schedulers work on either. H is
    that of f as a function of the parameters that require a gradient, in the modes that the module's layers are in.
    Layers that are replaced, other modes and another precision are noticed at the next step.

    Args:
        module: any nn.Module that rop.from_torch understands, on the CPU.
        loss: nn.CrossEntropyLoss, NLLLoss, MSELoss, BCEWithLogitsLoss, L1Loss, SmoothL1Loss, HuberLoss,
            PoissonNLLLoss or KLDivLoss, the functions of torch.nn.functional for them, or a loss of rop.
        base_optimizer: a torch optimizer of (some of) the module's parameters.
        mu, K, **options: as for rop.SpectralRadius: solver, tol, stop, maxiter, warm_start, clip, limit, products,
            refresh. A schedule of mu or tol is given the number of the gradient and ``opt.epoch``.
        seed: of the first direction.
        memory_limit: as for rop.Objective.
        layers: as for rop.from_torch.

    Attributes:
        rho, penalised: of the last batch: its ρ, and whether ∇ρ took part (not if ρ ≤ K).
        found: of the last batch: its Eigen, None if μ was 0.
        steps: number of gradients so far.
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
        self._bounds: OrderedDict[Hashable, _Bound] = OrderedDict()  # by what the module was like
        self._dtype: np.dtype | None = None  # of the last one
        first = self._bind()
        super().__init__(base_optimizer.param_groups, base_optimizer.defaults)
        self._share()
        seed = check_int("SpectralRadius", "seed", seed, minimum=0)
        self._penalty = StandalonePenalty(regularizer, first.traced.net.size, first.traced.dtype, seed)
        self._preconditioner: Kfac | None = None
        self.steps, self.epoch = 0, 1
        self._ready = False  # whether there is a gradient with the penalty that no step has used
        self.rho, self.penalised = float("nan"), False
        self.found: Eigen | None = None

    # --------------------------------------------------------------------------------------------------------- stepping
    def step(
        self, x: Any = None, y: Tensor | ArrayLike | None = None, *, closure: Callable[[], Any] | None = None
    ) -> Any:
        """One step, in one of three ways:

        - ``step(x, y)`` on a batch (tensors or arrays, y as the loss wants them), whatever gradients there were;
          returns the loss before the step, a float.
        - ``step(closure)`` on the gradients that the closure makes by ``opt.zero_grad()`` and ``opt.backward(x, y)``;
          returns what it returns.
        - ``step()`` on the gradients that calls of ``backward`` have added up.
        """
        if closure is None and y is None and callable(x) and not isinstance(x, Tensor):
            x, closure = None, x
        if (x is None) != (y is None) or (closure is not None and x is not None):
            raise ArgumentError("SpectralRadius: expected step(x, y), step(closure) or step(), got another combination")
        result = None
        if closure is not None:
            self._ready = False
            with torch.enable_grad():
                result = closure()
        elif x is not None and y is not None:
            self.zero_grad()
            result = self.backward(x, y)
        if not self._ready:
            what = "the closure" if closure is not None else "a step without a batch"
            raise ArgumentError(
                f"SpectralRadius: expected {what} to follow a call of opt.backward(x, y), which adds the gradients of "
                "f and of the penalty; loss.backward() knows nothing of the penalty"
            )
        self.base_optimizer.step()
        self._ready = False
        return result

    def backward(self, x: Tensor | ArrayLike, y: Tensor | ArrayLike, scale: float = 1.0) -> float:
        """Adds scale·(∇f + μ∇ρ) of a batch to the parameters' gradients, as ``loss.backward()`` adds scale·∇f; returns
        the loss.

        Gradients can then be changed, clipped for example, or those of other batches be added, before ``step()``:

        >>> import torch, rop
        >>> module = torch.nn.Linear(2, 2)
        >>> opt = rop.torch.SpectralRadius(module, torch.nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1))
        >>> opt.zero_grad()
        >>> for x, y in [(torch.randn(8, 2), torch.randn(8, 2)) for _ in range(4)]:
        ...     loss = opt.backward(x, y, scale=1 / 4)
        >>> opt.step()
        """
        scale = check_float("SpectralRadius", "scale", scale)
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
                p, self.steps, mu=mu, tol=tol, rate=rate, preconditioner=self._refreshed(p)
            )
            self.rho = self.found.rho
        self.penalised = added is not None
        if not np.isfinite(p.loss) or (mu and not np.isfinite(self.rho)):
            what = "loss" if not np.isfinite(p.loss) else "spectral radius"
            raise RopError(
                f"SpectralRadius: the {what} is not finite in step {self.steps + 1}; the parameters are "
                "those before it. A smaller learning rate or mu, or clip=..., may help"
            )
        gradient = gradient if added is None else gradient + added
        bound.scatter(gradient if scale == 1 else gradient.dtype.type(scale) * gradient)
        bound.average(p.batch_stats)
        self.steps += 1
        self._ready = True
        return p.loss

    def _refreshed(self, p: Point) -> Kfac | None:
        """The K-FAC preconditioner if the solver needs one: a new one every ``refresh`` steps."""
        if self.regularizer.solver != "paper_lobpcg":
            return None
        if self._preconditioner is None or self.steps % self.regularizer.refresh == 0:
            from rop.kfac import kfac  # one solver alone needs it

            self._preconditioner = kfac(p, seed=self._penalty.seed)
        return self._preconditioner

    # ------------------------------------------------------------------------------------------ the module as it is now
    def _bind(self) -> _Bound:
        """The module as it is now. It is traced anew after a change of its layers, modes, precision or of what requires
        a gradient; both modes between which a loop goes to and fro are kept."""
        self._share()  # loading a state gives the base optimizer new ones
        key = _likeness(self.module)
        if key not in self._bounds:
            _check_optimizer(self.base_optimizer, self.module)
            self._bounds[key] = _Bound(self.module, self.loss, self._memory_limit, self._layers)
            if len(self._bounds) > 2:
                self._bounds.popitem(last=False)
        self._bounds.move_to_end(key)
        bound = self._bounds[key]
        if self._dtype is not None:
            self._adapt(bound.traced)
        self._dtype = bound.traced.dtype
        return bound

    def _adapt(self, traced: Traced) -> None:
        """Go on with a module of another precision or another number of parameters."""
        if traced.dtype != self._dtype:  # momentum and the like take on the precision of their parameters when loaded
            self.base_optimizer.load_state_dict(self.base_optimizer.state_dict())
            self._share()
        if (self._penalty.v.size, self._penalty.v.dtype) != (traced.net.size, traced.dtype):
            self._penalty.fit(traced.net.size, traced.dtype)
            self._preconditioner = None

    def _share(self) -> None:
        """This optimizer's parameter groups and state are those of the base optimizer."""
        self.param_groups, self.state = self.base_optimizer.param_groups, self.base_optimizer.state

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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; ``step(x, y)`` does it by itself."""
        self.base_optimizer.zero_grad(set_to_none)
        self._ready = False

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs, beside the module's own state_dict, to continue to the same bits: the state_dict of the
        base optimizer with one more entry. The preconditioner of solver "paper_lobpcg" is not saved: there the bits are
        the same only if the next step refreshes it anyway."""
        own = {
            "v": torch.from_numpy(self._penalty.v.copy()),
            "seed": self._penalty.seed,
            "steps": self.steps,
            "epoch": self.epoch,
        }
        return {**self.base_optimizer.state_dict(), "spectral_radius": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what state_dict returned; the module loads its own parameters."""
        own = state_dict.get("spectral_radius") if isinstance(state_dict, dict) else None
        expected = {"v", "seed", "steps", "epoch"}
        if not isinstance(own, dict) or set(own) != expected:
            got = sorted(state_dict) if isinstance(state_dict, dict) else type(state_dict).__name__
            raise ArgumentError(
                "SpectralRadius: expected a state_dict of SpectralRadius, that of the base optimizer with an entry "
                f"'spectral_radius' of {sorted(expected)}, got {got}"
            )
        v = numbers("v", own["v"])
        if v.shape != self._penalty.v.shape:
            raise ArgumentError(
                "SpectralRadius: expected the state of a module with as many parameters, v of shape "
                f"{self._penalty.v.shape}, got {v.shape}"
            )
        base = {name: value for name, value in state_dict.items() if name != "spectral_radius"}
        self.base_optimizer.load_state_dict(base)
        self._share()
        self._penalty.v[:], self._penalty.seed, self._preconditioner = v, own["seed"], None
        self.steps, self.epoch = own["steps"], own["epoch"]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles make traces of their own; a scheduler's wrapper of ``step`` stays behind."""
        left: dict[str, Any] = {"_bounds": OrderedDict(), "_preconditioner": None}
        return {name: value for name, value in self.__dict__.items() if name != "step"} | left

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regularizer!r}, {self.base_optimizer!r})"


def _likeness(module: nn.Module) -> Hashable:
    """What is different after a change of the module's layers, of their modes, of the precision or the place of its
    tensors, or of what requires a gradient."""
    layers = tuple((path, id(child), child.training) for path, child in module.named_modules(remove_duplicate=False))
    parameters = tuple((id(p), p.dtype, p.device, p.shape, p.requires_grad) for p in module.parameters())
    return layers, parameters, tuple((id(buffer), buffer.dtype) for buffer in module.buffers())


class _Bound:
    """A module as it was when it was traced, with its net; its parameters are gathered in one vector, and their
    gradients are views of another."""

    def __init__(self, module: nn.Module, loss: Loss, memory_limit: int | None, layers: Layers | None):
        self.traced: Traced = trace(module, layers)
        self.loss, self.memory_limit = loss, memory_limit
        self._held = list(module.modules()), list(module.parameters()), list(module.buffers())  # their ids stay theirs
        self._momentum = _momenta(self.traced)
        _check_device(self.traced)
        size = self.traced.net.size
        self.w = np.empty(size, self.traced.dtype)
        self._gradient, self._added = np.empty(size, self.traced.dtype), np.empty(size, self.traced.dtype)
        self._w_views, self._gradient_views = self._views(self.w), self._views(self._gradient)
        self._added_views = self._views(self._added)
        self._reads_state = any(not layer.uses_batch(None) for layer in _normalisations(self.traced))
        self._objective: Objective | None = None
        self._state: dict[str, np.ndarray] = {}  # running statistics of the objective

    def _views(self, vector: np.ndarray) -> list[Tensor]:
        flat, slots = torch.from_numpy(vector), self.traced.net.slots
        return [flat[slot.offset : slot.offset + slot.size].view(slot.shape) for slot in slots]

    def objective(self, x: np.ndarray, y: np.ndarray) -> Objective:
        """f on this batch; its buffers are reused as long as the running statistics it reads are unchanged."""
        traced = self.traced
        state = traced.state() if self._reads_state else {}
        if self._objective is not None and all(np.array_equal(self._state[name], state[name]) for name in state):
            self._objective = self._objective.with_data(x, y)
            return self._objective
        settings: dict[str, Any] = {"dtype": traced.dtype, "state": state or None, "memory_limit": self.memory_limit}
        self._objective, self._state = Objective(traced.net, self.loss, x, y, **settings), state
        return self._objective

    def gather(self) -> None:
        """Copy the module's parameters into w."""
        with torch.no_grad():
            torch._foreach_copy_(self._w_views, list(self.traced.parameters))

    def scatter(self, gradient: np.ndarray) -> None:
        """Add to the gradients of the parameters that require one; where there is none yet, it is a view of one
        vector."""
        free = [i for i, parameter in enumerate(self.traced.parameters) if parameter.requires_grad]
        parameters = [self.traced.parameters[i] for i in free]
        if all(parameter.grad is None for parameter in parameters):
            self._gradient[:] = gradient
            for i, parameter in zip(free, parameters, strict=True):
                parameter.grad = self._gradient_views[i]
            return
        self._added[:] = gradient
        for i, parameter in zip(free, parameters, strict=True):
            if parameter.grad is None:
                parameter.grad = self._gradient_views[i].zero_()
            parameter.grad.add_(self._added_views[i])

    def average(self, stats: dict[str, np.ndarray]) -> None:
        """Update the running statistics with those of the batch, of the layers that use them."""
        with torch.no_grad():
            for name, found in stats.items():
                running = self.traced.buffers[name]
                running.copy_(averaged(running, torch.from_numpy(found), self._momentum[name]))
            for layer in {name.rpartition(".")[0] for name in stats} & set(self.traced.counters):
                self.traced.counters[layer].add_(1)


def _normalisations(traced: Traced) -> list[BatchNorm]:
    """The batchnorm layers in the order of their uses; one for each use."""
    return [node.layer for node in traced.net.nodes if isinstance(node.layer, BatchNorm)]


def _momenta(traced: Traced) -> dict[str, float]:
    """The weight of the batch's statistics in each running average."""
    uses = _normalisations(traced)
    for layer in uses:
        if uses.count(layer) > 1 and layer.uses_batch(None):
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
                "module.parameters(), and anew if a layer was replaced since, or set its param_groups"
            )
