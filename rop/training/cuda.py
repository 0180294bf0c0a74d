"""Minibatch descent on a GPU: the steps of rop.training.compiled, with the data set and all vectors in its memory.

A step launches the kernels of its passes and of its update; only the few numbers that decide how the step goes on, and
the statistics of batchnorm layers, are copied to the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from rop.devices.batch import Data
from rop.devices.cuda.vectors import device_array
from rop.devices.cuda.workspace import CudaWorkspace
from rop.devices.lock import engine_lock
from rop.devices.workspace import Vector
from rop.kernels import rules
from rop.kernels.cuda import training as updates
from rop.kernels.rules import Given, Report, Setting
from rop.optim import Adam
from rop.optim.start import first_direction, start_of
from rop.training.averages import RunningAverages
from rop.training.report import is_finite
from rop.training.settings import compiled_settings
from rop.training.steps import OneByOne

VALUE, FIRST, SECOND = (0, 0), (1, 0), (2, 0)  # (order, direction) of the passes of a step
EVERYTHING = 1 << 62  # bytes that may be kept: a step needs all orders of its batch again


class CudaSteps(OneByOne):
    """Steps of min f(w) + μ·max(0, ρ − K) on a GPU; see Steps for the arguments."""

    def _prepare(self, w: np.ndarray) -> None:
        x, targets = self._x, self._targets
        self._settings = compiled_settings(type(self).__name__, self.optimizer, self.regularizer, "cuda")
        self._space = space = CudaWorkspace.of(
            self.net, x.shape[1:], True, self.loss, self.dtype, self.batch, EVERYTHING, samples=len(x)
        )
        self._shares = targets.shares if self.loss.reduction != "sum" else None
        self._averages = RunningAverages(self.net, self._state)
        self._data = Data(x.reshape(len(x), -1), targets, 1.0, np.zeros(space.tiles * space.lanes, np.int64))
        self._allocate(w)

    def _allocate(self, w: np.ndarray) -> None:
        o, n = self.optimizer, self.size
        self._vectors: dict[str, Vector] = {
            "w": self._space.array("w"),
            "v": self._space.array("v0"),
            "u": self._space.result(1),
        }
        if isinstance(o, Adam) or o.momentum or o.weight_decay:
            self._vectors["velocity"] = device_array(n, self.dtype)
        if isinstance(o, Adam):
            self._vectors["squares"] = device_array(n, self.dtype)
        start = {"w": w, "v": first_direction(n, self.dtype, self.seed, start_of(self.regularizer))}
        for name, vector in self._vectors.items():
            vector.copy_to_device(np.asarray(start.get(name, np.zeros(n)), self.dtype))
        self._marked = {name: device_array(n, self.dtype) for name in self._vectors}

    # ---------------------------------------------------------------------------------------------- the state of a run
    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See Steps.arrays; these are copies."""
        return {name: vector.copy_to_host() for name, vector in self._vectors.items()} | {
            f"state/{name}": array.copy() for name, array in self._state.items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts back what ``arrays`` gave, into the GPU's memory."""
        for name, vector in self._vectors.items():
            vector.copy_to_device(np.ascontiguousarray(arrays[name], self.dtype))
        for name, running in self._state.items():
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
        for name, running in self._state.items():
            running[...] = self._marked_state[name]
        self._space.forget()

    def finite(self) -> bool:
        """Whether the parameters and running statistics are finite."""
        return self._space.vectors.finite(self._vectors["w"]) and all(
            np.isfinite(array).all() for array in self._state.values()
        )

    @property
    def w(self) -> np.ndarray:
        """The parameters (a copy)."""
        return self._vectors["w"].copy_to_host()

    # ------------------------------------------------------------------------------------------------------------ steps
    @contextmanager
    def _running(self) -> Iterator[None]:
        with engine_lock():
            self._space.bind(self._data)
            yield

    def _step(self, rows: np.ndarray, number: int, given: np.ndarray, report: np.ndarray) -> None:
        now = time.perf_counter_ns()
        self._select(rows)
        self._space.run((VALUE,), (0,))
        report[Report.LOSS], report[Report.CORRECT] = self._space.energy(0), self._space.correct()
        statistics = self._space.batch_statistics()
        now = self._lap(report, Report.GRADIENT_NS, now)
        factor = self._penalty(report, number, given, now) if given[Given.MU] else 0.0
        if is_finite(report):
            now = time.perf_counter_ns()
            with np.errstate(over="ignore"):  # the trainer checks that the parameters are finite
                self._update(given[Given.RATE], factor, number + 1)
            self._averages.take_in(statistics)
            self._lap(report, Report.REST_NS, now)

    def _select(self, rows: np.ndarray) -> None:
        samples = np.full(self._space.tiles * self._space.lanes, ~rows[0], np.int64)
        samples[: len(rows)] = rows
        total = float(self._shares[rows].sum()) if self._shares is not None else 1.0
        self._space.select(samples, 1 / total if total > 0 else 0.0)

    def _lap(self, report: np.ndarray, part: int, before: int) -> int:
        """Adds the time since ``before`` to a part of the profile."""
        now = time.perf_counter_ns()
        if self._profiled:
            report[part] += now - before
        return now

    # --------------------------------------------------------------------------------------------------------- penalty
    def _penalty(self, report: np.ndarray, number: int, given: np.ndarray, now: int) -> float:
        """Dominant eigenvalue and, where it is above K, its gradient; returns the factor of the order-2 result."""
        settings, rate, mu = self._settings, given[Given.RATE], given[Given.MU]
        self._start(number)
        value = self._power(report, given[Given.TOLERANCE])
        rho = report[Report.RHO] = abs(value)
        now = self._lap(report, Report.POWER_NS, now)
        if not rules.takes_part(rho, settings[Setting.TARGET], report[Report.RESIDUAL], settings[Setting.SENSE]):
            return 0.0
        (r2,) = self._space.run((SECOND,), (0,))
        sign = math.copysign(1.0, value) if settings[Setting.SIGNED] else 1.0
        factor = 2.0 * sign  # 2: order 2 is a Taylor coefficient
        clip, limit = settings[Setting.CLIP], settings[Setting.LIMIT]
        if clip > 0 or limit > 0:
            length = 2.0 * math.sqrt(self._space.vectors.moments(r2, r2)[0])
            factor *= rules.shortening(clip, limit, rate * mu, rho, length)
        report[Report.PENALTY] = 1.0
        self._lap(report, Report.R2_NS, now)
        return factor * float(mu)

    def _start(self, number: int) -> None:
        """Where power iteration starts: the vector to which the step before would have gone on, or a new one."""
        v, u = self._vectors["v"], self._vectors["u"]
        if not self._settings[Setting.WARM]:
            start = start_of(self.regularizer)
            v.copy_to_device(first_direction(self.size, self.dtype, [self.seed, number], start))
            return
        uu, _, _ = self._space.vectors.moments(u, v)
        if 0 < uu < math.inf:
            self._space.vectors.scale(v, u, 1 / math.sqrt(uu))

    def _power(self, report: np.ndarray, tolerance: float) -> float:
        """Power iteration from the v in place; leaves v with the product u = H v that belongs to it, and returns λ."""
        v, u, sums = self._vectors["v"], self._vectors["u"], self._space.vectors
        rule = int(self._settings[Setting.STOP])
        value = residual = uu = 0.0
        for iteration in range(int(self._settings[Setting.ITERATIONS])):
            if iteration > 0:
                sums.scale(v, u, 1 / math.sqrt(uu))
            self._space.run((FIRST,), (0,))
            before, residual_before = value, residual
            uu, uv, vv = sums.moments(u, v)
            value = uv / vv
            residual = report[Report.RESIDUAL] = sums.distance(u, v, value) / math.sqrt(vv)
            report[Report.HVPS] = iteration + 1
            if not math.isfinite(value) or uu == 0:
                break
            if rules.is_enough(rule, tolerance, value, residual, before, residual_before, iteration + 1):
                break
        return value

    # ---------------------------------------------------------------------------------------------------------- update
    def _update(self, rate: float, factor: float, t: int) -> None:
        """One step of the optimizer along g + factor·h; t counts steps from 1."""
        o, kind = self.optimizer, self.dtype.type
        common: dict[str, Vector | float] = {
            "w": self._vectors["w"],
            "g": self._space.result(0),
            "h": self._space.result(2),
            "factor": factor,
        }
        if isinstance(o, Adam):
            rate, scale = rules.unbiased(rate, *o.betas, t)
            updates.adam(kind).bind(
                **common,
                mean=self._vectors["velocity"],
                squares=self._vectors["squares"],
                rate=rate,
                beta1=o.betas[0],
                beta2=o.betas[1],
                eps=o.eps,
                decay=o.weight_decay,
                unbiased=scale,
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
