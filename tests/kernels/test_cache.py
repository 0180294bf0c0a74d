"""The cache of compiled kernels on disk: damage, strangers, full disks, and compilations that are interrupted."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rop
from rop.kernels import compile as compiling
from rop.kernels import store
from tests.helpers.processes import environment, run_python

KEY = ("(int64,)", ("x86_64", "a cpu", "+avx2"))


# ------------------------------------------------------------------------------------------------------------- entries
TOUCHED: list[int] = []


def touch() -> None:
    TOUCHED.append(1)


class Planted:
    """Something whose unpickling can be seen."""

    def __reduce__(self) -> Any:
        return touch, ()


@pytest.fixture
def entry(tmp_path: Path) -> tuple[store.Entries, Path]:
    entries = store.Entries(tmp_path, "gemm.multiply")
    entries.save(KEY, {"code": b"\x90" * 500})
    return entries, entries.path(KEY)


def test_an_entry_comes_back_and_replaces_the_one_before(entry: tuple[store.Entries, Path]) -> None:
    entries, path = entry
    assert entries.load(KEY) == {"code": b"\x90" * 500}
    entries.save(KEY, "new")
    assert entries.load(KEY) == "new" and list(path.parent.iterdir()) == [path]
    assert entries.load(("(float32,)", KEY[1])) is None and entries.load((KEY[0], ("x86_64", "other", ""))) is None


def test_an_entry_that_is_cut_or_flipped_anywhere_is_no_entry(entry: tuple[store.Entries, Path]) -> None:
    entries, path = entry
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert entries.load(KEY) is None, f"cut to {length}"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        assert entries.load(KEY) is None, f"flipped at {place}"
    path.write_bytes(whole + b"!")
    assert entries.load(KEY) is None


def test_what_has_no_digest_of_its_own_is_never_unpickled(entry: tuple[store.Entries, Path], tmp_path: Path) -> None:
    entries, path = entry
    other = store.Entries(tmp_path, "another")
    other.save(KEY, Planted())
    harmful = other.path(KEY).read_bytes()
    for content in (pickle.dumps(Planted()), harmful, path.read_bytes()[: len(store.MAGIC) + store.DIGEST] + b"x"):
        path.write_bytes(content)
        assert entries.load(KEY) is None and not TOUCHED
    other.load(KEY)
    assert TOUCHED == [1]


def test_entries_that_others_can_write_are_not_loaded(entry: tuple[store.Entries, Path], monkeypatch: Any) -> None:
    entries, path = entry
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o620, 0o602):
        path.chmod(mode)
        assert entries.load(KEY) is None
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert (entries.load(KEY) is None) == (path.stat().st_uid != 0), "root's entries are for everybody"


def test_half_written_entries_of_killed_processes_go_when_they_are_old(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".abc.kernel.tmp", ".def.kernel.tmp", ".abc.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    store.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


# ---------------------------------------------------------------------------------------------------------- the folder
@pytest.fixture
def found(monkeypatch: Any, tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """The folder that a process with this ROP_CACHE_DIR takes."""
    temporary: list[Path] = []
    monkeypatch.setattr(store.atexit, "register", lambda *a: temporary.append(a[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))

    def folder(named: Path) -> Path:
        monkeypatch.setenv("ROP_CACHE_DIR", str(named))
        return compiling.cache_folder.__wrapped__()

    yield folder
    for path in temporary:
        shutil.rmtree(path)


@pytest.mark.parametrize("umask", [0, 0o002, 0o277])
def test_the_folder_is_private_from_the_start(umask: int, found: Any, tmp_path: Path, capsys: Any) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "a").mkdir(0o755)
        (tmp_path / "a").chmod(0o755)
        folder = found(tmp_path / "a" / "cache")
    finally:
        os.umask(before)
    assert folder.parent == tmp_path / "a" / "cache" and capsys.readouterr().err == ""
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.parametrize("inner", [True, False])
def test_a_folder_that_others_can_write_to_is_not_used(
    mode: int, inner: bool, found: Any, tmp_path: Path, capsys: Any
) -> None:
    folder = found(tmp_path / "cache")
    wrong = folder if inner else folder.parent
    wrong.chmod(mode)
    other = found(tmp_path / "cache")
    said = capsys.readouterr().err
    assert tmp_path not in other.parents and stat.S_IMODE(other.stat().st_mode) == 0o700
    assert said.count("\n") == 1 and f"{wrong} is not used" in said and f"chmod go-w {wrong}" in said
    assert os.environ["ROP_CACHE_DIR"] == str(other.parent), "processes that this one starts use the same"
    assert compiling.cache_folder.__wrapped__() == other and capsys.readouterr().err == ""


def test_nothing_is_made_in_a_folder_that_is_not_used(found: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    assert tmp_path not in found(tmp_path / "cache").parents and "is not used" in capsys.readouterr().err
    assert not list((tmp_path / "cache").iterdir())


def test_a_folder_of_another_user_is_not_used(found: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    folder = found(tmp_path / "cache")
    real = os.stat
    strangers = (str(folder.parent), folder.parent)

    def stranger(path: Any, **options: Any) -> Any:
        result = real(path, **options)
        return SimpleNamespace(st_uid=54321, st_mode=result.st_mode) if path in strangers else result

    monkeypatch.setattr(store.os, "stat", stranger)
    other = found(tmp_path / "cache")
    said = capsys.readouterr().err
    assert tmp_path not in other.parents and said.count("\n") == 1
    assert f"{folder.parent} is not used, because it belongs to another user" in said and "ROP_CACHE_DIR" in said


def test_a_complete_cache_that_cannot_be_written_to_is_read(found: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder = found(tmp_path / "cache")
    monkeypatch.setattr(store, "writable", lambda path: tmp_path / "cache" not in path.parents)
    assert found(tmp_path / "cache") == tmp_path / "user" / "rop" / folder.name
    (folder / f"{store.COMPLETE}float32").touch()
    assert found(tmp_path / "cache") == folder


def test_without_any_folder_nothing_is_kept(found: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "writable", lambda path: False)
    monkeypatch.setattr(store.tempfile, "mkdtemp", full)
    entries = store.Entries(found(tmp_path / "cache"), "a")
    assert entries.load(KEY) is None
    with pytest.raises(OSError):
        entries.save(KEY, 1)


def test_relative_names_mean_the_same_folder_in_all_processes(found: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert found(Path("cache")).parent == tmp_path / "cache"


# ------------------------------------------------------------------------------------------------------ the whole cache
def third(scale: float) -> Callable[[float], tuple[float, float, float, float]]:
    return lambda x: (scale * x * x * x, 3 * scale * x * x, 6 * scale * x, 6 * scale)


def test_a_full_disk_costs_the_cache_not_the_result(monkeypatch: Any, capsys: Any) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.tempfile, "mkstemp", full)
    monkeypatch.setattr(compiling.KernelCache, "unsaved", 0)
    for scale in (2.7182, 3.1415):  # functions that no cache holds
        net = rop.Sequential(rop.Elementwise(third(scale)))
        assert net.predict(np.zeros(0, np.float32), np.full((1, 1), 2.0, np.float32))[0, 0] == pytest.approx(8 * scale)
    said = capsys.readouterr().err
    assert said.count("cannot be kept in") == 1 and "No space left on device" in said and said.count("\n") == 1
    assert compiling.KernelCache.unsaved == 2


NETWORK = """
import hashlib, math, numpy as np, rop
def bent(x):
    s, c = math.sin(x), math.cos(x)
    return s, c, -s, -c
net = rop.Sequential(rop.Linear(5, 7), rop.ReLU(), rop.Linear(7, 6), rop.Elementwise(bent), rop.Tanh(), rop.Linear(6, 3)
                     )
rng = np.random.default_rng(0)
w = net.init(dtype=np.float64)
jet = rop.Objective(net, rop.CrossEntropy(), rng.random((40, 5)), rng.integers(3, size=40), dtype=np.float64).jet(w, w)
print(hashlib.sha256(jet.grad.tobytes() + jet.hvp.tobytes() + jet.r2.tobytes()).hexdigest())
"""


def test_missing_and_damaged_kernels_are_compiled_again(tmp_path: Path) -> None:
    """Also where the cache says it is complete; results have the same bits, and the next start finds all in place."""
    folder = tmp_path / "cache" / compiling.cache_folder().name
    shutil.copytree(compiling.cache_folder(), folder)
    for path in (folder, folder.parent):
        path.chmod(0o700)
    expected = run_python(NETWORK, ROP_CACHE_DIR=str(tmp_path / "cache")).stdout

    names = ("transfer._ask_float64_parallel", "elementwise.forward_", "elementwise.tanh_", "elementwise.bent_")
    wanted = [path for name in names for path in folder.glob(f"{name}*{store.SUFFIX}") if "float32" not in path.name]
    assert len(wanted) == len(names)
    gone, empty, *flipped = wanted
    gone.unlink()
    empty.write_bytes(b"")
    for path in flipped:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))
    done = run_python(NETWORK, ROP_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stdout == expected and "Traceback" not in done.stderr
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert all(path in before and path.stat().st_size > 1000 for path in wanted)
    again = run_python(NETWORK, ROP_CACHE_DIR=str(tmp_path / "cache"))
    assert again.stdout == expected and again.stderr == ""
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


# ------------------------------------------------------------------------------------------- interrupted compilations
def children(process: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc to find processes in")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_compilation_leaves_no_processes(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NETWORK],
        env=environment(ROP_CACHE_DIR=str(tmp_path / "cache")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        compilers: list[int] = []
        end = time.monotonic() + 60
        while len(compilers) < min(2, os.cpu_count() or 1) and time.monotonic() < end:
            time.sleep(0.05)
            compilers = children(process.pid)
        assert compilers
        time.sleep(1.0)
        process.send_signal(number)
        assert process.wait(20) != 0
        end = time.monotonic() + 20
        while any(map(alive, compilers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(alive, compilers))
        assert not list((tmp_path / "cache").glob(f"*/{store.COMPLETE}*"))
    finally:
        process.kill()
        process.wait()
