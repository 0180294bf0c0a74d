"""Shows and saves what runner.py measured: lines while it runs, a table, JSON, plots."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from .engines import ENGINES, WORKS

Row = dict[str, Any]
COLOURS = {"rop": "#0072b2", "torch": "#d55e00", "torch.func": "#e69f00", "jax": "#009e73"}


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (58.2e-6, 0.0048, 2.5, 0.00123456)]
    ['58.2 µs', '4.80 ms', '2.50 s', '1.23 ms']
    """
    unit, scale = next((u for u in (("s", 1.0), ("ms", 1e-3)) if seconds >= u[1]), ("µs", 1e-6))
    return f"{seconds / scale:.3g} {unit}" if seconds >= 100 * scale else f"{seconds / scale:#.3g} {unit}"


def size(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


def slower(row: Row, engine: str, rows: list[Row], key: str = "median_s") -> float | None:
    """How many times slower an engine is than rop at this work (at the same quantities, for works only rop has)."""
    ours = row["engines"].get("rop")
    theirs = measured(row, engine, rows)
    return theirs[key] / ours[key] if ours and theirs else None


def measured(row: Row, engine: str, rows: list[Row]) -> dict[str, Any] | None:
    """The measurement of an engine; beside `at_hvp_r2` stands the others' `jet`, which gives the same."""
    if engine not in row["engines"] and row["work"] == "at_hvp_r2":
        same = ("problem", "batch", "dtype")
        for other in rows:
            if other["work"] == "jet" and all(other[key] == row[key] for key in same):
                return other["engines"].get(engine)
    return row["engines"].get(engine)


def line(row: Row) -> str:
    """One row as it is measured: `usps 128 float32 loss+grad+Hv+R²: rop 5.9 ms, torch 31.8 ms (5.4×)`."""
    head = f"{row['problem']} {row['batch']} {row['dtype']} {WORKS[row['work']]}: "
    if row["status"] != "ok":
        return head + "REFUSED, " + row["message"]
    parts = []
    for name, engine in row["engines"].items():
        times = slower(row, name, [])
        parts.append(f"{name} {duration(engine['median_s'])}" + (f" ({times:.1f}×)" if times and name != "rop" else ""))
    return head + ", ".join(parts)


def table(result: dict[str, Any], key: str = "median_s") -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: times, × rop, the limit and how much of it rop (or the first engine) reaches."""
    rows = result["rows"]
    names = [name for name in ENGINES if any(name in row["engines"] for row in rows)]
    head = ["problem", "batch", "dtype", "work", *names, "limit", "reached"]
    body = []
    for row in rows:
        cells = [row["problem"], str(row["batch"]), row["dtype"], WORKS[row["work"]]]
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


def memory_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Peak memory while loss+grad+Hv+R² is timed, and what the first calls took."""
    names = [name for name in ENGINES if any(name in row["engines"] for row in result["rows"])]
    head = ["problem", "batch", "dtype", *(f"{name}: peak, first call" for name in names)]
    body = []
    for row in result["rows"]:
        if row["status"] == "ok" and row["work"] == "jet":
            cells = [row["problem"], str(row["batch"]), row["dtype"]]
            for name in names:
                engine = row["engines"].get(name)
                first = duration(engine["first_call_s"][engine["way"]]) if engine else ""
                cells.append(f"{size(engine['peak_bytes'])}, {first}" if engine else "")
            body.append(cells)
    return head, body


def show(result: dict[str, Any], file: TextIO | None = None) -> None:
    """The whole result on the terminal; with rich if it is installed."""
    file = file or sys.stdout
    environment = result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    rates = ", ".join(f"{dtype} {rate / 1e9:.0f} Gflop/s" for dtype, rate in result["gemm_flops_per_s"].items())
    _print_table("Medians; (×) how many times that of rop", *table(result), file)
    _print_table("Minima", *table(result, "min_s"), file)
    head, body = memory_table(result)
    if body:
        _print_table("loss+grad+Hv+R²: peak memory of the process; first call, with compilation", head, body, file)
    print(f"{environment['cpu']}, {environment['threads']} threads; {versions}", file=file)
    if rates:
        print(f"limit: flops the recursion needs ÷ rate of a matrix product ({rates})", file=file)
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
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


# -------------------------------------------------------------------------------------------------------------- plots
def plots(result: dict[str, Any], folder: Path) -> list[Path]:
    """Time by engine, cost relative to a gradient, growth with the batch; the files that were written."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for dtype in result["settings"]["dtypes"]:
        rows = [row for row in result["rows"] if row["dtype"] == dtype and row["status"] == "ok"]
        for name, draw in (("time", _time), ("relative", _relative), ("batch", _batch)):
            figure = draw(rows)
            if figure is not None:
                environment = result["environment"]
                figure.supxlabel(f"{environment['cpu']}, {environment['threads']} threads, {dtype}", fontsize=8)
                path = folder / f"{name}-{dtype}.png"
                figure.savefig(path, dpi=150)
                written.append(path)
    return written


def _figure(panels: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * min(panels, 3) + 1, 3.4 * -(-panels // 3)), layout="constrained")
    axes = figure.subplots(-(-panels // 3), min(panels, 3), squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def _middle(values: list[int]) -> int:
    return 128 if 128 in values else sorted(values)[len(values) // 2]


def _time(rows: list[Row]) -> Any:
    """loss+grad+Hv+R² by engine, one group of bars per problem, the limit as a line."""
    jets = [row for row in rows if row["work"] == "jet"]
    if not jets:
        return None
    batch = _middle([row["batch"] for row in jets])
    jets = [row for row in jets if row["batch"] == batch]
    names = [name for name in ENGINES if any(name in row["engines"] for row in jets)]
    figure, (axes,) = _figure(1)
    figure.set_size_inches(max(6, 1.5 * len(jets)), 3.8)
    width = 0.8 / len(names)
    for j, name in enumerate(names):
        at = [k + (j - (len(names) - 1) / 2) * width for k, row in enumerate(jets) if name in row["engines"]]
        heights = [1e3 * row["engines"][name]["median_s"] for row in jets if name in row["engines"]]
        axes.bar(at, heights, width * 0.94, label=name, color=COLOURS[name])
    for k, row in enumerate(jets):
        axes.hlines(1e3 * row["limit_s"], k - 0.42, k + 0.42, colors="black", linestyles="dotted",
                    label=None if k else "limit")  # fmt: skip
    axes.set_xticks(range(len(jets)), [row["problem"] for row in jets])
    axes.set(yscale="log", ylabel="ms", title=f"loss + gradient + Hv + R², batch {batch}")
    axes.margins(y=0.12)
    axes.legend(fontsize=8, ncols=len(names) + 1)
    return figure


def _relative(rows: list[Row]) -> Any:
    """What Hv and the whole jet cost in gradients of the same engine."""
    batches = [row["batch"] for row in rows]
    if not {"grad", "hvp", "jet"} <= {row["work"] for row in rows}:
        return None
    rows = [row for row in rows if row["batch"] == _middle(batches)]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, panels = _figure(len(problems))
    for axes, problem in zip(panels, problems, strict=True):
        of = {row["work"]: row["engines"] for row in rows if row["problem"] == problem}
        names = [name for name in ENGINES if all(name in of.get(work, {}) for work in ("grad", "hvp", "jet"))]
        for j, work in enumerate(("hvp", "jet")):
            cost = [of[work][name]["median_s"] / of["grad"][name]["median_s"] for name in names]
            at = [k + (j - 0.5) * 0.4 for k in range(len(names))]
            bars = axes.bar(at, cost, 0.37, color=[COLOURS[name] for name in names], alpha=0.55 + 0.45 * j)
            axes.bar_label(bars, [f"{value:.1f}" for value in cost], fontsize=7)
        axes.set_xticks(range(len(names)), names)
        axes.margins(y=0.12)
        axes.set(title=problem, ylabel="gradients")
    figure.suptitle("Cost in gradients of the same engine: Hv (pale), loss + gradient + Hv + R² (full)", fontsize=10)
    return figure


def _batch(rows: list[Row]) -> Any:
    """Growth with the batch."""
    jets = [row for row in rows if row["work"] == "jet"]
    if len({row["batch"] for row in jets}) < 2:
        return None
    problems = list(dict.fromkeys(row["problem"] for row in jets))
    figure, panels = _figure(len(problems))
    for axes, problem in zip(panels, problems, strict=True):
        mine = sorted((row for row in jets if row["problem"] == problem), key=lambda row: row["batch"])
        for name in ENGINES:
            points = [(row["batch"], 1e3 * row["engines"][name]["median_s"]) for row in mine if name in row["engines"]]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], label=name)
        axes.plot([row["batch"] for row in mine], [1e3 * row["limit_s"] for row in mine], "k:", label="limit")
        axes.set(xscale="log", yscale="log", title=problem, xlabel="batch", ylabel="ms")
    panels[0].legend(fontsize=8)
    figure.suptitle("loss + gradient + Hv + R²", fontsize=10)
    return figure
