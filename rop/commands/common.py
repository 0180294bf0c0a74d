"""Shared by all commands: exit codes, the form of their parsers, and a line that shows progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeAlias

from rop.commands import FAILED, INTERRUPTED, OK, USAGE

__all__ = [
    "EXIT_CODES",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "USAGE",
    "Commands",
    "Progress",
    "add_command",
    "note_missing",
    "positive",
]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # what add_subparsers returns

EXIT_CODES = """exit codes:
  0    done, and all checks passed
  1    a check failed, or the work could not be done
  2    wrong usage
  130  interrupted
"""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    about: str,
    epilog: str = "",
    details: str = "",
) -> argparse.ArgumentParser:
    """A parser for one command; ``run`` takes the parsed options and returns the exit code."""
    parser = commands.add_parser(
        name,
        help=about,
        description=details or about,
        epilog=f"{epilog}\n{EXIT_CODES}" if epilog else EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command_function=run)
    return parser


def note_missing(what: str, package: str, extra: str) -> None:
    """Say on standard error that something optional is left out, and how to get it."""
    print(f"note: no {what}, because {package} is not installed (pip install 'rop[{extra}]')", file=sys.stderr)


def positive(text: str) -> int:
    """A whole number from 1 up, as an option gives it.

    >>> positive("12")
    12
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text!r}")
    return number


class Progress:
    """Shows progress on standard error: one line that changes, on a terminal only, and lines that are kept."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self.live:
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)

    def keep(self, text: str) -> None:
        self.done()
        print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
