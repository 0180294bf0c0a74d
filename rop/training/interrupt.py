"""Ctrl-C during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Makes Ctrl-C set a flag, which the run reads between steps, so that a checkpoint holds the arrays of one step. A
    second Ctrl-C raises at once. Signals can be handled in the main thread alone; in others the flag is never set."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield flag.is_set
    finally:
        signal.signal(signal.SIGINT, before)
