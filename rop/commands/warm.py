"""`rop warm`: compiles all kernels ahead of use, for this machine or for others of a kind."""

from __future__ import annotations

import argparse
from pathlib import Path

from rop.commands.common import Commands, add_command
from rop.kernels.cpu.vector import LEVELS
from rop.kernels.ship import run_for

DTYPES = ("float32", "float64")

DETAILS = """Compile all kernels ahead of use. Without it, the first network that needs a kernel compiles it.

--out makes a folder that other machines can use, with the same versions of rop, Numba and Python: its name says them.
--for compiles for every CPU of a kind instead of for exactly that of this machine, which must be of that kind as well.
A machine uses the folder if it names it and asks for the kind:

    ROP_CACHE_DIR=DIR NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES= python …

The folder must belong to its user or to root, and nobody else may write to it. SHA256SUMS in it has the digest of
every file (sha256sum -c checks them by hand); a folder of which a file is missing or has changed is not used, which is
said in a line, and kernels are compiled as if it were not there. In a process that asks for a kind, Numba compiles all
other functions for it, too.
"""
EXAMPLES = """examples:
  rop warm
  rop warm --dtype float32 --for x86-64-v3 --out kernels
"""


def add(commands: Commands) -> None:
    """The parser of `rop warm`."""
    about = "compile all kernels ahead of use, for this machine or a folder for others"
    parser = add_command(commands, "warm", run, about, EXAMPLES, DETAILS)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="precisions (default: both)")
    parser.add_argument(
        "--for", dest="kind", choices=sorted(LEVELS), help="kind of CPU (default: that of this machine)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: where rop keeps kernels anyway)")


def run(options: argparse.Namespace) -> int:
    """Compile in a process of its own, because a process compiles for one kind of CPU."""
    return run_for(options.kind, options.out, options.dtype)
