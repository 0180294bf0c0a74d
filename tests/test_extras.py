"""What the pip extras ask for: users' own torch, and one torch for all that compares with it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def extras(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Requirement]]:
    """The requirements of each extra by the name of the package, as setup.py gives them."""
    given: dict[str, dict[str, list[str]]] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    return {
        extra: {Requirement(one).name: Requirement(one) for one in ones}
        for extra, ones in given["extras_require"].items()
    }


def test_users_keep_their_torch(extras: dict[str, dict[str, Requirement]]) -> None:
    wanted = extras["torch"]["torch"].specifier
    assert all(wanted.contains(version) for version in ("2.4.0", "2.13.0", "2.99"))
    assert not any(wanted.contains(version) for version in ("2.3.1", "3.0"))


@pytest.mark.parametrize("extra", ["test", "bench", "reproduce"])
def test_comparisons_pin_it(extra: str, extras: dict[str, dict[str, Requirement]]) -> None:
    pinned = extras[extra]["torch"]
    assert str(pinned.specifier) == "==2.13.0"
    assert extras["torch"]["torch"].specifier.contains("2.13.0"), "users' range has the version that is tested"
