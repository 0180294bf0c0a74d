"""Files that several tasks need and one of them makes: images of a GAN, the start of the chest models.

A file is made by the first task that needs it, and the others wait for it. Experiments put a task that does nothing but
make it at the head of their lists, so that little is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes may make the same file, which is the same bits and replaced atomically
    fcntl = None  # type: ignore[assignment]


def made_once(path: Path, make: Callable[[], None]) -> Path:
    """The path of a file, made by ``make()`` if there is none. If another process is making it, this one waits; should
    the other fail or be killed, this one makes it.

    ``make`` must write the file atomically.
    """
    if not path.exists():
        with _locked(path):
            if not path.exists():  # another process was faster
                make()
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that belongs to this path, in a hidden file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
