"""Shared by the commands on run folders: options, training with its results, and how results are shown."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rop.commands.common import INTERRUPTED, OK, note_missing
from rop.devices import DEVICES

if TYPE_CHECKING:
    from rop.experiments.runs import Run

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


def add_common(parser: argparse.ArgumentParser, profile: bool = True) -> None:
    """Options of every command on runs."""
    parser.add_argument("--data", metavar="DIR", help="folder with the data set's files (default $ROP_DATA)")
    parser.add_argument("--quiet", action="store_true", help="show nothing but results")
    parser.add_argument("--json", action="store_true", help="end with one line that holds a JSON object")
    if profile:
        parser.add_argument("--profile", action="store_true", help="say where the time went")


def add_device(parser: argparse._ActionsContainer, default: str | None = None) -> None:
    """The option --device."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=default,
        help=f"where to compute; auto: a GPU if one can be used (default {default or 'that of the run'})",
    )


def train_run(run: Run, options: argparse.Namespace) -> int:
    """Trains a run, or resumes it, and shows the results."""
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
    show(results, options, [f"written to {run.folder}"] if run.folder else [])
    if run.folder and not find_spec("matplotlib"):
        note_missing("curves.png", "matplotlib", "train")
    if options.profile and any(fit.profile.values()):
        _show_profile(fit.profile)
    return finish(results, options)


def _progress(options: argparse.Namespace) -> bool:
    """Whether a progress bar is shown: training does not depend on it."""
    if not options.quiet and not find_spec("rich"):
        note_missing("progress bar", "rich", "train")
    return not options.quiet and find_spec("rich") is not None


def show(results: dict[str, Any], options: argparse.Namespace, notes: list[str]) -> None:
    """Results with their names and units, then notes."""
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


def finish(results: dict[str, Any], options: argparse.Namespace) -> int:
    """Prints the line of JSON, if it is asked for."""
    from rop.experiments.runs import one_line

    if options.json:
        print(one_line(results), flush=True)
    return OK
