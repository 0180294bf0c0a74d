"""One evaluation at a time: the lock of a process, and what a fork changes.

Numba's threading layers must not be entered twice at the same time, and a workspace holds the activations of one
evaluation, so every entry into a device's workspace holds this lock.
"""

from __future__ import annotations

import os
import threading

_lock = threading.RLock()
_is_home_process = True


def engine_lock() -> threading.RLock:
    """The lock that an evaluation holds. It is asked for each time, because a forked child has a new one."""
    return _lock


def in_home_process() -> bool:
    """Whether Numba's worker threads may be used: a fork does not duplicate them, so a child runs serially."""
    return _is_home_process


def _after_fork() -> None:
    """The child has no worker threads and may have inherited a lock that is held: it gets a new one."""
    global _lock, _is_home_process
    _lock, _is_home_process = threading.RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
