"""Minibatch descent on a GPU: the steps of rop.training.compiled, with the data set and all vectors in its memory.

A step launches the kernels of its passes and of its update; what comes to the host are a few numbers by which it is
decided how to go on, and the statistics of batchnorm layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rop.arguments import check_dtype, check_int
from rop.devices.batch import Data
from rop.devices.cuda.vectors import Vector, device_array
from rop.devices.cuda.workspace import CudaWorkspace
from rop.devices.lock import engine_lock
from rop.graph import Graph
from rop.inputs import check_data, check_state
from rop.kernels.cpu import training as compiled
from rop.kernels.cuda import training as updates
from rop.layers.loss import Loss
from rop.optim import SGD, Adam, Optimizer, SpectralRadius
from rop.training.compiled import COLUMNS, checked_targets, settings_of
from rop.training.stepwise import RunningAverages

VALUE, FIRST, SECOND = (0, 0), (1, 0), (2, 0)  # (order, direction) of the passes of a step
EVERYTHING = 1 << 62  # bytes that may be kept: a step needs all orders of its batch again


class CudaDescent:
    """Steps of min f(w) + μ·max(0, ρ − K) on a GPU; see Descent for the arguments."""

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        x: np.ndarray,
        y: Any,
        *,
        batch_size: int,
        w: np.ndarray,
        dtype: Any = np.float32,
        optimizer: Optimizer | None = None,
        regularizer: SpectralRadius | None = None,
        state: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        profile: bool = False,
    ):
        self.net, self.dtype = net, np.dtype(check_dtype("Descent", dtype))
        self.batch, self.size, self.seed = check_int("Descent", "batch_size", batch_size), net.size, seed
        x = check_data(x, self.dtype, check_finite=True)
        targets = checked_targets(net, loss, x, y, self.batch)
        self._space = space = CudaWorkspace.of(
            net, x.shape[1:], True, loss, self.dtype, self.batch, EVERYTHING, samples=len(x)
        )
        self._shares = targets.shares if loss.reduction == "mean" else None
        self._optimizer = optimizer or SGD()
        self._settings = settings_of(self._optimizer, regularizer)
        self._averages = RunningAverages(net, check_state(net, state, self.dtype, "Descent"))
        self._data = Data(x.reshape(len(x), -1), targets, 1.0, np.zeros(space.tiles * space.lanes, np.int64))
        self._profiled = profile
        self._allocate(w)

    def _allocate(self, w: np.ndarray) -> None:
        o, n = self._optimizer, self.size
        random = np.random.default_rng(self.seed).standard_normal(n)
        self._vectors: dict[str, Vector] = {
            "w": self._space.array("w"),
            "v": self._space.array("v"),
            "u": self._space.result(1),
        }
        if isinstance(o, Adam) or o.momentum or o.weight_decay:
            self._vectors["velocity"] = device_array(n, self.dtype)
        if isinstance(o, Adam):
            self._vectors["squares"] = device_array(n, self.dtype)
        start = {"w": w, "v": random / np.linalg.norm(random)}
        for name, vector in self._vectors.items():
            vector.copy_to_device(np.asarray(start.get(name, np.zeros(n)), self.dtype))
        self._marked = {name: device_array(n, self.dtype) for name in self._vectors}

    # ----------------------------------------------------------------------------------------------- what a run carries
    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """As Descent.arrays, copied to the host."""
        return {name: vector.copy_to_host() for name, vector in self._vectors.items()} | {
            f"state/{name}": array.copy() for name, array in self._averages.state.items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts back what ``arrays`` gave, into the GPU's memory."""
        for name, vector in self._vectors.items():
            vector.copy_to_device(np.ascontiguousarray(arrays[name], self.dtype))
        for name, running in self._averages.state.items():
            running[...] = arrays[f"state/{name}"]
        self._space.forget()

    def mark(self) -> None:
        """Keeps a copy of what they are now, on the GPU."""
        for name, vector in self._vectors.items():
            self._space.vectors.scale(self._marked[name], vector, 1.0)
        self._marked_state = self.state

    def back(self) -> None:
        """Returns to the last mark."""
        for name, vector in self._vectors.items():
            self._space.vectors.scale(vector, self._marked[name], 1.0)
        for name, running in self._averages.state.items():
            running[...] = self._marked_state[name]
        self._space.forget()

    def finite(self) -> bool:
        """Whether the parameters and running statistics are finite."""
        return self._space.vectors.finite(self._vectors["w"]) and all(
            np.isfinite(array).all() for array in self._averages.state.values()
        )

    @property
    def w(self) -> np.ndarray:
        """The parameters (a copy)."""
        return self._vectors["w"].copy_to_host()

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The running statistics (copies)."""
        return {name: array.copy() for name, array in self._averages.state.items()}

    # ------------------------------------------------------------------------------------------------------------ steps
    def begin(self, order: np.ndarray) -> int:
        """As Descent.begin."""
        steps = len(order) // self.batch
        self._batches = np.asarray(order[: steps * self.batch], np.int64).reshape(steps, self.batch)
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
        """As Descent.run; ``stop`` is asked after every step."""
        batches = self._batches[first : first + count]
        given = np.stack([np.broadcast_to(np.asarray(one, float), len(batches)) for one in (rate, mu, tol)], axis=1)
        reports = []
        with engine_lock():
            self._space.bind(self._data)
            for i, (rows, step) in enumerate(zip(batches, given, strict=True)):
                reports.append(self._step(rows, before + first + i, step))
                if not np.isfinite([reports[-1][compiled.LOSS], reports[-1][compiled.RHO]]).all():
                    break
                if stop is not None and stop():
                    break
        return np.array(reports).reshape(-1, len(COLUMNS))

    def _step(self, rows: np.ndarray, number: int, step: np.ndarray) -> np.ndarray:
        """One step on some samples; ``step`` has its rate, μ and tolerance."""
        report, now = np.zeros(compiled.REPORT), time.perf_counter_ns()
        self._select(rows)
        self._space.run((VALUE,), (0,))
        report[compiled.LOSS], report[compiled.CORRECT] = self._space.energy(0), self._space.correct()
        statistics = self._space.batch_statistics()
        now = self._lap(report, compiled.GRADIENT_TIME, now)
        factor = self._penalty(report, number, step, now) if step[compiled.MU] else 0.0
        if math.isfinite(report[compiled.LOSS]) and math.isfinite(report[compiled.RHO]):
            now = time.perf_counter_ns()
            with np.errstate(over="ignore"):  # the trainer looks whether the parameters are finite
                self._update(step[compiled.RATE], factor, number + 1)
            self._averages.take_in(statistics)
            self._lap(report, compiled.REST_TIME, now)
        return report

    def _select(self, rows: np.ndarray) -> None:
        samples = np.full(self._space.tiles * self._space.lanes, ~rows[0], np.int64)
        samples[: self.batch] = rows
        total = float(self._shares[rows].sum()) if self._shares is not None else 1.0
        self._space.select(samples, 1 / total if total > 0 else 0.0)

    def _lap(self, report: np.ndarray, part: int, before: int) -> int:
        """Adds the time since ``before`` to a part of the profile."""
        now = time.perf_counter_ns()
        if self._profiled:
            report[part] += now - before
        return now

    # --------------------------------------------------------------------------------------------------------- penalty
    def _penalty(self, report: np.ndarray, number: int, step: np.ndarray, now: int) -> float:
        """Dominant eigenvalue and, where it is above K, its gradient; returns the factor of the order-2 result."""
        settings = self._settings
        self._start(number)
        value = self._power(report, step[compiled.TOLERANCE])
        rho = report[compiled.RHO] = abs(value)
        now = self._lap(report, compiled.POWER_TIME, now)
        sensible = settings[compiled.SENSE] == 0 or report[compiled.RESIDUAL] <= settings[compiled.SENSE] * rho
        if not (rho > settings[compiled.TARGET] and sensible and math.isfinite(value)):
            return 0.0
        (r2,) = self._space.run((SECOND,), (0,))
        factor = 2.0 * math.copysign(1.0, value)  # 2: order 2 is a Taylor coefficient
        clip, limit = settings[compiled.CLIP], settings[compiled.LIMIT]
        if clip > 0 or limit > 0:
            length = 2.0 * math.sqrt(self._space.vectors.moments(r2, r2)[0])
            factor *= compiled.shortening(clip, limit, step[compiled.RATE] * step[compiled.MU], rho, length)
        report[compiled.PENALTY] = 1.0
        self._lap(report, compiled.R2_TIME, now)
        return factor * float(step[compiled.MU])

    def _start(self, number: int) -> None:
        """Where power iteration starts: the vector to which the step before would have gone on, or a random one."""
        v, u = self._vectors["v"], self._vectors["u"]
        if not self._settings[compiled.WARM]:
            random = np.random.default_rng([self.seed, number]).standard_normal(self.size)
            v.copy_to_device((random / np.linalg.norm(random)).astype(self.dtype))
            return
        uu, _, _ = self._space.vectors.moments(u, v)
        if 0 < uu < math.inf:
            self._space.vectors.scale(v, u, 1 / math.sqrt(uu))

    def _power(self, report: np.ndarray, tolerance: float) -> float:
        """Power iteration from the v in place; leaves v with the product u = H v that belongs to it, and returns λ."""
        v, u, sums = self._vectors["v"], self._vectors["u"], self._space.vectors
        value = uu = 0.0
        for iteration in range(int(self._settings[compiled.ITERATIONS])):
            if iteration > 0:
                sums.scale(v, u, 1 / math.sqrt(uu))
            self._space.run((FIRST,), (0,))
            before = value
            uu, uv, vv = sums.moments(u, v)
            value = uv / vv
            report[compiled.RESIDUAL] = sums.distance(u, v, value) / math.sqrt(vv)
            report[compiled.PRODUCTS] = iteration + 1
            if (
                not math.isfinite(value)
                or uu == 0
                or compiled.is_enough(
                    self._settings, tolerance, value, before, report[compiled.RESIDUAL], iteration + 1
                )
            ):
                break
        return value

    # ---------------------------------------------------------------------------------------------------------- update
    def _update(self, rate: float, factor: float, t: int) -> None:
        """One step of the optimizer along g + factor·h; t counts steps from 1."""
        o, kind = self._optimizer, self.dtype.type
        common: dict[str, Any] = {
            "w": self._vectors["w"],
            "g": self._space.result(0),
            "h": self._space.result(2),
            "factor": factor,
        }
        if isinstance(o, Adam):
            updates.adam(kind).bind(
                **common,
                mean=self._vectors["velocity"],
                squares=self._vectors["squares"],
                rate=rate / (1 - o.betas[0] ** t),
                beta1=o.betas[0],
                beta2=o.betas[1],
                eps=o.eps,
                decay=o.weight_decay,
                unbiased=1 / math.sqrt(1 - o.betas[1] ** t),
            )()
        elif "velocity" in self._vectors:
            updates.sgd(kind).bind(
                **common,
                velocity=self._vectors["velocity"],
                rate=rate,
                momentum=o.momentum,
                decay=o.weight_decay,
                nesterov=o.nesterov,
            )()
        else:
            updates.plain(kind).bind(**common, rate=rate)()
        self._space.forget()
