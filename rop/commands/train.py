"""`rop train`: trains a net on a data set, with the spectral radius as penalty."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import rop
from rop.commands.common import Commands, add_command, positive
from rop.commands.runs import EXAMPLES, add_common, add_device, train_run
from rop.devices import LAYOUTS, check_device
from rop.experiments import EXPERIMENTS, SETTINGS
from rop.experiments.settings import PENALTIES
from rop.kernels.rules import STOP_RULES
from rop.optim import SOLVERS, Optimizer, cosine, inverse_epoch, optimizers
from rop.optim.plain import spelled
from rop.optim.start import STARTS
from rop.training.arguments import ORDERS

PENALTY_SETTINGS = ("K", "solver", "tol", "stop", "maxiter", "clip", "products", "start_vector", "k", "samples")
# Settings of methods that have an option of their own. Those of all methods share one group: an option belongs to every
# method whose class has a field of that name, and is refused with the others.
METHOD_SETTINGS = (
    *("momentum", "nesterov", "weight_decay", "radius", "adaptive", "first", "last", "every"),
    *("steps", "gamma", "scoping", "noise", "inner_lr", "beta"),
    *("decay", "damping", "kl_clip", "covariance_every", "inverse_every"),
)


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
    _add_methods(parser.add_argument_group("methods, see docs/training.md"))
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
        choices=STOP_RULES,
        help="what the tolerance bounds: paper: the residual or the relative change of the "
        "eigenvalue; published: also stop when the residual stalls, as the authors' code does; relative: the residual "
        "over the eigenvalue (default paper)",
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
    penalty.add_argument("--cold-start", action="store_true", help="start every solve from a new vector")
    penalty.add_argument("--start-vector", choices=STARTS, help="what a new vector is (default random)")
    penalty.add_argument(
        "--unsigned", action="store_true", help="leave sign(lambda) out of the gradient, as the authors' code does"
    )


def _add_training(training: argparse._ArgumentGroup) -> None:
    """Options of the training run."""
    training.add_argument("--epochs", type=positive, metavar="N")
    training.add_argument("--batch-size", type=positive, metavar="N")
    training.add_argument(
        "--method",
        "--optimizer",
        dest="method",
        choices=sorted(optimizers()),
        help="how steps are made; --optimizer is another name of this option (default: forest sgd, else adam)",
    )
    training.add_argument("--lr", type=not_negative, metavar="X", help="learning rate at the start")
    training.add_argument(
        "--schedule",
        choices=("constant", "inverse-epoch", "cosine"),
        help="of the learning rate (forest: inverse-epoch, else constant)",
    )
    training.add_argument("--order", choices=ORDERS, default="shuffled", help="of the samples (default shuffled)")
    training.add_argument("--partial-batch", action="store_true", help="end epochs with the samples that are left over")
    training.add_argument("--layout", choices=LAYOUTS, help="how images lie in memory (default by an estimate)")
    training.add_argument("--no-winograd", action="store_true", help="compute all convolutions by direct sums")
    training.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    training.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default float32)")
    add_device(training, "cpu")


def _add_methods(methods: argparse._ArgumentGroup) -> None:
    """Options that are settings of methods."""

    def number(option: str, help: str, **others: Any) -> None:
        methods.add_argument(option, **{"type": not_negative, "metavar": "X", **others}, help=help)

    whole: dict[str, Any] = {"type": positive, "metavar": "N"}
    number("--momentum", "of sgd, entropy-sgd and kfac (default 0 for sgd, else 0.9)")
    methods.add_argument(
        "--nesterov", action=argparse.BooleanOptionalAction, help="momentum of sgd (default no) and entropy-sgd (yes)"
    )
    number("--weight-decay", "(default that of the method: 0 for those of rop)")
    methods.add_argument(
        "--base",
        choices=[name for name in sorted(optimizers()) if name != "swa"],
        help="the optimizer inside of sam (sgd or adam) or of swa (default that of the data set)",
    )
    number("--radius", "of sam: how far away the worst point is (default 0.05)")
    methods.add_argument("--adaptive", action="store_true", default=None, help="of sam: relative to each parameter")
    number("--first", "of swa: the first epoch in the average (default 1)", **whole)
    number("--last", "of swa: the last one (default the last of the run)", **whole)
    number("--every", "of swa: epochs between two that are averaged (default 1)", **whole)
    number("--steps", "inner steps of entropy-sgd; 0: sgd with Nesterov momentum (default 20)", type=count, metavar="N")
    number("--gamma", "of entropy-sgd: the pull of inner steps at first (default 1e-4)")
    number("--scoping", "of entropy-sgd: how fast that grows a step (default 1e-3)")
    number("--noise", "of entropy-sgd's inner steps (default 1e-4)")
    number("--inner-lr", "learning rate of entropy-sgd's inner steps (default 0.1)")
    number("--beta", "of entropy-sgd's average of inner steps (default 0.75)")
    number("--decay", "of kfac's averages of factors (default 0.95)")
    number("--damping", "of kfac (default 1e-3)")
    number("--kl-clip", "of kfac: the longest step (default 1e-3)")
    number("--covariance-every", "steps between two batches in kfac's factors (default 10)", **whole)
    number("--inverse-every", "steps between two of kfac's eigendecompositions (default 100)", **whole)


def count(text: str) -> int:
    """A whole number from 0 up, as an option gives it.

    >>> count("0")
    0
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 up, got {text!r}")
    return int(text)


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

    penalty = {name: getattr(options, name) for name in PENALTY_SETTINGS}
    given: dict[str, Any] = {name: value for name, value in penalty.items() if value is not None}
    given["limit"] = options.limit
    if options.cold_start:
        given["warm_start"] = False
    if options.unsigned:
        given["signed"] = False
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
        order=options.order,
        partial_batch=options.partial_batch,
        layout=options.layout,
        winograd=not options.no_winograd,
        penalty=options.penalty,
        **given,
    )
    check_device("train", options.device)
    made = Run(config, options.out)
    made.data(options.data)  # missing files are reported before a folder is made
    made.create()
    return train_run(made, options)


def chosen_optimizer(options: argparse.Namespace) -> Optimizer:
    """The experiment's optimizer, changed as the options say. Methods around another optimizer, sam and swa, have it as
    their base unless --base names another one."""
    experiment = EXPERIMENTS[options.dataset]
    default = experiment.optimizer(options.batch_size or experiment.batch_size)
    kinds = _chosen_kinds(type(default), options)
    inner = kinds[-1]
    usual: Any = default.lr if inner is type(default) else inner().lr
    start = float(getattr(usual, "start", usual) if options.lr is None else options.lr)
    epochs = options.epochs or experiment.epochs
    schedule = options.schedule or ("inverse-epoch" if isinstance(usual, inverse_epoch) else "constant")
    lr = {"constant": start, "inverse-epoch": inverse_epoch(start), "cosine": cosine(start, epochs)}[schedule]
    settings = _method_settings(kinds, options)
    made = inner(lr=lr, **_of(inner, settings))
    for kind in reversed(kinds[:-1]):
        made = kind(base=made, **_of(kind, settings))
    return made


def _chosen_kinds(default: type[Any], options: argparse.Namespace) -> list[type[Any]]:
    """The classes of the method, of its base and so on; the last one makes the step."""
    kinds = [optimizers()[options.method] if options.method else default]
    if options.base is not None:
        if not _has(kinds[0], "base"):
            raise _belongs("base", kinds[0])
        kinds.append(optimizers()[options.base])
    while _has(kinds[-1], "base"):
        kinds.append(default)
    return kinds


def _method_settings(kinds: list[type[Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are settings of these classes; those of another class are refused unless they are 0, which
    changes nothing."""
    given = {name: getattr(options, name) for name in METHOD_SETTINGS if getattr(options, name) is not None}
    for name, value in given.items():
        if value and not any(_has(kind, name) for kind in kinds):
            raise _belongs(name, *kinds)
    return given


def _has(kind: type[Any], name: str) -> bool:
    return any(field.name == name for field in fields(kind))


def _of(kind: type[Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that this class has."""
    return {name: value for name, value in settings.items() if _has(kind, name)}


def _belongs(name: str, *kinds: type[Any]) -> rop.ArgumentError:
    """The error for an option of another method."""
    owners = [known for known, other in sorted(optimizers().items()) if _has(other, name)]
    got = " of ".join(spelled(kind.__name__) for kind in kinds)
    return rop.ArgumentError(f"--{name.replace('_', '-')} belongs to --method {' or '.join(owners)}, got {got}")
