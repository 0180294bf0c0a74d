"""`rop eval`: tests a trained net on its data set or on another one."""

from __future__ import annotations

import argparse
from pathlib import Path

import rop
from rop.commands.common import Commands, add_command
from rop.commands.runs import EXAMPLES, add_common, finish, show
from rop.experiments import EXPERIMENTS


def add(commands: Commands) -> None:
    """The parser of `rop eval`."""
    parser = add_command(commands, "eval", run, "test a trained net on its data set or on another one", EXAMPLES)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--on", choices=sorted(EXPERIMENTS), help="another data set with images of the same size")
    add_common(parser, profile=False)


def run(options: argparse.Namespace) -> int:
    """Load weights and test data, and show loss and accuracy."""
    from rop import datasets
    from rop.experiments.runs import Run
    from rop.training.run import evaluate

    trained = Run.open(options.run)
    w, state = trained.weights()
    name = options.on or trained.config["dataset"]
    if options.on is None:
        found = trained.data(options.data)
    else:
        found = datasets.load(name, options.data or trained.config["data"], **EXPERIMENTS[name].options)
    try:
        loss, accuracy = evaluate(trained.net, trained.loss, w, *found.test, state=state or None)
    except rop.RopError as error:
        raise rop.ArgumentError(f"{options.run}: its net does not fit the data set {name}: {error}") from error
    results = {"dataset": name, "test_accuracy": accuracy, "test_loss": loss, "samples": len(found.test[1])}
    show(results, options, [] if options.quiet else [f"{len(found.test[1]):,} test samples of {name}"])
    return finish(results, options)
