"""Minibatch descent in compiled code: the loop of Algorithm 1 over the steps of an epoch.

``Descent`` owns the parameters while it runs. Python is entered once per call, not once per step; long calls can be
interrupted between steps.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from rop.errors import ArgumentError
from rop.graph import Graph
from rop.kernels.cpu import descent as compiled
from rop.layers._arguments import check_dtype, check_int
from rop.layers.loss import Loss
from rop.lowering import lower
from rop.program import ORDERS
from rop.workspace import DEFAULT_MEMORY, Data, Workspace, engine_lock, in_home_process


class Descent:
    """w ← w − rate·(∇f + μ·1[ρ > K]·∇ρ), step by step over minibatches of a data set.

    Args:
        net, loss, x, y: as for Objective; x and y are the whole data set.
        batch_size: samples per step.
        w: where to start (n,).
        dtype: precision.
        mu, K: the penalty μ·max(0, ρ − K); with mu = 0 neither H·v nor R² is computed.
        iterations: most power iterations per step.
        tol: they stop at a residual ‖Hv − λv‖ ≤ tol·|λ|; 0 always does all of them.
        momentum, weight_decay: of the update.
        seed: of the first direction v; later steps start from the last one.

    >>> import numpy as np, rop
    >>> from rop.descent import Descent
    >>> net = rop.Sequential(rop.Linear(2, 2))
    >>> x, y = np.eye(2, dtype="f4").repeat(8, 0), np.array([0, 1]).repeat(8)
    >>> d = Descent(net, rop.CrossEntropy(), x, y, batch_size=4, w=net.init())
    >>> report = d.epoch(np.random.default_rng(0).permutation(16), rate=1.0)
    >>> report.shape, bool(report[-1, 0] < report[0, 0])
    ((4, 4), True)
    """

    def __init__(self, net: Graph, loss: Loss, x: np.ndarray, y: Any, *, batch_size: int, w: np.ndarray,
                 dtype: Any = np.float32, mu: float = 0.0, K: float = 0.0,
                 iterations: int = 10, tol: float = 0.0, momentum: float = 0.0, weight_decay: float = 0.0,
                 seed: int = 0):
        from rop.engine import check_data
        self.dtype = np.dtype(check_dtype("Descent", dtype))
        self.batch = check_int("Descent", "batch_size", batch_size)
        x = check_data(x, self.dtype, check_finite=True)
        if len(x) < self.batch:
            raise ArgumentError(f"Descent: expected at least one batch of {self.batch} samples, got {len(x)}")
        plan = lower(net, x.shape[1:], True, loss, self.dtype)
        targets = loss.targets(y, len(x), plan.shapes[net.output], self.dtype)
        self._space = Workspace(plan, self.batch, DEFAULT_MEMORY)
        self._data = Data(x.reshape(len(x), -1), targets, 1.0, np.zeros(0, np.int64))
        self._mean = loss.reduction == "mean"
        self._momentum = np.zeros(net.size + 16, self.dtype) if momentum or mu or weight_decay else None
        self._settings = np.array([0.0, momentum, weight_decay, mu, K, tol, iterations, 1.0])
        direction = np.random.default_rng(seed).standard_normal(net.size)
        self._space.ensure_direction(0)
        self._space.array("v0")[:net.size] = direction / np.linalg.norm(direction)
        self._space.array("w")[:net.size] = w
        self.size = net.size

    @property
    def w(self) -> np.ndarray:
        """The parameters (a copy)."""
        return self._space.array("w")[:self.size].copy()

    @property
    def v(self) -> np.ndarray:
        """The current direction (a copy)."""
        return self._space.array("v0")[:self.size].copy()

    def epoch(self, order: np.ndarray, rate: float) -> np.ndarray:
        """One pass over samples in the given order, the last partial batch left out. Returns, for each step, loss, ρ,
        residual and the number of H·v products."""
        space, steps = self._space, len(order) // self.batch
        samples = np.full((steps, space.tiles * space.lanes), ~np.int64(order[0]), np.int64)
        samples[:, :self.batch] = order[:steps * self.batch].reshape(steps, self.batch)
        self._settings[compiled.RATE] = rate
        reports = np.zeros((steps, compiled.REPORT))
        with engine_lock():
            descriptor = self._descriptor(np.ascontiguousarray(samples).reshape(-1))
            self._run(descriptor, reports, steps)
        return reports

    def _descriptor(self, samples: np.ndarray) -> np.ndarray:
        space = self._space
        data = Data(self._data.x, self._data.targets, 1.0, samples)
        space.bind(data)
        space.array("tile_count")[0] = space.tiles
        assert data.targets is not None
        passes = [space.bound(((k, 0),), (0,)).bound for k in ORDERS]
        words = [word for bound in passes for word in bound.address]
        at = space.address
        words += [space.tiles, space.cancel_address, at("w"), at("v0"), at("out0"), at("out1"), at("out2"),
                  at("scale"), int(data.targets.weight.ctypes.data), int(samples.ctypes.data), space.lanes,
                  space.plan.output.pixels, int(self._mean), self.size, at("energy0"),
                  0 if self._momentum is None else int(self._momentum.ctypes.data)]
        self._kept = data
        self._work = len(passes[0].table) * space.stride * space.tiles
        return np.array(words, np.int64)

    def _run(self, descriptor: np.ndarray, reports: np.ndarray, steps: int) -> None:
        run = compiled.steps(self.dtype, in_home_process())
        passes = 1 if self._settings[compiled.MU] == 0 else 2 + self._settings[compiled.ITERATIONS]
        self._space.call(run, int(descriptor.ctypes.data), int(self._settings.ctypes.data),
                         int(reports.ctypes.data), 0, steps, work=float(self._work * passes * steps))
        self._space.forget()
