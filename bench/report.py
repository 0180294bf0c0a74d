"""Shows and saves the results of runner.py: lines while it runs, tables, goals, JSON."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from .engines import ENGINES, SAME, WORKS

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
TORCH = ("torch", "torch.func")


class Goal(NamedTuple):
    """How many times faster than torch (the faster of its engines) and JAX rop is to be, and its part of the limit."""

    problem: str
    work: str
    torch: float
    jax: float
    of_limit: float | None = None


GOALS = (  # two cores, float32, batch 128, medians
    Goal("forest", "jet", 28, 6, 0.4),
    Goal("usps", "jet", 6.5, 4.5, 0.65),
    Goal("wide", "jet", 1.7, 1.1, 0.75),
    Goal("forest", "step", 22, 3),
    Goal("usps", "step", 5, 6),
    Goal("wide", "step", 1.4, 1.0),
    Goal("forest", "epoch", 10, 2),
    Goal("forest", "penalised", 10, 3),
)


class Ratios(NamedTuple):
    """How many times rop's time torch (the faster of its engines) and JAX take, and rop's memory over torch's.

    Memory is the peak of an engine's process while gradient and jet were timed.
    """

    torch_gradient: float | None = None
    torch_jet: float | None = None
    jax_gradient: float | None = None
    jax_jet: float | None = None
    memory: float | None = None


WANTED = {  # two cores, float32, medians; nowhere slower than JAX
    "resnet18-32": Ratios(1.5, 3, 1, 1, 0.9),
    "vgg11-32": Ratios(1.7, 3, 1, 1, 0.9),
    "mobilenet-32": Ratios(2, 7, 1, 1, 0.9),
    "densenet121-64": Ratios(1.2, 3.5, 1, 1, 1.0),
    "resnet18-224": Ratios(1.3, 3, 1, 1, 0.9),
    "densenet121-224": Ratios(1.2, 3, 1, 1, 0.9),
    "densenet121-64-train": Ratios(1.2, 3, 1, 1, 1.0),
}


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (58.2e-6, 0.0048, 2.5, 0.00123456)]
    ['58.2 µs', '4.80 ms', '2.50 s', '1.23 ms']
    """
    unit, scale = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / scale:.3g} {unit}" if seconds >= 100 * scale else f"{seconds / scale:#.3g} {unit}"


def size(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


def about(row: Row) -> str:
    """The work of a row, as tables name it."""
    short = row.get("steps", 0) < row.get("all_steps", 0)
    return WORKS[row["work"]] + (f", {row['steps']} of its {row['all_steps']} steps" if short else "")


def slower(row: Row, engine: str, rows: list[Row], key: str = "median_s") -> float | None:
    """How many times slower an engine is than rop at this work (at the same quantities, for works only rop has)."""
    ours = row["engines"].get("rop")
    theirs = measured(row, engine, rows)
    return theirs[key] / ours[key] if ours and theirs else None


def measured(row: Row, engine: str, rows: list[Row]) -> dict[str, Any] | None:
    """The measurement of an engine; for a work that only rop has, that of the work with the same results."""
    if engine not in row["engines"] and row["work"] in SAME:
        other = find(rows, row["problem"], row["batch"], row["dtype"], SAME[row["work"]])
        return other["engines"].get(engine) if other else None
    return row["engines"].get(engine)


def find(rows: list[Row], problem: str, batch: int, dtype: str, work: str) -> Row | None:
    """The row of a measurement, if it was made and not refused."""
    key = problem, batch, dtype, work
    same = (row for row in rows if (row["problem"], row["batch"], row["dtype"], row["work"]) == key)
    return next((row for row in same if row["status"] == "ok"), None)


def line(row: Row) -> str:
    """One row as it is measured: `usps 128 float32 loss+grad+Hv+R²: rop 5.9 ms, torch 31.8 ms (5.4×)`."""
    head = f"{row['problem']} {row['batch']} {row['dtype']} {about(row)}: "
    if "axis" in row:
        head = f"{about(row)}, {row['axis']} {row['value']}: "
    if row["status"] != "ok":
        return head + "REFUSED, " + row["message"]
    parts = []
    for name, engine in row["engines"].items():
        times = slower(row, name, [])
        parts.append(f"{name} {duration(engine['median_s'])}" + (f" ({times:.1f}×)" if times and name != "rop" else ""))
    return head + ", ".join(parts)


# ------------------------------------------------------------------------------------------------------------- tables
def table(result: dict[str, Any], key: str = "median_s") -> Table:
    """Times, × rop, the limit and how much of it rop (or the first engine) reaches."""
    rows = result["rows"]
    names = [name for name in ENGINES if any(name in row["engines"] for row in rows)]
    head = ["problem", "batch", "dtype", "work", *names, "limit", "reached"]
    body = []
    for row in rows:
        cells = [row["problem"], str(row["batch"]), row["dtype"], about(row)]
        if row["status"] != "ok":
            body.append([*cells, "refused", *[""] * (len(head) - 5)])
            continue
        for name in names:
            engine, times = measured(row, name, rows), slower(row, name, rows, key)
            text = duration(engine[key]) if engine else ""
            cells.append(text + (f" ({times:.1f}×)" if times and name != "rop" else ""))
        first = row["engines"].get("rop") or next(iter(row["engines"].values()))
        body.append([*cells, duration(row["limit_s"]), f"{row['limit_s'] / first[key]:.2f}"])
    return head, body


def memory_table(result: dict[str, Any]) -> Table:
    """Peak memory while loss+grad+Hv+R² is timed, whether rop needs less than torch, and what the first calls took."""
    names = [name for name in ENGINES if any(name in row["engines"] for row in result["rows"])]
    head = ["problem", "batch", "dtype", *(f"{name}: peak, first call" for name in names), "rop below torch"]
    body = []
    for row in result["rows"]:
        if row["status"] == "ok" and row["work"] == "jet":
            cells = [row["problem"], str(row["batch"]), row["dtype"]]
            for name in names:
                engine = row["engines"].get(name)
                first = duration(engine["first_call_s"][engine["way"]]) if engine else ""
                cells.append(f"{size(engine['peak_bytes'])}, {first}" if engine else "")
            body.append([*cells, {True: "yes", False: "NO", None: ""}[below(row)]])
    return head, body


def below(row: Row) -> bool | None:
    """Whether the process of rop needed less memory than that of torch; None where it has torch loaded too."""
    if not row.get("alone", True):
        return None
    ours, theirs = row["engines"].get("rop"), row["engines"].get("torch")
    return ours["peak_bytes"] < theirs["peak_bytes"] if ours and theirs else None


def growth_table(result: dict[str, Any]) -> Table:
    """The slopes of the times and of the operations."""
    head = ["growth with", "engine", "points", "slope of its time", "of the operations", "against"]
    body = [
        [
            entry["axis"],
            entry["engine"],
            str(entry["points"]),
            f"{entry['slope']:.2f}",
            f"{entry['flops_slope']:.2f}",
            entry["against"],
        ]
        for entry in result["slopes"]
    ]
    return head, body


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The goals with the measurements; a goal without a row is left out, a shortened row says so."""
    entries = []
    for goal in GOALS:
        row = find(result["rows"], goal.problem, 128, "float32", goal.work)
        if row is None or "rop" not in row["engines"]:
            continue
        rivals = [ratio for name in TORCH if (ratio := slower(row, name, []))]
        reached = {
            "torch": min(rivals) if rivals else None,
            "jax": slower(row, "jax", []),
            "of_limit": row["engines"]["rop"]["of_limit"] if goal.of_limit else None,
        }
        wanted = {"torch": goal.torch, "jax": goal.jax, "of_limit": goal.of_limit}
        met = {name: value >= (wanted[name] or 0) for name, value in reached.items() if value is not None}
        entries.append(
            {
                "problem": goal.problem,
                "work": goal.work,
                "about": about(row),
                "measured": reached,
                "wanted": wanted,
                "met": met,
            }
        )
    return entries


def goals_table(result: dict[str, Any]) -> Table:
    """× faster than torch (the faster of its two engines) and JAX, and the part of the limit."""
    body = []
    for entry in goals(result):
        cells = [f"{entry['problem']}, {entry['about']}"]
        for name in ("torch", "jax", "of_limit"):
            wanted, value = entry["wanted"][name], entry["measured"][name]
            shown = "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"
            cells.append("" if wanted is None else f"{shown or '–'} / {wanted:g}" + mark(entry["met"].get(name)))
        body.append(cells)
    return ["measured / wanted", "× faster than torch", "× faster than JAX", "of the limit"], body


def ratios(rows: list[Row]) -> dict[tuple[str, int, str], Ratios]:
    """(problem, batch, dtype) → what was reached, for problems with a batch size of their own."""
    own = [row for row in rows if row.get("own_batch") and row["status"] == "ok"]
    result = {}
    for key in dict.fromkeys((row["problem"], row["batch"], row["dtype"]) for row in own):
        both = [row for work in ("grad", "jet") if (row := find(own, *key, work))]
        reached: dict[str, float | None] = {}
        for row in both:
            work = "gradient" if row["work"] == "grad" else "jet"
            rivals = [ratio for name in TORCH if (ratio := slower(row, name, []))]
            reached |= {f"torch_{work}": min(rivals, default=None), f"jax_{work}": slower(row, "jax", [])}
        if len(both) == 2:
            reached["memory"] = memory_ratio(both)
        result[key] = Ratios(**reached)
    return result


def memory_ratio(rows: list[Row]) -> float | None:
    """The largest peak of rop's process over that of torch's, where both are there."""
    if not all({"rop", "torch"} <= set(row["engines"]) and row.get("alone", True) for row in rows):
        return None
    ours, theirs = (max(row["engines"][name]["peak_bytes"] for row in rows) for name in ("rop", "torch"))
    return ours / theirs


def ratios_table(result: dict[str, Any]) -> Table:
    """Measured and wanted for the problems with a batch size of their own."""
    names = ("× torch, gradient", "× torch, jet", "× JAX, gradient", "× JAX, jet", "memory over torch's")
    body = []
    for (problem, batch, dtype), reached in ratios(result["rows"]).items():
        (training,) = {row["training"] for row in result["rows"] if row["problem"] == problem}
        cells = [problem, str(batch), dtype, "training" if training else "evaluation"]
        wanted = WANTED.get(problem, Ratios()) if dtype == "float32" else Ratios()
        for name, value, goal in zip(Ratios._fields, reached, wanted, strict=True):
            if value is None:
                cells.append("–" if goal is None else f"– / {goal:g}")
            elif goal is None:
                cells.append(f"{value:.2f}")
            else:
                met = value <= goal if name == "memory" else value >= goal
                cells.append(f"{value:.2f} / {goal:g}{mark(met)}")
        body.append(cells)
    return ["problem", "batch", "dtype", "batchnorm", *names], body


def mark(met: bool | None) -> str:
    return {True: " ✓", False: " ✗", None: ""}[met]


def remarks(result: dict[str, Any]) -> list[str]:
    """The promises other than times: memory below torch's, a block of vectors cheaper than single ones."""
    lines = []
    rows = [row for row in result["rows"] if row["status"] == "ok"]
    judged = {f"{r['problem']} {r['batch']} {r['dtype']}": below(r) for r in rows if r["work"] == "jet"}
    judged = {name: less for name, less in judged.items() if less is not None}
    if judged:
        above = [name for name, less in judged.items() if not less]
        verdict = f"NOT for {', '.join(above)}" if above else f"in all {len(judged)} cases"
        lines.append(f"peak memory of rop below torch's for loss+grad+Hv+R²: {verdict}")
    ratios = []
    for row in rows:
        single = find(rows, row["problem"], row["batch"], row["dtype"], "hvp")
        if row["work"] == "hvp_block" and single and "rop" in row["engines"] and "rop" in single["engines"]:
            ratio = row["engines"]["rop"]["median_s"] / single["engines"]["rop"]["median_s"]
            ratios.append(f"{row['problem']} {row['batch']} {row['dtype']} {ratio:.2f}{mark(ratio < 1)}")
    if ratios:
        lines.append(f"one Hv of a block, in single ones (rop): {', '.join(ratios)}")
    return lines


def show(result: dict[str, Any], file: TextIO | None = None) -> None:
    """The whole result on the terminal; with rich if it is installed."""
    file = file or sys.stdout
    environment = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rates = ", ".join(f"{dtype} {rate / 1e9:.0f} Gflop/s" for dtype, rate in result["gemm_flops_per_s"].items())
    threads = environment["threads"]
    promised: Table = ([], []) if "gpu" in environment else goals_table(result)
    for title, (head, body) in (
        ("Medians; (×) how many times that of rop; limit, and the part of it that rop reaches", table(result)),
        ("Minima", table(result, "min_s")),
        ("loss+grad+Hv+R²: peak memory of the process; first call, with compilation", memory_table(result)),
        ("Growth of loss+grad+Hv+R²: slopes on logarithmic axes, upper half of the points", growth_table(result)),
        ("Time of torch and JAX over rop's, and memory over torch's; measured / wanted", ratios_table(result)),
        (f"Measured and wanted (on two cores): {threads} threads, float32, batch 128, medians", promised),
    ):
        if body:
            _print_table(title, head, body, file)
    for remark in remarks(result):
        print(remark, file=file)
    print(f"{environment['cpu']}, {threads} threads; {versions}", file=file)
    if "gpu" in environment:
        print(f"measured on {environment['gpu']}; vectors in its memory, every call waited for", file=file)
    if rates:
        counted = result["limit_counts"]
        print(f"limit: flops the recursion needs ({counted}) ÷ rate of a matrix product ({rates})", file=file)
    print(f"answers compared with {result['reference']}, before timing", file=file)
    for failure in result["failures"]:
        print(f"FAILED: {failure}", file=file)
    for note in result["notes"]:
        print(f"note: {note}", file=file)


def _print_table(title: str, head: list[str], body: list[list[str]], file: TextIO) -> None:
    if find_spec("rich"):
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table

        shown = Table(*head, title=title, box=SIMPLE, title_justify="left")
        for cells in body:
            shown.add_row(*cells)
        wide = None if file.isatty() else 200
        Console(file=file, width=wide, highlight=False).print(shown)
        return
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    print(title, file=file)
    for cells in (head, ["-" * width for width in widths], *body):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(), file=file)
    print(file=file)


def save_json(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    reached = [
        {"problem": problem, "batch": batch, "dtype": dtype, **values._asdict()}
        for (problem, batch, dtype), values in ratios(result["rows"]).items()
    ]
    whole = {**result, "goals": goals(result), "ratios": reached}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", "utf-8")
