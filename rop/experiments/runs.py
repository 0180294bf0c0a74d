"""Run folders: training by the command line, and the evaluation of trained nets.

config.json      the settings of the run, from which everything else follows
checkpoint.npz   the position of the run, from which it can be resumed
history.csv      a row per epoch
weights.npz      w and state, the best on validation data
curves.png       loss, accuracy and ρ by epoch (needs matplotlib)
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import rop
from rop import datasets, optim
from rop.arguments import check_choice, check_int, check_path
from rop.devices import DEVICES
from rop.errors import ArgumentError, FileError, RopError
from rop.experiments.data import EXPERIMENTS, experiment
from rop.experiments.settings import SETTINGS
from rop.experiments.settings import penalty as made_penalty
from rop.training import checkpoint as files
from rop.training.arguments import check_computation
from rop.training.resume import LATER_SETTINGS
from rop.training.run import Fit, Row, evaluate, train

CONFIG, HISTORY, WEIGHTS, CURVES = "config.json", "history.csv", "weights.npz", "curves.png"
FORMAT, VERSION = "rop run", 2  # runs of version 1 have no digest in their configuration
LARGEST_CONFIG = 2**20  # bytes


class Run:
    """A run, by its configuration; ``folder`` is None for one that is not kept."""

    def __init__(self, config: dict[str, Any], folder: Path | None):
        self.config = config
        self.folder = None if folder is None else check_path("run", "out", folder, folder=True)
        _check_config(config)
        self.experiment = experiment(config["dataset"])
        self.net = self.experiment.net(config["setting"])
        self.loss = rop.CrossEntropy()
        self.optimizer = optim.revive(config["optimizer"])
        self.regularizer = optim.revive(config["regularizer"])
        self._data: datasets.DataSet | None = None

    @property
    def device(self) -> str:
        """Where it computes; runs of earlier versions had no choice."""
        return str(self.config.get("device", "cpu"))

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in a folder."""
        path = Path(folder) / CONFIG
        try:
            with open(path, "rb") as file:
                config = json.loads(file.read(LARGEST_CONFIG).decode("utf-8"))
        except FileNotFoundError:
            raise ArgumentError(
                f"{folder}: expected the folder of a run, with a file {CONFIG}, found none; rop train "
                f"DATASET --out {folder} makes one"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{path}: expected the configuration of a run, got {error}") from error
        if not isinstance(config, dict) or config.get("format") != FORMAT or config.get("version") not in (1, VERSION):
            raise ArgumentError(f"{path}: expected the configuration of a run of this version of rop, got another file")
        written = config.pop("digest", None)
        if written != _digest(config) and not (written is None and config["version"] == 1):
            raise ArgumentError(
                f"{path}: expected the configuration as it was written, got one that was changed or "
                "damaged since (its digest is another); bring back a copy"
            )
        try:
            return cls(config, Path(folder))
        except (RopError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArgumentError(f"{path}: expected the configuration of a run, got {reason}") from error

    def data(self, where: str | None = None) -> datasets.DataSet:
        """The data set, from the given folder or from that of the configuration."""
        if self._data is None:
            name = self.config["dataset"]
            self._data = datasets.load(name, where or self.config["data"], **self.experiment.options)
        return self._data

    def create(self) -> None:
        """Makes the folder; from then on the run can be resumed."""
        if self.folder is None:
            return
        if (self.folder / CONFIG).exists():
            raise ArgumentError(
                f"{self.folder}: there is a run in this folder; rop resume {self.folder} goes on with "
                "it, --out names another one"
            )
        text = json.dumps({**self.config, "digest": _digest(self.config)}, indent=2)
        try:
            files.write_text(self.folder / CONFIG, text + "\n")
        except FileError as error:
            raise ArgumentError(
                f"{self.folder}: expected a folder to write to, got {error.__cause__}; --out names another one"
            ) from error

    def train(self, data: str | None = None, progress: bool = False, profile: bool = False) -> Fit:
        """Trains, or continues a run, and writes the results into the folder."""
        self._check_begun()
        found = self.data(data)
        options = {name: self.config[name] for name in ("epochs", "batch_size", "seed", "dtype")}
        options["device"] = self.device
        options |= {name: self.config.get(name, usual) for name, usual in LATER_SETTINGS.items()}
        try:
            fit = train(
                self.net,
                self.loss,
                found.train,
                validation=found.validation,
                optimizer=self.optimizer,
                regularizer=self.regularizer,
                checkpoint=self.folder,
                resume=self.folder is not None,
                progress=progress,
                profile=profile,
                callbacks=[self._keep_history],
                **options,
            )
            if self.folder is not None:
                self.write(fit)
        except FileError as error:
            raise FileError(f"{error}. rop resume {self.folder} goes on when that is mended") from error
        return fit

    def _check_begun(self) -> None:
        """Removes files that were left half written, and refuses a folder with results but without a checkpoint: a run
        that starts again would overwrite its own results."""
        if self.folder is None:
            return
        for name in (CONFIG, HISTORY, WEIGHTS, CURVES):
            files.remove_leftovers(self.folder / name)
        results = [name for name in (HISTORY, WEIGHTS) if (self.folder / name).exists()]
        if results and not (self.folder / files.FILE).exists():
            raise ArgumentError(
                f"{self.folder / files.FILE}: expected the checkpoint of a run that has begun, as "
                f"{results[0]} shows, found none; bring back a copy, or move {' and '.join(results)} "
                "away to start again"
            )

    def _keep_history(self, row: Row, fit: Fit) -> None:
        if self.folder is not None and len(fit.history) % 10 == 1:
            files.write_text(self.folder / HISTORY, history_text(fit.history))

    def write(self, fit: Fit) -> None:
        """history.csv, weights.npz and, where matplotlib is installed, curves.png."""
        assert self.folder is not None
        files.write_text(self.folder / HISTORY, history_text(fit.history))
        arrays = {"w": fit.w, **{f"state/{name}": value for name, value in fit.state.items()}}
        files.write_atomically(self.folder / WEIGHTS, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        plot_curves(fit.history, self.folder / CURVES, self.title())

    def title(self) -> str:
        """The data set and the penalty, for the first line of output and for plots."""
        r = self.regularizer
        kind = "" if r is None or isinstance(r, optim.SpectralRadius) else f"{type(r).__name__}, "
        return f"{self.config['dataset']}, {kind}" + (f"μ = {r.mu:g}, K = {r.K:g}" if r else "no penalty")

    def weights(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Parameters and state of a run that has ended, or of its last checkpoint."""
        assert self.folder is not None
        path, before = self.folder / WEIGHTS, ""
        forms: dict[str, Any] = {"w": ((self.net.size,), self.config["dtype"])}
        forms |= {f"state/{name}": (value.shape, self.config["dtype"]) for name, value in self.net.init_state().items()}
        if path.exists():
            arrays = files.load_arrays(path, "weights", forms)
        elif (self.folder / files.FILE).exists():
            path, before = self.folder / files.FILE, "best/"
            best = {before + name: form for name, form in forms.items()}
            _, arrays = files.load(path, lambda meta: best, part=before)
        else:
            raise ArgumentError(f"{self.folder}: expected weights, but the run has not begun; rop resume {self.folder}")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ArgumentError(f"{path}: expected finite numbers for {name!r}, got NaN or Inf")
        named = {name.removeprefix(before): array for name, array in arrays.items()}
        return named.pop("w"), {name.removeprefix("state/"): array for name, array in named.items()}

    # -------------------------------------------------------------------------------------------------------- results
    def full_objective(self, w: np.ndarray, state: dict[str, np.ndarray]) -> rop.Objective:
        """The loss on the whole training set, with running statistics."""
        x, y = self.data().train
        return rop.Objective(
            self.net, self.loss, x, y, dtype=w.dtype, training=False, state=state or None, device=self.device
        )

    def results(self, fit: Fit) -> dict[str, Any]:
        """The results of a run on the test set and on the whole training set."""
        found = self.data()
        start = time.perf_counter()
        test_loss, test_accuracy = evaluate(self.net, self.loss, fit.w, *found.test, state=fit.state or None)
        _, valid_accuracy = evaluate(self.net, self.loss, fit.w, *found.validation, state=fit.state or None)
        largest = rop.eigen.lanczos(self.full_objective(fit.w, fit.state).at(fit.w), tol=1e-2, maxiter=60)
        return {
            "test_accuracy": test_accuracy,
            "valid_accuracy": valid_accuracy,
            "test_loss": test_loss,
            "rho": largest.rho,
            "batch_rho": fit.history[-1].get("rho"),
            "collapsed": fit.collapsed,
            "epochs": len(fit.history),
            "hvps": sum(int(row.get("hvps", 0)) for row in fit.history),
            "seconds": sum(row["seconds"] for row in fit.history),
            "evaluation_seconds": time.perf_counter() - start,
        }


def new_config(
    dataset: str,
    *,
    setting: str = "paper",
    mu: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: optim.Optimizer | None = None,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    data: str | None = None,
    order: str = "shuffled",
    partial_batch: bool = False,
    layout: str | None = None,
    winograd: bool = True,
    penalty: str = "radius",
    **regularizer: Any,
) -> dict[str, Any]:
    """The configuration of a run: the experiment's defaults, and the arguments that replace them. ``penalty`` is a key
    of PENALTIES in settings.py, and ``regularizer`` are its settings."""
    usual = experiment(dataset)
    size = usual.batch_size if batch_size is None else batch_size
    return {
        "format": FORMAT,
        "version": VERSION,
        "rop": rop.__version__,
        "dataset": dataset,
        "data": None if data is None else str(Path(data).resolve()),
        "setting": setting,
        "epochs": usual.epochs if epochs is None else epochs,
        "batch_size": size,
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "order": order,
        "partial_batch": partial_batch,
        "layout": layout,
        "winograd": winograd,
        "optimizer": optim.describe(optimizer or usual.optimizer(size)),
        "regularizer": optim.describe(made_penalty(usual.mu if mu is None else mu, penalty, **regularizer)),
    }


def _digest(config: dict[str, Any]) -> str:
    """A digest of a configuration that does not depend on the order and the layout of its text."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def _check_config(config: dict[str, Any]) -> None:
    """Refuses values that no command writes, before anything is made of them."""
    for name, choices in (("dataset", tuple(EXPERIMENTS)), ("setting", SETTINGS), ("dtype", ("float32", "float64"))):
        check_choice("config", name, config[name], choices)
    check_choice("config", "device", config.get("device", "cpu"), tuple(DEVICES))
    for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
        check_int("config", name, config[name], minimum=least)
    check_computation("config", **{name: config.get(name, usual) for name, usual in LATER_SETTINGS.items()})
    if not isinstance(config["data"], (str, type(None))):
        raise ArgumentError(f"config: data must be the path of a folder or nothing, got {config['data']!r}")
    for name, kind in (("optimizer", optim.Optimizer), ("regularizer", optim.Penalty | None)):
        if not isinstance(optim.revive(config[name]), kind):
            raise ArgumentError(f"config: {name} must describe one, got {config[name]!r}")


def history_text(history: list[Row]) -> str:
    """The history as CSV."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in history for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def one_line(results: dict[str, Any]) -> str:
    """Results as one line of JSON; NaN and Inf become null."""
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in results.items()}
    return json.dumps(clean)


def pyplot() -> ModuleType | None:
    """matplotlib's pyplot without a display, or None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_curves(history: list[Row], path: Path, title: str) -> None:
    """Loss, accuracy and ρ by epoch."""
    plt = pyplot()
    if plt is None or not history:
        return
    panels = [
        ("loss", ["loss", "valid_loss"]),
        ("accuracy", ["accuracy", "valid_accuracy"]),
        ("ρ of the batches", ["rho"]),
    ]
    shown = [(label, [n for n in names if n in history[0]]) for label, names in panels]
    shown = [(label, names) for label, names in shown if names]
    figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3), squeeze=False, layout="constrained")
    epochs = [row["epoch"] for row in history]
    for axis, (label, names) in zip(axes[0], shown, strict=True):
        for name in names:
            axis.plot(
                epochs,
                [row[name] for row in history],
                label="validation" if "valid" in name else "training",
                marker="." if len(history) < 40 else "",
            )
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3)
        if len(names) > 1:
            axis.legend(frameon=False)
    figure.suptitle(title)
    files.write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))
    plt.close(figure)
