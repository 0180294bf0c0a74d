"""The same steps as Descent, one by one in Python: for eigen-solvers that are not compiled into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rop.graph import Graph
from rop.inputs import check_data, check_state
from rop.layers.batchnorm import BatchNorm
from rop.layers.loss import Loss
from rop.objective import Objective
from rop.optim import Adam, Optimizer, SpectralRadius
from rop.training.compiled import COLUMNS, OnHost
from rop.training.penalty import Penalty


class RunningAverages:
    """The running statistics of every batchnorm layer, each with its own momentum; ``state`` is changed in place."""

    def __init__(self, net: Graph, state: dict[str, np.ndarray]):
        self.state = state
        self._parts = {
            net.name_of(node.layer): node.layer.momentum for node in net.nodes if isinstance(node.layer, BatchNorm)
        }

    def take_in(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Moves them towards the statistics of a batch."""
        for name, running in self.state.items():
            running += self._parts[name.rpartition(".")[0]] * (statistics[name] - running)


class Stepwise(OnHost):
    """Steps of min f(w) + μ·max(0, ρ − K) with any solver of rop.eigen; see Descent for the arguments."""

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        x: np.ndarray,
        y: Any,
        *,
        batch_size: int,
        w: np.ndarray,
        dtype: Any,
        optimizer: Optimizer,
        regularizer: SpectralRadius,
        state: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        profile: bool = False,
        device: str = "cpu",
    ):
        self.dtype, self.batch = np.dtype(dtype), batch_size
        self.x, self.y = check_data(x, self.dtype, check_finite=True), np.asarray(y)
        self.optimizer, self.regularizer, self.seed = optimizer, regularizer, seed
        self.f = Objective(net, loss, self.x[:batch_size], self.y[:batch_size], dtype=self.dtype, device=device)
        self.state = check_state(net, state, self.dtype, "Stepwise")
        self.averages = RunningAverages(net, self.state)
        self.w, self.penalty = np.array(w, self.dtype), Penalty(regularizer, net.size, self.dtype, seed)
        self.velocity = np.zeros_like(self.w)
        self.squares = np.zeros_like(self.w) if isinstance(optimizer, Adam) else None
        # where the K-FAC preconditioner in use was made: enough to make it again in a run that goes on
        self._made_at, self._made_from = np.zeros_like(self.w), np.full(batch_size, -1, np.int64)
        self._preconditioner: Any = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """As Descent.arrays."""
        named = {"w": self.w, "v": self.penalty.v, "velocity": self.velocity}
        if self.regularizer.solver == "paper_lobpcg":
            named |= {"kfac/w": self._made_at, "kfac/batch": self._made_from}
        if self.squares is not None:
            named["squares"] = self.squares
        return named | {f"state/{name}": array for name, array in self.state.items()}

    def begin(self, order: np.ndarray) -> int:
        steps = len(order) // self.batch
        self._batches = order[: steps * self.batch].reshape(steps, self.batch)
        return steps

    def run(
        self,
        first: int,
        count: int,
        *,
        rate: Any,
        mu: Any = 0.0,
        tol: Any = 0.0,
        before: int = 0,
        stop: Callable[[], bool] | None = None,
    ) -> np.ndarray:
        """As Descent.run."""
        reports: list[list[float]] = []
        batches = self._batches[first : first + count]
        given = np.broadcast_arrays(np.zeros(len(batches)), rate, mu, tol)[1:]
        for i, batch in enumerate(batches):
            report = self._step(batch, before + first + i, *(float(one[i]) for one in given))
            reports.append(report)
            if not (np.isfinite(report[:3:2]).all() and self.finite()) or (stop is not None and stop()):
                break
        return np.array(reports).reshape(-1, len(COLUMNS))

    def _step(self, batch: np.ndarray, number: int, rate: float, mu: float, tol: float) -> list[float]:
        preconditioner = self._refreshed(batch, number) if mu and self.regularizer.solver == "paper_lobpcg" else None
        p = self.f.with_data(self.x[batch], self.y[batch]).at(self.w)
        direction, found, added = p.grad, None, None
        if mu:
            found, added = self.penalty.at(p, number, mu=mu, tol=tol, rate=rate, preconditioner=preconditioner)
            direction += 0.0 if added is None else added
        report = [
            p.loss,
            float("nan"),
            found.rho if found else 0.0,
            float(found.residuals[0]) if found else 0.0,
            float(found.hvps) if found else 0.0,
            float(added is not None),
            0.0,
            0.0,
            0.0,
            0.0,
        ]
        if np.isfinite(report[:3:2]).all():
            with np.errstate(over="ignore", invalid="ignore"):  # the trainer looks whether the parameters are finite
                self._update(direction.astype(self.dtype), rate, number + 1)
            self.averages.take_in(p.batch_stats)
        return report

    def _refreshed(self, batch: np.ndarray, number: int) -> Any:
        """K-FAC's T of this step, or of one of the last ``refresh`` steps."""
        from rop.kfac import kfac

        if number % self.regularizer.refresh == 0 or self._made_from[0] < 0:
            self._made_at[:], self._made_from[:], self._preconditioner = self.w, batch, None
        if self._preconditioner is None:
            old = self._made_from
            self._preconditioner = kfac(self.f.with_data(self.x[old], self.y[old]).at(self._made_at), seed=self.seed)
        return self._preconditioner

    def _update(self, direction: np.ndarray, rate: float, t: int) -> None:
        o = self.optimizer
        direction = direction + o.weight_decay * self.w
        if isinstance(o, Adam):
            assert self.squares is not None
            self.velocity[:] = o.betas[0] * self.velocity + (1 - o.betas[0]) * direction
            self.squares[:] = o.betas[1] * self.squares + (1 - o.betas[1]) * direction**2
            root = np.sqrt(self.squares / (1 - o.betas[1] ** t)) + o.eps
            self.w -= (rate / (1 - o.betas[0] ** t)) * self.velocity / root
            return
        self.velocity[:] = o.momentum * self.velocity + direction
        self.w -= rate * (direction + o.momentum * self.velocity if o.nesterov else self.velocity)
