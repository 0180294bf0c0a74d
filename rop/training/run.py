"""Training: min f(w) + μ·max(0, ρ(w) − K) over minibatches.

A run is a sequence of steps whose outcome depends on its settings only: samples are drawn from (seed, epoch), random
directions from (seed, step), sums do not depend on threads. So a run that was stopped anywhere continues from its last
checkpoint and ends with the same bits. Steps run a fraction of a second at a time; in between, the loop in this file
shows progress, writes checkpoints and checks for Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rop.arguments import check_bool, check_path
from rop.devices import check_device
from rop.errors import ArgumentError, FileError
from rop.graph import Graph
from rop.layers.loss import Loss
from rop.optim import SGD, Adam, Optimizer, Penalty, values
from rop.training import checkpoint as files
from rop.training.arguments import Pair, Task, check_callbacks, checked_task
from rop.training.evaluation import evaluate, has_collapsed
from rop.training.fit import Fit, Row, TrainingInterrupted, TrainingStopped
from rop.training.interrupt import deferred_interrupt
from rop.training.progress import Quiet, shown
from rop.training.report import TIMES, Report, blank, is_finite, means
from rop.training.resume import Keeper, Standing
from rop.training.settings import innermost_rule
from rop.training.steps import Steps, steps_for

SLICE = 0.2  # seconds of steps between two looks at progress and Ctrl-C
SAVE_EVERY = 2.0  # least seconds between checkpoints: writing them must not slow down short epochs

Callback = Callable[[Row, Fit], Any]  # True ends the training


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
    regularizer: Penalty | None = None,
    w: ArrayLike | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    start: Fit | None = None,
    dtype: DTypeLike = np.float32,
    device: str = "cpu",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    order: str = "shuffled",
    partial_batch: bool = False,
    layout: str | None = None,
    winograd: bool = True,
) -> Fit:
    """Trains a net: min f(w) + μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of a batch's loss.

    Args:
        net, loss: as for Objective.
        data: (x, y), all of it; an epoch goes through it once, see order and partial_batch.
        validation: (x, y); the parameters with the best accuracy on it (without labels: the lowest loss) are kept.
        epochs, batch_size, seed: as usual; the seed also makes the first w.
        optimizer: SGD (default), Adam, or one of your own, see rop.optim.Optimizer.
        regularizer: SpectralRadius(...), a penalty of your own, see rop.optim.Penalty, or None for plain training.
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
        order: "shuffled", a new order of the samples in every epoch, or "fixed", that of the data.
        partial_batch: whether an epoch ends with a smaller batch where the samples do not divide; else these are left
            out.
        layout, winograd: how the CPU computes convolutions, as for Objective.

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
    check_callbacks(callbacks)
    task = checked_task(
        net,
        loss,
        data,
        validation=validation,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        optimizer=SGD() if optimizer is None else optimizer,
        regularizer=regularizer,
        w=w,
        state=state,
        start=start,
        dtype=dtype,
        device=check_device("train", device),
        profile=profile,
        order=order,
        partial_batch=partial_batch,
        layout=layout,
        winograd=winograd,
    )
    run = _Run(task, folder)
    run.start(resume)
    with _shown(progress, run) as show, deferred_interrupt() as interrupted:
        run.go(interrupted, callbacks, show)
    return run.ended()


class _Run:
    """One training run: its arguments, its position, and its loop over epochs and steps."""

    def __init__(self, task: Task, folder: Path | None):
        self.task, self.folder = task, folder
        self.steps = steps_for(task.optimizer, task.regularizer, task.device)(
            task.net,
            task.loss,
            task.x,
            task.y,
            batch_size=task.batch_size,
            w=task.w,
            dtype=task.dtype,
            optimizer=task.optimizer,
            regularizer=task.regularizer,
            state=task.state,
            seed=task.seed,
            profile=task.profile,
            layout=task.layout,
            winograd=task.winograd,
        )
        self.past_epochs = self.past_steps = 0
        if task.earlier is not None:
            recall(self.steps, task.earlier)
            self.past_epochs, self.past_steps = task.earlier.epochs, task.earlier.steps
        self.epochs = self.past_epochs + task.epochs
        self.now = Standing(self.past_epochs + 1, self.steps.model())
        self.keeper = None if folder is None else Keeper(folder / files.FILE, task, self.steps, self.past_epochs)
        self._saved_at = 0.0

    @property
    def before(self) -> int:
        """Steps before the current epoch."""
        return self.past_steps + (self.now.epoch - 1 - self.past_epochs) * self.task.per_epoch

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def start(self, resume: bool) -> None:
        """Continues from the checkpoint, or writes the first one."""
        if self.keeper is None:
            if resume:
                raise ArgumentError("train: resume=True needs the folder of the run, got checkpoint=None")
            return
        path = self.keeper.path
        files.remove_leftovers(path)
        if path.exists():
            if not resume:
                raise ArgumentError(
                    f"{path}: there is a checkpoint of an earlier run; give resume=True to go on with "
                    "it, or another folder"
                )
            self.keeper.restore(self.now)
        else:
            self.save()

    def save(self) -> None:
        """Writes a checkpoint, if the run has a folder."""
        if self.keeper is None:
            return
        try:
            self.keeper.save(self.now)
        except FileError as error:
            remedy = "make room or give another folder"
            if self.keeper.path.exists():
                remedy = "the run can be resumed from the checkpoint before once there is room"
            raise TrainingStopped(
                f"train: stopped in epoch {self.now.epoch} after {self.now.step} steps: {error}; {remedy}", self.fit()
            ) from error
        self._saved_at = time.monotonic()

    # ----------------------------------------------------------------------------------------------------------- epochs
    def go(self, interrupted: Callable[[], bool], callbacks: Sequence[Callback], show: Quiet) -> None:
        """Makes all epochs that are left."""
        while self.now.epoch <= self.epochs:
            self._run_epoch(interrupted, show)
            row = self._end_epoch()
            show.epoch(row)
            if True in [callback(row, self.fit()) is True for callback in callbacks]:
                break
            if time.monotonic() - self._saved_at > SAVE_EVERY:
                self.save()
        self.save()

    def _run_epoch(self, interrupted: Callable[[], bool], show: Quiet) -> None:
        now, task = self.now, self.task
        order = np.arange(task.samples)
        if task.order == "shuffled":
            order = np.random.default_rng([task.seed, now.epoch]).permutation(order)
        total, before = self.steps.begin(order, now.epoch, task.partial_batch), self.before
        given = self._schedules(before + np.arange(1, total + 1))
        count = 1
        while now.step < total:
            start, part = time.perf_counter(), slice(now.step, now.step + count)
            self.steps.mark()
            reports = self.steps.run(
                now.step,
                count,
                before=before,
                stop=interrupted,
                **{name: all_steps[part] for name, all_steps in given.items()},
            )
            finite = self.steps.finite()
            took = time.perf_counter() - start
            now.seconds += took
            if not finite:
                self._return_to_finite(given, len(reports))
            self._take_in(reports)
            show.steps(now.epoch, now.step, total, reports)
            if interrupted():
                self._stop_interrupted()
            if time.monotonic() - self._saved_at > 10 * SAVE_EVERY:
                self.save()
            count = max(1, min(4 * count, int(SLICE * len(reports) / max(took, 1e-9))))

    def _schedules(self, k: np.ndarray) -> dict[str, np.ndarray]:
        """The values of all schedules at the steps k of the current epoch."""
        optimizer, penalty, epoch = self.task.optimizer, self.task.regularizer, self.now.epoch
        given = {"rate": values(optimizer.lr, k, epoch, type(optimizer).__name__)}
        if penalty is not None:
            for name, usual in (("mu", 1.0), ("tol", 0.0)):
                given[name] = values(getattr(penalty, name, usual), k, epoch, f"{type(penalty).__name__} {name}")
        return given

    def _take_in(self, reports: np.ndarray) -> None:
        """Adds the reports of the steps that were made; ends the run at one that was not."""
        now, finite = self.now, is_finite(reports)
        good = reports[finite]
        now.reports = np.concatenate([now.reports, good])
        now.step += len(good)
        if not finite.all():
            what = "spectral radius" if np.isfinite(reports[-1, Report.LOSS]) else "loss"
            self._stop(f"{what} is not finite in")

    def _return_to_finite(self, given: dict[str, np.ndarray], count: int) -> None:
        """One of the last ``count`` steps led to parameters that are not finite: repeats them from the mark, one by
        one, up to the step before that one, and ends the run there."""
        self.steps.back()
        before = self.before
        for step in range(self.now.step, self.now.step + count):
            self.steps.mark()
            report = self.steps.run(step, 1, before=before, **{name: numbers[step] for name, numbers in given.items()})
            if not self.steps.finite():
                self.steps.back()
                break
            self._take_in(report)
        self._stop("parameters are not finite after")

    def _stop(self, what: str) -> None:
        """Ends the run at the last good step; the message says what happened in the next one."""
        self.save()
        saved = "" if self.keeper is None else f"; the last good step is in {self.keeper.path}"
        raise TrainingStopped(
            f"train: the {what} epoch {self.now.epoch}, step {self.now.step + 1}: a smaller learning rate or "
            f"mu, or clip=..., may help{saved}",
            self.fit(),
        )

    def _stop_interrupted(self) -> None:
        self.save()
        where = f"interrupted in epoch {self.now.epoch} after {self.now.step} of {self.task.per_epoch} steps"
        raise TrainingInterrupted(where if self.folder is None else f"{where}; saved in {self.folder}", self.fit())

    def _end_epoch(self) -> Row:
        start, now, task = time.perf_counter(), self.now, self.task
        self.steps.end_epoch(now.epoch)
        found, row = self.steps.result(), self._row()
        if task.validation is not None:
            row["valid_loss"], row["valid_accuracy"] = evaluate(
                task.net, task.loss, found["w"], *task.validation, state=state_of(found)
            )
        now.seconds += time.perf_counter() - start
        row["seconds"] = now.seconds
        now.history.append(row)
        if task.validation is None or self._is_best():
            now.best, now.best_epoch = found, now.epoch
        now.profiled += now.reports[:, TIMES].sum(axis=0)
        now.epoch, now.step, now.seconds, now.reports = now.epoch + 1, 0, 0.0, blank(0)
        return row

    def _row(self) -> Row:
        """The row of the history of an epoch whose steps are done."""
        reports, penalty = self.now.reports, self.task.regularizer
        mean = means(reports)
        seen = min(self.task.samples, len(reports) * self.task.batch_size)
        row: Row = {
            "epoch": self.now.epoch,
            "loss": mean["loss"],
            "accuracy": mean["correct"] * len(reports) / seen,
        }
        if penalty is not None:
            above = reports[:, Report.RHO] > getattr(penalty, "K", -np.inf)
            row.update(
                rho=mean["rho"],
                residual=mean["residual"],
                hvps=int(reports[:, Report.HVPS].sum()),
                skipped=int(((reports[:, Report.PENALTY] == 0) & above).sum()),
            )
        return row

    def _is_best(self) -> bool:
        def key(row: Row) -> float:
            return row["valid_accuracy"] if np.isfinite(row["valid_accuracy"]) else -row["valid_loss"]

        *earlier, last = self.now.history
        return all(key(last) > key(row) for row in earlier)

    # ------------------------------------------------------------------------------------------------------ the result
    def ended(self) -> Fit:
        """The fit of a run that has come to its end."""
        fit, task = self.fit(), self.task
        fit.collapsed = has_collapsed(task.net, task.loss, fit.w_last, task.x, task.y, state=fit.state_last)
        return fit

    def fit(self) -> Fit:
        """The run so far."""
        now, last = self.now, self.steps.model()
        best = now.best if now.history else last
        parts = dict(zip(("gradient", "power", "r2", "rest"), (now.profiled * 1e-9).tolist(), strict=True))
        # K-FAC's factors belong to rows of these data
        memory = {
            name: array.copy()
            for name, array in self.steps.arrays.items()
            if name not in last and not name.startswith("kfac/")
        }
        return Fit(
            best["w"].copy(),
            state_of(best),
            list(now.history),
            last["w"],
            state_of(last),
            now.best_epoch,
            parts,
            memory,
            now.epoch - 1,
            self.before + now.step,
        )


def recall(steps: Steps, earlier: Fit) -> None:
    """Restores the memory of the optimizer and of the penalty from an earlier fit."""
    arrays, memory = steps.arrays, earlier.memory
    if type(innermost_rule(steps.optimizer)) in (SGD, Adam) and ("squares" in arrays) != ("squares" in memory):
        given, before = type(steps.optimizer).__name__, "SGD" if "squares" in arrays else "Adam"
        raise ArgumentError(
            f"train: expected optimizer=rop.{before}(...), as in the fit to go on from, got "
            f"{given}; to start anew from its parameters give w=fit.w_last, state=fit.state_last"
        )
    known = {name: memory[name] for name in arrays.keys() & memory.keys()}
    for name, array in known.items():
        if array.shape != arrays[name].shape:
            raise ArgumentError(
                f"train: expected {name!r} of shape {arrays[name].shape} in the memory of the fit to go on from, got "
                f"{array.shape}; to start anew from its parameters give w=fit.w_last, state=fit.state_last"
            )
    steps.restore({**arrays, **known})


def state_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The running statistics among the arrays of steps (copies)."""
    return {name.removeprefix("state/"): array.copy() for name, array in arrays.items() if name.startswith("state/")}


@contextmanager
def _shown(progress: bool, run: _Run) -> Iterator[Quiet]:
    if not progress:
        yield Quiet()
        return
    with shown(run.epochs, run.task.per_epoch) as show:
        for row in run.now.history:
            show.epoch(row)
        yield show
