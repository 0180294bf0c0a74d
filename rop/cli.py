"""The command `rop`: its parser, and how errors become a line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import rop
from rop.commands import bench, check, demo, training
from rop.commands.common import EXIT_CODES, FAILED, INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and turn the package's own errors into a line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ∇ is no reason to fail
    options = parser().parse_args(arguments)
    try:
        return options.command_function(options)
    except rop.RopError as error:
        print(f"rop {options.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"rop {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `rop ... | head`
        sys.stderr.close()
        return FAILED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="rop",
        description="Exact gradients, Hessian-vector products and third-order products of neural networks, and "
        "training with them.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"rop {rop.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for module in (demo, training, check, bench):
        module.add(commands)
    return top


if __name__ == "__main__":
    sys.exit(main())
