"""Training: min f(w) + μ·max(0, ρ(w) − K) over minibatches.

A run is a sequence of steps whose outcome depends on its settings only: samples are drawn from (seed, epoch), random
directions from (seed, step), sums do not depend on threads. So a run that was stopped anywhere goes on from its last
checkpoint and ends with the same bits. Steps run in compiled code, a fraction of a second at a time; in between Python
looks after progress, checkpoints and Ctrl-C.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rop.arguments import (
    as_array,
    check_bool,
    check_choice,
    check_dtype,
    check_function,
    check_int,
    check_path,
)
from rop.devices import check_device
from rop.errors import ArgumentError, ArgumentTypeError, FileError, RopError, say
from rop.graph import Graph
from rop.inputs import check_data, check_problem, check_state
from rop.layers.loss import NLL, CrossEntropy, Loss
from rop.objective import Objective
from rop.optim import SGD, Optimizer, SpectralRadius, check_settings, completed, values
from rop.prediction import predict
from rop.training import checkpoint as files
from rop.training.compiled import COLUMNS, Descent
from rop.training.fingerprint import described, digest, machine

SLICE = 0.2  # seconds that compiled code runs before Python looks around
SAVE_EVERY = 2.0  # seconds between checkpoints, at least: writing one must not slow down short epochs
VANISHED = 1e-4  # ‖∇f‖ of collapsed forest nets is 2e-9 to 1.2e-5, of a live one 1e-2
PROBE = 256  # so many samples are enough to see that a net has not

Pair = tuple[Any, Any]
Row = dict[str, float]


class TrainingStopped(RopError):
    """A loss, ρ or parameter that is not finite, or a checkpoint that cannot be written; ``fit`` is the run up to the
    last good step."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.fit)  # it may have to come back from another process


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C; ``fit`` is the run so far, and its checkpoint, if it has one, is up to date."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.fit)  # it may have to come back from another process


@dataclass
class Fit:
    """A trained net.

    w, state: parameters and running statistics, the best on validation data if there were any, else the last.
    history: a dict for each epoch: epoch, loss, accuracy (of the steps' batches), rho, residual (their means over the
        steps), hvps, skipped (steps without the penalty because the eigenvector made no sense), seconds; with
        validation data valid_loss and valid_accuracy.
    memory: what the next step would need besides w and state: the optimizer's averages, the last eigenvector.
    epochs, steps: done so far, those of the fit it started from included.
    collapsed: whether w_last predicts one class for all training samples, wrongly for some, with ‖∇f‖ < 1e-4, so that
        training would not bring it back. Looked at when a run ends; None in a fit that callbacks or exceptions hold.
    """

    w: np.ndarray
    state: dict[str, np.ndarray]
    history: list[Row]
    w_last: np.ndarray
    state_last: dict[str, np.ndarray]
    best_epoch: int
    profile: dict[str, float] = field(default_factory=dict)
    memory: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    epochs: int = 0
    steps: int = 0
    collapsed: bool | None = None

    def column(self, name: str) -> np.ndarray:
        """One number of every epoch's row."""
        return np.array([row[name] for row in self.history])


class Steps(Protocol):
    """What the trainer needs of whoever does the steps: Descent, CudaDescent or Stepwise.

    ``arrays`` is everything that changes from step to step, by name, on the host. They are for reading, and at once:
    some are views of what the next step will change, others copies of a GPU's memory, so that writing into them may
    change nothing. ``restore`` puts values back, all that ``arrays`` names.

    ``mark`` keeps a copy of all of it where it is, ``back`` returns to the last mark, and ``finite`` says whether the
    parameters and running statistics are finite numbers.
    """

    def begin(self, order: np.ndarray) -> int: ...

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
    ) -> np.ndarray: ...

    @property
    def arrays(self) -> dict[str, np.ndarray]: ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None: ...

    def mark(self) -> None: ...

    def back(self) -> None: ...

    def finite(self) -> bool: ...


def train(
    net: Graph,
    loss: Loss,
    data: Pair,
    *,
    validation: Pair | None = None,
    epochs: int = 100,
    batch_size: int = 128,
    seed: int = 0,
    optimizer: Optimizer | None = None,
    regularizer: SpectralRadius | None = None,
    w: Any = None,
    state: Mapping[str, np.ndarray] | None = None,
    start: Fit | None = None,
    dtype: Any = np.float32,
    device: str = "cpu",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    profile: bool = False,
    callbacks: Sequence[Callable[[Row, Fit], Any]] = (),
) -> Fit:
    """Trains a net: min f(w) + μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of a batch's loss.

    Args:
        net, loss: as for Objective.
        data: (x, y), all of it; an epoch goes through it once in a new order, its last partial batch left out.
        validation: (x, y); the parameters with the best accuracy on it (without labels: the lowest loss) are kept.
        epochs, batch_size, seed: as usual; the seed also makes the first w.
        optimizer: SGD (default) or Adam.
        regularizer: SpectralRadius(...) or None for plain training.
        w, state: where to start instead of net.init(seed) and net.init_state().
        start: an earlier fit of the same net to go on from, on these data: its last w and state, the optimizer's
            averages, the eigenvector, and its count of steps and epochs, which schedules see.
        dtype: precision of everything.
        device: "cpu", "cuda", or "auto": a GPU if one can be used. Validation runs on the CPU.
        checkpoint: a folder for ``checkpoint.npz``; written at the start, every few seconds and at the end.
        resume: go on from the checkpoint in that folder, if there is one.
        progress: show a line per epoch and the time left (needs rich: pip install 'rop[train]').
        profile: measure where the time goes; see Fit.profile.
        callbacks: called after each epoch with its row of the history and the fit so far; one that returns True ends
            the training.

    >>> import numpy as np, rop
    >>> x = np.random.default_rng(0).standard_normal((256, 2)).astype("f4")
    >>> net = rop.Sequential(rop.Linear(2, 8), rop.Tanh(), rop.Linear(8, 2))
    >>> fit = rop.train(net, rop.CrossEntropy(), (x, (x[:, 0] * x[:, 1] > 0).astype(int)), epochs=30, batch_size=32,
    ...                 optimizer=rop.SGD(lr=0.5), regularizer=rop.SpectralRadius(mu=0.01, solver="track"))
    >>> len(fit.history), bool(fit.history[-1]["accuracy"] > 0.9)
    (30, True)
    """
    folder = None if checkpoint is None else check_path("train", "checkpoint", checkpoint, folder=True)
    for name, value in (("resume", resume), ("progress", progress), ("profile", profile)):
        check_bool("train", name, value)
    _check_callbacks(callbacks)
    run = _Run(
        net,
        loss,
        data,
        validation,
        epochs,
        batch_size,
        seed,
        SGD() if optimizer is None else optimizer,
        regularizer,
        w,
        state,
        start,
        dtype,
        check_device("train", device),
        folder,
        profile,
    )
    run.start(resume)
    with _shown(progress, run) as show, _deferred_interrupt() as interrupted:
        run.go(interrupted, callbacks, show)
    return run.ended()


class _Run:
    """One training run: its settings, where it stands, and how to save that."""

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        data: Pair,
        validation: Pair | None,
        epochs: int,
        batch_size: int,
        seed: int,
        optimizer: Optimizer,
        regularizer: SpectralRadius | None,
        w: Any,
        state: Any,
        earlier: Fit | None,
        dtype: Any,
        device: str,
        folder: Path | None,
        profile: bool,
    ):
        check_problem("train", net, loss)
        check_settings("train", optimizer, regularizer)
        self.net, self.loss, self.optimizer, self.regularizer = net, loss, optimizer, regularizer
        self.epochs = check_int("train", "epochs", epochs)
        self.seed = check_int("train", "seed", seed, minimum=0)
        self.dtype, self.folder = np.dtype(check_dtype("train", dtype)), folder
        x, y = _pair("data", data)
        x = check_data(x, self.dtype, check_finite=True)
        self.data = x, np.asarray(y)
        self.samples, self.batch_size = len(x), check_int("train", "batch_size", batch_size)
        if self.samples < self.batch_size:
            raise ArgumentError(
                f"train: expected at least one batch of {self.batch_size} samples, got {self.samples}; "
                f"give more data or batch_size={self.samples}"
            )
        self.validation = None
        if validation is not None:
            xv, yv = _pair("validation", validation)
            self.validation = check_data(xv, self.dtype, check_finite=True), as_array("y", yv)
            _check_validation(net, loss, *self.validation)
        if earlier is not None:
            w, state = _start_of(earlier, w, state)
        start = net.init(self.seed, self.dtype) if w is None else _parameters(net, w, self.dtype)
        state = check_state(net, state, self.dtype, "train")
        self.steps: Steps = _maker(regularizer, device)(
            net,
            loss,
            x,
            y,
            batch_size=self.batch_size,
            w=start,
            dtype=self.dtype,
            optimizer=optimizer,
            regularizer=regularizer,
            state=state,
            seed=self.seed,
            profile=profile,
        )
        self.past_epochs, self.past_steps = (0, 0) if earlier is None else self._recall(earlier)
        self.fingerprint, self.machine = {}, machine(device)
        if folder is not None:
            self.fingerprint = self._fingerprint(
                x, y, (start, state, self.past_epochs, self.past_steps, None if earlier is None else earlier.memory)
            )
        self.epochs += self.past_epochs
        self.epoch, self.step, self.best_epoch = self.past_epochs + 1, 0, 0
        self.history: list[Row] = []
        self.reports = np.zeros((0, len(COLUMNS)))
        self.seconds, self.profiled = 0.0, np.zeros(4)
        self.best = self._copy()
        self.per_epoch = self.samples // self.batch_size
        self._saved_at = 0.0

    def _fingerprint(self, x: np.ndarray, y: Any, start: Any) -> dict[str, Any]:
        """What must be equal for a checkpoint to be continued; the number of epochs may change."""
        return {
            "net": digest(self.net),
            "loss": digest(self.loss),
            "optimizer": described(self.optimizer),
            "regularizer": described(self.regularizer),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "dtype": self.dtype.name,
            "data": digest(x, _comparable(y)),
            "validation": None if self.validation is None else digest(*map(_comparable, self.validation)),
            "start": digest(*start),
        }

    def _recall(self, earlier: Fit) -> tuple[int, int]:
        """Puts what the optimizer and the eigen-solver knew in its place."""
        arrays = self.steps.arrays
        if ("squares" in arrays) != ("squares" in earlier.memory):
            given, before = ("Adam", "SGD") if "squares" in arrays else ("SGD", "Adam")
            raise ArgumentError(
                f"train: expected optimizer=rop.{before}(...), as in the fit to go on from, got "
                f"{given}; to start anew from its parameters give w=fit.w_last, state=fit.state_last"
            )
        self.steps.restore({**arrays, **{name: earlier.memory[name] for name in arrays.keys() & earlier.memory.keys()}})
        return earlier.epochs, earlier.steps

    @property
    def before(self) -> int:
        """Steps before the current epoch."""
        return self.past_steps + (self.epoch - 1 - self.past_epochs) * self.per_epoch

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def start(self, resume: bool) -> None:
        if self.folder is None:
            if resume:
                raise ArgumentError("train: resume=True needs the folder of the run, got checkpoint=None")
            return
        path = self.folder / files.FILE
        files.remove_leftovers(path)
        if path.exists():
            if not resume:
                raise ArgumentError(
                    f"{path}: there is a checkpoint of an earlier run; give resume=True to go on with "
                    "it, or another folder"
                )
            self._restore(path)
        else:
            self.save()

    def save(self) -> None:
        if self.folder is None:
            return
        meta = {
            "epoch": self.epoch,
            "step": self.step,
            "best_epoch": self.best_epoch,
            "history": self.history,
            "seconds": self.seconds,
            "settings": self.fingerprint,
            "machine": self.machine,
        }
        path = self.folder / files.FILE
        try:
            files.save(path, meta, self._saved_arrays())
        except FileError as error:
            before = "make room or give another folder"
            if path.exists():
                before = "the run can be resumed from the checkpoint before once there is room"
            raise TrainingStopped(
                f"train: stopped in epoch {self.epoch} after {self.step} steps: {error}; {before}", self.fit()
            ) from error
        self._saved_at = time.monotonic()

    def _saved_arrays(self) -> dict[str, np.ndarray]:
        best = {f"best/{name}": array for name, array in self.best.items()}
        return {**self.steps.arrays, **best, "reports": self.reports, "profiled": self.profiled}

    def _restore(self, path: Path) -> None:
        """Goes to where the checkpoint stands, after a look at everything in it."""
        meta, arrays = files.load(path, partial(self._expected, path))
        for name, array in arrays.items():
            self._check_values(path, name, array)
        if meta.get("machine") != self.machine:
            say(
                f"{path} was made on another kind of machine ({_differences(meta.get('machine'), self.machine)}): the "
                "run goes on, but its last bits will differ from those of a run on one machine"
            )
        self.epoch, self.step, self.best_epoch = meta["epoch"], meta["step"], meta["best_epoch"]
        self.history, self.seconds = meta["history"], float(meta["seconds"])
        self.steps.restore(arrays)
        self.best = {name: arrays[f"best/{name}"] for name in self.best}
        self.reports, self.profiled = arrays["reports"], arrays["profiled"]

    def _expected(self, path: Path, meta: dict[str, Any]) -> files.Forms:
        """The arrays that a checkpoint of this run has, where it says it stands, if that is a place in this run."""
        saved, expected = meta.get("settings"), json.loads(json.dumps(self.fingerprint))
        saved = saved if isinstance(saved, dict) else {}
        different = [name for name, value in expected.items() if name not in saved or completed(saved[name]) != value]
        if different:
            raise ArgumentError(
                f"{path}: expected a checkpoint of this run, got one of a run with other settings: "
                f"{', '.join(different)}; it was left as it is"
            )
        values = files.Values(path, meta)
        rows = values.rows("history", self._columns())
        for i, row in enumerate(rows):
            files.Values(path, row).whole("epoch", *(self.past_epochs + 1 + i,) * 2)
        values.whole("epoch", *(self.past_epochs + len(rows) + 1,) * 2)
        step = values.whole("step", 0, self.per_epoch)
        values.whole("best_epoch", *((self.past_epochs + 1, self.past_epochs + len(rows)) if rows else (0, 0)))
        values.seconds("seconds")
        forms = {name: (array.shape, array.dtype) for name, array in self._saved_arrays().items()}
        return {**forms, "reports": ((step, len(COLUMNS)), np.float64)}

    def _columns(self) -> set[str]:
        """What every row of the history has."""
        penalty = {"rho", "residual", "hvps", "skipped"} if self.regularizer is not None else set()
        checked = {"valid_loss", "valid_accuracy"} if self.validation is not None else set()
        return {"epoch", "loss", "accuracy", "seconds"} | penalty | checked

    def _check_values(self, path: Path, name: str, array: np.ndarray) -> None:
        """Refuses numbers that a run never saves: they would be used as they are."""
        part = name.removeprefix("best/")
        if array.dtype.kind == "i":  # rows of the data
            good = bool(((array >= -1) & (array < self.samples)).all())
        elif part == "w" or part.startswith("state/"):
            good = bool(np.isfinite(array).all()) and not (part.endswith("running_var") and (array < 0).any())
        elif part == "reports":
            good = bool(np.isfinite(array[:, [COLUMNS.index("loss"), COLUMNS.index("rho")]]).all())
        else:
            good = part != "squares" or not (array < 0).any()
        if not good:
            raise ArgumentError(
                f"{path}: expected numbers that training can have led to for {name!r}, got others, "
                "such as NaN; it was left as it is"
            )

    def _copy(self) -> dict[str, np.ndarray]:
        """Parameters and running statistics as they are now."""
        return {
            name: array.copy() for name, array in self.steps.arrays.items() if name == "w" or name.startswith("state/")
        }

    # ----------------------------------------------------------------------------------------------------------- epochs
    def go(self, interrupted: Callable[[], bool], callbacks: Sequence[Callable[[Row, Fit], Any]], show: Any) -> None:
        while self.epoch <= self.epochs:
            self._run_epoch(interrupted, show)
            row = self._end_epoch()
            show.epoch(row)
            if True in [callback(row, self.fit()) is True for callback in callbacks]:
                break
            if time.monotonic() - self._saved_at > SAVE_EVERY:
                self.save()
        self.save()

    def _run_epoch(self, interrupted: Callable[[], bool], show: Any) -> None:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.samples)
        total, before = self.steps.begin(order), self.before
        given = self._schedules(before + np.arange(1, total + 1))
        count = 1
        while self.step < total:
            start, part = time.perf_counter(), slice(self.step, self.step + count)
            self.steps.mark()
            reports = self.steps.run(
                self.step,
                count,
                before=before,
                stop=interrupted,
                **{name: all_steps[part] for name, all_steps in given.items()},
            )
            finite = self.steps.finite()
            took = time.perf_counter() - start
            self.seconds += took
            if not finite:
                self._return_to_finite(given, len(reports))
            self._take_in(reports)
            show.steps(self.epoch, self.step, total, reports)
            if interrupted():
                self._stop_interrupted()
            if time.monotonic() - self._saved_at > 10 * SAVE_EVERY:
                self.save()
            count = max(1, min(4 * count, int(SLICE * len(reports) / max(took, 1e-9))))

    def _schedules(self, k: np.ndarray) -> dict[str, np.ndarray]:
        given = {"rate": values(self.optimizer.lr, k, self.epoch, type(self.optimizer).__name__)}
        if self.regularizer is not None:
            given["mu"] = values(self.regularizer.mu, k, self.epoch, "SpectralRadius mu")
            given["tol"] = values(self.regularizer.tol, k, self.epoch, "SpectralRadius tol")
        return given

    def _take_in(self, reports: np.ndarray) -> None:
        bad = ~np.isfinite(reports[:, [COLUMNS.index("loss"), COLUMNS.index("rho")]]).all(axis=1)
        good = reports[:-1] if bad.any() else reports
        self.reports = np.concatenate([self.reports, good])
        self.step += len(good)
        if bad.any():
            what = "loss" if not np.isfinite(reports[-1, 0]) else "spectral radius"
            self._stop(f"{what} is not finite in")

    def _return_to_finite(self, given: dict[str, np.ndarray], count: int) -> None:
        """Some of the last ``count`` steps made parameters that are not finite: makes them again from the mark, one by
        one, up to the last one that did not, and stops there."""
        self.steps.back()
        before = self.before
        for step in range(self.step, self.step + count):
            self.steps.mark()
            report = self.steps.run(step, 1, before=before, **{name: numbers[step] for name, numbers in given.items()})
            if not self.steps.finite():
                self.steps.back()
                break
            self._take_in(report)
        self._stop("parameters are not finite after")

    def _stop(self, what: str) -> None:
        """Ends the run at the last good step, because of what happened in the next one."""
        self.save()
        saved = "" if self.folder is None else f"; the last good step is in {self.folder / files.FILE}"
        raise TrainingStopped(
            f"train: the {what} epoch {self.epoch}, step {self.step + 1}: a smaller learning rate or "
            f"mu, or clip=..., may help{saved}",
            self.fit(),
        )

    def _stop_interrupted(self) -> None:
        self.save()
        where = f"interrupted in epoch {self.epoch} after {self.step} of {self.per_epoch} steps"
        raise TrainingInterrupted(where if self.folder is None else f"{where}; saved in {self.folder}", self.fit())

    def _end_epoch(self) -> Row:
        start = time.perf_counter()
        row = self._row()
        if self.validation is not None:
            row["valid_loss"], row["valid_accuracy"] = evaluate(
                self.net, self.loss, self.steps.arrays["w"], *self.validation, state=_state(self.steps.arrays)
            )
        self.seconds += time.perf_counter() - start
        row["seconds"] = self.seconds
        self.history.append(row)
        if self.validation is None or self._is_best():
            self.best, self.best_epoch = self._copy(), self.epoch
        self.profiled += self.reports[:, -4:].sum(axis=0)
        self.epoch, self.step, self.seconds, self.reports = self.epoch + 1, 0, 0.0, self.reports[:0]
        return row

    def _row(self) -> Row:
        mean = dict(zip(COLUMNS, self.reports.mean(axis=0).tolist(), strict=True))
        row: Row = {"epoch": self.epoch, "loss": mean["loss"], "accuracy": mean["correct"] / self.batch_size}
        if self.regularizer is not None:
            penalty, rho = (self.reports[:, COLUMNS.index(name)] for name in ("penalty", "rho"))
            row.update(
                rho=mean["rho"],
                residual=mean["residual"],
                hvps=int(self.reports[:, COLUMNS.index("hvps")].sum()),
                skipped=int(((penalty == 0) & (rho > self.regularizer.K)).sum()),
            )
        return row

    def _is_best(self) -> bool:
        def key(row: Row) -> float:
            return row["valid_accuracy"] if np.isfinite(row["valid_accuracy"]) else -row["valid_loss"]

        return all(key(self.history[-1]) > key(row) for row in self.history[:-1])

    def ended(self) -> Fit:
        """The fit of a run that has come to its end."""
        fit = self.fit()
        fit.collapsed = has_collapsed(self.net, self.loss, fit.w_last, *self.data, state=fit.state_last)
        return fit

    def fit(self) -> Fit:
        last = self._copy()
        best = self.best if self.history else last
        parts = dict(zip(("gradient", "power", "r2", "rest"), (self.profiled * 1e-9).tolist(), strict=True))
        # K-FAC's factors belong to rows of these data
        memory = {
            name: array.copy()
            for name, array in self.steps.arrays.items()
            if name not in last and not name.startswith("kfac/")
        }
        return Fit(
            best["w"].copy(),
            _state(best),
            list(self.history),
            last["w"],
            _state(last),
            self.best_epoch,
            parts,
            memory,
            self.epoch - 1,
            self.before + self.step,
        )


def evaluate(
    net: Graph, loss: Loss, w: Any, x: Any, y: Any, state: Mapping[str, np.ndarray] | None = None
) -> tuple[float, float]:
    """Loss and accuracy of a net in evaluation mode; the accuracy of targets that are not labels is NaN.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(1, 2))
    >>> w = np.array([1.0, -1.0, 0.0, 0.0])                      # class 0 where x > 0
    >>> rop.evaluate(net, rop.CrossEntropy(), w, np.array([[3.0], [-3.0]]), np.array([0, 0]))[1]
    0.5
    """
    check_problem("evaluate", net, loss)
    outputs, y = predict(net, w, x, state), as_array("y", y)
    value = loss.value(outputs, y)
    labels = y.dtype.kind in "iu" and outputs.ndim == 2 and y.ndim == 1
    return value, float((outputs.argmax(axis=1) == y).mean()) if labels else float("nan")


def has_collapsed(
    net: Graph, loss: Loss, w: np.ndarray, x: np.ndarray, y: np.ndarray, state: Mapping[str, np.ndarray] | None = None
) -> bool:
    """Whether a classifier predicts one class for all samples, wrongly for some, and ‖∇f‖ < 1e-4: then no training on
    them will bring it back. For a net that is alive a look at the first samples is enough.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(1, 2), rop.Softmax(1))
    >>> x, y = np.array([[1.0], [2.0]]), np.array([0, 1])
    >>> dead, alive = np.array([0.0, 0.0, 99.0, -99.0]), np.array([1.0, 0.0, 0.0, 0.0])
    >>> [has_collapsed(net, rop.CrossEntropy(), w, x, y) for w in (dead, alive)]
    [True, False]
    """
    if not isinstance(loss, (CrossEntropy, NLL)):
        return False
    wanted = y if y.dtype.kind in "iu" else y.argmax(axis=1)
    for part in (slice(PROBE), slice(None)):
        chosen = predict(net, w, x[part], state).argmax(axis=1)
        if (chosen != chosen.flat[0]).any():
            return False
    if (chosen == wanted).all():
        return False
    f = Objective(net, loss, x, y, dtype=w.dtype, training=False, state=state or None)
    return bool(np.linalg.norm(f.at(w).grad) < VANISHED)


# --------------------------------------------------------------------------------------------------- small helpers
def _check_callbacks(callbacks: Any) -> None:
    if not isinstance(callbacks, Sequence):
        hint = "; write callbacks=[function]" if callable(callbacks) else ""
        raise ArgumentTypeError(
            f"train: expected callbacks as a list of functions, got {callbacks!r} ({type(callbacks).__name__}){hint}"
        )
    for i, callback in enumerate(callbacks):
        check_function("train", f"callbacks[{i}]", callback, "a row of the history and the fit so far", 2)


def _check_validation(net: Graph, loss: Loss, x: np.ndarray, y: np.ndarray) -> None:
    """Before the first epoch, not after it."""
    try:
        loss.targets(y, len(x), net.shapes(x.shape[1:])[net.output], x.dtype)
    except RopError as error:
        raise type(error)(f"train: validation: {error}") from error


def _pair(name: str, value: Any) -> Pair:
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise ArgumentTypeError(f"train: expected {name} as a pair (x, y), got {type(value).__name__}")
    x, y = (as_array(f"{name}: {part}", one) for part, one in zip("xy", value, strict=True))
    for part, array in (("x", x), ("y", y)):
        if array.ndim == 0 or array.dtype == object:
            raise ArgumentTypeError(
                f"train: expected {name} as a pair (x, y) of arrays of numbers, got {part} of type "
                f"{type(value['xy'.index(part)]).__name__}"
            )
    if len(x) != len(y):
        raise ArgumentError(
            f"train: expected as many targets as samples in {name}, got {len(x)} samples and {len(y)} targets"
        )
    return x, y


def _parameters(net: Graph, w: Any, dtype: np.dtype) -> np.ndarray:
    array = as_array("w", w, "a vector of real numbers")
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(
            f"w: expected a vector of real numbers of shape ({net.size},), got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    if array.shape != (net.size,) or not np.isfinite(array).all():
        raise ArgumentError(f"train: expected w of shape ({net.size},) with finite numbers, got shape {array.shape}")
    return array


def _comparable(y: Any) -> np.ndarray:
    """Targets as they are compared: labels of any integer type are the same."""
    y = np.asarray(y)
    return y.astype(np.int64) if y.dtype.kind in "iu" else y


def _differences(before: Any, now: dict[str, Any]) -> str:
    """What is new about the machine, in a few words."""
    before = before if isinstance(before, dict) else {}
    return ", ".join(
        f"{name} {before.get(name, 'unknown')}, now {value}" for name, value in now.items() if before.get(name) != value
    )


def _start_of(earlier: Fit, w: Any, state: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    if not isinstance(earlier, Fit):
        raise ArgumentTypeError(
            f"train: expected start as the Fit of an earlier call, got {type(earlier).__name__}; "
            "to start from parameters alone give w=..."
        )
    if w is not None or state is not None:
        raise ArgumentError("train: expected start=fit or w and state, got both; start has its own")
    return earlier.w_last, earlier.state_last


def _state(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("state/"): array.copy() for name, array in arrays.items() if name.startswith("state/")}


def _maker(regularizer: SpectralRadius | None, device: str) -> Any:
    """Who does the steps."""
    if regularizer is not None and not regularizer.compiled:
        from rop.training.stepwise import Stepwise

        return partial(Stepwise, device=device)
    if check_choice("train", "device", device, ("cpu", "cuda")) == "cuda":
        from rop.training.cuda import CudaDescent

        return CudaDescent
    return Descent


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag that is looked at between steps, so that what is saved belongs together. A second one raises
    at once. Outside the main thread signals are not ours to handle."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield flag.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _shown(progress: bool, run: _Run) -> Iterator[Any]:
    from rop.training.progress import Quiet, shown

    if not progress:
        yield Quiet()
        return
    with shown(run.epochs, run.per_epoch, run.regularizer is not None) as show:
        for row in run.history:
            show.epoch(row)
        yield show
