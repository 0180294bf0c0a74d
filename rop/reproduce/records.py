"""Records: one JSON file for each finished task, from which everything that is shown is made.

A record holds the task with all its settings, the figures, how long it took, the versions of the packages and the
machine. It is written at once or not at all. Whatever is read is checked: a damaged file, or one that belongs to
another task than its name says, is named in an error and never shown.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import rop
from rop.errors import ArgumentError, RopError
from rop.reproduce.spec import Task
from rop.training.checkpoint import remove_leftovers, write_text

__all__ = ["Record", "Records", "read_record", "write_record"]

FORMAT, VERSION = "rop reproduction record", 1
LARGEST = 2**24  # bytes
PACKAGES = ("numpy", "scipy", "numba", "torch")


@dataclass(frozen=True)
class Record:
    """A finished task."""

    task: Task
    figures: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str | None]
    machine: str


class Records:
    """Records of one experiment, to be filtered.

    >>> task = Task("forest", "unregularised", 0, "published")
    >>> found = Records([Record(task, {"accuracy": 0.7}, 1.0, {}, "a CPU")])
    >>> found.where(model="unregularised").values("accuracy"), found.where(seed=1).values("accuracy")
    ({0: 0.7}, {})
    """

    def __init__(self, records: Iterable[Record]):
        self.records = sorted(records, key=lambda record: record.task.seed)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def where(self, **wanted: Any) -> Records:
        """Those whose task has these attributes (model, variant, seed, …) or settings."""

        def has(record: Record, name: str) -> Any:
            return getattr(record.task, name) if hasattr(record.task, name) else record.task.settings.get(name)

        return Records(r for r in self.records if all(has(r, name) == value for name, value in wanted.items()))

    def values(self, figure: str) -> dict[int, float]:
        """One figure by seed; a dot leads into a figure that is a dict. Tasks without it are left out."""
        found = {record.task.seed: figure_of(record.figures, figure) for record in self.records}
        return {seed: float(value) for seed, value in found.items() if value is not None}


def figure_of(figures: Mapping[str, Any], name: str) -> Any:
    """A figure by its name, or the part of one.

    >>> figure_of({"rho": {"32": 4.0}}, "rho.32"), figure_of({}, "rho.32")
    (4.0, None)
    """
    value: Any = figures
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


# ------------------------------------------------------------------------------------------------------------- writing
def record_path(folder: Path, task: Task) -> Path:
    """Where the record of a task is, in the folder of its experiment."""
    return folder / "records" / f"{task.key}.json"


def write_record(folder: Path, task: Task, figures: Mapping[str, Any], seconds: float) -> Record:
    """Writes the record of a task that is done, atomically."""
    record = Record(task, dict(figures), seconds, versions(), machine())
    content = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": task.experiment,
        "model": task.model,
        "variant": task.variant,
        "seed": task.seed,
        "digest": task.digest,
        "settings": task.settings,
        "figures": record.figures,
        "seconds": round(seconds, 3),
        "versions": record.versions,
        "machine": record.machine,
    }
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RopError(f"{task.label}: expected figures that are JSON-able and finite, got {figures!r}") from error
    write_text(record_path(folder, task), text + "\n")
    return record


@cache
def versions() -> dict[str, str | None]:
    """The versions of rop, Python and the packages that results depend on; None for one that is not installed."""
    found: dict[str, str | None] = {"rop": rop.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@cache
def machine() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------------------------------- reading
def read_record(path: Path) -> Record:
    """The record in a file, checked: a whole record of this version, under the name that its content has."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(LARGEST).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, f"no JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise _damaged(path, "another file")
    try:
        task = Task(content["experiment"], content["model"], content["seed"], content["variant"], content["settings"])
        record = Record(
            task, dict(content["figures"]), float(content["seconds"]), dict(content["versions"]), content["machine"]
        )
        written = content["digest"]
    except (RopError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"no {error}" if isinstance(error, KeyError) else str(error)) from error
    if written != task.digest or path.name != f"{task.key}.json":
        raise _damaged(path, f"the record of another task ({task.experiment}: {task.label}), or changed settings")
    return record


def _damaged(path: Path, found: str) -> ArgumentError:
    return ArgumentError(
        f"{path}: expected the record of a finished task, got {found}; bring back a copy, or remove the file, and the "
        "task runs again"
    )


def read_records(folder: Path, tasks: Iterable[Task]) -> tuple[Records, int]:
    """The records of these tasks in the folder of an experiment, with any seed, and how many there are of other
    settings, which must not be mixed with them."""
    wanted = {task.digest for task in tasks}
    found, others = [], 0
    for path in sorted((folder / "records").glob("*.json")):
        if path.name.startswith("."):  # one that is just being written
            continue
        record = read_record(path)
        if record.task.digest in wanted:
            found.append(record)
        else:
            others += 1
    return Records(found), others


def unfinished(folder: Path, tasks: Iterable[Task]) -> list[Task]:
    """The tasks that have no record yet. Half-written files of killed processes are removed."""
    left = []
    for task in tasks:
        path = record_path(folder, task)
        remove_leftovers(path)
        if path.exists():
            read_record(path)
        else:
            left.append(task)
    return left
