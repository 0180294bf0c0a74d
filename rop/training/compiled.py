"""Minibatch descent in compiled code: the steps of Algorithm 1 over the batches of an epoch.

Python is entered once per call, not once per step.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import time
from collections.abc import Callable, Mapping

import numba
import numpy as np

from rop.devices.batch import Data
from rop.devices.cpu.execution import CANCELLABLE_WORK
from rop.devices.cpu.threads import Pace
from rop.devices.cpu.vectors import aligned
from rop.devices.cpu.workspace import CpuWorkspace
from rop.devices.lock import engine_lock, in_home_process
from rop.kernels.cpu import training as compiled
from rop.kernels.rules import Given, Setting
from rop.lowering import ORDERS
from rop.optim import Adam, Problem
from rop.optim.start import first_direction, start_of
from rop.training.natural import NaturalDirection
from rop.training.report import blank
from rop.training.settings import compiled_settings, innermost_rule, natural_part
from rop.training.steps import Steps

USUAL_ITERATIONS = 10  # of power iteration that starts from the eigenvector of the step before
SHARE = 0.005  # seconds of steps in one call, which runs either with threads or without


class CompiledSteps(Steps):
    """w ← w − rate·(∇f + μ·1[ρ > K]·∇ρ), step by step over minibatches of a data set, with SGD or Adam, alone or
    inside of SAM and SWA, by entropy-SGD or by K-FAC. The solver of a penalty must be "power" or "track". See Steps for
    the arguments. Factors of K-FAC are taken in and decomposed in Python, between two calls of compiled code.

    >>> import numpy as np, rop
    >>> from rop.training.report import Report
    >>> net = rop.Sequential(rop.Linear(2, 2))
    >>> x, y = np.eye(2, dtype="f4").repeat(8, 0), np.array([0, 1]).repeat(8)
    >>> d = CompiledSteps(net, rop.CrossEntropy(), x, y, batch_size=4, w=net.init())
    >>> d.begin(np.random.default_rng(0).permutation(16))
    4
    >>> reports = d.run(0, 4, rate=1.0)
    >>> reports.shape, bool(reports[-1, Report.LOSS] < reports[0, Report.LOSS])
    ((4, 10), True)
    """

    def _prepare(self, w: np.ndarray) -> None:
        self._settings = compiled_settings(type(self).__name__, self.optimizer, self.regularizer)
        shape = self._x.shape[1:]
        self._space = CpuWorkspace.of(
            self.net,
            shape,
            True,
            self.loss,
            self.dtype,
            self.batch,
            None,
            one_chunk=True,
            layout=self._layout,
            winograd=self._winograd,
        )
        self._data = Data(self._x.reshape(len(self._x), -1), self._targets, 1.0, np.zeros(0, np.int64))
        self._shares = self._targets.shares if self.loss.reduction != "sum" else None
        self._pace: Pace | None = None
        self._share = 1
        self._clock = _clock() if self._profiled else 0
        self._allocate(w)

    def _allocate(self, w: np.ndarray) -> None:
        space, n, optimizer = self._space, self.size, innermost_rule(self.optimizer)
        space.ensure_direction(0)
        for k in ORDERS:
            space.reserve_results(((k, 0),), (0,))
        space.array("v0")[:n] = first_direction(n, self.dtype, self.seed, start_of(self.regularizer))
        space.array("w")[:n] = w
        self._before = aligned(n, self.dtype)  # v as it was when the current step began
        self._velocity = self._squares = None
        if isinstance(optimizer, Adam):
            self._velocity, self._squares = aligned(n, self.dtype), aligned(n, self.dtype)
        elif optimizer.momentum or optimizer.weight_decay:
            self._velocity = aligned(n, self.dtype)
        inner = bool(self._settings[Setting.INNER_STEPS])
        self._held = aligned(n, self.dtype) if self._settings[Setting.RADIUS] or inner else None
        self._mean_point = aligned(n, self.dtype) if inner else None
        own = ("before", "velocity", "squares", "held", "mean point")
        arrays = (self._before, self._velocity, self._squares, self._held, self._mean_point)
        for name, array in zip(own, arrays, strict=True):
            if array is not None:
                space.memory.watch(name, array)
        started = self.optimizer.start(Problem(self.net, n, self.dtype, self.batch, self.seed))
        self._memory = {name: array for name, array in started.items() if name not in own}
        method = natural_part(self.optimizer)
        self._natural = None if method is None else NaturalDirection(method, self.net, space, self._memory)
        self._describe_normalisations()

    def _describe_normalisations(self) -> None:
        """The rows of the descriptor for batchnorm layers: see NORMALISATIONS in rop/kernels/cpu/training.py."""
        space = self._space
        self._next_state = {name: array.copy() for name, array in self._state.items()}
        layers = [(one, self.net.name_of(one.operation.layer)) for one in space.lowered.normalisations]
        rows = [
            [
                space.memory.address("channels0") + one.table_at[0] * self.dtype.itemsize,
                one.operation.channels,
                *(
                    state[f"{name}.{what}"].ctypes.data
                    for state in (self._state, self._next_state)
                    for what in ("running_mean", "running_var")
                ),
            ]
            for one, name in layers
        ]
        self._normalisations = np.array(rows, np.int64).reshape(-1, compiled.ROW)
        self._averaging = np.array([one.operation.layer.momentum for one, _ in layers], np.float64)

    # ----------------------------------------------------------------------------------------------- what a run carries
    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See Steps.arrays; these are views. A "u" of zeros says that there is none."""
        named = {
            "w": self._space.array("w")[: self.size],
            "v": self._space.array("v0")[: self.size],
            "u": self._space.array("out1")[: self.size],
            "velocity": self._velocity,
            "squares": self._squares,
        }
        state = {f"state/{name}": array for name, array in self._state.items()}
        return {name: array for name, array in named.items() if array is not None} | self._memory | state

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See Steps.restore."""
        super().restore(arrays)
        if self._natural is not None:
            self._natural.load()

    # ------------------------------------------------------------------------------------------------------------ steps
    def _arrange(self, batches: np.ndarray) -> None:
        space = self._space
        padding = ~batches.flat[0] if batches.size else 0  # a sample that does not count
        samples = np.full((len(batches) + 1, space.tiles * space.lanes), padding, np.int64)  # the last one is spare
        samples[:-1, : self.batch] = np.where(batches < 0, padding, batches)
        self._samples, self._reports, self._batches = samples.reshape(-1), blank(len(batches)), batches
        with engine_lock():
            self._descriptor = self._describe()
        given = self._descriptor, self._settings, self._given, self._reports
        self._addresses = tuple(int(array.ctypes.data) for array in given)

    def _run(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> np.ndarray:
        done, part, whole = 0, 0, True
        while done < count and whole:
            step = first + done
            prepared = self._prepare_direction(step, before)
            part = count - done if self._natural is None else self._natural.steps(before + step, count - done)
            came, whole = self._run_part(step, part, before, stop)
            done += came
            if prepared and not came:
                prepared.undo()
            if came < part:
                break
        if not whole:  # cancelled in the middle of a step, which will start again
            self.arrays["v"][:], self.arrays["u"][:] = self._before, 0
        failed = whole and done < count
        return self._reports[first : first + done + failed].copy()

    def _prepare_direction(self, step: int, before: int) -> NaturalDirection | None:
        """Before a step of K-FAC that takes factors in or decomposes them, does so; returns what has changed then."""
        natural = self._natural
        if natural is None or not natural.is_due(before + step):
            return None
        w, rows = self._space.array("w")[: self.size], self._batches[step]
        if not np.isfinite(w).all():
            return None
        rows = rows[rows >= 0]
        point = self._first_batch.with_checked(self._x[rows], self._targets.of(rows)).at(w)
        if not np.isfinite(point.loss):  # the step will not be made
            return None
        natural.prepare(point, before + step, self.seed)
        return natural

    def _run_part(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> tuple[int, bool]:
        """Makes steps in compiled code; returns how many were made, and False if one was cancelled."""
        long = self._work >= CANCELLABLE_WORK  # else a request to stop need not wait long
        if not long and self._work_of_step(int(self._settings[Setting.ITERATIONS])) >= CANCELLABLE_WORK:
            long = bool(self._given[first : first + count, Given.MU].any())
        with engine_lock():
            self._space.bind(self._epoch_data)
            self._space.array("tile_count")[0] = self._space.tiles
            if long:
                done, whole = self._run_long(first, count, before, stop)
            else:
                done, whole = self._run_at_best_pace(first, count, before), True
            self._space.forget()
            self._space.execution.check_guards(self._passes, (first + max(done - 1, 0)) * self._space.tiles)
        return done, whole

    def _call(self, first: int, count: int, before: int) -> int:
        run = compiled.steps(self.dtype, in_home_process())
        return run(*self._addresses, first, count, before + first)

    def _run_long(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> tuple[int, bool]:
        done = [0]

        def call() -> None:
            done[0] = self._call(first, count, before)

        whole = self._space.execution.call_cancellable(call, stop or (lambda: False))
        return done[0], whole

    def _work_of_step(self, iterations: int) -> float:
        """About how much a step has to do, with so many products of the penalty."""
        return float(self._work * (2 + iterations))

    def _run_at_best_pace(self, first: int, count: int, before: int) -> int:
        """Runs the steps with threads while these are faster, which is tried again every few milliseconds."""
        most, done = numba.get_num_threads(), 0
        usual = min(USUAL_ITERATIONS, int(self._settings[Setting.ITERATIONS]))
        pace = self._pace = self._pace or Pace(self._work_of_step(usual))
        threads = most
        try:
            while done < count:
                share = min(count - done, self._share)
                parallel = most > 1 and pace.parallel()
                if threads != (most if parallel else 1):  # to say so takes a microsecond
                    threads = most if parallel else 1
                    numba.set_num_threads(threads)
                start = time.perf_counter()
                came = self._call(first + done, share, before)
                seconds = (time.perf_counter() - start) / share
                pace.measured(parallel, seconds)
                self._share = max(1, int(SHARE / seconds))
                done += came
                if came < share:
                    break
        finally:
            if threads != most:
                numba.set_num_threads(most)
        return done

    def _describe(self) -> np.ndarray:
        space, at = self._space, self._space.memory.address
        targets = self._data.targets
        assert targets is not None
        data = self._epoch_data = Data(self._data.x, targets, 1.0, self._samples)
        space.bind(data)
        passes = self._passes = [space.bound(((k, 0),), (0,)).bound for k in ORDERS]
        natural = self._natural
        if natural is not None:
            passes.append(natural.bound)
        output, labels = space.plan.output, targets.labels
        shown = labels is not None and output.pixels == 1

        def address(array: np.ndarray | None) -> int:
            return 0 if array is None else int(array.ctypes.data)

        words = {
            compiled.TILES: space.tiles,
            compiled.LANES: space.lanes,
            compiled.ASKED: space.execution.asked_address,
            compiled.W: at("w"),
            compiled.V: at("v0"),
            compiled.GRAD: at("out0"),
            compiled.HVP: at("out1"),
            compiled.R2: at("out2"),
            compiled.SIZE: self.size,
            compiled.SAMPLES: address(self._samples),
            compiled.SCALE: at("scale"),
            compiled.SHARES: address(self._shares),
            compiled.ENERGY: at("energy0"),
            compiled.VELOCITY: address(self._velocity),
            compiled.SQUARES: address(self._squares),
            compiled.OUTPUT: at("plane0") + space.layout.rows(output.buffer, 0).offset if shown else 0,
            compiled.TILE_BYTES: space.stride,
            compiled.CLASSES: output.channels,
            compiled.LABELS: address(labels),
            compiled.NORMALISATIONS: address(self._normalisations),
            compiled.AVERAGING: address(self._averaging),
            compiled.NORMALISATION_COUNT: len(self._normalisations),
            compiled.CLOCK: self._clock,
            compiled.SEED: self.seed,
            compiled.BEFORE: address(self._before),
            compiled.X: address(data.x),
            compiled.ROW_BYTES: data.x.strides[0],
            compiled.HELD: address(self._held),
            compiled.MEAN_POINT: address(self._mean_point),
            compiled.SPARE: len(self._samples) // space.lanes - space.tiles,
            compiled.ROWS: len(self._x),
            compiled.NATURAL_RATE: 0 if natural is None else natural.rate_address,
        }
        descriptor = np.zeros(compiled.WORDS, np.int64)
        addresses = [word for bound in passes for word in bound.address]
        descriptor[: len(addresses)] = addresses
        descriptor[list(words)] = list(words.values())
        gradients = max(1, int(self._settings[Setting.INNER_STEPS]))
        self._work = len(passes[0].table) * space.stride * space.tiles * gradients
        return descriptor


def _clock() -> int:
    """The address of clock_gettime, where there is one."""
    try:
        return ctypes.cast(ctypes.CDLL(ctypes.util.find_library("c")).clock_gettime, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, TypeError):
        return 0
