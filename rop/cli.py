"""The command `rop`: its parser, how errors become a line and an exit code, and what Ctrl-C does at any moment.

Modules that take long to import are imported inside functions, once Ctrl-C is handled.
"""

from __future__ import annotations

try:
    import os
    import signal
    import sys

    from rop.commands import COMMANDS, FAILED, INTERRUPTED
except KeyboardInterrupt:
    raise SystemExit(130) from None

TYPE_CHECKING = False  # as in typing, which is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType, ModuleType
    from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and turn the package's own errors into a line and an exit code.

    Without arguments it is the command of this process, which may be interrupted from its first to its last moment.
    """
    if arguments is not None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _main(arguments)  # the caller, or the parent process, handles or ignores Ctrl-C already
    try:
        signal.signal(signal.SIGINT, _leave)  # nothing has been done yet: there is nothing to tidy up
        _modules()
        sys.unraisablehook = _not_lost
        signal.signal(signal.SIGINT, _interrupt)
        return _main(None)
    except KeyboardInterrupt:
        _leave()
    finally:
        signal.signal(signal.SIGINT, _leave)  # all is done, and the interpreter is being taken down


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process at once, in a line and without a traceback."""
    os.write(2, b"rop: interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C while a command runs. In the middle of an import it ends the process at once, because libraries in C++
    abort when an import of theirs raises."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _not_lost(unraisable: sys.UnraisableHookArgs) -> None:
    """Ctrl-C in the middle of a destructor or a callback, which cannot raise it, is repeated a moment later."""
    if unraisable.exc_type is KeyboardInterrupt:
        import _thread
        import threading

        again = threading.Timer(0.01, _thread.interrupt_main)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


def _main(arguments: Sequence[str] | None) -> int:
    from rop.errors import RopError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ∇ is no reason to fail
    options = parser().parse_args(arguments)
    try:
        return options.command_function(options)
    except RopError as error:
        print(f"rop {options.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"rop {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `rop ... | head`
        sys.stderr.close()
        return FAILED


def parser() -> argparse.ArgumentParser:
    import argparse

    from rop import __version__
    from rop.commands.common import EXIT_CODES

    top = argparse.ArgumentParser(
        prog="rop",
        description="Exact gradients, Hessian-vector products and third-order products of neural networks, and "
        "training with them.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"rop {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for module in _modules():
        module.add(commands)
    return top


def _modules() -> list[ModuleType]:
    """The modules of the commands."""
    from importlib import import_module

    return [import_module(f"rop.commands.{name}") for name in COMMANDS]


if __name__ == "__main__":
    sys.exit(main())
