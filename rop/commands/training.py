"""`rop train`, `rop resume`, `rop eval`, `rop spectrum`: runs in folders."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import rop
from rop.commands.common import FAILED, INTERRUPTED, OK, add_command, note_missing, positive
from rop.devices import DEVICES, check_device
from rop.experiments import EXPERIMENTS, SETTINGS
from rop.optim import SGD, SOLVERS, Adam, Optimizer, cosine, inverse_epoch

EXAMPLES = """examples:
  rop train digits                                        the embedded data set, half a minute
  rop train forest --data DIR --epochs 20 --out runs/f    the paper's forest net with the penalty, kept in runs/f
  rop train forest --data DIR --mu 0                      the same without the penalty
  rop train usps --solver track --json --quiet            two H·v products a step; one line of JSON at the end
  rop resume runs/f                                       go on after Ctrl-C, or after anything else
  rop eval runs/u --on mnist                              a net trained on USPS, tested on MNIST
  rop spectrum runs/f --k 5                               eigenvalues of the Hessian on the whole training set

The data sets forest, usps and mnist are read from the publishers' files in --data DIR or $ROP_DATA.
"""


def add(commands: Any) -> None:
    _add_train(commands)
    resume = add_command(commands, "resume", run_resume, "go on with a run that was interrupted", EXAMPLES)
    resume.add_argument("run", type=Path, metavar="RUN", help="its folder")
    resume.add_argument("--epochs", type=positive, metavar="N", help="train to this number of epochs instead")
    _add_device(resume)
    _add_common(resume)
    evaluate = add_command(commands, "eval", run_eval, "test a trained net on its data set or on another one", EXAMPLES)
    evaluate.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    evaluate.add_argument("--on", choices=sorted(EXPERIMENTS), help="another data set with images of the same size")
    _add_common(evaluate, profile=False)
    spectrum = add_command(commands, "spectrum", run_spectrum, "eigenvalues and density of the Hessian", EXAMPLES)
    spectrum.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    spectrum.add_argument("--k", type=positive, default=5, metavar="N", help="eigenvalues at each end (default 5)")
    spectrum.add_argument("--probes", type=positive, default=4, metavar="N", help="of the density (default 4)")
    spectrum.add_argument("--steps", type=positive, default=40, metavar="N", help="Lanczos steps of each (default 40)")
    _add_common(spectrum, profile=False)


def _add_common(parser: argparse.ArgumentParser, profile: bool = True) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder with the data set's files (default $ROP_DATA)")
    parser.add_argument("--quiet", action="store_true", help="show nothing but results")
    parser.add_argument("--json", action="store_true", help="end with one line that holds a JSON object")
    if profile:
        parser.add_argument("--profile", action="store_true", help="say where the time went")


def _add_device(parser: Any, default: str | None = None) -> None:
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=default,
        help=f"where to compute; auto: a GPU if one can be used (default {default or 'that of the run'})",
    )


def _add_train(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        run_train,
        "train a net, with the spectral radius as penalty",
        EXAMPLES,
        "Trains a net of the paper: min f(w) + mu*max(0, rho(w) - K). Defaults are the paper's settings.",
    )
    parser.add_argument("dataset", choices=list(EXPERIMENTS), help="which data, net and defaults")
    parser.add_argument(
        "--setting",
        choices=SETTINGS,
        default="paper",
        help="paper: nets as published, softmax fed to cross-entropy, forest's inner layers tied; "
        "plain: logits, untied (default paper)",
    )
    penalty = parser.add_argument_group("penalty")
    penalty.add_argument("--mu", type=not_negative, metavar="X", help="its weight; 0: plain training")
    penalty.add_argument("--K", type=not_negative, metavar="X", help="what the spectral radius may be for free")
    penalty.add_argument("--solver", choices=SOLVERS, help="of the dominant eigenpair (default power)")
    penalty.add_argument("--tol", type=not_negative, metavar="X", help="its tolerance (default 1e-3)")
    penalty.add_argument(
        "--stop",
        choices=("paper", "relative"),
        help="what the tolerance bounds: paper: the residual or the relative change of the "
        "eigenvalue; relative: the residual over the eigenvalue (default paper)",
    )
    penalty.add_argument("--maxiter", type=positive, metavar="N", help="most iterations a step (default 100)")
    penalty.add_argument("--products", type=positive, metavar="N", help="products a step of track (default 2)")
    penalty.add_argument("--clip", type=not_negative, metavar="X", help="longest gradient of the spectral radius")
    penalty.add_argument(
        "--limit",
        type=limit,
        default=0.5,
        metavar="X",
        help="the part of the spectral radius that one step may take away, to first order; none: the "
        "paper's algorithm to the letter (default 0.5)",
    )
    penalty.add_argument("--cold-start", action="store_true", help="start every solve from a random vector")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=positive, metavar="N")
    training.add_argument("--batch-size", type=positive, metavar="N")
    training.add_argument("--optimizer", choices=("sgd", "adam"))
    training.add_argument("--lr", type=not_negative, metavar="X", help="learning rate at the start")
    training.add_argument(
        "--schedule",
        choices=("constant", "inverse-epoch", "cosine"),
        help="of the learning rate (forest: inverse-epoch, else constant)",
    )
    training.add_argument("--momentum", type=not_negative, default=0.0, metavar="X", help="of sgd (default 0)")
    training.add_argument("--nesterov", action="store_true")
    training.add_argument("--weight-decay", type=not_negative, default=0.0, metavar="X", help="(default 0)")
    training.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    training.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default float32)")
    _add_device(training, "cpu")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run: keeps config, history and weights")
    _add_common(parser)


def not_negative(text: str) -> float:
    """
    >>> not_negative("1e-3")
    0.001
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (0 <= number < float("inf")):
        raise argparse.ArgumentTypeError(f"expected a number from 0 up, got {text!r}")
    return number


def limit(text: str) -> float | None:
    """
    >>> limit("0.25"), limit("none")
    (0.25, None)
    """
    try:
        number = None if text == "none" else float(text)
    except ValueError:
        number = 0.0
    if number is not None and not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, or none, got {text!r}")
    return number


# ------------------------------------------------------------------------------------------------------------ commands
def run_train(options: argparse.Namespace) -> int:
    from rop.experiments.runs import Run, new_config

    penalty = {name: getattr(options, name) for name in ("K", "solver", "tol", "stop", "maxiter", "clip", "products")}
    given: dict[str, Any] = {name: value for name, value in penalty.items() if value is not None}
    given["limit"] = options.limit
    if options.cold_start:
        given["warm_start"] = False
    config = new_config(
        options.dataset,
        setting=options.setting,
        mu=options.mu,
        epochs=options.epochs,
        batch_size=options.batch_size,
        optimizer=chosen_optimizer(options),
        seed=options.seed,
        dtype=options.dtype,
        device=options.device,
        data=options.data,
        **given,
    )
    check_device("train", options.device)
    run = Run(config, options.out)
    run.data(options.data)  # what is missing is said before a folder is made
    run.create()
    return _train(run, options)


def run_resume(options: argparse.Namespace) -> int:
    from rop.experiments.runs import Run

    run = Run.open(options.run)
    if options.epochs:
        run.config["epochs"] = options.epochs
    if options.device:
        run.config["device"] = options.device
    return _train(run, options)


def chosen_optimizer(options: argparse.Namespace) -> Optimizer | None:
    """What the options say about the optimizer on top of the experiment's; None if they say nothing."""
    experiment = EXPERIMENTS[options.dataset]
    default = experiment.optimizer(options.batch_size or experiment.batch_size)
    name = options.optimizer or ("adam" if isinstance(default, Adam) else "sgd")
    same = name == ("adam" if isinstance(default, Adam) else "sgd")
    usual: Any = getattr(default.lr, "start", default.lr) if same else (1e-3 if name == "adam" else 0.1)
    start = float(usual if options.lr is None else options.lr)
    epochs = options.epochs or experiment.epochs
    kind = options.schedule or ("inverse-epoch" if same and isinstance(default.lr, inverse_epoch) else "constant")
    lr: Any = {"constant": start, "inverse-epoch": inverse_epoch(start), "cosine": cosine(start, epochs)}[kind]
    if name == "adam":
        if options.momentum or options.nesterov:
            raise rop.ArgumentError("--momentum and --nesterov belong to --optimizer sgd")
        return Adam(lr=lr, weight_decay=options.weight_decay)
    return SGD(lr=lr, momentum=options.momentum, nesterov=options.nesterov, weight_decay=options.weight_decay)


def _train(run: Any, options: argparse.Namespace) -> int:
    from rop.training.run import TrainingInterrupted

    if not options.quiet:
        print(
            f"{run.title()}: {run.net.size} parameters, {run.config['epochs']} epochs, batch "
            f"{run.config['batch_size']}, seed {run.config['seed']}",
            file=sys.stderr,
        )
    try:
        fit = run.train(options.data, progress=_progress(options), profile=options.profile)
    except TrainingInterrupted as stop:
        print(f"rop: {stop}" + ("" if run.folder is None else f"; rop resume {run.folder} goes on"), file=sys.stderr)
        return INTERRUPTED
    results = run.results(fit)
    if fit.collapsed:
        print(
            "rop: the net has collapsed: it predicts one class for every sample and its gradient vanishes; --limit "
            "0.5, a smaller --lr or --mu, or another --seed may help",
            file=sys.stderr,
        )
    _show(results, options, [f"written to {run.folder}"] if run.folder else [])
    if run.folder and not find_spec("matplotlib"):
        note_missing("curves.png", "matplotlib", "train")
    if options.profile and any(fit.profile.values()):
        _show_profile(fit.profile)
    return _finish(results, options)


def _progress(options: argparse.Namespace) -> bool:
    """Whether a progress bar is shown: training does not depend on it."""
    if not options.quiet and not find_spec("rich"):
        note_missing("progress bar", "rich", "train")
    return not options.quiet and find_spec("rich") is not None


def _show(results: dict[str, Any], options: argparse.Namespace, notes: list[str]) -> None:
    if options.quiet and options.json:
        return
    labels = {
        "test_accuracy": "test accuracy",
        "valid_accuracy": "validation accuracy",
        "test_loss": "test loss",
        "rho": "ρ on the whole training set",
        "batch_rho": "ρ of the last epoch's batches",
        "hvps": "H·v products",
        "seconds": "training time",
    }
    for name, label in labels.items():
        if results.get(name) is not None:
            print(f"{label:30}{shown(name, results[name])}")
    for note in notes:
        print(note)


def shown(name: str, value: float) -> str:
    """A result with its unit.

    >>> shown("test_accuracy", 0.714), shown("hvps", 12345), shown("seconds", 3.21)
    ('71.40 %', '12,345', '3.2 s')
    """
    if name.endswith("accuracy"):
        return f"{100 * value:.2f} %"
    if name == "hvps":
        return f"{value:,}"
    return f"{value:.1f} s" if name == "seconds" else f"{value:.4g}"


def _show_profile(profile: dict[str, float]) -> None:
    total = sum(profile.values())
    names = {"gradient": "loss and gradient", "power": "eigenpair (H·v)", "r2": "gradient of ρ (R²)", "rest": "update"}
    print("where the time of the steps went:")
    for name, label in names.items():
        print(f"  {label:20}{profile[name]:9.2f} s{100 * profile[name] / total:7.1f} %")


def _finish(results: dict[str, Any], options: argparse.Namespace) -> int:
    from rop.experiments.runs import one_line

    if options.json:
        print(one_line(results), flush=True)
    return OK


def run_eval(options: argparse.Namespace) -> int:
    from rop import datasets
    from rop.experiments.runs import Run
    from rop.training.run import evaluate

    run = Run.open(options.run)
    w, state = run.weights()
    name = options.on or run.config["dataset"]
    if options.on is None:
        found = run.data(options.data)
    else:
        found = datasets.load(name, options.data or run.config["data"], **EXPERIMENTS[name].options)
    try:
        loss, accuracy = evaluate(run.net, run.loss, w, *found.test, state=state or None)
    except rop.RopError as error:
        raise rop.ArgumentError(f"{options.run}: its net does not fit the data set {name}: {error}") from error
    results = {"dataset": name, "test_accuracy": accuracy, "test_loss": loss, "samples": len(found.test[1])}
    _show(results, options, [] if options.quiet else [f"{len(found.test[1]):,} test samples of {name}"])
    return _finish(results, options)


def run_spectrum(options: argparse.Namespace) -> int:
    from rop.experiments.runs import Run, pyplot

    run = Run.open(options.run)
    w, state = run.weights()
    run.data(options.data)
    point = run.full_objective(w, state).at(w)
    k = min(options.k, max(1, run.net.size // 2))
    ends = {which: rop.eigen.lanczos(point, k=k, which=which, tol=1e-2, maxiter=300) for which in ("LA", "SA")}
    density = rop.eigen.density(point, probes=options.probes, steps=min(options.steps, run.net.size))
    results = {
        "largest": ends["LA"].values.tolist(),
        "smallest": ends["SA"].values.tolist(),
        "rho": float(max(abs(ends["LA"].value), abs(ends["SA"].value))),
        "converged": bool(ends["LA"].converged and ends["SA"].converged),
        "loss": point.loss,
        "gradient_norm": float(np.linalg.norm(point.grad)),
    }
    if not (options.quiet and options.json):
        for name in ("largest", "smallest"):
            print(f"{name:10}" + "  ".join(f"{value:.4g}" for value in results[name]))
        print(f"{'ρ':10}{results['rho']:.4g}")
    path = options.run / "spectrum.png"
    plt = pyplot()
    if plt is None:
        note_missing("spectrum.png", "matplotlib", "train")
    else:
        _plot_density(plt, density, path, run.title())
        if not options.quiet:
            print(f"density written to {path}")
    if not results["converged"]:
        print("rop spectrum: not all eigenvalues have converged", file=sys.stderr)
    _finish(results, options)
    return OK if results["converged"] else FAILED


def _plot_density(plt: Any, density: Any, path: Path, title: str) -> None:
    from rop.training.checkpoint import write_atomically

    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axis.semilogy(density.grid, np.maximum(density.density, 1e-6))
    axis.set(xlabel="eigenvalue", ylabel="density", title=f"Hessian of {title}", ylim=(1e-5, None))
    axis.grid(alpha=0.3)
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))
    plt.close(figure)
