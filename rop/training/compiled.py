"""Minibatch descent in compiled code: the steps of Algorithm 1 over the batches of an epoch.

``Descent`` owns the parameters while it runs. Python is entered once per call, not once per step.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import time
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np

from rop.arguments import check_dtype, check_int
from rop.devices.batch import DEFAULT_MEMORY, Data
from rop.devices.cpu.threads import Pace
from rop.devices.cpu.vectors import aligned
from rop.devices.cpu.workspace import CANCELLABLE_WORK, CpuWorkspace
from rop.devices.lock import engine_lock, in_home_process
from rop.errors import ArgumentError
from rop.graph import Graph
from rop.inputs import check_data, check_problem, check_state, check_statistics
from rop.kernels.cpu import training as compiled
from rop.layers.loss import Loss, Targets
from rop.lowering import ORDERS
from rop.optim import SGD, Adam, Optimizer, SpectralRadius, check_settings

SENSE = 1.0  # the largest ‖Hv − λv‖ / |λ| with which "track" uses ∇ρ: tan of an angle
SHARE = 0.005  # seconds of steps that are run in one way before another may be better
COLUMNS = ("loss", "correct", "rho", "residual", "hvps", "penalty", "gradient_ns", "power_ns", "r2_ns", "rest_ns")


class OnHost:
    """What steps whose ``arrays`` are views of all they change have in common; see rop.training.run.Steps."""

    arrays: Any

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts back what ``arrays`` gave."""
        for name, array in self.arrays.items():
            array[...] = arrays[name]

    def mark(self) -> None:
        """Keeps a copy of what they are now."""
        self._marked = {name: array.copy() for name, array in self.arrays.items()}

    def back(self) -> None:
        """Returns to the last mark."""
        self.restore(self._marked)

    def finite(self) -> bool:
        """Whether the parameters and running statistics are finite."""
        return all(
            np.isfinite(array).all() for name, array in self.arrays.items() if name == "w" or name.startswith("state/")
        )


class Descent(OnHost):
    """w ← w − rate·(∇f + μ·1[ρ > K]·∇ρ), step by step over minibatches of a data set.

    Args:
        net, loss, x, y: as for Objective; x and y are the whole data set.
        batch_size: samples per step.
        w: where to start (n,).
        dtype: precision.
        optimizer: SGD or Adam; their schedules are the caller's business.
        regularizer: None for plain training; its solver must be "power" or "track".
        state: running statistics of batchnorm.
        seed: of the first direction v.
        profile: whether reports say where the time went.

    >>> import numpy as np, rop
    >>> from rop.training.compiled import Descent
    >>> net = rop.Sequential(rop.Linear(2, 2))
    >>> x, y = np.eye(2, dtype="f4").repeat(8, 0), np.array([0, 1]).repeat(8)
    >>> d = Descent(net, rop.CrossEntropy(), x, y, batch_size=4, w=net.init())
    >>> d.begin(np.random.default_rng(0).permutation(16))
    4
    >>> reports = d.run(0, 4, rate=1.0)
    >>> reports.shape, bool(reports[-1, 0] < reports[0, 0])
    ((4, 10), True)
    """

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
        self.batch = check_int("Descent", "batch_size", batch_size)
        x = check_data(x, self.dtype, check_finite=True)
        targets = checked_targets(net, loss, x, y, self.batch)
        self._space = CpuWorkspace.of(
            net, x.shape[1:], True, loss, self.dtype, self.batch, DEFAULT_MEMORY, one_chunk=True
        )
        self._data = Data(x.reshape(len(x), -1), targets, 1.0, np.zeros(0, np.int64))
        self._shares = targets.shares if loss.reduction == "mean" else None
        self._settings = settings_of(optimizer or SGD(), regularizer)
        self._state = check_state(net, state, self.dtype, "Descent")
        self._pace, self._share = Pace(), 1
        self._seed, self._clock = seed, _clock() if profile else 0
        self.size = net.size
        self._allocate(w, optimizer or SGD(), regularizer)

    def _allocate(self, w: np.ndarray, optimizer: Optimizer, regularizer: SpectralRadius | None) -> None:
        space, n = self._space, self.size
        space.ensure_direction(0)
        for k in ORDERS:
            space.reserve_results(((k, 0),), (0,))
        random = np.random.default_rng(self._seed).standard_normal(n)
        space.array("v0")[:n] = random / np.linalg.norm(random)
        space.array("w")[:n] = w
        self._before = aligned(n, self.dtype)  # v as it was when the current step began
        self._velocity = self._squares = None
        if isinstance(optimizer, Adam):
            self._velocity, self._squares = aligned(n, self.dtype), aligned(n, self.dtype)
        elif optimizer.momentum or optimizer.weight_decay:
            self._velocity = aligned(n, self.dtype)
        for name, array in (("before", self._before), ("velocity", self._velocity), ("squares", self._squares)):
            if array is not None:
                space.watch(name, array)
        layers = [(one, self.net.name_of(one.operation.layer)) for one in space.lowered.normalisations]
        rows = [
            [
                space.address("channels0") + one.table_at[0] * self.dtype.itemsize,
                one.operation.channels,
                self._state[f"{name}.running_mean"].ctypes.data,
                self._state[f"{name}.running_var"].ctypes.data,
            ]
            for one, name in layers
        ]
        self._normalisations = np.array(rows, np.int64).reshape(-1, 4)
        self._averaging = np.array([one.operation.layer.momentum for one, _ in layers], np.float64)

    # ----------------------------------------------------------------------------------------------- what a run carries
    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that changes from step to step; views, so that values can be put back: w, the last direction v and
        its product u = Hv (zeros: none), the optimizer's memory and the running statistics (as "state/...")."""
        named = {
            "w": self._space.array("w")[: self.size],
            "v": self._space.array("v0")[: self.size],
            "u": self._space.array("out1")[: self.size],
            "velocity": self._velocity,
            "squares": self._squares,
        }
        return {name: array for name, array in named.items() if array is not None} | {
            f"state/{name}": array for name, array in self._state.items()
        }

    @property
    def w(self) -> np.ndarray:
        """The parameters (a copy)."""
        return self.arrays["w"].copy()

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The running statistics (copies)."""
        return {name: array.copy() for name, array in self._state.items()}

    # ------------------------------------------------------------------------------------------------------------ steps
    def begin(self, order: np.ndarray) -> int:
        """Makes an epoch of samples in this order, the last partial batch left out; returns its number of steps."""
        space, self._steps = self._space, len(order) // self.batch
        samples = np.full((self._steps, space.tiles * space.lanes), ~np.int64(order[0]), np.int64)
        samples[:, : self.batch] = order[: self._steps * self.batch].reshape(self._steps, self.batch)
        self._samples = samples.reshape(-1)
        self._reports = np.zeros((self._steps, compiled.REPORT))
        self._given = np.zeros((self._steps, compiled.STEP))
        with engine_lock():
            self._descriptor = self._describe()
        return self._steps

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
        """Steps first, …, first + count − 1 of the epoch, with one rate, μ and tolerance or one for each step;
        ``before`` counts the steps before this epoch. Returns a row of COLUMNS for each step that was done. It is the
        last one if its loss or ρ is not finite: then w is what it was before that step. ``stop`` is asked now and then
        during long steps."""
        count = min(count, self._steps - first)
        part = self._given[first : first + count]
        part[:, compiled.RATE], part[:, compiled.MU], part[:, compiled.TOLERANCE] = rate, mu, tol
        products = 2 + self._settings[compiled.ITERATIONS] if np.any(part[:, compiled.MU]) else 1
        long = self._work * products >= CANCELLABLE_WORK  # else whoever wants to stop need not wait long
        with engine_lock():
            self._space.bind(self._epoch_data)
            self._space.array("tile_count")[0] = self._space.tiles
            if long:
                done, whole = self._run_aside(first, count, before, stop)
            else:
                done, whole = self._run_at_best_pace(first, count, before), True
            self._space.forget()
            self._space.check_guards(self._passes, (first + max(done - 1, 0)) * self._space.tiles)
        if not whole:  # cancelled in the middle of a step, which will start again
            self.arrays["v"][:], self.arrays["u"][:] = self._before, 0
        failed = whole and done < count
        return self._reports[first : first + done + failed].copy()

    def _call(self, first: int, count: int, before: int) -> int:
        run = compiled.steps(self.dtype, in_home_process())
        return run(
            self._descriptor.ctypes.data,
            self._settings.ctypes.data,
            self._given.ctypes.data,
            self._reports.ctypes.data,
            first,
            count,
            before + first,
        )

    def _run_aside(self, first: int, count: int, before: int, stop: Callable[[], bool] | None) -> tuple[int, bool]:
        done = [0]

        def call() -> None:
            done[0] = self._call(first, count, before)

        whole = self._space.call_aside(call, stop or (lambda: False))
        return done[0], whole

    def _run_at_best_pace(self, first: int, count: int, before: int) -> int:
        """With threads if they pay just now: it is tried every few milliseconds."""
        most, done = numba.get_num_threads(), 0
        try:
            while done < count:
                share = min(count - done, self._share)
                parallel = most > 1 and self._pace.parallel()
                numba.set_num_threads(most if parallel else 1)
                start = time.perf_counter()
                came = self._call(first + done, share, before)
                seconds = (time.perf_counter() - start) / share
                self._pace.measured(parallel, seconds)
                self._share = max(1, int(SHARE / seconds))
                done += came
                if came < share:
                    break
        finally:
            numba.set_num_threads(most)
        return done

    def _describe(self) -> np.ndarray:
        space, at = self._space, self._space.address
        targets = self._data.targets
        assert targets is not None
        data = self._epoch_data = Data(self._data.x, targets, 1.0, self._samples)
        space.bind(data)
        passes = self._passes = [space.bound(((k, 0),), (0,)).bound for k in ORDERS]
        output, labels = space.plan.output, targets.labels
        shown = labels is not None and output.pixels == 1

        def address(array: np.ndarray | None) -> int:
            return 0 if array is None else int(array.ctypes.data)

        words = {
            compiled.TILES: space.tiles,
            compiled.LANES: space.lanes,
            compiled.CANCEL: space.cancel_address,
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
            compiled.SEED: self._seed,
            compiled.BEFORE: address(self._before),
            compiled.X: address(data.x),
            compiled.ROW_BYTES: data.x.strides[0],
        }
        descriptor = np.zeros(compiled.WORDS, np.int64)
        descriptor[: compiled.PASSES] = [word for bound in passes for word in bound.address]
        descriptor[list(words)] = list(words.values())
        self._work = len(passes[0].table) * space.stride * space.tiles
        return descriptor


def checked_targets(net: Graph, loss: Loss, x: np.ndarray, y: Any, batch: int) -> Targets:
    """Targets of a data set of which batches of a size can be made."""
    check_problem("Descent", net, loss)
    if len(x) < batch:
        raise ArgumentError(f"Descent: expected at least one batch of {batch} samples, got {len(x)}")
    shapes = net.shapes(x.shape[1:])
    check_statistics(net, shapes, batch)
    return loss.targets(y, len(x), shapes[net.output], x.dtype)


def settings_of(optimizer: Optimizer, regularizer: SpectralRadius | None) -> np.ndarray:
    check_settings("Descent", optimizer, regularizer)
    settings = np.zeros(compiled.SETTINGS)
    settings[compiled.DECAY] = optimizer.weight_decay
    if isinstance(optimizer, Adam):
        settings[compiled.ADAM], settings[compiled.EPSILON] = 1, optimizer.eps
        settings[compiled.BETA1], settings[compiled.BETA2] = optimizer.betas
    else:
        settings[compiled.MOMENTUM], settings[compiled.NESTEROV] = optimizer.momentum, optimizer.nesterov
    if regularizer is not None:
        if not regularizer.compiled:
            raise ArgumentError(f"Descent: expected solver 'power' or 'track', got {regularizer.solver!r}")
        track = regularizer.solver == "track"
        settings[compiled.TARGET] = regularizer.K
        settings[compiled.ITERATIONS] = regularizer.products if track else regularizer.maxiter
        settings[compiled.SENSE] = SENSE if track else 0
        settings[compiled.ABSOLUTE], settings[compiled.WARM] = regularizer.stop == "paper", regularizer.warm_start
        settings[compiled.CLIP], settings[compiled.LIMIT] = regularizer.clip or 0, regularizer.limit or 0
    return settings


def _clock() -> int:
    """The address of clock_gettime, where there is one."""
    try:
        return ctypes.cast(ctypes.CDLL(ctypes.util.find_library("c")).clock_gettime, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, TypeError):
        return 0
