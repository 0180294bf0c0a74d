"""The files of the kernel cache: which folder may be used, and entries that are either complete or absent.

Code that is loaded from the cache runs with the user's rights. So a folder is used only if it belongs to the user or to
root and nobody else may write to it, and an entry is unpickled only after its digest has been checked against its
content, its name and its key. An entry that fails any check counts as missing: it is compiled again and replaced.

A folder that is carried to other machines is sealed: a manifest lists the digests of its files, and if one of them is
missing or has changed, nothing of the folder is used. Files that are not listed are entries like those of any cache.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from numba.core.serialize import dumps

from rop.errors import say

MAGIC = b"rop compiled kernel 1\n"
DIGEST = 32  # bytes of SHA-256
SUFFIX = ".kernel"
COMPLETE = "complete-"  # a file with this name and a precision says that all kernels are there
MANIFEST = "SHA256SUMS"  # a file with the digests of all others, in the form that `sha256sum -c` reads
ABANDONED = 3600.0  # seconds after which a temporary file cannot have a living writer any more


# -------------------------------------------------------------------------------------------------------- the folder
def complaint(path: Path | int) -> str | None:
    """Why a folder or an open file cannot be trusted, and the remedy; None if it can be."""
    if not hasattr(os, "geteuid"):
        return None  # this system has no owners and modes
    found = os.stat(path)
    if found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user: name a folder of your own in ROP_CACHE_DIR"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by others: chmod go-w {path}, if you trust what is in it, or remove it"
    return None


def made_private(folder: Path) -> None:
    """Creates a folder that only the user may enter, unless it exists; its parents get the usual permissions."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    folder.chmod(0o700)  # the umask or the parent's default permissions may have changed the mode


def writable(folder: Path) -> bool:
    """Whether files can be created in a folder, which is created unless it exists."""
    try:
        made_private(folder.parent)
        made_private(folder)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def complete(folder: Path) -> bool:
    """Whether a folder holds all kernels of a precision: then it need not be writable, as when root has made it for all
    users."""
    try:
        return any(folder.glob(f"{COMPLETE}*"))
    except OSError:
        return False


def distrusted(folder: Path) -> bool:
    """Whether a folder of the cache, or its parent, must not be used; if so, a line tells the user why."""
    for path in (folder.parent, folder):
        try:
            wrong = complaint(path)
        except OSError:  # it does not exist or cannot be examined: creating or reading it will tell
            continue
        if wrong:
            say(f"the folder of compiled kernels {path} is not used, because it {wrong}. Using a temporary one")
            return True
    return False


def temporary(version: str) -> Path:
    """A folder for this process and its children, which is removed when this process ends. If it cannot be created, a
    path below which nothing can exist: then nothing is kept."""
    try:
        root = Path(tempfile.mkdtemp(prefix="rop-kernels-"))
        made_private(root / version)
    except OSError:
        return Path(os.devnull) / version
    os.environ["ROP_CACHE_DIR"] = str(root)  # the children read it
    atexit.register(_remove, root, os.getpid())
    return root / version


def _remove(folder: Path, maker: int) -> None:
    """Removes a folder, unless this process is a fork of the one that created it."""
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)


# --------------------------------------------------------------------------------------------------------- its entries
class Entries:
    """The entries of one function, one for each signature and kind of CPU that it has been compiled for."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name

    def path(self, key: Any) -> Path:
        """The file of the entry for a key; the key holds everything that the compiled code depends on."""
        return self._folder / f"{self._name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}{SUFFIX}"

    def load(self, key: Any) -> Any:
        """The data saved under the key, or None if they are missing, damaged or belong to somebody else."""
        try:
            with open(self.path(key), "rb") as file:
                content = b"" if complaint(file.fileno()) else file.read()
            start = len(MAGIC) + DIGEST
            payload = memoryview(content)[start:]
            if content[:start] != MAGIC + self._digest(key, payload):
                return None
            return pickle.loads(payload)
        except Exception:  # an entry that cannot be read is compiled again
            return None

    def save(self, key: Any, data: Any) -> None:
        """Writes the entry completely or not at all; raises OSError if it cannot be written."""
        payload = dumps(data)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=f"{SUFFIX}.tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + self._digest(key, payload) + payload)
            os.replace(name, self.path(key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _digest(self, key: Any, payload: Any) -> bytes:
        digest = hashlib.sha256(f"{self._name}\0{key!r}\0".encode())
        digest.update(payload)
        return digest.digest()


def names_in(folder: Path) -> set[str]:
    """The names of the functions that have an entry in a folder, which may be damaged."""
    try:
        return {name.rpartition("-")[0] for name in os.listdir(folder) if name.endswith(SUFFIX)}
    except OSError:
        return set()


def remove_abandoned(folder: Path) -> None:
    """Removes the half-written files of processes that were killed."""
    try:
        for path in folder.iterdir():
            ours = path.name.startswith(".") and path.name.endswith(f"{SUFFIX}.tmp")
            if ours and time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
    except OSError:
        pass


# ----------------------------------------------------------------------------------------------------- sealed folders
def seal(folder: Path) -> str:
    """Writes the manifest of a folder, makes all of it readable to everybody, and returns the manifest's digest."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST and not path.name.startswith("."))
    manifest = "".join(f"{_digest_of(path)}  {path.name}\n" for path in files)
    (folder / MANIFEST).write_text(manifest, "utf-8")
    for path in (*files, folder / MANIFEST):
        path.chmod(0o644)
    for path in (folder, folder.parent):
        path.chmod(0o755)
    return _digest_of(folder / MANIFEST)


def damage(folder: Path) -> str | None:
    """What is wrong with the files of a sealed folder; None if nothing is, or if the folder is not sealed."""
    try:
        lines = (folder / MANIFEST).read_text("utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return f"{MANIFEST} cannot be read"
    for line in lines:
        digest, _, name = line.partition("  ")
        if not name or Path(name).name != name:
            return f"{MANIFEST} is damaged"
        try:
            if _digest_of(folder / name) != digest:
                return f"{name} is not what {MANIFEST} says"
        except OSError:
            return f"{name} is missing or cannot be read"
    return None


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
