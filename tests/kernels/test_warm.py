"""Compiling ahead of use: what a network needs and nothing else, and folders of kernels for other machines."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rop
from rop.kernels import compile as compiling
from rop.kernels import ship, store, warm
from rop.kernels.cpu import vector
from tests.helpers.processes import run_python
from tests.kinds import KINDS, obstacle

# The forward pass of an activation needs a handful of small kernels.
FORWARD = """
import numpy as np, rop
layer = rop.{}()
print(rop.Sequential(layer).predict(np.zeros(0, np.float32), np.full((3, 2), 0.5, np.float32)).tobytes().hex())
"""


def entries(cache: Path) -> dict[str, int]:
    """The entries in a cache's only folder: when each was written."""
    (folder,) = cache.iterdir()
    return {path.name.rpartition("-")[0]: path.stat().st_mtime_ns for path in folder.glob(f"*{store.SUFFIX}")}


def test_a_network_compiles_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = run_python(FORWARD.format("Tanh"), ROP_CACHE_DIR=str(cache), ROP_QUIET="")
    found = entries(cache)
    assert first.stderr.count("\n") == 1 and f"compiling {len(found)} functions" in first.stderr
    assert "this network needs (float32), about " in first.stderr
    assert {"interpreter._run_parallel", "memory.load_float32", "memory.store_float32"} < found.keys()
    assert any(name.startswith("elementwise.tanh_") for name in found) and len(found) < 12
    assert not list(cache.glob(f"*/{store.COMPLETE}*"))

    again = run_python(FORWARD.format("Tanh"), ROP_CACHE_DIR=str(cache), ROP_QUIET="")
    assert (again.stdout, again.stderr) == (first.stdout, "") and entries(cache) == found

    other = run_python(FORWARD.format("ReLU"), ROP_CACHE_DIR=str(cache), ROP_QUIET="")
    added = entries(cache).keys() - found.keys()
    assert 1 <= len(added) <= 3 and "compiling" in other.stderr, added
    assert all(entries(cache)[name] == when for name, when in found.items())


def test_no_file_is_named_as_a_module_of_python() -> None:
    """Children run in this folder, where such a file would take the module's place."""
    names = {file.stem for file in Path(warm.__file__).parent.glob("*.py")} - {"__init__"}
    assert not names & sys.stdlib_module_names


def test_all_that_a_jet_needs_is_asked_for_at_once(monkeypatch: Any) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(warm, "complete", lambda dtype: False)
    monkeypatch.setattr(warm, "_ready", set())
    monkeypatch.setattr(warm, "names_in", lambda folder: set())
    monkeypatch.setattr(warm, "_compile_aside", lambda dtype, names, reason: asked.append(names))
    net = rop.Sequential(rop.Conv2d(1, 2, 3), rop.ReLU(), rop.Flatten(), rop.Linear(8, 3), rop.Tanh())
    x, y, w = np.ones((5, 1, 4, 4), np.float32), np.zeros((5, 3), np.float32), net.init()
    point = rop.Objective(net, rop.MSE(), x, y).at(w)
    point.hvp(w), point.hvp(np.stack([w, w + 1], 1)), point.r2(w)
    assert len(asked) == 1
    assert {"bilinear.products_float32", "loss.squared_error_float32", "elementwise.forward_float32"} < asked[0]
    assert not [name for name in asked[0] if "cross_entropy" in name or "float64" in name or "training" in name]


def test_kernels_of_every_file_are_compiled_ahead() -> None:
    """In a process that has imported none of them."""
    run_python(
        "from pathlib import Path\n"
        "from rop.kernels import cpu, warm\n"
        "files = {f.stem for f in Path(cpu.__path__[0]).glob('*.py') if '\\n@kernel\\n' in f.read_text('utf-8')}\n"
        "assert files == {kernel.name.partition('.')[0] for kernel in warm.all_kernels()}"
    )


def test_the_names_of_all_work_are_those_of_the_entries() -> None:
    """Otherwise a function would be compiled in vain at each start."""
    for dtype in (np.float32, np.float64):
        warm.ensure_compiled(dtype)
        assert set(warm.work(dtype)) <= store.names_in(compiling.cache_folder())


def test_children_that_fail_are_not_asked_again(monkeypatch: Any, capsys: Any) -> None:
    class Failed:
        stdin = None

        def wait(self) -> int:
            return 1

        def kill(self) -> None: ...

    started: list[set[str]] = []

    def start(dtype: Any, names: set[str], claims: str) -> Any:
        started.append(names)
        return Failed()

    monkeypatch.setattr(warm, "_start", start)
    monkeypatch.setattr(warm, "complete", lambda dtype: not warm._aside)
    monkeypatch.setattr(warm, "_aside", True)
    monkeypatch.delenv("ROP_QUIET", raising=False)
    warm.ensure("float32", ["no.such_float32"])
    warm.ensure("float32", ["nor.such_float32"])
    assert started == [{"no.such_float32"}]
    assert "compiling a function that this network needs (float32), about 2 s" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ sealed folders
@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "version"
    folder.mkdir(parents=True)
    for name in ("a-1.kernel", "b-2.kernel", "complete-float32"):
        (folder / name).write_bytes(name.encode() * 10)
        (folder / name).chmod(0o600)
    digest = store.seal(folder)
    assert digest == hashlib.sha256((folder / store.MANIFEST).read_bytes()).hexdigest()
    return folder


def test_a_sealed_folder_is_for_everybody_to_read(sealed: Path) -> None:
    assert store.damage(sealed) is None
    assert {stat.S_IMODE(path.stat().st_mode) for path in sealed.iterdir()} == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (sealed, sealed.parent)} == {0o755}
    assert len((sealed / store.MANIFEST).read_text().splitlines()) == 3


def test_entries_of_ones_own_may_be_added_to_a_sealed_folder(sealed: Path) -> None:
    (sealed / "own-3.kernel").write_bytes(b"an activation of the user's")
    assert store.damage(sealed) is None


@pytest.mark.parametrize("name", ["a-1.kernel", "b-2.kernel", "complete-float32"])
def test_a_file_that_is_gone_or_changed_spoils_a_sealed_folder(name: str, sealed: Path) -> None:
    whole = (sealed / name).read_bytes()
    for content in (whole[:-1], whole + b"!", whole[:-1] + b"!"):
        (sealed / name).write_bytes(content)
        assert store.damage(sealed) == f"{name} is not what {store.MANIFEST} says"
    (sealed / name).unlink()
    assert store.damage(sealed) == f"{name} is missing or cannot be read"


@pytest.mark.parametrize("content", [b"abc\n", b"\xff\xfe", b"0  ../b-2.kernel\n", b"0  /etc/hosts\n"])
def test_a_damaged_manifest_spoils_its_folder(content: bytes, sealed: Path) -> None:
    (sealed / store.MANIFEST).write_bytes(content)
    assert store.MANIFEST in (store.damage(sealed) or "")


def test_a_file_is_no_sealed_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert store.damage(tmp_path / "file" / "version") is None


def test_a_spoilt_folder_is_not_used_and_this_is_said(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("ROP_CACHE_DIR", str(tmp_path / "cache"))
    folder = compiling.cache_folder.__wrapped__()
    (folder / "a-1.kernel").write_bytes(b"code")
    store.seal(folder)
    assert compiling.cache_folder.__wrapped__() == folder and capsys.readouterr().err == ""
    (folder / "a-1.kernel").write_bytes(b"other")
    assert compiling.cache_folder.__wrapped__() == tmp_path / "user" / "rop" / folder.name
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{folder} is not used, because a-1.kernel is not what" in said


def test_a_kind_that_the_machine_is_not_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(vector.binding, "get_host_cpu_features", lambda: {"avx2": True, "avx512f": False})
    vector.check_host("x86-64-v3")
    vector.check_host("znver4")
    with pytest.raises(rop.DeviceError, match=r"NUMBA_CPU_NAME=x86-64-v4 .* avx512f, .* does not have: .* unset"):
        vector.check_host("x86-64-v4")


# ------------------------------------------------------------------------------------------------------------ rop warm
def test_filling_a_folder_says_where_and_seals_it(monkeypatch: Any, sealed: Path) -> None:
    (sealed / store.MANIFEST).unlink()
    monkeypatch.setattr(ship, "cache_folder", lambda: sealed)
    monkeypatch.setattr(warm, "ensure_compiled", lambda dtype: None)
    monkeypatch.setattr(warm, "work", lambda dtype: dict.fromkeys("ab"))
    said = ship.fill(None, ["float32"])
    assert str(sealed) in said and "2 functions" in said and not (sealed / store.MANIFEST).exists()
    said = ship.fill(sealed.parent, ["float32"])
    assert said.endswith(hashlib.sha256((sealed / store.MANIFEST).read_bytes()).hexdigest())
    with pytest.raises(rop.RopError, match="expected a folder that only you can write to"):
        ship.fill(sealed.parent.parent / "other", ["float32"])
    (sealed / "b-2.kernel").unlink()
    with pytest.raises(rop.RopError, match="1 functions are not there, among them b"):
        ship.fill(None, ["float32"])


@pytest.mark.thorough
def test_kernels_compiled_for_a_kind_of_cpu_are_loaded_elsewhere(tmp_path: Path) -> None:
    why = obstacle("avx2")
    if why is not None:
        pytest.skip(why)
    cache = tmp_path / "cache"
    assert ship.run_for("x86-64-v3", cache, ["float32"]) == 0
    before = entries(cache)
    given = {**KINDS["avx2"], "ROP_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(tmp_path / "user"), "ROP_QUIET": ""}
    loaded = run_python(FORWARD.format("Tanh"), 300.0, **given)
    assert loaded.stderr == "" and entries(cache) == before and not (tmp_path / "user").exists()
    (path,) = cache.glob("*/elementwise.tanh_*")
    path.write_bytes(os.urandom(1000))
    refused = run_python(FORWARD.format("Tanh"), 300.0, **given)
    assert refused.stdout == loaded.stdout and f"{path.parent} is not used, because {path.name}" in refused.stderr
    assert "compiling" in refused.stderr and entries(cache).keys() == before.keys()
