"""`rop resume`: goes on with a run that was interrupted."""

from __future__ import annotations

import argparse
from pathlib import Path

from rop.commands.common import Commands, add_command, positive
from rop.commands.runs import EXAMPLES, add_common, add_device, train_run


def add(commands: Commands) -> None:
    """The parser of `rop resume`."""
    parser = add_command(commands, "resume", run, "go on with a run that was interrupted", EXAMPLES)
    parser.add_argument("run", type=Path, metavar="RUN", help="its folder")
    parser.add_argument("--epochs", type=positive, metavar="N", help="train to this number of epochs instead")
    add_device(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Open the run and train on."""
    from rop.experiments.runs import Run

    found = Run.open(options.run)
    if options.epochs:
        found.config["epochs"] = options.epochs
    if options.device:
        found.config["device"] = options.device
    return train_run(found, options)
