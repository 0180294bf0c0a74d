"""The errors a user of the package can see.

Each is also the builtin error that a caller would expect, so ``except ValueError`` keeps working. Warnings that do not
stop the work are lines on standard error, see ``say``.
"""

import sys


class RopError(Exception):
    """Anything this package refuses or cannot do."""


class ArgumentError(RopError, ValueError):
    """An argument of the right kind whose value, shape or range does not fit."""


class DeviceError(RopError, RuntimeError):
    """A device that was asked for cannot be used on this machine; the message says what is missing."""


class ArgumentTypeError(RopError, TypeError):
    """An argument of the wrong kind: another type, an array of another dtype, a layer where a node belongs."""


class FileError(RopError, OSError):
    """A file that cannot be written, for lack of space or permission; the message names it and its present state."""


class MissingAttributeError(ArgumentTypeError, AttributeError):
    """A layer or loss whose constructor has not stored its arguments."""


class MissingPackageError(RopError, ImportError):
    """A package that is optional and not installed; the message names the extra that brings it."""


def missing_package(owner: str, package: str, extra: str, error: ImportError) -> MissingPackageError:
    """The error to raise in place of one from ``import``."""
    return MissingPackageError(f"{owner}: {package} is needed here ({error}): pip install 'rop[{extra}]'")


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"rop: {text}", file=sys.stderr, flush=True)
