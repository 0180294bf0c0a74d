"""`rop train`: trains a net on a data set, with the spectral radius as penalty."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import rop
from rop.commands.common import Commands, add_command, positive
from rop.commands.runs import EXAMPLES, add_common, add_device, train_run
from rop.devices import check_device
from rop.experiments import EXPERIMENTS, SETTINGS
from rop.experiments.settings import PENALTIES
from rop.optim import SOLVERS, Optimizer, cosine, inverse_epoch, optimizers

OPTIMIZER_SETTINGS = ("momentum", "nesterov", "weight_decay")  # those that have an option of their own


def add(commands: Commands) -> None:
    """The parser of `rop train`."""
    parser = add_command(
        commands,
        "train",
        run,
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
    _add_penalty(parser.add_argument_group("penalty"))
    _add_training(parser.add_argument_group("training"))
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run: keeps config, history and weights")
    add_common(parser)


def _add_penalty(penalty: argparse._ArgumentGroup) -> None:
    """Options of the penalty."""
    penalty.add_argument(
        "--penalty",
        choices=tuple(PENALTIES),
        default="radius",
        help="radius: the spectral radius; top-k: the mean of the k largest |eigenvalues|; trace: their sum, estimated "
        "(default radius)",
    )
    penalty.add_argument("--k", type=positive, metavar="N", help="eigenvalues of top-k (default 4)")
    penalty.add_argument("--samples", type=positive, metavar="N", help="random vectors a step of trace (default 4)")
    penalty.add_argument("--mu", type=not_negative, metavar="X", help="its weight; 0: plain training")
    penalty.add_argument("--K", type=not_negative, metavar="X", help="spectral radius up to which there is no penalty")
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


def _add_training(training: argparse._ArgumentGroup) -> None:
    """Options of the training run."""
    training.add_argument("--epochs", type=positive, metavar="N")
    training.add_argument("--batch-size", type=positive, metavar="N")
    training.add_argument("--optimizer", choices=sorted(optimizers()), help="(forest: sgd, else adam)")
    training.add_argument("--lr", type=not_negative, metavar="X", help="learning rate at the start")
    training.add_argument(
        "--schedule",
        choices=("constant", "inverse-epoch", "cosine"),
        help="of the learning rate (forest: inverse-epoch, else constant)",
    )
    training.add_argument("--momentum", type=not_negative, metavar="X", help="of sgd (default 0)")
    training.add_argument("--nesterov", action="store_true", default=None, help="of sgd")
    training.add_argument(
        "--weight-decay", type=not_negative, metavar="X", help="(default that of the optimizer: 0 for sgd and adam)"
    )
    training.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    training.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default float32)")
    add_device(training, "cpu")


def not_negative(text: str) -> float:
    """A number from 0 up, as an option gives it.

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
    """A number above 0, or None for the word none.

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


def run(options: argparse.Namespace) -> int:
    """Make the configuration of the run and its folder, then train."""
    from rop.experiments.runs import Run, new_config

    names = ("K", "solver", "tol", "stop", "maxiter", "clip", "products", "k", "samples")
    penalty = {name: getattr(options, name) for name in names}
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
        penalty=options.penalty,
        **given,
    )
    check_device("train", options.device)
    made = Run(config, options.out)
    made.data(options.data)  # missing files are reported before a folder is made
    made.create()
    return train_run(made, options)


def chosen_optimizer(options: argparse.Namespace) -> Optimizer:
    """The experiment's optimizer, changed as the options say."""
    experiment = EXPERIMENTS[options.dataset]
    default = experiment.optimizer(options.batch_size or experiment.batch_size)
    kind: type[Any] = optimizers()[options.optimizer] if options.optimizer else type(default)
    usual: Any = default.lr if kind is type(default) else kind().lr
    start = float(getattr(usual, "start", usual) if options.lr is None else options.lr)
    epochs = options.epochs or experiment.epochs
    schedule = options.schedule or ("inverse-epoch" if isinstance(usual, inverse_epoch) else "constant")
    lr = {"constant": start, "inverse-epoch": inverse_epoch(start), "cosine": cosine(start, epochs)}[schedule]
    return kind(lr=lr, **_optimizer_settings(kind, options))


def _optimizer_settings(kind: type[Any], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are settings of this class of optimizers; those of another class are refused unless they are 0,
    which changes nothing."""

    def has(optimizer: type[Any], name: str) -> bool:
        return any(field.name == name for field in fields(optimizer))

    given = {name: getattr(options, name) for name in OPTIMIZER_SETTINGS if getattr(options, name) is not None}
    for name, value in given.items():
        if value and not has(kind, name):
            owners = [known for known, other in sorted(optimizers().items()) if has(other, name)]
            raise rop.ArgumentError(
                f"--{name.replace('_', '-')} belongs to --optimizer {' or '.join(owners)}, got {kind.__name__.lower()}"
            )
    return {name: value for name, value in given.items() if has(kind, name)}
